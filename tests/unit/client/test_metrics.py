"""Figures of the clients of a process, as Prometheus reads them."""

import asyncio

import pytest

import ogive
from ogive import aio
from ogive.testing import FakeBroker


def rows(name: str) -> dict[str, float]:
    """Return the values of one metric by their labels, without the client's id."""
    found = {}
    for line in ogive.metrics().splitlines():
        shown, _, value = line.rpartition(" ")
        if shown.startswith(f"{name}{{"):
            labels = [one for one in shown[len(name) + 1 : -1].split(",") if "client_id" not in one]
            found[",".join(labels)] = float(value)
    return found


async def test_sends_are_counted_by_topic_and_outcome_while_the_client_runs() -> None:
    async with FakeBroker(topics={"Orders": 1}) as broker:
        async with aio.Producer(broker.address) as producer:
            await producer.send("Orders", b"one")
            await producer.send_batch("Orders", [b"two", b"three"])
            handle = await producer.submit("Orders", b"four")
            await handle
            with pytest.raises(ogive.OgiveError):
                await producer.send("Orders", b"five", queue=ogive.MessageQueue("Orders", "b", 9))
            assert rows("rocketmq_send_cost_time_count") == {
                'topic="Orders",invocation_status="success"': 4,
                'topic="Orders",invocation_status="failure"': 1,
            }
        assert rows("rocketmq_send_cost_time_count") == {}


async def test_calls_of_listeners_are_counted_by_group_and_outcome() -> None:
    seen = asyncio.Queue[str]()

    @ogive.listener("Orders", group="billing", start="earliest")
    async def bill(message: ogive.MessageExt) -> None:
        seen.put_nowait(message.text)
        if message.text == "bad":
            raise ValueError

    async with FakeBroker(topics={"Orders": 1}) as broker:
        async with aio.Producer(broker.address) as producer:
            await producer.send("Orders", b"good")
            await producer.send("Orders", b"bad")
        async with aio.PushConsumer(bill, name_server=broker.address):
            assert {await seen.get(), await seen.get()} == {"good", "bad"}
            # the results reach the loop after the calls
            while rows("rocketmq_consumer_cached_messages").get(OF_ORDERS) != 0:
                await asyncio.sleep(0)
            assert rows("rocketmq_process_time_count") == {
                f'{OF_ORDERS},invocation_status="success"': 1,
                f'{OF_ORDERS},invocation_status="failure"': 1,
                f'{RETRIES},invocation_status="success"': 0,
                f'{RETRIES},invocation_status="failure"': 0,
            }
            assert rows("ogive_client_pulled_messages_total")[OF_ORDERS] == 2
            assert rows("ogive_client_lag_messages")[OF_ORDERS] == 0


OF_ORDERS = 'topic="Orders",consumer_group="billing"'
RETRIES = 'topic="%RETRY%billing",consumer_group="billing"'
