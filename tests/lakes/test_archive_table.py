"""Archives in tables of Delta and Iceberg: each message once, whatever ends a run between any two
steps of a batch, and whoever else writes.
"""

import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from ogive.errors import InvalidOption
from ogive.pipelines import Stop, Summary, archive_table
from ogive.pipelines.archive_table import TABLES, Table, TableBatch
from ogive.pipelines.job import last_batch
from ogive.spark.parse import parse_json
from tests.topics import Wire

pytestmark = [
    pytest.mark.lakes,
    pytest.mark.spark,
    pytest.mark.nightly,
    pytest.mark.apart(30),
    pytest.mark.timeout(900),
]

BOTH = pytest.mark.parametrize("format_and_place", ["delta", "iceberg"], indirect=True)
EVERYWHERE = pytest.mark.parametrize(
    "format_and_place", ["delta", "iceberg", "delta-s3", "iceberg-s3"], indirect=True
)
Parse = Callable[[DataFrame], tuple[DataFrame, DataFrame]]


class Killed(Exception):
    """Ends a batch at the point where it is raised."""


@dataclass
class Lake:
    """A table, and how to bring it up to date."""

    spark: SparkSession
    wire: Wire
    topic: str
    format: Any
    place: str
    state: Path

    def run(self, **options: Any) -> Summary:
        given: dict[str, Any] = {
            "topics": [self.topic],
            "format": self.format,
            "to": self.place,
            "state": self.state,
            "stop": Stop(),
            **options,
        }
        return archive_table(
            self.spark, name_server=self.wire.name_server, say=lambda _: None, **given
        )

    def table(self) -> DataFrame:
        if self.format == "delta":
            return self.spark.read.format("delta").load(self.place)
        # the session keeps tables for 30 s, and a stream has a session of its own
        self.spark.sql(f"REFRESH TABLE {self.place}")
        return self.spark.table(self.place)

    def name(self) -> str:
        return f"delta.`{self.place}`" if self.format == "delta" else self.place

    def offsets(self) -> Counter[tuple[str, int, int]]:
        rows = self.table().select("topic", "queueId", "queueOffset").collect()
        return Counter((row.topic, row.queueId, row.queueOffset) for row in rows)

    def send(self, count: int, first: int = 0, topic: str | None = None) -> None:
        for queue in (0, 1):
            bodies = [b'{"number": %d}' % i for i in range(first, first + count)]
            self.wire.send(topic or self.topic, queue, bodies)

    def forget_last_commit(self) -> None:
        """As when the driver is killed after the table's commit, and before Spark's."""
        commits = self.state / "_checkpoint" / "commits"
        last = last_batch(commits.parent)
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)


@pytest.fixture
def lake(
    spark: SparkSession, wire: Wire, topic: str, format_and_place: tuple[str, str], tmp_path: Path
) -> Lake:
    wire.create(topic, 2)
    return Lake(spark, wire, topic, *format_and_place, tmp_path / "state")


def once(topic: str, count: int) -> Counter[tuple[str, int, int]]:
    return Counter((topic, queue, i) for queue in (0, 1) for i in range(count))


@EVERYWHERE
def test_a_table_has_each_message_once_and_goes_on(lake: Lake) -> None:
    lake.send(20)
    assert lake.run(dry_run=True).written == 40
    assert lake.run().written == 40
    assert lake.run().written == 0
    lake.send(5, 20)
    assert lake.run().written == 10
    assert lake.offsets() == once(lake.topic, 25)
    row = lake.table().where("queueOffset = 3 and queueId = 1").first()
    assert row is not None
    assert (bytes(row.body), row.topic) == (b'{"number": 3}', lake.topic)
    # and again a driver that was killed before Spark had noted the end of its batch
    lake.forget_last_commit()
    assert "batch 1 is in the table already" in lake.run().notes
    assert lake.offsets() == once(lake.topic, 25)


