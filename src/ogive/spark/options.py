"""What `.option(...)` may say, checked before anything is read or sent. Names are those of Spark's Kafka source where it has them."""

import difflib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ogive.client.config import DEFAULT_NAME_SERVER, parse_name_servers
from ogive.errors import InvalidOption
from ogive.model import parse_tags, validate_group, validate_topic

EARLIEST: Final = -2  # in offsets given as JSON, as in rocketmq-spark and Kafka
LATEST: Final = -1

QueueOffsets = dict[str, dict[str, dict[int, int]]]
"""topic -> broker name ("" where the user left it out) -> queue id -> offset, EARLIEST or LATEST"""

Bound = Literal["earliest", "latest", "group"] | QueueOffsets

DEFAULT_MAX_OFFSETS_PER_TRIGGER: Final = 1_000_000

_COMMON: Final = ("nameServer",)
_SOURCE: Final = (
    *_COMMON,
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "maxPartitions",
    "preserveOrder",
    "consumerGroup",
    "commitOffsets",
    "failOnDataLoss",
    "tags",
    "includeProperties",
)
_SINK: Final = (*_COMMON, "topic", "producerGroup", "maxInFlight")
_ALIASES: Final = {"rocketmq.namesrv": "nameserver", "nameserveraddress": "nameserver"}
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})  # writeStream hands its own options to the sink
_TOPIC_ALIASES: Final = {"topic": "subscribe", "path": "subscribe"}  # path: what .load("Orders") becomes


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of a read. Counts are messages, partitions are Spark's."""

    name_servers: tuple[str, ...]
    topics: tuple[str, ...]
    starting_offsets: Bound | None = None  # None: earliest for a batch, latest for a stream
    ending_offsets: Bound | None = None  # None: latest; batches only
    max_offsets_per_trigger: int = DEFAULT_MAX_OFFSETS_PER_TRIGGER
    max_partitions: int
    preserve_order: bool = True
    consumer_group: str | None = None
    commit_offsets: bool = True
    fail_on_data_loss: bool = True
    tags: frozenset[str] | None = None
    include_properties: bool = True

    @property
    def subscription(self) -> str:
        """The tag expression that the broker gets."""
        return "*" if self.tags is None else " || ".join(sorted(self.tags))

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Raises InvalidOption, which names the option and what it should be."""
        given = _known(options, _SOURCE, _ALIASES | _TOPIC_ALIASES)
        group = given.pop("consumergroup", None)
        parsed = cls(
            name_servers=_name_servers(given),
            topics=_topics(given.pop("subscribe", "")),
            starting_offsets=_take(given, "startingOffsets", _bound, None),
            ending_offsets=_take(given, "endingOffsets", _bound, None),
            max_offsets_per_trigger=_take(given, "maxOffsetsPerTrigger", _count, DEFAULT_MAX_OFFSETS_PER_TRIGGER),
            max_partitions=_take(given, "maxPartitions", _count, os.cpu_count() or 1),
            preserve_order=_take(given, "preserveOrder", _flag, True),
            consumer_group=None if group is None else validate_group(group),
            commit_offsets=_take(given, "commitOffsets", _flag, True),
            fail_on_data_loss=_take(given, "failOnDataLoss", _flag, True),
            tags=_take(given, "tags", _tags, None),
            include_properties=_take(given, "includeProperties", _flag, True),
        )
        if parsed.starting_offsets == "group" and group is None:
            raise InvalidOption("startingOffsets=group needs the option consumerGroup")
        if parsed.ending_offsets in ("earliest", "group"):
            raise InvalidOption(f"endingOffsets={parsed.ending_offsets}: expected latest, or JSON like {_JSON_FORM}")
        return parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Options of a write."""

    name_servers: tuple[str, ...]
    topic: str | None = None  # None: the column says it
    producer_group: str = "SPARK_SINK"
    max_in_flight: int = 64

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Raises InvalidOption, which names the option and what it should be."""
        given = _known(options, _SINK, _ALIASES | {"path": "topic"})
        return cls(
            name_servers=_name_servers(given),
            topic=_take(given, "topic", lambda _, text: validate_topic(text), None),
            producer_group=_take(given, "producerGroup", lambda _, text: validate_group(text), "SPARK_SINK"),
            max_in_flight=_take(given, "maxInFlight", _count, 64),
        )


def _known(options: Mapping[str, str], names: tuple[str, ...], aliases: Mapping[str, str]) -> dict[str, str]:
    """The options in lower case, aliases resolved. A name that nobody knows would silently change nothing, so it is refused."""
    known = {name.lower(): name for name in names}
    given: dict[str, str] = {}
    for name, text in options.items():
        key = aliases.get(name.lower(), name.lower())
        if given.get(key, text) != text:
            raise InvalidOption(f"option {name!r} says {text!r}, but {known[key]} is {given[key]!r} already")
        if key in known:
            given[key] = text
        elif key not in _SPARKS_OWN:
            near = difflib.get_close_matches(key, known, 1, 0.5)
            hint = f"did you mean {known[near[0]]}?" if near else f"known options: {', '.join(names)}"
            raise InvalidOption(f"unknown option {name!r}: {hint}")
    return given


def _take(given: dict[str, str], name: str, parse: Callable[[str, str], Any], default: Any) -> Any:
    text = given.get(name.lower())
    return default if text is None else parse(name, text)


def _name_servers(given: Mapping[str, str]) -> tuple[str, ...]:
    return parse_name_servers(given.get("nameserver", DEFAULT_NAME_SERVER))


def _topics(text: str) -> tuple[str, ...]:
    topics = sorted({part.strip() for part in text.split(",") if part.strip()})
    if not topics:
        raise InvalidOption("the option subscribe is missing: a topic, or several separated by commas")
    return tuple(validate_topic(topic) for topic in topics)


def _tags(_: str, text: str) -> frozenset[str] | None:
    return frozenset(parse_tags(text)) or None


def _count(name: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidOption(f"{name}={text!r}: expected a whole number above zero")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise InvalidOption(f"{name}={text!r}: expected true or false")
    return text.strip().lower() == "true"


# --- offsets ---------------------------------------------------------------------------------------------------------

_WORDS: Final[Mapping[str, Literal["earliest", "latest", "group"]]] = {"earliest": "earliest", "latest": "latest", "group": "group"}
_JSON_FORM: Final = '{"Orders": {"broker-a": {"0": 23, "1": -2}}} (-2 earliest, -1 latest)'


def _bound(name: str, text: str) -> Bound:
    word = _WORDS.get(text.strip().lower())
    if word is not None:
        return word
    try:
        topics = json.loads(text)
        return {topic: _brokers(queues) for topic, queues in topics.items()}
    except (ValueError, AttributeError, TypeError):
        raise InvalidOption(f"{name}={text!r}: expected earliest, latest, group, or JSON like {_JSON_FORM}") from None


def _brokers(value: dict[str, Any]) -> dict[str, dict[int, int]]:
    """Broker name -> queues; Kafka's form, which has no brokers, becomes the one broker named ""."""
    if value and all(isinstance(offset, int) for offset in value.values()):
        value = {"": value}
    return {broker: {int(queue_id): _offset(offset) for queue_id, offset in queues.items()} for broker, queues in value.items()}


def _offset(value: Any) -> int:
    if type(value) is not int or value < EARLIEST:
        raise ValueError(f"{value!r} is no offset")
    return value
