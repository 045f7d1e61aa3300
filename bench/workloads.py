"""The loads: their benchmark programs, our producer, our consumer. Each returns plain numbers."""

import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import ogive
from bench.processes import measured
from tests.interop.apache import java_command
from tests.processes import stop

BODY: Final = bytes(range(256)) * 4
SMALL: Final = BODY[:128]
_CLIENT_JVM: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
_AGAIN_S: Final = 0.3
"""Time after which a program that was stopped works as before."""
_FIRST_S: Final = 3.0
"""Time until all threads of a program have begun."""
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


def their_sends(
    name_server: str,
    pid: int,
    topic: str,
    program: str,
    *options: str,
    warm_up_s: float,
    seconds: float,
) -> Rate:
    """Synchronous sends of one of Apache's benchmark producers, counted at the broker after a
    warm-up of the virtual machine.

    A transaction counts once, when it is committed.
    """
    options = ("-n", name_server, "-t", topic, "-ri", "1000", *options)
    with ogive.Admin(name_server) as admin, _their_program(program, options) as (_, log):
        _warm_up(admin, topic, warm_up_s)
        with measured(pid) as use:
            before = _stored(admin, topic)
            time.sleep(seconds)
            count = _stored(admin, topic) - before
        output = log.read_text("utf-8", "replace")
    if not count:
        raise RuntimeError(f"their {program} sent nothing within {seconds} s:\n{output[-2000:]}")
    failed = max((int(n) for n in re.findall(r"Send Failed: (\d+)", output)), default=0)
    return Rate(count / use.wall_s, use.cpu_s / count * 1e6, failed)


@contextmanager
def their_sends_in_turns(
    client: ogive.ClientConfig, pid: int, topic: str, program: str, *options: str
) -> Iterator[Callable[[float], Rate]]:
    """Yield a function that lets Apache's benchmark producer work for so many seconds, and measures
    it.

    The producer is stopped (SIGSTOP) while another has its turn, which must stay below its timeout
    of 3 s.
    """
    options = ("-n", client.name_server, "-t", topic, "-ri", "1000", *options)
    with ogive.Admin(client=client) as admin, _their_program(program, options) as (process, log):
        try:
            _warm_up(admin, topic, _FIRST_S)
            if not _stored(admin, topic):
                raise RuntimeError(
                    f"their {program} sent nothing:\n{log.read_text('utf-8', 'replace')[-2000:]}"
                )
        finally:
            process.send_signal(signal.SIGSTOP)

        def turn(seconds: float) -> Rate:
            process.send_signal(signal.SIGCONT)
            try:
                _warm_up(admin, topic, _AGAIN_S, since=_stored(admin, topic))
                with measured(pid) as use:
                    before = _stored(admin, topic)
                    time.sleep(seconds)
                    count = _stored(admin, topic) - before
            finally:
                process.send_signal(signal.SIGSTOP)
            if not count:
                raise RuntimeError(
                    f"their {program} sent nothing within {seconds} "
                    f"s:\n{log.read_text('utf-8', 'replace')[-2000:]}"
                )
            return Rate(count / use.wall_s, use.cpu_s / count * 1e6)

        yield turn


def _stored(admin: ogive.Admin, topic: str) -> int:
    return sum(row.max_offset for row in admin.offsets(topic))


def _warm_up(admin: ogive.Admin, topic: str, seconds: float, since: int = 0) -> None:
    """Let a program of theirs run for so long after its first message beyond *since*.

    Threads whose sends timed out while it was stopped rest for 3 s.
    """
    give_up = time.perf_counter() + 60.0
    while _stored(admin, topic) <= since and time.perf_counter() < give_up:
        time.sleep(0.05)
    time.sleep(seconds)


def their_consumer(
    name_server: str, pid: int, topic: str, group: str, *, count: int, limit_s: float
) -> Rate:
    """Apache's benchmark Consumer over a backlog, from its first progress at the broker to its
    last; each pull carries the progress.
    """
    options = ["-n", name_server, "-t", topic, "-g", group, "-p", "false"]
    first = last = 0.0
    at_first = done = 0
    with (
        ogive.Admin(name_server) as admin,
        _their_program("Consumer", options),
        measured(pid) as use,
    ):
        give_up = time.perf_counter() + limit_s
        while done < count and time.perf_counter() < give_up:
            time.sleep(0.05)
            done = sum(
                max(0, row.consumer_offset) for row in admin.lag(group, topic, members=False)
            )
            last = time.perf_counter()
            if done and not first:
                first, at_first = last, done
    rate = (done - at_first) / (last - first) if first else float("nan")
    return Rate(rate, use.cpu_s / max(done, 1) * 1e6, failed=count - done)


