"""Messages, queues and results: immutable values for applications."""

import dataclasses
import enum
import functools
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from ogive.errors import InvalidOption, MessageIllegal, ResponseCode
from ogive.keywords import explains
from ogive.native import native

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
# brokers have a limit of their own, three days by default (timerMaxDelaySec)
MAX_DELAY_S: Final = 40 * 365 * 86_400
MAX_OFFSET: Final = 2**63 - 1
MAX_TOPIC_LENGTH: Final = 127
MAX_GROUP_LENGTH: Final = 120
# %RETRY% and %DLQ% topics
MAX_RESOURCE_LENGTH: Final = 255
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
AUTO_CREATE_TOPIC: Final = "TBW102"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECKED_TOO_OFTEN_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group under which a broker keeps its own progress in the topics of half messages.

Source: MixAll.java, 5.3.
"""
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
NO_SEND_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECKED_TOO_OFTEN_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
"""Only the broker itself writes to these. Source: TopicValidator.java, 5.3."""
REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
"""In front of the cluster's name: the topic of the leases of popped messages."""
SYSTEM_TOPICS: Final = NO_SEND_TOPICS | {
    AUTO_CREATE_TOPIC,
    "BenchmarkTest",
    TRACE_TOPIC,
    "CHECKPOINT_TOPIC",
}
"""The broker's own, as are those that begin with SYSTEM_TOPIC_PREFIX.

Source: TopicValidator.java, 5.3.
"""
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"


def is_written_by_brokers_alone(topic: str) -> bool:
    """Return True for a topic to which no client may send.

    Differs from Java, which lets clients send to the revive topic. A lease that a client made up
    would copy a message of any topic to the retry topic of any group.
    """
    return topic in NO_SEND_TOPICS or topic.startswith(REVIVE_TOPIC_PREFIX)


WAITING_TOPICS: Final = frozenset(
    {SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECKED_TOO_OFTEN_TOPIC}
)
"""Here messages of all topics wait, what was decided about them, and those about which nobody
decided.
"""
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""A group that every broker has, for reading without leaving a trace. Source: MixAll.java, 5.3."""

_SYSTEM_GROUPS: Final = frozenset(
    {TOOLS_GROUP, "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_DefaultHeartBeatSyncerTopic"}
)
_SYSTEM_GROUP_PREFIXES: Final = ("CID_ONS-", "CID_ONSAPI_", "CID_RMQ_SYS_", "CID_SYS_RMQ_")

MessageType = Literal["UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"]
"""The kind of messages that a topic is for; UNSPECIFIED takes all.

Source: TopicMessageType.java, 5.5.
"""

_EARLIEST_MS: Final = -62_135_596_800_000
_LATEST_MS: Final = 253_402_300_799_000
QUEUE_TYPE: Final = "queue.type"
BATCHES: Final = "BatchCQ"
"""As queue.type of a topic: a batch stays whole, as one record.

