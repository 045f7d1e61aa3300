"""The loads: their benchmark programs, our producer, our consumer. Each returns plain numbers."""

import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import ogive
from bench.processes import measured
from tests.interop.apache import java_command
from tests.processes import stop

Note = Callable[[str, float], None]

BODY: Final = bytes(range(256)) * 4
_CLIENT_JVM: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
_BENCHMARK: Final = "org.apache.rocketmq.example.benchmark."


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages per second, and the broker's CPU time for each."""

    per_s: float
    broker_cpu_us: float
    failed: int = 0


def create_topic(name_server: str, topic: str, queues: int) -> None:
    with ogive.Admin(name_server) as admin:
        admin.create_topic(topic, queues=queues)


def their_producer(name_server: str, pid: int, topic: str, *, threads: int, size: int, seconds: int) -> Rate:
    """Synchronous sends of Apache's benchmark Producer. It prints a rate each second, the first after ten: the warm-up."""
    options = ["-n", name_server, "-t", topic, "-w", str(threads), "-s", str(size), "-ri", "1000"]
    with ogive.Admin(name_server) as admin, measured(pid) as use:
        before = sum(row.max_offset for row in admin.offsets(topic))
        with _their_program("Producer", options) as log:
            time.sleep(seconds)
            output = log.read_text("utf-8", "replace")
        stored = sum(row.max_offset for row in admin.offsets(topic)) - before
    per_second = [int(tps) for tps in re.findall(r"Send TPS: (\d+)", output)]
    failed = max((int(n) for n in re.findall(r"Send Failed: (\d+)", output)), default=-1)
    if not per_second:
        raise RuntimeError(f"their Producer printed no rate within {seconds} s:\n{output[-2000:]}")
    return Rate(statistics.median(per_second), use.cpu_s / stored * 1e6, failed)


def their_consumer(name_server: str, pid: int, topic: str, group: str, *, count: int, limit_s: float) -> Rate:
    """Apache's benchmark Consumer over a backlog, from its first progress at the broker to its last; each pull carries the progress."""
    options = ["-n", name_server, "-t", topic, "-g", group, "-p", "false"]
    first = last = 0.0
    at_first = done = 0
    with ogive.Admin(name_server) as admin, _their_program("Consumer", options), measured(pid) as use:
        give_up = time.perf_counter() + limit_s
        while done < count and time.perf_counter() < give_up:
            time.sleep(0.1)
            done = sum(max(0, row.consumer_offset) for row in admin.lag(group, topic, members=False))
            last = time.perf_counter()
            if done and not first:
                first, at_first = last, done
    return Rate((done - at_first) / (last - first) if first else float("nan"), use.cpu_s / max(done, 1) * 1e6)


@contextmanager
def _their_program(program: str, options: list[str]) -> Iterator[Path]:
    """A benchmark program of Apache's, running inside the block; the file that its output goes to."""
    with tempfile.TemporaryDirectory() as home:
        log = Path(home, "output")
        with log.open("wb") as out:
            command = java_command(_BENCHMARK + program, *options, home=Path(home), jvm=_CLIENT_JVM)
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            yield log
        finally:
            stop(process)


def our_producer(name_server: str, pid: int, topic: str, *, count: int, body: bytes = BODY) -> Rate:
    """Pipelined sends from one thread."""
    with ogive.Producer(name_server) as producer:
        producer.send(topic, body)  # connections and routes are made before the clock starts
        with measured(pid) as use:
            futures: deque[object] = deque(maxlen=1)
            for _ in range(count):
                futures.append(producer.submit(topic, body))
            producer.flush()
    return Rate(count / use.wall_s, use.cpu_s / count * 1e6)


def our_consumer(name_server: str, pid: int, topic: str, group: str, *, count: int, limit_s: float) -> Rate:
    """A plain listener over a backlog, from the first message to the last."""
    seen = 0
    first = last = 0.0
    done = threading.Event()

    @ogive.listener(topic, group=group, start="earliest")
    def count_them(message: ogive.MessageExt) -> None:
        nonlocal seen, first, last
        if not seen:
            first = time.perf_counter()
        seen += 1
        if seen >= count:
            last = time.perf_counter()
            done.set()

    with measured(pid) as use, ogive.PushConsumer(count_them, name_server=name_server):
        done.wait(limit_s)
    return Rate(seen / ((last or time.perf_counter()) - first), use.cpu_s / max(seen, 1) * 1e6)


def latency_ms(name_server: str, topic: str, group: str, *, count: int) -> tuple[float, float]:
    """p50 and p99 from the call of ``send`` to the listener, one message at a time."""
    took: list[float] = []
    arrived = threading.Event()
    sent_at = 0.0

    @ogive.listener(topic, group=group, start="earliest")
    def stamp(message: ogive.MessageExt) -> None:
        took.append((time.perf_counter() - sent_at) * 1000)
        arrived.set()

    with ogive.Producer(name_server) as producer, ogive.PushConsumer(stamp, name_server=name_server):
        for i in range(count + 20):
            arrived.clear()
            sent_at = time.perf_counter()
            producer.send(topic, BODY)
            if not arrived.wait(60.0):
                raise RuntimeError(f"message {i} did not arrive within 60 s")
    quantiles = statistics.quantiles(took[20:], n=100)
    return quantiles[49], quantiles[98]


def send_latency_ms(name_server: str, topic: str, *, count: int) -> tuple[float, float]:
    """p50 and p99 of one synchronous send after another."""
    took: list[float] = []
    with ogive.Producer(name_server) as producer:
        for _ in range(count + 50):
            started = time.perf_counter()
            producer.send(topic, BODY)
            took.append((time.perf_counter() - started) * 1000)
    quantiles = statistics.quantiles(took[50:], n=100)
    return quantiles[49], quantiles[98]
