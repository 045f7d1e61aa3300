"""The ready pipelines on a real broker: what they copy, how they stop and go on, and what a crash
leaves.
"""

import json
import shutil
import time
import zlib
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import concat, lit

import ogive
from ogive.errors import InvalidOption, NoRoute
from ogive.model import MAX_BODY_BYTES, dlq_topic
from ogive.pipelines import Stop, archive, mirror, reconcile, redrive, replay, trace_report
from ogive.pipelines.archive import SCHEMA, compact, recover
from ogive.pipelines.job import TOO_LARGE, TOO_MANY_PROPERTIES, UNREADABLE, last_batch, positions
from ogive.pipelines.progress import HOUR
from ogive.pipelines.redrive import NO_TOPIC
from ogive.pipelines.replay import UNSEEN
from ogive.spark.fsync import sync_plan
from ogive.wire.codes import SysFlag
from ogive.wire.message import MAX_PROPERTIES_BYTES
from tests.peers import RunningBroker, our_broker
from tests.topics import Wire, wait_until_shown
from tests.zones import local_zone

pytestmark = [
    pytest.mark.spark,
    pytest.mark.bridge,
    pytest.mark.apart(15),
    pytest.mark.timeout(300),
]

Place = tuple[str, int, int]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def send(broker: RunningBroker, topic: str) -> Any:
    """Sends *count* messages like the demo's flights: key, tag, property and, for most, a sharding
    key.
    """

    def go(count: int, first: int = 0, name: str = topic, queues: int = 4) -> None:
        with ogive.Admin(broker.name_server) as admin:
            admin.create_topic(name, queues=queues)
        with ogive.Producer(broker.name_server) as producer:
            for i in range(first, first + count):
                tail = f"N{i % 7}" if i % 5 else None
                producer.send(
                    name,
                    b"event %d" % i,
                    tag=("departed", "arrived")[i % 2],
                    keys=f"f{i}",
                    properties={"n": str(i)},
                    sharding_key=tail,
                )
        wait_until_shown(broker.name_server, name, first + count)

    return go


def table(spark: SparkSession, broker: RunningBroker, topic: str) -> DataFrame:
    return spark.read.format("rocketmq").option("nameServer", broker.name_server).load(topic)


def content(rows: DataFrame) -> Counter[tuple[Any, ...]]:
    """What a copy must keep."""
    return Counter(
        (bytes(row.body), row.keys, row.tags, row.properties["n"]) for row in rows.collect()
    )


def order(rows: DataFrame) -> dict[str, list[int]]:
    """Numbers by sharding key, in the order of queue and offset; each key must be in one queue."""
    by_key: dict[str, list[int]] = defaultdict(list)
    queues: dict[str, set[int]] = defaultdict(set)
    for row in rows.orderBy("queueId", "queueOffset").collect():
        key = row.properties["__SHARDINGKEY"]
        by_key[key].append(int(row.properties["n"]))
        queues[key].add(row.queueId)
    assert all(len(ids) == 1 for ids in queues.values())
    return by_key


class Lake:
    """An archive and how to bring it up to date."""

    def __init__(
        self, spark: SparkSession, broker: RunningBroker, topic: str, folder: Path
    ) -> None:
        self.spark, self.broker, self.topic, self.folder = spark, broker, topic, folder

    def run(self, stop: Stop | None = None, **options: Any) -> Any:
        return archive(
            self.spark,
            name_server=self.broker.name_server,
            topics=[self.topic],
            to=self.folder,
            stop=stop or Stop(),
            say=lambda _: None,
            **options,
        )

    def offsets(self) -> list[Place]:
        rows = (
            self.spark.read.schema(SCHEMA)
            .parquet(str(self.folder))
            .select("topic", "queueId", "queueOffset")
            .collect()
        )
        return sorted((row.topic, row.queueId, row.queueOffset) for row in rows)


@pytest.fixture
def lake(spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path) -> Lake:
    return Lake(spark, broker, topic, tmp_path / "lake")


def all_of(spark: SparkSession, broker: RunningBroker, topic: str) -> list[Place]:
    return sorted(
        (row.topic, row.queueId, row.queueOffset) for row in table(spark, broker, topic).collect()
    )


# --- archive --------------------------------------------------------------------------------------


