"""Holders of orderly queues that are killed or stand still (T16, case 15): no two calls of a queue
at once, in order, nothing lost.

A member that is stopped in the middle of a call looks to the broker like a dead one, and no lease
can tell that it will go on: a call that begins elsewhere meanwhile is counted as "frozen". What
must never be is that a member which runs begins a call beside another one.
"""

import asyncio
import itertools
import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from ogive import aio
from ogive.broker import Broker
from ogive.client.config import ClientConfig, ProducerConfig
from ogive.errors import OgiveError
from ogive.model import MessageQueue
from ogive.namesrv import NameServer, NameServerConfig
from tests.figures import figures
from tests.never.scene import WAIT_S
from tests.processes import free_port
from tests.rel.part import broker_config
from tests.rel.parts import Call, Part, calls, figures_of, judge

pytestmark = [pytest.mark.rel, pytest.mark.apart(141)]

TOPIC, GROUP = "Ordered", "holders"


class Flow:
    """Numbers into each queue in turn, and what became of them.

    A send whose outcome is unknown is not sent again.
    """

    def __init__(self, producer: aio.Producer, queues: int) -> None:
        self._producer, self._queues = producer, queues
        self.attempted: set[str] = set()
        self.acknowledged: set[str] = set()
        self._stop = False
        self._task = asyncio.create_task(self._send())

    async def _send(self) -> None:
        for number in itertools.count():
            if self._stop:
                return
            body = str(number)
            self.attempted.add(body)
            try:
                await self._producer.send(
                    TOPIC,
                    body.encode(),
                    queue=MessageQueue(TOPIC, "broker-a", number % self._queues),
                )
                self.acknowledged.add(body)
            except OgiveError:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._stop = True
        await self._task


async def until(folder: Path, condition: object, what: str) -> list[Call]:
    """The calls, once ``condition(calls)`` holds."""
    assert callable(condition)
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition(found := calls(folder)):
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {WAIT_S:.0f} s: {what}") from None
    return found


def by(found: list[Call], pid: int, since: int = 0) -> set[int]:
    """Queues of which a process had calls, with numbers from *since* on."""
    return {call.queue for call in found if call.pid == pid and int(call.body) >= since}


@pytest.mark.feature(96)
@pytest.mark.kills("case 15: the lease of a lock never ends")
async def test_case_15_the_queues_of_a_killed_holder_go_to_the_other_when_its_lease_is_over(
    tmp_path: Path,
) -> None:
    """kill -9 in the middle of calls.

    The other member goes on in order, and while both lived no two calls of a queue ran at once.
    """
    lease_s = 1.5
    names = NameServer(NameServerConfig(port=0))
    await names.start()
    broker = Broker(broker_config(0, names.address, tmp_path / "store", lease_s))
    await broker.start()
    try:
        with ExitStack() as stack:

            def member(name: str) -> Part:
                file = str(tmp_path / f"member-{name}")
                return stack.enter_context(
                    Part("member", names.address, TOPIC, GROUP, str(lease_s), "0.005", file)
                )

            async with aio.Admin(names.address) as admin, aio.Producer(names.address) as producer:
                await admin.create_topic(TOPIC, queues=2)
                first, flow = member("first"), Flow(producer, 2)
                second = member("second")
                await until(
                    tmp_path,
                    lambda found: by(found, first.pid) and by(found, second.pid),
                    "both have a queue",
                )
                first.kill()
                # the other one may have had both before
                later = len(flow.attempted)
                await until(
                    tmp_path,
                    lambda found: len(by(found, second.pid, later)) == 2,
                    "the other one has both",
                )
                await flow.stop()
                found = await until(
                    tmp_path,
                    lambda found: {call.body for call in found} >= flow.acknowledged,
                    "every message",
                )
    finally:
        await broker.stop()
        await names.stop()
    findings = judge(found)
    assert findings.overlaps == []
    assert findings.disordered == []
    assert {call.body for call in found} <= flow.attempted


@pytest.mark.kills(
    "case 16: queue lock not checked before consume",
    "queue lock not renewed",
    param="5",
)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "pauses",
    [
        pytest.param(5, marks=[pytest.mark.quick, pytest.mark.slow]),
        pytest.param(60, marks=pytest.mark.nightly),
    ],
)
async def test_pauses_of_every_part_bring_no_two_calls_of_a_queue_together(
    tmp_path: Path, pauses: int
) -> None:
    """T16: SIGSTOP and SIGCONT of broker, name server and members in turn, for 0.1 to 10 s; the
    broker's lease is 3 s.

    The quick size: each once, the members for twice the lease.
    """
    seed, lease_s, queues = 16, 3.0, 6
    nightly, chance = pauses > 5, random.Random(seed)
    ports = [str(free_port()), str(free_port())]
    with ExitStack() as stack, figures("T16", nightly=nightly, seed=seed, faults=pauses) as line:
        names = stack.enter_context(Part("names", ports[0]))
        server = names.address()
        broker = stack.enter_context(
            Part("broker", ports[1], server, str(tmp_path / "store"), str(lease_s))
        )
        broker.address()
        members: list[Part] = []
        client = ClientConfig(name_server=server, request_timeout_s=1.0, route_period_s=1.0)
        async with (
            aio.Admin(server) as admin,
            aio.Producer(config=ProducerConfig(send_timeout_s=1.0), client=client) as producer,
        ):
            await admin.create_topic(TOPIC, queues=queues)
            for i in range(3):
                # busy nearly all the time
                words = (
                    "member",
                    server,
                    TOPIC,
                    GROUP,
                    str(lease_s),
                    "0.05",
                    str(tmp_path / f"member-{i}"),
                )
                members.append(stack.enter_context(Part(*words)))
            flow = Flow(producer, queues)
            await until(
                tmp_path,
                lambda found: len({call.pid for call in found}) == 3,
                "each member has a queue",
            )
            for i in range(pauses):
                victim = [broker, *members, names, *members][i % 8]
                # 0.1 to 10 s, short ones as often as long ones
                usual_s = 0.1 * 100 ** chance.random()
                victim.pause()
                await asyncio.sleep(
                    usual_s if nightly else 2 * lease_s if victim in members else 0.5
                )
                victim.go_on()
                await asyncio.sleep(chance.uniform(0.1, 1.0))
            await flow.stop()
            found = await until(
                tmp_path,
                lambda found: {call.body for call in found} >= flow.acknowledged,
                "every message",
            )
        findings = judge(found, {member.pid: member.pauses for member in members})
        line.update(
            attempts=len(flow.attempted),
            acknowledged=len(flow.acknowledged),
            **figures_of(found, findings),
        )
        line["lost"] = len(flow.acknowledged - {call.body for call in found})
    assert findings.overlaps == []
    assert findings.disordered == []
    assert {call.body for call in found} <= flow.attempted
