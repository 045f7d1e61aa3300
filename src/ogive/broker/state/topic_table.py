"""Topics of one broker, and the attributes of topics and groups.

Source: TopicConfigManager.java, TopicValidator.java, 5.3.

Differs from Java: a topic has at most MAX_MADE_QUEUES queues, unless it comes with its store; with
auto-creation off no default topic creates anything (Java still follows the cluster's topic); an
unchanged update changes no version; names and queue numbers are always checked;
TRANS_CHECK_MAX_TIME_TOPIC exists from the start.

Attributes of topics and groups: which exist, how commands change them, and which messages
message.type admits.

Source: AttributeParser.java, AttributeUtil.java, TopicAttributes.java,
SubscriptionGroupAttributes.java, TopicMessageType.java, DefaultTopicMessageTypeValidator.java, 5.5.
As there, reserve.time is refused by a store without tiers (TopicConfigManager.java).

Differs from Java
- enforce_message_types makes the broker refuse messages of another type than message.type; in Java
  only the proxy does. Without it, as in Java's broker, every topic accepts every message.
- FIFO also takes messages without a sharding key: Apache's remoting clients choose the queue by
  themselves and mark nothing.
- A clean-up policy that this store does not have, COMPACTION, is refused.
- Of the attributes of groups, priority.factor has an effect. The others are kept and shown: they
  are for lite topics, which do not exist here.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, get_args

from ogive.broker.replies import Rejected
from ogive.broker.state.config_table import ConfigTable, Render, read_configs
from ogive.errors import InvalidOption, ResponseCode
from ogive.model import (
    AUTO_CREATE_TOPIC,
    BATCHES,
    CHECKED_TOO_OFTEN_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    QUEUE_TYPE,
    SCHEDULE_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    MessageType,
    PropertyName,
    dlq_topic,
    reply_topic,
    retry_topic,
    validate_topic,
)
from ogive.store.tables import JsonTable
from ogive.wire.bodies.configs import TopicConfig
from ogive.wire.bodies.json_fields import PERM_INHERIT, PERM_READ, PERM_WRITE
from ogive.wire.message import decode_properties

log = logging.getLogger(__name__)

MESSAGE_TYPE: Final = "message.type"
MESSAGE_TYPES: Final = get_args(MessageType)
_KNOWN: Final = {
    MESSAGE_TYPE: MESSAGE_TYPES,
    QUEUE_TYPE: ("SimpleCQ", BATCHES),
    "cleanup.policy": ("DELETE",),
}
_FIXED_ATTRIBUTES: Final = (QUEUE_TYPE, "cleanup.policy")
_SWITCH: Final = ("true", "false")
_COUNT: Final = 1 << 63
_OF_GROUPS: Final[Mapping[str, range | tuple[str, ...] | None]] = {
    "priority.factor": range(101),
    "lite.bind.topic": None,
    "lite.sub.model": ("Shared", "Exclusive"),
    "lite.sub.reset.offset.exclusive": _SWITCH,
    "lite.sub.reset.offset.unsubscribe": _SWITCH,
    "lite.sub.client.quota": range(-1, _COUNT),
    "lite.sub.client.max.event.cnt": range(10, _COUNT),
    "lite.sub.wildcard": None,
}
"""Attributes and their valid values; None: any text."""
PRIORITY_FACTOR: Final = "priority.factor"
"""Percentage of a group's POP requests that read a topic of type PRIORITY by priority."""
_DELAYS: Final = ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")


def keeps_batches(attributes: Mapping[str, str]) -> bool:
    """Return True if these make a topic of batches. Source: QueueTypeUtils.isBatchCq, 5.5."""
    return attributes.get(QUEUE_TYPE) == BATCHES


def change_attributes(current: Mapping[str, str] | None, text: str | None) -> dict[str, str]:
    """Return *current* (None for a new topic) after ``+name=value,-name``. Raises InvalidOption."""
    attributes = dict(current or {})
    seen: set[str] = set()
    for change in filter(None, (text or "").split(",")):
        sign, (name, _, value) = change[0], change[1:].partition("=")
        if (sign == "+") != bool(value) or sign not in "+-" or not name:
            raise InvalidOption(
                f"attribute change {change[:80]!r} is neither +name=value nor -name"
            )
        if name in seen:
            raise InvalidOption(f"attribute {name[:80]} is changed twice")
        seen.add(name)
        _check(current, sign, name, value)
        if sign == "+":
            attributes[name] = value
        else:
            attributes.pop(name, None)
    return attributes


