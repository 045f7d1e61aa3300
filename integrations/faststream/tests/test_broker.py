"""Subscribers and publishers on a real broker."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from faststream import AckPolicy, BaseMiddleware, Depends, FastStream
from faststream.exceptions import (
    AckMessage,
    FeatureNotSupportedException,
    IncorrectState,
    NackMessage,
    RejectMessage,
    StopConsume,
)
from pydantic import BaseModel

import ogive
from ogive.testing import RocketMQ
from ogive_faststream import RocketMQBroker, RocketMQMessage, RocketMQResponse

LIMIT_S = 60


class Order(BaseModel):
    number: int
    note: str = ""


class Seen:
    """Queue of what handlers have seen."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[Any] = asyncio.Queue()
        self.add: Callable[[Any], None] = self._items.put_nowait

    async def read(self, count: int) -> list[Any]:
        """Return the next *count* items."""
        return [await asyncio.wait_for(self._items.get(), LIMIT_S) for _ in range(count)]


@pytest.fixture
def seen() -> Seen:
    return Seen()


async def wait_consumed(rocketmq: RocketMQ, group: str) -> None:
    """Wait until the group has finished all messages."""
    await asyncio.to_thread(rocketmq.wait_consumed, group, timeout_s=LIMIT_S)


async def dead_letters(rocketmq: RocketMQ, group: str) -> list[bytes]:
    """Return the bodies in the group's dead-letter topic."""
    letters = await asyncio.to_thread(rocketmq.messages, f"%DLQ%{group}")
    return [one.body for one in letters]


# --- publishing and receiving ---------------------------------------------------------------------


async def test_a_message_arrives_with_its_headers_and_properties(
    broker: RocketMQBroker, topic: str, seen: Seen
) -> None:
    @broker.subscriber(topic, group=topic, start="earliest")
    async def handle(order: Order, message: RocketMQMessage) -> None:
        seen.add((order, message))

    await broker.start()
    result = await broker.publish(
        Order(number=1),
        topic,
        tag="paid",
        keys=("4711", "4712"),
        sharding_key="customer",
        headers={"region": "eu"},
        correlation_id="cor",
    )
    assert isinstance(result, ogive.SendResult)
    ((order, message),) = await seen.read(1)
    assert order == Order(number=1)
    assert message.headers["region"] == "eu"
    assert (message.correlation_id, message.message_id) == ("cor", result.id)
    raw = message.raw_message
    assert (raw.tag, raw.keys, raw.sharding_key) == ("paid", ("4711", "4712"), "customer")


@pytest.mark.parametrize(
    ("body", "expected"), [("text", "text"), (b"\xff", b"\xff"), ({"a": [1]}, {"a": [1]})]
)
async def test_a_body_is_decoded_by_its_content_type(
    broker: RocketMQBroker, topic: str, seen: Seen, body: Any, expected: Any
) -> None:
    @broker.subscriber(topic, group=topic, start="earliest")
    def handle(body: Any) -> None:
        seen.add(body)

    await broker.start()
    await broker.publish(body, topic)
    assert await seen.read(1) == [expected]


async def test_a_message_of_another_client_is_decoded_as_json_or_bytes(
    rocketmq: RocketMQ, broker: RocketMQBroker, topic: str, seen: Seen
) -> None:
    @broker.subscriber(topic, group=topic, start="earliest")
    def handle(body: Any) -> None:
        seen.add(body)

    rocketmq.send(topic, b'{"number": 1}')
    rocketmq.send(topic, b"\xff")
    await broker.start()
    assert await seen.read(2) == [{"number": 1}, b"\xff"]


