"""Members that join and leave all the time, in a concurrent and an orderly group (T19): no queue
without an owner, none with two.

In a third group, an orderly one of two processes, a member stands still for longer than its lease,
over and over: the other one gets its queues, and no call begins beside another one when it goes on.
"""

import asyncio
import itertools
import random
from collections import Counter
from contextlib import ExitStack
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
from tests.processes import free_port
from tests.rel.parts import Part, calls, judge

pytestmark = [pytest.mark.rel, pytest.mark.apart(97)]

TOPIC, QUEUES, MEMBERS = "Storm", 16, 8
LEASE_S = 4.0  # the broker's
STILL_S, GOING_S = 2 * LEASE_S - 1, 2.0
CONFIG = ConsumerConfig(
    rebalance_pause_s=0.1,
    hand_over_pause_s=0.1,
    persist_period_s=0.2,
    pull_suspend_s=5.0,
    lock_renew_s=LEASE_S / 8,
    lock_lease_s=LEASE_S / 2,
)


@dataclass(slots=True)
class Group:
    """One group, its members and what they got."""

    name: str
    orderly: bool
    server: str
    ledger: Ledger = field(default_factory=Ledger)
    members: list[aio.PushConsumer] = field(default_factory=list)
    # calls that run
    inside: Counter[MessageQueue] = field(default_factory=Counter)
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
        listener = ogive.listener(
            TOPIC, group=self.name, start="earliest", orderly=self.orderly, threads=4
        )(self._take)
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
        return sorted(
            queue
            for member in self.members
            for queue in member.assignment[self.name]
            if queue.topic == TOPIC
        )


async def until_all(groups: list[Group], sent: set[bytes]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not all(
            len(group.owned) == len(set(group.owned)) == QUEUES and sent <= group.ledger.received
            for group in groups
        ):
            await asyncio.sleep(0.05)


async def stand_still(member: Part, times: int, folder: Path) -> None:
    """Once it has queues, and the other member too."""
    async with asyncio.timeout(WAIT_S):
        while len({call.pid for call in calls(folder)}) < 2:
            await asyncio.sleep(0.1)
    for _ in range(times):
        member.pause()
        await asyncio.sleep(STILL_S)
        member.go_on()
        await asyncio.sleep(GOING_S)


async def until_called(folder: Path, sent: set[str]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not sent <= {call.body for call in calls(folder)}:
            await asyncio.sleep(0.5)


@pytest.mark.kills(
    "case 16: queue lock not checked before consume",
    "queue lock not renewed",
    param="8",
)
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "seconds",
    [pytest.param(8, marks=pytest.mark.quick), pytest.param(90, marks=pytest.mark.nightly)],
)
async def test_a_storm_of_joins_and_leaves_loses_nothing_and_keeps_the_order(
    tmp_path: Path, seconds: int
) -> None:
    """A change of each group every second; in the end every queue is owned once, and every message
    was delivered, also after a lease.
    """
    seed = 19
    dice = random.Random(seed)
    with ExitStack() as stack, figures("T19", nightly=seconds > 8, seed=seed) as line:
        server = stack.enter_context(Part("names", str(free_port()))).address()
        stack.enter_context(
            Part("broker", str(free_port()), server, str(tmp_path / "store"), str(LEASE_S))
        ).address()
        groups = [Group("calm", False, server), Group("strict", True, server)]
        async with aio.Admin(server) as admin, aio.Producer(server) as producer:
            await admin.create_topic(TOPIC, queues=QUEUES)
            # busy nearly all the time
            words = ("member", server, TOPIC, "held", str(LEASE_S), "0.03")
            still, _ = [
                stack.enter_context(Part(*words, str(tmp_path / f"member-{i}"))) for i in range(2)
            ]
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
                    await producer.send(
                        TOPIC,
                        body,
                        queue=MessageQueue(TOPIC, "broker-a", number % QUEUES),
                        timeout_s=30.0,
                    )
                    sent.append(body)
                    await asyncio.sleep(0.005)

            flowing = asyncio.create_task(flow())
            standing = asyncio.create_task(stand_still(still, seconds // 8, tmp_path))
            for _ in range(seconds):
                await asyncio.sleep(1.0)
                for group in groups:
                    await group.change(dice)
            # the locks were renewed, or nobody gets what comes now
            await asyncio.sleep(CONFIG.lock_lease_s + 1.0)
            await standing
            stop.set()
            await flowing
            try:
                await until_all(groups, set(sent))
                await until_called(tmp_path, {body.decode() for body in sent})
            finally:
                for group in groups:
                    for member in group.members:
                        await member.close()
        for group in groups:
            group.ledger.sent(sent)
        held = judge(calls(tmp_path), {still.pid: still.pauses})
        line.update(
            faults=sum(group.changes for group in groups) + len(still.pauses),
            attempts=len(sent),
            acknowledged=len(sent),
            received=min(len(group.ledger.received) for group in groups),
            lost=sum(len(group.ledger.lost) for group in groups),
            duplicates=sum(group.ledger.duplicates for group in groups),
            overlaps=groups[1].overlaps + len(held.overlaps),
        )
    for group in groups:
        group.ledger.check()
        assert group.overlaps == 0
    assert (held.overlaps, held.disordered) == ([], [])
    assert groups[1].ledger.disordered == []
    # what an orderly member gives away it has finished, and told
    assert groups[1].ledger.duplicates == 0