def _check(current: Mapping[str, str] | None, sign: str, name: str, value: str) -> None:
    if name == "reserve.time":
        raise InvalidOption(
            "attribute reserve.time is for stores with tiers; this one keeps all messages for "
            "--keep-hours"
        )
    if name not in _KNOWN:
        raise InvalidOption(f"attribute {name[:80]!r} is not known: there are {', '.join(_KNOWN)}")
    if sign == "-":
        if current is None or name not in current:
            raise InvalidOption(
                f"attribute {name} cannot be taken away: the topic does not have it"
            )
    elif value not in _KNOWN[name]:
        raise InvalidOption(
            f"attribute {name}={value[:80]}: this broker has {', '.join(_KNOWN[name])}"
        )
    if (
        current is not None
        and name in _FIXED_ATTRIBUTES
        and (sign == "-" or current.get(name, _KNOWN[name][0]) != value)
    ):
        raise InvalidOption(f"attribute {name} is decided when a topic is made")


def change_group_attributes(
    current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """Return *current* (None for a new group) after ``{"+name": value, "-name": anything}``.

    Raises InvalidOption.
    """
    attributes = dict(current or {})
    seen: set[str] = set()
    for change, value in changes.items():
        sign, name = change[:1], change[1:]
        if sign not in ("+", "-") or not name:
            raise InvalidOption(f"attribute change {change[:80]!r} is neither +name nor -name")
        if name in seen:
            raise InvalidOption(f"attribute {name[:80]} is changed twice")
        seen.add(name)
        if name not in _OF_GROUPS:
            raise InvalidOption(
                f"attribute {name[:80]!r} is not known: there are {', '.join(_OF_GROUPS)}"
            )
        if sign == "+":
            _check_of_group(name, value)
            attributes[name] = value
        elif attributes.pop(name, None) is None:
            raise InvalidOption(
                f"attribute {name} cannot be taken away: the group does not have it"
            )
    return attributes


def _check_of_group(name: str, value: str) -> None:
    allowed = _OF_GROUPS[name]
    if isinstance(allowed, range):
        fits = re.fullmatch(r"[+-]?[0-9]{1,19}", value) and int(value) in allowed
        expected = f"a number from {allowed[0]} to {allowed[-1]}"
    elif allowed is not None:
        fits = (value.lower() if allowed is _SWITCH else value) in allowed
        expected = " or ".join(allowed)
    else:
        return
    if not fits:
        raise InvalidOption(f"attribute {name}={value[:80]}: {expected} is expected")


def check_message_type(topic: str, expected: str, properties: bytes) -> None:
    """Check that a message has the topic's type. Raises Rejected."""
    if expected not in MESSAGE_TYPES or expected in ("UNSPECIFIED", "MIXED"):
        return
    actual = message_type(decode_properties(properties))
    if actual != expected and not (expected == "FIFO" and actual == "NORMAL"):
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"TopicMessageType validate failed, the expected type is {expected}, but actual type "
            f"is {actual} (topic {topic})",
        )


def message_type(properties: Mapping[str, str]) -> str:
    if properties.get("TRAN_MSG") == "true":
        return "TRANSACTION"
    if any(name in properties for name in _DELAYS):
        return "DELAY"
    if PropertyName.SHARDING_KEY in properties:
        return "FIFO"
    return "PRIORITY" if PropertyName.PRIORITY in properties else "NORMAL"


READ_WRITE: Final = PERM_READ | PERM_WRITE
READ_WRITE_INHERIT: Final = READ_WRITE | PERM_INHERIT
# as many as Apache's own BenchmarkTest; an answer about 65,536 took the broker seconds
MAX_MADE_QUEUES: Final = 1_024
# topicSysFlag of a topic made by a producer in unit mode
UNIT_FLAG: Final = 1

_FIXED: Final = {
    "SELF_TEST_TOPIC": 1,
    "OFFSET_MOVED_EVENT": 1,
    "BenchmarkTest": MAX_MADE_QUEUES,
    SCHEDULE_TOPIC: 18,
    TIMER_TOPIC: 1,
    HALF_TOPIC: 1,
    OP_HALF_TOPIC: 1,
    CHECKED_TOO_OFTEN_TOPIC: 1,
}


