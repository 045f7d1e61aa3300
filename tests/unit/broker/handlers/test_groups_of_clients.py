"""Heartbeats, membership, notifications, queue locks and progress, over a socket."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ogive.broker import Broker
from ogive.broker.handlers import clients
from ogive.errors import ResponseCode
from ogive.model import MessageQueue
from ogive.wire.bodies.clients import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    consumer_ids_loads,
)
from ogive.wire.bodies.configs import SubscriptionGroupConfig
from ogive.wire.bodies.json_fields import dumps
from ogive.wire.codes import Flag, RequestCode
from tests.raw_client import RawClient, messages
from tests.unit.broker.conftest import StartBroker
from tests.unit.broker.fake_name_server import FakeNameServer


async def members(client: RawClient, group: str) -> list[str]:
    return consumer_ids_loads(
        (await client.ok(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)).body
    )


async def notified(client: RawClient) -> str:
    request = await client.next_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    assert request.flag & Flag.ONEWAY
    return request.ext_fields["consumerGroup"]


async def until_gone(server: Broker, group: str) -> None:
    async with asyncio.timeout(60):
        while server.context.clients.consumer_group(group) is not None:
            await asyncio.sleep(0)


# --- heartbeats -----------------------------------------------------------------------------------


async def test_a_heartbeat_makes_the_group_and_its_retry_topic(
    server: Broker, client: RawClient
) -> None:
    answer = await client.heartbeat("c1", "G", "T")
    assert answer.ext_fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert server.context.groups.get("G") is not None
    retry = server.context.topics.get("%RETRY%G")
    assert retry is not None
    assert (retry.read_queues, retry.write_queues, retry.perm) == (1, 1, 6)
    assert await members(client, "G") == ["c1"]


@pytest.fixture
async def name_server() -> AsyncIterator[FakeNameServer]:
    server = FakeNameServer()
    await server.start()
    yield server
    await server.stop()


async def test_a_heartbeat_that_makes_a_topic_is_answered_once_name_servers_know_it(
    start_broker: StartBroker, name_server: FakeNameServer
) -> None:
    """npm's ali-ons asks for the route of its group's retry topic as soon as its first heartbeat is
    answered.
    """
    server = await start_broker(name_servers=(name_server.address,))
    async with await RawClient.open(server.address) as client:
        name_server.answers = False
        beat = asyncio.create_task(client.heartbeat("c1", "G", "T"))
        await name_server.until(lambda: bool(name_server.unanswered))
        # others are answered meanwhile
        await client.ok(RequestCode.GET_MAX_OFFSET, topic="T", queueId="0")
        assert not beat.done()
        assert not name_server.holds("%RETRY%G")
        name_server.answer_all()
        await beat
        assert name_server.holds("%RETRY%G")
        name_server.answers = False
        # makes nothing, and waits for nobody
        await client.heartbeat("c1", "G", "T")
        name_server.answer_all()


@pytest.mark.parametrize("full", [False, True], ids=["slow name server", "no room to wait"])
async def test_a_heartbeat_does_not_wait_for_ever(
    start_broker: StartBroker,
    name_server: FakeNameServer,
    full: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = await start_broker(name_servers=(name_server.address,))
    if full:
        monkeypatch.setattr(server.context.request_quota, "acquire", lambda connection, size: False)
    else:
        monkeypatch.setattr(clients, "REGISTRATION_WAIT_S", 0.05)
    async with await RawClient.open(server.address) as client:
        name_server.answers = False
        await client.heartbeat("c1", "G", "T")
        assert server.context.topics.get("%RETRY%G") is not None
        assert not name_server.holds("%RETRY%G")
        await server.context.finish_tasks()
        name_server.answer_all()
    assert server.context.request_quota.used == 0


async def test_a_group_without_members_is_an_error_in_javas_words(client: RawClient) -> None:
    answer = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="G")
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "no consumer for this group, G",
    )


async def test_who_waits_in_a_group_that_nobody_makes_is_told_why(
    start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A client's rebalance shows the answer, which is all that its user sees; the broker's log says
    it once.
    """
    server = await start_broker(auto_create_groups=False)
    async with await RawClient.open(server.address) as client:
        for _ in range(3):
            await client.heartbeat("c1", "G", "T")
        answer = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="G")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == (
            "no consumer for this group, G: it does not exist, and this broker makes none by "
            "itself (`ogive group create`)"
        )
        assert [
            record.getMessage() for record in caplog.records if "group G" in record.getMessage()
        ] == [
            "group G does not exist, so its member receives no messages: this broker makes "
            "none by itself (`ogive group create`)"
        ]
        server.context.groups.create_or_update(SubscriptionGroupConfig(name="G"))
        answer = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="G")
        assert answer.remark == "no consumer for this group, G"
        await client.heartbeat("c1", "G", "T")
        assert await members(client, "G") == ["c1"]


