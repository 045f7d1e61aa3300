"""Name servers and brokers of both kinds in one cluster: each broker at both name servers, which
say the same, and either may be away.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Self

import pytest

import ogive
from ogive import aio
from ogive.broker import Broker, BrokerConfig
from ogive.model import MessageExt
from ogive.namesrv import NameServer, NameServerConfig
from ogive.wire.bodies.json_fields import loads_object
from ogive.wire.bodies.routes import BrokerData, ClusterInfo, TopicRouteData
from ogive.wire.codes import RequestCode
from tests.interop import apache
from tests.interop.apache import Apache
from tests.raw_client import RawClient

BROKERS = {"broker-apache", "broker-ogive"}
QUEUES = 4
# the shortest that Apache's broker takes
PERIOD_MS = 10_000
WAIT_S = 90.0


@dataclass(slots=True)
class Cluster:
    ours: NameServer
    theirs: Apache
    """Apache's name server"""

    @property
    def addresses(self) -> list[str]:
        """Apache's first: who asks one and stays with it begins with the first, as ours do."""
        return [self.theirs.name_server, self.ours.address]

    @property
    def name_server(self) -> str:
        return ";".join(self.addresses)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        ours = NameServer(NameServerConfig(port=0))
        theirs = Apache(tmp_path / "namesrv", with_broker=False)
        cluster = Cluster(ours, theirs)
        stack.push_async_callback(asyncio.to_thread, theirs.stop, signal.SIGKILL)
        await asyncio.to_thread(theirs.start)
        await ours.start()

        settings = {
            "brokerName": "broker-apache",
            "namesrvAddr": cluster.name_server,
            "registerNameServerPeriod": str(PERIOD_MS),
        }
        their_broker = Apache(tmp_path / "apache", settings, name_server=ours.address)
        stack.push_async_callback(asyncio.to_thread, their_broker.stop, signal.SIGKILL)
        await asyncio.to_thread(their_broker.start)
        servers = tuple(cluster.addresses)
        config = BrokerConfig(
            data=tmp_path / "ogive",
            port=0,
            name="broker-ogive",
            name_servers=servers,
            register_period_s=PERIOD_MS / 1000,
        )
        our_broker = Broker(config)
        stack.push_async_callback(our_broker.stop)
        await our_broker.start()
        yield cluster
        await cluster.ours.stop()


