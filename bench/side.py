"""One side of the yardstick: a process that carries out loads on one release of ogive, in turns.

bench.yardstick starts it with the release on PYTHONPATH. It reads commands and writes answers, a
line of JSON each. It uses only the public interface of ogive, because the other side is an older
release.
"""

import json
import os
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import ogive
from bench import workloads as load
from bench.frames import SAME, count, drain, frame
from bench.processes import resident_mib
from ogive.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USER, SECRET = "yardstick", "yardstick-secret"
BACKLOG: Final = 400_000
SPARK_ROWS: Final = 300_000
SPARK_BYTES: Final = 100
LOADED: Final = 100_000
ATTEMPT_S: Final = 120.0

Turn = Callable[[float], dict[str, float]]
"""Carries out the load for about so many seconds. Returns the figure of each row that it fills."""


class Side:
    """The broker of the open load, and all that is kept from load to load."""

    def __init__(self, kept: ExitStack) -> None:
        self._kept = kept
        self.folder = Path(
            kept.enter_context(tempfile.TemporaryDirectory(prefix="ogive-yardstick-"))
        )
        self.broker = Broker()
        self.acl = False

    @cached_property
    def client(self) -> ogive.ClientConfig:
        """Settings of a client, with an administrator's credentials if the broker needs some."""
        credentials = ogive.Credentials(access_key=USER, secret_key=SECRET) if self.acl else None
        return ogive.ClientConfig(name_server=self.broker.name_server, credentials=credentials)

    @contextmanager
    def running(self, flush: Literal["sync", "async"], *, acl: bool) -> Iterator[None]:
        options: tuple[str, ...] = ()
        if acl:
            credentials = self.folder / "credentials.yml"
            credentials.write_text(f"accessKey: {USER}\nsecretKey: {SECRET}\n")
            credentials.chmod(0o600)
            options = ("--acl", "--credentials", str(credentials))
        with Broker(flush=flush, options=options) as self.broker:
            self.acl = acl
            self.__dict__.pop("client", None)
            yield

    def create_topic(self, topic: str, queues: int = 8) -> str:
        with ogive.Admin(client=self.client) as admin:
            admin.create_topic(topic, queues=queues)
        return topic

    @cached_property
    def spark(self) -> "SparkSession":
        import ogive.spark

        config = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
        spark = ogive.spark.session("yardstick", master="local[2]", memory="1g", config=config)
        self._kept.callback(spark.stop)
        ogive.spark.register(spark)
        return spark


@dataclass(frozen=True, slots=True)
class Load:
    """Work that fills *rows* of the table: *seconds* a turn, after *warm_up* turns that do not
    count.
    """

    rows: tuple[str, ...]
    open: Callable[[Side], Any]
    """Returns a context manager that yields a Turn."""
    unit: str = "messages/s"
    seconds: float = 2.0
    warm_up: int = 1
    flush: Literal["sync", "async"] = "async"
    acl: bool = False


def _theirs(
    name: str,
    program: str,
    *options: str,
    flush: Literal["sync", "async"] = "async",
    acl: bool = False,
) -> Load:
    @contextmanager
    def opened(side: Side) -> Iterator[Turn]:
        topic = side.create_topic("Theirs")
        signed = ("-a", "true", "-ak", USER, "-sk", SECRET) if acl else ()
        with load.their_sends_in_turns(
            side.client, side.broker.pid, topic, program, *options, *signed
        ) as turn:
            yield lambda seconds: {name: turn(seconds).per_s}

    return Load((name,), opened, warm_up=4, flush=flush, acl=acl)


def _pipelined(name: str, body: bytes, flush: Literal["sync", "async"]) -> Load:
    @contextmanager
    def opened(side: Side) -> Iterator[Turn]:
        topic = side.create_topic("Ours")
        yield lambda seconds: {
            name: load.our_producer_for(
                side.broker.name_server, side.broker.pid, topic, seconds, body
            ).per_s
        }

    return Load((name,), opened, flush=flush)


def _blocking(name: str, flush: Literal["sync", "async"]) -> Load:
    @contextmanager
    def opened(side: Side) -> Iterator[Turn]:
        topic = side.create_topic("Single")
        with ogive.Producer(side.broker.name_server) as producer:
            yield lambda seconds: {
                name: 1000 / statistics.mean(load.send_for(producer, topic, seconds))
            }

    return Load((name,), opened, flush=flush)


def _backlog(name: str, body: bytes, *, theirs: bool = False, orderly: bool = False) -> Load:
    @contextmanager
    def opened(side: Side) -> Iterator[Turn]:
        topic, broker = side.create_topic("Backlog"), side.broker
        load.our_producer(broker.name_server, broker.pid, topic, count=BACKLOG - 1, body=body)
        groups = iter(range(10_000))

        def turn(seconds: float) -> dict[str, float]:
            group = f"g{next(groups)}"
            if theirs:
                rate = load.their_consumer(
                    broker.name_server, broker.pid, topic, group, count=BACKLOG, limit_s=ATTEMPT_S
                )
            else:
                rate = load.our_consumer(
                    broker.name_server,
                    broker.pid,
                    topic,
                    group,
                    count=BACKLOG,
                    limit_s=ATTEMPT_S,
                    orderly=orderly,
                )
            if rate.failed > 0:
                raise RuntimeError(
                    f"{rate.failed} of {BACKLOG} messages did not arrive within {ATTEMPT_S:.0f} s"
                )
            return {name: rate.per_s}

        yield turn

    return Load((name,), opened)