def test_an_archive_holds_every_message_once_and_goes_on(
    spark: SparkSession, broker: RunningBroker, lake: Lake, send: Any
) -> None:
    send(100)
    assert lake.run(dry_run=True).written == 100
    assert not lake.folder.exists()
    summary = lake.run(max_rows=40)
    assert (summary.read, summary.written, summary.stopped) == (100, 100, False)
    assert lake.run().read == 0
    send(20, 100)
    assert lake.run().written == 20
    assert lake.offsets() == all_of(spark, broker, lake.topic)
    stored = spark.read.schema(SCHEMA).parquet(str(lake.folder))
    assert content(stored) == content(table(spark, broker, lake.topic))
    hour = stored.selectExpr(
        "date = date_format(storeTimestamp, 'yyyy-MM-dd') and hour = date_format(storeTimestamp, "
        "'HH') as right"
    )
    assert {row.right for row in hour.collect()} == {True}


@pytest.mark.nightly
def test_hours_that_are_over_become_one_file_each(
    spark: SparkSession, broker: RunningBroker, lake: Lake, send: Any
) -> None:
    send(60)
    lake.run(max_rows=20)
    before = lake.offsets()
    hours = len(list(lake.folder.glob("topic=*/date=*/hour=*")))
    assert compact(spark, lake.folder, datetime.now(UTC) + timedelta(hours=2)) == hours
    assert len(list(lake.folder.rglob("*.parquet"))) == hours
    assert lake.offsets() == before == all_of(spark, broker, lake.topic)


def test_a_batch_that_spark_repeats_is_not_doubled(
    spark: SparkSession, broker: RunningBroker, lake: Lake, send: Any
) -> None:
    """The checkpoint lost its last commit: before compaction the batch replaces itself, after it
    the archive knows the batch.
    """
    send(60)
    lake.run(max_rows=20)
    commits = lake.folder / "_checkpoint" / "commits"
    last = max(int(file.name) for file in commits.glob("[0-9]*"))
    shutil.copytree(lake.folder, lake.folder.with_name("crashed"))
    # as when the process died inside the last batch
    (lake.folder / "_archive.json").unlink()
    (commits / str(last)).unlink()
    lake.run()
    assert lake.offsets() == all_of(spark, broker, lake.topic)
    crashed = Lake(spark, broker, lake.topic, lake.folder.with_name("crashed"))
    compact(spark, crashed.folder, datetime.now(UTC) + timedelta(hours=2))
    (crashed.folder / "_checkpoint" / "commits" / str(last)).unlink()
    assert "is in the archive already" in " ".join(crashed.run().notes)
    assert crashed.offsets() == all_of(spark, broker, lake.topic)


def test_which_messages_a_batch_has_is_on_stable_storage_before_its_parts(
    lake: Lake, send: Any, monkeypatch: pytest.MonkeyPatch, admission: bool
) -> None:
    """Else a power cut takes Spark's note back, and what came since is taken for archived with the
    batch of that number.
    """
    kept: list[tuple[int, list[Path]]] = []

    def noted(checkpoint: Path) -> None:
        batch = max(int(file.name) for file in (checkpoint / "offsets").glob("[0-9]*"))
        kept.append((batch, list(lake.folder.glob(f"topic=*/*/*/part=b{batch:09d}"))))
        sync_plan(checkpoint)

    monkeypatch.setitem(archive.__globals__, "sync_plan", noted)
    send(20)
    lake.run(max_rows=10)
    assert kept == [(batch, []) for batch in range(last_batch(lake.folder / "_checkpoint") + 1)]
    assert (len(kept) > 1) is admission


@pytest.mark.nightly
def test_a_compaction_that_was_cut_anywhere_is_finished(
    spark: SparkSession, broker: RunningBroker, lake: Lake, send: Any
) -> None:
    send(60)
    lake.run(max_rows=20)
    hour = next(lake.folder.glob("topic=*/date=*/hour=*"))
    parts = sorted(part.name for part in hour.glob("part=*"))
    place = str(hour.relative_to(lake.folder))
    journal = {"hour": place, "parts": parts, "into": "part=c000000009-1"}
    whole = (
        spark.read.schema(SCHEMA)
        .parquet(*(str(hour / part) for part in parts))
        .drop("topic", "date", "hour", "part")
    )
    copy = lake
    for removed in range(len(parts) + 1):
        copy = Lake(spark, broker, lake.topic, lake.folder.with_name(f"cut{removed}"))
        shutil.copytree(lake.folder, copy.folder)
        whole.coalesce(1).write.parquet(str(copy.folder / "_new" / place))
        (copy.folder / "_compacting.json").write_text(json.dumps(journal))
        for part in parts[:removed]:
            shutil.rmtree(copy.folder / place / part)
        recover(copy.folder)
        recover(copy.folder)
        assert copy.offsets() == lake.offsets()
        assert [file.name for file in (copy.folder / place).iterdir()] == ["part=c000000009-1"]
    # cut after the last rename
    (copy.folder / "_compacting.json").write_text(json.dumps(journal))
    recover(copy.folder)
    assert copy.offsets() == lake.offsets()


