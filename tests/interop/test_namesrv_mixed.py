"""Our name server with Apache's broker, and our broker with Apache's name server: tools and clients
see no difference.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ogive.broker import Broker, BrokerConfig
from ogive.namesrv import NameServer, NameServerConfig
from ogive.store.fs import OsFs
from ogive.store.tables import JsonTable
from ogive.wire.bodies.json_fields import loads_object
from ogive.wire.bodies.routes import ClusterInfo, TopicRouteData, topic_list_loads
from ogive.wire.codes import RequestCode
from tests.interop import apache
from tests.interop.apache import OLDER, VERSION, Apache
from tests.raw_client import RawClient


async def admin(name_server: str, *commands: str) -> list[str]:
    return await asyncio.to_thread(apache.admin, name_server, *commands)


async def until_known(name_server: str, brokers: set[str]) -> None:
    """Until the name server has exactly these brokers: it learns by a connection that begins or
    ends, which takes its time.
    """
    async with asyncio.timeout(60), await RawClient.open(name_server) as client:
        while (
            ClusterInfo.decode(
                (await client.ok(RequestCode.GET_BROKER_CLUSTER_INFO)).body
            ).brokers.keys()
            != brokers
        ):
            await asyncio.sleep(0.1)


@pytest.fixture
async def name_server(tmp_path: Path) -> AsyncIterator[NameServer]:
    """Ours."""
    server = NameServer(NameServerConfig(port=0, kv_path=tmp_path / "kvConfig.json"))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def their_broker(
    name_server: NameServer, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Apache]:
    """Registered at our name server; of another release where a test is parametrised with it."""
    broker = Apache(
        tmp_path / "apache",
        name_server=name_server.address,
        version=getattr(request, "param", VERSION),
    )
    try:
        await asyncio.to_thread(broker.start)
        yield broker
    finally:
        await asyncio.to_thread(broker.stop, signal.SIGKILL)


@pytest.fixture
async def their_name_server(tmp_path: Path) -> AsyncIterator[str]:
    server = Apache(tmp_path / "apache", with_broker=False)
    try:
        await asyncio.to_thread(server.start)
        yield server.name_server
    finally:
        await asyncio.to_thread(server.stop, signal.SIGKILL)


@pytest.fixture
async def broker(their_name_server: str, tmp_path: Path) -> AsyncIterator[Broker]:
    """Ours, registered at Apache's name server."""
    broker = Broker(
        BrokerConfig(data=tmp_path / "ogive", port=0, name_servers=(their_name_server,))
    )
    await broker.start()
    yield broker
    await broker.stop()


