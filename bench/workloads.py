"""The loads: their benchmark programs, our producer, our consumer. Each returns plain numbers."""

import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import ogive
from bench.processes import measured
from tests.interop.apache import java_command
from tests.processes import stop, tail

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
    """Synchronous sends of Apache's benchmark Producer; the median second behind a warm-up of a third."""
    options = ["-n", name_server, "-t", topic, "-w", str(threads), "-s", str(size), "-ri", "1000"]
    output, use, total = _run_theirs("Producer", options, pid, topic, name_server, seconds)
    per_second = [int(tps) for tps in re.findall(r"Send TPS: (\d+)", output)]
    failed = max((int(n) for n in re.findall(r"Send Failed: (\d+)", output)), default=-1)
    return Rate(_steady(per_second), use / total * 1e6 if total else float("nan"), failed)


def their_consumer(name_server: str, pid: int, topic: str, group: str, *, count: int, seconds: int) -> Rate:
    """Apache's benchmark Consumer over a backlog: the median of its full seconds."""
    options = ["-n", name_server, "-t", topic, "-g", group, "-p", "false", "-ri", "1000"]
    output, use, _ = _run_theirs("Consumer", options, pid, topic, name_server, seconds)
    per_second = [int(tps) for tps in re.findall(r"TPS: (\d+)", output)]
    return Rate(_steady([tps for tps in per_second if tps]), use / count * 1e6)


def _run_theirs(program: str, options: list[str], pid: int, topic: str, name_server: str, seconds: int) -> tuple[str, float, int]:
    """Output, CPU seconds of process *pid*, and how many messages the topic grew by while the program ran for *seconds*."""

    with tempfile.TemporaryDirectory() as home, ogive.Admin(name_server) as admin:
        log = Path(home, "output")
        before = sum(row.max_offset for row in admin.offsets(topic))
        with log.open("wb") as out, measured(pid) as use:
            command = java_command(_BENCHMARK + program, *options, home=Path(home), jvm=_CLIENT_JVM)
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                pass
            finally:
                stop(process)
        grown = sum(row.max_offset for row in admin.offsets(topic)) - before
        output = log.read_text("utf-8", "replace")
        if "TPS" not in output:
            raise RuntimeError(f"their {program} printed no rate:\n{tail(log)}")
        return output, use.cpu_s, grown


def _steady(per_second: list[int]) -> float:
    """Median behind the warm-up."""
    steady = per_second[len(per_second) // 3 :]
    return statistics.median(steady) if steady else float("nan")


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
