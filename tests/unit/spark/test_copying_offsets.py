"""Copies of a query's offsets in a group: what a broker sees of them."""

import asyncio

import pytest

from ogive.errors import NoPermission
from ogive.model import MessageQueue
from ogive.spark.cluster import Cluster, connect
from ogive.spark.cluster_options import Access
from ogive.testing.fake_broker import FakeBroker, error
from ogive.wire.codes import RequestCode, ResponseCode
from ogive.wire.command import RemotingCommand

COPY = RequestCode.UPDATE_CONSUMER_OFFSET
POSITIONS = {MessageQueue("Orders", "broker-a", number): 10 + number for number in range(8)}
STORED = {("billing", queue.topic, queue.queue_id): at for queue, at in POSITIONS.items()}


async def connected(broker: FakeBroker) -> Cluster:
    return await asyncio.to_thread(connect, Access(name_servers=(broker.address,)))


async def copy(cluster: Cluster) -> None:
    await asyncio.wrap_future(cluster.start_copy("billing", POSITIONS))


def asked(broker: FakeBroker) -> list[bool]:
    """Return for each request to store an offset whether it asks for no answer."""
    return [request.is_oneway for request in broker.requests if request.code == COPY]


async def test_only_the_last_request_of_a_copy_asks_for_an_answer() -> None:
    async with FakeBroker({"Orders": 8}) as broker:
        await copy(await connected(broker))
        assert asked(broker) == [True] * 7 + [False]
        assert broker.offsets == STORED


async def test_what_the_sink_relies_on_is_acknowledged_by_queue() -> None:
    async with FakeBroker({"Orders": 8}) as broker:
        cluster = await connected(broker)
        await asyncio.to_thread(cluster.commit, "billing", POSITIONS)
        assert asked(broker) == [False] * 8


async def test_a_group_that_a_broker_does_not_have_is_made_by_a_pull() -> None:
    async with FakeBroker({"Orders": 8}) as broker:
        known = False

        def refuse(_: object) -> RemotingCommand | None:
            return None if known else error(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)

        def pull(_: object) -> None:
            nonlocal known
            known = True

        broker.on(COPY, refuse)
        broker.on(RequestCode.PULL_MESSAGE, pull)
        await copy(await connected(broker))
        assert broker.offsets == STORED


async def test_a_copy_that_is_refused_says_so() -> None:
    async with FakeBroker({"Orders": 8}) as broker:
        broker.on(COPY, error(ResponseCode.NO_PERMISSION, "no policy allows it"))
        cluster = await connected(broker)
        with pytest.raises(NoPermission, match="no policy allows it"):
            await copy(cluster)
