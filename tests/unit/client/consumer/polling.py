"""What tests of the pull consumer share: the group "replay", and the topic "Orders" in a fake
broker.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.pull_consumer import PullConsumer
from ogive.model import MessageExt, MessageQueue
from ogive.testing.fake_broker import WAIT_S, FakeBroker, ok
from ogive.wire.bodies.clients import consumer_ids_dumps
from ogive.wire.codes import RequestCode

PULL = RequestCode.PULL_MESSAGE
QUERY = RequestCode.QUERY_CONSUMER_OFFSET
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP
Q0, Q1 = MessageQueue("Orders", "broker-a", 0), MessageQueue("Orders", "broker-a", 1)

QUICK = ConsumerConfig(
    rebalance_pause_s=0.01,
    hand_over_wait_s=0.0,
    hand_over_pause_s=0.01,
    pull_retry_s=0.01,
    persist_period_s=0.02,
    persist_again_s=60,
    pull_suspend_s=5.0,
)
SELDOM = replace(QUICK, persist_period_s=60)
"""Progress goes out only where something asks for it."""


def member(
    broker: FakeBroker, *topics: str, config: ConsumerConfig = QUICK, **settings: Any
) -> PullConsumer:
    """A member of the group "replay"."""
    return PullConsumer(
        *(topics or ("Orders",)), config=config, **{"group": "replay", **_where(broker, settings)}
    )


def reader(broker: FakeBroker, config: ConsumerConfig = QUICK, **settings: Any) -> PullConsumer:
    """One that is assigned queues."""
    return PullConsumer(config=config, **_where(broker, settings))


def _where(broker: FakeBroker, settings: dict[str, Any]) -> dict[str, Any]:
    address = {} if "client" in settings else {"name_server": broker.address}
    return {"start": "earliest", **address, **settings}


def fill(broker: FakeBroker, count: int, queue_id: int = 0) -> None:
    for _ in range(count):
        broker.put("Orders", b"%d" % len(broker.stored["Orders", queue_id]), queue_id=queue_id)


async def collect(consumer: PullConsumer, count: int, max_messages: int = 1000) -> list[MessageExt]:
    found: list[MessageExt] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await consumer.poll(max_messages=min(max_messages, count - len(found)))
    return found


def offsets(messages: list[MessageExt]) -> list[int]:
    return [message.queue_offset for message in messages]


def progress(broker: FakeBroker, queue_id: int = 0) -> int | None:
    return broker.offsets.get(("replay", "Orders", queue_id))


def pulls_of(broker: FakeBroker, queue_id: int = 0) -> list[int]:
    return [
        int(r.ext_fields["queueOffset"])
        for r in broker.of(PULL)
        if r.ext_fields["queueId"] == str(queue_id)
    ]


async def eventually(condition: Callable[[], bool]) -> None:
    """For what no request of the broker announces."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


def with_others(broker: FakeBroker, *others: str) -> None:
    """Let the broker say that *others* are members of the group, too."""
    broker.on(MEMBERS, lambda _: ok(body=consumer_ids_dumps([*broker.members["replay"], *others])))


async def rebalanced(broker: FakeBroker, consumer: PullConsumer, count: int) -> None:
    """Tell the members, and wait until ours holds *count* queues."""
    broker.notify("replay")
    await eventually(lambda: len(consumer.assignment) == count)