async def test_apache_s_broker_tools_and_clients_work_with_our_name_server(
    name_server: NameServer, their_broker: Apache
) -> None:
    """Routes, topics made with mqadmin, rights, messages, settings; and a broker that ends is out
    of the routes at once.
    """
    await asyncio.to_thread(apache.send, name_server.address, "Mixed", 20)
    await asyncio.to_thread(apache.consume, name_server.address, "Mixed", "group", 20)
    (
        clusters,
        topics,
        made,
        route,
        closed,
        closed_route,
        opened,
        opened_route,
        progress,
        config,
        refused,
        _,
    ) = await admin(
        name_server.address,
        "clusterList",
        "topicList",
        "updateTopic -c DefaultCluster -t Made -r 5 -w 3",
        "topicRoute -t Made",
        "wipeWritePerm -b broker-a",
        "topicRoute -t Made",
        "addWritePerm -b broker-a",
        "topicRoute -t Made",
        "consumerProgress -g group",
        "getNamesrvConfig",
        "updateNamesrvConfig -k kvConfigPath -v /tmp/elsewhere",
        "updateOrderConf -t Made -m put -v broker-a:2",
    )
    (row,) = apache.table(clusters)
    assert (row["Cluster Name"], row["Broker Name"], row["BID"], row["Addr"]) == (
        "DefaultCluster",
        "broker-a",
        "0",
        their_broker.address,
    )
    assert {"TBW102", "BenchmarkTest", "DefaultCluster", "Mixed"} <= set(topics.split())
    assert "success" in made
    found = apache.route(route)
    assert found["brokerDatas"][0]["brokerAddrs"] == {"0": their_broker.address}
    assert [
        (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"])
        for queues in found["queueDatas"]
    ] == [(5, 3, 6)]
    assert "OK" in closed
    assert "OK" in opened
    assert [
        apache.route(text)["queueDatas"][0]["perm"] for text in (closed_route, opened_route)
    ] == [4, 6]
    brokers = {row["Broker Name"] for row in apache.table(progress) if row["Topic"] == "Mixed"}
    # not how far: the consumer ends within its last call, which may not count
    assert brokers == {"broker-a"}
    assert "kvConfig.json" in config
    assert "CODE: 16" in refused

    await asyncio.to_thread(their_broker.kill)
    async with await RawClient.open(name_server.address) as client:
        kept = await client.ok(
            RequestCode.GET_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="Made"
        )
        assert kept.ext_fields == {"value": "broker-a:2"}
        await until_known(name_server.address, set())


@pytest.mark.parametrize("their_broker", OLDER, indirect=True)
async def test_apache_s_older_brokers_work_with_our_name_server_until_they_end(
    name_server: NameServer, their_broker: Apache
) -> None:
    await asyncio.to_thread(apache.send, name_server.address, "Mixed", 20)
    await asyncio.to_thread(apache.consume, name_server.address, "Mixed", "group", 20)
    clusters, made, route = await admin(
        name_server.address,
        "clusterList",
        "updateTopic -c DefaultCluster -t Made -r 5 -w 3",
        "topicRoute -t Made",
    )
    (row,) = apache.table(clusters)
    assert (row["Broker Name"], row["BID"], row["Addr"]) == ("broker-a", "0", their_broker.address)
    assert "success" in made
    found = apache.route(route)
    assert found["brokerDatas"][0]["brokerAddrs"] == {"0": their_broker.address}
    assert [
        (queues["readQueueNums"], queues["writeQueueNums"]) for queues in found["queueDatas"]
    ] == [(5, 3)]
    await asyncio.to_thread(their_broker.kill)
    await until_known(name_server.address, set())


async def test_our_broker_works_with_apache_s_name_server_until_it_stops(
    their_name_server: str, broker: Broker
) -> None:
    """Its topics are routed, also one made with mqadmin; mqadmin asks a running Java consumer
    through it (307).
    """
    await asyncio.to_thread(apache.send, their_name_server, "Mixed", 20)
    with apache.JavaClient(
        "Consume", nameServer=their_name_server, topic="Mixed", group="group", deliveries=100
    ) as consumer:
        await asyncio.to_thread(consumer.wait_for, "id")
        online = broker.context.clients.consumer_group("group")
        assert online is not None
        (client_id,) = online.client_ids
        clusters, topics, made, route, connections, status = await admin(
            their_name_server,
            "clusterList",
            "topicList",
            "updateTopic -c DefaultCluster -t Made -r 5 -w 3",
            "topicRoute -t Made",
            "consumerConnection -g group",
            # without -i it would write the answer to a file in the working directory
            f"consumerStatus -g group -i {client_id}",
        )
    (row,) = apache.table(clusters)
    assert (row["Broker Name"], row["Addr"], row["ACTIVATED"]) == (
        "broker-a",
        broker.address,
        "true",
    )
    assert "Mixed" in topics.split()
    assert "success" in made
    found = apache.route(route)
    assert found["brokerDatas"][0]["brokerAddrs"] == {"0": broker.address}
    assert [
        (queues["readQueueNums"], queues["writeQueueNums"]) for queues in found["queueDatas"]
    ] == [(5, 3)]
    assert client_id in connections
    assert "CONSUME_PASSIVELY" in connections
    assert "Mixed" in status
    assert "PROP_CONSUMER_START_TIMESTAMP" in status

    await broker.stop()
    assert apache.table((await admin(their_name_server, "clusterList"))[0]) == []


@pytest.mark.parametrize("version", [VERSION, *OLDER])
async def test_apache_s_name_servers_read_the_compressed_registration(
    version: str, tmp_path: Path
) -> None:
    """That of 10,000 topics and 5,000 groups."""
    server = Apache(tmp_path / "apache", with_broker=False, version=version)
    names = [f"Topic{number}" for number in range(10_000)] + [
        f"%RETRY%Group{number}" for number in range(5_000)
    ]
    table = {
        name: {"topicName": name, "readQueueNums": 3, "writeQueueNums": 2, "perm": 6}
        for name in names
    }
    table["Topic7"]["attributes"] = {"message.type": "FIFO"}
    JsonTable(OsFs(), tmp_path / "ogive" / "config" / "topics.json").save(
        {"topicConfigTable": table}
    )
    try:
        await asyncio.to_thread(server.start)
        broker = Broker(
            BrokerConfig(data=tmp_path / "ogive", port=0, name_servers=(server.name_server,))
        )
        await broker.start()
        try:
            async with asyncio.timeout(60), await RawClient.open(server.name_server) as client:
                while names[-1] not in topic_list_loads(
                    (await client.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body
                ):
                    await asyncio.sleep(0.1)
                for name in (names[0], names[7], names[-1]):
                    answer = await client.ok(
                        RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=name, acceptStandardJsonOnly=True
                    )
                    (queues,) = TopicRouteData.from_json(loads_object(answer.body)).queues
                    assert (queues.read_queues, queues.write_queues, queues.perm) == (3, 2, 6)
            assert not any(peer._plain_only for peer in broker.context.registration._peers)
            assert (await broker.context.registration.table(compress=True)).compressed
        finally:
            await broker.stop()
    finally:
        await asyncio.to_thread(server.stop, signal.SIGKILL)
