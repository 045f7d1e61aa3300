"""ogive beside Kafka's broker and its Python clients, confluent-kafka and aiokafka.

    python -m bench.peers            # about 10 minutes; JDK 17+ and Maven
    python -m bench.peers --quick    # a tenth of it, to see that it runs
    python -m bench.peers --write    # writes the tables into docs/performance.md

Both brokers run at once, each with a topic of four queues or partitions a load. This process is the
client of all, and each round goes from one client to the next: what slows the machine for a while
does so for all of them. Figures are medians of the rounds, after a round as warm-up.

An acknowledged message is on the disk on both sides: ogive with its default, synchronous flush,
Kafka with acks=all and log.flush.interval.messages=1. The clients have their default settings, but
for AIO_PRODUCER below, and no linger where each message is sent after the answer to the last.
"""

import argparse
import asyncio
import gc
import importlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import ogive
import ogive.aio
from bench.brokers import running
from bench.kafka import kafka
from bench.processes import cpu_s, resident_mib
from ogive.native import build
from tests.interop.apache import CACHE

SIZES: Final = {"1 KiB": 1024, "128 B": 128}
QUEUES: Final = 4
PER_S: Final = 1_000
LIMIT_S: Final = 120.0
HERE: Final = Path(__file__).parents[1]
DOCS: Final = HERE / "docs" / "performance.md"
LOCKED: Final = HERE / "requirements" / "peers.txt"
BEGIN, END = "<!-- peers: written by python -m bench.peers --write -->", "<!-- end of peers -->"
# confluent-kafka's own linger is 5 ms
PRODUCER: Final = {"acks": "all"}
# its own are 0 ms and 16 KiB, with which it sends much less at once
AIO_PRODUCER: Final = {"acks": "all", "linger_ms": 5, "max_batch_size": 256 * 1024}


class Figures(NamedTuple):
    """Messages a second, and CPU a message of this process and of the broker's, in us."""

    per_s: float
    client_us: float
    broker_us: float


class Meter:
    """Counter of messages, which measures from the first to the last."""

    def __init__(self, broker: int, count: int) -> None:
        self._broker, self._count, self._seen = broker, count, 0
        self._at_first = 0
        self._from: tuple[float, float, float] = (0.0, 0.0, 0.0)
        self._until = self._from
        self._lock = threading.Lock()
        self.done = threading.Event()

    def add(self, messages: int) -> None:
        """Count *messages*; any thread may call this."""
        with self._lock:
            if not self._seen:
                self._from, self._at_first = self._now(), messages
            self._seen += messages
            if self._seen >= self._count and not self.done.is_set():
                self._until = self._now()
                self.done.set()

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), cpu_s(self._broker)

    def figures(self) -> Figures:
        """Raises RuntimeError if messages are missing."""
        if not self.done.is_set():
            raise RuntimeError(f"{self._count - self._seen} of {self._count} messages are missing")
        wall, client, broker = (b - a for a, b in zip(self._from, self._until, strict=True))
        count = self._seen - self._at_first
        return Figures(count / wall, client / count * 1e6, broker / count * 1e6)


@dataclass(slots=True)
class Peers:
    """The running brokers, and Kafka's clients, which are not installed beside ogive."""

    name_server: str
    ogive_pid: int
    kafka: str
    kafka_pid: int
    confluent: Any = field(init=False)
    aiokafka: Any = field(init=False)
    groups: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.confluent = importlib.import_module("confluent_kafka")
        self.aiokafka = importlib.import_module("aiokafka")

    def create_topic(self, topic: str) -> str:
        """Create *topic* on both."""
        with ogive.Admin(self.name_server) as admin:
            admin.create_topic(topic, queues=QUEUES)
        admin_of_theirs = importlib.import_module("confluent_kafka.admin")
        client = admin_of_theirs.AdminClient({"bootstrap.servers": self.kafka})
        new = admin_of_theirs.NewTopic(topic, num_partitions=QUEUES, replication_factor=1)
        for created in client.create_topics([new]).values():
            created.result(60)
        return topic

    def producer(self, **settings: Any) -> Any:
        return self.confluent.Producer({"bootstrap.servers": self.kafka, **PRODUCER, **settings})

    def consumer(self, topic: str, start: str = "earliest") -> Any:
        consumer = self.confluent.Consumer(
            {
                "bootstrap.servers": self.kafka,
                "group.id": self.group(),
                "auto.offset.reset": start,
            }
        )
        consumer.subscribe([topic])
        return consumer

    def aio_producer(self, **settings: Any) -> Any:
        return self.aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.kafka, **{**AIO_PRODUCER, **settings}
        )

    def aio_consumer(self, topic: str, start: str = "earliest") -> Any:
        return self.aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=self.kafka, group_id=self.group(), auto_offset_reset=start
        )

    def group(self) -> str:
        return f"g{next(self.groups)}"