@contextmanager
def _their_program(
    program: str, options: Sequence[str]
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A benchmark program of Apache's, running inside the block, and the file that its output goes
    to.
    """
    with tempfile.TemporaryDirectory() as home:
        log = Path(home, "output")
        with log.open("wb") as out:
            command = java_command(_BENCHMARK + program, *options, home=Path(home), jvm=_CLIENT_JVM)
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        try:
            yield process, log
        finally:
            process.send_signal(signal.SIGCONT)
            stop(process)


def our_producer(name_server: str, pid: int, topic: str, *, count: int, body: bytes = BODY) -> Rate:
    """Pipelined sends from one thread."""
    with ogive.Producer(name_server) as producer:
        # connections and routes are made before the clock starts
        producer.send(topic, body)
        with measured(pid) as use:
            futures: deque[object] = deque(maxlen=1)
            for _ in range(count):
                futures.append(producer.submit(topic, body))
            producer.flush()
    return Rate(count / use.wall_s, use.cpu_s / count * 1e6)


def our_producer_in_turns(
    name_servers: Sequence[str], pids: Sequence[int], topic: str, *, rounds: int, seconds: float
) -> list[Rate]:
    """Medians of *rounds* in which each broker gets pipelined sends for *seconds*, one after the
    other: a machine drifts within minutes.
    """
    rates: list[list[Rate]] = [[] for _ in name_servers]
    for _ in range(rounds):
        for found, name_server, pid in zip(rates, name_servers, pids, strict=True):
            found.append(our_producer_for(name_server, pid, topic, seconds))
    return [
        Rate(
            *(
                statistics.median(figures)
                for figures in zip(*((r.per_s, r.broker_cpu_us) for r in found), strict=True)
            )
        )
        for found in rates
    ]


def our_producer_for(
    name_server: str, pid: int, topic: str, seconds: float, body: bytes = BODY
) -> Rate:
    """Pipelined sends from one thread for so long."""
    count = 0
    with ogive.Producer(name_server) as producer:
        producer.send(topic, body)
        with measured(pid) as use:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                producer.submit(topic, body)
                count += 1
            producer.flush()
    return Rate(count / use.wall_s, use.cpu_s / count * 1e6)


def our_consumer(
    name_server: str,
    pid: int,
    topic: str,
    group: str,
    *,
    count: int,
    limit_s: float,
    orderly: bool = False,
) -> Rate:
    """A plain listener over a backlog, from the first message to the last."""
    seen = 0
    first = last = 0.0
    done = threading.Event()

    @ogive.listener(topic, group=group, start="earliest", orderly=orderly)
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
    return Rate(
        seen / ((last or time.perf_counter()) - first),
        use.cpu_s / max(seen, 1) * 1e6,
        failed=count - seen,
    )


def latency_ms(name_server: str, topic: str, group: str, *, count: int) -> tuple[float, float]:
    """p50 and p99 from the call of ``send`` to the listener, one message at a time."""
    took: list[float] = []
    arrived = threading.Event()
    sent_at = 0.0

    @ogive.listener(topic, group=group, start="earliest")
    def stamp(message: ogive.MessageExt) -> None:
        took.append((time.perf_counter() - sent_at) * 1000)
        arrived.set()

    with (
        ogive.Producer(name_server) as producer,
        ogive.PushConsumer(stamp, name_server=name_server),
    ):
        for i in range(count + 20):
            arrived.clear()
            sent_at = time.perf_counter()
            producer.send(topic, BODY)
            if not arrived.wait(60.0):
                raise RuntimeError(f"message {i} did not arrive within 60 s")
    quantiles = statistics.quantiles(took[20:], n=100)
    return quantiles[49], quantiles[98]


def paced_latency_ms(
    name_server: str, topic: str, group: str, *, per_s: int, count: int
) -> tuple[float, float]:
    """p50 and p99 from the call of ``submit`` to the listener, at a steady rate; the first second
    does not count.
    """
    took: list[float] = []
    done = threading.Event()
    total = count + per_s

    @ogive.listener(topic, group=group, start="earliest")
    def stamp(message: ogive.MessageExt) -> None:
        took.append((time.perf_counter() - float(message.body)) * 1000)
        if len(took) >= total:
            done.set()

    with (
        ogive.Producer(name_server) as producer,
        ogive.PushConsumer(stamp, name_server=name_server),
    ):
        started = time.perf_counter()
        for i in range(total):
            due = started + i / per_s
            while (ahead := due - time.perf_counter()) > 0:
                time.sleep(ahead)
            producer.submit(topic, str(time.perf_counter()).encode())
        if not done.wait(60.0):
            raise RuntimeError(
                f"{total - len(took)} of {total} messages did not arrive within 60 s"
            )
    quantiles = statistics.quantiles(took[per_s:], n=100)
    return quantiles[49], quantiles[98]


@dataclass(frozen=True, slots=True)
class Burst:
    """How late the broker stored timed messages under their own topic; a negative time would be
    early.
    """

    earliest_ms: float
    p50_ms: float
    latest_ms: float


def timed_burst(name_server: str, topic: str, group: str, *, count: int, ahead_s: float) -> Burst:
    """*count* messages due within one second, all of them sent before that second begins."""
    late: list[float] = []
    done = threading.Event()

    @ogive.listener(topic, group=group, start="earliest")
    def stamp(message: ogive.MessageExt) -> None:
        late.append(message.stored_at.timestamp() * 1000 - float(message.body))
        if len(late) >= count:
            done.set()

    with (
        ogive.Producer(name_server) as producer,
        ogive.PushConsumer(stamp, name_server=name_server),
    ):
        first_ms = round((time.time() + ahead_s) * 1000)
        for i in range(count):
            due_ms = first_ms + i * 1000 // count
            producer.submit(
                topic, str(due_ms).encode(), deliver_at=datetime.fromtimestamp(due_ms / 1000, UTC)
            )
        producer.flush()
        if time.time() * 1000 > first_ms:
            raise RuntimeError(f"{count} messages could not be sent within {ahead_s} s")
        if not done.wait(ahead_s + 60.0):
            raise RuntimeError(f"{count - len(late)} of {count} timed messages did not arrive")
    return Burst(min(late), statistics.median(late), max(late))


@dataclass(frozen=True, slots=True)
class Singles:
    """One synchronous send after another, their client's and ours."""

    theirs: Rate
    ours_per_s: float
    ours_p50_ms: float
    ours_p99_ms: float


def one_by_one(
    name_server: str,
    pid: int,
    their_topic: str,
    our_topic: str,
    *,
    warm_up_s: float,
    rounds: int,
    seconds: float,
) -> Singles:
    """Medians of *rounds* in which theirs and ours send in turns, for *seconds* each: how fast
    threads wake drifts within minutes.

    Their program is stopped (SIGSTOP) while ours sends: *seconds* must stay below its timeout of 3
    s.
    """
    theirs: list[Rate] = []
    ours: list[float] = []
    took_ms: list[float] = []
    options = ("-n", name_server, "-t", their_topic, "-ri", "1000", "-w", "1", "-s", str(len(BODY)))
    with (
        ogive.Admin(name_server) as admin,
        ogive.Producer(name_server) as producer,
        _their_program("Producer", options) as (process, _),
    ):
        _warm_up(admin, their_topic, warm_up_s)
        for _ in range(rounds):
            with measured(pid) as use:
                before = _stored(admin, their_topic)
                time.sleep(seconds)
                count = _stored(admin, their_topic) - before
            theirs.append(Rate(count / use.wall_s, use.cpu_s / max(count, 1) * 1e6))
            process.send_signal(signal.SIGSTOP)
            for _ in range(50):
                producer.send(our_topic, BODY)
            round_ms = send_for(producer, our_topic, seconds)
            ours.append(1000 / statistics.mean(round_ms))
            took_ms += round_ms
            process.send_signal(signal.SIGCONT)
            time.sleep(0.2)
    quantiles = statistics.quantiles(took_ms, n=100)
    their_rate = Rate(
        statistics.median(rate.per_s for rate in theirs),
        statistics.median(rate.broker_cpu_us for rate in theirs),
    )
    return Singles(their_rate, statistics.median(ours), quantiles[49], quantiles[98])


def send_for(producer: ogive.Producer, topic: str, seconds: float) -> list[float]:
    """How long each send took, ms."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        producer.send(topic, BODY)
        took.append((time.perf_counter() - started) * 1000)
    return took


_IDLE: Final = """
import resource, sys, time, ogive
@ogive.listener("Idle", group="idle")
def nothing(message): pass
def used():
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime
with ogive.PushConsumer(nothing, name_server=sys.argv[1]):
    time.sleep(5)
    before = used()
    time.sleep(float(sys.argv[2]))
    print((used() - before) / float(sys.argv[2]) * 100)
"""


def idle_cpu_percent(name_server: str, *, seconds: float) -> float:
    """CPU of a process whose consumer holds 64 queues in which nothing happens, in per cent of a
    core.
    """
    create_topic(name_server, "Idle", 64)
    command = [sys.executable, "-c", _IDLE, name_server, str(seconds)]
    return float(
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    )


def import_ms() -> float:
    """Median of nine processes, less the time of an interpreter that imports nothing."""

    def median_ms(statement: str) -> float:
        took = []
        for _ in range(9):
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            took.append((time.perf_counter() - started) * 1000)
        return statistics.median(took)

    return median_ms("import ogive") - median_ms("pass")