Source: QueueTypeUtils.java, 5.5.
"""

NAME_CHARACTER: Final = "[%|a-zA-Z0-9_-]"
"""As a regular expression: what names of topics and groups are made of."""
_NAME: Final = re.compile(f"{NAME_CHARACTER}+")


def is_system_group(name: str) -> bool:
    """Return True for a group of a broker or a tool."""
    return name in _SYSTEM_GROUPS or name.startswith(_SYSTEM_GROUP_PREFIXES)


class PropertyName:
    """Reserved property names. Source: MessageConst.java, 5.3."""

    KEYS = "KEYS"
    TAGS = "TAGS"
    WAIT = "WAIT"
    DELAY = "DELAY"
    RETRY_TOPIC = "RETRY_TOPIC"
    REAL_TOPIC = "REAL_TOPIC"
    REAL_QUEUE_ID = "REAL_QID"
    TRANSACTION_PREPARED = "TRAN_MSG"
    PRODUCER_GROUP = "PGROUP"
    TRANSACTION_ID = "__transactionId__"
    TRANSACTION_CHECKS = "TRANSACTION_CHECK_TIMES"
    TRANSACTION_IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    TRANSACTION_FIRST_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
    MIN_OFFSET = "MIN_OFFSET"
    MAX_OFFSET = "MAX_OFFSET"
    ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
    RECONSUME_TIME = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
    MSG_REGION = "MSG_REGION"
    TRACE_ON = "TRACE_ON"
    UNIQ_KEY = "UNIQ_KEY"
    CONSUME_START_TIME = "CONSUME_START_TIME"
    CORRELATION_ID = "CORRELATION_ID"
    REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
    TTL = "TTL"
    MESSAGE_TYPE = "MSG_TYPE"
    ARRIVE_TIME = "ARRIVE_TIME"
    PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
    CLUSTER = "CLUSTER"
    SHARDING_KEY = "__SHARDINGKEY"
    PRIORITY = "_SYS_MSG_PRIORITY_"
    TIMER_DELAY_MS = "TIMER_DELAY_MS"
    TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
    RECORD_CRC = "__CRC32#"
    POP_CK = "POP_CK"
    FIRST_POP_TIME = "1ST_POP_TIME"
    REMOVED_PROPERTIES = "OGIVE_REMOVED_PROPERTIES"
    """Names of properties that a retry or dead letter lacks, because they left no room for those of
    the retry."""


RESERVED_PROPERTIES: Final = frozenset(
    {value for name, value in vars(PropertyName).items() if not name.startswith("_")}
    | {
        "BUYER_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "EXTEND_UNIQ_INFO",
        "DUP_INFO",
        "INNER_NUM",
        "INNER_BASE",
        "INSTANCE_ID",
        "POP_CK_OFFSET",
        "TIMER_DELAY_SEC",
    }
)
"""Names that carry meaning for the broker or the client; a user property must not use them."""


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def pop_retry_topics(group: str, topic: str) -> tuple[str, str]:
    """Return the names of the topic from which members that pop get messages of *topic* again.

    The second one is that of brokers with enableRetryTopicV2.
    """
    return f"{RETRY_PREFIX}{group}_{topic}", f"{RETRY_PREFIX}{group}+{topic}"


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic of replies in that cluster. Source: MixAll.java getReplyTopic, 5.3."""
    return f"{cluster}_REPLY_TOPIC"


def instant(milliseconds: int) -> datetime:
    """*milliseconds* since 1970 as a UTC datetime; clamped to the years 1 to 9999, as a message may
    claim any time.
    """
    return datetime.fromtimestamp(min(max(milliseconds, _EARLIEST_MS), _LATEST_MS) / 1000, UTC)


@functools.lru_cache(4096)
def validate_topic(topic: str) -> str:
    """Return *topic* if it is a valid name.

    Raises InvalidOption. Source: TopicValidator.java, 5.3.
    """
    limit = (
        MAX_RESOURCE_LENGTH
        if str(topic).startswith((RETRY_PREFIX, DLQ_PREFIX))
        else MAX_TOPIC_LENGTH
    )
    # version 2 of the names of retry topics of popping groups: %RETRY%group+topic
    name = topic.replace("+", "_", 1) if str(topic).startswith(RETRY_PREFIX) else topic
    _validate_name("topic", name, limit)
    return topic


@functools.lru_cache(4096)
def validate_group(group: str) -> str:
    """Return *group* if it is a valid name of a producer or consumer group.

    Raises InvalidOption. Source: Validators.java, 5.3.
    """
    return _validate_name("group", group, MAX_GROUP_LENGTH)


def _validate_name(kind: str, name: str, limit: int) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{kind} name must be str, not {type(name).__name__}")
    if not name or len(name) > limit:
        raise InvalidOption(f"{kind} name has {len(name)} characters: must have 1 to {limit}")
    if not _NAME.fullmatch(name):
        raise InvalidOption(f"{kind} name {name[:64]!r} may hold only letters, digits and % | - _")
    return name


_TRIMMED: Final = "".join(map(chr, range(33)))
"""Characters that String.trim() of Java removes."""


@functools.lru_cache(4096)
def can_be_selected(tag: str) -> bool:
    """Return True if a subscription can select the tag."""
    return "|" not in tag and tag != "*" and tag == tag.strip(_TRIMMED)


def check_tag(tag: str) -> None:
    """Check that a subscription can select the tag. Raises InvalidOption."""
    if not can_be_selected(tag):
        raise InvalidOption(
            f"tag {tag!r}: no consumer could select it; a message has one tag, without |, which "
            "separates the tags of a "
            "subscription, without a blank at its ends, and not *"
        )


