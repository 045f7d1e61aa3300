"""A broker's figures for Prometheus, under the names that Apache's brokers give them. Source: BrokerMetricsConstant.java, 5.5.

Behaviour
- For this page alone only message_size and rpc_latency are counted per message; the rest is counted anyway (tallies.py) or found out when
  somebody asks.
- Latencies of groups are those of the oldest message that waits, in milliseconds: lag_latency from what is committed on, queueing_latency
  from what was handed out on. Stored messages are read for them, LAG_READS_S at most for all; groups that are not reached have no line.

Differs from Java
- What has no counterpart here is left out: pop consumption, RocksDB, tiered storage.
- send_to_dlq_messages_total is by group, without the topic that the messages were sent to; pulls of retry topics count as handed out.
- A group that broadcasts has no lag: its members keep their progress for themselves.
- message_type is the type of the topic, not of each message. message_size, rpc_latency and what is about transactions and timers is of all
  topics together. rpc_latency knows sends, until they are stored, and the reading for pulls, without their wait for messages.
- The gauges of one kind are at most MAX_SERIES lines; ``ogive_metrics_left_out`` says how many more there would be.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from ogive.broker.attributes import MESSAGE_TYPE
from ogive.broker.context import Context
from ogive.errors import StoreError
from ogive.model import DLQ_PREFIX, RETRY_PREFIX, is_system_group
from ogive.store.disk import Cold
from ogive.store.record import store_timestamp
from ogive.transport.prometheus import Histogram, Labels, MetricsText, Rows
from ogive.wire.codes import Decision, LanguageCode, version_name

MAX_SERIES: Final = 20_000
LAG_READS_S: Final = 3.0  # Prometheus waits 10 s for the page
_AT_ONCE: Final = 100  # queues of groups that are looked at in one turn of the loop

PROTOCOL: Final = "remoting"
_CONSUME_MODES: Final = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull", "CONSUME_POP": "pop"}
"""Source: ConsumeType.java."""

T = TypeVar("T")


async def metrics(ctx: Context) -> str:
    """The text of the page."""
    reads = _Reads(ctx)
    lags = await _lags(ctx, reads)
    earliest_ms = await reads.earliest_ms()
    page = _Page({"cluster": ctx.config.cluster, "node_type": "broker", "node_id": ctx.config.name})
    await _add_lags(page, lags, ctx.now_ms())
    if ctx.holds.closed:
        raise StoreError("the broker stops")
    stats = ctx.store.stats()
    page.add("rocketmq_messages_in_total", "counter", "messages stored, by topic", _stored(ctx, "messages"))
    page.add("rocketmq_throughput_in_total", "counter", "bytes stored, by topic", _stored(ctx, "size"))
    page.add("rocketmq_messages_out_total", "counter", "messages handed out, by topic and group", _handed_out(ctx, "messages"))
    page.add("rocketmq_throughput_out_total", "counter", "bytes handed out, by topic and group", _handed_out(ctx, "size"))
    page.add("rocketmq_send_to_dlq_messages_total", "counter", "messages given up, by group", _given_up(ctx))
    page.add("rocketmq_producer_connections", "gauge", "producers that are connected", _producers(ctx))
    page.add("rocketmq_consumer_connections", "gauge", "consumers that are connected, by group", _consumers(ctx))
    page.one("rocketmq_topic_number", "topics", len(ctx.topics))
    page.one("rocketmq_consumer_group_number", "consumer groups", len(ctx.groups))
    _add_transactions(page, ctx)
    _add_timers(page, ctx)
    _add_histograms(page, ctx)
    page.one("rocketmq_broker_permission", "2 write, 4 read", 4 if ctx.store.failed is not None else 6)
    page.add("rocketmq_processor_watermark", "gauge", "sends that wait for the disk", [({"processor": "send"}, ctx.sends_waiting)])
    storage = {"storage_type": "local", "storage_medium": "disk"}
    for name, text, value in (
        ("rocketmq_storage_size", "bytes of the commit log", stats.commitlog_end - stats.commitlog_start),
        ("rocketmq_storage_flush_behind_bytes", "bytes that wait for the disk", stats.waiting_bytes),
        ("rocketmq_storage_dispatch_behind_bytes", "bytes of the log that no queue shows yet", 0),
    ):
        page.add(name, "gauge", text, [(storage, value)])
    if earliest_ms is not None:
        kept_ms = max(0, ctx.now_ms() - earliest_ms)
        page.add("rocketmq_storage_message_reserve_time", "gauge", "age of the oldest message, in ms", [(storage, kept_ms)])
    page.one("ogive_connections", "connections of clients", len(ctx.born_hosts))
    page.add("ogive_registered", "gauge", "1: the name server knows this broker", _registered(ctx))
    page.one("ogive_damaged_records", "records that were found damaged since the start", stats.damaged)
    page.one("ogive_sends_failed_total", "sends that could not be stored", ctx.traffic.failed, "counter")
    if ctx.guard is not None:
        page.one("ogive_access_refused_total", "requests that access control refused", ctx.guard.table.refusals.count, "counter")
    return page.text()


def _stored(ctx: Context, figure: str) -> Iterator[tuple[Labels, float]]:
    for topic, _, counts in ctx.traffic.puts.items():
        config = ctx.topics.get(topic)
        kind = config.attributes.get(MESSAGE_TYPE, "NORMAL") if config is not None else "NORMAL"
        labels = {"topic": topic, "message_type": kind.lower(), "is_system": _bool(ctx.topics.is_system(topic))}
        yield labels, getattr(counts, figure)


def _handed_out(ctx: Context, figure: str) -> Iterator[tuple[Labels, float]]:
    for group, topic, counts in ctx.traffic.gets.items():
        yield _of_group(ctx, topic, group), getattr(counts, figure)


def _of_group(ctx: Context, topic: str, group: str) -> Labels:
    return {
        "topic": topic,
        "consumer_group": group,
        "is_retry": _bool(topic.startswith(RETRY_PREFIX)),
        "is_system": _bool(ctx.topics.is_system(topic) or is_system_group(group)),
    }


def _bool(value: bool) -> str:
    return str(value).lower()


def _given_up(ctx: Context) -> Iterator[tuple[Labels, float]]:
    for topic, _, counts in ctx.traffic.puts.items():
        if topic.startswith(DLQ_PREFIX):
            group = topic.removeprefix(DLQ_PREFIX)
            yield {"consumer_group": group, "is_system": _bool(is_system_group(group))}, counts.messages


def _add_transactions(page: "_Page", ctx: Context) -> None:
    ended = ctx.transactions.ended
    page.one("rocketmq_half_messages", "open transactions", len(ctx.transactions))
    page.one("rocketmq_commit_messages_total", "transactions that were committed", ended[Decision.COMMIT], "counter")
    page.one("rocketmq_rollback_messages_total", "transactions that were rolled back", ended[Decision.ROLLBACK], "counter")
    ages = ctx.transactions.commit_ages.histogram()
    page.histogram("rocketmq_finish_message_latency", "seconds until a transaction was committed", [({}, ages)])


def _add_timers(page: "_Page", ctx: Context) -> None:
    behind_ms = round(ctx.timers.behind_s * 1000)
    page.one("rocketmq_timing_messages", "messages that wait for their time", len(ctx.timers))
    page.one("rocketmq_timer_enqueue_lag", "timer messages that were not looked at yet", ctx.timers.unread)
    page.one("rocketmq_timer_enqueue_latency", "for how long, in ms", behind_ms if ctx.timers.unread else 0)
    page.one("rocketmq_timer_enqueue_total", "timer messages that came", ctx.timers.taken_up, "counter")
    page.one("rocketmq_timer_dequeue_lag", "timer messages that are due and not delivered yet", ctx.timers.overdue)
    page.one("rocketmq_timer_dequeue_latency", "for how long the oldest is due, in ms", behind_ms)
    page.one("rocketmq_timer_dequeue_total", "timer messages that were delivered", ctx.timers.delivered, "counter")
    page.histogram("rocketmq_delay_message_latency", "seconds that timer messages were to wait", [({}, ctx.timers.waits.histogram())])


def _add_histograms(page: "_Page", ctx: Context) -> None:
    page.histogram("rocketmq_message_size", "bytes of messages that clients sent", [({}, ctx.traffic.sizes())])
    common = {"protocol_type": PROTOCOL, "response_code": "success", "is_long_polling": "false", "result": "success"}
    times = (("send_message", ctx.traffic.put_times), ("pull_message", ctx.traffic.get_times))
    rows = [({**common, "request_code": code}, durations.histogram()) for code, durations in times]
    page.histogram("rocketmq_rpc_latency", "milliseconds that requests took", rows)


# --- lag -------------------------------------------------------------------------------------------------------------


class _Lag(NamedTuple):
    """Of a group on a topic: messages not committed, handed out of these, and not handed out; when the first of the first and the last
    kind was stored: None if there is none, -1 if that was not found out."""

    labels: Labels
    messages: int
    inflight: int
    ready: int
    oldest_ms: int | None
    oldest_ready_ms: int | None


async def _lags(ctx: Context, reads: "_Reads") -> list[_Lag]:
    lags = []
    for topic, group in list(ctx.offsets.pairs()):
        await reads.take_turns()
        online = ctx.clients.consumer_group(group)
        if online is None or not online.is_broadcasting:
            lags.append(await _lag(ctx, reads, topic, group))
    return lags


async def _lag(ctx: Context, reads: "_Reads", topic: str, group: str) -> _Lag:
    messages = inflight = 0
    handed_out = ctx.traffic.gets.ends(group, topic)
    waiting: list[tuple[int, int]] = []  # queue id and offset
    ready: list[tuple[int, int]] = []
    for queue_id, offset in list(ctx.offsets.queues_of(group, topic).items()):
        await reads.take_turns()
        end = ctx.store.max_offset(topic, queue_id)
        if offset >= end:
            continue
        messages += end - offset
        waiting.append((queue_id, offset))
        taken = min(end, max(offset, handed_out.get(queue_id, offset)))
        inflight += taken - offset
        if taken < end:
            ready.append((queue_id, taken))
    oldest_ms = await reads.oldest_ms(topic, waiting)
    oldest_ready_ms = oldest_ms if ready == waiting else await reads.oldest_ms(topic, ready)
    return _Lag(_of_group(ctx, topic, group), messages, inflight, messages - inflight, oldest_ms, oldest_ready_ms)


async def _add_lags(page: "_Page", lags: list[_Lag], now_ms: int) -> None:
    for name, text, figure in (
        ("lag", "messages that a group has not consumed yet", "messages"),
        ("inflight", "messages that a group was given and has not consumed yet", "inflight"),
        ("ready", "messages that a group was not given yet", "ready"),
    ):
        page.add(f"rocketmq_consumer_{name}_messages", "gauge", text, [(lag.labels, getattr(lag, figure)) for lag in lags])
        await asyncio.sleep(0)  # thousands of lines take milliseconds
    for name, text, figure in (
        ("lag_latency", "age of the oldest message that a group has not consumed yet, in ms", "oldest_ms"),
        ("queueing_latency", "age of the oldest message that a group was not given yet, in ms", "oldest_ready_ms"),
    ):
        times = [(lag.labels, getattr(lag, figure)) for lag in lags]
        page.add(f"rocketmq_consumer_{name}", "gauge", text, [(labels, _age(at_ms, now_ms)) for labels, at_ms in times if at_ms != -1])
        page.left_out += sum(at_ms == -1 for _, at_ms in times)
        await asyncio.sleep(0)


def _age(at_ms: int | None, now_ms: int) -> int:
    return 0 if at_ms is None else max(0, now_ms - at_ms)


class _Reads:
    """Reads of stored messages for one page, until LAG_READS_S have passed."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._give_up = ctx.loop.time() + LAG_READS_S
        self._looked_at = 0

    async def take_turns(self) -> None:
        """Before each queue that is looked at: lets others run now and then. A group may have a thousand queues of each topic."""
        self._looked_at += 1
        if self._looked_at % _AT_ONCE == 0:
            await asyncio.sleep(0)

    async def earliest_ms(self) -> int | None:
        """When the first message of the log was stored; None if that is not known."""
        store = self._ctx.store
        record = await self._read(lambda: store.record_at(store.stats().commitlog_start))
        return store_timestamp(record) if record is not None else None

    async def oldest_ms(self, topic: str, places: Iterable[tuple[int, int]]) -> int | None:
        """When the first of the messages at these queues and offsets was stored. None without any, -1 if one could not be read."""
        oldest: int | None = None
        for queue_id, offset in places:
            await self.take_turns()
            at_ms = await self._read(partial(self._store_time, topic, queue_id, offset))
            if at_ms is None or at_ms < 0:
                return -1
            oldest = at_ms if oldest is None else min(oldest, at_ms)
        return oldest

    def _store_time(self, topic: str, queue_id: int, offset: int) -> int:
        return self._ctx.store.store_time(topic, queue_id, max(offset, self._ctx.store.min_offset(topic, queue_id)))

    async def _read(self, read: Callable[[], T]) -> T | None:
        """None when there is no time left, or the store does not have it."""
        if self._ctx.loop.time() > self._give_up or self._ctx.holds.closed:
            return None
        try:
            with self._ctx.store.without_waiting():
                return read()
        except Cold:
            pass
        except StoreError:
            return None
        try:
            return await self._ctx.cold_reads.read(self._ctx.store, read)
        except StoreError:
            return None