# --- produce --------------------------------------------------------------------------------------

Turn = Callable[[Peers, str, bytes, float], Figures]
"""Sends to a topic for so many seconds."""


def _sent(broker: int, began: tuple[float, float, float], count: int) -> Figures:
    now = (time.perf_counter(), time.process_time(), cpu_s(broker))
    wall, client, of_broker = (b - a for a, b in zip(began, now, strict=True))
    return Figures(count / wall, client / count * 1e6, of_broker / count * 1e6)


def _began(broker: int) -> tuple[float, float, float]:
    return time.perf_counter(), time.process_time(), cpu_s(broker)


def produce_ogive(peers: Peers, topic: str, body: bytes, seconds: float) -> Figures:
    count = 0
    with ogive.Producer(peers.name_server) as producer:
        producer.send(topic, body)
        began = _began(peers.ogive_pid)
        last: deque[Any] = deque(maxlen=1)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            last.append(producer.submit(topic, body))
            count += 1
        producer.flush()
        last[0].result()
        return _sent(peers.ogive_pid, began, count)


def produce_aio(peers: Peers, topic: str, body: bytes, seconds: float) -> Figures:
    async def turn() -> Figures:
        count = 0
        async with ogive.aio.Producer(peers.name_server) as producer:
            await producer.send(topic, body)
            began = _began(peers.ogive_pid)
            last: deque[Awaitable[ogive.SendResult]] = deque(maxlen=1)
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                last.append(await producer.submit(topic, body))
                count += 1
            await producer.flush()
            await last[0]
            return _sent(peers.ogive_pid, began, count)

    return asyncio.run(turn())


def produce_confluent(peers: Peers, topic: str, body: bytes, seconds: float) -> Figures:
    producer = peers.producer()
    delivered = failed = count = 0

    def outcome(error: object, _: object) -> None:
        nonlocal delivered, failed
        delivered += 1
        failed += error is not None

    producer.produce(topic, body)
    producer.flush(LIMIT_S)
    began = _began(peers.kafka_pid)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        try:
            producer.produce(topic, body, on_delivery=outcome)
        except BufferError:
            producer.poll(0.01)
            continue
        count += 1
        producer.poll(0)
    producer.flush(LIMIT_S)
    if failed or delivered != count:
        raise RuntimeError(f"{failed} sends failed, {count - delivered} have no outcome")
    return _sent(peers.kafka_pid, began, count)


def produce_aiokafka(peers: Peers, topic: str, body: bytes, seconds: float) -> Figures:
    async def turn() -> Figures:
        count = 0
        async with peers.aio_producer() as producer:
            await producer.send_and_wait(topic, body)
            began = _began(peers.kafka_pid)
            last: deque[Any] = deque(maxlen=1)
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                last.append(await producer.send(topic, body))
                count += 1
            await producer.flush()
            await last[0]
            return _sent(peers.kafka_pid, began, count)

    return asyncio.run(turn())


PRODUCERS: Final[dict[str, Turn]] = {
    "ogive": produce_ogive,
    "ogive.aio": produce_aio,
    "confluent-kafka": produce_confluent,
    "aiokafka": produce_aiokafka,
}

# --- consume --------------------------------------------------------------------------------------

Drain = Callable[[Peers, str, int], Figures]
"""Reads a backlog of so many messages."""


