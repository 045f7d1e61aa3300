"""A broker killed again and again under load loses nothing that it acknowledged.

Source: docs/reliability.md.
"""

import asyncio
import json
import random
import time
import zlib
from collections import defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import ogive
from ogive import aio
from ogive.errors import OgiveError
from tests.figures import figures
from tests.peers import our_broker

pytestmark = pytest.mark.waits(130)

TOPIC = "Ledger"
PRODUCERS = 4
PAUSE_S = 0.002
# of the long size, and with whole batches
MAX_BATCH = 8
# what a kill may bring again: a broker saves progress every 5 s, a consumer tells it every second;
# twice that
WINDOW_S = 2 * (5.0 + 1.0)


@dataclass(slots=True)
class Ledger:
    """What was tried, acknowledged and received; kept in the process that is never killed."""

    attempted: set[bytes] = field(default_factory=set)
    acknowledged: set[bytes] = field(default_factory=set)
    received: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    places: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    damaged: list[bytes] = field(default_factory=list)
    reused: list[tuple[str, int, int]] = field(default_factory=list)
    disordered: list[tuple[str, int, int]] = field(default_factory=list)
    highest: dict[tuple[str, str], int] = field(default_factory=dict)
    # received within the window
    newest: dict[str, deque[tuple[float, bytes]]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    duplicates: int = 0
    # that the kills so far explain
    most_duplicates: int = 0
    # acknowledged batches that are one record
    whole: int = 0

    def receive(self, group: str, message: ogive.MessageExt) -> None:
        body = message.body
        if zlib.crc32(body[8:]) != int(body[:8], 16):
            self.damaged.append(body)
        place = (message.queue.broker_name, message.queue.queue_id, message.queue_offset)
        if self.places.setdefault(place, body) != body:
            self.reused.append(place)
        if body in self.received[group]:
            self.duplicates += 1
        self.received[group].add(body)
        self.newest[group].append((time.monotonic(), body))

    def killed(self) -> None:
        """What came within the window may come again, and nothing older."""
        since = time.monotonic() - WINDOW_S
        for newest in self.newest.values():
            while newest and newest[0][0] < since:
                newest.popleft()
            self.most_duplicates += len({body for _, body in newest})

    def receive_in_order(self, group: str, message: ogive.MessageExt) -> None:
        """A message that is new must not be older than one of its sharding key that came before."""
        new = message.body not in self.received[group]
        self.receive(group, message)
        producer, number = json.loads(message.body[8:])
        key = (group, str(producer))
        if new and number < self.highest.get(key, -1):
            self.disordered.append((str(producer), number, self.highest[key]))
        self.highest[key] = max(number, self.highest.get(key, -1))


def make_body(producer: int, number: int) -> bytes:
    text = json.dumps([producer, number]).encode() + b" " * 200
    return b"%08x" % zlib.crc32(text) + text


async def produce(
    producer: aio.Producer, index: int, ledger: Ledger, stop: asyncio.Event, max_batch: int
) -> None:
    """One message or batch after another with one sharding key; an attempt whose outcome is not
    success is never sent again.
    """
    key, number, sizes = f"producer-{index}", 0, random.Random(index)
    while not stop.is_set():
        bodies = [make_body(index, number + i) for i in range(sizes.randint(1, max_batch))]
        ledger.attempted.update(bodies)
        try:
            if len(bodies) == 1:
                await producer.send(TOPIC, bodies[0], sharding_key=key, timeout_s=1.0)
            else:
                results = await producer.send_batch(TOPIC, bodies, sharding_key=key, timeout_s=1.0)
                ledger.whole += len({result.offset_id for result in results}) == 1
            ledger.acknowledged.update(bodies)
        except OgiveError:
            # the broker is away: leave the processor to its restart
            await asyncio.sleep(0.02)
        number += len(bodies)
        await asyncio.sleep(PAUSE_S)


@pytest.mark.rel
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize(
    ("kills", "each_life", "max_batch"),
    [
        pytest.param(5, 20, 1, marks=pytest.mark.quick, id="5"),
        # with both ways to flush over 100,000 messages
        pytest.param(100, 600, MAX_BATCH, marks=pytest.mark.nightly, id="100"),
    ],
)
async def test_kill_loses_nothing_acknowledged(
    tmp_path: Path, flush: str, kills: int, each_life: int, max_batch: int
) -> None:
    """T1.

    Four producers, a concurrent and an orderly group of two members each; *each_life* messages are
    acknowledged between two kills at least.
    """
    await killed_again_and_again(tmp_path, flush, kills, each_life, max_batch)


async def killed_again_and_again(
    tmp_path: Path,
    flush: str,
    kills: int,
    each_life: int,
    max_batch: int,
    *,
    whole_batches: bool = False,
) -> None:
    """*whole_batches*: the topic keeps each batch as one record."""
    seed = 20130101
    chance = random.Random(seed)
    ledger = Ledger()
    broker = our_broker(tmp_path, flush="sync" if flush == "sync" else "async")

    async def concurrent(message: ogive.MessageExt) -> None:
        ledger.receive("concurrent", message)

    async def orderly(message: ogive.MessageExt) -> None:
        ledger.receive_in_order("orderly", message)

    listeners = [
        ogive.listener(TOPIC, group="concurrent", start="earliest")(concurrent),
        ogive.listener(TOPIC, group="orderly", orderly=True, start="earliest")(orderly),
    ]
    with (
        figures(
            "T1 whole batches" if whole_batches else "T1",
            nightly=kills > 10,
            seed=seed,
            flush=flush,
            faults=kills,
        ) as line,
        broker,
    ):
        async with aio.Admin(broker.name_server) as admin:
            await admin.create_topic(TOPIC, queues=4, whole_batches=whole_batches)
        server = broker.name_server
        async with (
            aio.Producer(
                server, config=ogive.ProducerConfig(whole_batches=whole_batches)
            ) as producer,
            aio.PushConsumer(*listeners, name_server=server),
            aio.PushConsumer(*listeners, name_server=server),
        ):
            stop = asyncio.Event()
            producing = [
                asyncio.create_task(produce(producer, i, ledger, stop, max_batch))
                for i in range(PRODUCERS)
            ]
            served_again_s: list[float] = []
            for _ in range(kills):
                await until_acknowledged(ledger, len(ledger.acknowledged) + each_life)
                await asyncio.sleep(chance.uniform(0.1, 0.9))
                began = time.monotonic()
                await asyncio.to_thread(broker.kill)
                ledger.killed()
                await asyncio.to_thread(broker.start)
                served_again_s.append(time.monotonic() - began)
            stop.set()
            await asyncio.gather(*producing)
            await wait_until_received(ledger, 120.0)
        received = set.intersection(*ledger.received.values())
        line.update(
            attempts=len(ledger.attempted),
            acknowledged=len(ledger.acknowledged),
            received=len(received),
        )
        line.update(lost=len(ledger.acknowledged - received), duplicates=ledger.duplicates)
        line.update(
            most_duplicates=ledger.most_duplicates,
            served_again_slowest_s=round(max(served_again_s), 2),
        )
    for group in ("concurrent", "orderly"):
        assert not ledger.acknowledged - ledger.received[group], f"lost by {group}"
        assert not ledger.received[group] - ledger.attempted, f"phantom in {group}"
    assert bool(ledger.whole) == whole_batches
    assert not ledger.damaged
    assert not ledger.reused
    assert not ledger.disordered
    assert ledger.duplicates <= ledger.most_duplicates


async def until_acknowledged(ledger: Ledger, count: int) -> None:
    """The kill meets a broker at work, however slow the machine is."""
    async with asyncio.timeout(60):
        while len(ledger.acknowledged) < count:
            await asyncio.sleep(0.01)


async def wait_until_received(ledger: Ledger, limit_s: float) -> None:
    deadline = asyncio.get_running_loop().time() + limit_s
    while asyncio.get_running_loop().time() < deadline:
        if all(
            ledger.acknowledged <= ledger.received[group] for group in ("concurrent", "orderly")
        ):
            return
        await asyncio.sleep(0.1)
