"""Archive of topics in a table of Delta or Iceberg, on any file system of Hadoop's, each message
once.

The checkpoint of the stream is in a folder of this machine. A batch is one commit of the table that
carries the batch's name: the stream's id, the number and a digest of its offsets. A table takes a
name once, by Delta's ``txnAppId`` and ``txnVersion``, or by Iceberg's ``wap.id``: the batch is
staged under that name and then published. So a batch that Spark repeats, or that another driver
with the same checkpoint writes at the same time, is stored once. A property of the table names the
stream that archives a topic, so that no second one doubles it.

Others may write to the table, change its layout and compact it.
"""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ogive.client.namespace import Namespace
from ogive.errors import InvalidOption, OgiveError
from ogive.pipelines.archive import STORED
from ogive.pipelines.job import (
    OPEN,
    Offsets,
    Say,
    Security,
    Show,
    Summary,
    last_batch,
    planned,
    positions,
    read_in_batches,
    shown_by,
    source_options,
    with_remaining,
    writable,
)
from ogive.spark.failures import SPARK_ERRORS, reason
from ogive.spark.fsync import sync_plan
from ogive.spark.options import access_of
from ogive.spark.stopping import Stop

Format = Literal["delta", "iceberg"]

Parse = Callable[[DataFrame], tuple[DataFrame, DataFrame]]
"""A function of `ogive.spark.parse` with all but its messages, and ``on_error="null"``."""

SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "parquet": {},
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
    },
}
"""Settings that a session needs for each format, in addition to its jars and catalogs."""

_OWNER: Final = "ogive-archive."
_BATCH: Final = "ogive-batch"
"""Entry of a snapshot's summary."""
_ATTEMPTS: Final = 5
_NEWEST: Final = (4, 100)
"""Commits, also those of others, in which a batch of another driver is looked for: the second
number if the first does not reach back to the batch before.
"""
_OTHERS_WROTE: Final = re.compile(
    r"\b(?:Concurrent\w+|MetadataChanged|ProtocolChanged|CommitFailed)Exception\b"
)
"""Errors of a commit that came second, and may be tried again."""


@dataclass(frozen=True, slots=True)
class TableBatch:
    """The name of a batch in its table."""

    stream: str
    number: int
    plan: str
    """Digest of the offsets."""

    def __str__(self) -> str:
        return f"ogive_{self.stream}_{self.number}_{self.plan}"

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Return None for a text that is not such a name."""
        found = re.fullmatch(r"ogive_([0-9a-f-]+)_(\d+)_([0-9a-f]+)", text or "")
        return None if found is None else cls(found[1], int(found[2]), found[3])

    @classmethod
    def planned(cls, checkpoint: Path, number: int) -> Self:
        """Return the batch that Spark has planned in *checkpoint*."""
        offsets = (checkpoint / "offsets" / str(number)).read_text("utf-8").splitlines()[-1]
        digest = hashlib.sha256(offsets.encode()).hexdigest()[:16]
        return cls(stream_of(checkpoint) or "", number, digest)


def stream_of(checkpoint: Path) -> str | None:
    """Return the id that Spark gave to the stream of *checkpoint*; None for a new one."""
    file = checkpoint / "metadata"
    return str(json.loads(file.read_text("utf-8"))["id"]) if file.exists() else None


def _limit(count: int | None) -> str:
    return "" if count is None else f" LIMIT {count}"


class Table(ABC):
    """A table that takes a batch once. Calls are made in the session of a stream's batch."""

    name: str
    """Name in SQL."""
    needed_properties: Mapping[str, str] = MappingProxyType({})
    """Properties without which `append` does not work."""

    @abstractmethod
    def exists(self, spark: SparkSession) -> bool:
        """Raises InvalidOption if the session lacks the format's jars or the catalog."""

    @abstractmethod
    def create(self, spark: SparkSession, columns: str) -> None:
        """Create the table, unless it exists."""

    @abstractmethod
    def commits(self, spark: SparkSession, newest: int | None = None) -> list[str]:
        """Return the names that the *newest* commits carry, or all that the history has."""

    @abstractmethod
    def append(self, rows: DataFrame, batch: TableBatch) -> None:
        """Append *rows* as *batch*. Do nothing if the table has the batch. New columns are
        added.
        """

    def properties(self, spark: SparkSession) -> dict[str, str]:
        rows = spark.sql(f"SHOW TBLPROPERTIES {self.name}").collect()
        return {row.key: row.value for row in rows}

    def set_properties(self, spark: SparkSession, properties: Mapping[str, str]) -> None:
        texts = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({texts})")


