"""Members that join and leave all the time, in a concurrent and an orderly group (T19): no queue without an owner, none with two."""

import asyncio
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import ogive
from ogive import aio
from ogive.client.consumer.config import ConsumerConfig
from ogive.model import MessageQueue
from tests.figures import figures
from tests.ledger import Ledger
from tests.never.scene import WAIT_S
from tests.peers import our_broker

pytestmark = pytest.mark.rel

TOPIC, QUEUES, MEMBERS = "Storm", 16, 8
CONFIG = ConsumerConfig(
    rebalance_pause_s=0.1, hand_over_pause_s=0.1, persist_period_s=0.2, pull_suspend_s=5.0, lock_renew_s=1.0, lock_lease_s=6.0
)


@dataclass(slots=True)
class Group:
    """One group, its members and what they got."""

    name: str
    orderly: bool
    server: str
    ledger: Ledger = field(default_factory=Ledger)
    members: list[aio.PushConsumer] = field(default_factory=list)
    inside: Counter[MessageQueue] = field(default_factory=Counter)  # calls that run
    overlaps: int = 0
    changes: int = 0

    async def _take(self, message: ogive.MessageExt) -> None:
        queue = message.queue
        self.inside[queue] += 1
        self.overlaps += self.orderly and self.inside[queue] > 1
        self.ledger.receive(message)
        await asyncio.sleep(0.002)
        self.inside[queue] -= 1

    async def join(self) -> None:
        listener = ogive.listener(TOPIC, group=self.name, start="earliest", orderly=self.orderly, threads=4)(self._take)
        member = aio.PushConsumer(listener, name_server=self.server, config=CONFIG)
        await member.start()
        self.members.append(member)
        self.changes += 1

    async def leave(self, dice: random.Random) -> None:
        member = self.members.pop(dice.randrange(len(self.members)))
        await member.close()
        self.changes += 1

    async def change(self, dice: random.Random) -> None:
        if len(self.members) > 1 and (len(self.members) == MEMBERS or dice.random() < 0.5):
            await self.leave(dice)
        else:
            await self.join()

    @property
    def owned(self) -> list[MessageQueue]:
        return sorted(queue for member in self.members for queue in member.assignment[self.name] if queue.topic == TOPIC)


async def until_all(groups: list[Group], sent: set[bytes]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not all(len(group.owned) == len(set(group.owned)) == QUEUES and sent <= group.ledger.received for group in groups):
            await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seconds", [pytest.param(8, marks=pytest.mark.quick), pytest.param(90, marks=pytest.mark.nightly)])
async def test_a_storm_of_joins_and_leaves_loses_nothing_and_keeps_the_order(tmp_path: Path, seconds: int) -> None:
    """A change of each group every second; in the end every queue is owned once, and every message was delivered, also after a lease."""
    seed = 19
    dice = random.Random(seed)
    with our_broker(tmp_path, flush="async") as broker, figures("T19", nightly=seconds > 8, seed=seed) as line:
        groups = [Group("calm", False, broker.name_server), Group("strict", True, broker.name_server)]
        async with aio.Admin(broker.name_server) as admin, aio.Producer(broker.name_server) as producer:
            await admin.create_topic(TOPIC, queues=QUEUES)
            for group in groups:
                for _ in range(4):
                    await group.join()
            sent: list[bytes] = []
            stop = asyncio.Event()

            async def flow() -> None:
                for number in itertools.count():
                    if stop.is_set():
                        return
                    body = b"%d" % number
                    await producer.send(TOPIC, body, queue=MessageQueue(TOPIC, "broker-a", number % QUEUES), timeout_s=30.0)
                    sent.append(body)
                    await asyncio.sleep(0.005)

            flowing = asyncio.create_task(flow())
            for _ in range(seconds):
                await asyncio.sleep(1.0)
                for group in groups:
                    await group.change(dice)
            await asyncio.sleep(CONFIG.lock_lease_s + 1.0)  # the locks were renewed, or nobody gets what comes now
            stop.set()
            await flowing
            try:
                await until_all(groups, set(sent))
            finally:
                for group in groups:
                    for member in group.members:
                        await member.close()
        for group in groups:
            group.ledger.sent(sent)
        line.update(
            faults=sum(group.changes for group in groups),
            attempts=len(sent),
            acknowledged=len(sent),
            received=min(len(group.ledger.received) for group in groups),
            lost=sum(len(group.ledger.lost) for group in groups),
            duplicates=sum(group.ledger.duplicates for group in groups),
            overlaps=groups[1].overlaps,
        )
    for group in groups:
        group.ledger.check()
        assert group.overlaps == 0
    assert groups[1].ledger.disordered == []
    assert groups[1].ledger.duplicates == 0  # what an orderly member gives away it has finished, and told