# --- clients ---------------------------------------------------------------------------------------------------------


def _producers(ctx: Context) -> Iterator[tuple[Labels, float]]:
    kinds = Counter(_kind(client.language, client.version) for members in ctx.clients.producers.values() for client in members.values())
    for (language, version), count in kinds.items():
        yield {"language": language, "version": version, "protocol_type": PROTOCOL}, count


def _consumers(ctx: Context) -> Iterator[tuple[Labels, float]]:
    for group in ctx.clients.consumers.values():
        for (language, version), count in Counter(_kind(one.language, one.version) for one in group.members.values()).items():
            labels = {"consumer_group": group.name, "language": language, "version": version, "protocol_type": PROTOCOL}
            yield labels | {"consume_mode": _CONSUME_MODES[group.consume_type], "is_system": _bool(is_system_group(group.name))}, count


def _registered(ctx: Context) -> Iterator[tuple[Labels, float]]:
    for name_server, known in ctx.registration.known().items():
        yield {"name_server": name_server}, known


def _kind(language: int, version: int) -> tuple[str, str]:
    """As Apache's page writes them: java, v5_3_3."""
    return LanguageCode(language).name.lower(), f"v{version_name(version)}".lower().replace(".", "_").replace("-", "_")


class _Page:
    def __init__(self, common: Labels) -> None:
        self._text = MetricsText(common)
        self.left_out = 0

    def add(self, name: str, kind: str, help_text: str, rows: Rows) -> None:
        rows = iter(rows)
        self._text.add(name, kind, help_text, islice(rows, MAX_SERIES))
        self.left_out += sum(1 for _ in rows)

    def histogram(self, name: str, help_text: str, rows: Iterable[tuple[Labels, Histogram]]) -> None:
        self._text.histogram(name, help_text, rows)

    def one(self, name: str, help_text: str, value: float, kind: str = "gauge") -> None:
        self.add(name, kind, help_text, [({}, value)])

    def text(self) -> str:
        self.one("ogive_metrics_left_out", "lines over the limit of a metric", self.left_out)
        return self._text.text()
