"""A broker's life: start, stop, restart, failure."""

import asyncio
import json
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from ogive.broker import Broker, BrokerConfig
from ogive.errors import ConnectError, IllegalStateError, ResponseCode, StoreLocked
from ogive.model import MessageQueue
from ogive.namesrv.config import NameServerConfig
from ogive.namesrv.server import NameServer
from ogive.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from ogive.wire.bodies.json_fields import PERM_READ, loads_object
from ogive.wire.bodies.routes import TopicRouteData
from ogive.wire.codes import RequestCode
from ogive.wire.message import parse_offset_message_id
from tests.raw_client import RawClient, messages
from tests.unit.broker.conftest import StartBroker


async def stopped(start_broker: StartBroker) -> Path:
    """The folder of the tables of a broker that has stopped, with a message in T and a group G that
    reads it.
    """
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        await client.send("T", b"kept")
        await client.heartbeat("c1", "G", "T")
    await server.stop()
    return server.config.data / "config"


@pytest.mark.parametrize("name", ["localhost", "a-name.invalid"])
async def test_a_broker_is_advertised_by_a_name_and_records_hold_an_address(
    start_broker: StartBroker, name: str
) -> None:
    """That of the name; where it stands for none, that at which the broker listens."""
    server = await start_broker(advertised_host=name)
    assert server.address.rpartition(":")[0] == name
    async with await RawClient.open(f"127.0.0.1:{server.address.rpartition(':')[2]}") as client:
        answer = await client.send("T", b"x")
        assert (
            parse_offset_message_id(answer.ext_fields["msgId"])[0]
            == f"127.0.0.1:{server.address.rpartition(':')[2]}"
        )


async def test_everything_outlives_a_restart(start_broker: StartBroker) -> None:
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        await client.send("T", b"kept", queue=3)
        await client.heartbeat("c1", "G", "T")
        await client.pull("G", "T", 0, queue=3, commit=1)
    await server.stop()
    assert not (server.config.data / "abort").exists()
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        assert messages(await client.pull("G", "T", 0, queue=3))[0].body == b"kept"
        assert server.context.groups.get("G") is not None
        assert server.context.offsets.get("G", "T", 3) == 1
        assert server.context.topics.get("%RETRY%G") is not None


async def test_progress_beyond_the_end_of_a_queue_is_cut_before_the_queue_grows_past_it(
    start_broker: StartBroker,
) -> None:
    """What a power cut leaves with flush=async: progress that is durable, about messages that are
    not.
    """
    folder = await stopped(start_broker)
    (folder / "consumerOffset.json").write_text('{"offsetTable":{"T@G":{"0":50,"7":9}}}')
    (folder / "delayOffset.json").write_text('{"offsetTable":{"1":70}}')
    server = await start_broker(delay_levels="1s 1h")
    assert server.context.offsets.queues_of("G", "T") == {0: 1, 7: 0}
    assert '"T@G":{"0":1,"7":0}' in (folder / "consumerOffset.json").read_text()
    assert '"1":0' in (folder / "delayOffset.json").read_text()


async def test_where_nobody_writes_any_number_is_progress_and_stays(
    start_broker: StartBroker,
) -> None:
    """Sinks of Spark count their batches in such a topic."""
    server = await start_broker()
    position = {"consumerGroup": "G", "topic": "Counters", "queueId": 0}
    server.context.topics.create_or_update(
        TopicConfig(name="Counters", read_queues=1, write_queues=1, perm=PERM_READ)
    )
    server.context.groups.create_or_update(SubscriptionGroupConfig(name="G"))
    for count in (7, 8):
        async with await RawClient.open(server.address) as client:
            await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **position, commitOffset=count)
        assert server.context.offsets.get("G", "Counters", 0) == count
        await server.stop()
        server = await start_broker()
    assert server.context.offsets.get("G", "Counters", 0) == 8


@pytest.mark.parametrize("saved", ['{"0":50}', '{"0":1}', "{}"], ids=["beyond", "below", "none"])
async def test_a_member_that_outlived_a_power_cut_gets_what_is_stored_after_it(
    start_broker: StartBroker, saved: str
) -> None:
    """With flush=async the queue may be shorter than what it has consumed, and new messages have
    offsets that it has passed.
    """
    folder = await stopped(start_broker)
    (folder / "consumerOffset.json").write_text(f'{{"offsetTable":{{"T@G":{saved}}}}}')
    server = await start_broker()
    position = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    async with await RawClient.open(server.address) as client:
        await client.heartbeat("c1", "G", "T")
        await client.send_batch("T", [b"new"] * 3)
        await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **position, commitOffset=50)
        told = await client.pull("G", "T", 50, commit=50)
        assert told.code == ResponseCode.PULL_OFFSET_MOVED
        assert int(told.ext_fields["nextBeginOffset"]) == (0 if saved == "{}" else 1)
        await client.pull("G", "T", int(told.ext_fields["nextBeginOffset"]))
        await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **position, commitOffset=4)
        assert server.context.offsets.get("G", "T", 0) == 4


