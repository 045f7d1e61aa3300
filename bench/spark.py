"""ogive's Spark source and sink beside Spark's own Kafka source and sink: one session, the same
rows, both brokers on this machine.

    python -m bench.spark    # ours on our broker and Apache's, Kafka's; 100 B, 1 KiB; 12 minutes
    python -m bench.spark --quick     # a tenth of the rows: to see that it runs
    python -m bench.spark --only ogive
    python -m bench.spark --write     # and the table into docs/performance.md

All brokers run at once, and each measurement goes from one to the next, round after round: what
warms Spark's code, or slows the machine for a while, does so for all of them. The first round is
warm-up; figures are medians of three more. The sinks, which fill the topics, write once, after a
twentieth of the rows as warm-up. "Same columns" are those of Kafka's source: key, body, topic,
queue, offset, timestamp. Each figure is printed when it is there. One that fails, or takes too
long, is left out of the table and named below it, and the others go on; when --minutes are over the
rest is left out. The exit status is 1 then. What Spark says is in a file, whose end is shown when
something fails.
"""

import argparse
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ogive
import ogive.spark
from bench.brokers import running
from bench.frames import SAME, Load, count, drain, frame
from bench.kafka import CONNECTOR, jars, kafka
from ogive.native import build
from ogive.spark.cluster import cluster
from ogive.spark.compat import arrow_schema
from ogive.spark.decode import RecordDecoder
from ogive.spark.ranges import QueueRange
from ogive.spark.reader import joined
from ogive.spark.schema import MESSAGE_COLUMNS, only
from tests.peers import RunningBroker
from tests.processes import tail
from tests.topics import Wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZES: Final = {"100 B": (100, 1_000_000), "1 KiB": (1024, 300_000)}
REPEATS: Final = 3
# in the order of what the run is for
PEERS: Final = ("ogive", "kafka", "apache")
# one run of one measurement
MOST_S: Final = 120.0
# after so long a figure is the median of the runs that it has
ENOUGH_S: Final = 20.0
LATENCY: Final = "a batch of a stream, 1,000 messages/s (ms)"
LATENCY_S: Final = 15.0
DOCS: Final = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- spark: written by python -m bench.spark --write -->", "<!-- end of spark -->"

# of each broker, held in memory for the measurement of decoding alone
DECODED_ROWS: Final = 100_000
# the part of the rows that is sent before
WARM_UP: Final = 20

Figures = dict[str, float]
Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Ways:
    """What fills the topics of one broker, after *warm_up*, and what reads them as batches and
    streams.
    """

    warm_up: Work
    sinks: Mapping[str, Work]
    batches: Mapping[str, Load]
    streams: Mapping[str, Load]


class Stuck(Exception):
    """A measurement took too long."""


class Over(Exception):
    """The time of the whole run is over."""


