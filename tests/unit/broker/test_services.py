"""Messages while the table of topics cannot be saved: what is refused is not stored, and nothing is
stored twice.
"""

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ogive.broker import Broker
from ogive.broker.startup import Machine
from ogive.errors import ResponseCode
from ogive.model import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from ogive.store.types import Messages, PutDone
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from tests.chaos.faults import FaultyFs
from tests.raw_client import RawClient, messages, unique_key
from tests.unit.broker.conftest import StartBroker


class Tables:
    """No table of topics can be written while *code* is set."""

    def __init__(self) -> None:
        self.code = 0

    def __call__(self, call: str, path: Path) -> None:
        if self.code and path.name.startswith("topics.json"):
            raise OSError(self.code, os.strerror(self.code))


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
async def server(start_broker: StartBroker, tables: Tables) -> Broker:
    return await start_broker(
        machine=Machine(fs=FaultyFs(tables)), duplicate_window_s=60.0, delay_levels="1s"
    )


@pytest.fixture
async def client(server: Broker, tables: Tables) -> AsyncIterator[RawClient]:
    """T is saved."""
    async with await RawClient.open(server.address) as client:
        await client.send("T", b"first")
        yield client
        tables.code = 0


async def bodies(client: RawClient, topic: str) -> list[bytes]:
    answer = await client.pull("looker", topic, 0)
    return (
        [message.body for message in messages(answer)]
        if answer.code == ResponseCode.SUCCESS
        else []
    )


