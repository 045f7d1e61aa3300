"""A sector of the log that the disk cannot read any more: what waits behind it is delivered, and a
broker starts.
"""

import logging
from pathlib import Path

import pytest

from ogive.broker.startup import Machine
from ogive.broker.transactions import state
from ogive.errors import ResponseCode
from ogive.model import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from ogive.store.message_store import MessageStore
from tests.chaos.faults import BadSectors
from tests.raw_client import RawClient, messages, unique_key
from tests.unit.broker import test_delay_levels, test_timers
from tests.unit.broker.conftest import StartBroker

COUNT = 12
# the message whose block becomes unreadable
BAD = 5
BODY = bytes(2000)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def body(n: int) -> bytes:
    return b"%02d" % n + BODY


def spoil(fs: BadSectors, root: Path, store: MessageStore, topic: str, first: int = 0) -> set[int]:
    """Make the block unreadable in which message BAD of the first queue with messages of *topic*
    begins; which ones that costs.
    """
    key = next(key for key in store.queues if key[0] == topic)
    places = [(entry.commitlog_offset, entry.size) for entry in store.entries(*key, first, COUNT)]
    at = places[BAD][0] - places[BAD][0] % BadSectors.BLOCK
    fs.spoil(root / "commitlog" / f"{0:020d}", at)
    return {
        n
        for n, (start, size) in enumerate(places)
        if start < at + BadSectors.BLOCK and start + size > at
    }


def left(lost: set[int]) -> list[bytes]:
    assert BAD in lost
    assert len(lost) < 5
    return [body(n) for n in range(COUNT) if n not in lost]


async def test_a_consumer_passes_over_it(start_broker: StartBroker) -> None:
    fs = BadSectors()
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        for n in range(COUNT):
            await client.send("T", body(n))
    lost = spoil(fs, server.config.data, server.context.store, "T")
    await server.stop()
    server = await start_broker(machine=Machine(fs=fs))
    found: list[bytes] = []
    async with await RawClient.open(server.address) as client:
        offset = 0
        while (
            answer := await client.pull("G", "T", offset, max_messages=3)
        ).code != ResponseCode.PULL_NOT_FOUND and offset < COUNT:
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
            found += [message.body for message in messages(answer)]
            offset = int((answer.ext_fields or {})["nextBeginOffset"])
    assert found == left(lost)


async def test_a_delay_level_passes_over_it(tmp_path: Path) -> None:
    fs = BadSectors()
    bench = test_delay_levels.Bench(tmp_path)
    for n in range(COUNT):
        bench.send(body(n), 1)
    lost = spoil(fs, tmp_path, bench.store, SCHEDULE_TOPIC)
    await bench.close()
    bench = test_delay_levels.Bench(tmp_path, fs=fs)
    bench.schedule.start()
    found = await bench.at(1_010_000)
    while bench.disk.waiting:
        bench.disk.bring_in()
        found = await bench.at(1_010_000)
    assert found == left(lost)
    await bench.close()


@pytest.mark.parametrize("at_the_start", [True, False])
async def test_timers_pass_over_it(tmp_path: Path, at_the_start: bool) -> None:
    fs = BadSectors()
    bench = test_timers.Bench(tmp_path)
    for n in range(COUNT):
        bench.send(body(n), 5000 + n)
    bench.save()
    places = BadSectors()
    lost = spoil(places, tmp_path, bench.store, TIMER_TOPIC)
    await bench.close()
    if at_the_start:
        fs.bad = places.bad
    bench = test_timers.Bench(tmp_path, fs=fs)
    fs.bad = places.bad
    found = await bench.after(10_000)
    while bench.disk.waiting:
        bench.disk.bring_in()
        found = await bench.after(0)
    assert found == left(lost)
    await bench.close()


async def test_a_start_passes_over_half_messages_in_it(start_broker: StartBroker) -> None:
    fs = BadSectors()
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        for n in range(COUNT):
            await client.send(
                "T", body(n), {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": unique_key()}
            )
    assert len(server.context.transactions.idle()) == COUNT
    lost = spoil(fs, server.config.data, server.context.store, HALF_TOPIC)
    await server.stop()
    server = await start_broker(machine=Machine(fs=fs))
    transactions = server.context.transactions
    assert [transactions.half_message(each).body for each in transactions.idle()] == left(lost)


async def test_a_start_passes_over_a_half_message_that_cannot_be_read_a_second_time(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        await client.send("T", b"", {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": unique_key()})
    await server.stop()
    monkeypatch.setattr(state, "find_half_message", lambda store, offset: None)
    server = await start_broker()
    assert len(server.context.transactions.idle()) == 1
