"""The page for Prometheus."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ogive.access.user_table import AccessTable
from ogive.broker import Broker, BrokerConfig, metrics_page
from ogive.errors import ResponseCode, StoreError, StoreFailed
from ogive.model import HALF_TOPIC, TIMER_TOPIC
from ogive.namesrv import NameServer, NameServerConfig
from ogive.store.file_reader import Place
from ogive.wire.bodies.acls import User
from ogive.wire.codes import Decision, RequestCode
from tests.raw_client import RawClient, unique_key
from tests.unit.broker.cold_disk import ColdDisk
from tests.unit.broker.conftest import StartBroker
from tests.unit.broker.handlers.test_transaction import end, send_half

LINE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\} (\S+)')


def figures(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """By name and the labels that differ; every line must be one that Prometheus reads."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match, line
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2]))
            assert (labels.pop("cluster"), labels.pop("node_type"), labels.pop("node_id")) == (
                "DefaultCluster",
                "broker",
                "broker-a",
            )
            found[match[1], frozenset(labels.items())] = float(match[3])
    return found


def value(text: str, name: str, **labels: str) -> float:
    [found] = [
        number
        for (key, have), number in figures(text).items()
        if key == name and labels.items() <= dict(have).items()
    ]
    return found


async def test_what_came_in_went_out_and_lies_behind(server: Broker, client: RawClient) -> None:
    for _ in range(5):
        await client.send("T", b"hello")
    await client.heartbeat("c1", "G", "T")
    await client.pull("G", "T", 0, count=2)
    await client.pull("G", "T", 2, commit=2, count=1)
    text = (await server.metrics_page()).text
    assert value(text, "rocketmq_messages_in_total", topic="T", is_system="false") == 5
    assert value(text, "rocketmq_throughput_in_total", topic="T") > 5 * 80
    assert value(text, "rocketmq_messages_out_total", topic="T", consumer_group="G") == 3
    assert value(text, "rocketmq_consumer_lag_messages", topic="T", consumer_group="G") == 3
    assert (
        value(
            text,
            "rocketmq_consumer_connections",
            consumer_group="G",
            consume_mode="push",
            language="java",
        )
        == 1
    )
    assert value(text, "rocketmq_producer_connections") == 1
    handed_to = {"topic", "consumer_group", "is_system"}
    of_group = handed_to | {"is_retry"}
    of_client = {"language", "version", "protocol_type"}
    for name, labels in {
        "messages_in_total": {"topic", "message_type", "is_system"},
        "throughput_in_total": {"topic", "message_type", "is_system"},
        "messages_out_total": handed_to,
        "throughput_out_total": handed_to,
        "consumer_lag_messages": of_group,
        "consumer_lag_latency_milliseconds": of_group,
        "consumer_inflight_messages": of_group,
        "consumer_queueing_latency_milliseconds": of_group,
        "consumer_ready_messages": of_group,
        "producer_connections": of_client,
        "consumer_connections": of_client | {"consumer_group", "consume_mode", "is_system"},
    }.items():
        rows = [
            {label for label, _ in have} for key, have in figures(text) if key == f"rocketmq_{name}"
        ]
        assert rows, name
        assert all(row == labels for row in rows), (name, rows)
    assert value(text, "rocketmq_storage_size_bytes") > 0
    assert value(text, "rocketmq_broker_permission") == 6
    assert value(text, "ogive_connections") == 1
    assert value(text, "ogive_clock_seconds") > 1_700_000_000


APACHES = """
messages_in_total messages_out_total throughput_in_total throughput_out_total message_size
producer_connections consumer_connections
consumer_lag_messages consumer_lag_latency consumer_inflight_messages consumer_queueing_latency
consumer_ready_messages
send_to_dlq_messages_total half_messages commit_messages_total rollback_messages_total
finish_message_latency rpc_latency topic_number
consumer_group_number processor_watermark broker_permission storage_size
storage_flush_behind_bytes storage_dispatch_behind_bytes
storage_message_reserve_time timing_messages timer_enqueue_lag timer_enqueue_latency
timer_dequeue_lag timer_dequeue_latency
pop_checkpoint_buffer_size pop_revive_lag pop_revive_latency pop_revive_retry_messages_total
delay_message_latency timer_enqueue_total timer_dequeue_total timer_message_snapshot
topic_create_execution_time
consumer_group_create_execution_time
"""
"""Source: BrokerMetricsConstant.java, DefaultStoreMetricsConstant.java,
RemotingMetricsConstant.java, 5.5; each begins with rocketmq_.
"""
NOT_SERVED = {
    "timer_message_snapshot": "a table of all waiting messages by their time; timing_messages says "
    "how many wait",
    "topic_create_execution_time": "one write of a table; nobody waits for anything else",
    "consumer_group_create_execution_time": "the same",
}
UNITS = dict.fromkeys(
    (
        "consumer_lag_latency",
        "consumer_queueing_latency",
        "finish_message_latency",
        "rpc_latency",
        "storage_message_reserve_time",
        "timer_enqueue_latency",
        "timer_dequeue_latency",
    ),
    "_milliseconds",
) | {"delay_message_latency": "_seconds", "storage_size": "_bytes"}
"""What their exporter adds to the name; see tests/interop/test_metrics_page.py."""
HISTOGRAMS = (
    "message_size",
    "rpc_latency_milliseconds",
    "finish_message_latency_milliseconds",
    "delay_message_latency_seconds",
)