async def test_a_batch_is_stored_in_order(
    rocketmq: RocketMQ, broker: RocketMQBroker, topic: str
) -> None:
    await broker.connect()
    results = await broker.publish_batch(
        Order(number=1), "text", b"bytes", topic=topic, tag="paid", headers={"a": "b"}
    )
    assert [one.queue_offset for one in results] == [0, 1, 2]
    stored = await asyncio.to_thread(rocketmq.messages, topic)
    assert [one.body for one in stored] == [b'{"number":1,"note":""}', b"text", b"bytes"]
    assert {(one.tag, one.properties["a"]) for one in stored} == {("paid", "b")}


async def test_a_subscriber_of_batches_gets_lists(
    broker: RocketMQBroker, topic: str, seen: Seen
) -> None:
    @broker.subscriber(topic, group=topic, start="earliest", batch=32)
    async def handle(orders: list[Order], message: RocketMQMessage) -> None:
        seen.add((orders, [one["kind"] for one in message.batch_headers]))

    await broker.connect()
    await broker.publish_batch(
        *(Order(number=number) for number in range(3)), topic=topic, headers={"kind": "new"}
    )
    await broker.start()
    orders: list[Order] = []
    kinds: list[str] = []
    while len(orders) < 3:
        ((some, of_these),) = await seen.read(1)
        orders += some
        kinds += of_these
    assert [one.number for one in orders] == [0, 1, 2]
    assert kinds == ["new"] * 3


async def test_a_delayed_message_comes_later(
    broker: RocketMQBroker, topic: str, seen: Seen
) -> None:
    @broker.subscriber(topic, group=topic, start="earliest")
    def handle(body: str) -> None:
        seen.add(datetime.now(UTC))

    await broker.start()
    before = datetime.now(UTC)
    await broker.publish("later", topic, delay_s=3)
    (at,) = await seen.read(1)
    # the broker's timers have a precision of a second
    assert at - before > timedelta(seconds=2)


@pytest.mark.parametrize("options", [{"tags": "paid || refunded"}, {"sql": "amount > 100"}])
async def test_a_filter_selects_messages(
    rocketmq: RocketMQ, broker: RocketMQBroker, topic: str, seen: Seen, options: Any
) -> None:
    @broker.subscriber(topic, group=topic, start="earliest", **options)
    def handle(body: str) -> None:
        seen.add(body)

    await broker.start()
    await broker.publish("no", topic, tag="open", headers={"amount": "20"})
    await broker.publish("yes", topic, tag="paid", headers={"amount": "200"})
    assert await seen.read(1) == ["yes"]


async def test_messages_with_one_sharding_key_come_in_order(
    rocketmq: RocketMQ, broker: RocketMQBroker, topic: str, seen: Seen
) -> None:
    """A failed message holds up those behind it."""
    rocketmq.admin.update_topic(topic, read_queues=4, write_queues=4)
    tries: list[int] = []

    @broker.subscriber(
        topic, group=topic, start="earliest", orderly=True, max_workers=4, suspend_s=0.1
    )
    async def handle(number: int) -> None:
        tries.append(number)
        if tries.count(2) == 1:
            raise NackMessage(suspend_s=0.2)
        if tries.count(4) == 1:
            raise ValueError("not yet")
        seen.add(number)

    for number in range(6):
        await (await broker.connect()).producer.send(
            topic, str(number).encode(), sharding_key="one"
        )
    await broker.start()
    assert await seen.read(6) == list(range(6))
    assert tries == [0, 1, 2, 2, 3, 4, 4, 5]


async def test_max_workers_limits_the_handlers_at_work(
    broker: RocketMQBroker, topic: str, seen: Seen
) -> None:
    at_work, gate = [0, 0], asyncio.Event()

    @broker.subscriber(topic, group=topic, start="earliest", max_workers=2)
    async def handle(number: int) -> None:
        at_work[0] += 1
        at_work[1] = max(at_work)
        seen.add("begin")
        await gate.wait()
        at_work[0] -= 1
        seen.add("end")

    await broker.connect()
    await broker.publish_batch(*range(4), topic=topic)
    await broker.start()
    assert await seen.read(2) == ["begin"] * 2
    gate.set()
    await seen.read(6)
    assert at_work == [0, 2]


