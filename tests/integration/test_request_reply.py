"""Requests and their replies through a real broker, ours or Apache's."""

import asyncio
import logging

import pytest

import ogive
from ogive import aio
from ogive.errors import ReplyTimeout
from tests.peers import RunningBroker

pytestmark = pytest.mark.client_suite

WAIT_S = 60.0
QUICK = ogive.ConsumerConfig(rebalance_pause_s=0.1)


@pytest.fixture
async def prices(broker: RunningBroker, topic: str) -> str:
    """A topic with four queues."""
    async with aio.Admin(broker.name_server) as admin:
        await admin.create_topic(topic, queues=4)
    return topic


async def test_requests_are_answered_by_a_listener(
    broker: RunningBroker, prices: str, group: str
) -> None:
    @ogive.listener(prices, group=group, start="earliest")
    def price(request: ogive.MessageExt) -> ogive.Reply:
        return ogive.Reply(
            b"re " + request.body, tag="price", keys=request.keys, properties={"größe": "XL €"}
        )

    async with (
        aio.PushConsumer(price, name_server=broker.name_server, config=QUICK) as consumer,
        aio.Producer(broker.name_server) as producer,
    ):
        replies = await asyncio.gather(
            *(
                producer.request(prices, b"%d" % i, keys=f"k{i}", timeout_s=WAIT_S)
                for i in range(50)
            )
        )
        assert [reply.body for reply in replies] == [b"re %d" % i for i in range(50)]
        assert {(reply.tag, reply.properties["größe"]) for reply in replies} == {("price", "XL €")}
        assert [reply.keys for reply in replies] == [(f"k{i}",) for i in range(50)]
        async with asyncio.timeout(WAIT_S):
            while sum((await consumer.lag()).values()):
                await asyncio.sleep(0.02)


async def test_a_request_that_nobody_answers_ends_in_time_and_is_consumed_later(
    broker: RunningBroker, prices: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The reply comes when whoever asked has gone: it is lost with a line in the log, and the
    request is finished.
    """

    @ogive.listener(prices, group=group, start="earliest")
    async def price(request: ogive.MessageExt) -> ogive.Reply:
        return ogive.Reply(b"too late")

    async with aio.Producer(broker.name_server) as producer:
        with pytest.raises(ReplyTimeout, match=f"to {prices} within 3.0 s: it is stored") as caught:
            await producer.request(prices, b"anybody?", timeout_s=3.0)
    with caplog.at_level(logging.WARNING, "ogive.client.consumer.send_back"):
        async with (
            aio.PushConsumer(price, name_server=broker.name_server, config=QUICK),
            asyncio.timeout(WAIT_S),
        ):
            while f", request {caught.value.correlation_id}: " not in caplog.text:
                await asyncio.sleep(0.02)


def test_blocking_calls_ask_as_well(broker: RunningBroker, prices: str, group: str) -> None:
    @ogive.listener(prices, group=group, start="earliest")
    def price(request: ogive.MessageExt) -> ogive.Reply:
        return ogive.Reply(b"2.20")

    with (
        ogive.PushConsumer(price, name_server=broker.name_server, config=QUICK),
        ogive.Producer(broker.name_server) as producer,
    ):
        assert producer.request(prices, b"espresso", timeout_s=WAIT_S).text == "2.20"
