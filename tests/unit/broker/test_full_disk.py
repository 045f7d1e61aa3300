"""A broker whose disk is full, over a socket: what it refuses and what it still does, and that it
goes on by itself.
"""

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ogive.broker import Broker
from ogive.broker.handlers.admin import runtime_info
from ogive.broker.pop import revive
from ogive.broker.startup import Machine
from ogive.errors import ResponseCode
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.pop import ORDERLY_QUEUE, BatchAck, BatchAckBody
from tests.chaos.faults import FaultyFs
from tests.pop import GROUP, leased, pop, popping
from tests.raw_client import RawClient, messages
from tests.unit.broker.conftest import StartBroker
from tests.unit.broker.test_metrics_page import value

FIGURES = ("rocketmq_broker_permission", "ogive_store_writable", "ogive_sends_failed_total")
# bytes, more than those of a message without a body
RECORD = 600


class SmallDisk:
    """No file is made and none grows while it is *full*.

    The room that the log has made ahead is there.
    """

    def __init__(self) -> None:
        self.full = False

    def __call__(self, call: str, path: Path) -> None:
        if self.full and (
            call in ("create", "zero") or (call == "pwrite" and "commitlog" not in path.parts)
        ):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def disk() -> SmallDisk:
    return SmallDisk()


@pytest.fixture
async def server(start_broker: StartBroker, disk: SmallDisk) -> Broker:
    machine = Machine(fs=FaultyFs(disk), store={"ahead_bytes": 0})
    return await start_broker(machine=machine, delay_levels="3s", offsets_persist_s=0.05)


@pytest.fixture
async def client(server: Broker, disk: SmallDisk) -> AsyncIterator[RawClient]:
    async with await RawClient.open(server.address) as client:
        yield client
        disk.full = False


async def fill(server: Broker, client: RawClient) -> tuple[list[bytes], RemotingCommand]:
    """What the room ahead still takes, to the last message, and the answer of the first that it
    does not.
    """
    taken: list[bytes] = []
    while True:
        room = (
            server.context.store._log_writer.prepared - server.context.store.stats().commitlog_end
        )
        body = b"%d " % len(taken) + bytes(max(0, min(50_000, room - RECORD)))
        answer = await client.start_send("T", body)
        if answer.code != ResponseCode.SUCCESS:
            return taken, answer
        taken.append(body)
        assert len(taken) < 100, "the disk was never full"


async def once_there_is_room(client: RawClient, topic: str, body: bytes) -> None:
    async with asyncio.timeout(60):
        while (await client.start_send(topic, body)).code != ResponseCode.SUCCESS:
            await asyncio.sleep(0.05)


async def pulled(client: RawClient, topic: str) -> list[bytes]:
    """Everything that is in it."""
    found: list[bytes] = []
    while (answer := await client.pull("Looker", topic, len(found))).code == ResponseCode.SUCCESS:
        found += [message.body for message in messages(answer)]
    return found


async def test_sends_are_refused_and_all_else_goes_on(
    server: Broker, client: RawClient, disk: SmallDisk
) -> None:
    first = [b"%d" % n for n in range(3)]
    for body in first:
        await client.send("T", body)
    await client.heartbeat("c1", "G", "T")
    disk.full = True
    taken, answer = await fill(server, client)
    assert taken
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (
        answer.remark == "service not available now: no room for the commit log: its disk is full"
    )
    again, batch = await client.start_send("T", b"x"), await client.send_batch("T", [b"y", b"z"])
    text = (await server.metrics_page()).text
    assert [value(text, name) for name in FIGURES] == [4, 0, 3]
    assert 0 < value(text, "ogive_disk_used_ratio") <= 1
    assert runtime_info(server.context)["putMessageFailedTimes"] == "3"
    refused = {"request_code": "send_message_v2", "response_code": "service_not_available"}
    assert value(text, "rocketmq_rpc_latency_milliseconds_count", **refused) == 2
    # readers are served
    assert (server.ready_page().status, server.health_page().status) == (200, 200)
    assert (again.code, again.remark) == (batch.code, batch.remark) == (answer.code, answer.remark)

    assert await pulled(client, "T") == [*first, *taken]
    await client.ok(
        RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=2
    )
    asked = await client.ok(
        RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0
    )
    assert asked.ext_fields["offset"] == "2"
    await client.heartbeat("c2", "G", "T")

    disk.full = False
    await once_there_is_room(client, "T", b"last")
    text = (await server.metrics_page()).text
    assert [value(text, name) for name in FIGURES[:2]] == [6, 1]
    assert await pulled(client, "T") == [*first, *taken, b"last"]


async def test_a_new_topic_is_refused_and_leaves_nothing_behind(
    server: Broker, client: RawClient, disk: SmallDisk
) -> None:
    await client.send("T")
    disk.full = True
    await fill(server, client)
    for _ in range(3):
        answer = await client.start_send("New", b"refused")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "its disk is full" in (answer.remark or "")
    made = await client.call(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic="Made",
        defaultTopic="TBW102",
        readQueueNums=1,
        writeQueueNums=1,
        perm=6,
        topicFilterType="SINGLE_TAG",
        topicSysFlag=0,
        order=False,
    )
    assert made.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "its disk is full" in (made.remark or "")
    disk.full = False
    await once_there_is_room(client, "New", b"taken")
    assert await pulled(client, "New") == [b"taken"]


