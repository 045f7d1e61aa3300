"""Results of Admin.

Offsets number the messages of a queue; times end in ``_ms`` and count from 1970.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from ogive.errors import InvalidOption
from ogive.model import (
    BATCHES,
    DLQ_PREFIX,
    QUEUE_TYPE,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    MessageExt,
    MessageQueue,
)

Permission = Literal["rw", "r", "w"]
TopicKind = Literal["application", "retry", "dead-letter", "system"]
SettingValue = int | bool | str
NO_MEMBER: Final = "no member is online"
"""The beginning of the gap that ``lag_gaps(members=False)`` leaves out."""
ResetTarget = Literal["earliest", "latest"] | datetime | Mapping[MessageQueue, int]

# the latter is the proxy's
_SYSTEM_NAMES = SYSTEM_TOPICS | {"DefaultHeartBeatSyncerTopic"}
_SYSTEM_PREFIXES = (SYSTEM_TOPIC_PREFIX, "RMQ_SYS_", "CID_RMQ_SYS_")


def topic_kind(name: str) -> TopicKind:
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dead-letter"
    return "system" if name in _SYSTEM_NAMES or name.startswith(_SYSTEM_PREFIXES) else "application"


_MODELS: Final = {
    "CLUSTERING": "they share the messages",
    "BROADCASTING": "each gets every message",
}
_TYPES: Final = {
    "CONSUME_PASSIVELY": "by listeners",
    "CONSUME_ACTIVELY": "by pulling",
    "CONSUME_POP": "by popping",
}


def how_consumed(message_model: str, consume_type: str) -> str:
    """Describe how the members of a group consume, without Java's names."""
    words = (_MODELS.get(message_model, message_model), _TYPES.get(consume_type, consume_type))
    return ", ".join(word for word in words if word)


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """Topic, and the brokers that hold it; the counts are of all brokers together."""

    name: str
    brokers: tuple[str, ...]
    read_queues: int
    write_queues: int
    kind: TopicKind = "application"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTopic:
    """Settings of a topic at one broker. *address* is the master's."""

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
    """A topic: settings and route.

    *groups* consume it, or have done so. *message_type* is None if none was declared.
    """

    name: str
    kind: TopicKind
    message_type: str | None
    brokers: tuple[BrokerTopic, ...]
    groups: tuple[str, ...]

    @property
    def whole_batches(self) -> bool:
        """Return True for a topic of batches: each is one record (queue.type=BatchCQ)."""
        return any(row.attributes.get(QUEUE_TYPE) == BATCHES for row in self.brokers)


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """Messages in one queue: from *min_offset* until before *max_offset*.

    *last_stored_ms* is None for an empty queue.
    """

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_stored_ms: int | None


@dataclass(frozen=True, slots=True)
class QueueLag:
    """Lag of a group in one queue.

    *last_consumed_ms*: when the newest consumed message was stored, or None.

    *member*: the client id of the queue's holder; None if nobody holds it, or the holder does not
    report it.
    """

    queue: MessageQueue
    consumer_offset: int
    max_offset: int
    lag: int
    last_consumed_ms: int | None
    member: str | None = None


def behind_s(row: QueueLag, now_s: float) -> float | None:
    """Return the age of the newest message that was consumed; 0 if there is no lag, None if the age
    is unknown.
    """
    if not row.lag:
        return 0.0
    return None if row.last_consumed_ms is None else max(0.0, now_s - row.last_consumed_ms / 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One connected client of a group.

    *version* is the RocketMQ release whose protocol it speaks.
    """

    client_id: str
    address: str
    language: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """Consumer group, as the brokers hold it."""

    name: str
    brokers: tuple[str, ...]
    enabled: bool
    max_retries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A consumer group: settings, members, progress.

    *max_retries* is the brokers' limit, for members that send none of their own; clients of ogive
    and Java do. *orderly* is a hint for proxies of 5.x. *subscriptions* (topic to expression),
    *consume_type* and *message_model* come from the members, and are empty while none is online.
    *lag* is the number of messages still to be consumed, in all queues.
    """

    name: str
    brokers: tuple[str, ...]
    enabled: bool
    broadcast: bool
    orderly: bool
    retry_queues: int
    max_retries: int
    members: tuple[Member, ...]
    subscriptions: Mapping[str, str]
    consume_type: str
    message_model: str
    lag: int
    messages_per_s: float


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One setting of a topic or group at one broker, named like the argument of ``update_topic`` or
    ``update_group``.

    *before* is None for a message type that was not declared.
    """

    broker: str
    setting: str
    before: SettingValue | None
    after: SettingValue


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Change of a group's offset in one queue. *before* is None if it had none."""

    queue: MessageQueue
    before: int | None
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """One broker process.

    *figures* is everything that it reports, under its own names; *trouble* says why figures are
    missing.

    *version* is Apache's release, such as ``5.5.0``, or ``ogive 0.1.0``. *disk_used* is the used
    share of the commit log's disk, 0 to 1. *oldest_message_ms* is None for an empty broker.
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
    """User of brokers with access control."""

    name: str
    super_user: bool
    enabled: bool


@dataclass(frozen=True, slots=True)
class AccessRule:
    """One permission or prohibition.

    *default*: applies only if no other rule does. Empty *source_ips*: from anywhere.
    """

    user: str
    resource: str
    actions: tuple[str, ...]
    allowed: bool
    source_ips: tuple[str, ...] = ()
    default: bool = False


def setting_changes(
    broker: str, known: Mapping[str, SettingValue | None], wanted: Mapping[str, SettingValue]
) -> list[SettingChange]:
    """Return the changes that *wanted* makes at a broker whose settings are *known*."""
    return [
        SettingChange(broker, name, known[name], value)
        for name, value in wanted.items()
        if known[name] != value
    ]


def refusal(
    kind: Literal["topic", "group"], name: str, changes: Sequence[SettingChange]
) -> InvalidOption:
    """Return the error of a ``create_...`` that would overwrite the settings at the first broker of
    *changes*.
    """
    broker = changes[0].broker
    known = ", ".join(
        f"{row.setting.replace('_', ' ')} {_word(row.before)}"
        for row in changes
        if row.broker == broker
    )
    way_out = f"update_{kind} or `ogive {kind} update` changes it"
    if any(row.setting == "whole_batches" for row in changes):
        way_out = (
            "whole batches are decided when it is made: take another name, or delete it "
            "first, with its messages"
        )
    return InvalidOption(f"{kind} {name} exists already on {broker}, with {known}: {way_out}")


def _word(value: SettingValue | None) -> SettingValue:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else value


def queue_record(queue: MessageQueue) -> dict[str, Any]:
    """Return the keys that name a queue in JSON."""
    return {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}


def body_text(message: MessageExt) -> str | None:
    """Return the body as text; None if it is not text."""
    try:
        return message.text
    except UnicodeDecodeError:
        return None


def message_record(message: MessageExt) -> dict[str, Any]:
    """Return a message as the JSON of the command line and of the console's downloads."""
    body = body_text(message)
    return {
        **queue_record(message.queue),
        "offset": message.queue_offset,
        "id": message.id,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "born_at": message.born_at.isoformat(),
        "stored_at": message.stored_at.isoformat(),
        "reconsume_times": message.reconsume_times,
        **({"body": body} if body is not None else {"body_hex": message.body.hex()}),
    }