@dataclass(frozen=True, slots=True)
class View:
    """What one name server says, without the order in which it says it."""

    brokers: dict[str, dict[int, str]]
    """Addresses by broker and id, as clusterList shows them"""
    clusters: dict[str, set[str]]
    routes: dict[str, tuple[dict[str, dict[int, str]], set[tuple[str, int, int, int, int]]]]
    """By topic: its brokers and, of each broker, the queues to read and to write, the rights and
    the flag
    """

    @classmethod
    async def of(cls, name_server: str, topics: Sequence[str]) -> Self:
        routes = {}
        async with await RawClient.open(name_server) as client:
            info = ClusterInfo.decode((await client.ok(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
            for topic in topics:
                answer = await client.call(
                    RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic, acceptStandardJsonOnly=True
                )
                if answer.body:
                    found = TopicRouteData.from_json(loads_object(answer.body))
                    routes[topic] = (
                        _addresses(found.brokers),
                        {astuple(queues) for queues in found.queues},
                    )
        return cls(
            _addresses(info.brokers.values()),
            {name: set(members) for name, members in info.clusters.items()},
            routes,
        )

    def is_whole(self, topics: Sequence[str]) -> bool:
        """Both brokers, and each topic on both."""
        queues = {(broker, QUEUES, QUEUES, 6, 0) for broker in BROKERS}
        return self.brokers.keys() == BROKERS and all(
            self.routes.get(topic) == (self.brokers, queues) for topic in topics
        )


def _addresses(brokers: Iterable[BrokerData]) -> dict[str, dict[int, str]]:
    return {broker.broker_name: dict(broker.addresses) for broker in brokers}


async def agree(name_servers: list[str], *topics: str) -> None:
    """Until each of them knows both brokers, and each topic on both; then they say the same."""
    ends_at = time.monotonic() + WAIT_S
    while True:
        views = [await View.of(one, topics) for one in name_servers]
        if all(view.is_whole(topics) for view in views):
            break
        assert time.monotonic() < ends_at, views
        await asyncio.sleep(0.1)
    assert all(view == views[0] for view in views), views


def make_topic(name_server: str, topic: str) -> None:
    (said,) = apache.admin(
        name_server, f"updateTopic -c DefaultCluster -t {topic} -r {QUEUES} -w {QUEUES}"
    )
    assert said.count("success") == len(BROKERS), said


class Traffic:
    """Our producer, our member and Java's of topic "First" run all the time; for each further topic
    Java's programs are started anew.
    """

    def __init__(self, producer: aio.Producer, java: apache.JavaClient) -> None:
        self._producer, self._java = producer, java
        self.got: set[str] = set()

    def receive(self, message: MessageExt) -> None:
        self.got.add(message.id)

    async def flows(self, topic: str, *, alive: str) -> None:
        """Sends of both clients to *topic*, which Java's reads, and of ours to "First", all spread
        over both brokers.

        What is started is given the name server that is *alive*: Java's client begins with any, and
        fails at one that is away.
        """
        sent = await asyncio.to_thread(apache.send, alive, topic, 4 * QUEUES)
        own = [await self._producer.send(topic, b"ours") for _ in range(4 * QUEUES)]
        assert (
            {line["brokerName"] for line in sent}
            == {result.queue.broker_name for result in own}
            == BROKERS
        )
        read = await asyncio.to_thread(
            apache.consume, alive, topic, f"java-{topic}", len(sent) + len(own)
        )
        assert {line["id"] for line in read} == {line["id"] for line in sent} | {
            result.id for result in own
        }
        first = {(await self._producer.send("First", b"more")).id for _ in range(4 * QUEUES)}
        async with asyncio.timeout(WAIT_S):
            while not (
                first <= self.got
                and first <= {line.get("id") for line in self._java.printed().lines}
            ):
                await asyncio.sleep(0.05)


async def test_name_servers_of_both_kinds_say_the_same_and_either_may_be_away(
    cluster: Cluster,
) -> None:
    """Topics are made, found, written and read with both, with ours alone, and with Apache's alone;
    who comes back is told everything.
    """
    await agree(cluster.addresses)
    await asyncio.to_thread(make_topic, cluster.name_server, "First")
    await agree(cluster.addresses, "First")
    tables = [
        apache.table((await asyncio.to_thread(apache.admin, one, "clusterList"))[0])
        for one in cluster.addresses
    ]
    shown = [
        {(row["Cluster Name"], row["Broker Name"], row["BID"], row["Addr"]) for row in table}
        for table in tables
    ]
    assert shown[0] == shown[1]
    assert {row[1] for row in shown[0]} == BROKERS

    options = {
        "nameServer": cluster.name_server,
        "topic": "First",
        "group": "java",
        "deliveries": 100_000,
        "timeout": 600,
    }
    with apache.JavaClient("Consume", system=apache.QUICK_REBALANCE, **options) as java:
        async with aio.Producer(cluster.name_server) as producer:
            traffic = Traffic(producer, java)
            listener = ogive.listener("First", group="ours", start="earliest")(traffic.receive)
            async with aio.PushConsumer(listener, name_server=cluster.name_server):
                await asyncio.to_thread(java.wait_for, "ready")
                await traffic.flows("First", alive=cluster.theirs.name_server)

                await asyncio.to_thread(cluster.theirs.stop, signal.SIGKILL)
                await asyncio.to_thread(make_topic, cluster.ours.address, "Second")
                await agree([cluster.ours.address], "First", "Second")
                await traffic.flows("Second", alive=cluster.ours.address)

                await asyncio.to_thread(cluster.theirs.start)
                await agree(cluster.addresses, "First", "Second")
                await cluster.ours.stop()
                async with aio.Admin(cluster.name_server) as admin:
                    await admin.create_topic("Third", queues=QUEUES)
                await agree([cluster.theirs.name_server], "First", "Second", "Third")
                await traffic.flows("Third", alive=cluster.theirs.name_server)

                cluster.ours = NameServer(
                    NameServerConfig(port=int(cluster.ours.address.rpartition(":")[2]))
                )
                await cluster.ours.start()
                await agree(cluster.addresses, "First", "Second", "Third")
