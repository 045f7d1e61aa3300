"""Messages by key, over a socket; and reads for which the disk must be waited for."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ogive.access.user_table import AccessTable
from ogive.broker import Broker
from ogive.broker.pulls import lookup
from ogive.broker.services import MAX_SEARCHES
from ogive.errors import ResponseCode
from ogive.store.file_reader import Cold, Place
from ogive.store.fs import OsFs
from ogive.transport.connection import Connection
from ogive.transport.limits import ServerLimits
from ogive.wire.bodies.acls import Acl, Policy, PolicyEntry, User
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.signing import Credentials
from tests.raw_client import RawClient, messages
from tests.unit.broker.conftest import StartBroker, not_reading

FOR_EVER = 2**63 - 1
NOT_FOUND = ResponseCode.QUERY_NOT_FOUND


def asked(key: str, topic: str = "T", **fields: object) -> dict[str, object]:
    return {
        "topic": topic,
        "key": key,
        "maxNum": 64,
        "beginTimestamp": 0,
        "endTimestamp": FOR_EVER,
    } | fields


async def test_messages_are_found_by_key_in_the_order_of_the_log(client: RawClient) -> None:
    for n in range(70):
        await client.send(
            "T", b"%d" % n, {"UNIQ_KEY": f"ID{n}", "KEYS": "all odd" if n % 2 else "all"}
        )
    answer = await client.ok(RequestCode.QUERY_MESSAGE, **asked("odd"))
    assert [message.body for message in messages(answer)] == [b"%d" % n for n in range(1, 70, 2)]
    last = messages(answer)[-1]
    assert int(answer.ext_fields["indexLastUpdatePhyoffset"]) == last.commitlog_offset
    assert int(answer.ext_fields["indexLastUpdateTimestamp"]) == last.store_timestamp_ms
    assert (
        len(messages(await client.ok(RequestCode.QUERY_MESSAGE, **asked("all", maxNum=1000)))) == 64
    )
    assert len(messages(await client.ok(RequestCode.QUERY_MESSAGE, **asked("all", maxNum=3)))) == 3
    unique = await client.ok(RequestCode.QUERY_MESSAGE, **asked("ID7", _UNIQUE_KEY_QUERY="true"))
    assert [message.body for message in messages(unique)] == [b"7"]


async def test_messages_are_found_by_tag_the_newest_of_all_queues_in_the_order_of_the_log(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "CHUNK", 4)
    for n in range(90):
        await client.send(
            "T", b"%d" % n, {"TAGS": "odd" if n % 2 else "AaAa", "KEYS": "BBBB"}, queue=n % 3
        )
    await client.send("U", b"x", {"TAGS": "odd"})
    odd = await client.ok(RequestCode.QUERY_MESSAGE, **asked("odd", indexType="T"))
    assert [message.body for message in messages(odd)] == [b"%d" % n for n in range(1, 90, 2)]
    newest = messages(
        await client.ok(RequestCode.QUERY_MESSAGE, **asked("odd", indexType="T", maxNum=2))
    )
    assert [message.body for message in newest] == [b"87", b"89"]
    last_ms = newest[-1].store_timestamp_ms
    assert (
        await client.call(
            RequestCode.QUERY_MESSAGE, **asked("odd", indexType="T", beginTimestamp=last_ms + 1)
        )
    ).code == NOT_FOUND
    assert (
        await client.call(RequestCode.QUERY_MESSAGE, **asked("odd", indexType="T", endTimestamp=1))
    ).code == NOT_FOUND
    # a key; and a tag has its hash
    assert (
        await client.call(RequestCode.QUERY_MESSAGE, **asked("BBBB", indexType="T"))
    ).code == NOT_FOUND
    assert (await client.call(RequestCode.QUERY_MESSAGE, **asked("odd"))).code == NOT_FOUND


@pytest.mark.parametrize(
    ("key", "topic", "end"), [("nobody's", "T", FOR_EVER), ("key", "U", FOR_EVER), ("key", "T", 1)]
)
async def test_nothing_found_has_its_own_code(
    client: RawClient, key: str, topic: str, end: int
) -> None:
    await client.send("T", b"x", {"UNIQ_KEY": "A", "KEYS": "key"})
    answer = await client.call(RequestCode.QUERY_MESSAGE, **asked(key, topic, endTimestamp=end))
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_large_messages_do_not_make_a_frame_that_nobody_takes(
    start_broker: StartBroker,
) -> None:
    server = await start_broker(max_large_pull_bytes=100_000)
    async with await RawClient.open(server.address) as client:
        for _ in range(3):
            await client.send("T", bytes(60_000), {"UNIQ_KEY": "A"})
        assert len(messages(await client.ok(RequestCode.QUERY_MESSAGE, **asked("A")))) == 1


async def test_a_client_that_does_not_read_gets_no_further_messages_by_key_until_it_does(
    start_broker: StartBroker,
) -> None:
    limit = 256 * 1024
    server = await start_broker(
        segment_bytes=32 * 1024 * 1024, server=ServerLimits(max_write_buffer_bytes=limit)
    )
    async with await RawClient.open(server.address) as client:
        for _ in range(64):
            await client.send("T", bytes(16 * 1024), {"UNIQ_KEY": "A", "KEYS": "all"})
        async with not_reading(client, server, limit):
            answers = [client.start(RequestCode.QUERY_MESSAGE, **asked("all")) for _ in range(60)]
        for answer in answers:
            assert len(messages(await answer)) == 64


async def test_searches_that_wait_for_a_slow_client_leave_the_loop_alone(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.send("T", b"x", {"UNIQ_KEY": "A"})
    monkeypatch.setattr(lookup, "LOOK_AGAIN_S", 1.0)
    looks: list[Connection] = []

    def must_wait(asking: Connection) -> bool:
        looks.append(asking)
        return len(looks) < 2

    monkeypatch.setattr(server.context.slow_readers, "must_wait", must_wait)
    found = client.start(RequestCode.QUERY_MESSAGE, **asked("A"))
    while not looks:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(looks) == 1
    assert len(messages(await found)) == 1


async def test_few_searches_are_under_way_at_a_time_and_none_for_a_client_that_is_gone(
    server: Broker, client: RawClient, another: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may hold megabytes of what it has found so far."""
    await fill_and_forget(server, client)
    disk = ColdDisk(monkeypatch, server)
    async with await RawClient.open(server.address) as leaving:
        for _ in range(2 * MAX_SEARCHES):
            leaving.start(RequestCode.QUERY_MESSAGE, **asked("ID1", "Old"))
        while server.context.cold_reads.waiting < MAX_SEARCHES:
            await asyncio.sleep(0.01)
        mine = client.start(RequestCode.QUERY_MESSAGE, **asked("ID3", "Old"))
        await another.ok(RequestCode.GET_MAX_OFFSET, topic="Old", queueId=0)
        assert server.context.cold_reads.waiting == MAX_SEARCHES
    while len(server.context.origins) > 2:
        await asyncio.sleep(0.01)
    disk.gate.set()
    assert [message.body for message in messages(await mine)] == [b"3"]
    assert len(disk.brought_in) < 2 * MAX_SEARCHES