@BOTH
def test_nothing_is_doubled_when_the_driver_dies_before_a_batch_is_in_the_table(
    lake: Lake,
) -> None:
    """In the first batch, whose table does not exist yet, and in a later one."""

    def die(_: DataFrame) -> Any:
        raise Killed

    for done in (0, 11):
        lake.send(10, done)
        with pytest.raises(StreamingQueryException, match="Killed"):
            lake.run(parse=die)
        lake.send(1, done + 10)
        lake.run()
        assert lake.offsets() == once(lake.topic, done + 11)


@pytest.mark.parametrize("format_and_place", ["iceberg"], indirect=True)
def test_a_batch_that_was_staged_and_not_published_is_published_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.send(10)
    sql = SparkSession.sql

    def dying(spark: SparkSession, query: str, *more: Any, **options: Any) -> DataFrame:
        if query.startswith("CALL"):
            raise Killed
        return sql(spark, query, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(type(lake.spark), "sql", dying)
        with pytest.raises(StreamingQueryException, match="Killed"):
            lake.run()
    assert lake.table().count() == 0
    lake.run()
    assert lake.offsets() == once(lake.topic, 10)


@pytest.mark.parametrize("format_and_place", ["iceberg"], indirect=True)
def test_a_batch_is_stored_once_if_another_client_turns_staging_off(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.send(10)
    table = type(TABLES["iceberg"](lake.place))
    append = table.append

    def unstaged(self: Table, rows: DataFrame, batch: TableBatch) -> None:
        rows.sparkSession.sql(
            f"ALTER TABLE {lake.place} SET TBLPROPERTIES ('write.wap.enabled' = 'false')"
        )
        append(self, rows, batch)

    with monkeypatch.context() as patch:
        patch.setattr(table, "append", unstaged)
        with pytest.raises(StreamingQueryException, match=r"(?i)wap"):
            lake.run()
    assert "batch 0 is in the table already" in lake.run().notes
    lake.send(5, 10)
    lake.run()
    assert lake.offsets() == once(lake.topic, 15)


@BOTH
def test_an_old_driver_that_is_still_alive_doubles_nothing(lake: Lake) -> None:
    """It writes the batch that ours has planned, and then once more: a table takes it once."""
    lake.send(5)
    lake.run()
    lake.send(5, 5)
    checkpoint, table = lake.state / "_checkpoint", TABLES[lake.format](lake.place)

    def overtaken(rows: DataFrame) -> tuple[DataFrame, DataFrame]:
        batch = TableBatch.planned(checkpoint, last_batch(checkpoint) + 1)
        for _ in range(2):
            table.append(rows, batch)
            assert lake.offsets() == once(lake.topic, 10)
        return rows, rows

    assert "batch 1 is in the table already" in lake.run(parse=overtaken).notes
    assert lake.offsets() == once(lake.topic, 10)


@BOTH
def test_a_driver_whose_batch_another_one_has_written_fails(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has a copy of the state, and commits while ours writes: its batch has the same
    number and other messages. Delta stores one of the two, and Iceberg both.
    """
    lake.send(5)
    lake.run()
    lake.send(5, 5)
    table = type(TABLES[lake.format](lake.place))
    append = table.append

    def second(self: Table, rows: DataFrame, batch: TableBatch) -> None:
        append(self, rows.limit(1), TableBatch(batch.stream, batch.number, "0" * 16))
        append(self, rows, batch)

    with monkeypatch.context() as patch:
        patch.setattr(table, "append", second)
        with pytest.raises(StreamingQueryException, match="another driver has written batch 1"):
            lake.run()
    assert lake.table().count() == (11 if lake.format == "delta" else 21)


@BOTH
def test_two_archives_write_one_table_at_the_same_time(lake: Lake, tmp_path: Path) -> None:
    other = Lake(
        lake.spark, lake.wire, f"{lake.topic}_B", lake.format, lake.place, tmp_path / "other"
    )
    lake.wire.create(other.topic, 2)

    def run(one: Lake) -> None:
        for i in range(3):
            one.send(5, 5 * i)
            one.run()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run, (lake, other)))
    assert lake.offsets() == once(lake.topic, 15) + once(other.topic, 15)


@BOTH
def test_a_topic_whose_name_spark_would_hide_is_archived_again(lake: Lake, tmp_path: Path) -> None:
    """SHOW TBLPROPERTIES hides the value of a name that has ``url`` in it."""
    other = Lake(
        lake.spark, lake.wire, f"{lake.topic}_hourly", lake.format, lake.place, tmp_path / "other"
    )
    lake.wire.create(other.topic, 2)
    for done in (0, 5):
        other.send(5, done)
        other.run()
    assert other.offsets() == once(other.topic, 10)


@BOTH
def test_rows_and_columns_of_others_stay_and_their_compaction_does_no_harm(lake: Lake) -> None:
    if lake.format == "iceberg":
        lake.spark.sql("CREATE NAMESPACE IF NOT EXISTS local.shop")
    lake.spark.sql(f"CREATE TABLE {lake.name()} (note STRING) USING {lake.format}")
    lake.spark.sql(f"INSERT INTO {lake.name()} VALUES ('theirs')")
    lake.send(5)
    lake.run()
    lake.send(5, 5)
    lake.run()
    if lake.format == "delta":
        lake.spark.sql(f"OPTIMIZE {lake.name()}")
    else:
        table = lake.place.removeprefix("local.")
        lake.spark.sql(f"CALL local.system.rewrite_data_files(table => '{table}')")
    lake.forget_last_commit()
    lake.run()
    lake.send(5, 10)
    lake.run()
    ours = lake.table().where("topic IS NOT NULL")
    assert ours.count() == ours.select("queueId", "queueOffset").distinct().count() == 30
    assert [row.note for row in lake.table().where("topic IS NULL").collect()] == ["theirs"]


@dataclass
class Order:
    number: int


@dataclass
class Wider:
    number: int
    note: str | None


@dataclass
class Other:
    number: str


def json_of(kind: type) -> Parse:
    return partial(parse_json, schema=kind, on_error="null")


@BOTH
def test_a_schema_grows_and_bad_bodies_stay_readable(lake: Lake) -> None:
    lake.send(2)
    lake.run(parse=json_of(Order))
    lake.wire.send(lake.topic, 0, [b'{"number": 7, "note": "new"}', b'{"number": "x"}'])
    lake.run(parse=json_of(Wider))
    rows = lake.table().where("queueId = 0").orderBy("queueOffset").collect()
    assert [row.value and (row.value.number, row.value.note) for row in rows] == [
        (0, None),
        (1, None),
        (7, "new"),
        None,
    ]
    assert [row["_error"] for row in rows] == [None, None, None, "number is not bigint"]
    assert bytes(rows[3].body) == b'{"number": "x"}'
    lake.send(1, 2)
    with pytest.raises(PySparkException, match=r"(?i)number|merge|cast"):
        lake.run(parse=json_of(Other))
    # the batch is open, and a schema that fits writes it
    lake.run(parse=json_of(Wider))
    assert lake.table().count() == 8


@BOTH
def test_a_state_that_is_not_of_the_table_is_refused(lake: Lake, tmp_path: Path) -> None:
    lake.send(3)
    lake.run()
    shutil.copytree(lake.state, tmp_path / "older")
    with pytest.raises(InvalidOption, match="is archived into this table by the stream"):
        lake.run(state=tmp_path / "new")
    lake.send(3, 3)
    lake.run()
    lake.send(3, 6)
    with pytest.raises(StreamingQueryException, match="it is an older copy"):
        lake.run(state=tmp_path / "older")
    elsewhere = f"{lake.place}2"
    with pytest.raises(InvalidOption, match="it was moved or replaced"):
        lake.run(to=elsewhere)
    lake.run()
    assert lake.offsets() == once(lake.topic, 9)
