"""The options of source and sink, checked before anything is read or sent.

Names are those of Spark's Kafka source if it has the option.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, get_args

from ogive.errors import InvalidOption
from ogive.model import instant, parse_tags, validate_group, validate_topic
from ogive.spark import cluster_options
from ogive.spark.cluster_options import Access
from ogive.spark.offsets import (
    AtTime,
    AtTimes,
    Behind,
    Bound,
    QueueNumbers,
    offsets_bound,
    parse_duration_s,
    time_bound,
    times_bound,
)
from ogive.spark.option_names import (
    HINTS,
    HINTS_OF_READS,
    HINTS_OF_WRITES,
    SINK,
    SOURCE,
    SPARKS_OWN,
    hint,
)
from ogive.sql92 import compile_expression

DEFAULT_MAX_OFFSETS_PER_TRIGGER: Final = 1_000_000
DEFAULT_POLL_TIMEOUT_S: Final = 30.0
DEFAULT_MAX_PULLS_PER_BROKER: Final = 64
DEFAULT_OFFSET_COMMIT_INTERVAL_S: Final = 5.0

# path: the option that .load("Orders") sets
_TOPIC_ALIASES: Final = {"topic": "subscribe", "path": "subscribe"}

Queues = dict[str, dict[str, frozenset[int]]]
"""topic -> broker name ("" where the user left it out) -> queue ids"""

Delivery = Literal["atLeastOnce", "idempotent", "transactional"]

StartingStrategy = Literal["error", "latest"]
Columns = Literal["rocketmq", "kafka"]
InvalidRows = Literal["fail", "drop", "deadLetter"]
"""Handling of a row that no broker would accept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Queues of a read: those of *topics*, of every topic that matches *pattern*, or the *assigned*
    ones, limited to *queue_ids*.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Queues | None = None
    queue_ids: frozenset[int] | None = None

    @property
    def identity(self) -> str:
        """Return the identity of a checkpoint, without the filter."""
        parts = ["\0".join(self.topics)]
        if self.pattern is not None:
            parts.append(f"pattern {self.pattern}")
        if self.assigned is not None:
            named = {
                topic: {broker: sorted(ids) for broker, ids in brokers.items()}
                for topic, brokers in self.assigned.items()
            }
            parts.append(f"assign {json.dumps(named, sort_keys=True)}")
        if self.queue_ids is not None:
            parts.append(f"queues {sorted(self.queue_ids)}")
        return "\0\0".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of a read. Counts are messages, partitions are Spark's partitions."""

    access: Access
    selection: Selection
    starting: Bound | None = None
    """None: earliest for a batch, latest for a stream."""
    starting_strategy: StartingStrategy = "latest"
    """Start in a queue without a message since the starting time."""
    ending: Bound | None = None
    """None: latest for a batch, none for a stream."""
    max_offsets_per_trigger: int = DEFAULT_MAX_OFFSETS_PER_TRIGGER
    min_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    max_bytes_per_second: int | None = None
    max_pulls_per_broker: int = DEFAULT_MAX_PULLS_PER_BROKER
    max_trigger_delay_s: float = 900.0
    min_partitions: int = 1
    max_partitions: int | None = None
    """None: the cores of the cluster."""
    max_records_per_partition: int | None = None
    preserve_order: bool = True
    consumer_group: str | None = None
    commit_offsets: bool = True
    offset_commit_interval_s: float = DEFAULT_OFFSET_COMMIT_INTERVAL_S
    fail_on_data_loss: bool = True
    fetch_retries: int | None = None
    """None: as many as fit into poll_timeout_s."""
    fetch_retry_interval_s: float | None = None  # None: growing
    poll_timeout_s: float = DEFAULT_POLL_TIMEOUT_S
    tags: frozenset[str] | None = None
    sql_filter: str | None = None
    include_properties: bool = True
    include_metadata: bool = False
    columns: Columns = "rocketmq"
    include_headers: bool = False

    @property
    def subscription(self) -> str:
        """The filter expression for the broker: of tags, or SQL92."""
        return self.sql_filter or ("*" if self.tags is None else " || ".join(sorted(self.tags)))

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Read the options. Raises InvalidOption, which names the option and its valid values."""
        given = _Given(options, SOURCE, cluster_options.ALIASES | _TOPIC_ALIASES, HINTS_OF_READS)
        now_ms = time.time_ns() // 1_000_000
        access_ = Access.parse(given.texts, given.flag)
        on_wire = access_.namespace.wrap
        parsed = cls(
            access=access_,
            selection=_selection(given, on_wire),
            starting=_bound(given, "starting", now_ms, on_wire),
            starting_strategy=given.take(
                "startingOffsetsByTimestampStrategy", partial(_choice, StartingStrategy), "latest"
            ),
            ending=_bound(given, "ending", now_ms, on_wire),
            max_offsets_per_trigger=given.take(
                "maxOffsetsPerTrigger", _count, DEFAULT_MAX_OFFSETS_PER_TRIGGER
            ),
            min_offsets_per_trigger=given.take("minOffsetsPerTrigger", _count, None),
            max_bytes_per_trigger=given.take("maxBytesPerTrigger", _bytes, None),
            max_bytes_per_second=given.take("maxBytesPerSecond", _bytes, None),
            max_pulls_per_broker=given.take(
                "maxPullsPerBroker", _count, DEFAULT_MAX_PULLS_PER_BROKER
            ),
            max_trigger_delay_s=given.take("maxTriggerDelay", parse_duration_s, 900.0),
            min_partitions=given.take("minPartitions", _count, 1),
            max_partitions=given.take("maxPartitions", _count, None),
            max_records_per_partition=given.take("maxRecordsPerPartition", _count, None),
            preserve_order=given.flag(
                "preserveOrder", not given.any("minPartitions", "maxRecordsPerPartition")
            ),
            consumer_group=given.take(
                "consumerGroup", lambda _, text: on_wire(validate_group(text)), None
            ),
            commit_offsets=given.flag("commitOffsets", True),
            offset_commit_interval_s=given.take(
                "offsetCommitInterval", parse_duration_s, DEFAULT_OFFSET_COMMIT_INTERVAL_S
            ),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            fetch_retries=given.take("fetchOffset.numRetries", _number, None),
            fetch_retry_interval_s=given.take("fetchOffset.retryIntervalMs", _seconds_of_ms, None),
            poll_timeout_s=given.take("pollTimeoutMs", _seconds_of_ms, DEFAULT_POLL_TIMEOUT_S),
            tags=given.take("tags", _tags, None),
            sql_filter=given.take("sqlFilter", _sql, None),
            include_properties=given.flag("includeProperties", True),
            include_metadata=given.flag("includeMetadata", False),
            columns=given.take("columns", partial(_choice, Columns), "rocketmq"),
            include_headers=given.flag("includeHeaders", False),
        )
        parsed._check(given)
        parsed._check_columns(given)
        return parsed

    def _check_columns(self, given: "_Given") -> None:
        """Check the options of columns together. Raises InvalidOption."""
        ours = [name for name in ("includeProperties", "includeMetadata") if given.any(name)]
        if self.columns == "kafka" and ours:
            raise InvalidOption(
                f"{ours[0]} is for RocketMQ's columns: with columns=kafka the option is "
                "includeHeaders"
            )
        if self.columns != "kafka" and given.any("includeHeaders"):
            raise InvalidOption(
                "includeHeaders needs columns=kafka: without it the column properties has them, "
                "and the option includeProperties is on"
            )

    def _check(self, given: "_Given") -> None:
        """Check the options together. Raises InvalidOption."""
        if self.starting == "group" and self.consumer_group is None:
            raise InvalidOption("startingOffsets=group needs the option consumerGroup")
        if self.ending in ("earliest", "group"):
            raise InvalidOption(
                f"endingOffsets={self.ending}: a read ends at latest, latest-1000, offsets as "
                "JSON, or a time"
            )
        if self.tags is not None and self.sql_filter is not None:
            raise InvalidOption(
                "tags and sqlFilter are given: one filter at a time (in SQL92 a tag is the "
                "property TAGS: TAGS = 'paid')"
            )
        if (
            self.min_offsets_per_trigger is not None
            and self.min_offsets_per_trigger > self.max_offsets_per_trigger
        ):
            raise InvalidOption(
                f"minOffsetsPerTrigger is {self.min_offsets_per_trigger}, more than "
                "maxOffsetsPerTrigger, which is "
                f"{self.max_offsets_per_trigger}"
            )
        if self.max_partitions is not None and self.min_partitions > self.max_partitions:
            raise InvalidOption(
                f"minPartitions is {self.min_partitions}, more than maxPartitions, which is "
                f"{self.max_partitions}"
            )
        near, nearer = _before_end(self.starting), _before_end(self.ending)
        if near is not None and nearer is not None and near < nearer:
            raise InvalidOption(
                f"the read starts at {_word(near)}, behind its end, which is {_word(nearer)}"
            )
        for queue, (start, end) in _both(self.starting, self.ending).items():
            if start > end and isinstance(self.starting, dict):
                raise InvalidOption(
                    f"startingOffsets says {start} for queue {queue}, behind the end of the read, "
                    f"which is {end}"
                )
            if start > end:
                place = f" for queue {queue}" if queue else ""
                first, last = (f"{instant(ms):%Y-%m-%dT%H:%M:%SZ}" for ms in (start, end))
                raise InvalidOption(
                    f"the read starts{place} at {first}, behind its end, which is {last}"
                )
        if self.preserve_order and given.any("minPartitions", "maxRecordsPerPartition"):
            raise InvalidOption(
                "preserveOrder=true keeps every queue in one partition: leave out minPartitions "
                "and maxRecordsPerPartition"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Options of a write."""

    access: Access
    topic: str | None = None
    """None: the column has the topic."""
    producer_group: str = "SPARK_SINK"
    max_in_flight: int = 64
    delivery: Delivery = "atLeastOnce"
    transaction_timeout_s: float = 3600.0
    invalid_rows: InvalidRows = "fail"
    dead_letter_topic: str | None = None
    checkpoint: Path | None = None
    """Checkpoint of the streaming query, on this machine's file systems."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Read the options. Raises InvalidOption, which names the option and its valid values."""
        given = _Given(options, SINK, cluster_options.ALIASES | {"path": "topic"}, HINTS_OF_WRITES)
        access_ = Access.parse(given.texts, given.flag)

        def topic(_: str, text: str) -> str:
            return access_.namespace.wrap(validate_topic(text))

        parsed = cls(
            access=access_,
            topic=given.take("topic", topic, None),
            producer_group=given.take(
                "producerGroup", lambda _, text: validate_group(text), "SPARK_SINK"
            ),
            max_in_flight=given.take("maxInFlight", _count, 64),
            delivery=given.take("delivery", partial(_choice, Delivery), "atLeastOnce"),
            transaction_timeout_s=given.take("transactionTimeout", parse_duration_s, 3600.0),
            invalid_rows=given.take("invalidRows", partial(_choice, InvalidRows), "fail"),
            dead_letter_topic=given.take("deadLetterTopic", topic, None),
            checkpoint=given.take("checkpointLocation", _local_folder, None),
        )
        if (parsed.invalid_rows == "deadLetter") != (parsed.dead_letter_topic is not None):
            raise InvalidOption(
                "invalidRows=deadLetter and the option deadLetterTopic belong together: give both, "
                "or neither"
            )
        return parsed


