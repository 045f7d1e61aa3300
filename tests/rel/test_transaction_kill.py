"""A broker killed again and again among transactions: each ends once, the way its producer decided,
however the message of it got lost.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ogive import aio
from ogive.errors import OgiveError
from ogive.model import MessageExt
from tests.figures import figures
from tests.integration.test_producer import read_all
from tests.peers import our_broker

pytestmark = pytest.mark.waits(43)

TOPIC = "Paid"
PRODUCERS = 3


@dataclass(slots=True)
class Ledger:
    """The local transactions: what a database would hold."""

    entered: set[bytes] = field(default_factory=set)
    paid: set[bytes] = field(default_factory=set)
    confirmed: int = 0
    asked: Counter[bytes] = field(default_factory=Counter)

    async def was_paid(self, message: MessageExt) -> bool:
        self.asked[message.body] += 1
        return message.body in self.paid


async def produce(
    producer: aio.Producer, index: int, ledger: Ledger, stop: asyncio.Event, chance: random.Random
) -> None:
    """A third commits, a third rolls back, a third forgets to say, half of it paid.

    No transaction is tried again.
    """
    number = 0
    while not stop.is_set():
        body = b"%d/%d" % (index, number)
        number += 1
        try:
            async with producer.transaction(TOPIC, body, timeout_s=1.0) as transaction:
                ledger.entered.add(body)
                fate = chance.choice(("commit", "roll back", "forget"))
                if fate == "commit" or (fate == "forget" and chance.random() < 0.5):
                    ledger.paid.add(body)
                if fate == "roll back":
                    transaction.rollback()
                elif fate == "forget":
                    transaction.leave_open()
            ledger.confirmed += transaction.confirmed
        except OgiveError:
            # the broker is away: leave the processor to its restart
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.005)


async def until_entered(ledger: Ledger, count: int) -> None:
    """The kill meets a broker at work, however slow the machine is."""
    async with asyncio.timeout(60):
        while len(ledger.entered) < count:
            await asyncio.sleep(0.01)


@pytest.mark.rel
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize(
    ("kills", "between"),
    [
        pytest.param(5, 10, marks=pytest.mark.quick),
        pytest.param(10, 120, marks=pytest.mark.nightly),
    ],
)
async def test_every_transaction_ends_once_whatever_dies(
    tmp_path: Path, flush: str, kills: int, between: int
) -> None:
    """T20. At least *between* transactions are begun from one kill to the next."""
    chance = random.Random(20130101)
    ledger = Ledger()
    nightly = between > 10
    with (
        figures("T20", nightly=nightly, seed=20130101, flush=flush, faults=kills) as line,
        our_broker(tmp_path, flush="sync" if flush == "sync" else "async") as broker,
    ):
        async with aio.Admin(broker.name_server) as admin:
            await admin.create_topic(TOPIC, queues=2)
        stop = asyncio.Event()
        async with (
            aio.Producer(broker.name_server, group="shop", check=lambda _: None) as forgetful,
            aio.Producer(broker.name_server, group="shop", check=ledger.was_paid) as answering,
        ):
            producing = [
                asyncio.create_task(produce(forgetful, i, ledger, stop, chance))
                for i in range(PRODUCERS)
            ]
            for _ in range(kills):
                await until_entered(ledger, len(ledger.entered) + between)
                await asyncio.sleep(chance.uniform(0.1, 0.6))
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
            stop.set()
            await asyncio.gather(*producing)
            last = b"asked about after all others"
            async with answering.transaction(TOPIC, last) as transaction:
                ledger.paid.add(last)
                transaction.leave_open()
            async with asyncio.timeout(90):
                while not ledger.asked[last]:
                    await asyncio.sleep(0.1)
            stored = await read_all(answering.client, TOPIC, len(ledger.paid))
        visible = Counter(message.body for rows in stored.values() for message in rows)
        line.update(
            attempts=len(ledger.entered),
            acknowledged=len(ledger.paid),
            received=len(visible),
            asked=len(ledger.asked),
        )
        line.update(
            lost=len(ledger.paid - visible.keys()),
            duplicates=sum(count - 1 for count in visible.values()),
        )
    assert not ledger.paid - visible.keys(), "lost"
    assert not visible.keys() - ledger.paid, "not paid and delivered"
    assert max(visible.values()) == 1, "delivered twice"
