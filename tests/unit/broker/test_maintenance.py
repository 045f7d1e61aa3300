"""Old messages are removed while consumers read, and clients learn where to go on; over a
socket.
"""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from ogive.broker import Broker, startup
from ogive.broker.maintenance import Retention, local_hour
from ogive.errors import ResponseCode, StoreError
from ogive.store import JsonTable, OsFs
from ogive.store.consumequeue import ConsumeQueue
from ogive.store.file_reader import Place
from ogive.store.retention import RetentionConfig
from ogive.wire.codes import RequestCode
from tests.chaos.faults import FailFrom, FaultyFs
from tests.raw_client import RawClient, messages
from tests.unit.broker.cold_disk import ColdDisk
from tests.unit.broker.conftest import StartBroker

HOUR = 3600.0


class Machine:
    """Its clock, the hour of the day, and how full its disk is."""

    def __init__(self) -> None:
        self.now_s, self.hour, self.used = 0.0, 12, 0.1

    def retention(
        self, server: Broker, folder: Path, config: RetentionConfig | None = None
    ) -> Retention:
        file = JsonTable(OsFs(), folder / "retention.json")
        retention = Retention(
            server.context.store,
            file,
            config or RetentionConfig(),
            server.context.cold_reads.bring_in,
            boot="boot",
            now_s=lambda: self.now_s,
            hour=lambda: self.hour,
            used=lambda: self.used,
        )
        retention.load(file.load() or {})
        return retention


async def fill(client: RawClient) -> None:
    """Three segments and a bit."""
    for n in range(40):
        await client.send("T", b"%d " % n + bytes(90_000))


async def test_old_messages_go_and_a_reader_of_them_is_moved(
    server: Broker, client: RawClient, tmp_path: Path
) -> None:
    await fill(client)
    machine, store = Machine(), server.context.store
    retention = machine.retention(server, tmp_path)
    await retention.run()
    machine.now_s = 73 * HOUR
    await retention.run()
    # it is not the hour
    assert store.min_offset("T", 0) == 0
    segment, end = store.segment_bytes, store.stats().commitlog_end
    assert [retention.full_for_s(at) for at in (0, segment - 1, segment, end - 1)] == [
        73 * HOUR,
        73 * HOUR,
        73 * HOUR,
        0,
    ]
    machine.hour = 4
    await retention.run()
    low = store.min_offset("T", 0)
    assert low > 20
    moved = await client.pull("G", "T", 3)
    assert (moved.code, moved.ext_fields["nextBeginOffset"]) == (
        ResponseCode.PULL_OFFSET_MOVED,
        str(low),
    )
    assert messages(await client.pull("G", "T", low))[0].body.startswith(b"%d " % low)
    assert (await client.ok(RequestCode.GET_MIN_OFFSET, topic="T", queueId=0)).ext_fields[
        "offset"
    ] == str(low)
    new_group = await client.call(
        RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0
    )
    # as the queue does not start at 0 any more
    assert new_group.code == ResponseCode.QUERY_NOT_FOUND


async def test_ages_outlive_the_process(server: Broker, client: RawClient, tmp_path: Path) -> None:
    await fill(client)
    machine = Machine()
    first = machine.retention(server, tmp_path)
    await first.run()
    machine.now_s = 40 * HOUR
    await first.save()
    machine.now_s, machine.hour = 73 * HOUR, 4
    await machine.retention(server, tmp_path).run()
    assert server.context.store.min_offset("T", 0) > 0


async def test_what_somebody_needs_stays(server: Broker, client: RawClient, tmp_path: Path) -> None:
    await fill(client)
    machine, store = Machine(), server.context.store
    retention = machine.retention(server, tmp_path)
    retention.needed.append(lambda: store.segment_bytes + 5)
    await retention.run()
    machine.now_s, machine.hour = 100 * HOUR, 4
    await retention.run()
    assert store.stats().commitlog_start == store.segment_bytes


@pytest.mark.parametrize(
    "properties",
    [{"TIMER_DELAY_SEC": "3600"}, {"DELAY": "18"}, {"TRAN_MSG": "true", "PGROUP": "P"}],
    ids=["timer", "delay level", "half"],
)
async def test_message_that_waits_keeps_the_log_from_it_on(
    start_broker: StartBroker, properties: dict[str, str]
) -> None:
    """However long: a time may be seven days away, and messages are kept for three."""
    server = await start_broker(
        retention=RetentionConfig(keep_s=0.0001, hours=tuple(range(24))), retention_check_s=3600.0
    )
    store, retention = server.context.store, server.context.retention
    async with await RawClient.open(server.address) as client:
        await fill(client)
        before = store.stats().commitlog_end
        await client.send("T", b"later", properties | {"UNIQ_KEY": "A"})
        await fill(client)
        async with asyncio.timeout(60):
            # the first looks may come before the age is there
            while not store.stats().commitlog_start:
                await retention.run()
                await asyncio.sleep(0)
        await retention.run()
        assert store.stats().commitlog_start == before - before % store.segment_bytes > 0
    await server.stop()