def parse_tags(expression: str) -> tuple[str, ...]:
    """The tags in ``paid || refunded``; none for ``*``, which means every message.

    Raises InvalidOption for what is neither.

    Java drops empty places, and takes a tag with ``|`` or ``*`` in it literally: it matches nothing
    that was meant.
    """
    if not isinstance(expression, str):
        raise TypeError(
            "tags must be str, several separated by || ('paid || refunded'), not "
            f"{type(expression).__name__}"
        )
    tags = tuple(dict.fromkeys(word.strip(_TRIMMED) for word in expression.split("||")))
    if tags == ("*",):
        return ()
    if not all(tags) or any("|" in tag for tag in tags) or "*" in tags:
        raise InvalidOption(
            f"tags {expression!r}: expected a tag, several separated by || ('paid || refunded'), "
            "or * for all"
        )
    return tags


@explains
@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker.

    The order (topic, broker name, queue id) is the one that allocation relies on.
    """

    topic: str
    """Name of the topic."""
    broker_name: str
    """Name of the broker that holds the queue."""
    queue_id: int
    """Number of the queue at its broker, from 0."""

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_name}/{self.queue_id}"


@explains
@dataclass(frozen=True, slots=True)
class Message:
    """A message to send.

    Consumers filter by *tag*; operators look messages up by *keys*. Messages with equal
    *sharding_key* go to one queue, in order. *properties* are the application's own; names that
    RocketMQ reserves are refused. At most one of these delays delivery: *delay_level* n >= 1, by
    the broker's n-th delay; *deliver_at*, until a time; *delay_s*, by so many seconds (the latter
    two need brokers from 5.0 on). *priority* chooses the queue, so a message has neither a delay
    nor a sharding key beside it; ogive's broker and Apache's from 5.4 on support it. Raises
    MessageIllegal for a message that no broker would store.
    """

    topic: str
    """Topic to send to."""
    body: bytes
    """Content, at most 4 MiB unless the broker is configured otherwise."""
    tag: str | None = field(default=None, kw_only=True)
    """Label that subscriptions select by."""
    keys: tuple[str, ...] = field(default=(), kw_only=True)
    """Business keys that operators look the message up by."""
    properties: Mapping[str, str] = field(default_factory=lambda: _NO_PROPERTIES, kw_only=True)
    """The application's own properties."""
    sharding_key: str | None = field(default=None, kw_only=True)
    """Messages with the same key go to one queue, in order."""
    delay_level: int = field(default=0, kw_only=True)
    """Number of a delay of the broker, from 1; 0 delivers at once."""
    deliver_at: datetime | None = field(default=None, kw_only=True)
    """Earliest time of delivery."""
    delay_s: float | None = field(default=None, kw_only=True)
    """Earliest delivery, counted from the send."""
    priority: int | None = field(default=None, kw_only=True)
    """Members that pop a topic of type PRIORITY get higher numbers first; at least 0."""
    flag: int = field(default=0, kw_only=True)
    """Number for the application's own use, which brokers pass on."""
    wait_store_ok: bool = field(default=True, kw_only=True)
    """Have the broker answer only after the flush and the copy to slaves. Java: waitStoreMsgOK."""

    def __post_init__(self) -> None:
        if not isinstance(self.body, bytes):
            raise TypeError(
                f"body must be bytes, not {type(self.body).__name__}: encode it, or give the "
                "producer a serializer, such as ogive.to_json"
            )
        if not self.topic:
            raise InvalidOption("a message needs a topic")
        if len(self.body) > MAX_BODY_BYTES:
            raise MessageIllegal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a body of {len(self.body)} bytes is over the limit of {MAX_BODY_BYTES}",
            )
        if type(self.keys) is not tuple:
            object.__setattr__(self, "keys", as_keys(self.keys))
        if self.properties is not _NO_PROPERTIES:
            if not isinstance(self.properties, Mapping):
                raise TypeError(
                    "properties must be a mapping of str to str, not "
                    f"{type(self.properties).__name__}"
                )
            object.__setattr__(self, "properties", MappingProxyType(dict(self.properties)))
        if not isinstance(self.flag, int):
            raise TypeError(f"flag must be int, not {type(self.flag).__name__}")
        if not -(2**31) <= self.flag < 2**31:
            raise InvalidOption(f"flag is {self.flag}: 32 bits are stored")
        self._check_texts()
        self._check_times()
        if self.priority is not None:
            self._check_priority(self.priority)

    def _check_texts(self) -> None:
        if self.tag is not None:
            _check_text("tag", self.tag)
            check_tag(self.tag)
        if self.sharding_key is not None:
            _check_text("sharding key", self.sharding_key)
        for key in self.keys:
            _check_text("key", key)
            if " " in key:
                raise MessageIllegal(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"key {key!r} holds a space: keys are stored separated by spaces",
                )
        for name, value in self.properties.items():
            if name in RESERVED_PROPERTIES:
                raise MessageIllegal(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"property {name!r} is reserved: ogive sets it, from an argument where there "
                    "is one",
                )
            _check_text("property", name)
            _check_text(f"property {name!r}", value)

    def _check_times(self) -> None:
        if self.delay_level != 0 or type(self.delay_level) is not int:
            check_delay_level(self.delay_level)
        if (self.delay_level > 0) + (self.deliver_at is not None) + (self.delay_s is not None) > 1:
            raise InvalidOption(
                "a message is delivered after a delay level, at a time or after some seconds: give "
                "one of them"
            )
        if self.deliver_at is not None and not isinstance(self.deliver_at, datetime):
            raise TypeError(
                "deliver_at must be a datetime with a time zone, not "
                f"{type(self.deliver_at).__name__}"
            )
        if self.deliver_at is not None and self.deliver_at.tzinfo is None:
            raise InvalidOption("deliver_at needs a time zone: datetime(..., tzinfo=UTC)")
        if self.delay_s is not None and (
            isinstance(self.delay_s, bool) or not isinstance(self.delay_s, int | float)
        ):
            raise TypeError(
                f"delay_s must be a number of seconds, not {type(self.delay_s).__name__}"
            )
        if self.delay_s is not None and not 0 <= self.delay_s <= MAX_DELAY_S:
            raise InvalidOption(
                f"delay_s is {self.delay_s}: must be between 0 and {MAX_DELAY_S:,} seconds"
            )

    def _check_priority(self, priority: int) -> None:
        if type(priority) is not int:
            raise TypeError(f"priority must be int, not {type(priority).__name__}")
        if not 0 <= priority < 2**31:
            raise InvalidOption(f"priority is {priority}: must be between 0 and {2**31 - 1:,}")
        if self.is_delayed or self.sharding_key is not None:
            raise InvalidOption(
                "a message with a priority can have neither a delay nor a sharding key: brokers "
                "would ignore the priority"
            )

    @property
    def is_delayed(self) -> bool:
        """Return True if the message is not delivered at once."""
        return self.delay_level > 0 or self.deliver_at is not None or self.delay_s is not None


