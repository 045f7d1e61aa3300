"""The broker in memory."""

from collections.abc import Callable
from typing import Any

import pytest
from faststream import FastStream, TestApp
from faststream.exceptions import SubscriberNotFound
from pydantic import BaseModel, ValidationError

from ogive.testing import RocketMQ
from ogive_faststream import RocketMQBroker, RocketMQMessage, TestRocketMQBroker


class Order(BaseModel):
    number: int


def make(name_server: str = "127.0.0.1:1", topic: str = "Orders") -> tuple[RocketMQBroker, Any]:
    """Return a broker and its handler of orders, which publishes bills."""
    broker = RocketMQBroker(name_server, logger=None)

    @broker.subscriber(topic, group=topic, start="earliest")
    @broker.publisher(f"{topic}-bills")
    async def bill(order: Order, message: RocketMQMessage) -> int:
        assert message.raw_message.topic == topic
        return order.number

    return broker, bill


async def test_handlers_are_called_without_a_server() -> None:
    broker, bill = make()
    (publisher,) = broker.publishers
    async with TestRocketMQBroker(broker):
        result = await broker.publish({"number": 1}, "Orders", tag="a", keys="4711")
        assert result.queue.topic == "Orders"
        bill.mock.assert_called_once_with({"number": 1})
        publisher.mock.assert_called_once_with(1)
        assert await broker.ping()


async def test_the_same_test_runs_with_a_server(rocketmq: RocketMQ, topic: str) -> None:
    broker, bill = make(rocketmq.name_server, topic)
    async with TestRocketMQBroker(broker, with_real=True):
        await broker.publish({"number": 1}, topic)
        await bill.wait_call(timeout=60)
        bill.mock.assert_called_once_with({"number": 1})


async def test_an_application_runs_in_memory() -> None:
    broker, bill = make()
    app = FastStream(broker)

    @app.after_startup
    async def sell() -> None:
        await broker.publish({"number": 1}, "Orders")

    async with TestRocketMQBroker(broker), TestApp(app):
        bill.mock.assert_called_once_with({"number": 1})


async def test_the_error_of_a_handler_is_raised_by_the_publish() -> None:
    broker, _ = make()
    async with TestRocketMQBroker(broker):
        with pytest.raises(ValidationError):
            await broker.publish("no order", "Orders")


async def test_a_request_gets_a_reply() -> None:
    broker, _ = make()
    async with TestRocketMQBroker(broker):
        reply = await broker.request({"number": 1}, "Orders", correlation_id="cor")
        assert (await reply.decode(), reply.correlation_id) == (1, "cor")
        with pytest.raises(SubscriberNotFound, match="Other"):
            await broker.request({"number": 1}, "Other")


async def test_filters_groups_and_batches_are_as_with_a_server() -> None:
    broker = RocketMQBroker()
    calls: list[tuple[str, Any]] = []

    def note(name: str) -> Callable[[Any], None]:
        def handle(body: Any) -> None:
            calls.append((name, body))

        return handle

    groups: dict[str, Any] = {
        "tags": {"tags": "paid || refunded"},
        "sql": {"sql": "amount > 100"},
        "all": {},
        "batch": {"batch": 8},
    }
    for name, options in groups.items():
        broker.subscriber("Orders", group=name, **options)(note(name))
    # one of the two gets each message
    broker.subscriber("Orders", group="all")(note("all"))

    async with TestRocketMQBroker(broker):
        await broker.publish_batch(1, 2, topic="Orders", tag="paid")
        assert sorted(calls, key=str) == [
            ("all", 1),
            ("all", 2),
            ("batch", [1, 2]),
            ("tags", 1),
            ("tags", 2),
        ]
        calls.clear()
        await broker.publish(3, "Orders", headers={"amount": "200"})
        assert sorted(calls, key=str) == [("all", 3), ("batch", [3]), ("sql", 3)]
