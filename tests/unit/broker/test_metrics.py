"""The page for Prometheus."""

import re
from pathlib import Path

import pytest

from ogive.access.table import AccessTable
from ogive.broker import Broker, BrokerConfig, metrics
from ogive.errors import StoreFailed
from ogive.wire.bodies import User
from tests.raw_client import RawClient
from tests.unit.broker.conftest import StartBroker

LINE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\} (\S+)')


def figures(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """By name and the labels that differ; every line must be one that Prometheus reads."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match, line
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2]))
            assert (labels.pop("cluster"), labels.pop("node_type"), labels.pop("node_id")) == ("DefaultCluster", "broker", "broker-a")
            found[match[1], frozenset(labels.items())] = float(match[3])
    return found


def value(text: str, name: str, **labels: str) -> float:
    [found] = [number for (key, have), number in figures(text).items() if key == name and labels.items() <= dict(have).items()]
    return found


async def test_what_came_in_went_out_and_lies_behind(server: Broker, client: RawClient) -> None:
    for _ in range(5):
        await client.send("T", b"hello")
    await client.heartbeat("c1", "G", "T")
    await client.pull("G", "T", 0, count=2)
    await client.pull("G", "T", 2, commit=2, count=1)
    text = server.metrics_page().text
    assert value(text, "rocketmq_messages_in_total", topic="T", is_system="false") == 5
    assert value(text, "rocketmq_throughput_in_total", topic="T") > 5 * 80
    assert value(text, "rocketmq_messages_out_total", topic="T", consumer_group="G") == 3
    assert value(text, "rocketmq_consumer_lag_messages", topic="T", consumer_group="G") == 3
    assert value(text, "rocketmq_consumer_connections", consumer_group="G", consume_mode="clustering", language="java") == 1
    assert value(text, "rocketmq_producer_connections") == 1
    assert value(text, "rocketmq_storage_size") > 0
    assert value(text, "rocketmq_broker_permission") == 6
    assert value(text, "ogive_connections") == 1


async def test_a_group_that_broadcasts_has_no_lag(server: Broker, client: RawClient) -> None:
    await client.send("T")
    await client.heartbeat("c1", "B", "T", model="BROADCASTING")
    await client.pull("B", "T", 0, commit=0)
    assert not [name for name, labels in figures(server.metrics_page().text) if "lag" in name and ("consumer_group", "B") in labels]


async def test_lines_are_bounded_and_the_rest_is_counted(server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_SERIES", 2)
    for number in range(5):
        await client.send(f"T{number}")
    text = server.metrics_page().text
    assert len([name for name, _ in figures(text) if name == "rocketmq_messages_in_total"]) == 2
    assert value(text, "ogive_metrics_left_out") == 6  # messages and bytes


async def test_refused_requests_count(tmp_path: Path) -> None:
    access = AccessTable()
    await access.create_user(User(username="root", password="p", user_type="Super"))
    broker = Broker(BrokerConfig(data=tmp_path, port=0, segment_bytes=1024 * 1024), access=access)
    await broker.start()
    async with await RawClient.open(broker.address) as client:
        assert (await client.call(10)).code == 16
    assert value(broker.metrics_page().text, "ogive_access_refused_total") == 1
    await broker.stop()


async def test_ready_and_healthy_are_two_things(server: Broker) -> None:
    assert (server.ready_page().status, server.health_page().status, server.metrics_page().status) == (200, 200, 200)
    server._fail(StoreFailed("the disk is gone"))
    assert (server.ready_page().status, server.health_page().status) == (503, 503)
    assert "the disk is gone" in server.health_page().text


async def test_a_broker_that_no_name_server_knows_is_not_ready(start_broker: StartBroker) -> None:
    """Nobody would find it."""
    broker = await start_broker(name_servers=("127.0.0.1:1",))
    assert (broker.ready_page().status, broker.ready_page().text) == (503, "not ready: not registered at 127.0.0.1:1\n")
    assert broker.health_page().status == 200
    assert value(broker.metrics_page().text, "ogive_registered", name_server="127.0.0.1:1") == 0


async def test_a_broker_that_stopped_is_not_ready_but_not_ill(server: Broker) -> None:
    await server.stop()
    assert (server.ready_page().status, server.health_page().status, server.metrics_page().status) == (503, 200, 503)