class DeltaTable(Table):
    """A Delta table by its path, partitioned by topic and date of storage."""

    def __init__(self, path: str) -> None:
        self._path = path if re.match(r"\w[\w+.-]+:/", path) else str(Path(path).absolute())
        quoted = self._path.replace("`", "``")
        self.name = f"delta.`{quoted}`"

    def exists(self, spark: SparkSession) -> bool:
        java: Any = spark._jvm
        try:
            delta = java.io.delta.tables.DeltaTable
            return bool(delta.isDeltaTable(spark._jsparkSession, self._path))
        except TypeError:
            raise InvalidOption(
                "this session has no Delta: give its package, such as --conf "
                "spark.jars.packages=io.delta:delta-spark_2.13:4.0.1 for Spark 4.0"
            ) from None

    def create(self, spark: SparkSession, columns: str) -> None:
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}, date DATE) USING delta "
            "PARTITIONED BY (topic, date)"
        )

    def commits(self, spark: SparkSession, newest: int | None = None) -> list[str]:
        history = spark.sql(f"DESCRIBE HISTORY {self.name}{_limit(newest)}")
        named = history.where("userMetadata IS NOT NULL").select("userMetadata")
        return [row.userMetadata for row in named.collect()]

    def append(self, rows: DataFrame, batch: TableBatch) -> None:
        (
            rows.withColumn("date", f.to_date("storeTimestamp"))
            .write.format("delta")
            .mode("append")
            .option("mergeSchema", "true")
            .option("txnAppId", f"ogive_{batch.stream}")
            .option("txnVersion", str(batch.number))
            .option("userMetadata", str(batch))
            .save(self._path)
        )


class IcebergTable(Table):
    """An Iceberg table by its name in a catalog, partitioned by topic and day of storage."""

    needed_properties = MappingProxyType(
        {"write.wap.enabled": "true", "write.spark.accept-any-schema": "true"}
    )

    def __init__(self, name: str) -> None:
        parts = name.split(".")
        if len(parts) < 3 or "/" in name or not all(parts):
            raise InvalidOption(
                f"--to {name}: an Iceberg table has a name in a catalog, such as lake.shop.orders, "
                "and --conf spark.sql.catalog.lake=... configures the catalog"
            )
        quoted = ["`" + part.replace("`", "``") + "`" for part in parts]
        self._catalog, self._namespace = parts[0], ".".join(quoted[:-1])
        self._in_catalog = ".".join(quoted[1:])
        self.name = ".".join(quoted)

    def exists(self, spark: SparkSession) -> bool:
        setting = f"spark.sql.catalog.{self._catalog}"
        try:
            if spark.conf.get(setting, None) is not None:
                if not spark.catalog.tableExists(self.name):
                    return False
                # the session keeps tables for 30 s, and streams have sessions of their own
                spark.sql(f"REFRESH TABLE {self.name}")
                return True
            why = "it is not configured"
        except SPARK_ERRORS as exc:
            why = reason(str(exc))
        raise InvalidOption(
            f"the catalog {self._catalog} cannot be used: {why}. For Spark 4.0 give --conf "
            f"{setting}=org.apache.iceberg.spark.SparkCatalog with {setting}.type and so on, and "
            "--conf spark.jars.packages=org.apache.iceberg:"
            "iceberg-spark-runtime-4.0_2.13:1.10.1"
        )

    def create(self, spark: SparkSession, columns: str) -> None:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._namespace}")
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}) USING iceberg "
            "PARTITIONED BY (topic, days(storeTimestamp))"
        )

    def commits(self, spark: SparkSession, newest: int | None = None) -> list[str]:
        found = spark.sql(
            # the name is quoted
            "SELECT coalesce("  # noqa: S608
            "s.summary['published-wap-id'], s.summary['wap.id'], "
            f"s.summary['{_BATCH}']) AS name "
            f"FROM {self.name}.history h JOIN {self.name}.snapshots s USING (snapshot_id) "
            f"WHERE h.is_current_ancestor ORDER BY h.made_current_at DESC{_limit(newest)}"
        ).where("name IS NOT NULL")
        return [row["name"] for row in found.collect()]

    def append(self, rows: DataFrame, batch: TableBatch) -> None:
        spark = rows.sparkSession
        spark.conf.set("spark.wap.id", str(batch))
        try:
            columns = rows.writeTo(self.name).option("mergeSchema", "true")
            # for the case that another client turns write.wap.enabled off: then it is no longer
            # staged, and publishing fails
            columns.option(f"snapshot-property.{_BATCH}", str(batch))
            # by name: the columns of others may come first
            columns.option("check-ordering", "false").append()
        finally:
            spark.conf.unset("spark.wap.id")
        try:
            spark.sql(
                f"CALL `{self._catalog}`.system.publish_changes("
                f"table => '{self._in_catalog}', wap_id => '{batch}')"
            )
        except SPARK_ERRORS as exc:
            if "DuplicateWAPCommitException" not in str(exc):
                raise


