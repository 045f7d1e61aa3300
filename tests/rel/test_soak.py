"""T26: steady work for a long time, with members that come and go: what a broker holds stays the same."""

import asyncio
import statistics
import time
from pathlib import Path

import pytest

import ogive
from ogive import aio
from ogive.broker import Broker, BrokerConfig
from ogive.wire.codes import RequestCode
from tests.figures import figures
from tests.ledger import Ledger
from tests.peers import our_broker
from tests.raw_client import RawClient, messages

pytestmark = pytest.mark.rel

TOPIC = "Soak"
WARM_UP = 40_000  # messages: the newest part of the log, which stays in memory, has its full size then
SECONDS = 150
PER_TURN = 15
TURN_S = 0.05
MAX_GROWTH_MIB = 3.0
DEADLINE_S = 60.0


def of_broker(pid: int) -> tuple[float, int, int]:
    """Resident MiB, open files, threads."""
    process = Path(f"/proc/{pid}")
    pages = int((process / "statm").read_text().split()[1])
    return pages * 4096 / 2**20, len(list((process / "fd").iterdir())), len(list((process / "task").iterdir()))


@pytest.mark.nightly
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="what a process holds is read from /proc")
async def test_steady_work_keeps_memory_files_and_threads_as_they_are(tmp_path: Path) -> None:
    """Two consumers stay, a third is restarted every ten seconds."""
    ledger, samples, number = Ledger(), [], 0

    async def take(message: ogive.MessageExt) -> None:
        ledger.receive(message)

    listener = ogive.listener(TOPIC, group="soak", start="earliest")(take)
    with our_broker(tmp_path) as broker, figures("T26", nightly=True) as line:
        async with aio.Admin(broker.name_server) as admin:
            await admin.create_topic(TOPIC, queues=4)
        async with aio.Producer(broker.name_server) as producer, aio.PushConsumer(listener, name_server=broker.name_server):

            async def send(count: int) -> None:
                nonlocal number
                bodies = [b"%d " % n + bytes(1000) for n in range(number, number + count)]
                number += count
                ledger.attempted.update(bodies)
                await asyncio.gather(*(producer.send(TOPIC, body) for body in bodies))
                ledger.acknowledged.update(bodies)

            async def come_and_go() -> None:
                while True:
                    async with aio.PushConsumer(listener, name_server=broker.name_server):
                        await asyncio.sleep(10.0)

            for _ in range(WARM_UP // 200):
                await send(200)
            restless, end = asyncio.create_task(come_and_go()), time.monotonic() + SECONDS
            turns = 0
            while time.monotonic() < end:
                await asyncio.gather(send(PER_TURN), asyncio.sleep(TURN_S))
                turns += 1
                if turns % 20 == 0:
                    samples.append(of_broker(broker.pid))
                assert not restless.done()
            restless.cancel()
            await asyncio.gather(restless, return_exceptions=True)
            async with asyncio.timeout(DEADLINE_S):
                while ledger.lost:
                    await asyncio.sleep(0.1)
        third = len(samples) // 3
        before, after = samples[third : 2 * third], samples[2 * third :]
        growth = statistics.median(row[0] for row in after) - statistics.median(row[0] for row in before)
        line.update(attempts=number, acknowledged=len(ledger.acknowledged), received=len(ledger.received), lost=len(ledger.lost))
        line.update(duplicates=ledger.duplicates, growth_mib=round(growth, 2), resident_mib=round(samples[-1][0]))
    ledger.check()
    assert growth <= MAX_GROWTH_MIB
    for column in (1, 2):  # open files, threads
        assert max(row[column] for row in after) <= max(row[column] for row in before) + 2


def held(server: Broker) -> dict[str, int]:
    """How many entries the broker's tables have."""
    context = server.context
    return {
        "connections": len(context.born_hosts),
        "held pulls": len(context.holds),
        "members": sum(len(group.members) for group in context.clients.consumers.values()),
        "producers": sum(map(len, context.clients.producers.values())),
        "sends": context.sends_waiting,
        "tasks": len(asyncio.all_tasks()),
        "offsets": len(context.offsets),
    }


@pytest.mark.quick
async def test_rounds_of_the_same_work_leave_the_tables_as_they_were(tmp_path: Path) -> None:
    """A member comes, sends, pulls, holds a pull, commits and goes; again and again."""
    server = Broker(BrokerConfig(data=tmp_path / "store", port=0, segment_bytes=1024 * 1024))
    await server.start()
    before = held(server)
    with figures("T26", attempts=40) as line:
        for number in range(40):
            async with await RawClient.open(server.address) as client:
                await client.heartbeat(f"client-{number}", "G", "T")
                await client.send("T", b"%d" % number)
                [message] = messages(await client.pull("G", "T", number))
                assert message.body == b"%d" % number
                waiting = client.start_pull("G", "T", number + 1, suspend_ms=120_000)
                await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=number + 1)
                client.connection.abort("")
                await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(DEADLINE_S):
            while any(count > before[name] for name, count in held(server).items() if name != "offsets"):
                await asyncio.sleep(0.001)
        assert held(server)["offsets"] == 1
        line.update(acknowledged=40, received=40, lost=0)
    await server.stop()