async def test_tables_that_hold_more_than_the_limits_cost_nothing_and_no_start(
    start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache's broker knows no such limits: what it wrote is kept, all of it, and only what is new
    is refused.
    """
    folder = await stopped(start_broker)
    names = [f"N{number}" for number in range(30)]
    rows = {
        "topics.json": ("topicConfigTable", {name: {"topicName": name} for name in names}),
        "subscriptionGroup.json": (
            "subscriptionGroupTable",
            {name: {"groupName": name} for name in names},
        ),
        "consumerOffset.json": ("offsetTable", {f"T@{name}": {"0": 1} for name in names}),
        "queueLocks.json": ("lockTable", {name: {"c": [["T", 0]]} for name in names}),
    }
    for file, (table, entries) in rows.items():
        path = folder / file
        written = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(written | {table: written.get(table, {}) | entries}))
    limits = {"max_topics": 5, "max_groups": 5, "max_offsets": 5, "max_locks": 5}
    for _ in range(2):
        caplog.clear()
        server = await start_broker(**limits)
        ctx = server.context
        assert all(
            ctx.topics.get(name) and ctx.groups.get(name) and ctx.offsets.get(name, "T", 0) == 1
            for name in names
        )
        queue = MessageQueue("T", server.config.name, 0)
        assert not any(ctx.locks.lock(name, "another", [queue]) for name in names)
        assert len([line for line in caplog.messages if "new ones are refused" in line]) == len(
            rows
        )
        async with await RawClient.open(server.address) as client:
            assert messages(await client.pull("N7", "T", 0))[0].body == b"kept"
            assert (await client.start_send("New", b"")).code != ResponseCode.SUCCESS
            with pytest.raises(AssertionError, match="group New: the broker holds"):
                await client.heartbeat("c1", "New", "T")
            position = {"consumerGroup": "G", "topic": "T", "queueId": 0}
            assert (
                await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, **position, commitOffset=1)
            ).code == ResponseCode.SYSTEM_BUSY
            await client.ok(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                **(position | {"consumerGroup": "N1"}),
                commitOffset=0,
            )
            await client.ok(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                **(position | {"consumerGroup": "N1"}),
                commitOffset=1,
            )
        await server.stop()


async def test_stopping_answers_what_is_in_flight_and_stores_it(start_broker: StartBroker) -> None:
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        await client.send("T")
        sends = [client.start_send("T", b"%d" % number) for number in range(200)]
        (connection,) = server.context.origins
        async with asyncio.timeout(60):
            while not server.context.sends_waiting:
                await asyncio.sleep(0)
        await server.stop()
        answers = await asyncio.gather(*sends, return_exceptions=True)
    acknowledged = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert acknowledged
    assert {answer.code for answer in acknowledged} == {ResponseCode.SUCCESS}
    assert connection.closed
    again = await start_broker()
    assert again.context.store.max_offset("T", 0) >= len(acknowledged) + 1


async def test_a_second_stop_does_nothing_and_a_stopped_broker_has_no_state(
    start_broker: StartBroker,
) -> None:
    server = await start_broker()
    await server.stop()
    await server.stop()
    with pytest.raises(IllegalStateError):
        server.context  # noqa: B018


async def test_one_directory_serves_one_broker(server: Broker) -> None:
    other = Broker(BrokerConfig(data=server.config.data, port=0))
    with pytest.raises(StoreLocked):
        await other.start()


async def test_a_taken_port_is_named_and_leaves_the_directory_free(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = Broker(BrokerConfig(data=tmp_path, port=port, segment_bytes=1024 * 1024))
        with pytest.raises(ConnectError, match=str(port)):
            await broker.start()
    broker = Broker(BrokerConfig(data=tmp_path, port=0, segment_bytes=1024 * 1024))
    await broker.start()
    await broker.stop()


async def test_routes_are_known_once_the_broker_has_started_and_gone_once_it_has_stopped(
    start_broker: StartBroker, cleanup: AsyncExitStack
) -> None:
    name_server = NameServer(NameServerConfig(port=0))
    await name_server.start()
    cleanup.push_async_callback(name_server.stop)
    server = await start_broker(name_servers=(name_server.address,))
    async with await RawClient.open(name_server.address) as client:
        answer = await client.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TBW102")
        (broker,) = TopicRouteData.from_json(loads_object(answer.body)).brokers
        assert broker.addresses[0] == server.address
        await server.stop()
        assert (
            await client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TBW102")
        ).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_broker_starts_without_its_name_server(start_broker: StartBroker) -> None:
    server = await start_broker(name_servers=("127.0.0.1:1",))
    async with await RawClient.open(server.address) as client:
        await client.send("T")


@pytest.mark.kills("case 16: the locks of before a restart are free at once")
async def test_a_restart_gives_a_locked_queue_to_nobody_else(start_broker: StartBroker) -> None:
    """Its owner goes on until its own lease is over, and does not notice the restart."""
    queues = [MessageQueue("T", "broker-a", i) for i in range(4)]
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        await client.send("T")
        assert await client.lock("c1", "G", *queues) == [0, 1, 2, 3]
        await client.unlock("c1", "G", queues[3])
    await server.stop()
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        assert await client.lock("c2", "G", *queues) == [3]
        assert await client.lock("c1", "G", *queues) == [0, 1, 2]


async def test_a_dropped_connection_frees_all_that_was_kept_for_it(server: Broker) -> None:
    async with await RawClient.open(server.address) as client:
        await client.send("T")
        await client.heartbeat("c1", "G", "T")
        await client.lock("c1", "G", MessageQueue("T", "broker-a", 0))
        client.start_pull("G", "T", 1, suspend_ms=15_000).add_done_callback(
            lambda future: future.exception()
        )
        await client.call(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)
    ctx = server.context
    async with asyncio.timeout(60):
        while ctx.origins or len(ctx.holds) or len(ctx.clients):
            await asyncio.sleep(0)
    assert not ctx.holds.by_queue
    assert not ctx.clients._groups_of


async def test_a_job_that_ends_by_a_bug_fails_the_broker(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await start_broker(client_scan_s=0.01)

    def bug() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(server.context.locks, "expire", bug)
    async with asyncio.timeout(60):
        assert "expire clients" in str(await server.failed)