def refused(answer: RemotingCommand) -> bool:
    return answer.code == ResponseCode.SERVICE_NOT_AVAILABLE and "could not save topics" in (
        answer.remark or ""
    )


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
async def test_what_was_delayed_or_timed_is_delivered_once(
    server: Broker, client: RawClient, tables: Tables, code: int
) -> None:
    await client.send("T", b"delayed", {"DELAY": "1"})
    await client.send("T", b"timed", {"TIMER_DELIVER_MS": str(time.time_ns() // 1_000_000 + 1000)})
    tables.code = code
    # makes its retry topic
    await client.heartbeat("c1", "NewGroup", "T")
    async with asyncio.timeout(60):
        while not server.context.delivered(1) or len(server.context.timers):
            await asyncio.sleep(0.01)
    assert server.context.topics.unsaved
    assert sorted(await bodies(client, "T")) == [b"delayed", b"first", b"timed"]


async def test_a_send_waits_for_no_topic_but_its_own(
    server: Broker, client: RawClient, tables: Tables
) -> None:
    tables.code = errno.ENOSPC
    assert refused(await client.start_send("New"))
    await client.send("T", b"second")
    assert (await client.send_batch("T", [b"third", b"fourth"])).code == ResponseCode.SUCCESS
    await client.send("T", b"waits", {"DELAY": "3"})
    assert server.context.topics.unsaved
    assert await bodies(client, "T") == [b"first", b"second", b"third", b"fourth"]


@pytest.mark.parametrize(
    ("properties", "stored_in"),
    [
        ({}, "New"),
        ({"DELAY": "1"}, SCHEDULE_TOPIC),
        ({"TIMER_DELAY_SEC": "60"}, TIMER_TOPIC),
        ({"TRAN_MSG": "true", "PGROUP": "P"}, HALF_TOPIC),
    ],
    ids=["plain", "delayed", "timed", "half"],
)
async def test_a_topic_that_could_not_be_saved_takes_nothing_until_it_is(
    server: Broker, client: RawClient, tables: Tables, properties: dict[str, str], stored_in: str
) -> None:
    store, before = server.context.store, server.context.store.stats().puts
    tables.code = errno.EMFILE
    for _ in range(3):
        assert refused(
            await client.start_send("New", b"x", properties | {"UNIQ_KEY": unique_key()})
        )
        assert store.stats().puts == before
    tables.code = 0
    async with asyncio.timeout(60):
        while refused(
            await client.start_send("New", b"y", properties | {"UNIQ_KEY": unique_key()})
        ):
            await asyncio.sleep(0.05)
    assert b'"New"' in (server.config.data / "config" / "topics.json").read_bytes()
    assert store.max_offset(stored_in, 0) == 1


async def test_sends_to_a_topic_that_is_being_saved_keep_their_order(
    server: Broker, client: RawClient
) -> None:
    """Those that come when it is saved, and others still wait for their turn, too."""
    answers = await asyncio.gather(*(client.start_send("New", b"%03d" % n) for n in range(200)))
    assert [int(answer.ext_fields["queueOffset"]) for answer in answers] == list(range(200))
    found: list[bytes] = []
    while len(found) < 200:
        found += [
            message.body for message in messages(await client.pull("looker", "New", len(found)))
        ]
    assert found == [b"%03d" % n for n in range(200)]


@pytest.mark.parametrize("window_s", [0.0, 60.0])
async def test_a_message_that_fails_otherwise_keeps_none_behind_it_waiting(
    start_broker: StartBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    window_s: float,
) -> None:
    """With a window of duplicates too, which then remembers nothing of it."""
    server = await start_broker(duplicate_window_s=window_s)
    store = server.context.store
    put = store.put

    def fail_once(messages: Messages, done: PutDone) -> None:
        monkeypatch.setattr(store, "put", put)
        raise RuntimeError("a bug")

    monkeypatch.setattr(store, "put", fail_once)
    async with await RawClient.open(server.address) as client:
        answers = await asyncio.gather(
            *(client.start_send("New", b"%d" % n, {"UNIQ_KEY": f"K{n}"}) for n in range(3))
        )
        assert [answer.code for answer in answers] == [
            ResponseCode.SERVICE_NOT_AVAILABLE,
            ResponseCode.SUCCESS,
            ResponseCode.SUCCESS,
        ]
        await client.send("New", b"again", {"UNIQ_KEY": "K0"})
        assert await bodies(client, "New") == [b"1", b"2", b"again"]
    assert (server.context._held_bytes, server.context.sends_waiting) == (0, 0)
    assert "RuntimeError: a bug" in caplog.text


async def test_what_waits_for_a_new_topic_is_bounded(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = asyncio.Event()

    async def slowly(name: str) -> None:
        await saved.wait()

    monkeypatch.setattr(server.context.topics, "safe", slowly)
    monkeypatch.setattr(server.context.topics, "is_saved", lambda name: saved.is_set())
    most = server.context.store.config.max_waiting_bytes
    monkeypatch.setattr(server.context, "_held_bytes", most - 1000)
    first = client.start_send("New", b"1")
    busy = await client.start_send("New", bytes(1000))
    assert (busy.code, "wait until their topics are saved" in (busy.remark or "")) == (
        ResponseCode.SYSTEM_BUSY,
        True,
    )
    saved.set()
    assert (await first).code == ResponseCode.SUCCESS
    assert server.context._held_bytes == most - 1000


async def test_a_batch_and_a_copy_for_a_new_retry_topic_are_not_stored_time_and_again(
    server: Broker, client: RawClient, tables: Tables
) -> None:
    store = server.context.store
    (first,) = messages(await client.pull("looker", "T", 0))
    tables.code = errno.ENOSPC
    for _ in range(3):
        assert refused(await client.send_batch("New", [b"a", b"b"]))
        back = await client.call(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            group="G",
            offset=first.commitlog_offset,
            delayLevel=1,
        )
        assert refused(back)
    assert (store.max_offset("New", 0), store.max_offset(SCHEDULE_TOPIC, 0)) == (0, 0)


async def test_a_key_stays_known_once_its_message_is_stored(
    server: Broker, client: RawClient, tables: Tables
) -> None:
    tables.code = errno.ENOSPC
    key = {"UNIQ_KEY": unique_key()}
    for _ in range(3):
        assert refused(await client.start_send("New", b"x", key))
        await client.send("T", b"y", key)
    tables.code = 0
    async with asyncio.timeout(60):
        while refused(answer := await client.start_send("New", b"x", key)):
            await asyncio.sleep(0.05)
    assert (answer.code, answer.ext_fields["queueOffset"]) == (ResponseCode.SUCCESS, "0")
    assert (await bodies(client, "New"), await bodies(client, "T")) == ([b"x"], [b"first", b"y"])


async def test_the_table_is_saved_once_there_is_room_without_anybody_sending(
    start_broker: StartBroker, tables: Tables
) -> None:
    server = await start_broker(machine=Machine(fs=FaultyFs(tables)), client_scan_s=0.05)
    async with await RawClient.open(server.address) as client:
        tables.code = errno.ENOSPC
        assert refused(await client.start_send("New"))
        tables.code = 0
        async with asyncio.timeout(60):
            while server.context.topics.unsaved:
                await asyncio.sleep(0.05)