def _listen(peers: Peers, topic: str, count: int, batch: int) -> Figures:
    meter = Meter(peers.ogive_pid, count)
    if batch == 1:

        @ogive.listener(topic, group=peers.group(), start="earliest")
        def take(message: ogive.MessageExt) -> None:
            meter.add(1)

        listener: Any = take
    else:

        @ogive.listener(topic, group=peers.group(), start="earliest", batch=batch)
        def take_batch(messages: list[ogive.MessageExt]) -> None:
            meter.add(len(messages))

        listener = take_batch
    with ogive.PushConsumer(listener, name_server=peers.name_server):
        meter.done.wait(LIMIT_S)
    return meter.figures()


def drain_listener(peers: Peers, topic: str, count: int) -> Figures:
    return _listen(peers, topic, count, 1)


def drain_batches(peers: Peers, topic: str, count: int) -> Figures:
    return _listen(peers, topic, count, 256)


def drain_poll(peers: Peers, topic: str, count: int) -> Figures:
    meter = Meter(peers.ogive_pid, count)
    until = time.perf_counter() + LIMIT_S
    with ogive.PullConsumer(
        topic, group=peers.group(), start="earliest", name_server=peers.name_server
    ) as consumer:
        while not meter.done.is_set() and time.perf_counter() < until:
            messages = consumer.poll(1.0)
            if messages:
                for message in messages:
                    _ = message.body
                meter.add(len(messages))
    return meter.figures()


def drain_confluent(peers: Peers, topic: str, count: int) -> Figures:
    meter = Meter(peers.kafka_pid, count)
    consumer = peers.consumer(topic)
    until = time.perf_counter() + LIMIT_S
    while not meter.done.is_set() and time.perf_counter() < until:
        messages = consumer.consume(1000, 1.0)
        if messages:
            for message in messages:
                _ = message.value()
            meter.add(len(messages))
    consumer.close()
    return meter.figures()


def drain_aiokafka(peers: Peers, topic: str, count: int) -> Figures:
    meter = Meter(peers.kafka_pid, count)

    async def turn() -> None:
        async with peers.aio_consumer(topic) as consumer:
            while not meter.done.is_set():
                for messages in (await consumer.getmany(timeout_ms=1000)).values():
                    for message in messages:
                        _ = message.value
                    meter.add(len(messages))

    asyncio.run(asyncio.wait_for(turn(), LIMIT_S))
    return meter.figures()


CONSUMERS: Final[dict[str, Drain]] = {
    "ogive, listener": drain_listener,
    "ogive, listener of batches": drain_batches,
    "ogive, poll": drain_poll,
    "confluent-kafka, consume": drain_confluent,
    "aiokafka, getmany": drain_aiokafka,
}

# --- latency --------------------------------------------------------------------------------------

Times = Callable[[Peers, str, bytes, float], list[float]]
"""Takes so many seconds. Returns the duration of each send in ms."""


def _each(send: Callable[[], object], seconds: float) -> list[float]:
    took: list[float] = []
    for _ in range(50):
        send()
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        send()
        took.append((time.perf_counter() - began) * 1000)
    return took


async def _each_async(send: Callable[[], Awaitable[object]], seconds: float) -> list[float]:
    took: list[float] = []
    for _ in range(50):
        await send()
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        await send()
        took.append((time.perf_counter() - began) * 1000)
    return took


def single_ogive(peers: Peers, topic: str, body: bytes, seconds: float) -> list[float]:
    with ogive.Producer(peers.name_server) as producer:
        return _each(lambda: producer.send(topic, body), seconds)


def single_aio(peers: Peers, topic: str, body: bytes, seconds: float) -> list[float]:
    async def turn() -> list[float]:
        async with ogive.aio.Producer(peers.name_server) as producer:
            return await _each_async(lambda: producer.send(topic, body), seconds)

    return asyncio.run(turn())


def single_confluent(peers: Peers, topic: str, body: bytes, seconds: float) -> list[float]:
    producer = peers.producer(**{"linger.ms": 0})

    def send() -> None:
        producer.produce(topic, body)
        producer.flush(LIMIT_S)

    return _each(send, seconds)


