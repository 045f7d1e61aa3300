"""What an operator gets to see. Offsets count messages of a queue; times end in ``_ms`` and count from 1970."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ogive.model import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS, TOOLS_GROUP, MessageQueue

Permission = Literal["rw", "r", "w"]
MessageType = Literal["UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"]
TopicKind = Literal["application", "retry", "dead-letter", "system"]
ResetTarget = Literal["earliest", "latest"] | datetime | Mapping[MessageQueue, int]

_SYSTEM_NAMES = SYSTEM_TOPICS | {"DefaultHeartBeatSyncerTopic"}  # the latter is the proxy's
_SYSTEM_PREFIXES = (SYSTEM_TOPIC_PREFIX, "RMQ_SYS_", "CID_RMQ_SYS_")
_SYSTEM_GROUPS = frozenset({TOOLS_GROUP, "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_DefaultHeartBeatSyncerTopic"})
_SYSTEM_GROUP_PREFIXES = ("CID_ONS-", "CID_ONSAPI_", "CID_RMQ_SYS_", "CID_SYS_RMQ_")


def topic_kind(name: str) -> TopicKind:
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dead-letter"
    return "system" if name in _SYSTEM_NAMES or name.startswith(_SYSTEM_PREFIXES) else "application"


def is_system_group(name: str) -> bool:
    return name in _SYSTEM_GROUPS or name.startswith(_SYSTEM_GROUP_PREFIXES)


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic and the brokers that hold it; the counts are of all brokers together."""

    name: str
    brokers: tuple[str, ...]
    read_queues: int
    write_queues: int
    kind: TopicKind = "application"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTopic:
    """A topic's settings at one broker. *address* is the master's."""

    broker: str
    cluster: str
    address: str
    read_queues: int
    write_queues: int
    perm: str
    order: bool
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic: settings and route. *groups*: who consumes it, or has. *message_type* is None where nobody declared one."""

    name: str
    kind: TopicKind
    message_type: str | None
    brokers: tuple[BrokerTopic, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """What one queue holds: messages from *min_offset* up to, not including, *max_offset*. *last_stored_ms* is None for an empty queue."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_stored_ms: int | None


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is behind in one queue. *last_consumed_ms*: when the newest consumed message was stored; None if there is none.

    *member*: the client id that holds the queue; None where nobody does, or its holder does not tell.
    """

    queue: MessageQueue
    consumer_offset: int
    max_offset: int
    lag: int
    last_consumed_ms: int | None
    member: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One connected client of a group. *version* is the RocketMQ release that it speaks as."""

    client_id: str
    address: str
    language: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """A consumer group as the brokers hold it."""

    name: str
    brokers: tuple[str, ...]
    enabled: bool
    max_retries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A consumer group: settings, members, progress.

    *subscriptions* (topic to expression), *consume_type* and *message_model* are those of the members, empty while none is online.
    *lag* counts the messages not consumed in all queues, *messages_per_s* those consumed.
    """

    name: str
    brokers: tuple[str, ...]
    enabled: bool
    broadcast: bool
    retry_queues: int
    max_retries: int
    members: tuple[Member, ...]
    subscriptions: Mapping[str, str]
    consume_type: str
    message_model: str
    lag: int
    messages_per_s: float


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """One queue's part of a reset. *before* is None where the group had no position."""

    queue: MessageQueue
    before: int | None
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """One broker process. *trouble* says why the figures are missing; *figures* are all that it reports, under its own names.

    *disk_used* is the share of the commit log's disk, 0 to 1; *oldest_message_ms* None for an empty broker.
    """

    name: str
    cluster: str
    broker_id: int
    address: str
    version: str | None = None
    puts_per_s: float | None = None
    gets_per_s: float | None = None
    puts_today: int | None = None
    gets_today: int | None = None
    disk_used: float | None = None
    oldest_message_ms: int | None = None
    figures: Mapping[str, str]
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class UserRow:
    """A user of brokers with access control; nobody answers passwords."""

    name: str
    super_user: bool
    enabled: bool


@dataclass(frozen=True, slots=True)
class AccessRule:
    """One thing that a user may or may not. *default*: counts only where no other rule fits. *source_ips* empty: from everywhere."""

    user: str
    resource: str
    actions: tuple[str, ...]
    allowed: bool
    source_ips: tuple[str, ...] = ()
    default: bool = False