def _spark(name: str, way: Literal["sink", "source", "stream"]) -> Load:
    @contextmanager
    def opened(side: Side) -> Iterator[Turn]:
        spark, topic = side.spark, side.create_topic("Rows", 2)
        server = {"nameServer": side.broker.name_server}

        def write() -> None:
            rows = frame(spark, SPARK_BYTES, SPARK_ROWS).selectExpr("key as keys", "body")
            rows.write.format("rocketmq").options(**server).mode("append").save(topic)

        def read() -> None:
            count(lambda: spark.read.format("rocketmq").options(**server).schema(SAME).load(topic))

        def stream() -> None:
            options = {**server, "subscribe": topic, "startingOffsets": "earliest"}
            drain(
                side.folder,
                lambda: spark.readStream.format("rocketmq").options(**options).schema(SAME).load(),
            )

        work = {"sink": write, "source": read, "stream": stream}[way]
        if way != "sink":
            write()

        def turn(seconds: float) -> dict[str, float]:
            began = time.perf_counter()
            work()
            return {name: SPARK_ROWS / (time.perf_counter() - began)}

        yield turn

    return Load((name,), opened, unit="rows/s", warm_up=2)


START, IDLE, LOADED_ROW = (
    "start until ready (s)",
    "memory of an idle broker (MiB)",
    f"memory after {LOADED:,} sends, all consumed (MiB)",
)


@contextmanager
def _broker(side: Side) -> Iterator[Turn]:
    def turn(seconds: float) -> dict[str, float]:
        began = time.perf_counter()
        with Broker() as broker:
            figures = {START: time.perf_counter() - began}
            with ogive.Admin(broker.name_server) as admin:
                admin.create_topic("Loaded", queues=8)
            figures[IDLE] = resident_mib(broker.pid)
            load.our_producer(broker.name_server, broker.pid, "Loaded", count=LOADED - 1)
            load.our_consumer(
                broker.name_server, broker.pid, "Loaded", "g", count=LOADED, limit_s=ATTEMPT_S
            )
            return figures | {LOADED_ROW: resident_mib(broker.pid)}

    yield turn


PRODUCER = "their Producer, 64 threads"
LOADS: Final = (
    *(
        _theirs(
            f"{PRODUCER}, {size} B, {flush} flush{', --acl' if acl else ''}",
            "Producer",
            "-w",
            "64",
            "-s",
            size,
            flush=flush,
            acl=acl,
        )
        for flush in ("sync", "async")
        for acl in (False, True)
        for size in ("1024", "128")
    ),
    _theirs(
        "their BatchProducer, 10 threads, 16 of 1 KiB",
        "BatchProducer",
        "-w",
        "10",
        "-s",
        "1024",
        "-b",
        "16",
    ),
    _theirs(
        "their TransactionProducer, 32 threads, 1 KiB",
        "TransactionProducer",
        "-w",
        "32",
        "-s",
        "1024",
    ),
    *(_blocking(f"our blocking sends, 1 KiB, {flush} flush", flush) for flush in ("sync", "async")),
    _pipelined("our pipelined sends, 1 KiB, sync flush", load.BODY, "sync"),
    _pipelined("our pipelined sends, 1 KiB, async flush", load.BODY, "async"),
    _pipelined("our pipelined sends, 128 B, async flush", load.SMALL, "async"),
    _backlog("our consumer, backlog of 1 KiB", load.BODY),
    _backlog("our consumer, backlog of 128 B", load.SMALL),
    _backlog("our orderly consumer, backlog of 128 B", load.SMALL, orderly=True),
    _backlog("their consumer, backlog of 128 B", load.SMALL, theirs=True),
    _spark("Spark sink, 100 B", "sink"),
    _spark("Spark source, batch of 100 B", "source"),
    _spark("Spark source, stream of 100 B", "stream"),
    Load((START, IDLE, LOADED_ROW), _broker, unit="", seconds=0.0),
)


def main() -> int:
    """Carry out commands until the end of the input.

    Answers go to standard output; all that programs print goes to standard error.
    """
    # Ctrl-C is for bench.yardstick, which then closes the input
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(**what: object) -> None:
        print(json.dumps(what), file=answers, flush=True)

    from ogive.native import build

    with ExitStack() as kept:
        side = Side(kept)
        answer(ogive=str(Path(ogive.__file__).parent), build=build)
        opened = ExitStack()
        turn: Turn | None = None
        kept.callback(opened.close)
        for line in sys.stdin:
            command, *values = json.loads(line)
            try:
                if command == "open":
                    wanted = LOADS[values[0]]
                    opened.enter_context(side.running(wanted.flush, acl=wanted.acl))
                    turn = opened.enter_context(wanted.open(side))
                    answer()
                elif command == "turn":
                    assert turn is not None
                    answer(figures=turn(values[0]))
                else:
                    opened.close()
                    answer()
            # Spark's, a broker's or a program's: the other rows do not depend on it
            except Exception as exc:  # noqa: BLE001
                traceback.print_exc()
                answer(error=f"{type(exc).__name__}: {' '.join(str(exc).split())[:300]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
