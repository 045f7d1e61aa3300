"""T4: a broker's process on a file system whose power is cut under load: nothing that it
acknowledged is gone.

tests/chaos/lossy.py is the file system. As a control the same load runs with syncs that do nothing,
and must lose.
"""

import asyncio
import contextlib
import os
import random
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ogive.errors import ResponseCode, TransportError
from tests.chaos.lossy import LossyMount
from tests.chaos.recorder import MemoryFs
from tests.figures import figures
from tests.processes import broker_process, free_port
from tests.raw_client import RawClient, messages

pytestmark = [
    pytest.mark.rel,
    pytest.mark.result("T4"),
    pytest.mark.nightly,
    pytest.mark.timeout(600),
]

CUTS = 60
TOPICS = 3
PRODUCERS = 4
DEADLINE_S = 60.0
_BROKER = """
import asyncio, sys
from pathlib import Path
from ogive.broker import Broker, BrokerConfig
from ogive.store.fs import OsFs

OsFs.boot_id = lambda self: sys.argv[4]
if sys.argv[3] == "careless":
    OsFs.fdatasync = OsFs.fsync_dir = lambda self, what: None

async def main():
    flush = "async" if sys.argv[3] == "async" else "sync"
    data, port = Path(sys.argv[1]), int(sys.argv[2])
    config = BrokerConfig(data=data, port=port, segment_bytes=256 * 1024, flush=flush)
    broker = Broker(config)
    await broker.start()
    print(broker.address, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""

ASYNC_CUTS = 12
MOST_AT_RISK = 4 * 1024 * 1024  # bytes

Place = tuple[str, int]


@dataclass(slots=True)
class Book:
    """Bodies name messages. Kept in the test's own process."""

    attempted: set[bytes] = field(default_factory=set)
    places: dict[Place, bytes] = field(default_factory=dict)
    lost: set[Place] = field(default_factory=set)
    phantom: list[Place] = field(default_factory=list)
    received: int = 0


def broker_on(disk: Path, folder: Path, port: int, kind: str) -> AbstractContextManager[str]:
    """For it the machine was started anew, as after a power cut."""
    return broker_process(folder, _BROKER, str(disk / "store"), str(port), kind, uuid.uuid4().hex)


async def produce(address: str, book: Book, number: int) -> None:
    dice = random.Random(number)
    async with await RawClient.open(address) as client:
        while True:
            topic, body = (
                f"T{dice.randrange(TOPICS)}",
                b"%d:" % len(book.attempted) + dice.randbytes(dice.choice((10, 200, 3000))),
            )
            book.attempted.add(body)
            answer = await client.start_send(topic, body)
            if answer.code != ResponseCode.SUCCESS:
                # the power is off
                return
            book.places[topic, int(answer.ext_fields["queueOffset"])] = body


async def judge(address: str, book: Book) -> None:
    """Everything that was acknowledged stands where it was said to stand, and nothing stands there
    that nobody sent.
    """
    async with await RawClient.open(address) as client:
        found: dict[Place, bytes] = {}
        for topic in {topic for topic, _ in book.places}:
            offset = 0
            while (
                answer := await client.pull("G", topic, offset, count=4096)
            ).code == ResponseCode.SUCCESS:
                found |= {
                    (topic, message.queue_offset): message.body for message in messages(answer)
                }
                offset = int(answer.ext_fields["nextBeginOffset"])
    book.received = len(found)
    book.lost |= {place for place, body in book.places.items() if found.get(place) != body}
    book.phantom += [place for place, body in found.items() if body not in book.attempted]


@contextlib.contextmanager
def mounted(disk: Path, image: MemoryFs | None) -> Iterator[LossyMount]:
    """Skips where nothing can be mounted."""
    mount = LossyMount(disk, image)
    try:
        mount.start()
    except OSError as exc:
        pytest.skip(f"no file system can be mounted over /dev/fuse here (root may): {exc}")
    try:
        yield mount
    finally:
        mount.stop()
    assert mount.fault is None