_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


def _check_text(what: str, text: str) -> None:
    """Properties are stored as name 0x01 value 0x02: neither separator may occur, and an empty
    value would vanish.
    """
    if not isinstance(text, str):
        raise TypeError(f"{what} must be str, not {type(text).__name__}")
    if not text:
        raise MessageIllegal(
            ResponseCode.MESSAGE_ILLEGAL, f"{what} is empty: it would be lost on the way"
        )
    if "\x01" in text or "\x02" in text:
        raise MessageIllegal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{what} holds the control character 1 or 2, which separate properties",
        )


class FieldsInSlots:
    """Storage of a MessageExt without the compiled part."""

    __slots__ = (
        "body",
        "born_host",
        "born_timestamp_ms",
        "commitlog_offset",
        "flag",
        "prepared_transaction_offset",
        "properties",
        "queue",
        "queue_offset",
        "reconsume_times",
        "store_host",
        "store_timestamp_ms",
        "stored_bytes",
        "sys_flag",
        "topic",
    )


if TYPE_CHECKING:
    _Fields = object
else:
    # The compiled one makes numbers, hosts and properties when they are asked for.
    _Fields = FieldsInSlots if native is None else native.MessageFields


@dataclass(frozen=True)
class MessageExt(_Fields):
    """A message as a broker delivered it.

    *queue_offset* is its number in the queue, *commitlog_offset* its position in the broker's log,
    in bytes. *topic* is the one subscribed to, even if this delivery came through the group's retry
    topic.
    """

    # field(): a dataclass would take what the base class has under these names for defaults.
    topic: str = field()
    """Topic that the listener subscribed to."""
    body: bytes = field()
    """Content, decompressed."""
    properties: Mapping[str, str] = field()
    """All properties, RocketMQ's own among them."""
    queue: MessageQueue = field()
    """Queue that the message was read from."""
    queue_offset: int = field()
    """Number of the message in its queue, from 0."""
    commitlog_offset: int = field()
    """Position in the broker's commit log, in bytes."""
    reconsume_times: int = field()
    """Number of earlier deliveries to this group; 0 at the first."""
    born_timestamp_ms: int = field()
    """Time of the send by the sender's clock, in milliseconds since 1970."""
    store_timestamp_ms: int = field()
    """Time of storage by the broker's clock, in milliseconds since 1970."""
    born_host: str = field()
    """Address of the sender, as ``host:port``."""
    store_host: str = field()
    """Address of the broker, as ``host:port``."""
    flag: int = field()
    """Number that the sender gave the message."""
    sys_flag: int = field()
    """Bits of RocketMQ: compression, transactions, kind of addresses. Source: MessageSysFlag.java.
    """
    stored_bytes: int = field()
    """Size of the stored record."""
    prepared_transaction_offset: int = 0
    """Commit log offset of the half message, for a message of a transaction; else 0."""

    __slots__ = ()

    @property
    def id(self) -> str:
        """The unique key that its sender gave it; without one, the broker's offset id."""
        return self.properties.get(PropertyName.UNIQ_KEY) or self.offset_id

    @property
    def offset_id(self) -> str:
        """The broker's id: its address and the commit-log offset, in upper-case hex."""
        host, _, port = self.store_host.rpartition(":")
        return (
            f"{ip_address(host.strip('[]')).packed.hex()}{int(port):08x}"
            f"{self.commitlog_offset:016x}"
        ).upper()

    @property
    def tag(self) -> str | None:
        """The tag, or None."""
        return self.properties.get(PropertyName.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that its sender gave it."""
        return split_keys(self.properties.get(PropertyName.KEYS, ""))

    @property
    def sharding_key(self) -> str | None:
        """The sharding key, or None. Messages with the same key are in the same queue."""
        return self.properties.get(PropertyName.SHARDING_KEY)

    @property
    def priority(self) -> int | None:
        """The priority that its sender gave it, or None."""
        text = self.properties.get(PropertyName.PRIORITY, "")
        return int(text) if text.isdecimal() and len(text) <= 10 else None

    @property
    def is_compressed(self) -> bool:
        """Return True if the body is still compressed: it is damaged, or in an unsupported format.

        Listeners never get such a message, it goes to the dead-letter topic; a pull consumer gets
        it as it is.
        """
        return bool(self.sys_flag & 1)  # MessageSysFlag.COMPRESSED_FLAG

    @property
    def delay_level(self) -> int:
        """The delay level of this delivery; 0 for none."""
        text = self.properties.get(PropertyName.DELAY, "0")
        return int(text) if text.isdecimal() and len(text) < 10 else 0

    @property
    def born_at(self) -> datetime:
        """When it was sent, by the sender's clock."""
        return instant(self.born_timestamp_ms)

    @property
    def stored_at(self) -> datetime:
        """When the broker stored it."""
        return instant(self.store_timestamp_ms)

    @property
    def text(self) -> str:
        """The body decoded as UTF-8. Raises UnicodeDecodeError."""
        return self.body.decode()

    def json(self) -> Any:
        """The body parsed as JSON. Raises ValueError."""
        return json.loads(self.body)

    def __getstate__(self) -> list[Any]:
        return [getattr(self, one.name) for one in dataclasses.fields(self)]

    def __setstate__(self, state: list[Any]) -> None:
        for one, value in zip(dataclasses.fields(self), state, strict=True):
            # past the guard of the frozen record
            object.__setattr__(self, one.name, value)


# The default of this field would hide where the field is stored.
delattr(MessageExt, "prepared_transaction_offset")


class SendStatus(enum.Enum):
    """Safety of a stored message; all four values mean that it *is* stored.

    Source: SendStatus.java.
    """

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


@dataclass(frozen=True, slots=True)
class SendResult:
    """Place of a stored message.

    *recall_handle* cancels one that is to be delivered later, see ``Producer.recall``.

    For a batch *id* and *offset_id* hold those of all messages, separated by commas, and
    *queue_offset* is that of the first.
    """

    status: SendStatus
    """SEND_OK if the message is as safe as the broker promises."""
    id: str
    """Unique key that the producer gave the message."""
    offset_id: str
    """The broker's id: its address and the commit log offset, in hexadecimal."""
    queue: MessageQueue
    """Queue that holds the message."""
    queue_offset: int
    """Number of the message in its queue, from 0."""
    recall_handle: str | None = None
    """Handle for ``Producer.recall``; None for a message that is delivered at once."""


class RecallResult(str):
    """The outcome of ``Producer.recall``: *id* is the message's id.

    *recalled* is True if the message was waiting and is taken back, False if no such message was
    waiting (it was delivered, recalled before or never sent), and None if the broker does not
    report it, as Apache's.

    Use as the text of the id, which ``recall`` returned before, is deprecated: it works in this
    release, with a DeprecationWarning.
    """

    __slots__ = ("recalled",)
    __match_args__ = ("id", "recalled")

    recalled: bool | None
    """True if the message was taken back, None if the broker does not report it."""

    def __new__(cls, id: str, recalled: bool | None = None) -> Self:
        self = super().__new__(cls, id)
        self.recalled = recalled
        return self

    @property
    def id(self) -> str:
        """The message's id."""
        return str.__str__(self)

    def __repr__(self) -> str:
        return f"RecallResult(id={self.id!r}, recalled={self.recalled!r})"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.id, self.recalled

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RecallResult):
            return (self.id, self.recalled) == (other.id, other.recalled)
        if isinstance(other, str):
            _warn_of_text()
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __getattribute__(self, name: str) -> Any:
        if name in _TEXT_METHODS:
            _warn_of_text()
        return super().__getattribute__(name)

    def __str__(self) -> str:
        _warn_of_text()
        return self.id

    def __format__(self, spec: str) -> str:
        _warn_of_text()
        return format(self.id, spec)

    def __add__(self, other: str) -> str:
        _warn_of_text()
        return self.id + other