@pytest.mark.nightly
def test_a_stop_ends_after_the_batch_under_way(
    spark: SparkSession, broker: RunningBroker, lake: Lake, send: Any
) -> None:
    send(60)
    stop = Stop()

    class AfterTwo(Stop):
        checks = 0

        def check(self) -> None:
            self.checks += 1
            if self.checks == 3:
                stop.ask()
                self.ask()
            super().check()

    summary = lake.run(AfterTwo(), max_rows=20)
    assert summary.stopped
    assert 0 < summary.written < 60
    assert len(lake.offsets()) == summary.written
    assert lake.run().written == 60 - summary.written
    assert lake.offsets() == all_of(spark, broker, lake.topic)


@pytest.mark.nightly
def test_an_archive_without_its_checkpoint_is_refused(lake: Lake, send: Any) -> None:
    send(5)
    lake.run()
    shutil.rmtree(lake.folder / "_checkpoint")
    with pytest.raises(InvalidOption, match="a new run would double it"):
        lake.run()


# --- replay ---------------------------------------------------------------------------------------


def test_an_archive_is_replayed_with_its_keys_in_order(
    spark: SparkSession, broker: RunningBroker, lake: Lake, send: Any
) -> None:
    send(120)
    lake.run()
    again, state = lake.topic + "_2", lake.folder.with_name("state")
    with ogive.Admin(broker.name_server) as admin:
        admin.create_topic(again, queues=3)
    options: dict[str, Any] = {
        "source": f"archive:{lake.folder}",
        "name_server": broker.name_server,
        "target": broker.name_server,
        "to": again,
        "state": state,
    }

    class AfterOne(Stop):
        def wait(self, timeout_s: float) -> bool:
            self.ask()
            return True

    assert replay(spark, **options, stop=Stop(), say=lambda _: None, dry_run=True).written == 120
    first = replay(spark, **options, rate=50, stop=AfterOne(), say=lambda _: None)
    assert (first.written, first.stopped) == (50, True)
    second = replay(spark, **options, stop=Stop(), say=lambda _: None)
    assert (second.written, dict(second.skipped)) == (70, {"sent by an earlier run": 50})
    copied = table(spark, broker, again)
    assert content(copied) == content(table(spark, broker, lake.topic))
    assert all(
        numbers == sorted(numbers)
        for numbers in order(copied.where("properties['__SHARDINGKEY'] like 'N%'")).values()
    )
    with pytest.raises(InvalidOption, match="another replay"):
        replay(spark, **{**options, "where": "tags = 'arrived'"}, stop=Stop(), say=lambda _: None)
    done = json.loads((state / "replay.json").read_text())
    # as when its broker was away in the first run
    away = done["known"].pop()
    (state / "replay.json").write_text(
        json.dumps({**done, "hour": f"{datetime.now(UTC) + timedelta(hours=2):{HOUR}}"})
    )
    count = sum(place[1] == int(away.split("\n")[2]) for place in lake.offsets())
    third = replay(spark, **options, stop=Stop(), say=lambda _: None)
    assert dict(third.skipped) == {"sent by an earlier run": 120 - count, UNSEEN: count}
    assert 0 < count < 120


