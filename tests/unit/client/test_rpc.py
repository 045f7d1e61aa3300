"""One RPC each: what is asked, and what an answer becomes."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from ogive.client import rpc
from ogive.errors import (
    BrokerError,
    BrokerInternalError,
    ConnectError,
    ConsumerNotOnline,
    NotANameServer,
    ProtocolError,
    RequestTimeout,
    ResponseCode,
    TopicNotExist,
    broker_error,
)
from ogive.model import MessageQueue, PullStatus, SendStatus
from ogive.testing.fake_broker import HANG_UP, SILENT, FakeBroker, error, ok
from ogive.transport.pool import ConnectionPool
from ogive.wire.bodies.clients import (
    ConnectionInfo,
    ConsumerConnection,
    HeartbeatData,
    LockBatchBody,
)
from ogive.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from ogive.wire.bodies.stats import (
    OffsetWrapper,
    TopicOffset,
    consume_stats_dumps,
    kv_table_dumps,
    topic_stats_dumps,
)
from ogive.wire.codes import PullSysFlag, RequestCode, version_number
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.pull import OffsetResponse, PullMessageRequest, TimestampResponse
from ogive.wire.headers.send import SendMessageRequestV2
from ogive.wire.message import encode_stored

QUEUE = MessageQueue("Orders", "broker-a", 1)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 2}) as fake:
        yield fake


@pytest.fixture
async def pool() -> AsyncIterator[ConnectionPool]:
    made = ConnectionPool()
    yield made
    await made.close()


def pull_header(offset: int = 0, *, suspend_ms: int = 0) -> PullMessageRequest:
    return PullMessageRequest(
        consumer_group="billing",
        topic="Orders",
        queue_id=1,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=PullSysFlag.SUSPEND if suspend_ms else 0,
        commit_offset=0,
        suspend_timeout_ms=suspend_ms,
    )


@pytest.mark.feature(177)
async def test_a_route_is_read_and_a_missing_one_is_an_error(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    route = await rpc.get_route(pool, broker.address, "Orders")
    assert [(row.broker_name, row.write_queues) for row in route.queues] == [("broker-a", 2)]
    with pytest.raises(TopicNotExist):
        await rpc.get_route(pool, broker.address, "Nowhere")


async def test_cluster_and_topics_are_listed(broker: FakeBroker, pool: ConnectionPool) -> None:
    assert (await rpc.get_cluster_info(pool, broker.address)).brokers["broker-a"].addresses == {
        0: broker.address
    }
    assert await rpc.topic_list(pool, broker.address) == ["Orders"]


async def test_topics_and_groups_are_created_and_deleted(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    await rpc.create_topic(
        pool, broker.address, TopicConfig(name="New", write_queues=3, attributes={"a": "b"})
    )
    assert broker.of(RequestCode.UPDATE_AND_CREATE_TOPIC)[0].ext_fields["attributes"] == "+a=b"
    for code in (
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    ):
        broker.on(code, ok())
    await rpc.delete_topic(pool, broker.address, "New")
    await rpc.delete_topic_in_name_server(pool, broker.address, "New")
    await rpc.create_group(
        pool, broker.address, SubscriptionGroupConfig(name="billing", retry_max_times=3)
    )
    assert (
        b'"retryMaxTimes":3' in broker.of(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)[0].body
    )


async def test_a_send_says_where_the_message_stands(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    header = SendMessageRequestV2(
        producer_group="g", topic="Orders", queue_id=1, born_timestamp=0, properties="TAGS\x01a\x02"
    )
    sent = await rpc.send_message(
        pool, broker.address, header, b"x", broker_name="broker-a", message_id="K"
    )
    assert (sent.status, sent.id, sent.queue, sent.queue_offset) == (
        SendStatus.SEND_OK,
        "K",
        QUEUE,
        0,
    )
    broker.script(RequestCode.SEND_MESSAGE_V2, error(ResponseCode.SYSTEM_ERROR, "disk"))
    with pytest.raises(BrokerInternalError, match="disk"):
        await rpc.send_message(pool, broker.address, header, b"x", broker_name="broker-a")


async def test_a_pull_brings_decoded_messages_or_their_bytes(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    stored = [
        broker.put("Orders", body, queue_id=1, properties=b"TAGS\x01a\x02") for body in (b"1", b"2")
    ]
    found = await rpc.pull_message(pool, broker.address, pull_header(), broker_name="broker-a")
    assert (found.status, found.next_offset, found.max_offset) == (PullStatus.FOUND, 2, 2)
    assert [(m.body, m.tag, m.queue, m.queue_offset) for m in found.messages] == [
        (b"1", "a", QUEUE, 0),
        (b"2", "a", QUEUE, 1),
    ]
    raw = await rpc.pull_raw(pool, broker.address, pull_header(1))
    assert (raw.status, raw.next_offset, raw.body) == (
        PullStatus.FOUND,
        2,
        encode_stored(stored[1]),
    )


@pytest.mark.feature(177)
@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.PULL_NOT_FOUND, PullStatus.NO_NEW_MSG),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, PullStatus.NO_MATCHED_MSG),
        (ResponseCode.PULL_OFFSET_MOVED, PullStatus.OFFSET_ILLEGAL),
    ],
)
async def test_a_pull_without_messages_still_says_where_to_go_on(
    broker: FakeBroker, pool: ConnectionPool, code: int, status: PullStatus
) -> None:
    ext = {"nextBeginOffset": "7", "minOffset": "5", "maxOffset": "9", "suggestWhichBrokerId": "1"}
    broker.script(RequestCode.PULL_MESSAGE, RemotingCommand(code, ext))
    result = await rpc.pull_message(pool, broker.address, pull_header(), broker_name="broker-a")
    assert (
        result.status,
        result.next_offset,
        result.min_offset,
        result.max_offset,
        result.suggested_broker_id,
    ) == (status, 7, 5, 9, 1)
    assert result.messages == ()


async def test_a_refused_pull_is_an_error(broker: FakeBroker, pool: ConnectionPool) -> None:
    broker.script(RequestCode.PULL_MESSAGE, error(ResponseCode.NO_PERMISSION))
    with pytest.raises(BrokerError, match="NO_PERMISSION"):
        await rpc.pull_message(pool, broker.address, pull_header(), broker_name="broker-a")


async def test_only_the_brokers_word_makes_an_offset_unknown(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    """A failed query must never pass for "no offset": the group would begin anew."""
    assert await rpc.query_consumer_offset(pool, broker.address, "billing", QUEUE) is None
    for answer, expected in (
        (error(ResponseCode.SYSTEM_ERROR), BrokerInternalError),
        (SILENT, RequestTimeout),
        (HANG_UP, Exception),
    ):
        broker.script(RequestCode.QUERY_CONSUMER_OFFSET, answer)
        with pytest.raises(expected):
            await rpc.query_consumer_offset(pool, broker.address, "billing", QUEUE, timeout_s=0.2)
    broker.script(RequestCode.QUERY_CONSUMER_OFFSET, ok())
    with pytest.raises(ProtocolError, match="offset is missing"):
        await rpc.query_consumer_offset(pool, broker.address, "billing", QUEUE)


@pytest.mark.feature(164)
async def test_offsets_are_stored_and_the_answer_is_awaited(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    await rpc.update_consumer_offset(pool, broker.address, "billing", QUEUE, 4)
    assert (
        await rpc.query_consumer_offset(pool, broker.address, "billing", QUEUE, zero_if_young=False)
        == 4
    )
    await rpc.update_consumer_offset(pool, broker.address, "billing", QUEUE, 5)
    assert await rpc.query_consumer_offset(pool, broker.address, "billing", QUEUE) == 5
    assert [request.is_oneway for request in broker.of(RequestCode.UPDATE_CONSUMER_OFFSET)] == [
        False,
        False,
    ]
    broker.script(RequestCode.UPDATE_CONSUMER_OFFSET, error(ResponseCode.SYSTEM_ERROR))
    with pytest.raises(BrokerInternalError):
        await rpc.update_consumer_offset(pool, broker.address, "billing", QUEUE, 6)
    assert [
        r.ext_fields.get("setZeroIfNotFound") for r in broker.of(RequestCode.QUERY_CONSUMER_OFFSET)
    ] == ["false", None]


@pytest.mark.parametrize(
    ("at_ms", "first"),
    [(0, 0), (999, 0), (1000, 0), (1001, 40), (1002, 80), (1003, 80), (1099, 80), (1101, 81)],
)
@pytest.mark.parametrize("match", [0, 0.5, 1])
async def test_the_first_message_of_a_time_is_found_on_apaches_4_9(
    broker: FakeBroker, pool: ConnectionPool, at_ms: int, first: int, match: float
) -> None:
    """Its search ends at any message of exactly that time, or at the nearest one on either side."""
    times = [1000] * 40 + [1001] * 40 + [1100]
    for i in range(len(times)):
        broker.put("Orders", b"%d" % i, queue_id=1)
    stored = broker.stored["Orders", 1]
    stored[:] = [
        replace(message, store_timestamp_ms=at) for message, at in zip(stored, times, strict=True)
    ]

    def search(request: RemotingCommand) -> RemotingCommand:
        wanted = int(request.ext_fields["timestamp"])
        same = [i for i, at in enumerate(times) if at == wanted]
        near = min(range(len(times)), key=lambda i: abs(times[i] - wanted))
        offset = same[int(match * (len(same) - 1))] if same else near
        return replace(ok(OffsetResponse(offset=offset)), version=version_number("4.9.7"))

    broker.on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
    assert await rpc.search_offset(pool, broker.address, QUEUE, at_ms, group="billing") == first
    assert {r.ext_fields["consumerGroup"] for r in broker.of(RequestCode.PULL_MESSAGE)} == {
        "billing"
    }


async def test_a_search_on_apaches_4_9_ends_in_an_empty_queue(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    old = replace(ok(OffsetResponse(offset=0)), version=version_number("4.9.7"))
    broker.on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, old)
    assert await rpc.search_offset(pool, broker.address, QUEUE, 17) == 0


async def test_positions_in_a_queue_are_asked_for(broker: FakeBroker, pool: ConnectionPool) -> None:
    broker.put("Orders", b"1", queue_id=1)
    broker.on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ok(OffsetResponse(offset=8)))
    assert await rpc.max_offset(pool, broker.address, QUEUE) == 1
    assert await rpc.min_offset(pool, broker.address, QUEUE) == 0
    assert await rpc.search_offset(pool, broker.address, QUEUE, 17) == 8
    (search,) = broker.of(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    assert search.ext_fields["boundaryType"] == "LOWER"
    broker.script(
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        ok(TimestampResponse(timestamp=-1)),
        ok(TimestampResponse(timestamp=5)),
    )
    assert await rpc.earliest_store_time(pool, broker.address, QUEUE) is None
    assert await rpc.earliest_store_time(pool, broker.address, QUEUE) == 5


async def test_one_message_is_viewed_by_its_place_in_the_log(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    stored = encode_stored(broker.put("Orders", b"1", queue_id=1))
    broker.script(RequestCode.VIEW_MESSAGE_BY_ID, ok(body=stored), ok(body=stored + stored))
    assert (await rpc.view_message(pool, broker.address, 0, "Orders")).body == b"1"
    with pytest.raises(ProtocolError, match="196 bytes are not the one message"):
        await rpc.view_message(pool, broker.address, 0)


@pytest.mark.feature(177)
async def test_a_client_says_hello_and_goodbye(broker: FakeBroker, pool: ConnectionPool) -> None:
    answer = await rpc.heartbeat(
        pool, broker.address, HeartbeatData(client_id="me", producers=("sellers",))
    )
    assert (answer.supports_v2, answer.subscription_changed) == (None, None)
    await rpc.unregister(pool, broker.address, "me", producer_group="sellers")
    assert broker.of(RequestCode.UNREGISTER_CLIENT)[0].ext_fields == {
        "clientID": "me",
        "producerGroup": "sellers",
    }


async def test_members_of_a_group_are_listed(broker: FakeBroker, pool: ConnectionPool) -> None:
    with pytest.raises(BrokerInternalError, match="no consumer for this group"):
        await rpc.consumer_ids(pool, broker.address, "billing")
    body = ConsumerConnection(
        connections=(
            ConnectionInfo(client_id="me", address="127.0.0.1:1", language="PYTHON", version=479),
        ),
        subscriptions={},
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
    )
    broker.script(
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        ok(body=body.encode()),
        error(ResponseCode.CONSUMER_NOT_ONLINE),
    )
    assert await rpc.consumer_connections(pool, broker.address, "billing") == body
    with pytest.raises(ConsumerNotOnline):
        await rpc.consumer_connections(pool, broker.address, "billing")


@pytest.mark.feature(181)
async def test_queues_are_locked_and_unlocked(broker: FakeBroker, pool: ConnectionPool) -> None:
    assert await rpc.lock_queues(pool, broker.address, "billing", "me", [QUEUE]) == [QUEUE]
    await rpc.unlock_queues(pool, broker.address, "billing", "me", [QUEUE])
    (request,) = await broker.received(RequestCode.UNLOCK_BATCH_MQ, 1)
    assert not request.is_oneway
    assert LockBatchBody.decode(request.body) == LockBatchBody(
        group="billing", client_id="me", queues=(QUEUE,)
    )


@pytest.mark.feature(147)
async def test_a_message_is_sent_back_by_its_place_in_the_log(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    broker.put("Orders", b"1", queue_id=1)
    [message] = (
        await rpc.pull_message(pool, broker.address, pull_header(), broker_name="broker-a")
    ).messages
    await rpc.send_back(
        pool, broker.address, message, "billing", delay_level=2, max_reconsume_times=16
    )
    assert broker.of(RequestCode.CONSUMER_SEND_MSG_BACK)[0].ext_fields == {
        "offset": "0",
        "group": "billing",
        "delayLevel": "2",
        "originMsgId": message.offset_id,
        "originTopic": "Orders",
        "unitMode": "false",
        "maxReconsumeTimes": "16",
    }


async def test_statistics_come_back_by_queue(broker: FakeBroker, pool: ConnectionPool) -> None:
    topic_row, group_row = (
        TopicOffset(min_offset=1, max_offset=5, last_update_timestamp=7),
        OffsetWrapper(broker_offset=5, consumer_offset=3, last_timestamp=7),
    )
    broker.on(RequestCode.GET_TOPIC_STATS_INFO, ok(body=topic_stats_dumps({QUEUE: topic_row})))
    broker.on(RequestCode.GET_CONSUME_STATS, ok(body=consume_stats_dumps({QUEUE: group_row}, 1.0)))
    broker.on(RequestCode.GET_BROKER_RUNTIME_INFO, ok(body=kv_table_dumps({"a": "b"})))
    assert await rpc.topic_stats(pool, broker.address, "Orders") == {QUEUE: topic_row}
    assert await rpc.consume_stats(pool, broker.address, "billing", "Orders") == {QUEUE: group_row}
    assert await rpc.broker_runtime_info(pool, broker.address) == {"a": "b"}


async def test_nobody_there_is_a_connect_error(pool: ConnectionPool) -> None:
    async with FakeBroker() as gone:
        address = gone.address
    with pytest.raises(ConnectError, match="refused"):
        await rpc.topic_list(pool, address)


async def test_a_broker_that_is_asked_as_a_name_server_is_named_as_what_it_is(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    for code in (
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    ):
        broker.on(code, error(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    says = (
        f"{broker.address} is not a name server but, it seems, a broker: give the name server's "
        "address"
    )
    for asked in (
        rpc.get_route(pool, broker.address, "Orders"),
        rpc.get_cluster_info(pool, broker.address),
        rpc.topic_list(pool, broker.address),
    ):
        with pytest.raises(NotANameServer, match=says):
            await asked


def test_an_error_names_who_answered_and_does_not_speak_of_a_peer_where_nobody_was_asked() -> None:
    assert (
        str(BrokerError(13, "too long", "10.0.0.1:10911"))
        == "10.0.0.1:10911 answered 13 MESSAGE_ILLEGAL: too long"
    )
    assert str(BrokerError(13, "too long")) == "too long (13 MESSAGE_ILLEGAL)"


@pytest.mark.parametrize(
    ("code", "remark", "way_out"),
    [
        (
            16,
            "subscription group no permission, ledger",
            "the group is disabled: `ogive group update ledger --enable`",
        ),
        (
            13,
            "timer message illegal, the delay time should not be bigger than the max delay "
            "604800000ms; or if set del msg, ...",
            "7 days; `ogive up --max-timer-delay SECONDS`, or Apache's timerMaxDelaySec, allows "
            "more",
        ),
    ],
)
def test_a_remark_that_does_not_say_how_to_go_on_gets_a_way_out(
    code: int, remark: str, way_out: str
) -> None:
    """Apache's brokers and ours say it in the same words."""
    error = broker_error(code, remark, "h:1")
    assert str(error).endswith(f"{remark} ({way_out})")
    assert error.remark == remark
