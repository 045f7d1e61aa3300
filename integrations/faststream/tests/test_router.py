"""Routers, the AsyncAPI document, and FastAPI."""

import asyncio
import json
from typing import Annotated, Any

import fastapi
import pytest
from fastapi.testclient import TestClient
from faststream._internal.broker.router import BrokerRouter
from faststream._internal.configs import BrokerConfig
from faststream.exceptions import SetupError
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256
from faststream.specification import AsyncAPI
from pydantic import BaseModel

import ogive
from ogive.testing import RocketMQ
from ogive_faststream import (
    RocketMQBroker,
    RocketMQPublisher,
    RocketMQRoute,
    RocketMQRouter,
    TestRocketMQBroker,
)
from ogive_faststream.fastapi import RocketMQRouter as FastAPIRouter

LIMIT_S = 60


class Order(BaseModel):
    number: int


async def test_a_router_has_a_prefix_for_its_topics(
    rocketmq: RocketMQ, broker: RocketMQBroker, topic: str
) -> None:
    router = RocketMQRouter(f"{topic}-")

    @router.subscriber("orders", group=topic, start="earliest")
    @router.publisher("bills")
    async def handle(order: Order) -> int:
        return order.number

    broker.include_router(router)
    await broker.start()
    await broker.publish(Order(number=1), f"{topic}-orders")
    await asyncio.to_thread(rocketmq.wait_consumed, topic, timeout_s=LIMIT_S)
    (bill,) = await asyncio.to_thread(rocketmq.messages, f"{topic}-bills")
    assert bill.body == b"1"


async def test_a_router_takes_routes_and_routers() -> None:
    async def handle(body: str) -> str:
        return body.upper()

    inner = RocketMQRouter(
        "inner-",
        handlers=[
            RocketMQRoute(handle, "in", group="g", publishers=[RocketMQPublisher("out", tag="a")])
        ],
    )
    broker = RocketMQBroker(routers=[RocketMQRouter("outer-", routers=[inner])])
    (subscriber,), (publisher,) = broker.subscribers, broker.publishers
    async with TestRocketMQBroker(broker):
        await broker.publish("x", "outer-inner-in")
        assert (subscriber.topic, publisher.topic) == ("outer-inner-in", "outer-inner-out")
        publisher.mock.assert_called_once_with("X")


def test_a_router_of_another_broker_is_refused() -> None:
    other: Any = BrokerRouter(config=BrokerConfig(), handlers=(), routers=())
    with pytest.raises(SetupError, match="BrokerRouter is not a RocketMQRouter"):
        RocketMQBroker().include_router(other)


# --- the AsyncAPI document ------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2.6.0", "3.0.0"])
def test_a_document_has_servers_channels_and_schemas(version: str) -> None:
    broker = RocketMQBroker(
        "one:9876;two:9876", security=SASLPlaintext("user", "secret", use_ssl=True)
    )

    @broker.subscriber("Orders", group="billing", title="orders")
    @broker.publisher("Bills", description="What customers pay.")
    async def bill(order: Order) -> int:
        """Make a bill."""
        return order.number

    text = AsyncAPI(broker, schema_version=version).to_specification().to_json()
    document = json.loads(text)
    assert "secret" not in text
    assert len(document["servers"]) == 2
    assert {one["protocol"] for one in document["servers"].values()} == {"rocketmq"}
    assert document["components"]["securitySchemes"]
    assert document["components"]["schemas"]["Order"]["required"] == ["number"]
    assert document["channels"].keys() == {"orders", "Bills:Publisher"}
    if version == "3.0.0":
        addresses = [one["address"] for one in document["channels"].values()]
        assert addresses == ["Orders", "Bills"]
        actions = [one["action"] for one in document["operations"].values()]
        assert actions == ["receive", "send"]


def test_a_document_leaves_out_what_is_hidden() -> None:
    broker = RocketMQBroker(specification_url="rocketmq.example:9876")

    @broker.subscriber("Orders", group="billing", include_in_schema=False)
    async def handle(order: Order) -> None: ...

    document = json.loads(AsyncAPI(broker).to_specification().to_json())
    assert document["channels"] == {}
    assert document["servers"]["development"]["host"] == "rocketmq.example:9876"


# --- settings -------------------------------------------------------------------------------------


def test_security_becomes_settings_of_the_client() -> None:
    security = SASLPlaintext("user", "secret", use_ssl=True)
    client = RocketMQBroker("one:9876", security=security)._client
    assert client.credentials == ogive.Credentials(access_key="user", secret_key="secret")
    assert client.ssl is True
    assert RocketMQBroker(security=BaseSecurity())._client.ssl is False


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"security": SASLScram256("a", "b")}, "SASLScram256"),
        ({"security": BaseSecurity(), "client": ogive.ClientConfig()}, "only one"),
    ],
)
def test_security_that_there_is_not_is_refused(options: Any, words: str) -> None:
    with pytest.raises(ogive.InvalidOption, match=words):
        RocketMQBroker(**options)


# --- FastAPI --------------------------------------------------------------------------------------


def test_an_application_of_fastapi_publishes_and_subscribes(rocketmq: RocketMQ, topic: str) -> None:
    router = FastAPIRouter(rocketmq.name_server, logger=None)
    app = fastapi.FastAPI()

    def tax() -> int:
        return 19

    @router.subscriber(topic, group=topic, start="earliest")
    @router.publisher(f"{topic}-bills")
    async def bill(order: Order, tax: Annotated[int, fastapi.Depends(tax)]) -> int:
        return order.number + tax

    @router.post("/orders")
    async def order(order: Order) -> str:
        return (await router.broker.publish(order, topic)).id

    app.include_router(router)
    with TestClient(app) as client:
        assert client.post("/orders", json={"number": 1}).status_code == 200
        rocketmq.wait_consumed(topic, timeout_s=LIMIT_S)
        assert f"{topic}-bills" in client.get("/asyncapi.json").text
    assert [one.body for one in rocketmq.messages(f"{topic}-bills")] == [b"20"]


async def test_an_application_of_fastapi_is_tested_in_memory() -> None:
    router = FastAPIRouter()

    @router.subscriber("Orders", group="billing")
    async def bill(order: Order) -> int:
        return order.number

    async with TestRocketMQBroker(router.broker) as broker:
        reply = await broker.request(Order(number=1), "Orders")
        assert await reply.decode() == 1
        bill.mock.assert_called_once_with({"number": 1})