def single_aiokafka(peers: Peers, topic: str, body: bytes, seconds: float) -> list[float]:
    async def turn() -> list[float]:
        async with peers.aio_producer(linger_ms=0) as producer:
            return await _each_async(lambda: producer.send_and_wait(topic, body), seconds)

    return asyncio.run(turn())


SINGLES: Final[dict[str, Times]] = {
    "ogive": single_ogive,
    "ogive.aio": single_aio,
    "confluent-kafka": single_confluent,
    "aiokafka": single_aiokafka,
}


class Arrivals:
    """Times from send to handler. The first half a second of them does not count."""

    def __init__(self, seconds: float) -> None:
        self.total = int(PER_S * (seconds + 0.5))
        self._took: list[float] = []
        # a new group may begin with what older rounds have sent
        self._since = time.perf_counter()
        self.ready, self.done = threading.Event(), threading.Event()

    def add(self, body: bytes) -> None:
        if body == b"ready":
            self.ready.set()
            return
        sent = float(body)
        if sent < self._since:
            return
        self._took.append((time.perf_counter() - sent) * 1000)
        if len(self._took) >= self.total:
            self.done.set()

    def times(self) -> list[float]:
        if not self.done.wait(LIMIT_S):
            raise RuntimeError(f"{self.total - len(self._took)} messages did not arrive")
        return self._took[PER_S // 2 :]

    def pace(self, send: Callable[[bytes], object]) -> None:
        """Send once the handler has seen a message, at a steady rate."""
        until = time.perf_counter() + LIMIT_S
        while not self.ready.is_set() and time.perf_counter() < until:
            send(b"ready")
            self.ready.wait(0.2)
        began = time.perf_counter()
        for n in range(self.total):
            while (ahead := began + n / PER_S - time.perf_counter()) > 0:
                time.sleep(ahead)
            send(str(time.perf_counter()).encode())

    async def pace_async(self, send: Callable[[bytes], Awaitable[object]]) -> None:
        """The same on the event loop."""
        until = time.perf_counter() + LIMIT_S
        while not self.ready.is_set() and time.perf_counter() < until:
            await send(b"ready")
            await asyncio.sleep(0.2)
        began = time.perf_counter()
        for n in range(self.total):
            await asyncio.sleep(max(0.0, began + n / PER_S - time.perf_counter()))
            await send(str(time.perf_counter()).encode())


def handled_ogive(peers: Peers, topic: str, body: bytes, seconds: float) -> list[float]:
    arrivals = Arrivals(seconds)

    @ogive.listener(topic, group=peers.group(), start="latest")
    def take(message: ogive.MessageExt) -> None:
        arrivals.add(message.body)

    with (
        ogive.PushConsumer(take, name_server=peers.name_server),
        ogive.Producer(peers.name_server) as producer,
    ):
        arrivals.pace(lambda text: producer.submit(topic, text))
        return arrivals.times()


def handled_aio(peers: Peers, topic: str, body: bytes, seconds: float) -> list[float]:
    arrivals = Arrivals(seconds)

    @ogive.listener(topic, group=peers.group(), start="latest")
    async def take(message: ogive.MessageExt) -> None:
        arrivals.add(message.body)

    async def turn() -> list[float]:
        async with (
            ogive.aio.PushConsumer(take, name_server=peers.name_server),
            ogive.aio.Producer(peers.name_server) as producer,
        ):
            await arrivals.pace_async(lambda text: producer.submit(topic, text))
            return await asyncio.to_thread(arrivals.times)

    return asyncio.run(turn())


def handled_confluent(peers: Peers, topic: str, body: bytes, seconds: float) -> list[float]:
    arrivals, producer = Arrivals(seconds), peers.producer()

    def handle() -> None:
        consumer = peers.consumer(topic, "latest")
        until = time.perf_counter() + LIMIT_S
        while not arrivals.done.is_set() and time.perf_counter() < until:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                arrivals.add(message.value())
        consumer.close()

    def send(text: bytes) -> None:
        producer.produce(topic, text)
        producer.poll(0)

    thread = threading.Thread(target=handle)
    thread.start()
    try:
        arrivals.pace(send)
        return arrivals.times()
    finally:
        producer.flush(LIMIT_S)
        arrivals.done.set()
        thread.join()


def handled_aiokafka(peers: Peers, topic: str, body: bytes, seconds: float) -> list[float]:
    arrivals = Arrivals(seconds)

    async def handle(consumer: Any) -> None:
        async for message in consumer:
            arrivals.add(message.value)

    async def turn() -> list[float]:
        async with (
            peers.aio_consumer(topic, "latest") as consumer,
            peers.aio_producer(linger_ms=0) as producer,
        ):
            task = asyncio.create_task(handle(consumer))
            await arrivals.pace_async(lambda text: producer.send(topic, text))
            times = await asyncio.to_thread(arrivals.times)
            task.cancel()
            await asyncio.wait([task])
            return times

    return asyncio.run(turn())


HANDLED: Final[dict[str, Times]] = {
    "ogive": handled_ogive,
    "ogive.aio": handled_aio,
    "confluent-kafka": handled_confluent,
    "aiokafka": handled_aiokafka,
}

# --- tables ---------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: dict[str, list[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(row)} |" for name, row in rows.items())])


def _round(name: str, work: Callable[[], Any]) -> Any:
    """Carry out one turn, and print what it gives. Nothing for one that fails."""
    gc.collect()
    try:
        found = work()
    # another client's: the other rows do not depend on it
    except Exception as exc:  # noqa: BLE001
        print(f"{name}: {type(exc).__name__}: {exc}", flush=True)
        return None
    if isinstance(found, Figures):
        print(f"{name}: {found.per_s:,.0f}/s, {found.client_us:.2f}, {found.broker_us:.2f} us")
    sys.stdout.flush()
    return found


def rates(
    heading: str, rounds: int, turns: dict[str, list[Callable[[], Figures]]], sizes: Sequence[str]
) -> str:
    """Return a table of rates: of each client its turns, one for each size."""
    found: dict[str, list[list[Figures]]] = {name: [[] for _ in sizes] for name in turns}
    for number in range(rounds + 1):
        for at, size in enumerate(sizes):
            for name, of_size in turns.items():
                figures = _round(f"{heading}, {size}, {name}", of_size[at])
                # the first is warm-up
                if figures is not None and number:
                    found[name][at].append(figures)
    rows: dict[str, list[str]] = {}
    for name, by_size in found.items():
        rows[name] = []
        for every in by_size:
            if not every:
                rows[name] += ["", "", ""]
                continue
            per_s, client, broker = map(statistics.median, zip(*every, strict=True))
            rows[name] += [f"{per_s:,.0f}", f"{client:.2f}", f"{broker:.2f}"]
    heads = [heading]
    for size in sizes:
        heads += [f"{size}: messages/s", "client, us", "broker, us"]
    return table(heads, rows)


def latencies(peers: Peers, rounds: int, seconds: float) -> str:
    """Return the table of p50 and p99, over the times of all rounds together."""
    kinds = {"send after send": SINGLES, "send to handler": HANDLED}
    took: dict[str, dict[str, list[float]]] = {
        kind: {name: [] for name in ways} for kind, ways in kinds.items()
    }
    topics = {kind: peers.create_topic(kind.replace(" ", "-")) for kind in kinds}
    for number in range(rounds + 1):
        for kind, ways in kinds.items():
            for name, way in ways.items():
                work = partial(way, peers, topics[kind], bytes(1024), seconds)
                times = _round(f"{kind}, {name}", work)
                if times is not None and number:
                    took[kind][name] += times
    rows: dict[str, list[str]] = {name: [] for name in SINGLES}
    for of_kind in took.values():
        for name, times in of_kind.items():
            quantiles = statistics.quantiles(times, n=100) if len(times) > 1 else []
            rows[name] += [f"{quantiles[n]:.2f}" for n in (49, 98)] if quantiles else ["", ""]
    heads = ["ms", "one send after another, 1 KiB: p50", "p99"]
    heads += [f"send to handler at {PER_S:,}/s: p50", "p99"]
    return table(heads, rows)


# --- the run --------------------------------------------------------------------------------------


def install() -> None:
    """Install Kafka's clients into a folder of their own, once per machine, and import from it."""
    locked = sha256(LOCKED.read_bytes()).hexdigest()[:12]
    folder = CACHE.parent / f"peers-{sys.version_info[0]}{sys.version_info[1]}-{locked}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as new:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes"]
            command += ["--disable-pip-version-check", "--target", f"{new}/peers"]
            subprocess.run([*command, "--requirement", str(LOCKED)], check=True)
            Path(new, "peers").rename(folder)
    # behind all others: what .venv has too comes from there
    sys.path.append(str(folder))