class TopicTable(ConfigTable[TopicConfig]):
    """See ConfigTable."""

    def __init__(
        self,
        table: JsonTable,
        *,
        cluster: str,
        broker_name: str,
        auto_create: bool,
        now_ms: Callable[[], int],
        default_queues: int = 8,
        max_topics: int = 20_000,
        complete: Callable[[dict[str, Any]], dict[str, Any]] = lambda stored: stored,
        check_made: Callable[[TopicConfig], None] = lambda made: None,
        on_made: Callable[[TopicConfig], None] = lambda made: None,
    ) -> None:
        """Load the file, ours or Apache's (blocking). Raises StoreError, ProtocolError.

        *complete* completes the rest of a lost file: its backup, or nothing. *check_made* raises
        InvalidOption for a new topic that must not be created now; *on_made* is called for each new
        one before anything can be sent to it.
        """
        super().__init__("topic", table, now_ms=now_ms, limit=max_topics)
        self._refuse_made, self._on_made = check_made, on_made
        self.pending: dict[str, int] = {}
        """Topics that were created, or got more queues, a moment ago, and the version of the file
        that has this first: messages to one are not stored before. Some may be saved by now.
        """
        self._auto_create = auto_create
        self._leaving: Collection[str] = ()
        replies = reply_topic(cluster)
        self._system = SYSTEM_TOPICS | {cluster, broker_name, replies}
        built_in = {name: _topic(name, queues) for name, queues in _FIXED.items()}
        built_in[cluster] = _topic(cluster, 16, READ_WRITE_INHERIT)
        built_in[broker_name] = _topic(broker_name, 1, READ_WRITE_INHERIT)
        built_in[replies] = _topic(replies, 1)
        if auto_create:
            built_in[AUTO_CREATE_TOPIC] = _topic(
                AUTO_CREATE_TOPIC, default_queues, READ_WRITE_INHERIT
            )
        stored = table.load() or {}
        whole = complete(stored) if table.is_lost else stored
        loaded = read_configs(
            whole.get("topicConfigTable"),
            TopicConfig,
            # those of broker and cluster may hold dots
            lambda name: name if name in built_in else validate_topic(name),
            "topics",
        )
        if not auto_create:
            # its route would invite producers to topics that are not created
            loaded.pop(AUTO_CREATE_TOPIC, None)
        self._begin(built_in, loaded, whole.get("dataVersion"), differs=whole is not stored)

    # --- reading ----------------------------------------------------------------------------------

    def is_system(self, name: str) -> bool:
        """Return True for a topic of the broker's own. No command may change it."""
        return name in self._system or name.startswith(SYSTEM_TOPIC_PREFIX)

    def system_topics(self) -> list[str]:
        return sorted(name for name in self._configs if self.is_system(name))

    def is_saved(self, name: str) -> bool:
        """Return True if the topic and its queues would exist after a crash."""
        if self.pending.get(name, 0) > self._writer.written:
            return False
        self.pending.pop(name, None)
        return True

    def check_saved(self, name: str) -> None:
        """Raise StoreError if the topic could not be saved, and begin another try."""
        if not self.is_saved(name):
            self._writer.check(self.pending[name])

    async def safe(self, name: str) -> None:
        """Return when the topic is saved. Raises StoreError."""
        if not self.is_saved(name):
            await self._writer.saved(self.pending[name])

    def served(self, name: str, queue_id: int) -> int:
        """Return the queue for a message that waited for its time, or for its commit, and was sent
        to *queue_id*: that one or, if the topic has fewer queues now, one that is read. If the
        topic does not exist, or has no queue that is read, return the first, which it will have
        with any number of queues. A missing topic is reported once.
        """
        config = self._configs.get(name)
        if config is not None:
            queues = min(config.read_queues, config.write_queues) or config.read_queues or 1
            return queue_id if queue_id < config.read_queues else queue_id % queues
        if self._is_new_miss(name):
            log.warning(
                "delayed or transactional messages were delivered to topic %s, which does not "
                "exist: they can be consumed once it is created",
                name,
            )
        return 0

    # --- changing ---------------------------------------------------------------------------------

    def check(self, config: TopicConfig) -> None:
        """Check the name and the numbers of a topic. Raises InvalidOption."""
        validate_topic(config.name)
        if self.is_system(config.name):
            raise InvalidOption(f"topic {config.name} belongs to the broker: it cannot be changed")
        known = self._configs.get(config.name)
        most = (
            max(MAX_MADE_QUEUES, known.read_queues, known.write_queues)
            if known is not None
            else MAX_MADE_QUEUES
        )
        for what, count in (("read", config.read_queues), ("write", config.write_queues)):
            if not 0 <= count <= most:
                raise InvalidOption(
                    f"topic {config.name}: {count} {what} queues: must be between 0 and {most}"
                )
        if not 0 <= config.perm <= READ_WRITE_INHERIT:
            raise InvalidOption(
                f"topic {config.name}: permission {config.perm}, 0 to {READ_WRITE_INHERIT} are "
                "possible"
            )
        if config.filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
            raise InvalidOption(
                f"topic {config.name}: filter type {config.filter_type[:40]!r}, SINGLE_TAG or "
                "MULTI_TAG is expected"
            )
        self._check_made(config)

    def _check_made(self, config: TopicConfig) -> None:
        if config.name not in self._configs:
            self._refuse_made(config)

    def auto_create_on_send(
        self, name: str, default_topic: str, default_queues: int, *, unit_mode: bool = False
    ) -> TopicConfig | None:
        """Return the topic for a send, created from *default_topic* if it is missing; None if that
        is not possible.

        Raises InvalidOption for a bad name or a full table. Source: createTopicInSendMessageMethod.
        """
        found = self._configs.get(name)
        if found is not None:
            return found
        model = self._configs.get(default_topic)
        if not self._auto_create or model is None or not model.perm & PERM_INHERIT:
            return None
        validate_topic(name)
        queues = max(1, min(default_queues, model.write_queues, MAX_MADE_QUEUES))
        config = _topic(name, queues, model.perm & ~PERM_INHERIT)
        return self._put(
            replace(config, filter_type=model.filter_type, sys_flag=UNIT_FLAG if unit_mode else 0)
        )

    def ensure_retry(self, group: str, queues: int = 1) -> TopicConfig:
        """Return the group's retry topic, whether or not topics are created automatically.

        Raises InvalidOption.
        """
        return self._ensure(retry_topic(group), queues)

    def ensure_dlq(self, group: str) -> TopicConfig:
        """Return the group's dead-letter topic. Raises InvalidOption."""
        return self._ensure(dlq_topic(group), 1)

    def ensure_pop_retry(self, name: str, queues: int = 1) -> TopicConfig:
        """Return the retry topic of a group that pops, with at least *queues* queues.

        Raises InvalidOption, and Rejected if the table has twice as many topics as its limit: there
        can be a retry topic for each pair of a group and a topic.
        """
        known, queues = self._configs.get(name), min(queues, MAX_MADE_QUEUES)
        if known is not None and known.write_queues < queues:
            grown = replace(known, write_queues=queues, read_queues=max(known.read_queues, queues))
            return self._put(grown, beyond_limit=True)
        if known is None and len(self._configs) >= 2 * self._limit:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"{len(self._configs)} topics exist: {name} is not made, delete topics or groups "
                "that are not needed",
            )
        return self._ensure(name, queues)

    def _ensure(self, name: str, queues: int) -> TopicConfig:
        """Return the topic; create it if it does not exist, even if the table is full.

        Anyone who may send can fill the table, and groups have a limit of their own.
        """
        known = self._configs.get(name)
        return known or self._put(
            _topic(validate_topic(name), max(1, min(queues, MAX_MADE_QUEUES))), beyond_limit=True
        )

    def _put(self, config: TopicConfig, *, beyond_limit: bool = False) -> TopicConfig:
        known = self._configs.get(config.name)
        if known is None and config.name in self._leaving:
            raise Rejected(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"topic {config.name} is being deleted: it can be made again in a moment",
            )
        self._check_made(config)
        if not self.unsaved:
            self.pending.clear()
        put = super()._put(config, beyond_limit=beyond_limit)
        if known is None:
            self._on_made(put)
        if known is None or known.write_queues < put.write_queues:
            self.pending[put.name] = self._writer.version
        return put

    def switch_auto_create(self, on: bool, default_queues: int) -> None:
        """Add or remove the default topic with the setting, because its route invites producers."""
        self._auto_create = on
        if on and AUTO_CREATE_TOPIC not in self._configs:
            self._put(_topic(AUTO_CREATE_TOPIC, default_queues, READ_WRITE_INHERIT))
        elif not on and self._configs.pop(AUTO_CREATE_TOPIC, None) is not None:
            self._note_change()

    def mark_ordered(self, names: Iterable[str]) -> None:
        """Mark the topics in the name server's ORDER_TOPIC_CONFIG as ordered.

        Others stay as they are, because a new topic is added there after it is created.
        """
        found = [
            config
            for name in names
            if (config := self._configs.get(name)) is not None and not config.order
        ]
        for config in found:
            self._configs[config.name] = replace(config, order=True)
        if found:
            self._note_change()

    @contextmanager
    def kept_out(self, names: Collection[str]) -> Iterator[None]:
        """Forbid the creation of topics while their deleted predecessors are removed: messages that
        were sent to them then would be removed as well.
        """
        self._leaving = names
        try:
            yield
        finally:
            self._leaving = ()

    def delete(self, name: str) -> bool:
        """Return True if there was such a topic. Raises InvalidOption for a system topic."""
        if self.is_system(name):
            raise InvalidOption(f"topic {name} belongs to the broker: it cannot be deleted")
        self.pending.pop(name, None)
        return self._remove(name)

    def _snapshot(self) -> Render:
        topics, version = list(self._configs.values()), self.data_version
        return lambda: {
            "dataVersion": version.to_json(),
            "topicConfigTable": {topic.name: topic.to_json() for topic in topics},
        }


def _topic(name: str, queues: int, perm: int = READ_WRITE) -> TopicConfig:
    return TopicConfig(name=name, read_queues=queues, write_queues=queues, perm=perm)
