"""Settings of consumers.

Times are in seconds; "Java:" names the counterpart of a setting there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ogive.client.config import check_type, check_types
from ogive.client.consumer.allocate import Strategy, average
from ogive.client.consumer.listener_call import Interceptor
from ogive.errors import InvalidOption
from ogive.keywords import explains


@explains
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings of a push consumer, for all of its listeners, or of a pull consumer, which has no
    locks and no retries.
    """

    pull_batch_size: int = 1024
    """Messages that one pull asks for; Apache's brokers never send more than 32. Java:
    pullBatchSize, 32."""
    pull_batch_bytes: int = 1024 * 1024
    """Bytes that one pull asks for. Java: pullBatchSizeInBytes, 256 KiB."""
    max_cached_messages: int = 1000
    """Limit of unfinished messages; a queue above it is not pulled. Java: pullThresholdForQueue."""
    max_cached_bytes: int = 100 * 1024 * 1024
    """Limit of unfinished bytes; a queue above it is not pulled. Java: pullThresholdSizeForQueue.
    """
    max_span: int = 2000
    """Limit of the distance between the lowest and the highest unfinished offset of a queue. Java:
    consumeConcurrentlyMaxSpan."""
    max_topic_messages: int | None = None
    """Limit of unfinished messages over all queues of a topic; None: no limit. Java:
    pullThresholdForTopic."""
    max_topic_bytes: int | None = None
    """Limit of unfinished bytes over all queues of a topic; None: no limit. Java:
    pullThresholdSizeForTopic."""
    max_total_bytes: int = 256 * 1024 * 1024
    """Limit of unfinished bytes over all queues of a group."""
    pull_suspend_s: float = 15.0
    """Longest time that a broker holds a pull that finds nothing. Java: brokerSuspendMaxTimeMillis.
    """
    pull_retry_s: float = 1.0
    """Pause after a failed pull. Java: pullTimeDelayMillsWhenException."""
    strategy: Strategy = average
    """Function that divides the queues; must be the same in all members of a group. Java:
    allocateMessageQueueStrategy."""
    pop_invisible_s: float = 60.0
    """Lease of a popped message, which is renewed while a listener works. Java:
    popInvisibleTime."""
    max_popped_messages: int = 256
    """With so many unfinished messages no more are popped from a place. Java:
    popThresholdForQueue, 96."""
    interceptors: tuple[Interceptor, ...] = ()
    """Context managers around every listener call; the first is the outermost. Java:
    ConsumeMessageHook."""
    rebalance_period_s: float = 20.0
    """Time between two rebalances without a change. Java: rocketmq.client.rebalance.waitInterval.
    """
    rebalance_pause_s: float = 1.0
    """Wait after an incomplete rebalance. Also the limit of the pause after each rebalance, which
    is 10 ms for each member of the group. Java: rocketmq.client.rebalance.minInterval."""
    hand_over_wait_s: float = 5.0
    """Longest wait for the listener calls that run in a queue that goes to another member.
    An orderly group waits for as long as its lock lasts."""
    hand_over_pause_s: float = 0.5
    """Time for which a queue is left alone if a member of the group cannot say whether it still
    holds it. Old clients cannot, access rules can forbid the question, and in a group of more than
    33 members only 32 are asked."""
    persist_period_s: float = 1.0
    """Time between two commits of progress in a queue with a backlog; without one it is a fifth of
    that. After a crash about this much is consumed again. Java: persistConsumerOffsetInterval, 5 s.
    """
    persist_again_s: float = 30.0
    """Send even unchanged progress again, in case the broker lost it in a crash."""
    offsets_dir: Path | None = None
    """Directory for the progress of broadcasting; None: ~/.rocketmq_offsets. Java:
    rocketmq.client.localOffsetStoreDir."""
    lock_renew_s: float = 20.0
    """Time between two renewals of the locks of an orderly group. Java:
    rocketmq.client.rebalance.lockInterval."""
    lock_lease_s: float = 30.0
    """Time that a lock counts without renewal; brokers keep it for 60 s. Java:
    rocketmq.client.rebalance.lockMaxLiveTime."""
    send_back_retry_s: float = 5.0
    """Pause before trying again to send back a failed message."""
    trace: bool = False
    """Record every consumption in RMQ_SYS_TRACE_TOPIC. Java: enableTrace."""
    await_termination_s: float = 10.0
    """Longest time that close() waits for running calls. Java: awaitTerminationMillisWhenShutdown,
    0."""

    def __post_init__(self) -> None:
        check_types(self)
        if not callable(self.strategy):
            raise TypeError(
                "strategy must be a function of ogive.client.consumer.allocate, such as average, "
                f"or one like it, not {self.strategy!r}"
            )
        check_type(
            "interceptors",
            self.interceptors,
            Sequence,
            "a tuple of functions, each of which makes a context manager",
        )
        for one in self.interceptors:
            if not callable(one):
                raise TypeError(
                    "interceptors must be functions, each of which makes a context manager, and "
                    f"{one!r} is none"
                )
        _within("pull_batch_size", self.pull_batch_size, 1, 4096)
        _within("pull_batch_bytes", self.pull_batch_bytes, 1024, 8 * 1024 * 1024)
        _within("max_cached_messages", self.max_cached_messages, 1, 65_535)
        _within("max_popped_messages", self.max_popped_messages, 1, 65_535)
        if not 5 <= self.pop_invisible_s <= 300:
            raise InvalidOption(
                f"pop_invisible_s is {self.pop_invisible_s}: must be between 5 and 300"
            )
        _within("max_span", self.max_span, 1, 65_535)
        _within("max_cached_bytes", self.max_cached_bytes, 1, 1 << 40)
        _within(
            "max_topic_messages",
            1 if self.max_topic_messages is None else self.max_topic_messages,
            1,
            6_553_500,
        )
        _within(
            "max_topic_bytes",
            1 if self.max_topic_bytes is None else self.max_topic_bytes,
            1,
            1 << 40,
        )
        _within("max_total_bytes", self.max_total_bytes, 1, 1 << 40)
        for name in (
            "pull_suspend_s",
            "pull_retry_s",
            "rebalance_period_s",
            "rebalance_pause_s",
            "send_back_retry_s",
        ):
            if getattr(self, name) <= 0:
                raise InvalidOption(f"{name} must be above zero")
        if not 0 < self.persist_period_s <= self.persist_again_s:
            raise InvalidOption(
                "persist_period_s must be above zero, and persist_again_s not below it"
            )
        if not 0 < self.lock_renew_s < self.lock_lease_s:
            raise InvalidOption(
                "lock_renew_s must be above zero and below lock_lease_s: a lock must be renewed "
                "before it runs out"
            )
        for name in ("await_termination_s", "hand_over_wait_s", "hand_over_pause_s"):
            if getattr(self, name) < 0:
                raise InvalidOption(f"{name} must not be negative")


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidOption(f"{name} is {value}: must be between {low} and {high}")