# --- acknowledgements -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "error", "tries", "is_dead"),
    [
        (None, ValueError, 3, True),
        (AckPolicy.NACK_ON_ERROR, ValueError, 3, True),
        (AckPolicy.REJECT_ON_ERROR, ValueError, 1, True),
        (AckPolicy.ACK, ValueError, 1, False),
        (AckPolicy.ACK_FIRST, ValueError, 1, False),
        (AckPolicy.MANUAL, ValueError, 3, True),
        (AckPolicy.NACK_ON_ERROR, RejectMessage, 1, True),
        (AckPolicy.NACK_ON_ERROR, AckMessage, 1, False),
        (AckPolicy.ACK, NackMessage, 3, True),
    ],
)
async def test_the_policy_decides_about_a_failed_message(
    rocketmq: RocketMQ,
    broker: RocketMQBroker,
    topic: str,
    policy: AckPolicy | None,
    error: type[Exception],
    tries: int,
    is_dead: bool,
) -> None:
    """With two retries a message is tried three times, and is a dead letter then."""
    options: Any = {} if policy is None else {"ack_policy": policy}
    calls = []

    @broker.subscriber(topic, group=topic, start="earliest", max_retries=2, **options)
    async def handle(body: str) -> None:
        calls.append(body)
        raise error

    await broker.start()
    await broker.publish("x", topic)
    await wait_consumed(rocketmq, topic)
    assert len(calls) == tries
    assert await dead_letters(rocketmq, topic) == [b"x"] * is_dead


@pytest.mark.parametrize(
    ("method", "tries", "is_dead"), [("ack", 1, False), ("nack", 2, True), ("reject", 1, True)]
)
async def test_a_handler_decides_by_itself(
    rocketmq: RocketMQ,
    broker: RocketMQBroker,
    topic: str,
    method: str,
    tries: int,
    is_dead: bool,
) -> None:
    calls = []

    @broker.subscriber(
        topic, group=topic, start="earliest", max_retries=1, ack_policy=AckPolicy.MANUAL
    )
    async def handle(body: str, message: RocketMQMessage) -> None:
        calls.append(body)
        await getattr(message, method)()
        # only the first decision counts
        await message.reject()

    await broker.start()
    await broker.publish("x", topic)
    await wait_consumed(rocketmq, topic)
    assert len(calls) == tries
    assert await dead_letters(rocketmq, topic) == [b"x"] * is_dead