class ColdDisk:
    """Makes the operating system answer that what is asked for is on disk only, until it was read
    by another thread and *gate* is open.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, server: Broker) -> None:
        self.gate = threading.Event()
        self.brought_in: list[Place] = []
        self._read_before: set[str] = set()
        store = server.context.store
        bring_in = store.bring_in

        def slowly(place: Place) -> bytes:
            assert self.gate.wait(60)
            data = bring_in(place)
            self.brought_in.append(place)
            self._read_before.add(place.path.parent.name)
            return data

        def now(read: Callable[[Any, int, int], bytes], path: Any, size: int, offset: int) -> bytes:
            if not store._disk.waits and path.parent.name not in self._read_before:
                raise Cold(
                    path,
                    offset,
                    size,
                    store._disk.unreadable if path.parent.name == "commitlog" else None,
                )
            return read(path, size, offset)

        monkeypatch.setattr(server.context.cold_reads, "_bring_in", slowly)
        for name in ("read", "read_log"):
            monkeypatch.setattr(store._disk, name, partial(now, getattr(store._disk, name)))


async def fill_and_forget(server: Broker, client: RawClient) -> None:
    """Ten messages, of which memory holds nothing."""
    for n in range(10):
        await client.send("Old", b"%d" % n, {"UNIQ_KEY": f"ID{n}"})
    store = server.context.store
    store._log.hot._chunks.clear()
    store._log.hot._starts.clear()


async def test_a_pull_that_waits_for_the_disk_stops_nobody(
    server: Broker, client: RawClient, another: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill_and_forget(server, client)
    disk = ColdDisk(monkeypatch, server)
    waiting = client.start_pull("G", "Old", 0)
    by_id = client.start(RequestCode.VIEW_MESSAGE_BY_ID, offset=0)
    by_time = client.start(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic="Old", queueId=0, timestamp=1
    )
    while server.context.cold_reads.waiting < 3:
        await asyncio.sleep(0.01)
    await another.send("New", b"hot")
    assert [message.body for message in messages(await another.pull("G", "New", 0))] == [b"hot"]
    assert not waiting.done()
    disk.gate.set()
    assert [message.body for message in messages(await waiting)] == [b"%d" % n for n in range(10)]
    assert messages(await by_id)[0].body == b"0"
    assert (await by_time).ext_fields["offset"] == "0"
    assert len(disk.brought_in) == 3


async def test_access_control_waits_for_the_disk_and_stops_nobody(
    start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a user may see a message depends on its topic, which only the log knows."""
    table = AccessTable(tmp_path / "access")
    for name, may in (("reader", "Old"), ("other", "New")):
        await table.create_user(User(username=name, password=f"{name}-secret", user_type="Normal"))
        rule = PolicyEntry.from_json(
            {"resource": f"Topic:{may}", "actions": ["Sub"], "decision": "Allow"}
        )
        await table.put_acl(Acl(subject=f"User:{name}", policies=(Policy(entries=(rule,)),)))
    server = await start_broker(access=table)
    guard, server.context.guard = server.context.guard, None
    async with (
        await RawClient.open(server.address) as client,
        await RawClient.open(server.address) as another,
    ):
        await fill_and_forget(server, client)
        server.context.guard = guard
        disk = ColdDisk(monkeypatch, server)

        def view(user: str) -> asyncio.Future[RemotingCommand]:
            fields = Credentials(access_key=user, secret_key=f"{user}-secret").sign(
                {"offset": "0"}, b""
            )
            return client.start(RequestCode.VIEW_MESSAGE_BY_ID, **fields)

        allowed, forbidden = view("reader"), view("other")
        while server.context.cold_reads.waiting < 2:
            await asyncio.sleep(0.01)
        assert (
            await another.call(RequestCode.GET_MAX_OFFSET, topic="Old", queueId=0)
        ).code == ResponseCode.NO_PERMISSION
        disk.gate.set()
        assert messages(await allowed)[0].body == b"0"
        assert (await forbidden).code == ResponseCode.NO_PERMISSION


async def test_a_disk_that_cannot_be_read_is_the_answer(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill_and_forget(server, client)
    disk = ColdDisk(monkeypatch, server)
    disk.gate.set()

    def broken(self: OsFs, handle: int, size: int, offset: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(OsFs, "pread", broken)
    for answer in (
        await client.pull("G", "Old", 0),
        await client.call(RequestCode.VIEW_MESSAGE_BY_ID, offset=0),
    ):
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "Input/output error" in (answer.remark or "")


async def test_broker_stops_while_reads_wait(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        await fill_and_forget(server, client)
        disk = ColdDisk(monkeypatch, server)
        waiting = client.start_pull("G", "Old", 0)
        while not server.context.cold_reads.waiting:
            await asyncio.sleep(0.01)
        threading.Timer(0.2, disk.gate.set).start()
        await server.stop()
        await asyncio.wait([waiting], timeout=60)
        assert waiting.done()
        waiting.exception()