@pytest.mark.feature(173)
async def test_members_are_notified_when_one_comes_and_when_one_goes(
    server: Broker, client: RawClient
) -> None:
    await client.heartbeat("c1", "G", "T")
    assert await notified(client) == "G"
    async with await RawClient.open(server.address) as other:
        await other.heartbeat("c2", "G", "T")
        assert await notified(client) == await notified(other) == "G"
        assert await members(client, "G") == ["c1", "c2"]
        await other.ok(
            RequestCode.UNREGISTER_CLIENT, clientID="c2", consumerGroup="G", producerGroup=""
        )
        assert await notified(client) == "G"
        assert await members(client, "G") == ["c1"]


async def test_a_closed_connection_leaves_its_groups(server: Broker, client: RawClient) -> None:
    await client.heartbeat("c1", "G", "T")
    await notified(client)
    async with await RawClient.open(server.address) as other:
        await other.heartbeat("c2", "G", "T")
        await notified(client)
    assert await notified(client) == "G"
    assert await members(client, "G") == ["c1"]
    assert list(server.context.clients.producers) == ["raw"]


async def test_the_same_heartbeat_again_notifies_nobody(client: RawClient) -> None:
    await client.heartbeat("c1", "G", "T")
    await notified(client)
    await client.heartbeat("c1", "G", "T")
    await client.heartbeat("c1", "G", "T", version=9, expression="blue")
    assert client.requests.empty()
    await client.heartbeat("c1", "G", "T", "U")
    assert await notified(client) == "G"


async def test_a_broadcasting_group_is_not_notified(client: RawClient) -> None:
    await client.heartbeat("c1", "G", "T", model="BROADCASTING")
    await members(client, "G")
    assert client.requests.empty()


async def test_clients_that_stop_beating_are_dropped(start_broker: StartBroker) -> None:
    server = await start_broker(client_expiry_s=0.05, client_scan_s=0.01)
    async with await RawClient.open(server.address) as client:
        await client.heartbeat("c1", "G", "T")
        await until_gone(server, "G")
        async with asyncio.timeout(60):
            await client.connection.wait_closed()


async def test_a_heartbeat_may_leave_known_subscriptions_out(
    server: Broker, client: RawClient
) -> None:
    def beat(fingerprint: int, *, without_sub: bool) -> bytes:
        subscriptions = () if without_sub else (SubscriptionData.of_tags("T", "blue"),)
        consumer = ConsumerData(group="G", subscriptions=subscriptions)
        return HeartbeatData(
            client_id="c1", consumers=(consumer,), fingerprint=fingerprint, without_sub=without_sub
        ).encode()

    async def changed(body: bytes) -> str:
        return (await client.ok(RequestCode.HEART_BEAT, body)).ext_fields["IS_SUB_CHANGE"]

    # a broker that knows no subscriptions asks for them
    assert await changed(beat(1, without_sub=True)) == "true"
    assert await changed(beat(1, without_sub=False)) == "false"
    assert await changed(beat(1, without_sub=True)) == "false"
    group = server.context.clients.consumer_group("G")
    assert group is not None
    assert list(group.subscriptions) == ["T"]
    assert await changed(beat(2, without_sub=True)) == "true"


@pytest.mark.parametrize(
    "data",
    [
        HeartbeatData(client_id="", producers=("P",)),
        HeartbeatData(client_id="c" * 256, producers=("P",)),
        HeartbeatData(client_id="c", producers=("a b",)),
        HeartbeatData(client_id="c", producers=tuple(f"P{n}" for n in range(300))),
        HeartbeatData(client_id="c", consumers=(ConsumerData(group="../up"),)),
        HeartbeatData(
            client_id="c",
            consumers=(ConsumerData(group="G", subscriptions=(SubscriptionData(topic="a@b"),)),),
        ),
        HeartbeatData(
            client_id="c",
            consumers=(
                ConsumerData(
                    group="G", subscriptions=(SubscriptionData(topic="T", expression="x" * 4097),)
                ),
            ),
        ),
        HeartbeatData(
            client_id="c",
            consumers=(
                ConsumerData(
                    group="G", subscriptions=(SubscriptionData(topic="T", tags=("t",) * 1001),)
                ),
            ),
        ),
        HeartbeatData(client_id="x" * (1 << 20), producers=("P",)),
    ],
)
async def test_a_heartbeat_with_a_bad_name_or_size_is_refused_as_a_whole(
    server: Broker, client: RawClient, data: HeartbeatData
) -> None:
    assert (
        await client.call(RequestCode.HEART_BEAT, data.encode())
    ).code == ResponseCode.INVALID_PARAMETER
    assert len(server.context.clients) == 0