def age_s(pid: int) -> float:
    """Return the seconds since a process was started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return float(Path("/proc/uptime").read_text().split()[0]) - started


def measure(rounds: int, seconds: float, backlog: int) -> str:
    """Run everything, and return the tables."""
    with tempfile.TemporaryDirectory(prefix="ogive-peers-") as folder, ExitStack() as kept:
        broker, _ = kept.enter_context(running("ogive", Path(folder, "ogive"), "sync"))
        ready = {"ogive": age_s(broker.pid)}
        address, pid = kept.enter_context(kafka(Path(folder, "kafka"), sync=True))
        ready["Kafka"] = age_s(pid)
        pids = {"ogive": broker.pid, "Kafka": pid}
        time.sleep(2.0)
        idle = {name: resident_mib(one) for name, one in pids.items()}
        peers = Peers(broker.name_server, broker.pid, address, pid)
        bodies = {name: (bytes(range(256)) * 4)[:size] for name, size in SIZES.items()}
        topics = {name: peers.create_topic(f"Sent{len(body)}") for name, body in bodies.items()}
        produced = rates(
            "produce, many in flight",
            rounds,
            {
                name: [partial(turn, peers, topics[size], bodies[size], seconds) for size in SIZES]
                for name, turn in PRODUCERS.items()
            },
            list(SIZES),
        )
        stored = {name: peers.create_topic(f"Stored{len(body)}") for name, body in bodies.items()}
        for name, body in bodies.items():
            fill(peers, stored[name], body, backlog)
        consumed = rates(
            f"consume a backlog of {backlog:,}",
            rounds,
            {
                name: [partial(drain, peers, stored[size], backlog) for size in SIZES]
                for name, drain in CONSUMERS.items()
            },
            list(SIZES),
        )
        slow = latencies(peers, rounds, seconds)
        servers = table(
            ["broker", "ready after (s)", "memory when idle (MiB)", "after these loads (MiB)"],
            {
                name: [f"{ready[name]:.2f}", f"{idle[name]:,.0f}", f"{resident_mib(one):,.0f}"]
                for name, one in pids.items()
            },
        )
    return "\n\n".join((produced, consumed, slow, servers))


def fill(peers: Peers, topic: str, body: bytes, count: int) -> None:
    """Store *count* messages on both brokers."""
    with ogive.Producer(peers.name_server) as producer:
        for _ in range(count):
            producer.submit(topic, body)
        producer.flush()
    theirs, left = peers.producer(), count
    while left:
        try:
            theirs.produce(topic, body)
            left -= 1
        except BufferError:
            theirs.poll(0.1)
    theirs.flush(LIMIT_S)


def write(text: str) -> None:
    """Write the tables between the two marks in the docs."""
    page = DOCS.read_text("utf-8")
    head, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{DOCS}: the marks {BEGIN} and {END} are missing")
    day = f"Run of {datetime.now(UTC):%Y-%m-%d}:"
    DOCS.write_text(f"{head}{BEGIN}\n\n{day}\n\n{text}\n\n{END}{after}", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="of each turn")
    parser.add_argument("--backlog", type=int, default=200_000, metavar="N", help="messages")
    parser.add_argument("--quick", action="store_true", help="a tenth, to see that it runs")
    parser.add_argument("--write", action="store_true", help="tables into docs/performance.md")
    chosen = parser.parse_args()
    install()
    print(f"ogive {build}, Python {sys.version.split()[0]}", flush=True)
    text = (
        measure(1, 0.3, 20_000)
        if chosen.quick
        else measure(chosen.rounds, chosen.seconds, chosen.backlog)
    )
    print(text)
    if chosen.write:
        write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