async def test_full_disk_removes_young_messages_only_if_told_so(
    server: Broker, client: RawClient, tmp_path: Path
) -> None:
    await fill(client)
    machine, store = Machine(), server.context.store
    machine.used = 0.95
    await machine.retention(server, tmp_path).run()
    assert store.min_offset("T", 0) == 0
    await machine.retention(server, tmp_path, RetentionConfig(force_share=0.9)).run()
    assert store.min_offset("T", 0) > 0


async def test_broker_asks_how_full_its_own_disk_is(start_broker: StartBroker) -> None:
    """Any disk is fuller than that, and it is no hour for it."""
    config = RetentionConfig(keep_s=0.0001, hours=((local_hour() + 12) % 24,), disk_share=1e-12)
    server = await start_broker(retention=config, retention_check_s=3600.0)
    async with await RawClient.open(server.address) as client:
        await fill(client)
        async with asyncio.timeout(60):
            # the first looks may come before the age is there
            while not server.context.store.min_offset("T", 0):
                await server.context.retention.run()
                await asyncio.sleep(0)


async def test_files_that_could_not_be_removed_are_tried_again_though_nothing_new_is_due(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    failing = FailFrom("unlink", "commitlog", 0, 2, errno.EMFILE)
    failing.armed = True
    config = RetentionConfig(keep_s=0.0001, hours=tuple(range(24)))
    server = await start_broker(
        machine=startup.Machine(fs=FaultyFs(failing)), retention=config, retention_check_s=3600.0
    )
    async with await RawClient.open(server.address) as client:
        await fill(client)
        async with asyncio.timeout(60):
            while (tmp_path / "store" / "commitlog" / f"{0:020d}").exists():
                await server.context.retention.run()
                await asyncio.sleep(0)
    assert failing.failures == 2


async def test_what_an_operator_asked_for_is_not_forgotten_where_a_queue_cannot_be_read(
    server: Broker, client: RawClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(client)
    machine, store = Machine(), server.context.store
    retention = machine.retention(server, tmp_path)
    await retention.run()
    machine.now_s = 73 * HOUR
    retention.at_once = True
    with monkeypatch.context() as broken:
        broken.setattr(store._disk, "read", no_handle)
        broken.setattr(ConsumeQueue, "in_memory", lambda queue, index, count: None)
        with pytest.raises(StoreError, match="cannot be read"):
            await retention.run()
    assert store.min_offset("T", 0) == 0
    await retention.run()
    assert store.min_offset("T", 0) > 20
    assert not retention.at_once


async def test_what_only_the_disk_has_of_queues_is_brought_in_beside_the_others(
    server: Broker, client: RawClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(client)
    machine, ctx = Machine(), server.context
    retention = machine.retention(server, tmp_path)
    await retention.run()
    machine.now_s, machine.hour = 73 * HOUR, 4
    disk = ColdDisk(ctx.store)
    fetched: list[Place] = []

    def fetch(place: Place, then: Callable[[StoreError | None], None]) -> None:
        fetched.append(place)
        disk.fetch(place, then)
        disk.bring_in(failure)

    monkeypatch.setattr(ctx.cold_reads, "fetch", fetch)
    monkeypatch.setattr(ConsumeQueue, "in_memory", lambda queue, index, count: None)
    disk.forget()
    failure: StoreError | None = StoreError("the disk is gone")
    with pytest.raises(StoreError, match="the disk is gone"):
        await retention.run()
    assert ctx.store.min_offset("T", 0) == 0
    failure = None
    await retention.run()
    assert ctx.store.min_offset("T", 0) > 20
    assert {place.path.parent.parent.name for place in fetched} == {"T"}


def no_handle(path: Path, size: int, offset: int) -> bytes:
    raise OSError(errno.EMFILE, "too many open files")


async def test_broker_does_it_by_itself(start_broker: StartBroker) -> None:
    config = RetentionConfig(keep_s=0.001, hours=tuple(range(24)))
    server = await start_broker(retention=config, retention_check_s=0.05)
    async with await RawClient.open(server.address) as client:
        await fill(client)
        offset = 0
        while offset < 40:
            answer = await client.pull("G", "T", offset)
            offset = int(answer.ext_fields["nextBeginOffset"])
            assert answer.code in (
                ResponseCode.SUCCESS,
                ResponseCode.PULL_OFFSET_MOVED,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
            )
        while not server.context.store.min_offset("T", 0):
            await client.ok(RequestCode.GET_MIN_OFFSET, topic="T", queueId=0)
        assert server.context.store.stats().damaged == 0