async def power_cut(
    disk: Path,
    folder: Path,
    image: MemoryFs | None,
    book: Book,
    dice: random.Random,
    port: int,
    kind: str,
) -> MemoryFs:
    """Start on *image*, look whether all is there, send, and cut the power; what that leaves."""
    with mounted(disk, image) as mount, broker_on(disk, folder, port, kind) as address:
        await judge(address, book)
        before, more = len(book.places), dice.randint(10, 80)
        work = [asyncio.create_task(produce(address, book, number)) for number in range(PRODUCERS)]
        async with asyncio.timeout(DEADLINE_S):
            while len(book.places) < before + more:
                for task in work:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.001)
        image = await asyncio.to_thread(mount.cut, dice)
    for task in work:
        with contextlib.suppress(TransportError, OSError):
            await task
    return image


@pytest.mark.kills("ack before fdatasync")
@pytest.mark.skipif(
    not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="/dev/fuse cannot be opened"
)
async def test_power_cuts_lose_nothing_acknowledged(tmp_path: Path) -> None:
    seed, book, port = 4, Book(), free_port()
    dice, image, disk = random.Random(seed), None, tmp_path / "disk"
    disk.mkdir()
    with figures("T4", nightly=True, seed=seed, faults=CUTS) as line:
        for _ in range(CUTS):
            image = await power_cut(disk, tmp_path, image, book, dice, port, "careful")
            assert not book.lost
        with mounted(disk, image), broker_on(disk, tmp_path, port, "careful") as address:
            await judge(address, book)
        line.update(
            attempts=len(book.attempted),
            acknowledged=len(book.places),
            received=book.received,
            lost=len(book.lost),
        )
    assert not book.lost
    assert not book.phantom
    assert len(book.places) >= 10 * CUTS


@pytest.mark.waits(40)
@pytest.mark.skipif(
    not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="/dev/fuse cannot be opened"
)
async def test_with_asynchronous_flush_a_power_cut_costs_the_newest_messages_only(
    tmp_path: Path,
) -> None:
    """P2.

    At most 4 MiB of them, and no hole: in a queue nothing that was sent behind a lost message
    survives it.
    """
    seed, book, port = 40, Book(), free_port()
    dice, image, disk, lost = random.Random(seed), None, tmp_path / "disk", 0
    disk.mkdir()
    with figures("T4 async", nightly=True, seed=seed, faults=ASYNC_CUTS) as line:
        for cut in range(ASYNC_CUTS + 1):
            acknowledged = dict(book.places)
            with mounted(disk, image), broker_on(disk, tmp_path, port, "async") as address:
                await judge(address, book)
            for topic in {topic for topic, _ in book.lost}:
                first = min(offset for of, offset in book.lost if of == topic)
                behind = [
                    place for place in acknowledged if place[0] == topic and place[1] >= first
                ]
                assert book.lost >= set(behind), "a hole"
            assert sum(len(acknowledged[place]) for place in book.lost) <= MOST_AT_RISK
            assert not book.phantom
            lost += len(book.lost)
            # its place may be given out again
            for place in book.lost:
                del book.places[place]
            book.lost.clear()
            if cut < ASYNC_CUTS:
                image = await power_cut(disk, tmp_path, image, book, dice, port, "async")
        line.update(
            attempts=len(book.attempted),
            acknowledged=len(book.places) + lost,
            received=book.received,
        )
        line["lost_in_the_window"], line["lost"] = lost, 0
    assert book.received >= len(book.places) > 0


@pytest.mark.skipif(
    not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="/dev/fuse cannot be opened"
)
async def test_the_same_cuts_lose_where_nothing_is_synced(tmp_path: Path) -> None:
    book, port, dice, disk = Book(), free_port(), random.Random(5), tmp_path / "disk"
    disk.mkdir()
    image = None
    for _ in range(10):
        image = await power_cut(disk, tmp_path, image, book, dice, port, "careless")
        with (
            mounted(disk, image),
            contextlib.suppress(AssertionError),
            broker_on(disk, tmp_path, port, "careless") as address,
        ):
            # a disk that does not even let it start has lost everything
            await judge(address, book)
            if not book.lost:
                continue
        return
    pytest.fail(
        "ten power cuts without any sync, and nothing was lost: the file system forgets nothing"
    )
