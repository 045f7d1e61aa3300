"""T14: old segments go while eight readers read and the broker is killed again and again: what is
kept is whole, nobody is led astray.
"""

import asyncio
import contextlib
import random
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ogive.errors import ResponseCode, TransportError
from tests.figures import figures
from tests.processes import broker_process, free_port
from tests.raw_client import RawClient, messages

pytestmark = [pytest.mark.rel, pytest.mark.waits(34), pytest.mark.timeout(300)]

READERS = 8
DEADLINE_S = 60.0
_BROKER = """
import asyncio, sys
from pathlib import Path
from ogive.broker import Broker, BrokerConfig
from ogive.store.retention import RetentionConfig

async def main():
    keep = RetentionConfig(keep_s=0.1, hours=tuple(range(24)))
    broker = Broker(
        BrokerConfig(
            data=Path(sys.argv[1]),
            port=int(sys.argv[2]),
            segment_bytes=65536,
            retention=keep,
            retention_check_s=0.02,
        )
    )
    await broker.start()
    print(broker.address, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def running(folder: Path, port: int) -> AbstractContextManager[str]:
    """A broker that keeps messages for a tenth of a second."""
    return broker_process(folder, _BROKER, str(folder / "store"), str(port))


@dataclass(slots=True)
class Seen:
    """What was acknowledged, and what readers were told; kept over all kills."""

    places: dict[int, bytes] = field(default_factory=dict)
    sent: int = 0
    received: int = 0
    moved: int = 0
    lowest: int = 0
    wrong: list[str] = field(default_factory=list)


async def send_one(client: RawClient, seen: Seen) -> None:
    body = b"%d " % seen.sent + bytes(4000)
    seen.sent += 1
    offset = int((await client.send("T", body)).ext_fields["queueOffset"])
    if seen.places.setdefault(offset, body) != body:
        seen.wrong.append(f"offset {offset} was given out twice")


async def produce(address: str, seen: Seen) -> None:
    async with await RawClient.open(address) as client:
        while True:
            await send_one(client, seen)


async def read(address: str, seen: Seen, number: int) -> None:
    """Half of the readers follow the queue, the others begin again at 0, where nothing is any
    more.
    """
    async with await RawClient.open(address) as client:
        offset = 0
        while True:
            # answers to other readers may overtake this one's
            lowest = seen.lowest
            answer = await client.pull(f"G{number}", "T", offset, suspend_ms=50)
            after = int(answer.ext_fields["nextBeginOffset"])
            low = int(answer.ext_fields["minOffset"])
            if low < lowest:
                seen.wrong.append(f"the lowest offset was {lowest}, and is {low}")
            seen.lowest = max(seen.lowest, low)
            if answer.code == ResponseCode.PULL_OFFSET_MOVED:
                seen.moved += 1
                if not offset < after:
                    seen.wrong.append(f"moved from {offset} to {after}")
            elif answer.code == ResponseCode.SUCCESS:
                got = messages(answer)
                if [message.queue_offset for message in got] != list(range(offset, after)):
                    seen.wrong.append(
                        f"asked for {offset}, got {[message.queue_offset for message in got]}"
                    )
                for message in got:
                    if seen.places.setdefault(message.queue_offset, message.body) != message.body:
                        seen.wrong.append(f"offset {message.queue_offset} holds another message")
                seen.received += len(got)
            elif answer.code not in (
                ResponseCode.PULL_NOT_FOUND,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
            ):
                seen.wrong.append(f"pull at {offset}: {answer}")
            offset = after if number % 2 else 0


async def until_killed(work: list[asyncio.Task[None]], seen: Seen, pause_s: float) -> None:
    """Return a moment after old messages have gone."""
    before = seen.lowest
    async with asyncio.timeout(DEADLINE_S):
        while seen.lowest == before:
            for task in work:
                if task.done():
                    task.result()
            await asyncio.sleep(0.001)
        await asyncio.sleep(pause_s)


@pytest.mark.parametrize(
    "kills", [pytest.param(2, marks=pytest.mark.quick), pytest.param(50, marks=pytest.mark.nightly)]
)
async def test_old_messages_go_under_readers_and_kills_and_what_is_kept_is_whole(
    tmp_path: Path, kills: int
) -> None:
    seed = 20130101
    dice, seen, port = random.Random(seed), Seen(), free_port()
    with figures("T14", nightly=kills > 2, seed=seed, faults=kills) as line:
        for _ in range(kills):
            with running(tmp_path, port) as address:
                async with await RawClient.open(address) as client:
                    await send_one(client, seen)
                work = [
                    asyncio.create_task(read(address, seen, number)) for number in range(READERS)
                ]
                work.append(asyncio.create_task(produce(address, seen)))
                await until_killed(work, seen, dice.uniform(0.0, 0.02))
            for task in work:
                with contextlib.suppress(TransportError, OSError):
                    await task
        line.update(
            attempts=seen.sent,
            acknowledged=len(seen.places),
            received=seen.received,
            moved=seen.moved,
            lost=len(seen.wrong),
        )
    assert seen.wrong == []
    assert seen.moved >= kills
    assert "damaged" not in (tmp_path / "broker.log").read_text()