async def test_a_group_with_too_many_topics_is_refused_and_not_as_by_a_busy_broker(
    start_broker: StartBroker,
) -> None:
    """Trying again would not help. What the group subscribed to before is kept."""
    server = await start_broker(max_subscriptions_per_group=2)

    def beat(count: int) -> bytes:
        subscriptions = tuple(SubscriptionData(topic=f"T{n}") for n in range(count))
        return HeartbeatData(
            client_id="c", consumers=(ConsumerData(group="G", subscriptions=subscriptions),)
        ).encode()

    async with await RawClient.open(server.address) as client:
        assert (await client.call(RequestCode.HEART_BEAT, beat(2))).code == ResponseCode.SUCCESS
        refused = await client.call(RequestCode.HEART_BEAT, beat(3))
        assert (refused.code, "3 topics" in str(refused.remark)) == (
            ResponseCode.INVALID_PARAMETER,
            True,
        )
        assert set(server.context.clients.consumers["G"].subscriptions) == {"T0", "T1"}


async def test_too_many_clients_are_answered_as_busy(start_broker: StartBroker) -> None:
    server = await start_broker(max_clients=3)
    async with await RawClient.open(server.address) as client:
        body = HeartbeatData(client_id="c", producers=("P1", "P2", "P3", "P4")).encode()
        assert (await client.call(RequestCode.HEART_BEAT, body)).code == ResponseCode.SYSTEM_BUSY
        assert len(server.context.clients) == 3


async def test_tags_and_sql_are_checked_before_a_client_starts(client: RawClient) -> None:
    def body(data: SubscriptionData) -> bytes:
        return dumps({"clientId": "c1", "group": "G", "subscriptionData": data.to_json()})

    await client.ok(RequestCode.CHECK_CLIENT_CONFIG, body(SubscriptionData.of_tags("T", "a || b")))
    for expression, code in (
        ("a > 1", ResponseCode.SUCCESS),
        ("a >> 1", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ):
        data = SubscriptionData(topic="T", expression=expression, expression_type="SQL92")
        answer = await client.call(RequestCode.CHECK_CLIENT_CONFIG, body(data))
        assert (answer.code, "at character 4" in str(answer.remark)) == (
            code,
            code != ResponseCode.SUCCESS,
        )


# --- queue locks ----------------------------------------------------------------------------------


async def test_a_queue_is_locked_by_one_client_until_it_gives_it_back(client: RawClient) -> None:
    await client.send("T")
    queues = [MessageQueue("T", "broker-a", n) for n in range(3)]
    assert await client.lock("c1", "G", *queues[:2]) == [0, 1]
    assert await client.lock("c2", "G", *queues) == [2]
    assert await client.lock("c2", "H", *queues) == [0, 1, 2]
    await client.unlock("c2", "G", queues[0])
    assert await client.lock("c2", "G", queues[0]) == []
    await client.unlock("c1", "G", queues[0])
    assert await client.lock("c2", "G", queues[0]) == [0]


async def test_only_queues_of_this_broker_can_be_locked(server: Broker, client: RawClient) -> None:
    await client.send("T")
    foreign = [
        MessageQueue("T", "broker-b", 0),
        MessageQueue("T", "broker-a", 4),
        MessageQueue("Nowhere", "broker-a", 0),
    ]
    assert await client.lock("c1", "G", *foreign) == []
    assert len(server.context.locks) == 0


# --- progress -------------------------------------------------------------------------------------


async def test_a_new_group_starts_at_zero_where_the_queue_does(client: RawClient) -> None:
    await client.send("T")
    position = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    assert (await client.ok(RequestCode.QUERY_CONSUMER_OFFSET, **position)).ext_fields == {
        "offset": "0"
    }
    answer = await client.call(
        RequestCode.QUERY_CONSUMER_OFFSET, **position, setZeroIfNotFound=False
    )
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_committed_progress_is_found_again(client: RawClient) -> None:
    await client.send_batch("T", [b"", b"", b""])
    await client.heartbeat("c1", "G", "T")
    position = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    client.oneway(RequestCode.UPDATE_CONSUMER_OFFSET, **position, commitOffset=3)
    assert (await client.ok(RequestCode.QUERY_CONSUMER_OFFSET, **position)).ext_fields == {
        "offset": "3"
    }
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **position, commitOffset=1)
    assert (await client.ok(RequestCode.QUERY_CONSUMER_OFFSET, **position)).ext_fields == {
        "offset": "1"
    }


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"consumerGroup": "Nobody"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": -1}, ResponseCode.INVALID_PARAMETER),
        ({"commitOffset": -1}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_progress_that_cannot_be_is_refused(
    server: Broker, client: RawClient, changed: dict[str, str | int], code: int
) -> None:
    await client.send("T")
    await client.heartbeat("c1", "G", "T")
    fields: dict[str, str | int] = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": 0,
        "commitOffset": 1,
    }
    assert (
        await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, **(fields | changed))
    ).code == code
    assert len(server.context.offsets) == 0