_TEXT_METHODS: Final = frozenset(name for name in dir(str) if not name.startswith("_"))


def _warn_of_text() -> None:
    warnings.warn(
        "recall() returns a RecallResult: take its id, use as text ends with the next release",
        DeprecationWarning,
        stacklevel=3,
    )


class PullStatus(enum.Enum):
    """Source: PullStatus.java."""

    FOUND = 0
    NO_NEW_MSG = 19
    NO_MATCHED_MSG = 20
    OFFSET_ILLEGAL = 21


@dataclass(frozen=True, slots=True)
class PullResult:
    """The answer to one pull. *next_offset* is where to go on, even if nothing was found."""

    status: PullStatus
    """FOUND, or why there are no messages."""
    next_offset: int
    """Offset for the next pull, also if nothing was found."""
    min_offset: int
    """First offset that the queue holds."""
    max_offset: int
    """Offset of the next message that will be stored."""
    messages: tuple[MessageExt, ...] = ()
    """Messages in the order of their offsets."""
    suggested_broker_id: int = 0
    """Broker to pull from next: 0 is the master, others are slaves."""


def split_keys(text: str) -> tuple[str, ...]:
    """Split a stored KEYS property. Only U+0020 separates keys; other white space is part of a key.

    Source: MessageConst.KEY_SEPARATOR.
    """
    return tuple([key for key in text.split(" ") if key])


