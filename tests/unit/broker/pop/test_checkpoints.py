"""Leases that leave and come back as checkpoints of Apache's broker."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ogive.broker import Broker
from ogive.broker.pop import checkpoints
from ogive.broker.pop.checkpoints import REVIVE_GROUP, checkpoint, lease_of, revive_topic
from ogive.broker.pop.leases import Lease, LeaseKey
from ogive.broker.startup import Machine
from ogive.cli.main import main
from ogive.errors import ProtocolError
from ogive.store.types import NewMessage
from ogive.wire.codes import RequestCode
from ogive.wire.message import decode_properties, decode_stored, encode_properties
from tests.pop import GROUP, acknowledging, leased, open_offsets, pop, popping
from tests.raw_client import RawClient
from tests.unit.broker.conftest import StartBroker, crash_image

REVIVE = revive_topic("DefaultCluster")
# as Apache's broker 5.5 writes it
TEXT = (
    '{"bm":2,"bn":"broker-a","c":"G","d":[0,1,2],"it":60000,"n":3,"pt":1735689600123,"q":2,"ro":0,'
    '"so":17,"sp":false,"t":"T"}'
)


def test_a_lease_is_written_as_apaches_broker_writes_it() -> None:
    key = LeaseKey("G", "T", 2, 17, 1735689600123)
    lease = Lease(key, (17, 18, 19), 60_000, 0.0, 3, False, 0b101, 1)
    assert json.dumps(checkpoint(lease, "broker-a"), separators=(",", ":")) == TEXT
    read = lease_of(json.loads(TEXT), 3)
    assert (read.key, read.offsets, read.open, read.invisible_ms) == (
        key,
        lease.offsets,
        0b101,
        60_000,
    )


def test_checkpoints_of_older_brokers_and_what_is_none() -> None:
    value: dict[str, Any] = json.loads(TEXT)
    del value["d"], value["sp"], value["bn"]
    assert lease_of(value, 0).offsets == (17, 18, 19)
    for changed in (
        {"n": 33, "d": list(range(33))},
        {"so": -1},
        {"pt": "x"},
        {"c": None, "n": None},
    ):
        with pytest.raises(ProtocolError, match="makes no sense"):
            lease_of(value | changed, 0)


def waiting(broker: Broker) -> list[dict[str, str]]:
    """The properties of timer messages for the revive topic."""
    store, found = broker.context.store, []
    for one in broker.context.timers.waiting(REVIVE):
        record = store.record_at(one.commitlog_offset)
        assert record is not None
        found.append(decode_properties(decode_stored(record).properties))
    return found


async def test_leases_go_over_a_clean_stop(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = await start_broker()
    async with await RawClient.open(broker.address) as client:
        for body in (b"a", b"b", b"c"):
            await client.send("T", body)
        (_, first), *_ = await pop(client, invisibleTime=60_000)
        await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(first))
    await broker.stop()
    table = json.loads((tmp_path / "store/config/consumerOffset.json").read_text())
    # as Apache's broker goes on: behind what is in the checkpoint
    assert table["offsetTable"][f"T@{GROUP}"]["0"] == 3
    broker = await start_broker()
    (lease,) = broker.context.leases.all()
    assert open_offsets(lease) == [1, 2]
    # nothing is delivered to the revive topic any more
    assert waiting(broker) == []
    async with await RawClient.open(broker.address) as client:
        assert await pop(client) == []
        handle = first._replace(offset=2)
        await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(handle))
    await broker.stop()
    broker = await start_broker()
    (lease,) = broker.context.leases.all()
    assert open_offsets(lease) == [1]


async def test_many_checkpoints_are_taken_back(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than may wait for the writer at once."""
    monkeypatch.setattr(checkpoints, "_AT_ONCE", 8)
    broker = await start_broker(flush="async")
    async with await RawClient.open(broker.address) as client:
        for _ in range(40):
            await client.send("T", b"")
            assert len(await pop(client, queueId=0, maxMsgNums=1)) == 1
    await broker.stop()
    machine = Machine(store={"max_waiting_bytes": 10_000})
    broker = await start_broker(machine=machine, flush="async")
    assert len(broker.context.leases) == 40
    await broker.context.finish_tasks()
    store = broker.context.store
    assert store.max_offset("rmq_sys_wheel_timer", 0) == 80


async def test_what_was_due_meanwhile_comes_again(start_broker: StartBroker) -> None:
    broker = await start_broker()
    async with await RawClient.open(broker.address) as client:
        await client.send("T", b"a")
        await pop(client, invisibleTime=1000)
        await client.send("T", b"b")
        await pop(client, invisibleTime=60_000)
    await broker.stop()
    broker = await start_broker()
    # the first came again in time, or was due at the start
    async with await RawClient.open(broker.address) as client:
        answer = await client.call(RequestCode.POP_MESSAGE, **popping(pollTime=30_000))
        assert [message.body for message, _ in leased(answer)] == [b"a"]
        async with asyncio.timeout(60):
            while len(broker.context.leases) > 2:
                await asyncio.sleep(0)


async def test_records_of_the_revive_topic_are_taken_over(start_broker: StartBroker) -> None:
    """A checkpoint and an acknowledgement that Apache's broker had not read."""
    broker = await start_broker()
    now_ms = broker.context.now_ms()
    async with await RawClient.open(broker.address) as client:
        for body in (b"a", b"b"):
            await client.send("T", body)
        ck = json.loads(TEXT) | {
            "d": [0, 1], "n": 2, "bm": 0, "so": 0, "q": 0, "pt": now_ms, "c": GROUP,
        }  # fmt: skip
        ack = {"ao": 0, "bn": "broker-a", "c": GROUP, "pt": now_ms, "q": 0, "so": 0, "t": "T"}
    ctx = broker.context
    # brokers alone write there
    records = [
        NewMessage(
            REVIVE, 3, json.dumps(value).encode(),
            encode_properties({"TAGS": tag, "UNIQ_KEY": tag}),
            0, 0, now_ms, ctx.store_host, ctx.store_host,
        )
        for tag, value in (("ck", ck), ("ack", ack))
    ]  # fmt: skip
    stored: asyncio.Future[object] = ctx.loop.create_future()
    ctx.put_now(records, stored.set_result)
    await stored
    await broker.stop()
    broker = await start_broker()
    (lease,) = broker.context.leases.all()
    assert (lease.key.start, open_offsets(lease)) == (0, [1])
    assert broker.context.offsets.get(REVIVE_GROUP, REVIVE, 3) == 1


async def test_leases_are_exported_after_a_crash(
    start_broker: StartBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = await start_broker()
    async with await RawClient.open(broker.address) as client:
        await client.send("T", b"a")
        await pop(client, invisibleTime=60_000)
        await broker.context.topics.saved()
        await broker.context.groups.saved()
        left = crash_image(broker, tmp_path)
    done = await asyncio.to_thread(main, ["store", "export-leases", str(left)])
    assert (done, "1 lease written" in capsys.readouterr().out) == (0, True)
    table = json.loads((left / "config/consumerOffset.json").read_text())
    assert table["offsetTable"][f"T@{GROUP}"]["0"] == 1
    assert await asyncio.to_thread(main, ["store", "export-leases", str(tmp_path)]) == 1
