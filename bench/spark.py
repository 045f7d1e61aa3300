"""ogive's Spark source and sink beside Spark's own Kafka source and sink: one session, the same rows, both brokers on this machine.

    python -m bench.spark             # ours on our broker and on Apache's, Kafka's; 100 B and 1 KiB
    python -m bench.spark --quick     # a tenth of the rows: to see that it runs
    python -m bench.spark --only ogive

Figures are medians of three, after a warm-up. "Same columns" are those of Kafka's source: key, body, topic, queue, offset, timestamp.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import ogive.spark
from bench.kafka import CONNECTOR, jars, kafka
from bench.peers import running
from ogive.model import MessageQueue
from ogive.spark.decode import RecordDecoder
from ogive.spark.ranges import QueueRange
from ogive.spark.rpc import cluster
from ogive.spark.schema import MESSAGE_COLUMNS, arrow_schema, only
from tests.peers import RunningBroker
from tests.topics import Wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZES: Final = {"100 B": (100, 1_000_000), "1 KiB": (1024, 300_000)}
SAME: Final = "keys string, body binary, topic string, queueId int, queueOffset bigint, storeTimestamp timestamp"
REPEATS: Final = 3
PEERS: Final = ("ogive", "apache", "kafka")

Rates = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--only", choices=PEERS, help="one peer only")
    options = parser.parse_args()
    peers = [options.only] if options.only else PEERS
    config = {"spark.ui.showConsoleProgress": "false"}
    if "kafka" in peers:
        config["spark.jars"] = ",".join(map(str, jars(CONNECTOR, transitive=False)))
    spark = ogive.spark.session("bench", master="local[2]", memory="1g", config=config)
    spark.sparkContext.setLogLevel("ERROR")
    directory = Path(tempfile.mkdtemp(prefix="ogive-bench-"))
    figures: dict[str, Rates] = {}
    try:
        for peer in peers:
            rates = figures[peer] = {}
            with _peer(peer, directory / peer) as address:
                for size, (body_bytes, rows) in SIZES.items():
                    measure(spark, peer, address, size, body_bytes, rows // (10 if options.quick else 1), directory, rates)
    finally:
        spark.stop()
        shutil.rmtree(directory)
    print_table(figures)
    return 0


@contextmanager
def _peer(peer: str, directory: Path) -> Iterator[RunningBroker | str]:
    if peer == "kafka":
        with kafka(directory) as (address, _):
            yield address
    else:
        with running(peer, directory, "async") as (broker, _):
            yield broker


def measure(
    spark: "SparkSession", peer: str, address: "RunningBroker | str", size: str, body_bytes: int, rows: int, directory: Path, rates: Rates
) -> None:
    """Everything on one broker with bodies of one size."""

    def note(name: str, seconds: float, count: int = rows) -> None:
        rates[f"{size}: {name}"] = count / seconds
        print(f"{peer:7} {size}: {name}: {count / seconds:,.0f} rows/s", flush=True)

    topic = f"Rows_{body_bytes}"
    frame = spark.range(rows).selectExpr(
        f"cast(rpad(cast(id as string), {body_bytes}, 'x') as binary) as body", "cast(id as string) as key"
    )
    if isinstance(address, str):
        send, readers, streams = _of_kafka(spark, frame, address, topic)
    else:
        send, readers, streams = _of_ogive(spark, frame, address, topic)
    note("sink", timed(send))
    for name, load in readers.items():
        note(name, repeated(partial(count, load)))
    for name, load in streams.items():
        note(name, repeated(partial(drain, load, directory)))
    if not isinstance(address, str):
        note_ceiling(address.name_server, topic, note)


Loads = dict[str, Callable[[], "DataFrame"]]


def _of_kafka(spark: "SparkSession", frame: "DataFrame", address: str, topic: str) -> tuple[Callable[[], object], Loads, Loads]:
    """What fills the topic, and what reads it as batches and streams."""
    server = {"kafka.bootstrap.servers": address}
    start = {**server, "subscribe": topic, "startingOffsets": "earliest"}
    send = frame.selectExpr("key", "body as value").write.format("kafka").options(**server, topic=topic).mode("append")
    limit = {"maxOffsetsPerTrigger": "1000000"}  # as ours by default
    return (
        send.save,
        {"batch, same columns": lambda: spark.read.format("kafka").options(**start).load()},
        {"stream, same columns": lambda: spark.readStream.format("kafka").options(**start, **limit).load()},
    )


def _of_ogive(spark: "SparkSession", frame: "DataFrame", broker: RunningBroker, topic: str) -> tuple[Callable[[], object], Loads, Loads]:
    server = {"nameServer": broker.name_server}
    wide = f"{topic}_64"
    for name, queues in ((topic, 2), (wide, 64)):
        Wire(broker).create(name, queues)
    rows = frame.selectExpr("key as keys", "body").write.format("rocketmq").options(**server).mode("append")
    rows.save(wide)

    def table(name: str, schema: str | None = None) -> "DataFrame":
        reader = spark.read.format("rocketmq").options(**server)
        return (reader.schema(schema) if schema else reader).load(name)

    stream = spark.readStream.format("rocketmq").options(**server, subscribe=topic, startingOffsets="earliest").schema(SAME)
    return (
        lambda: rows.save(topic),
        {
            "batch, same columns": lambda: table(topic, SAME),
            "batch, all columns": lambda: table(topic),
            "batch, same columns, 64 queues": lambda: table(wide, SAME),
        },
        {"stream, same columns": stream.load},
    )


def count(load: Callable[[], "DataFrame"]) -> None:
    """A batch, into nothing."""
    load().write.format("noop").mode("overwrite").save()


def drain(load: Callable[[], "DataFrame"], directory: Path) -> None:
    """A stream to its end, into nothing."""
    checkpoint = tempfile.mkdtemp(dir=directory)
    query = load().writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def note_ceiling(name_server: str, topic: str, note: Callable[[str, float, int], None]) -> None:
    """One core, without Spark: pulls alone, and decoding alone of answers that lie in memory."""
    here = cluster((name_server,))
    ranges = [QueueRange(queue, span.min_offset, span.max_offset) for queue, span in here.spans((topic,)).items()]
    rows = sum(map(len, ranges))
    answers: list[tuple[MessageQueue, bytes]] = []
    pulling = timed(lambda: answers.extend((covered.queue, body) for covered, body in here.read(ranges)))
    note("pulls alone, one process", pulling, rows)
    for name, columns in (("same columns", [part.split()[0] for part in SAME.split(", ")]), ("all columns", MESSAGE_COLUMNS.names)):
        decoder = RecordDecoder(arrow_schema(only(MESSAGE_COLUMNS, *columns)))

        def decode(decoder: RecordDecoder = decoder) -> None:
            for queue, body in answers:
                decoder.decode(body, queue)

        note(f"decoding alone, one core, {name}", repeated(decode), rows)


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def repeated(work: Callable[[], object]) -> float:
    work()  # warm
    return statistics.median(timed(work) for _ in range(REPEATS))


def print_table(figures: dict[str, Rates]) -> None:
    names = list(dict.fromkeys(name for rates in figures.values() for name in rates))
    print(f"\n| thousand rows/s | {' | '.join(figures)} | ogive to kafka |\n|---|{'---|' * (len(figures) + 1)}")
    for name in names:
        cells = [f"{rates[name] / 1000:,.0f}" if name in rates else "" for rates in figures.values()]
        ours, theirs = figures.get("ogive", {}).get(name), figures.get("kafka", {}).get(name.replace("all columns", "same columns"))
        ratio = f"{ours / theirs:.2f}" if ours and theirs else ""
        print(f"| {name} | {' | '.join(cells)} | {ratio} |")


if __name__ == "__main__":
    raise SystemExit(main())