class Book:
    """What was measured so far, of each peer, what was not and why, and how long the run may still
    take.
    """

    def __init__(self, minutes: float) -> None:
        self.figures: dict[str, Figures] = {}
        self.faults: list[str] = []
        # whether something that was left alone may still run
        self.stuck = False
        # what each measurement's thread does first
        self.enter: Callable[[], object] = lambda: None
        self._began = time.monotonic()
        self._deadline = self._began + 60 * minutes
        self._peer = ""

    def begin(self, peer: str) -> None:
        self.turn_to(peer)
        self.figures[peer] = {}
        self.say("starting the broker")

    def turn_to(self, peer: str) -> None:
        """What follows is about *peer*."""
        self._peer = peer

    def say(self, text: str) -> None:
        passed = int(time.monotonic() - self._began)
        print(f"{passed // 60:2}:{passed % 60:02} {self._peer:7} {text}", flush=True)

    def note(self, name: str, value: float) -> None:
        self.figures[self._peer][name] = value
        self.say(f"{name}: {value:,.0f}{'' if name.endswith(')') else ' rows/s'}")

    def fail(self, name: str, fault: BaseException) -> None:
        self.stuck |= isinstance(fault, Stuck | Over)
        # the first line may be Py4J's alone
        said = " ".join(str(fault).split("\n")[:2]).strip()[:200]
        self.faults.append(f"{self._peer}, {name}: {said or type(fault).__name__}")
        self.say(f"{name}: FAILED")
        print("".join(traceback.format_exception(fault)), file=sys.stderr, flush=True)

    def tried(self, name: str, measure: Callable[[], object]) -> bool:
        """Whether *measure* came to its end; its failure is noted, and is not the end of the run.

        Raises Over.
        """
        try:
            measure()
        except Over:
            raise
        except (Exception, SystemExit) as exc:  # noqa: BLE001
            # Spark's, a broker's, Maven's or ours: the others do not depend on it
            self.fail(name, exc)
            return False
        return True

    def timed(self, name: str, work: Callable[[], object]) -> float:
        """The seconds that *work* took, in a thread of its own: one that hangs is left alone.

        Raises Stuck, Over, or what *work* raises.
        """
        left = min(MOST_S, self._deadline - time.monotonic())
        raised: list[BaseException] = []

        def run() -> None:
            try:
                self.enter()
                work()
            except BaseException as exc:  # noqa: BLE001  # handed on below
                raised.append(exc)

        thread = threading.Thread(target=run, daemon=True)
        started = time.perf_counter()
        thread.start()
        thread.join(max(left, 0.0))
        if thread.is_alive():
            if left < MOST_S:
                raise Over(f"{name}: the time of the run is over")
            raise Stuck(f"{name}: not done after {MOST_S:.0f} s")
        if raised:
            raise raised[0]
        return time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--only", choices=PEERS, help="one peer only")
    parser.add_argument("--minutes", type=float, default=12.0, help="of the whole run; default 12")
    parser.add_argument(
        "--write",
        action="store_true",
        help="the table into docs/performance.md, and what is missing in it",
    )
    options = parser.parse_args()
    if options.write and (options.quick or options.only):
        parser.error("--write needs the whole run")
    book = Book(options.minutes)
    directory = Path(tempfile.mkdtemp(prefix="ogive-bench-"))
    log = directory / "spark.log"
    try:
        run(
            book,
            [options.only] if options.only else PEERS,
            10 if options.quick else 1,
            directory,
            log,
        )
    except Exception as exc:  # noqa: BLE001  # whatever it was: what is measured is not lost
        book.fail("the rest", exc)
    finally:
        if book.faults:
            print(f"\n{tail(log)}", file=sys.stderr)
        shutil.rmtree(directory, ignore_errors=True)
    text = report(book)
    print(f"\n{text}", flush=True)
    if options.write and any(book.figures.values()):
        write(text)
    return 1 if book.faults else 0


