"""Figures by topic and group: VIEW_BROKER_STATS_DATA (315), GET_BROKER_CONSUME_STATS (317),
QUERY_CONSUME_TIME_SPAN (303).

Source: AdminBrokerProcessor.java, BrokerStatsManager.java, 5.5.

Behaviour
- 315 knows TOPIC_PUT_NUMS and TOPIC_PUT_SIZE by topic, GROUP_GET_NUMS, GROUP_GET_SIZE and
  SNDBCK_PUT_NUMS by "topic@group", BROKER_PUT_NUMS and BROKER_GET_NUMS by cluster, each for the
  last minute, hour and day. A key without counts is answered SYSTEM_ERROR, which every tool takes
  for none.
- 317 shows every group's position in each topic where it has one; on request, in ordered topics
  only.
- 303 shows for each queue the times of its first and last message and of the one that the group
  consumed last.

Differs from Java
- 315 does not know Java's figures of latency (TOPIC_PUT_LATENCY, GROUP_GET_LATENCY), nor
  BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC and BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC; 28 has these two
  for the day.
- 317 of more than 50,000 queues is refused, with what to ask for instead. As with 208, others have
  their turn while it is made.
- 315 counts what is stored and delivered, not what is requested; its windows end now, see
  tallies.py.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from ogive.broker.context import Context
from ogive.broker.handlers.admin import Positions, check_shown, positions_later
from ogive.broker.replies import Rejected, success
from ogive.broker.tallies import Counts, Passed
from ogive.errors import ResponseCode
from ogive.model import MessageQueue
from ogive.store.disk import Pieces, each_in_pieces, each_or_cold
from ogive.transport.connection import Connection
from ogive.wire.bodies import (
    ConsumeTimeSpan,
    StatsItem,
    StatsOfGroup,
    TopicConfig,
    broker_consume_stats_dumps,
    consume_time_spans_dumps,
    stats_dumps,
)
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import (
    GetBrokerConsumeStatsRequest,
    QueryConsumeTimeSpanRequest,
    ViewBrokerStatsRequest,
)

PassedAll = tuple[Passed, ...]


def _by_topic(ctx: Context, key: str) -> PassedAll | None:
    return ctx.traffic.puts.passed(key, "")


def _by_group(ctx: Context, key: str) -> PassedAll | None:
    topic, _, group = key.partition("@")
    return ctx.traffic.gets.passed(group, topic)


def _sent_back(ctx: Context, key: str) -> PassedAll | None:
    topic, _, group = key.partition("@")
    return ctx.traffic.sent_back.passed(group, topic)


def _put_by_all(ctx: Context, key: str) -> PassedAll | None:
    return ctx.traffic.total("put") if key == ctx.config.cluster else None


def _got_by_all(ctx: Context, key: str) -> PassedAll | None:
    return ctx.traffic.total("got") if key == ctx.config.cluster else None


def _messages(counts: Counts) -> int:
    return counts.messages


def _size(counts: Counts) -> int:
    return counts.size


_STATISTICS: Final[
    Mapping[str, tuple[Callable[[Context, str], PassedAll | None], Callable[[Counts], int]]]
] = {
    "TOPIC_PUT_NUMS": (_by_topic, _messages),
    "TOPIC_PUT_SIZE": (_by_topic, _size),
    "GROUP_GET_NUMS": (_by_group, _messages),
    "GROUP_GET_SIZE": (_by_group, _size),
    "SNDBCK_PUT_NUMS": (_sent_back, _messages),
    "BROKER_PUT_NUMS": (_put_by_all, _messages),
    "BROKER_GET_NUMS": (_got_by_all, _messages),
}


def view(
    ctx: Context, connection: Connection, header: ViewBrokerStatsRequest, body: bytes
) -> RemotingCommand:
    find, figure = _STATISTICS.get(header.stats_name, (None, None))
    passed = find(ctx, header.stats_key) if find is not None else None
    if passed is None or figure is None:
        remark = f"The stats <{header.stats_name[:80]}> <{header.stats_key[:600]}> not exist"
        raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
    return success(body=stats_dumps(*(_item(figure(part.counts), part) for part in passed)))


def _item(total: int, passed: Passed) -> StatsItem:
    return StatsItem(
        total=total,
        per_second=total / passed.elapsed_s,
        per_call=total / max(1, passed.counts.calls),
    )


def consume_stats_of_all(
    ctx: Context, connection: Connection, header: GetBrokerConsumeStatsRequest, body: bytes
) -> Pieces[RemotingCommand]:
    groups: dict[str, list[TopicConfig]] = {name: [] for name in ctx.groups.all()}
    for topic, group in ctx.offsets.pairs():
        config = ctx.topics.get(topic)
        if group in groups and config is not None and (config.order or not header.is_order):
            groups[group].append(config)
    check_shown(
        sum([config.read_queues for topics in groups.values() for config in topics]),
        "ask for one group after the other (208)",
    )
    pairs = [(group, config) for group, topics in groups.items() for config in topics]
    stats: dict[str, list[StatsOfGroup]] = {group: [] for group in groups}
    each = yield from each_in_pieces(
        [partial(_stats, ctx, *pair, positions_later(ctx, *pair)) for pair in pairs]
    )
    for (group, _), of_topic in zip(pairs, each, strict=True):
        if of_topic is not None:
            stats[group].append(of_topic)
    return success(body=broker_consume_stats_dumps(ctx.address, stats))


def _stats(
    ctx: Context, group: str, topic: TopicConfig, positions: Callable[[], Positions]
) -> StatsOfGroup | None:
    """None once the topic is deleted. Raises StoreError, Cold."""
    return (
        StatsOfGroup.of(positions(), ctx.traffic.group_rate(group, topic.name))
        if topic.name in ctx.topics
        else None
    )


def consume_time_spans(
    ctx: Context, connection: Connection, header: QueryConsumeTimeSpanRequest, body: bytes
) -> RemotingCommand:
    config = ctx.topics.get(header.topic)
    if config is None:
        raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic[:256]}] not exist")
    return success(
        body=consume_time_spans_dumps(
            each_or_cold(
                partial(_span, ctx, header.group, config.name, queue_id)
                for queue_id in range(config.write_queues)
            )
        )
    )


def _span(ctx: Context, group: str, topic: str, queue_id: int) -> ConsumeTimeSpan:
    """Times in ms; -1 where there is no message."""
    first, end = ctx.store.min_offset(topic, queue_id), ctx.store.max_offset(topic, queue_id)
    at = ctx.offsets.get(group, topic, queue_id) or 0
    first_ms = ctx.store.store_time(topic, queue_id, first)
    next_ms = ctx.store.store_time(topic, queue_id, at) if at < end else -1
    return ConsumeTimeSpan(
        queue=MessageQueue(topic, ctx.config.name, queue_id),
        first_ms=first_ms,
        last_ms=ctx.store.store_time(topic, queue_id, end - 1),
        consumed_ms=ctx.store.store_time(topic, queue_id, at - 1) if at > first else first_ms,
        delay_ms=max(0, ctx.now_ms() - next_ms) if next_ms >= 0 else 0,
    )