TABLES: Final[Mapping[str, Callable[[str], Table]]] = {
    "delta": DeltaTable,
    "iceberg": IcebergTable,
}


@dataclass(slots=True)
class ArchiveTable:
    """The batch function of the stream."""

    table: Table
    checkpoint: Path
    topics: Sequence[str]
    stop: Stop
    summary: Summary
    parse: Parse | None
    namespace: Namespace
    _checked: bool = field(default=False, init=False)

    def write(self, rows: DataFrame, number: int) -> None:
        self.stop.check()
        sync_plan(self.checkpoint)
        batch = TableBatch.planned(self.checkpoint, number)
        if self.parse is not None:
            rows, _ = self.parse(rows)
        if not self._checked and self._has(rows, batch):
            self.summary.notes.append(f"batch {number} is in the table already")
            return
        if self._checked:
            self._refuse_other_driver(rows.sparkSession, batch)
        self._checked = True
        for attempt in range(_ATTEMPTS):
            try:
                self.table.append(rows, batch)
                # Delta stores nothing, and says nothing, if it has a batch of this number
                self._refuse_other_driver(rows.sparkSession, batch)
                return
            except SPARK_ERRORS as exc:
                if attempt == _ATTEMPTS - 1 or not _OTHERS_WROTE.search(str(exc)):
                    raise

    def _has(self, rows: DataFrame, batch: TableBatch) -> bool:
        """Prepare the table, and return True if it has *batch*. Only for the first batch of a run:
        the table itself refuses later ones.

        Raises OgiveError if table and checkpoint contradict each other.
        """
        spark = rows.sparkSession
        self.table.create(spark, f"topic STRING, {STORED}")
        properties = self.table.properties(spark)
        check_owner(properties, batch.stream, self.topics, self.checkpoint)
        needed = {owner_property(topic): batch.stream for topic in self.topics}
        needed |= self.table.needed_properties
        # each change is a commit, with which transactions of others collide
        if needed.items() - properties.items():
            self.table.set_properties(spark, needed)
        ours = self._batches(spark, batch.stream)
        newest = max(ours, key=lambda one: one.number, default=None)
        if newest is not None and newest.number >= batch.number:
            if newest == batch:
                return True
            raise OgiveError(
                f"the table has batch {newest.number} of this archive, and {self.checkpoint} is at "
                f"batch {batch.number}: it is an older copy. Use the newest one, or archive into "
                "another table with another --state"
            )
        # a history expires from its begin: what follows the newest batch in it is not in the table
        if newest is not None and newest.number < batch.number - 1:
            raise OgiveError(
                f"{self.checkpoint} has finished batch {batch.number - 1} of this archive, and the "
                f"newest one in the table is {newest.number}: the table was rolled back, or is an "
                "older copy, and lacks the messages in between. Use the newest table, or archive "
                "into another table with another --state"
            )
        if newest is None:
            self._refuse_rows(spark, batch)
        return False

    def _batches(
        self, spark: SparkSession, stream: str, newest: int | None = None
    ) -> list[TableBatch]:
        """Return the batches of *stream* among the *newest* commits of the table."""
        found = map(TableBatch.parse, self.table.commits(spark, newest))
        return [one for one in found if one is not None and one.stream == stream]

    def _refuse_other_driver(self, spark: SparkSession, batch: TableBatch) -> None:
        """Raise OgiveError if the table has other rows as the batch of this number, or a later one:
        then another driver runs with a copy of the checkpoint.
        """
        found: list[TableBatch] = []
        # each commit that is looked at is a request to the file system
        for newest in _NEWEST:
            found = self._batches(spark, batch.stream, newest)
            if any(one.number < batch.number for one in found):
                break
        for one in found:
            if one.number >= batch.number and one != batch:
                raise OgiveError(
                    f"another driver has written batch {one.number} of this archive, with other "
                    f"messages than this one: two run with copies of {self.checkpoint}. End both, "
                    "and go on with the copy of the one that did not fail"
                )

    def _refuse_rows(self, spark: SparkSession, batch: TableBatch) -> None:
        """Raise OgiveError if the table has rows of *batch*, and no commit says why.

        One queue is enough, because a batch is one commit.
        """
        table = spark.table(self.table.name)
        # of others, who have never had a row of ours
        if "queueOffset" not in table.columns:
            return
        before = positions(self.checkpoint)
        for topic, broker, queue, end in _flat(planned(self.checkpoint, batch.number)):
            start = before.get(topic, {}).get(broker, {}).get(queue, 0)
            if start == end:
                continue
            found = table.where(
                (f.col("topic") == self.namespace.strip(topic))
                & (f.col("brokerName") == broker)
                & (f.col("queueId") == int(queue))
                & f.col("queueOffset").between(start, end - 1)
            )
            if not found.isEmpty():
                raise OgiveError(
                    f"the table has messages of {topic}/{broker}/{queue} between the offsets "
                    f"{start} and {end - 1} already, and the commit that wrote them has expired "
                    "or is not of this archive. Delete the rows from that offset on of all "
                    "queues, or archive into another table"
                )
            return


