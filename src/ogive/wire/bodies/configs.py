"""Configuration of topics and groups, and a broker's delay levels."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from ogive.errors import InvalidOption
from ogive.model import MAX_DELAY_S
from ogive.wire.bodies.json_fields import (
    PERM_READ,
    PERM_WRITE,
    JsonObject,
    as_object,
    get_list,
    get_table,
    loads_object,
    member,
)

# topics or groups that one request makes
MAX_LISTED: Final = 10_000


@dataclass(frozen=True, slots=True)
class DataVersion(JsonObject):
    """Version of a table. Equal versions mean equal tables; *counter* grows with each change.

    Source: DataVersion.java.
    """

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0

    def next(self, now_ms: int) -> Self:
        return type(self)(self.counter + 1, now_ms, self.state_version)


def get_attributes(obj: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the attributes of a topic or a group; null becomes empty text."""
    return get_table(obj, name, lambda value: "" if value is None else str(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig(JsonObject):
    """A topic at one broker. Source: TopicConfig.java."""

    name: str = member("topicName")
    read_queues: int = member("readQueueNums", absent=16, default=4)
    write_queues: int = member("writeQueueNums", absent=16, default=4)
    perm: int = PERM_READ | PERM_WRITE
    filter_type: str = member("topicFilterType", default="SINGLE_TAG")
    sys_flag: int = member("topicSysFlag", default=0)
    order: bool = False
    attributes: Mapping[str, str] = member(read=get_attributes, write=dict, default_factory=dict)


DEFAULT_RETRY_POLICY: Final[Mapping[str, Any]] = {"type": "CUSTOMIZED"}


def _subscriptions(obj: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], ...] | None:
    found = get_list(obj, name, lambda value: as_object(value, "subscription of a group"))
    return None if obj.get(name) is None else tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupConfig(JsonObject):
    """A consumer group at one broker. Source: SubscriptionGroupConfig.java, 5.5.

    *attributes* of a request are changes: "+name" with the value, or "-name". *retry_policy* and
    *subscriptions* are kept as they were received.
    """

    name: str = member("groupName")
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queues: int = member("retryQueueNums", default=1)
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed: bool = member("notifyConsumerIdsChangedEnable", default=True)
    consume_timeout_minutes: int = member("consumeTimeoutMinute", default=15)
    sys_flag: int = member("groupSysFlag", default=0)
    attributes: Mapping[str, str] = member(read=get_attributes, write=dict, default_factory=dict)
    retry_policy: Mapping[str, Any] = member(
        "groupRetryPolicy",
        read=lambda obj, name: as_object(obj.get(name) or DEFAULT_RETRY_POLICY, name),
        write=dict,
        default_factory=lambda: DEFAULT_RETRY_POLICY,
    )
    subscriptions: tuple[Mapping[str, Any], ...] | None = member(
        "subscriptionDataSet",
        read=_subscriptions,
        write=lambda values: [dict(value) for value in values],
        default=None,
    )


def topic_configs_loads(body: bytes) -> list[TopicConfig]:
    """Read the body of UPDATE_AND_CREATE_TOPIC_LIST. Source: CreateTopicListRequestBody.java."""
    return get_list(loads_object(body), "topicConfigList", TopicConfig.from_json, MAX_LISTED)


def group_configs_loads(body: bytes) -> list[SubscriptionGroupConfig]:
    """Read the body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST.

    Source: SubscriptionGroupList.java.
    """
    return get_list(
        loads_object(body), "groupConfigList", SubscriptionGroupConfig.from_json, MAX_LISTED
    )


DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_DELAY: Final = re.compile(r"[0-9]{1,20}[smhd]")
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """messageDelayLevel: level n (from 1) waits delays_ms[n - 1] in queue n - 1 of
    SCHEDULE_TOPIC_XXXX.
    """

    delays_ms: tuple[int, ...]

    @classmethod
    def parse(cls, text: str = DEFAULT_DELAY_LEVELS) -> Self:
        """Parse a table of delays. Raises InvalidOption for a bad entry: a broker must not start
        with half a table, or with a delay whose end no clock can represent.
        """
        words = text.split()
        for word in words:
            if not _DELAY.fullmatch(word):
                raise InvalidOption(
                    f"delay levels {text[:200]!r}: a list of numbers with a unit is expected, for "
                    "example '1s 5s 2m 1h 1d'"
                )
        delays = tuple(int(word[:-1]) * _UNIT_MS[word[-1]] for word in words)
        if not delays:
            raise InvalidOption(
                "delay levels are empty: must be at least one, for example '1s 5s 2m 1h 1d'"
            )
        if max(delays) > MAX_DELAY_S * 1000:
            word = words[delays.index(max(delays))]
            raise InvalidOption(
                f"delay level {word[:40]} is too long: must be at most "
                f"{MAX_DELAY_S // 86_400}d (40 years)"
            )
        return cls(delays)

    def clamp(self, level: int) -> int:
        """*level*, or the last one of the table if it is higher."""
        return min(level, len(self.delays_ms))

    def delay_ms(self, level: int) -> int:
        """Return the delay of *level*. Raises InvalidOption for a level below 1."""
        if level < 1:
            raise InvalidOption(f"delay level {level} is below 1")
        return self.delays_ms[self.clamp(level) - 1]