async def test_every_metric_of_apaches_is_served_or_there_is_a_reason(
    server: Broker, client: RawClient
) -> None:
    """With a message in the store, so that each that can has a line; as a name alone it would be an
    empty panel.
    """
    await client.send("T", b"hello")
    await client.pull("G", "T", 0, commit=0, count=1)
    await client.heartbeat("c1", "G", "T")
    await client.send("%DLQ%G")
    await client.send("T", b"later", {"TIMER_DELAY_SEC": "30", "UNIQ_KEY": unique_key()})
    for decision in (Decision.COMMIT, Decision.ROLLBACK):
        await end(client, await send_half(client), decision)
    await send_half(client)
    text = (await server.metrics_page()).text
    kinds = dict(re.findall(r"^# TYPE rocketmq_(\w+) (\w+)$", text, re.MULTILINE))
    assert sorted(kinds) == sorted(
        {name + UNITS.get(name, "") for name in APACHES.split() if name not in NOT_SERVED}
    )
    for name, kind in kinds.items():
        assert kind == (
            "histogram" if name in HISTOGRAMS else "counter" if name.endswith("_total") else "gauge"
        ), name
    shown = {
        re.sub(r"_(bucket|sum|count)$", "", name) if name not in kinds else name
        for name, _ in figures(text)
    }
    assert {f"rocketmq_{name}" for name in kinds} - shown == set()


async def test_what_was_handed_out_is_told_from_what_waits(
    server: Broker, client: RawClient
) -> None:
    for _ in range(5):
        await client.send("T", b"hello")
    await client.heartbeat("c1", "G", "T")
    await client.pull("G", "T", 0, count=3)
    await client.pull("G", "T", 3, commit=1, count=1)
    real_ms = server.context.now_ms
    server.context.now_ms = lambda: real_ms() + 60_000
    text = (await server.metrics_page()).text
    group = {"topic": "T", "consumer_group": "G", "is_retry": "false"}
    assert [
        value(text, f"rocketmq_consumer_{name}_messages", **group)
        for name in ("lag", "inflight", "ready")
    ] == [4, 3, 1]
    lag, queueing = (
        value(text, f"rocketmq_consumer_{name}_latency_milliseconds", **group)
        for name in ("lag", "queueing")
    )
    assert 60_000 <= queueing <= lag < 120_000
    assert 60_000 <= value(text, "rocketmq_storage_message_reserve_time_milliseconds") < 120_000
    await client.pull("G", "T", 4, commit=5, count=1)
    text = (await server.metrics_page()).text
    assert [
        value(text, f"rocketmq_consumer_{name}", **group)
        for name in ("lag_messages", "lag_latency_milliseconds", "queueing_latency_milliseconds")
    ] == [0, 0, 0]


