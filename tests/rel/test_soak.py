"""T26: steady work for a long time, with members that come and go: what a broker holds stays the
same.
"""

import asyncio
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

import ogive
from ogive import aio
from ogive.broker import Broker, BrokerConfig
from ogive.wire.codes import RequestCode
from tests.figures import figures, p99_ms
from tests.peers import our_broker
from tests.raw_client import RawClient, messages

pytestmark = [pytest.mark.rel, pytest.mark.apart(360)]

TOPIC = "Soak"
# messages, to begin with: the newest entries of queues stay in memory, and are as many as they ever
# will be then
SHORT = 560_000
# messages: so is the newest part of the log
WARM_UP = 600_000
# of them, the last ones: their rate is what the machine can do, with whatever else it does
MEASURED = 20_000
TURN_S = 0.05
BODY = 1000
MAX_SLOPE_MIB = {"nightly": 1.0, "weekly": 0.1}  # a minute
DEADLINE_S = 60.0


@dataclass
class Tally:
    """Which numbers came, and how often: a book that does not grow with an hour of messages as
    Ledger does.
    """

    sent: int = 0
    came: bytearray = field(default_factory=bytearray)

    def bodies(self, count: int, size: int) -> list[bytes]:
        made = [b"%d " % number + bytes(size) for number in range(self.sent, self.sent + count)]
        self.sent += count
        self.came.extend(bytes(count))
        return made

    async def take(self, message: ogive.MessageExt) -> None:
        self.came[int(message.body.split(b" ", 1)[0])] += 1

    @property
    def lost(self) -> int:
        return self.came.count(0)

    @property
    def duplicates(self) -> int:
        return sum(self.came) - len(self.came) + self.lost


class Held(NamedTuple):
    """What a process holds at a moment; *files* without those of the log, of which there are ever
    more, and its queues and keys.
    """

    at_s: float
    resident_mib: float
    files: int
    threads: int

    @classmethod
    def by(cls, pid: int) -> "Held":
        process = Path(f"/proc/{pid}")
        pages = int((process / "statm").read_text().split()[1])
        links = []
        for one in (process / "fd").iterdir():
            with suppress(FileNotFoundError):
                links.append(str(one.readlink()))
        files = sum(
            not any(f"/{part}/" in link for part in ("commitlog", "consumequeue", "index"))
            for link in links
        )
        return cls(
            time.monotonic(), pages * 4096 / 2**20, files, len(list((process / "task").iterdir()))
        )


@pytest.fixture
def soak_minutes(request: pytest.FixtureRequest) -> int:
    minutes: int = request.config.getoption("--soak-minutes")
    return minutes


@pytest.mark.nightly
@pytest.mark.timeout(2 * 3600)
@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="what a process holds is read from /proc"
)
async def test_steady_work_keeps_memory_files_and_threads_as_they_are(
    tmp_path: Path, soak_minutes: int
) -> None:
    """Half of what the machine can do.

    Two consumers stay, a third is restarted once a minute, and works for half of it.
    """
    tally, samples, took = Tally(), [], []
    listener = ogive.listener(TOPIC, group="soak", start="earliest")(tally.take)
    with our_broker(tmp_path) as broker, figures("T26", nightly=True, minutes=soak_minutes) as line:
        async with aio.Admin(broker.name_server) as admin:
            await admin.create_topic(TOPIC, queues=4)
        async with (
            aio.Producer(broker.name_server) as producer,
            aio.PushConsumer(listener, name_server=broker.name_server),
        ):

            async def send(count: int, size: int = BODY) -> None:
                await asyncio.gather(
                    *(producer.send(TOPIC, body) for body in tally.bodies(count, size))
                )

            async def all_came() -> None:
                async with asyncio.timeout(DEADLINE_S):
                    while tally.lost:
                        await asyncio.sleep(0.01)

            async def come_and_go() -> None:
                while True:
                    async with aio.PushConsumer(listener, name_server=broker.name_server):
                        await asyncio.sleep(30.0)
                    await asyncio.sleep(30.0)

            while tally.sent < SHORT:
                await send(1000, 10)
            while tally.sent < WARM_UP - MEASURED:
                await send(200)
            await all_came()
            began = time.monotonic()
            while tally.sent < WARM_UP:
                await send(200)
            await all_came()
            a_turn = round(MEASURED / (time.monotonic() - began) / 2 * TURN_S)
            restless = asyncio.create_task(come_and_go())
            for turn in range(round(soak_minutes * 60 / TURN_S)):
                began = time.monotonic()
                await send(a_turn)
                took.append(time.monotonic() - began)
                await asyncio.sleep(TURN_S - took[-1])
                if turn % round(1 / TURN_S) == 0:
                    samples.append(Held.by(broker.pid))
                assert not restless.done()
            restless.cancel()
            await asyncio.gather(restless, return_exceptions=True)
            await all_came()
        steady = samples[len(samples) // 5 :]
        slope = statistics.linear_regression(
            [one.at_s / 60 for one in steady], [one.resident_mib for one in steady]
        ).slope
        line.update(
            attempts=tally.sent,
            acknowledged=tally.sent,
            received=len(tally.came) - tally.lost,
            lost=tally.lost,
        )
        line.update(
            duplicates=tally.duplicates,
            slope_kib_a_minute=round(slope * 1024),
            broker_resident_mib=round(samples[-1].resident_mib),
        )
        minute = min(round(60 / TURN_S), len(took) // 2)
        line.update(messages_a_second=round(a_turn / TURN_S))
        line.update(
            turn_p99_first_minute_ms=p99_ms(took[:minute]),
            turn_p99_last_minute_ms=p99_ms(took[-minute:]),
        )
    assert slope <= MAX_SLOPE_MIB["nightly" if soak_minutes < 60 else "weekly"]
    half = len(steady) // 2
    for name in ("files", "threads"):
        assert (
            max(getattr(one, name) for one in steady[half:])
            <= max(getattr(one, name) for one in steady[:half]) + 2
        )


def held(server: Broker) -> dict[str, int]:
    """How many entries the broker's tables have."""
    context = server.context
    return {
        "connections": len(context.origins),
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
                await client.ok(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    consumerGroup="G",
                    topic="T",
                    queueId=0,
                    commitOffset=number + 1,
                )
                client.connection.abort("")
                await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(DEADLINE_S):
            while any(
                count > before[name] for name, count in held(server).items() if name != "offsets"
            ):
                await asyncio.sleep(0.001)
        assert held(server)["offsets"] == 1
        line.update(acknowledged=40, received=40, lost=0)
    await server.stop()
