"""Requests about popped messages: what is asked, and what an answer becomes."""

from collections.abc import AsyncIterator

import pytest

from ogive.client import rpc
from ogive.errors import BrokerBusy, NotSupported, ProtocolError, ResponseCode
from ogive.model import MessageQueue
from ogive.testing.fake_broker import FakeBroker, error, ok
from ogive.transport.pool import ConnectionPool
from ogive.wire.bodies.clients import AssignmentQuery
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import encode_header
from ogive.wire.headers.pull import (
    ChangeInvisibleTimeResponse,
    NotificationRequest,
    NotificationResponse,
    PopMessageRequest,
    PopMessageResponse,
)
from ogive.wire.message import RECORD_V4, StoredMessage, encode_stored
from ogive.wire.pop import ORDERLY_QUEUE, BatchAckBody, PopHandle

POP_CODE = RequestCode.POP_MESSAGE
HANDLE = PopHandle(17, 1000, 30_000, 3, 0, "broker-a", 2, 19)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 2}) as fake:
        yield fake


@pytest.fixture
async def pool() -> AsyncIterator[ConnectionPool]:
    made = ConnectionPool()
    yield made
    await made.close()


def request(*, order: bool = False) -> PopMessageRequest:
    return PopMessageRequest(
        consumer_group="billing",
        topic="Orders",
        queue_id=-1,
        max_msg_nums=32,
        invisible_time_ms=30_000,
        poll_time_ms=0,
        born_time_ms=0,
        init_mode=0,
        order=order,
    )


def answer(*records: StoredMessage, starts: str, offsets: str, **more: str) -> RemotingCommand:
    header = PopMessageResponse(
        pop_time_ms=1000,
        invisible_time_ms=30_000,
        revive_queue_id=3,
        **more,  # type: ignore[arg-type]
    )
    fields = encode_header(header) | {"startOffsetInfo": starts, "msgOffsetInfo": offsets}
    return RemotingCommand(0, fields, b"".join(map(encode_stored, records)))


async def popped(broker: FakeBroker, pool: ConnectionPool) -> list[tuple[bytes, str, int, str]]:
    result = await rpc.pop_message(pool, broker.address, request(), broker_name="broker-a")
    return [
        (message.body, message.topic, message.reconsume_times, str(handle))
        for message, handle in result.messages
    ]


