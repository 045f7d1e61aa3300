"""A broker's figures for Prometheus, under the names and labels of a 5.5.0 page.

Source: BrokerMetricsConstant.java, 5.5.

Names end with their unit where that page's do: its exporter adds it to the names in the source, in
5.3 too.

Behaviour
- For this page alone only message_size and rpc_latency are counted per message; the rest is counted
  anyway (traffic.py) or found out when somebody asks.
- While the disk is full, or after the store has failed, broker_permission is 4 and
  ogive_store_writable 0. The disk counts as full from the first refused write until one is taken
  again.
- Latencies of groups are those of the oldest message that waits, in milliseconds: lag_latency from
  what is committed on, queueing_latency from what was handed out on. Stored messages are read for
  them, LAG_READS_S at most for all; groups that are not reached have no line.

Differs from Java
- What has no counterpart here is left out: RocksDB, tiered storage, the queues of
  thread pools (processor_watermark) but for sends and ends of transactions; and the label
  otel_scope_name, which only names the library.
- send_to_dlq_messages_total is by group, without the topic that the messages were sent to; pulls of
  retry topics count as handed out.
- A group that broadcasts has no lag: its members keep their progress for themselves.
- message_type is that of the topic a message is stored in, not of each message: what waits for its
  time is delay, a half message is transaction, and what is delivered of them is what its own topic
  is.
- rpc_latency knows sends, until they are stored or refused, and the reading for pulls, without
  their wait for messages.
- finish_message_latency_milliseconds is in seconds, as in Java, whose buckets are, too.
- The gauges of one kind are at most MAX_SERIES lines; ``ogive_metrics_left_out`` says how many more
  there would be.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from ogive.broker.maintenance import disk_used
from ogive.broker.pop.leases import Place
from ogive.broker.services import Context
from ogive.broker.state.topic_table import MESSAGE_TYPE
from ogive.errors import ResponseCode, StoreError
from ogive.model import (
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    is_system_group,
)
from ogive.store.record import store_timestamp
from ogive.transport.monitoring import Histogram, Labels, MetricsText, Rows
from ogive.wire.codes import Decision, LanguageCode, RequestCode, version_name

MAX_SERIES: Final = 20_000
# of one histogram, at most
HISTOGRAM_LINES: Final = 12
# Prometheus waits 10 s for the page
LAG_READS_S: Final = 3.0
# queues of groups that are looked at in one turn of the loop
_AT_ONCE: Final = 100

PROTOCOL: Final = "remoting"
STORAGE: Final[Labels] = {"storage_type": "local", "storage_medium": "disk"}
_KINDS: Final = {TIMER_TOPIC: "delay", SCHEDULE_TOPIC: "delay", HALF_TOPIC: "transaction"}
_CONSUME_MODES: Final = {
    "CONSUME_PASSIVELY": "push",
    "CONSUME_ACTIVELY": "pull",
    "CONSUME_POP": "pop",
}
"""Source: ConsumeType.java."""

T = TypeVar("T")


async def metrics(ctx: Context) -> str:
    """Return the text of the page."""
    reads = _Reads(ctx)
    lags = await _lags(ctx, reads)
    earliest_ms = await reads.earliest_ms()
    page = _Page({"cluster": ctx.config.cluster, "node_type": "broker", "node_id": ctx.config.name})
    await _add_lags(page, lags, ctx.now_ms())
    if ctx.holds.closed:
        raise StoreError("the broker stops")
    stats = ctx.store.stats()
    page.add(
        "rocketmq_messages_in_total",
        "counter",
        "messages stored, by topic",
        _stored(ctx, "messages"),
    )
    page.add(
        "rocketmq_throughput_in_total", "counter", "bytes stored, by topic", _stored(ctx, "size")
    )
    page.add(
        "rocketmq_messages_out_total",
        "counter",
        "messages handed out, by topic and group",
        _handed_out(ctx, "messages"),
    )
    page.add(
        "rocketmq_throughput_out_total",
        "counter",
        "bytes handed out, by topic and group",
        _handed_out(ctx, "size"),
    )
    page.add(
        "rocketmq_send_to_dlq_messages_total",
        "counter",
        "messages given up, by group",
        _given_up(ctx),
    )
    page.add(
        "rocketmq_producer_connections", "gauge", "producers that are connected", _producers(ctx)
    )
    page.add(
        "rocketmq_consumer_connections",
        "gauge",
        "consumers that are connected, by group",
        _consumers(ctx),
    )
    page.one("rocketmq_topic_number", "topics", len(ctx.topics))
    page.one("rocketmq_consumer_group_number", "consumer groups", len(ctx.groups))
    _add_transactions(page, ctx)
    _add_timers(page, ctx)
    _add_leases(page, ctx)
    _add_histograms(page, ctx)
    page.one("rocketmq_broker_permission", "2 write, 4 read", 6 if ctx.store.takes_writes else 4)
    waiting = (("send", ctx.sends_waiting), ("transaction", ctx.transactions.ending))
    rows = [({"processor": kind}, count) for kind, count in waiting]
    page.add(
        "rocketmq_processor_watermark",
        "gauge",
        "sends, and ends of transactions, that wait for the disk",
        rows,
    )
    for name, text, value in (
        (
            "rocketmq_storage_size_bytes",
            "bytes of the commit log",
            stats.commitlog_end - stats.commitlog_start,
        ),
        (
            "rocketmq_storage_flush_behind_bytes",
            "bytes that wait for the disk",
            stats.waiting_bytes,
        ),
        ("rocketmq_storage_dispatch_behind_bytes", "bytes of the log that no queue shows yet", 0),
    ):
        page.add(name, "gauge", text, [(STORAGE, value)])
    if earliest_ms is not None:
        kept_ms = max(0, ctx.now_ms() - earliest_ms)
        page.add(
            "rocketmq_storage_message_reserve_time_milliseconds",
            "gauge",
            "age of the oldest message",
            [(STORAGE, kept_ms)],
        )
    page.one("ogive_connections", "connections of clients", len(ctx.origins))
    page.one("ogive_clock_seconds", "the clock of the machine", ctx.now_ms() / 1000)
    page.add("ogive_registered", "gauge", "1: the name server knows this broker", _registered(ctx))
    page.one(
        "ogive_damaged_records", "records that were found damaged since the start", stats.damaged
    )
    page.one(
        "ogive_sends_failed_total",
        "sends that the store did not take",
        ctx.traffic.failed,
        "counter",
    )
    page.one(
        "ogive_store_writable",
        "0: the disk is full, or the store has failed",
        ctx.store.takes_writes,
    )
    page.one(
        "ogive_disk_used_ratio", "used share of the disk, from 0 to 1", disk_used(ctx.config.data)
    )
    if ctx.guard is not None:
        page.one(
            "ogive_access_refused_total",
            "requests that access control refused",
            ctx.guard.table.refusals.count,
            "counter",
        )
    return page.text()


def _stored(ctx: Context, figure: str) -> Iterator[tuple[Labels, float]]:
    for topic, _, tally in ctx.traffic.puts.items():
        yield _of_topic(ctx, topic), getattr(tally, figure)


def _of_topic(ctx: Context, topic: str) -> Labels:
    config = ctx.topics.get(topic)
    kind = config.attributes.get(MESSAGE_TYPE, "NORMAL") if config is not None else "NORMAL"
    return {
        "topic": topic,
        "message_type": _KINDS.get(topic, kind.lower()),
        "is_system": _bool(ctx.topics.is_system(topic)),
    }


def _handed_out(ctx: Context, figure: str) -> Iterator[tuple[Labels, float]]:
    for group, topic, tally in ctx.traffic.gets.items():
        yield _handed_to(ctx, topic, group), getattr(tally, figure)


def _handed_to(ctx: Context, topic: str, group: str) -> Labels:
    is_system = ctx.topics.is_system(topic) or is_system_group(group)
    return {"topic": topic, "consumer_group": group, "is_system": _bool(is_system)}


def _of_group(ctx: Context, topic: str, group: str) -> Labels:
    return {**_handed_to(ctx, topic, group), "is_retry": _bool(topic.startswith(RETRY_PREFIX))}


def _bool(value: bool) -> str:
    return str(value).lower()


def _given_up(ctx: Context) -> Iterator[tuple[Labels, float]]:
    for topic, _, tally in ctx.traffic.puts.items():
        if topic.startswith(DLQ_PREFIX):
            group = topic.removeprefix(DLQ_PREFIX)
            yield (
                {"consumer_group": group, "is_system": _bool(is_system_group(group))},
                tally.messages,
            )


def _add_transactions(page: "_Page", ctx: Context) -> None:
    ended = ctx.transactions.ended
    page.add(
        "rocketmq_half_messages",
        "gauge",
        "open transactions",
        _by_topic(ctx.transactions.open_by_topic().items()),
    )
    for name, text, decision in (
        ("commit", "transactions that were committed", Decision.COMMIT),
        ("rollback", "transactions that were rolled back", Decision.ROLLBACK),
    ):
        rows = [
            (topic, of_topic.times[decision])
            for topic, of_topic in ended.items()
            if of_topic.times[decision]
        ]
        page.add(f"rocketmq_{name}_messages_total", "counter", text, _by_topic(rows))
    ages = [
        ({"topic": topic}, of_topic.ages.histogram())
        for topic, of_topic in ended.items()
        if of_topic.times[Decision.COMMIT]
    ]
    page.histogram(
        "rocketmq_finish_message_latency_milliseconds",
        "seconds, as in Java, until a transaction was committed",
        ages,
    )


def _add_leases(page: "_Page", ctx: Context) -> None:
    leases, figures = ctx.leases, ctx.pop_figures
    late = leases.late_s()
    for name, text, value in (
        ("checkpoint_buffer_size", "reads whose messages are out", len(leases)),
        (
            "revive_lag",
            "reads whose time is over and whose messages are not there again",
            len(late),
        ),
        (
            "revive_latency",
            "for how long the first of them, in ms",
            round(max(late, default=0) * 1000),
        ),
    ):
        page.add(f"rocketmq_pop_{name}", "gauge", text, [({}, value)])
    page.add(
        "rocketmq_pop_revive_retry_messages_total",
        "counter",
        "messages whose time was over: stored again, or gone from the log",
        [({"put_status": "PUT_OK"}, figures.revived), ({"put_status": "GONE"}, figures.gone)],
    )


def _add_timers(page: "_Page", ctx: Context) -> None:
    timers = ctx.timers
    behind_ms = round(timers.behind_s * 1000)
    for name, text, value in (
        ("enqueue_lag", "timer messages that were not looked at yet", timers.unread),
        ("enqueue_latency_milliseconds", "for how long", behind_ms if timers.unread else 0),
        ("dequeue_lag", "timer messages that are due and not delivered yet", timers.overdue),
        ("dequeue_latency_milliseconds", "for how long the oldest is due", behind_ms),
    ):
        page.add(f"rocketmq_timer_{name}", "gauge", text, [(STORAGE, value)])
    page.add(
        "rocketmq_timing_messages",
        "gauge",
        "messages that wait for their time",
        _by_topic(timers.waiting_of.items(), STORAGE),
    )
    for name, text, figure in (
        ("enqueue", "timer messages that came", "taken_up"),
        ("dequeue", "timer messages that were delivered", "delivered"),
    ):
        rows = [(topic, getattr(of_topic, figure)) for topic, of_topic in timers.by_topic.items()]
        page.add(f"rocketmq_timer_{name}_total", "counter", text, _by_topic(rows, STORAGE))
    waits = [
        ({"topic": topic, **STORAGE}, of_topic.waits.histogram())
        for topic, of_topic in timers.by_topic.items()
    ]
    page.histogram(
        "rocketmq_delay_message_latency_seconds", "how long timer messages were to wait", waits
    )


def _by_topic(rows: Iterable[tuple[str, float]], others: Labels = MappingProxyType({})) -> Rows:
    return [({"topic": topic, **others}, value) for topic, value in rows]


def _add_histograms(page: "_Page", ctx: Context) -> None:
    sizes = [(_of_topic(ctx, topic), histogram) for topic, histogram in ctx.traffic.sizes()]
    page.histogram("rocketmq_message_size", "bytes of messages that clients sent", sizes)
    traffic = ctx.traffic
    times = [
        *(
            (code, ResponseCode.SUCCESS, durations)
            for code, durations in traffic.send_times.items()
        ),
        *((code, answer, durations) for (code, answer), durations in traffic.refusal_times.items()),
        (RequestCode.PULL_MESSAGE, ResponseCode.SUCCESS, traffic.get_times),
    ]
    common = {"protocol_type": PROTOCOL, "is_long_polling": "false", "result": "success"}
    rows = [
        (
            {
                **common,
                "request_code": RequestCode(code).name.lower(),
                "response_code": ResponseCode(answer).name.lower(),
            },
            durations.histogram(),
        )
        for code, answer, durations in times
        if not durations.is_empty
    ]
    page.histogram("rocketmq_rpc_latency_milliseconds", "how long requests took", rows)


# --- lag ------------------------------------------------------------------------------------------


class _Lag(NamedTuple):
    """Lag of one group on one topic: uncommitted, in flight, and not yet pulled messages.

    Also the store time of the oldest uncommitted and the oldest not pulled message. None: there is
    no such message, -1: unknown.
    """

    labels: Labels
    messages: int
    inflight: int
    ready: int
    oldest_ms: int | None
    oldest_ready_ms: int | None


async def _lags(ctx: Context, reads: "_Reads") -> list[_Lag]:
    lags = []
    lowest = ctx.leases.lowest()
    for topic, group in list(ctx.offsets.pairs()):
        await reads.take_turns()
        online = ctx.clients.consumer_group(group)
        if online is None or not online.is_broadcasting:
            lags.append(await _lag(ctx, reads, topic, group, lowest))
    return lags


async def _lag(
    ctx: Context, reads: "_Reads", topic: str, group: str, lowest: Mapping[Place, int]
) -> _Lag:
    messages = inflight = 0
    handed_out = ctx.traffic.gets.ends(group, topic)
    # queue id and offset
    waiting: list[tuple[int, int]] = []
    ready: list[tuple[int, int]] = []
    for queue_id, offset in list(ctx.offsets.queues_of(group, topic).items()):
        await reads.take_turns()
        end = ctx.store.max_offset(topic, queue_id)
        # popped, and not acknowledged
        place = (group, topic, queue_id)
        leased = ctx.leases.out.get(place, 0)
        messages += leased
        inflight += leased
        if leased or offset < end:
            waiting.append((queue_id, min(offset, lowest.get(place, offset))))
        if offset >= end:
            continue
        messages += end - offset
        taken = min(end, max(offset, handed_out.get(queue_id, offset)))
        inflight += taken - offset
        if taken < end:
            ready.append((queue_id, taken))
    oldest_ms = await reads.oldest_ms(topic, waiting)
    oldest_ready_ms = oldest_ms if ready == waiting else await reads.oldest_ms(topic, ready)
    return _Lag(
        _of_group(ctx, topic, group),
        messages,
        inflight,
        messages - inflight,
        oldest_ms,
        oldest_ready_ms,
    )


async def _add_lags(page: "_Page", lags: list[_Lag], now_ms: int) -> None:
    for name, text, figure in (
        ("lag", "messages that a group has not consumed yet", "messages"),
        ("inflight", "messages that a group was given and has not consumed yet", "inflight"),
        ("ready", "messages that a group was not given yet", "ready"),
    ):
        page.add(
            f"rocketmq_consumer_{name}_messages",
            "gauge",
            text,
            [(lag.labels, getattr(lag, figure)) for lag in lags],
        )
        # thousands of lines take milliseconds
        await asyncio.sleep(0)
    for name, text, figure in (
        ("lag_latency", "age of the oldest message that a group has not consumed yet", "oldest_ms"),
        (
            "queueing_latency",
            "age of the oldest message that a group was not given yet",
            "oldest_ready_ms",
        ),
    ):
        times = [(lag.labels, getattr(lag, figure)) for lag in lags]
        page.add(
            f"rocketmq_consumer_{name}_milliseconds",
            "gauge",
            text,
            [(labels, _age(at_ms, now_ms)) for labels, at_ms in times if at_ms != -1],
        )
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
        """Let other work run now and then; called before each queue.

        A group may have a thousand queues of each topic.
        """
        self._looked_at += 1
        if self._looked_at % _AT_ONCE == 0:
            await asyncio.sleep(0)

    async def earliest_ms(self) -> int | None:
        """Return the store time of the first message in the log; None if it is unknown."""
        store = self._ctx.store
        record = await self._read(lambda: store.record_at(store.stats().commitlog_start))
        return store_timestamp(record) if record is not None else None

    async def oldest_ms(self, topic: str, places: Iterable[tuple[int, int]]) -> int | None:
        """Return the store time of the first of the messages at these queues and offsets.

        None if there are none, -1 if one could not be read.
        """
        oldest: int | None = None
        for queue_id, offset in places:
            await self.take_turns()
            at_ms = await self._read(partial(self._store_time, topic, queue_id, offset))
            if at_ms is None or at_ms < 0:
                return -1
            oldest = at_ms if oldest is None else min(oldest, at_ms)
        return oldest

    def _store_time(self, topic: str, queue_id: int, offset: int) -> int:
        return self._ctx.store.store_time(
            topic, queue_id, max(offset, self._ctx.store.min_offset(topic, queue_id))
        )

    async def _read(self, read: Callable[[], T]) -> T | None:
        """Return None if there is no time left, or the store does not have it."""
        if self._ctx.loop.time() > self._give_up or self._ctx.holds.closed:
            return None
        try:
            return await self._ctx.cold_reads.read(self._ctx.store, read)
        except StoreError:
            return None


# --- clients --------------------------------------------------------------------------------------


def _producers(ctx: Context) -> Iterator[tuple[Labels, float]]:
    kinds = Counter(
        _kind(client.language, client.version)
        for members in ctx.clients.producers.values()
        for client in members.values()
    )
    for (language, version), count in kinds.items():
        yield {"language": language, "version": version, "protocol_type": PROTOCOL}, count


def _consumers(ctx: Context) -> Iterator[tuple[Labels, float]]:
    for group in ctx.clients.consumers.values():
        for (language, version), count in Counter(
            _kind(one.language, one.version) for one in group.members.values()
        ).items():
            labels = {
                "consumer_group": group.name,
                "language": language,
                "version": version,
                "protocol_type": PROTOCOL,
            }
            yield (
                labels
                | {
                    "consume_mode": _CONSUME_MODES[group.consume_type],
                    "is_system": _bool(is_system_group(group.name)),
                },
                count,
            )


def _registered(ctx: Context) -> Iterator[tuple[Labels, float]]:
    for name_server, known in ctx.registration.known().items():
        yield {"name_server": name_server}, known


def _kind(language: int, version: int) -> tuple[str, str]:
    """Labels in the form of Apache's page: java, v5_3_3."""
    return LanguageCode(language).name.lower(), f"v{version_name(version)}".lower().replace(
        ".", "_"
    ).replace("-", "_")


class _Page:
    def __init__(self, common: Labels) -> None:
        self._text = MetricsText(common)
        self.left_out = 0

    def add(self, name: str, kind: str, help_text: str, rows: Rows) -> None:
        rows = iter(rows)
        self._text.add(name, kind, help_text, islice(rows, MAX_SERIES))
        self.left_out += sum(1 for _ in rows)

    def histogram(
        self, name: str, help_text: str, rows: Sequence[tuple[Labels, Histogram]]
    ) -> None:
        """Add a histogram. MAX_SERIES counts lines; a histogram has one for each bucket, and two
        more.
        """
        most = MAX_SERIES // HISTOGRAM_LINES
        self._text.histogram(name, help_text, rows[:most])
        self.left_out += max(0, len(rows) - most) * HISTOGRAM_LINES

    def one(self, name: str, help_text: str, value: float, kind: str = "gauge") -> None:
        self.add(name, kind, help_text, [({}, value)])

    def text(self) -> str:
        self.one("ogive_metrics_left_out", "lines over the limit of a metric", self.left_out)
        return self._text.text()