def _flat(offsets: Offsets) -> Iterator[tuple[str, str, str, int]]:
    for topic, brokers in offsets.items():
        for broker, queues in brokers.items():
            for queue, end in queues.items():
                yield topic, broker, queue, end


def owner_property(topic: str) -> str:
    """Return the name of the property that names the stream which archives *topic*.

    It has the topic in hex: Spark hides the values of names with ``url``, ``token`` and so on.
    """
    return f"{_OWNER}{topic.encode().hex()}"


def check_owner(
    properties: Mapping[str, str], stream: str | None, topics: Sequence[str], checkpoint: Path
) -> None:
    """Raise InvalidOption if another stream than *stream* archives one of *topics* into the
    table.
    """
    for topic in topics:
        owner = properties.get(owner_property(topic))
        if owner not in (None, stream):
            raise InvalidOption(
                f"{topic} is archived into this table by the stream {owner}, and {checkpoint} is "
                f"{'new' if stream is None else f'of {stream}'}: use the --state of the first run, "
                "or another table"
            )


def archive_table(
    spark: SparkSession,
    *,
    name_server: str,
    topics: Sequence[str],
    format: Format,
    to: str,
    state: Path,
    stop: Stop,
    say: Say,
    show: Show | None = None,
    group: str | None = None,
    security: Security = OPEN,
    parse: Parse | None = None,
    every_s: float | None = None,
    max_rows: int = 500_000,
    allow_loss: bool = False,
    dry_run: bool = False,
) -> Summary:
    """Bring the table *to* up to date; with *every_s* again and again until stopped.

    *to* is a path or URL for Delta, and a name in a catalog for Iceberg. *state* is a folder of
    this machine, with the progress. *parse* adds the columns ``value`` and ``_error``. *group*
    shows the progress at the brokers.

    If messages were deleted before they were archived, the run fails, unless *allow_loss* is True.
    """
    summary = Summary("archive", dry_run=dry_run)
    checkpoint = writable("state", state) / "_checkpoint"
    options = source_options(name_server, topics, group, security, max_rows, allow_loss)
    namespace = access_of(security).namespace
    table = TABLES[format](to)
    found = table.exists(spark)
    properties = table.properties(spark) if found else {}
    check_owner(properties, stream_of(checkpoint), topics, checkpoint)
    if last_batch(checkpoint) >= 0 and not any(name.startswith(_OWNER) for name in properties):
        raise InvalidOption(
            f"{checkpoint} is of an archive, and the table {to} is not: it was moved or replaced. "
            "Name the right table, or another --state to begin with the first message"
        )
    if dry_run:
        return with_remaining(summary, name_server, security, topics, checkpoint)
    while True:
        writer = ArchiveTable(table, checkpoint, topics, stop, summary, parse, namespace)
        read_in_batches(
            spark, options, writer.write, checkpoint, stop, shown_by(say, show), summary
        )
        if stop.asked:
            summary.stopped = every_s is None
            break
        if every_s is None or stop.wait(every_s):
            break
    return summary