async def test_what_falls_due_meanwhile_is_delivered_once(
    server: Broker, client: RawClient, disk: SmallDisk
) -> None:
    await client.send("T", b"first")
    await client.send("T", b"delayed", {"DELAY": "1"})
    await client.send("T", b"timed", {"TIMER_DELAY_MS": "3000"})
    disk.full = True
    taken, _ = await fill(server, client)
    due = asyncio.get_running_loop().time() + 3.2
    while asyncio.get_running_loop().time() < due:
        assert (await client.start_send("T", b"x")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        await asyncio.sleep(0.01)
    assert await pulled(client, "T") == [b"first", *taken]
    disk.full = False
    async with asyncio.timeout(60):
        while not server.context.delivered(1) or len(server.context.timers):
            await asyncio.sleep(0.01)
    assert sorted(await pulled(client, "T")) == sorted([b"first", *taken, b"delayed", b"timed"])


async def test_progress_that_a_stop_cannot_save_is_told(
    server: Broker, client: RawClient, disk: SmallDisk
) -> None:
    await client.send("T", b"first")
    await client.heartbeat("c1", "G", "T")
    disk.full = True
    await client.ok(
        RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=1
    )
    await server.stop()
    assert "its disk is full" in str(server.unsaved)


async def test_what_was_acknowledged_and_committed_is_there_after_a_restart(
    server: Broker, client: RawClient, disk: SmallDisk, start_broker: StartBroker
) -> None:
    await client.send("T", b"first")
    await client.heartbeat("c1", "G", "T")
    disk.full = True
    taken, _ = await fill(server, client)
    await client.ok(
        RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=2
    )
    disk.full = False
    await once_there_is_room(client, "T", b"last")
    await once_there_is_room(client, "New", b"taken")
    await server.stop()
    again = await start_broker()
    async with await RawClient.open(again.address) as other:
        assert await pulled(other, "T") == [b"first", *taken, b"last"]
        assert await pulled(other, "New") == [b"taken"]
        asked = await other.ok(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0
        )
        assert asked.ext_fields["offset"] == "2"


async def test_what_is_due_is_stored_again_once(
    server: Broker, client: RawClient, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has room for the copy, and the journal none to say that the lease has ended."""
    monkeypatch.setattr(revive, "_RETRY_S", 0.01)
    retry, store, book = f"%RETRY%{GROUP}_T", server.context.store, server.context.leases
    tries = 0

    def count(*arguments: Any) -> None:
        nonlocal tries
        tries += 1
        again(*arguments)

    again = book.retry
    monkeypatch.setattr(book, "retry", count)
    await client.send("T", b"a")
    await pop(client, invisibleTime=20)
    answer = await client.call(RequestCode.POP_MESSAGE, **popping(pollTime=30_000, invisibleTime=9))
    assert len(leased(answer)) == 1
    disk.full = True
    async with asyncio.timeout(60):
        while tries < 5:
            await asyncio.sleep(0)
        disk.full = False
        while len(book):
            await asyncio.sleep(0)
    assert store.max_offset(retry, 0) == 2


async def test_an_acknowledgement_in_order_is_refused_as_well(
    server: Broker, client: RawClient, disk: SmallDisk
) -> None:
    await client.send("T", b"a")
    ((_, handle),) = await pop(client, order=True, queueId=0)
    ack = BatchAck(
        group=GROUP, topic="T", start=handle.start, queue_id=0, revive_queue=ORDERLY_QUEUE,
        pop_time_ms=handle.pop_time_ms, invisible_ms=handle.invisible_ms, bits=0b1,
    )  # fmt: skip
    body = BatchAckBody(acks=(ack, ack)).encode()
    disk.full = True
    answer = await client.call(RequestCode.BATCH_ACK_MESSAGE, body)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    disk.full = False
    await client.ok(RequestCode.BATCH_ACK_MESSAGE, body)
    assert server.context.offsets.get(GROUP, "T", 0) == 1


async def test_a_lease_without_a_checkpoint_is_not_over(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    """The log had no room for it at the stop; then Apache's broker had the directory."""
    full = False

    def fault(call: str, path: Path) -> None:
        if full and call in ("create", "zero") and "commitlog" in path.parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    machine = Machine(fs=FaultyFs(fault), store={"ahead_bytes": 0})
    broker = await start_broker(machine=machine)
    async with await RawClient.open(broker.address) as client:
        await client.send("T", b"a")
        assert len(await pop(client)) == 1
        full = True
        await fill(broker, client)
    await broker.stop()
    assert broker.unexported is not None
    path = tmp_path / "store/config/consumerOffset.json"
    table = json.loads(path.read_text())
    # Apache's broker gives it again
    assert table["offsetTable"][f"T@{GROUP}"]["0"] == 0
    full = False
    path.write_text(json.dumps({"offsetTable": table["offsetTable"]}))
    broker = await start_broker()
    assert len(broker.context.leases) == 1