def check_queue(queue: object) -> None:
    """Raise TypeError unless it is a MessageQueue with fields of the right types, InvalidOption for
    a number that no queue can have.
    """
    if not isinstance(queue, MessageQueue):
        raise TypeError(
            "queue must be an ogive.MessageQueue (sent.queue, or MessageQueue('Orders', "
            f"'broker-a', 1)), not {type(queue).__name__}"
        )
    for name in ("topic", "broker_name"):
        if not isinstance(value := getattr(queue, name), str):
            raise TypeError(f"{name} of a queue must be str, not {type(value).__name__}")
    if isinstance(queue.queue_id, bool) or not isinstance(queue.queue_id, int):
        raise TypeError(f"queue_id of a queue must be int, not {type(queue.queue_id).__name__}")
    if not 0 <= queue.queue_id < 2**31:
        raise InvalidOption(
            f"queue {queue.queue_id}: the number of a queue must be between 0 and {2**31 - 1}"
        )


def check_offset(offset: object) -> None:
    """Raise TypeError unless it is an int, InvalidOption for one that no queue can have."""
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise TypeError(f"an offset must be int, not {type(offset).__name__}")
    if not 0 <= offset <= MAX_OFFSET:
        raise InvalidOption(f"offset {offset}: an offset must be between 0 and {MAX_OFFSET}")


def check_delay_level(level: object, least: int = 0) -> None:
    """Raise TypeError unless it is an int, InvalidOption below *least*."""
    if isinstance(level, bool) or not isinstance(level, int):
        raise TypeError(f"delay_level must be int, not {type(level).__name__}")
    if level < least:
        raise InvalidOption(f"delay level {level} is below {least}")


def as_keys(keys: Any) -> tuple[str, ...]:
    """One key or several as a tuple. Raises TypeError for anything else."""
    if isinstance(keys, str):
        return (keys,)
    # bytes are iterable, too
    if isinstance(keys, bytes) or not isinstance(keys, Iterable):
        raise TypeError(f"keys must be str, or several of them, not {type(keys).__name__}")
    return tuple(keys)