async def test_a_handler_without_a_decision_gets_the_message_again(
    rocketmq: RocketMQ, topic: str, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("of this test")
    async with RocketMQBroker(rocketmq.name_server, logger=logger) as broker:

        @broker.subscriber(topic, group=topic, start="earliest", ack_policy=AckPolicy.MANUAL)
        async def handle(body: str, message: RocketMQMessage) -> None:
            seen.add(message.raw_message.reconsume_times)
            if message.raw_message.reconsume_times:
                await message.ack()

        await broker.start()
        await broker.publish("x", topic)
        assert await seen.read(2) == [0, 1]
    assert "the handler ended without ack, nack or reject" in caplog.text


async def test_a_body_that_does_not_fit_is_a_failure(
    rocketmq: RocketMQ, broker: RocketMQBroker, topic: str
) -> None:
    @broker.subscriber(topic, group=topic, start="earliest", max_retries=0)
    async def handle(order: Order) -> None:
        raise AssertionError("not called")

    await broker.start()
    await broker.publish({"number": "no number"}, topic)
    await wait_consumed(rocketmq, topic)
    assert await dead_letters(rocketmq, topic) == [b'{"number":"no number"}']


async def test_a_failed_batch_comes_again(
    rocketmq: RocketMQ, broker: RocketMQBroker, topic: str
) -> None:
    @broker.subscriber(topic, group=topic, start="earliest", batch=8, max_retries=1)
    async def handle(bodies: list[str]) -> None:
        raise ValueError(bodies)

    await broker.connect()
    await broker.publish_batch("a", "b", topic=topic)
    await broker.start()
    await wait_consumed(rocketmq, topic)
    assert sorted(await dead_letters(rocketmq, topic)) == [b"a", b"b"]


# --- results, replies, middlewares ----------------------------------------------------------------


async def test_a_publisher_publishes_what_a_handler_returns(
    rocketmq: RocketMQ, broker: RocketMQBroker, topic: str
) -> None:
    bills = broker.publisher(f"{topic}-bills", tag="new", headers={"of": "shop"})
    copies = broker.publisher(f"{topic}-copies")

    @broker.subscriber(topic, group=topic, start="earliest")
    @bills
    @copies
    async def handle(order: Order) -> RocketMQResponse:
        return RocketMQResponse(order.number, keys=str(order.number), headers={"a": "b"})

    await broker.start()
    await broker.publish(Order(number=4711), topic, correlation_id="cor")
    await wait_consumed(rocketmq, topic)
    (bill,) = await asyncio.to_thread(rocketmq.messages, bills.topic)
    assert (bill.body, bill.tag, bill.keys) == (b"4711", "new", ("4711",))
    assert bill.properties["correlation_id"] == "cor"
    assert (bill.properties["of"], bill.properties["a"]) == ("shop", "b")
    (copy,) = await asyncio.to_thread(rocketmq.messages, copies.topic)
    assert (copy.body, copy.tag, copy.keys) == (b"4711", None, ("4711",))


async def test_a_publisher_publishes_by_itself(
    rocketmq: RocketMQ, broker: RocketMQBroker, topic: str
) -> None:
    publisher = broker.publisher(topic, tag="new", headers={"of": "shop"}, reply_to="Answers")
    await broker.connect()
    await publisher.publish("x")
    await publisher.publish("y", tag="old", headers={"of": "store"})
    first, second = await asyncio.to_thread(rocketmq.messages, topic)
    assert (first.tag, first.properties["of"]) == ("new", "shop")
    assert first.properties["reply_to"] == "Answers"
    assert (second.tag, second.properties["of"]) == ("old", "store")


async def test_a_request_gets_the_result_of_the_handler(broker: RocketMQBroker, topic: str) -> None:
    @broker.subscriber(topic, group=topic, start="earliest")
    async def price(article: str) -> RocketMQResponse:
        return RocketMQResponse({article: 2.2}, headers={"currency": "EUR"}, tag="price")

    await broker.start()
    for ask in (
        broker.request("espresso", topic, timeout=LIMIT_S, correlation_id="cor"),
        broker.publisher(topic).request("espresso", timeout=LIMIT_S, correlation_id="cor"),
    ):
        reply = await ask
        assert await reply.decode() == {"espresso": 2.2}
        assert reply.headers["currency"] == "EUR"
        assert (reply.correlation_id, reply.raw_message.tag) == ("cor", "price")


async def test_a_request_of_another_client_is_answered(
    rocketmq: RocketMQ, broker: RocketMQBroker, topic: str
) -> None:
    @broker.subscriber(topic, group=topic, start="earliest")
    async def price(article: str, message: RocketMQMessage) -> str:
        assert message.correlation_id
        return f"price of {article}"

    await broker.start()
    async with ogive.aio.Producer(rocketmq.name_server) as producer:
        reply = await producer.request(topic, b'"espresso"', timeout_s=LIMIT_S)
    assert reply.body == b"price of espresso"


async def test_a_request_without_a_reply_ends_in_time(broker: RocketMQBroker, topic: str) -> None:
    @broker.subscriber(topic, group=topic, start="earliest", no_reply=True)
    async def handle(article: str) -> str:
        return "not sent"

    await broker.start()
    with pytest.raises(ogive.ReplyTimeout):
        await broker.request("espresso", topic, timeout=3)


async def test_an_orderly_subscriber_cannot_reply(
    rocketmq: RocketMQ, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with RocketMQBroker(rocketmq.name_server, logger=logging.getLogger("test")) as broker:

        @broker.subscriber(topic, group=topic, start="earliest", orderly=True)
        async def handle(article: str) -> str:
            return "not sent"

        await broker.start()
        with pytest.raises(ogive.ReplyTimeout):
            await broker.request("espresso", topic, timeout=3)
        await wait_consumed(rocketmq, topic)
    assert "a request gets no reply" in caplog.text


async def test_a_message_names_the_topic_for_the_result(
    rocketmq: RocketMQ, broker: RocketMQBroker, topic: str
) -> None:
    @broker.subscriber(topic, group=topic, start="earliest")
    async def handle(body: str) -> str:
        return body.upper()

    await broker.start()
    await broker.publish("x", topic, reply_to=f"{topic}-answers")
    await wait_consumed(rocketmq, topic)
    (answer,) = await asyncio.to_thread(rocketmq.messages, f"{topic}-answers")
    assert answer.body == b"X"


async def test_middlewares_and_dependencies_stand_around_a_handler(
    rocketmq: RocketMQ, topic: str, seen: Seen
) -> None:
    class Note(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            seen.add(("consume", msg.raw_message.topic))
            return await call_next(msg)

        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            seen.add(("publish", cmd.destination, cmd.options))
            cmd.add_headers({"noted": "yes"})
            return await call_next(cmd)

    def user(noted: str = "") -> str:
        return "user"

    async with RocketMQBroker(rocketmq.name_server, logger=None, middlewares=[Note]) as broker:

        @broker.subscriber(topic, group=topic, start="earliest")
        async def handle(body: str, message: RocketMQMessage, who: str = Depends(user)) -> str:
            seen.add((who, message.headers["noted"]))
            return "reply"

        await broker.start()
        await broker.request("x", topic, tag="a", timeout=LIMIT_S)
        assert await seen.read(5) == [
            ("publish", topic, {"tag": "a"}),
            ("consume", topic),
            ("user", "yes"),
            # the reply, at both ends
            ("publish", "", {}),
            ("consume", "DefaultCluster_REPLY_TOPIC"),
        ]


# --- life -----------------------------------------------------------------------------------------


async def test_a_missing_name_server_is_an_error_of_the_start() -> None:
    broker = RocketMQBroker("127.0.0.1:1", logger=None)
    with pytest.raises(ogive.NoNameServer, match=r"127\.0\.0\.1:1"):
        await broker.start()
    assert not await broker.ping()
    await broker.stop()


async def test_nothing_is_published_before_the_start() -> None:
    with pytest.raises(IncorrectState, match="not connected"):
        await RocketMQBroker(logger=None).publish("x", "Orders")


async def test_a_stop_waits_for_running_handlers(
    rocketmq: RocketMQ, broker: RocketMQBroker, topic: str, seen: Seen
) -> None:
    @broker.subscriber(topic, group=topic, start="earliest")
    @broker.publisher(f"{topic}-done")
    async def handle(body: str) -> str:
        seen.add(body)
        await asyncio.sleep(1)
        seen.add("done")
        return body

    await broker.start()
    await broker.publish_batch("x", "y", topic=topic)
    assert await seen.read(1) == ["x"]
    await broker.stop()
    assert await seen.read(1) == ["done"]
    assert not await broker.ping()
    done = await asyncio.to_thread(rocketmq.messages, f"{topic}-done")
    assert [one.body for one in done] == [b"x"]
    # it is acknowledged, and the other one is not lost
    await broker.start()
    assert await broker.ping()
    assert await seen.read(2) == ["y", "done"]
    await wait_consumed(rocketmq, topic)


async def test_a_stop_waits_no_longer_than_its_timeout(
    rocketmq: RocketMQ, topic: str, seen: Seen
) -> None:
    broker = RocketMQBroker(rocketmq.name_server, logger=None, graceful_timeout=0.5)

    @broker.subscriber(topic, group=topic, start="earliest")
    async def handle(body: str, message: RocketMQMessage) -> None:
        seen.add(message.raw_message.reconsume_times)
        await asyncio.sleep(60 if len(calls) == 0 else 0)

    calls: list[int] = []
    await broker.start()
    await broker.publish("x", topic)
    await seen.read(1)
    begin = asyncio.get_running_loop().time()
    await broker.stop()
    assert asyncio.get_running_loop().time() - begin < 10
    calls.append(1)
    await broker.start()
    await seen.read(1)
    await broker.stop()


async def test_a_handler_stops_its_subscriber(
    rocketmq: RocketMQ, broker: RocketMQBroker, topic: str, seen: Seen
) -> None:
    @broker.subscriber(topic, group=topic, start="earliest", ack_policy=AckPolicy.ACK)
    async def handle(body: str) -> None:
        seen.add(body)
        raise StopConsume

    await broker.connect()
    await broker.publish_batch("x", "y", topic=topic)
    await broker.start()
    assert await seen.read(1) == ["x"]
    (subscriber,) = broker.subscribers
    await subscriber.stop()
    assert not subscriber.running
    await subscriber.start()
    assert await seen.read(1) == ["y"]


async def test_a_handler_ends_the_application(
    rocketmq: RocketMQ, broker: RocketMQBroker, topic: str
) -> None:
    @broker.subscriber(topic, group=topic, start="earliest")
    async def handle(body: str) -> None:
        raise SystemExit

    app = FastStream(broker, logger=None)

    @app.after_startup
    async def send() -> None:
        await broker.publish("x", topic)

    await asyncio.wait_for(app.run(), LIMIT_S)


async def test_a_subscriber_may_begin_later(broker: RocketMQBroker, topic: str, seen: Seen) -> None:
    await broker.start()
    subscriber = broker.subscriber(topic, group=topic, start="earliest")

    @subscriber
    async def handle(body: str) -> None:
        seen.add(body)

    await subscriber.start()
    await broker.publish("x", topic)
    assert await seen.read(1) == ["x"]
    await subscriber.stop()


async def test_a_ping_fails_when_the_consumer_has_failed(
    broker: RocketMQBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    @broker.subscriber(topic, group=topic)
    async def handle(body: str) -> None: ...

    await broker.start()
    assert await broker.ping()

    async def fail() -> None:
        raise ValueError("a fault")

    connection = await broker.connect()
    connection.producer.client.spawn(fail(), "test")
    await asyncio.sleep(0.1)
    assert not await broker.ping()
    assert "no message is received any more" in caplog.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"group": "a.b"}, "a.b"),
        ({"group": "g", "tags": "a", "sql": "b > 1"}, "by tags or in SQL"),
        ({"group": "g", "max_workers": 0}, "threads is 0"),
        ({"group": "g", "batch": 0}, "batch is 0"),
    ],
)
def test_what_is_wrong_is_refused_at_once(options: Any, words: str) -> None:
    with pytest.raises(ogive.InvalidOption, match=words):
        RocketMQBroker().subscriber("Orders", **options)


async def test_a_topic_has_one_subscriber_of_a_group(broker: RocketMQBroker, topic: str) -> None:
    for _ in range(2):

        @broker.subscriber(topic, group=topic)
        async def handle(body: str) -> None: ...

    with pytest.raises(ogive.InvalidOption, match=topic):
        await broker.start()


async def test_messages_are_not_fetched_one_by_one() -> None:
    subscriber = RocketMQBroker().subscriber("Orders", group="billing")
    with pytest.raises(FeatureNotSupportedException, match="SimpleConsumer"):
        await subscriber.get_one()
    with pytest.raises(FeatureNotSupportedException, match="SimpleConsumer"):
        async for _ in subscriber:
            pass