@pytest.mark.nightly
def test_a_time_range_of_a_topic_is_replayed_at_a_rate(
    spark: SparkSession, broker: RunningBroker, topic: str, send: Any, tmp_path: Path
) -> None:
    """The rate is held by pauses, which a test counts instead of waiting."""
    send(30)
    stored = (
        table(spark, broker, topic)
        .selectExpr("unix_millis(storeTimestamp) as at", "tags")
        .orderBy("at")
        .collect()
    )
    since = datetime.fromtimestamp(stored[15].at / 1000, UTC)
    pauses: list[float] = []

    class Counting(Stop):
        def wait(self, timeout_s: float) -> bool:
            pauses.append(timeout_s)
            return False

    summary = replay(
        spark,
        source=topic,
        name_server=broker.name_server,
        target=broker.name_server,
        to=topic + "_2",
        state=tmp_path / "state",
        since=since,
        where="tags = 'arrived'",
        rate=4,
        stop=Counting(),
        say=lambda _: None,
    )
    wanted = sum(row.at >= stored[15].at and row.tags == "arrived" for row in stored)
    assert summary.written == wanted > 0
    assert table(spark, broker, topic + "_2").where("tags = 'arrived'").count() == wanted
    assert len(pauses) == -(-summary.written // 4)


@pytest.mark.nightly
def test_both_hours_that_local_time_calls_two_in_autumn_are_replayed(
    spark: SparkSession,
    broker: RunningBroker,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message at half past two before the clocks go back, and one at half past two behind it."""
    with ogive.Admin(broker.name_server) as admin:
        admin.create_topic(topic, queues=1)
    first = int(datetime(2025, 10, 26, 0, 30, tzinfo=UTC).timestamp())
    rows = spark.range(2).selectExpr(
        "'broker-a' as brokerName",
        "0 as queueId",
        "id as queueOffset",
        "'key' as keys",
        "'tag' as tags",
        "cast('body' as binary) as body",
        "map('n', string(id)) as properties",
        f"timestamp_seconds({first} + 3600 * id) as bornTimestamp",
        f"timestamp_seconds({first} + 3600 * id) as storeTimestamp",
        "'T' as topic",
        "'2025-10-26' as date",
        "lpad(id, 2, '0') as hour",
        "'b' as part",
    )
    rows.write.partitionBy("topic", "date", "hour", "part").parquet(str(tmp_path / "lake"))
    with local_zone("CET-1CEST,M3.5.0,M10.5.0/3", monkeypatch):
        summary = replay(
            spark,
            source=f"archive:{tmp_path}/lake",
            name_server=broker.name_server,
            target=broker.name_server,
            to=topic,
            state=tmp_path / "state",
            stop=Stop(),
            say=lambda _: None,
        )
    assert (summary.written, table(spark, broker, topic).count()) == (2, 2)


# --- redrive --------------------------------------------------------------------------------------


def test_dead_letters_go_back_once(
    spark: SparkSession, broker: RunningBroker, topic: str, group: str, send: Any, tmp_path: Path
) -> None:
    send(10)

    @ogive.listener(topic, group=group, start="earliest", max_retries=0)
    def fail(message: ogive.MessageExt) -> Any:
        return ogive.DEAD_LETTER

    with ogive.PushConsumer(fail, name_server=broker.name_server):
        letters = wait_for(lambda: safe_count(spark, broker, dlq_topic(group)), 10)
    assert letters == 10
    options: dict[str, Any] = {
        "name_server": broker.name_server,
        "group": group,
        "state": tmp_path,
        "stop": Stop(),
        "say": lambda _: None,
    }
    plan = redrive(spark, **options, where="tags = 'departed'")
    assert (plan.dry_run, plan.written, dict(plan.skipped)) == (True, 5, {"not chosen": 5})
    assert table(spark, broker, topic).count() == 10
    stop = Stop()
    first = redrive(
        spark,
        **{**options, "stop": stop, "say": lambda _: stop.ask()},
        where="tags = 'departed'",
        chunk=2,
        dry_run=False,
    )
    assert (first.written, first.stopped) == (2, True)
    sent = redrive(spark, **options, where="tags = 'departed'", chunk=2, dry_run=False)
    assert (sent.written, dict(sent.skipped)) == (3, {"not chosen": 5, "sent by an earlier run": 2})
    rest = redrive(spark, **options, dry_run=False)
    assert (rest.written, dict(rest.skipped)) == (5, {"sent by an earlier run": 5})
    assert redrive(spark, **options, dry_run=False).written == 0
    ledger = spark.read.parquet(str(tmp_path / group))
    ledger.withColumn("msgId", concat("msgId", lit("0"))).write.parquet(
        str(tmp_path / "made anew" / group)
    )
    ledger.drop("msgId").write.parquet(str(tmp_path / "of before" / group))
    # other letters stood at those places
    assert redrive(spark, **{**options, "state": tmp_path / "made anew"}).written == 10
    assert redrive(spark, **{**options, "state": tmp_path / "of before"}).written == 0
    back = content(table(spark, broker, topic))
    assert set(back.values()) == {2}
    assert len(back) == 10


def wait_for(look: Any, wanted: int) -> int:
    deadline = time.monotonic() + 60
    while (found := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.2)
    return int(found)


def safe_count(spark: SparkSession, broker: RunningBroker, topic: str) -> int:
    with ogive.Admin(broker.name_server) as admin:
        try:
            return sum(row.max_offset - row.min_offset for row in admin.offsets(topic))
        except NoRoute:
            return 0


def test_a_group_without_dead_letters_is_told_so(
    spark: SparkSession, broker: RunningBroker, group: str, tmp_path: Path
) -> None:
    summary = redrive(
        spark,
        name_server=broker.name_server,
        group=group,
        state=tmp_path,
        stop=Stop(),
        say=lambda _: None,
    )
    assert summary.notes == [f"group {group} has no dead letters"]


# --- what nobody can read, or send again ----------------------------------------------------------


def test_messages_that_cannot_be_sent_again_are_passed_over_and_counted(
    spark: SparkSession, broker: RunningBroker, wire: Wire, topic: str, group: str, tmp_path: Path
) -> None:
    """Marked as compressed by their sender, and not; inflated larger than a message may be; without
    room for another unique key. A value with the separator that stands behind names is none of
    them: it comes through as Apache's clients read it.
    """
    letters, zlibbed = dlq_topic(group), SysFlag.COMPRESSED | SysFlag.ZLIB
    for name in (topic, letters):
        origin: dict[str, Any] = {"RETRY_TOPIC": f"{topic}_again"}
        wire.create(name)
        wire.send(name, 0, [b"before", b"before"], **origin, TAGS="t", n="\x01{i}\x01")
        wire.send(name, 0, [b"no zlib"], sys_flag=zlibbed, **origin)
        wire.send(name, 0, [zlib.compress(bytes(MAX_BODY_BYTES + 1))], sys_flag=zlibbed, **origin)
        wire.send(name, 0, [b"full", b"full"], **origin, n="x" * (MAX_PROPERTIES_BYTES - 100))
        wire.send(name, 0, [b"behind"], **origin, TAGS="t\x01u", KEYS="k\x01l", n="3")
    wire.send(letters, 0, [b"lost"], RETRY_TOPIC="no topic!")
    wire.send(letters, 0, [b"lost"], RETRY_TOPIC=f"{topic}\n")
    skipped = {UNREADABLE: 1, TOO_LARGE: 1, TOO_MANY_PROPERTIES: 2}
    copies = [
        (b"before", "t", None, "\x010\x01"),
        (b"before", "t", None, "\x011\x01"),
        (b"behind", "t\x01u", "k\x01l", "3"),
    ]

    def copied(name: str) -> list[tuple[Any, ...]]:
        rows = table(spark, broker, name).collect()
        return sorted((bytes(row.body), row.tags, row["keys"], row.properties["n"]) for row in rows)

    common: dict[str, Any] = {"stop": Stop(), "say": lambda _: None}
    clusters: dict[str, Any] = {
        "source": broker.name_server,
        "target": broker.name_server,
        "topics": [topic],
    }
    ways = {
        "mirror-": mirror(spark, **clusters, **common, state=tmp_path / "mirror", prefix="mirror-"),
        "once-": mirror(
            spark, **clusters, **common, state=tmp_path / "once", prefix="once-", idempotent=True
        ),
        "replay-": replay(
            spark,
            source=topic,
            name_server=broker.name_server,
            target=broker.name_server,
            to=f"replay-{topic}",
            state=tmp_path,
            **common,
        ),
    }
    for prefix, summary in ways.items():
        assert (prefix, summary.read, summary.written, dict(summary.skipped)) == (
            prefix,
            7,
            3,
            skipped,
        )
        assert copied(prefix + topic) == copies
    redriven = redrive(
        spark, name_server=broker.name_server, group=group, state=tmp_path, dry_run=False, **common
    )
    assert (redriven.read, redriven.written, dict(redriven.skipped)) == (
        9,
        3,
        {**skipped, NO_TOPIC: 2},
    )
    assert copied(f"{topic}_again") == copies


# --- mirror and reconcile -------------------------------------------------------------------------


def test_a_mirror_keeps_everything_and_reconcile_agrees(
    spark: SparkSession, broker: RunningBroker, topic: str, send: Any, tmp_path: Path
) -> None:
    send(80)
    with our_broker(tmp_path / "other") as other:
        options: dict[str, Any] = {
            "source": broker.name_server,
            "target": other.name_server,
            "topics": [topic],
            "state": tmp_path / "state",
            "stop": Stop(),
            "say": lambda _: None,
        }
        assert mirror(spark, **options, dry_run=True).written == 80
        first = mirror(spark, **options, max_rows=30)
        assert (first.written, first.figures["lag"]) == (80, 0)
        send(20, 80)
        assert mirror(spark, **options).written == 20
        copied = table(spark, other, topic)
        assert content(copied) == content(table(spark, broker, topic))
        assert all(numbers == sorted(numbers) for numbers in order(copied).values())
        assert len({row.queueId for row in copied.select("queueId").collect()}) > 1
        there = f"{topic}@{other.name_server}"
        same = reconcile(
            spark, left=topic, right=there, name_server=broker.name_server, say=lambda _: None
        )
        assert (same.figures["same"], same.figures["keys"]["equal"], same.read) == (True, 100, 200)
    with pytest.raises(InvalidOption, match="one cluster"):
        mirror(spark, **{**options, "target": broker.name_server})


@pytest.mark.nightly
@pytest.mark.parametrize(("idempotent", "twice"), [(False, 20), (True, 0)])
def test_of_a_batch_that_spark_repeats_an_idempotent_mirror_copies_what_is_missing(
    idempotent: bool,
    twice: int,
    spark: SparkSession,
    broker: RunningBroker,
    topic: str,
    send: Any,
    tmp_path: Path,
) -> None:
    """As after a crash between the last message of a batch and Spark's note that it is done."""
    with our_broker(tmp_path / "other") as other:
        state, stop = tmp_path / "state", Stop()

        def copy() -> Any:
            return mirror(
                spark,
                source=broker.name_server,
                target=other.name_server,
                topics=[topic],
                state=state,
                stop=stop,
                say=lambda _: None,
                idempotent=idempotent,
            )

        send(60)
        assert copy().written == 60
        send(20, 60)
        assert copy().written == 20
        (state / "commits" / str(last_batch(state))).unlink()
        send(5, 80)
        copy()
        copied = content(table(spark, other, topic))
        assert sum(copied.values()) == 85 + twice
        assert copied.keys() == content(table(spark, broker, topic)).keys()


@pytest.mark.nightly
def test_an_idempotent_mirror_that_was_stopped_in_a_batch_goes_on(
    spark: SparkSession, broker: RunningBroker, topic: str, send: Any, tmp_path: Path
) -> None:
    send(2000)
    with our_broker(tmp_path / "other") as other:
        runs = 0
        while True:
            stop = Stop()

            def ask(_: str, stop: Stop = stop) -> None:
                stop.ask()

            summary = mirror(
                spark,
                source=broker.name_server,
                target=other.name_server,
                topics=[topic],
                state=tmp_path / "state",
                stop=stop,
                say=ask,
                idempotent=True,
                max_rows=400,
            )
            runs += 1
            if not summary.figures["lag"]:
                break
        assert runs > 1
        assert content(table(spark, other, topic)) == content(table(spark, broker, topic))
        assert all(
            numbers == sorted(numbers) for numbers in order(table(spark, other, topic)).values()
        )


def test_reconcile_finds_what_is_missing_extra_and_different(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    with ogive.Producer(broker.name_server) as producer:
        for key in ("a", "b", "c", "d"):
            producer.send(topic, b"body " + key.encode(), keys=key)
        producer.send(topic, b"nobody's")
        producer.send(topic + "_2", b"body a", keys="a")
        producer.send(topic + "_2", b"another b", keys="b")
        producer.send(topic + "_2", b"body c", keys="c")
        producer.send(topic + "_2", b"body c", keys="c")
        producer.send(topic + "_2", b"body e", keys="e")
        producer.send(topic, b"body f", keys="f")
        producer.send(topic, b"unread", keys="f")
        producer.send(topic + "_2", b"body f", keys="f")
    wait_until_shown(broker.name_server, topic, 7)
    wait_until_shown(broker.name_server, topic + "_2", 6)
    out = tmp_path / "differences"
    tried = reconcile(
        spark,
        left=topic,
        right=topic + "_2",
        name_server=broker.name_server,
        out=out,
        say=lambda _: None,
        dry_run=True,
    )
    assert (tried.read, tried.written, tried.figures, out.exists()) == (13, 0, {}, False)
    found = reconcile(
        spark,
        left=topic,
        right=topic + "_2",
        name_server=broker.name_server,
        out=out,
        say=lambda _: None,
        body="if(body = binary('unread'), null, body)",
    )
    assert found.figures == {
        "keys": {"equal": 1, "missing": 1, "extra": 1, "different": 3},
        "same": False,
    }
    assert dict(found.skipped) == {"without a key": 1}
    verdicts = {row.key: row.verdict for row in spark.read.parquet(str(out)).collect()}
    assert verdicts == {
        "b": "different",
        "c": "different",
        "d": "missing",
        "e": "extra",
        "f": "different",
    }
    assert positions(tmp_path / "nothing") == {}


# --- trace report ---------------------------------------------------------------------------------


def test_a_trace_report_names_groups_and_queues(
    spark: SparkSession, broker: RunningBroker, topic: str, group: str, tmp_path: Path
) -> None:
    seen: list[str] = []

    @ogive.listener(topic, group=group, start="earliest")
    def note(message: ogive.MessageExt) -> None:
        seen.append(message.id)

    config = ogive.ConsumerConfig(trace=True)
    with ogive.Producer(broker.name_server, config=ogive.ProducerConfig(trace=True)) as producer:
        for i in range(20):
            producer.send(topic, b"%d" % i)
        with ogive.PushConsumer(note, name_server=broker.name_server, config=config):
            assert wait_for(lambda: len(seen), 20) == 20
    page = tmp_path / "out" / "traces.html"
    tried = trace_report(
        spark, name_server=broker.name_server, to=page, say=lambda _: None, dry_run=True
    )
    assert (tried.read > 0, tried.written, page.exists()) == (True, 0, False)
    summary = trace_report(spark, name_server=broker.name_server, to=page, say=lambda _: None)
    report = summary.figures["report"]
    ours = [
        row for row in report["Delivery by group and topic"] if row["name"] == f"{group} · {topic}"
    ]
    assert [(row["count"], row["failed"]) for row in ours] == [(20, 0)]
    assert (
        sum(
            row["count"]
            for row in report["Delivery by group and queue"]
            if f"{group} · {topic}/" in row["name"]
        )
        == 20
    )
    assert [row["count"] for row in report["Sends by topic"] if row["name"] == topic] == [20]
    html = page.read_text("utf-8")
    assert f"{group} · {topic}" in html
    assert "<polyline" in html
    assert "http" not in html


def test_a_trace_report_passes_over_what_no_client_of_ours_writes(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """Times in other units, bytes that are no text, and topics that are gone."""

    def record(at: object) -> str:
        sent = [
            "Pub",
            str(at),
            "r",
            "g",
            "Gone",
            f"id{at}",
            "",
            "k",
            "s",
            "10",
            "5",
            "0",
            "o",
            "true",
            "h",
        ]
        begun = ["SubBefore", str(at), "r", "listeners", "request", f"id{at}", "0", "k"]
        return "\x01".join(sent) + "\x02" + "\x01".join(begun) + "\x02"

    now_ns = time.time_ns()
    with ogive.Producer(broker.name_server) as producer:
        for at in (now_ns // 1_000_000, now_ns // 1000, now_ns, -5, 2**63 - 1, -(2**63), "x"):
            producer.send(topic, record(at).encode())
        producer.send(topic, b"Pub\x01\xc3\x28\x02")
    page = tmp_path / "traces.html"
    summary = trace_report(
        spark, name_server=broker.name_server, to=page, say=lambda _: None, trace_topic=topic
    )
    report = summary.figures["report"]
    assert [(row["name"], row["count"]) for row in report["Sends by topic"]] == [("Gone", 7)]
    assert [(row["name"], row["count"]) for row in report["Delivery by group and topic"]] == [
        ("listeners \u00b7 Gone", 7)
    ]
    assert "the queues of Gone are not known: the topic cannot be read" in summary.notes