def run(
    book: Book, peers: "tuple[str, ...] | list[str]", divisor: int, directory: Path, log: Path
) -> None:
    book.say(f"ogive {build}; starting Spark")
    spark = start_spark("kafka" in peers, log)
    book.enter = partial(activate, spark)
    # a session that this process has started has one
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    ended = False
    try:
        with ExitStack() as stack:
            brokers: dict[str, RunningBroker | str] = {}
            for peer in peers:
                book.begin(peer)
                book.tried("everything", partial(start, brokers, stack, peer, directory))
            for size, (body_bytes, rows) in SIZES.items():
                measure(book, spark, brokers, size, body_bytes, rows // divisor, directory)
        ended = not book.stuck
    finally:
        if ended:
            spark.stop()
        else:
            # it may hang; its Python processes end with it
            os.kill(jvm, signal.SIGKILL)


def start(
    brokers: "dict[str, RunningBroker | str]", stack: ExitStack, peer: str, directory: Path
) -> None:
    brokers[peer] = stack.enter_context(_peer(peer, directory / peer))


def start_spark(with_kafka: bool, log: Path) -> "SparkSession":
    """The JVM and all that it starts speak into *log*."""
    config = {"spark.ui.showConsoleProgress": "false"}
    if with_kafka:
        config["spark.jars"] = ",".join(map(str, jars(CONNECTOR, transitive=False)))
    ours = os.dup(2)
    with log.open("w") as out:
        os.dup2(out.fileno(), 2)
        try:
            spark = ogive.spark.session("bench", master="local[2]", memory="1g", config=config)
        finally:
            os.dup2(ours, 2)
            os.close(ours)
    spark.sparkContext.setLogLevel("ERROR")
    # on a busy machine Spark's own search, which has 10 s and is made once, may find nothing
    ogive.spark.register(spark)
    return spark


def activate(spark: "SparkSession") -> None:
    """Spark looks for data sources in Python only in the session that is active in the thread, and
    a new thread has none.
    """
    session: Any = spark
    session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


@contextmanager
def _peer(peer: str, directory: Path) -> Iterator[RunningBroker | str]:
    if peer == "kafka":
        with kafka(directory) as (address, _):
            yield address
    else:
        with running(peer, directory, "async") as (broker, _):
            yield broker


def measure(
    book: Book,
    spark: "SparkSession",
    brokers: "Mapping[str, RunningBroker | str]",
    size: str,
    body_bytes: int,
    rows: int,
    directory: Path,
) -> None:
    """Everything with bodies of one size."""
    topic = f"Rows_{body_bytes}"
    ways: dict[str, Ways] = {}

    def meet(peer: str) -> None:
        of_peer: Any = _of_kafka if isinstance(brokers[peer], str) else _of_ogive
        ways[peer] = of_peer(spark, partial(frame, spark, body_bytes), rows, brokers[peer], topic)

    for peer in brokers:
        book.turn_to(peer)
        book.tried(size, partial(meet, peer))
    # else figures count rows that are not there
    filled = [peer for peer in ways if fill(book, spark, peer, ways[peer], size, rows)]
    loads: dict[str, Mapping[str, Work]] = {
        peer: {name: partial(count, load) for name, load in ways[peer].batches.items()}
        | {name: partial(drain, directory, load) for name, load in ways[peer].streams.items()}
        for peer in filled
    }
    for name in dict.fromkeys(name for named in loads.values() for name in named):
        works = {peer: named[name] for peer, named in loads.items() if name in named}
        in_rounds(book, spark, f"{size}: {name}", dict.fromkeys(works, rows), works)
    ours = {peer: address for peer in filled if not isinstance(address := brokers[peer], str)}
    book.tried(f"{size}: alone", partial(measure_alone, book, spark, ours, topic, size))
    for peer in filled if body_bytes == SIZES["100 B"][0] else ():
        address = brokers[peer]
        sending = (
            _kafka_sender(spark, address, topic)
            if isinstance(address, str)
            else _ogive_sender(address, topic)
        )
        book.turn_to(peer)
        stream = next(iter(ways[peer].streams.values()))
        spark_tried(book, spark, LATENCY, partial(note_latency, book, stream, sending, directory))


def fill(book: Book, spark: "SparkSession", peer: str, ways: Ways, size: str, rows: int) -> bool:
    """Note what the sinks of *peer* do, each once; whether all of them came to their end."""
    book.turn_to(peer)
    steps = [("warm-up of the sink", partial(book.timed, "warm-up", ways.warm_up))] + [
        (f"{size}: {name}", partial(note_rate, book, f"{size}: {name}", rows, sink))
        for name, sink in ways.sinks.items()
    ]
    outcomes = [spark_tried(book, spark, name, step) for name, step in steps]
    return all(outcomes)


def note_rate(book: Book, name: str, rows: int, work: Work) -> None:
    book.note(name, rows / book.timed(name, work))


def in_rounds(
    book: Book, spark: "SparkSession", name: str, rows: Mapping[str, int], works: Mapping[str, Work]
) -> None:
    """Note the rate of each peer's work, which is about so many *rows*: they have their turns,
    round after round. Raises Over.
    """
    runs: dict[str, list[float]] = {peer: [] for peer in works}

    def run(peer: str) -> None:
        runs[peer].append(book.timed(name, works[peer]))

    try:
        for _ in range(1 + REPEATS):
            for peer in [
                peer for peer, times in runs.items() if len(times) < 2 or sum(times) < ENOUGH_S
            ]:
                book.turn_to(peer)
                if not spark_tried(book, spark, name, partial(run, peer)):
                    del runs[peer]
    finally:
        # also when the time of the run is over
        for peer, times in runs.items():
            if len(times) > 1:
                book.turn_to(peer)
                book.note(name, rows[peer] / statistics.median(times[1:]))


def spark_tried(book: Book, spark: "SparkSession", name: str, measure: Work) -> bool:
    """As Book.tried.

    What Spark may still do for a measurement that hangs is ended, so that it does not slow the
    next. Raises Over.
    """
    if book.tried(name, measure):
        return True

    def end() -> None:
        for query in spark.streams.active:
            query.stop()
        spark.sparkContext.cancelAllJobs()

    try:
        book.timed("ending it", end)
    except Stuck as exc:
        raise Over(f"{name}: Spark does not answer any more") from exc
    return False


Frame = Callable[[int], "DataFrame"]
"""So many rows."""


def _of_kafka(spark: "SparkSession", frame: Frame, rows: int, address: str, topic: str) -> Ways:
    server = {"kafka.bootstrap.servers": address}
    start = {**server, "subscribe": topic, "startingOffsets": "earliest"}
    # as ours by default
    limit = {"maxOffsetsPerTrigger": "1000000"}

    def send(topic: str, rows: int) -> None:
        frame(rows).selectExpr("key", "body as value").write.format("kafka").options(
            **server, topic=topic
        ).mode("append").save()

    return Ways(
        partial(send, f"{topic}_warm", rows // WARM_UP),
        {"sink": partial(send, topic, rows)},
        {"batch, same columns": lambda: spark.read.format("kafka").options(**start).load()},
        {
            "stream, same columns": lambda: (
                spark.readStream.format("kafka").options(**start, **limit).load()
            )
        },
    )


def _of_ogive(
    spark: "SparkSession", frame: Frame, rows: int, broker: RunningBroker, topic: str
) -> Ways:
    server = {"nameServer": broker.name_server}
    wide, warm = f"{topic}_64", f"{topic}_warm"
    for name, queues in ((topic, 2), (wide, 64), (warm, 2)):
        Wire(broker).create(name, queues)

    def send(topic: str, rows: int) -> None:
        frame(rows).selectExpr("key as keys", "body").write.format("rocketmq").options(
            **server
        ).mode("append").save(topic)

    def table(name: str, schema: str | None = None) -> "DataFrame":
        reader = spark.read.format("rocketmq").options(**server)
        return (reader.schema(schema) if schema else reader).load(name)

    stream = (
        spark.readStream.format("rocketmq")
        .options(**server, subscribe=topic, startingOffsets="earliest")
        .schema(SAME)
    )
    return Ways(
        partial(send, warm, rows // WARM_UP),
        {"sink": partial(send, topic, rows), "sink, 64 queues": partial(send, wide, rows)},
        {
            "batch, same columns": lambda: table(topic, SAME),
            "batch, all columns": lambda: table(topic),
            "batch, same columns, 64 queues": lambda: table(wide, SAME),
        },
        {"stream, same columns": stream.load},
    )


def latency_ms(load: Load, sending: Callable[[threading.Event], None], directory: Path) -> float:
    """How long a micro-batch takes, from planning to commit, while messages come steadily; the
    first third of the time is warm-up.
    """
    checkpoint = tempfile.mkdtemp(dir=directory)
    query = (
        load()
        .writeStream.format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="0 seconds")
        .start()
    )
    ended = threading.Event()
    sender = ThreadPoolExecutor(1)
    try:
        # the rows that are there
        query.processAllAvailable()
        sent = sender.submit(sending, ended)
        time.sleep(LATENCY_S / 3)
        before = {progress["batchId"] for progress in query.recentProgress}
        time.sleep(LATENCY_S * 2 / 3)
        progress = [
            one
            for one in query.recentProgress
            if one["batchId"] not in before and one["numInputRows"]
        ]
    finally:
        ended.set()
        query.stop()
        sender.shutdown(wait=False)
    sent.result()
    if not progress:
        raise Stuck(f"{LATENCY}: no batch came to its end in {LATENCY_S * 2 / 3:.0f} s")
    return statistics.median(float(one["durationMs"]["triggerExecution"]) for one in progress)


def note_latency(
    book: Book, load: Load, sending: Callable[[threading.Event], None], directory: Path
) -> None:
    found: list[float] = []
    book.timed(LATENCY, lambda: found.append(latency_ms(load, sending, directory)))
    book.note(LATENCY, found[0])


def _steadily(send: Callable[[], object], ended: threading.Event) -> None:
    """1,000 times a second, ten at a time."""
    due = time.monotonic()
    while not ended.wait(max(0.0, due - time.monotonic())):
        for _ in range(10):
            send()
        due += 0.01


def _ogive_sender(broker: RunningBroker, topic: str) -> Callable[[threading.Event], None]:
    def run(ended: threading.Event) -> None:
        with ogive.Producer(broker.name_server) as producer:
            _steadily(lambda: producer.submit(topic, b"x" * 100), ended)

    return run


def _kafka_sender(
    spark: "SparkSession", server: str, topic: str
) -> Callable[[threading.Event], None]:
    """Kafka's own producer, in the driver's JVM: a call from here is about what a submit of ours
    costs.
    """

    def run(ended: threading.Event) -> None:
        jvm: Any = spark.sparkContext._jvm
        settings = jvm.java.util.HashMap()
        settings["bootstrap.servers"] = server
        settings["key.serializer"] = settings["value.serializer"] = (
            "org.apache.kafka.common.serialization.ByteArraySerializer"
        )
        producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(settings)
        record = jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, bytearray(b"x" * 100))
        try:
            _steadily(lambda: producer.send(record), ended)
        finally:
            producer.close()

    return run


def measure_alone(
    book: Book, spark: "SparkSession", brokers: Mapping[str, RunningBroker], topic: str, size: str
) -> None:
    """One process, without Spark: pulls alone, and decoding alone of answers that lie in memory,
    joined as in a task.
    """
    ranges = {
        peer: [
            QueueRange(queue, span.min_offset, span.max_offset)
            for queue, span in cluster((broker.name_server,)).spans((topic,)).items()
        ]
        for peer, broker in brokers.items()
    }

    def pull(peer: str) -> Iterator[tuple[QueueRange, bytes]]:
        return joined(cluster((brokers[peer].name_server,)).read(ranges[peer]))

    def drop(peer: str) -> None:
        for _ in pull(peer):
            pass

    rows = {peer: sum(map(len, wanted)) for peer, wanted in ranges.items()}
    in_rounds(
        book,
        spark,
        f"{size}: pulls alone, one process",
        rows,
        {peer: partial(drop, peer) for peer in brokers},
    )
    answers = {peer: list(first_rows(pull(peer), DECODED_ROWS)) for peer in brokers}
    held = {peer: sum(len(covered) for covered, _ in kept) for peer, kept in answers.items()}
    for name, columns in (
        ("same columns", [part.split()[0] for part in SAME.split(", ")]),
        ("all columns", MESSAGE_COLUMNS.names),
    ):
        decoder = RecordDecoder(arrow_schema(only(MESSAGE_COLUMNS, *columns)))
        works = {peer: partial(decode_all, decoder, kept) for peer, kept in answers.items()}
        in_rounds(book, spark, f"{size}: decoding alone, one core, {name}", held, works)


def first_rows(
    answers: Iterator[tuple[QueueRange, bytes]], rows: int
) -> Iterator[tuple[QueueRange, bytes]]:
    for covered, body in answers:
        yield covered, body
        rows -= len(covered)
        if rows <= 0:
            return


def decode_all(decoder: RecordDecoder, answers: list[tuple[QueueRange, bytes]]) -> None:
    for covered, body in answers:
        for _ in decoder.batches(body, covered.queue):
            pass


def table(figures: dict[str, Figures]) -> str:
    """Thousands of rows a second, but where a name says its unit; Kafka has one source, beside
    which both of ours stand.
    """
    names = list(dict.fromkeys(name for rates in figures.values() for name in rates))
    lines = [
        f"| thousand rows/s | {' | '.join(figures)} | ogive to kafka |",
        "|---" * (len(figures) + 2) + "|",
    ]
    for name in names:
        unit = 1 if name.endswith(")") else 1000
        cells = [
            f"{rates[name] / unit:,.0f}" if name in rates else "" for rates in figures.values()
        ]
        ours, theirs = (
            figures.get("ogive", {}).get(name),
            figures.get("kafka", {}).get(name.replace("all columns", "same columns")),
        )
        ratio = f"{ours / theirs:.2f}" if ours and theirs else ""
        lines.append(f"| {name} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines)


def report(book: Book) -> str:
    """The table, and what is not in it."""
    missing = "".join(f"\n- {fault}" for fault in book.faults)
    return table(book.figures) + (f"\n\nNot measured:\n{missing}" if missing else "")


def write(text: str) -> None:
    """The table between the two marks in the docs."""
    page = DOCS.read_text("utf-8")
    head, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{DOCS}: the marks {BEGIN} and {END} are missing")
    DOCS.write_text(
        f"{head}{BEGIN}\n\nRun of {datetime.now(UTC):%Y-%m-%d}:\n\n{text}\n\n{END}{after}", "utf-8"
    )


if __name__ == "__main__":
    raise SystemExit(main())