async def test_old_messages_are_read_from_the_disk_without_stopping_anybody(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.send("T", b"hello")
    await client.pull("G", "T", 0, commit=0, count=1)
    ctx = server.context
    disk = ColdDisk(ctx.store)
    fetched = []

    def fetch(place: Place, then: Callable[[StoreError | None], None]) -> None:
        fetched.append(place)
        disk.fetch(place, then)
        disk.bring_in(failure)

    failure: StoreError | None = None
    monkeypatch.setattr(ctx.cold_reads, "fetch", fetch)
    disk.forget()
    assert (
        value(
            (await server.metrics_page()).text,
            "rocketmq_consumer_lag_latency_milliseconds",
            consumer_group="G",
        )
        >= 0
    )
    assert fetched
    failure = StoreError("the disk is gone")
    disk.forget()
    text = (await server.metrics_page()).text
    assert "rocketmq_consumer_lag_latency_milliseconds{" not in text
    assert value(text, "rocketmq_consumer_lag_messages", consumer_group="G") == 1
    assert value(text, "ogive_metrics_left_out") == 1
    failure = None
    monkeypatch.setattr(metrics_page, "LAG_READS_S", -1.0)
    assert "rocketmq_consumer_lag_latency_milliseconds{" not in (await server.metrics_page()).text


async def test_the_queues_of_one_group_are_looked_at_in_many_turns(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic may have a thousand queues, and a broker hundreds of such topics."""
    queues, ctx = range(350), server.context
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic="T",
        readQueueNums=len(queues),
        writeQueueNums=len(queues),
        order=False,
    )
    for sent in [client.start_send("T", b"x", queue=queue) for queue in queues]:
        await sent
    for queue in queues:
        ctx.offsets.commit("G", "T", queue, 0)
    looks = [0]

    def counted(look: Callable[..., int]) -> Callable[..., int]:
        def counting(*place: Any) -> int:
            looks[-1] += 1
            return look(*place)

        return counting

    async def turns() -> None:
        while True:
            looks.append(0)
            await asyncio.sleep(0)

    monkeypatch.setattr(ctx.store, "max_offset", counted(ctx.store.max_offset))
    monkeypatch.setattr(ctx.store, "store_time", counted(ctx.store.store_time))
    beside = asyncio.create_task(turns())
    text = (await server.metrics_page()).text
    beside.cancel()
    assert value(text, "rocketmq_consumer_lag_messages", topic="T", consumer_group="G") == len(
        queues
    )
    assert (
        value(text, "rocketmq_consumer_lag_latency_milliseconds", topic="T", consumer_group="G")
        >= 0
    )
    assert sum(looks) >= 2 * len(queues)
    assert max(looks) <= 100


async def test_messages_count_by_the_type_of_their_topic(server: Broker, client: RawClient) -> None:
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic="F",
        readQueueNums=1,
        writeQueueNums=1,
        perm=6,
        topicFilterType="SINGLE_TAG",
        topicSysFlag=0,
        order="false",
        defaultTopic="TBW102",
        attributes="+message.type=FIFO",
    )
    await client.send("F", b"x", {"UNIQ_KEY": unique_key(), "__SHARDINGKEY": "k"})
    await client.send("T", b"x")
    text = (await server.metrics_page()).text
    assert value(text, "rocketmq_messages_in_total", topic="F", message_type="fifo") == 1
    assert value(text, "rocketmq_throughput_in_total", topic="T", message_type="normal") > 80


async def test_sizes_and_times_are_histograms(server: Broker, client: RawClient) -> None:
    for size in (10, 2000, 5000):
        await client.send("T", b"x" * size)
    await client.send("U", b"x" * 5000)
    await client.send_batch("U", [b"y", b"z"])
    assert (await client.start_send("T", b"x", queue=99)).code == ResponseCode.INVALID_PARAMETER
    text = (await server.metrics_page()).text
    bounds = ("1024.0", "4096.0", "524288.0", "4194304.0", "+Inf")
    assert [
        value(text, "rocketmq_message_size_bucket", le=bound, topic="T") for bound in bounds
    ] == [1, 2, 3, 3, 3]
    assert 7010 < value(text, "rocketmq_message_size_sum", topic="T") < 8500
    assert (
        value(
            text,
            "rocketmq_rpc_latency_milliseconds_count",
            request_code="send_message_v2",
            response_code="success",
        )
        == 4
    )
    assert (
        value(
            text,
            "rocketmq_rpc_latency_milliseconds_bucket",
            request_code="send_message_v2",
            response_code="success",
            le="+Inf",
        )
        == 4
    )
    assert (
        value(
            text,
            "rocketmq_rpc_latency_milliseconds_sum",
            request_code="send_message_v2",
            response_code="success",
        )
        > 0
    )

    refused = {"request_code": "send_message_v2", "response_code": "invalid_parameter"}
    assert value(text, "rocketmq_rpc_latency_milliseconds_count", **refused) == 1
    assert (
        value(text, "rocketmq_rpc_latency_milliseconds_count", request_code="send_batch_message")
        == 1
    )
    # the store has taken all that it was asked to
    assert value(text, "ogive_sends_failed_total") == 0


async def test_transactions_count_by_their_end(server: Broker, client: RawClient) -> None:
    for decision in (Decision.COMMIT, Decision.COMMIT, Decision.ROLLBACK):
        half = await send_half(client)
        await end(client, half, decision)
        # it has ended already
        await end(client, half, decision)
    await send_half(client)
    text = (await server.metrics_page()).text
    assert (
        value(
            text,
            "rocketmq_messages_in_total",
            topic=HALF_TOPIC,
            message_type="transaction",
            is_system="true",
        )
        >= 4
    )
    assert {labels for name, labels in figures(text) if name == "rocketmq_half_messages"} == {
        frozenset({("topic", "T")})
    }
    counted = [
        value(text, f"rocketmq_{name}")
        for name in ("commit_messages_total", "rollback_messages_total", "half_messages")
    ]
    assert counted == [2, 1, 1]
    assert value(text, "rocketmq_finish_message_latency_milliseconds_bucket", le="5.0") == 2
    assert value(text, "rocketmq_finish_message_latency_milliseconds_count") == 2


async def test_open_transactions_count_for_their_topic_after_a_restart(
    start_broker: StartBroker,
) -> None:
    broker = await start_broker()
    async with await RawClient.open(broker.address) as client:
        await send_half(client)
    await broker.stop()
    again = await start_broker()
    assert value((await again.metrics_page()).text, "rocketmq_half_messages", topic="T") == 1


async def test_messages_wait_for_their_time(server: Broker, client: RawClient) -> None:
    for seconds in (30, 3000, 3000):
        await client.send(
            "T", b"later", {"TIMER_DELAY_SEC": str(seconds), "UNIQ_KEY": unique_key()}
        )
    text = (await server.metrics_page()).text
    assert (
        value(
            text, "rocketmq_timing_messages", topic="T", storage_type="local", storage_medium="disk"
        )
        == 3
    )
    assert value(text, "rocketmq_messages_in_total", topic=TIMER_TOPIC, message_type="delay") == 3
    late = [
        value(text, f"rocketmq_timer_{name}")
        for name in ("enqueue_lag", "dequeue_lag", "dequeue_latency_milliseconds")
    ]
    assert (late, value(text, "rocketmq_timer_enqueue_total")) == ([0, 0, 0], 3)
    delays = [
        value(text, "rocketmq_delay_message_latency_seconds_bucket", le=bound)
        for bound in ("60.0", "600.0", "3600.0", "+Inf")
    ]
    assert delays == [1, 1, 3, 3]


async def test_a_group_that_broadcasts_has_no_lag(server: Broker, client: RawClient) -> None:
    await client.send("T")
    await client.heartbeat("c1", "B", "T", model="BROADCASTING")
    await client.pull("B", "T", 0, commit=0)
    assert not [
        name
        for name, labels in figures((await server.metrics_page()).text)
        if "lag" in name and ("consumer_group", "B") in labels
    ]


async def test_lines_are_bounded_and_the_rest_is_counted(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_page, "MAX_SERIES", 2)
    monkeypatch.setattr(metrics_page, "HISTOGRAM_LINES", 1)
    for number in range(5):
        await client.send(f"T{number}")
    text = (await server.metrics_page()).text
    assert len([name for name, _ in figures(text) if name == "rocketmq_messages_in_total"]) == 2
    # messages, bytes and sizes
    assert value(text, "ogive_metrics_left_out") == 9


async def test_refused_requests_count_also_those_of_the_name_server_beside_the_broker(
    tmp_path: Path,
) -> None:
    access = AccessTable()
    await access.create_user(User(username="root", password="p", user_type="Super"))
    broker = Broker(BrokerConfig(data=tmp_path, port=0, segment_bytes=1024 * 1024), access=access)
    name_server = NameServer(NameServerConfig(port=0), access=access)
    await broker.start()
    await name_server.start()
    for address, code in ((broker.address, 10), (name_server.address, 105)):
        async with await RawClient.open(address) as client:
            assert (await client.call(code)).code == 16
    assert value((await broker.metrics_page()).text, "ogive_access_refused_total") == 2
    await name_server.stop()
    await broker.stop()


async def test_ready_and_healthy_are_two_things(server: Broker) -> None:
    assert (
        server.ready_page().status,
        server.health_page().status,
        (await server.metrics_page()).status,
    ) == (200, 200, 200)
    server._fail(StoreFailed("the disk is gone"))
    assert (server.ready_page().status, server.health_page().status) == (503, 503)
    assert "the disk is gone" in server.health_page().text


async def test_a_broker_that_no_name_server_knows_is_not_ready(start_broker: StartBroker) -> None:
    """Nobody would find it."""
    broker = await start_broker(name_servers=("127.0.0.1:1",))
    assert (broker.ready_page().status, broker.ready_page().text) == (
        503,
        "not ready: not registered at 127.0.0.1:1\n",
    )
    assert broker.health_page().status == 200
    assert (
        value((await broker.metrics_page()).text, "ogive_registered", name_server="127.0.0.1:1")
        == 0
    )


async def test_a_broker_that_stopped_is_not_ready_but_not_ill(server: Broker) -> None:
    await server.stop()
    assert (
        server.ready_page().status,
        server.health_page().status,
        (await server.metrics_page()).status,
    ) == (503, 200, 503)