async def test_each_message_gets_the_handle_of_its_place(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    """Its broker's read began at another offset where some messages were filtered out."""
    broker.script(
        POP_CODE,
        answer(
            StoredMessage("Orders", b"a", queue_id=2, queue_offset=19),
            StoredMessage("Orders", b"b", queue_id=0, queue_offset=4),
            StoredMessage("%RETRY%billing_Orders", b"c", queue_offset=1, reconsume_times=1),
            StoredMessage("%RETRY%billing+Orders", b"d", queue_offset=7, reconsume_times=2),
            starts="0 2 17;0 0 4;1 0 1;2 0 6",
            offsets="0 2 19;0 0 4;1 0 1;2 0 7",
        ),
    )
    assert await popped(broker, pool) == [
        (b"a", "Orders", 0, "17 1000 30000 3 0 broker-a 2 19"),
        (b"b", "Orders", 0, "4 1000 30000 3 0 broker-a 0 4"),
        (b"c", "Orders", 1, "1 1000 30000 3 1 broker-a 0 1"),
        (b"d", "Orders", 2, "6 1000 30000 3 2 broker-a 0 7"),
    ]


async def test_the_broker_gives_the_handle_of_a_retry_along(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    """The message comes under its original topic, and only its handle says where it is. One that a
    sender put there says nothing.
    """
    own = b"POP_CK\x015 1000 30000 3 1 elsewhere 0 5\x02"
    forged = b"POP_CK\x014 1000 30000 3 1 broker-a 0 4\x02"
    broken = b"POP_CK\x01nonsense\x02"
    broker.script(
        POP_CODE,
        answer(
            StoredMessage("Orders", b"retry", own, queue_offset=5),
            StoredMessage("Orders", b"forged", forged, queue_offset=4),
            StoredMessage("Orders", b"broken", broken, queue_offset=6),
            starts="1 0 5;0 0 4",
            offsets="1 0 5;0 0 4,6",
        ),
    )
    assert [handle for _, _, _, handle in await popped(broker, pool)] == [
        "5 1000 30000 3 1 broker-a 0 5",
        "4 1000 30000 3 0 broker-a 0 4",
        "4 1000 30000 3 0 broker-a 0 6",
    ]


async def test_behind_a_damaged_record_bytes_that_are_none_are_refused(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    damaged = bytearray(encode_stored(StoredMessage("Orders", b"a")))
    damaged[RECORD_V4.size] ^= 1
    reply = answer(starts="0 0 0", offsets="0 0 0")
    reply.body = bytes(damaged) + bytes(100)
    broker.script(POP_CODE, reply)
    with pytest.raises(ProtocolError):
        await popped(broker, pool)


async def test_orderly_messages_know_how_often_they_were_delivered(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    broker.script(
        POP_CODE,
        answer(
            StoredMessage("Orders", b"a", queue_offset=4),
            StoredMessage("Orders", b"b", queue_offset=5),
            starts="0 0 4",
            offsets="0 0 4,5",
            order_count_info="0 qo0%4 2;0 0 0",
        ),
    )
    assert [tries for _, _, tries, _ in await popped(broker, pool)] == [2, 0]


async def test_a_damaged_message_does_not_hold_up_the_others(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    records = [StoredMessage("Orders", b"body%d" % i, queue_offset=i) for i in range(3)]
    good = answer(*records, starts="0 0 0", offsets="0 0 0,1,2")
    good.body = good.body.replace(b"body1", b"bady1")
    broker.script(POP_CODE, good)
    result = await rpc.pop_message(pool, broker.address, request(), broker_name="broker-a")
    assert [message.body for message, _ in result.messages] == [b"body0", b"body2"]
    assert [failure.queue_offset for failure in result.damaged] == [1]


@pytest.mark.parametrize(
    ("starts", "offsets", "counts"),
    [
        ("0 0", "0 0 4", ""),
        ("0 0 4", "0 0 x", ""),
        ("0 1 4", "0 0 4", ""),
        ("0 0 4", "0 0 4;0 0 4", ""),
        ("0 0 4", "0 0 4", "0 qo0 1"),
        ("0 0 4", "0 0 4", "0 qo0%4"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_an_error(
    broker: FakeBroker, pool: ConnectionPool, starts: str, offsets: str, counts: str
) -> None:
    record = StoredMessage("Orders", b"a", queue_offset=4)
    broker.script(POP_CODE, answer(record, starts=starts, offsets=offsets, order_count_info=counts))
    with pytest.raises(ProtocolError, match="invalid"):
        await popped(broker, pool)


async def test_more_messages_than_a_pop_can_have_are_an_error(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    records = [StoredMessage("Orders", b"", queue_offset=i) for i in range(33)]
    broker.script(POP_CODE, answer(*records, starts="0 0 0", offsets="0 0 0"))
    with pytest.raises(ProtocolError, match="a pop of 32 messages with 33"):
        await popped(broker, pool)


async def test_nothing_to_pop_is_no_error(broker: FakeBroker, pool: ConnectionPool) -> None:
    empty = PopMessageResponse()
    for code in ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND:
        broker.script(POP_CODE, RemotingCommand(code, encode_header(empty)))
        assert await popped(broker, pool) == []
    broker.script(POP_CODE, RemotingCommand(ResponseCode.POLLING_FULL, encode_header(empty)))
    result = await rpc.pop_message(pool, broker.address, request(), broker_name="broker-a")
    assert result.is_full
    assert not result.messages


async def test_a_broker_that_does_not_pop_says_so(broker: FakeBroker, pool: ConnectionPool) -> None:
    broker.on(POP_CODE, error(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 200050"))
    with pytest.raises(
        NotSupported,
        match=r"request type 200050. This broker does not serve .* Apache's do from 5.0 on.*pull",
    ):
        await popped(broker, pool)


async def test_too_many_that_wait_are_busy(broker: FakeBroker, pool: ConnectionPool) -> None:
    header = NotificationRequest(
        consumer_group="billing", topic="Orders", queue_id=-1, poll_time_ms=0, born_time_ms=0
    )
    assert not await rpc.await_message(pool, broker.address, header)
    broker.script(
        RequestCode.NOTIFICATION, ok(NotificationResponse(has_message=False, polling_full=True))
    )
    with pytest.raises(BrokerBusy, match="too many requests wait"):
        await rpc.await_message(pool, broker.address, header)


async def test_an_acknowledgement_names_the_topic_that_the_message_is_in(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    for flag, topic in enumerate(("Orders", "%RETRY%billing_Orders", "%RETRY%billing+Orders")):
        handle = HANDLE._replace(flag=flag)
        await rpc.ack_message(pool, broker.address, "billing", ("Orders", handle))
        assert broker.of(RequestCode.ACK_MESSAGE)[-1].ext_fields == {
            "consumerGroup": "billing",
            "topic": topic,
            "queueId": "2",
            "extraInfo": str(handle),
            "offset": "19",
            "bname": "broker-a",
        }


async def test_acknowledgements_of_one_batch_share_an_entry(
    broker: FakeBroker, pool: ConnectionPool
) -> None:
    acks = [("Orders", HANDLE._replace(offset=offset)) for offset in (17, 19)]
    other = ("Orders", HANDLE._replace(flag=1, start=4, offset=4))
    await rpc.ack_messages(pool, broker.address, "broker-a", "billing", [*acks, other])
    (sent,) = broker.of(RequestCode.BATCH_ACK_MESSAGE)
    assert b'"b":"BQ=="' in sent.body
    body = BatchAckBody.decode(sent.body)
    assert body.broker_name == "broker-a"
    assert [(ack.retry, ack.start, ack.bits) for ack in body.acks] == [("0", 17, 5), ("1", 4, 1)]


@pytest.mark.parametrize(("revive_queue", "start"), [(3, 19), (ORDERLY_QUEUE, 17)])
async def test_a_change_of_the_time_makes_a_new_handle(
    broker: FakeBroker, pool: ConnectionPool, revive_queue: int, start: int
) -> None:
    """It names the message itself; that of an orderly batch stays the batch's."""
    broker.script(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        ok(
            ChangeInvisibleTimeResponse(
                pop_time_ms=2000, invisible_time_ms=5000, revive_queue_id=revive_queue
            )
        ),
    )
    handle = await rpc.change_invisible_time(
        pool, broker.address, "billing", ("Orders", HANDLE), 5000, suspend=True
    )
    assert str(handle) == f"{start} 2000 5000 {revive_queue} 0 broker-a 2 19"
    (sent,) = broker.of(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    assert (sent.ext_fields["invisibleTime"], sent.ext_fields["suspend"]) == ("5000", "true")


async def test_a_broker_says_who_pops_what(broker: FakeBroker, pool: ConnectionPool) -> None:
    place = b'{"messageQueue":{"brokerName":"broker-a","queueId":%d,"topic":"Orders"},"mode":"%s"}'
    bodies = [
        b'{"messageQueueAssignments":[%s,%s]}' % (place % (-1, b"POP"), place % (3, b"PULL")),
        b'{"messageQueueAssignments":null}',
        b"{}",
    ]
    broker.script(RequestCode.QUERY_ASSIGNMENT, *(ok(body=body) for body in bodies))
    question = AssignmentQuery(
        topic="Orders", group="billing", client_id="me", strategy="AVG", message_model="CLUSTERING"
    )
    answers = [
        await rpc.query_assignment(pool, broker.address, question) for _ in range(len(bodies))
    ]
    assert answers == [
        [
            (MessageQueue("Orders", "broker-a", -1), "POP"),
            (MessageQueue("Orders", "broker-a", 3), "PULL"),
        ],
        None,
        None,
    ]
    assert AssignmentQuery.decode(broker.of(RequestCode.QUERY_ASSIGNMENT)[0].body) == question
    broker.script(RequestCode.QUERY_ASSIGNMENT, ok(body=b'{"messageQueueAssignments":7}'))
    with pytest.raises(ProtocolError, match="not a list"):
        await rpc.query_assignment(pool, broker.address, question)