async def test_progress_outlives_the_broker(start_broker: StartBroker) -> None:
    server = await start_broker()
    position = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    async with await RawClient.open(server.address) as client:
        await client.send("T")
        await client.heartbeat("c1", "G", "T")
        await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **position, commitOffset=1)
    await server.stop()
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        assert (await client.ok(RequestCode.QUERY_CONSUMER_OFFSET, **position)).ext_fields == {
            "offset": "1"
        }


async def test_progress_is_saved_while_the_broker_runs(start_broker: StartBroker) -> None:
    server = await start_broker(offsets_persist_s=0.01)
    file = server.config.data / "config" / "consumerOffset.json"
    async with await RawClient.open(server.address) as client:
        await client.send("T")
        await client.pull("G", "T", 0, commit=1)
        async with asyncio.timeout(60):
            while not file.exists() or b'"T@G":{"0":1}' not in file.read_bytes():
                await asyncio.sleep(0.01)


# --- offsets of queues ----------------------------------------------------------------------------


async def test_offsets_and_times_of_a_queue(client: RawClient) -> None:
    for _ in range(3):
        await client.send("T")
    queue = {"topic": "T", "queueId": 0}
    first = messages(await client.pull("G", "T", 0))[0]
    assert (await client.ok(RequestCode.GET_MAX_OFFSET, **queue)).ext_fields == {"offset": "3"}
    assert (await client.ok(RequestCode.GET_MIN_OFFSET, **queue)).ext_fields == {"offset": "0"}
    answer = await client.ok(RequestCode.GET_EARLIEST_MSG_STORETIME, **queue)
    assert answer.ext_fields == {"timestamp": str(first.store_timestamp_ms)}
    for time_ms, boundary, offset in (
        (0, "LOWER", 0),
        (1 << 60, "LOWER", 3),
        (1 << 60, "UPPER", 2),
        (0, "UPPER", 0),
    ):
        answer = await client.ok(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            **queue,
            timestamp=time_ms,
            boundaryType=boundary,
        )
        assert answer.ext_fields == {"offset": str(offset)}, (time_ms, boundary)


async def test_a_queue_that_is_not_there_starts_and_ends_at_zero(client: RawClient) -> None:
    queue = {"topic": "Nowhere", "queueId": 0}
    assert (await client.ok(RequestCode.GET_MAX_OFFSET, **queue)).ext_fields == {"offset": "0"}
    assert (await client.ok(RequestCode.GET_EARLIEST_MSG_STORETIME, **queue)).ext_fields == {
        "timestamp": "-1"
    }


async def test_a_message_is_viewed_by_its_offset_and_nothing_else_is(client: RawClient) -> None:
    for body in (b"a", b"b"):
        await client.send("T", body)
    second = messages(await client.pull("G", "T", 1))[0]
    assert messages(
        await client.ok(RequestCode.VIEW_MESSAGE_BY_ID, offset=second.commitlog_offset)
    ) == [second]
    for offset in (second.commitlog_offset + 1, -1, 1 << 40, -(1 << 62)):
        answer = await client.call(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert str(offset) in (answer.remark or "")