def access_of(options: Mapping[str, str]) -> Access:
    """Return the connection options among those of source and sink.

    Raises InvalidOption.
    """
    given = _Given(options, cluster_options.NAMES, cluster_options.ALIASES)
    return Access.parse(given.texts, given.flag)


_TABLE: Final = (
    "CREATE TABLE ... USING rocketmq needs columns, as in CREATE TABLE t (queueOffset bigint, body "
    "binary) USING rocketmq: Spark hands its "
    "OPTIONS to no Python source. Give them in the query, SELECT ... FROM t WITH (`nameServer` = "
    "'...', `subscribe` = '...'), or make a "
    "TEMPORARY VIEW"
)
"""Prefix of the names under which Spark puts the options of a table among its properties."""
_OF_TABLES: Final = frozenset({"owner", "comment", "location", "provider", "external", "collation"})
"""Spark's own properties of a table."""


class _Given:
    """The options in lower case, aliases resolved.

    An unknown name is refused, because it would silently change nothing.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        names: tuple[str, ...],
        aliases: Mapping[str, str],
        hints: Mapping[str, str] = HINTS,
    ) -> None:
        known = {name.lower(): name for name in names}
        taken = known | SPARKS_OWN
        self.texts: dict[str, str] = {}
        for name, text in options.items():
            key = aliases.get(name.lower(), name.lower())
            if self.texts.get(key, text) != text:
                raise InvalidOption(
                    f"option {name!r} says {text!r}, but {taken[key]} is {self.texts[key]!r} "
                    "already"
                )
            if key in taken:
                self.texts[key] = text
            else:
                if key.startswith("option.") or key in _OF_TABLES:
                    raise InvalidOption(_TABLE)
                raise InvalidOption(f"unknown option {name!r}: {hint(key, names, hints)}")

    def any(self, *names: str) -> bool:
        return any(name.lower() in self.texts for name in names)

    def take(self, name: str, parse: Callable[[str, str], Any], default: Any) -> Any:
        text = self.texts.get(name.lower())
        return default if text is None else parse(name, text)

    def flag(self, name: str, default: bool) -> bool:
        flag: bool = self.take(name, _flag, default)
        return flag


# --- what is read ---------------------------------------------------------------------------------


def _selection(given: _Given, on_wire: Callable[[str], str]) -> Selection:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if given.any(name)]
    if not ways:
        missing = (
            "the option subscribe is missing: a topic, or several separated by commas (or "
            "subscribePattern, or assign)"
        )
        raise InvalidOption(missing if given.texts else f"{missing}. In SQL: {_TABLE}")
    if len(ways) > 1:
        raise InvalidOption(
            f"{ways[0]} and {ways[1]} are given: one of subscribe, subscribePattern and assign "
            "says what is read"
        )
    assigned: Queues | None = given.take("assign", _assigned, None)
    if assigned is not None:
        assigned = {on_wire(topic): queues for topic, queues in assigned.items()}
    return Selection(
        topics=tuple(sorted(assigned))
        if assigned is not None
        else tuple(map(on_wire, given.take("subscribe", _topics, ()))),
        pattern=given.take("subscribePattern", _pattern, None),
        assigned=assigned,
        queue_ids=given.take("queues", _queue_ids, None),
    )


def _topics(_: str, text: str) -> tuple[str, ...]:
    topics = sorted({part.strip() for part in text.split(",") if part.strip()})
    if not topics:
        raise InvalidOption(
            "the option subscribe is missing: a topic, or several separated by commas"
        )
    return tuple(validate_topic(topic) for topic in topics)


def _pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as exc:
        raise InvalidOption(f"{name}={text!r} is not a regular expression: {exc}") from None
    return text


def _assigned(name: str, text: str) -> Queues:
    try:
        topics = json.loads(text)
        if not topics:
            raise ValueError("nothing is assigned")
        return {validate_topic(topic): _queues_of(queues) for topic, queues in topics.items()}
    except (ValueError, AttributeError, TypeError):
        raise InvalidOption(
            f'{name}={text!r}: expected JSON like {{"Orders": [0, 1]}} or {{"Orders": '
            f'{{"broker-a": [0, 1]}}}}'
        ) from None


def _queues_of(value: Any) -> dict[str, frozenset[int]]:
    brokers = {"": value} if isinstance(value, list) else value
    found = {broker: frozenset(ids) for broker, ids in brokers.items()}
    if not all(
        ids and all(type(queue_id) is int and queue_id >= 0 for queue_id in ids)
        for ids in found.values()
    ):
        raise ValueError("queue ids are whole numbers from 0")
    return found


def _queue_ids(name: str, text: str) -> frozenset[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise InvalidOption(f"{name}={text!r}: expected queue ids separated by commas")
    return frozenset(map(int, words))


def _bound(given: _Given, side: str, now_ms: int, on_wire: Callable[[str], str]) -> Bound | None:
    """Return the bound by precedence, as in Kafka's source: the single time, else the times, else
    the offsets.
    """
    single: AtTime | None = given.take(
        f"{side}Timestamp", lambda name, text: time_bound(name, text, now_ms), None
    )
    if single is not None:
        return single
    times: AtTimes | None = given.take(
        f"{side}OffsetsByTimestamp", lambda name, text: times_bound(name, text, now_ms), None
    )
    if times is not None:
        return AtTimes({on_wire(topic): queues for topic, queues in times.ms.items()})
    bound: Bound | None = given.take(f"{side}Offsets", offsets_bound, None)
    return (
        {on_wire(topic): queues for topic, queues in bound.items()}
        if isinstance(bound, dict)
        else bound
    )


def _before_end(bound: Bound | None) -> int | None:
    """Return the number of messages before the end of each queue, if *bound* is such a number."""
    return bound.count if isinstance(bound, Behind) else 0 if bound == "latest" else None


def _word(before_end: int) -> str:
    return f"latest-{before_end}" if before_end else "latest"


def _both(starting: Bound | None, ending: Bound | None) -> dict[str, tuple[int, int]]:
    """Return start and end by queue if the options alone give both as times, or both as offsets.

    The key "" stands for every queue.
    """
    if isinstance(starting, AtTime) and isinstance(ending, AtTime):
        return {"": (starting.ms, ending.ms)}
    if isinstance(starting, AtTime | AtTimes) and isinstance(ending, AtTime | AtTimes):
        first = _by_name(starting.ms) if isinstance(starting, AtTimes) else {}
        last = _by_name(ending.ms) if isinstance(ending, AtTimes) else {}
        first = first or dict.fromkeys(last, starting.ms if isinstance(starting, AtTime) else 0)
        last = last or dict.fromkeys(first, ending.ms if isinstance(ending, AtTime) else 0)
        return {queue: (first[queue], last[queue]) for queue in first.keys() & last.keys()}
    if isinstance(starting, dict) and isinstance(ending, dict):
        first, last = _by_name(starting), _by_name(ending)
        # below 0 are the words: earliest, latest
        return {
            queue: (first[queue], last[queue])
            for queue in first.keys() & last.keys()
            if min(first[queue], last[queue]) >= 0
        }
    return {}


def _by_name(numbers: QueueNumbers) -> dict[str, int]:
    return {
        f"{topic}/{broker or '*'}/{queue_id}": number
        for topic, brokers in numbers.items()
        for broker, queues in brokers.items()
        for queue_id, number in queues.items()
    }


# --- values ---------------------------------------------------------------------------------------


def _local_folder(_: str, text: str) -> Path | None:
    """Return a local folder, or None for one on another file system, such as hdfs: or s3a:."""
    path = text.removeprefix("file:")
    return None if re.match(r"\w[\w+.-]*:", path) else Path(path)


def _tags(_: str, text: str) -> frozenset[str] | None:
    return frozenset(parse_tags(text)) or None


def _sql(name: str, text: str) -> str:
    try:
        return compile_expression(text).text
    except InvalidOption as exc:
        raise InvalidOption(f"{name}={text!r}: {exc}") from None


def _count(name: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidOption(f"{name}={text!r}: expected a whole number above zero")
    return int(text)


def _number(name: str, text: str) -> int:
    if not text.strip().isdecimal():
        raise InvalidOption(f"{name}={text!r}: expected a whole number")
    return int(text)


def _seconds_of_ms(name: str, text: str) -> float:
    return _count(name, text) / 1000


_BYTES: Final = re.compile(r"(\d{1,15})\s*([kmg]?)(?:i?b)?")


def _bytes(name: str, text: str) -> int:
    found = _BYTES.fullmatch(text.strip().lower())
    if found is None or not int(found[1]):
        raise InvalidOption(f"{name}={text!r}: expected bytes, as 1048576, 64m or 1g")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]]


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise InvalidOption(f"{name}={text!r}: expected true or false")
    return text.strip().lower() == "true"


def _choice(choices: Any, name: str, text: str) -> str:
    known = {choice.lower(): choice for choice in get_args(choices)}
    choice = known.get(text.strip().lower().replace("-", ""))
    if choice is None:
        raise InvalidOption(f"{name}={text!r}: expected {' or '.join(known.values())}")
    return str(choice)
