"""Calls go to the broker that the route names, and again while it is away."""

from typing import cast

import pytest

from ogive.client import api
from ogive.client.api import RawPull
from ogive.client.portal import Portal
from ogive.errors import NoRoute
from ogive.model import MessageQueue, PullStatus
from ogive.spark.access import Access
from ogive.spark.ranges import QueueRange
from ogive.spark.routes import Patience
from ogive.spark.rpc import EVERYTHING, Cluster
from ogive.wire.bodies import BrokerData, QueueData, TopicRouteData
from ogive.wire.headers import PullMessageRequest

QUEUE = MessageQueue("Orders", "broker-a", 0)


def route(*broker_names: str) -> TopicRouteData:
    return TopicRouteData(
        queues=tuple(QueueData(broker_name=name, read_queues=1, write_queues=1, perm=6) for name in broker_names),
        brokers=tuple(BrokerData(cluster="C", broker_name=name, addresses={0: f"{name}:10911"}) for name in broker_names),
    )


@pytest.mark.parametrize("retries", [0, 3])
async def test_a_call_is_repeated_as_often_as_asked_for(monkeypatch: pytest.MonkeyPatch, retries: int) -> None:
    tries = 0

    async def get_route(*_: object, **__: object) -> TopicRouteData:
        nonlocal tries
        tries += 1
        return route("broker-b")

    monkeypatch.setattr(api, "get_route", get_route)
    cluster = Cluster(Access(name_servers=("127.0.0.1:9876",)), cast(Portal, None))
    with pytest.raises(NoRoute):
        await cluster.pull("g", QueueRange(QUEUE, 5, 6), EVERYTHING, Patience(30.0, retries, 0.0))
    assert tries == retries + 1


async def test_a_broker_that_is_missing_in_the_route_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of several brokers restarts: its name server forgets it until it registers again."""
    answers = iter([route("broker-b"), route("broker-b"), route("broker-a", "broker-b")])

    async def get_route(*_: object, **__: object) -> TopicRouteData:
        return next(answers)

    async def pull_raw(_: object, address: str, header: PullMessageRequest, **__: object) -> RawPull:
        assert address == "broker-a:10911"
        return RawPull(PullStatus.NO_NEW_MSG, header.queue_offset, 0, 0, 0, b"")

    monkeypatch.setattr(api, "get_route", get_route)
    monkeypatch.setattr(api, "pull_raw", pull_raw)
    cluster = Cluster(Access(name_servers=("127.0.0.1:9876",)), cast(Portal, None))
    assert (await cluster.pull("g", QueueRange(QUEUE, 5, 6), EVERYTHING)).next_offset == 5


async def test_a_broker_that_stays_missing_in_the_route_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def get_route(*_: object, **__: object) -> TopicRouteData:
        return route("broker-b")

    monkeypatch.setattr(api, "get_route", get_route)
    with pytest.raises(NoRoute, match=r"broker-a.*has no broker in the route"):
        await Cluster(Access(name_servers=("127.0.0.1:9876",)), cast(Portal, None)).pull(
            "g", QueueRange(QUEUE, 5, 6), EVERYTHING, Patience(0.0)
        )
