"""A broker's figures for Prometheus, under the names that Apache's brokers give them. Source: BrokerMetricsConstant.java, 5.5.

Differs from Java
- What has no counterpart here is left out: histograms, pop consumption, RocksDB.
- A group that broadcasts has no lag: its members keep their progress for themselves.
- The gauges of one kind are at most MAX_SERIES lines; ``ogive_metrics_left_out`` says how many more there would be.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Final

from ogive.broker.context import Context
from ogive.model import DLQ_PREFIX, RETRY_PREFIX
from ogive.transport.prometheus import Labels, MetricsText, Rows
from ogive.wire.codes import LanguageCode, version_name

MAX_SERIES: Final = 20_000


def metrics(ctx: Context) -> str:
    """The text of the page."""
    page = _Page({"cluster": ctx.config.cluster, "node_type": "broker", "node_id": ctx.config.name})
    stats = ctx.store.stats()
    page.add("rocketmq_messages_in_total", "counter", "messages stored, by topic", _stored(ctx, "messages"))
    page.add("rocketmq_throughput_in_total", "counter", "bytes stored, by topic", _stored(ctx, "size"))
    page.add("rocketmq_messages_out_total", "counter", "messages handed out, by topic and group", _handed_out(ctx, "messages"))
    page.add("rocketmq_throughput_out_total", "counter", "bytes handed out, by topic and group", _handed_out(ctx, "size"))
    page.add("rocketmq_send_to_dlq_messages_total", "counter", "messages given up, by group", _given_up(ctx))
    page.add("rocketmq_consumer_lag_messages", "gauge", "messages that a group has not consumed yet", _lag(ctx))
    page.add("rocketmq_producer_connections", "gauge", "producers that are connected", _producers(ctx))
    page.add("rocketmq_consumer_connections", "gauge", "consumers that are connected, by group", _consumers(ctx))
    page.one("rocketmq_topic_number", "topics", len(ctx.topics))
    page.one("rocketmq_consumer_group_number", "consumer groups", len(ctx.groups))
    page.one("rocketmq_half_messages", "open transactions", len(ctx.transactions))
    page.one("rocketmq_broker_permission", "2 write, 4 read", 4 if ctx.store.failed is not None else 6)
    page.add("rocketmq_processor_watermark", "gauge", "sends that wait for the disk", [({"processor": "send"}, ctx.sends_waiting)])
    storage = {"storage_type": "local", "storage_medium": "disk"}
    for name, text, value in (
        ("rocketmq_storage_size", "bytes of the commit log", stats.commitlog_end - stats.commitlog_start),
        ("rocketmq_storage_flush_behind_bytes", "bytes that wait for the disk", stats.waiting_bytes),
        ("rocketmq_storage_dispatch_behind_bytes", "bytes of the log that no queue shows yet", 0),
    ):
        page.add(name, "gauge", text, [(storage, value)])
    page.one("ogive_connections", "connections of clients", len(ctx.born_hosts))
    page.add("ogive_registered", "gauge", "1: the name server knows this broker", _registered(ctx))
    page.one("ogive_damaged_records", "records that were found damaged since the start", stats.damaged)
    page.one("ogive_sends_failed_total", "sends that could not be stored", ctx.traffic.failed, "counter")
    if ctx.guard is not None:
        page.one("ogive_access_refused_total", "requests that access control refused", ctx.guard.refused, "counter")
    return page.text()


def _stored(ctx: Context, figure: str) -> Iterator[tuple[Labels, float]]:
    for topic, _, counts in ctx.traffic.puts.items():
        yield {"topic": topic, "is_system": str(ctx.topics.is_system(topic)).lower()}, getattr(counts, figure)


def _handed_out(ctx: Context, figure: str) -> Iterator[tuple[Labels, float]]:
    for group, topic, counts in ctx.traffic.gets.items():
        retry = str(topic.startswith(RETRY_PREFIX)).lower()
        yield {"topic": topic, "consumer_group": group, "is_retry": retry}, getattr(counts, figure)


def _given_up(ctx: Context) -> Iterator[tuple[Labels, float]]:
    for topic, _, counts in ctx.traffic.puts.items():
        if topic.startswith(DLQ_PREFIX):
            yield {"consumer_group": topic.removeprefix(DLQ_PREFIX)}, counts.messages


def _lag(ctx: Context) -> Iterator[tuple[Labels, float]]:
    for topic, group in ctx.offsets.pairs():
        online = ctx.clients.consumer_group(group)
        if online is not None and online.is_broadcasting:
            continue
        queues = ctx.offsets.queues_of(group, topic)
        lag = sum(max(0, ctx.store.max_offset(topic, queue_id) - offset) for queue_id, offset in queues.items())
        yield {"topic": topic, "consumer_group": group, "is_retry": str(topic.startswith(RETRY_PREFIX)).lower()}, lag


def _producers(ctx: Context) -> Iterator[tuple[Labels, float]]:
    kinds = Counter(_kind(client.language, client.version) for members in ctx.clients.producers.values() for client in members.values())
    for (language, version), count in kinds.items():
        yield {"language": language, "version": version}, count


def _consumers(ctx: Context) -> Iterator[tuple[Labels, float]]:
    for group in ctx.clients.consumers.values():
        for (language, version), count in Counter(_kind(one.language, one.version) for one in group.members.values()).items():
            yield (
                {"consumer_group": group.name, "language": language, "version": version, "consume_mode": group.message_model.lower()},
                count,
            )


def _registered(ctx: Context) -> Iterator[tuple[Labels, float]]:
    for name_server, known in ctx.registration.known().items():
        yield {"name_server": name_server}, known


def _kind(language: int, version: int) -> tuple[str, str]:
    return LanguageCode(language).name.lower(), version_name(version)


class _Page:
    def __init__(self, common: Labels) -> None:
        self._text = MetricsText(common)
        self._left_out = 0

    def add(self, name: str, kind: str, help_text: str, rows: Rows) -> None:
        rows = iter(rows)
        self._text.add(name, kind, help_text, islice(rows, MAX_SERIES))
        self._left_out += sum(1 for _ in rows)

    def one(self, name: str, help_text: str, value: float, kind: str = "gauge") -> None:
        self.add(name, kind, help_text, [({}, value)])

    def text(self) -> str:
        self.one("ogive_metrics_left_out", "lines over the limit of a metric", self._left_out)
        return self._text.text()
