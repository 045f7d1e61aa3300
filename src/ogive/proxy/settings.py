"""Settings that clients get, merged from what they sent and the configuration of their group.

Source: GrpcClientSettingsManager.java, 5.5.

Differs from Apache's proxy: a group without a limit of retries (retryMaxTimes -1) gets as many
attempts as there can be, and not none.
"""

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration

from ogive.proxy import rocketmq_pb2 as pb
from ogive.proxy.messages import MAX_BODY_BYTES
from ogive.wire.bodies.configs import DEFAULT_DELAY_LEVELS, DelayLevels, SubscriptionGroupConfig

MAX_RECEIVED: Final = 32
LONG_POLLING_S: Final = 20.0
NO_LIMIT: Final = 2**31 - 1
_DEFAULT: Final = SubscriptionGroupConfig(name="default")
# Source: ExponentialRetryPolicy.java
_EXPONENTIAL: Final = {"initial": 5_000, "max": 7_200_000, "multiplier": 2}


def duration(milliseconds: int) -> Duration:
    found = Duration()
    found.FromMilliseconds(milliseconds)
    return found


def max_attempts(group: SubscriptionGroupConfig | None) -> int:
    """Return how often a group gets a message before it is a dead letter."""
    times = (group or _DEFAULT).retry_max_times
    return NO_LIMIT if times < 0 else min(times + 1, NO_LIMIT)


def backoff(group: SubscriptionGroupConfig | None) -> pb.RetryPolicy:
    """Return the retry policy of a group."""
    policy = pb.RetryPolicy(max_attempts=max_attempts(group))
    stored = (group or _DEFAULT).retry_policy
    if stored.get("type") == "EXPONENTIAL":
        values = _EXPONENTIAL | _numbers(stored.get("exponentialRetryPolicy"))
        policy.exponential_backoff.initial.FromMilliseconds(int(values["initial"]))
        policy.exponential_backoff.max.FromMilliseconds(int(values["max"]))
        policy.exponential_backoff.multiplier = values["multiplier"]
        return policy
    customized = stored.get("customizedRetryPolicy")
    delays = customized.get("next") if isinstance(customized, Mapping) else None
    if not delays:
        delays = DelayLevels.parse(DEFAULT_DELAY_LEVELS).delays_ms
    policy.customized_backoff.next.extend(duration(int(one)) for one in delays)
    return policy


def _numbers(value: Any) -> dict[str, Any]:
    return {} if not isinstance(value, Mapping) else {k: v for k, v in value.items() if v}


def for_producer(sent: pb.Settings) -> pb.Settings:
    """Return the settings of a producer."""
    merged = pb.Settings()
    merged.CopyFrom(sent)
    policy = merged.backoff_policy
    policy.max_attempts = 3
    policy.exponential_backoff.initial.FromMilliseconds(10)
    policy.exponential_backoff.max.FromMilliseconds(1000)
    policy.exponential_backoff.multiplier = 2
    merged.publishing.validate_message_type = True
    merged.publishing.max_body_size = MAX_BODY_BYTES
    merged.metric.on = False
    return merged


def for_consumer(sent: pb.Settings, group: SubscriptionGroupConfig | None) -> pb.Settings:
    """Return the settings of a member of *group*."""
    merged = pb.Settings()
    merged.CopyFrom(sent)
    merged.backoff_policy.CopyFrom(backoff(group))
    subscription = merged.subscription
    subscription.fifo = (group or _DEFAULT).consume_message_orderly
    subscription.receive_batch_size = MAX_RECEIVED
    subscription.long_polling_timeout.FromMilliseconds(round(LONG_POLLING_S * 1000))
    subscription.lite_subscription_quota = 2000
    subscription.max_lite_topic_size = 64
    merged.metric.on = False
    return merged
