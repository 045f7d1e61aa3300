"""Bodies of answers with offsets, statistics and figures of brokers.

Source: remoting/protocol/body, 5.5.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from ogive.errors import ProtocolError
from ogive.model import MessageQueue
from ogive.wire.bodies.clients import SubscriptionData
from ogive.wire.bodies.json_fields import (
    JsonObject,
    dumps,
    get_field,
    get_queue_table,
    get_table,
    loads_object,
    loads_table,
    member,
    queue_from_json,
    queue_map_dumps,
    queue_to_json,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOffset(JsonObject):
    """One queue in GET_TOPIC_STATS_INFO. Times in ms, 0 for none. Source: TopicOffset.java."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int

    def json_text(self) -> str:
        return (
            f'{{"lastUpdateTimestamp":{self.last_update_timestamp},"maxOffset":{self.max_offset}'
            f',"minOffset":{self.min_offset}}}'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetWrapper(JsonObject):
    """One queue in GET_CONSUME_STATS: the end of the queue, and the group's offset.

    *pop_timestamp*: when the oldest lease of pop was given out, in ms; 0 if there is none, and of
    Apache's brokers, which do not tell it. Source: OffsetWrapper.java.
    """

    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    pull_offset: int = 0
    pop_timestamp: int = 0

    def json_text(self) -> str:
        # Java passes over a member that it does not know
        popped = f',"popTimestamp":{self.pop_timestamp}' if self.pop_timestamp else ""
        return (
            f'{{"brokerOffset":{self.broker_offset},"consumerOffset":{self.consumer_offset},'
            f'"lastTimestamp":{self.last_timestamp},"pullOffset":{self.pull_offset}{popped}}}'
        )


def topic_stats_dumps(table: Mapping[MessageQueue, TopicOffset], put_tps: float = 0.0) -> bytes:
    """Write the answer of GET_TOPIC_STATS_INFO. Source: TopicStatsTable.java."""
    rows = queue_map_dumps((queue, row.json_text()) for queue, row in table.items())
    return f'{{"offsetTable":{rows},"topicPutTps":{float(put_tps)}}}'.encode()


def topic_stats_loads(body: bytes) -> dict[MessageQueue, TopicOffset]:
    return get_queue_table(loads_table(body), "offsetTable", TopicOffset.from_json)


def consume_stats_dumps(table: Mapping[MessageQueue, OffsetWrapper], consume_tps: float) -> bytes:
    """Write the answer of GET_CONSUME_STATS. Source: ConsumeStats.java."""
    rows = queue_map_dumps((queue, row.json_text()) for queue, row in table.items())
    return f'{{"consumeTps":{float(consume_tps)},"offsetTable":{rows}}}'.encode()


class StatsOfGroup(NamedTuple):
    """A group's progress on one topic: the text of consume_stats_dumps(), and the number of
    messages in all queues.
    """

    text: str
    behind: int
    in_flight: int

    @classmethod
    def of(cls, table: Mapping[MessageQueue, OffsetWrapper], consume_tps: float) -> Self:
        return cls(
            text=consume_stats_dumps(table, consume_tps).decode(),
            behind=sum([row.broker_offset - row.consumer_offset for row in table.values()]),
            in_flight=sum([row.pull_offset - row.consumer_offset for row in table.values()]),
        )


def broker_consume_stats_dumps(address: str, groups: Mapping[str, Sequence[StatsOfGroup]]) -> bytes:
    """Write the answer of GET_BROKER_CONSUME_STATS. Source: ConsumeStatsList.java."""
    parts = [
        f"{{{json.dumps(group)}:[{','.join([topic.text for topic in topics])}]}}"
        for group, topics in groups.items()
    ]
    behind = sum([topic.behind for topics in groups.values() for topic in topics])
    in_flight = sum([topic.in_flight for topics in groups.values() for topic in topics])
    head = f'"brokerAddr":{json.dumps(address)},"consumeStatsList":[{",".join(parts)}]'
    return f'{{{head},"totalDiff":{behind},"totalInflightDiff":{in_flight}}}'.encode()


class StatsItem(NamedTuple):
    """One window of VIEW_BROKER_STATS_DATA: a sum, the value per second, and the value per call.

    Source: BrokerStatsItem.java.
    """

    total: int
    per_second: float
    per_call: float

    def to_json(self) -> dict[str, Any]:
        return {"avgpt": self.per_call, "sum": self.total, "tps": self.per_second}


def stats_dumps(minute: StatsItem, hour: StatsItem, day: StatsItem) -> bytes:
    """Write the answer of VIEW_BROKER_STATS_DATA. Source: BrokerStatsData.java."""
    return dumps(
        {"statsDay": day.to_json(), "statsHour": hour.to_json(), "statsMinute": minute.to_json()}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeTimeSpan(JsonObject):
    """Store times in ms of a queue's first, last and last consumed message, and the time that the
    next one has waited. Source: QueueTimeSpan.java.
    """

    queue: MessageQueue = member(  # noqa: RUF009  it declares a field
        "messageQueue",
        read=lambda obj, name: queue_from_json(obj.get(name)),
        write=queue_to_json,
    )
    first_ms: int = member("minTimeStamp")
    last_ms: int = member("maxTimeStamp")
    consumed_ms: int = member("consumeTimeStamp")
    delay_ms: int = member("delayTime")


def consume_time_spans_dumps(spans: Iterable[ConsumeTimeSpan]) -> bytes:
    """Write the answer of QUERY_CONSUME_TIME_SPAN. Source: QueryConsumeTimeSpanBody.java."""
    return dumps({"consumeTimeSpanSet": [span.to_json() for span in spans]})


def consume_stats_loads(body: bytes) -> dict[MessageQueue, OffsetWrapper]:
    return get_queue_table(loads_table(body), "offsetTable", OffsetWrapper.from_json)


def consume_tps_loads(body: bytes) -> float:
    """Return how many messages a second the group consumes, from the body of
    consume_stats_dumps().
    """
    return get_field(loads_table(body), "consumeTps", float, 0.0)


def offset_table_dumps(table: Mapping[MessageQueue, int]) -> bytes:
    """Write offsets by queue: the body of RESET_CONSUMER_CLIENT_OFFSET, and a broadcasting
    consumer's file.

    Source: OffsetSerializeWrapper.java.
    """
    rows = queue_map_dumps((queue, str(offset)) for queue, offset in table.items())
    return f'{{"offsetTable":{rows}}}'.encode()


def offset_table_loads(body: bytes) -> dict[MessageQueue, int]:
    return get_queue_table(loads_table(body), "offsetTable", _queue_offset)


def _queue_offset(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ProtocolError("offsetTable holds something that is not an offset")
    return value


def consumer_status_dumps(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Answer of GET_CONSUMER_STATUS_FROM_CLIENT. Source: GetConsumerStatusBody.java."""
    table = queue_map_dumps((queue, str(offset)) for queue, offset in sorted(offsets.items()))
    return f'{{"consumerTable":{{}},"messageQueueTable":{table}}}'.encode()


def consumer_status_loads(body: bytes) -> dict[MessageQueue, int]:
    """Return offsets by queue. Raises ProtocolError."""
    return get_queue_table(loads_table(body), "messageQueueTable", _position)


def _position(value: Any) -> int:
    if type(value) is not int:
        raise ProtocolError("messageQueueTable holds something that is not an offset")
    return value


def kv_table_dumps(table: Mapping[str, str]) -> bytes:
    """Write names and values. Source: KVTable.java."""
    return dumps({"table": dict(table)})


def kv_table_loads(body: bytes) -> dict[str, str]:
    return get_table(loads_object(body), "table", str)


def group_status_dumps(clients: Mapping[str, Mapping[MessageQueue, int]]) -> bytes:
    """Answer of INVOKE_BROKER_TO_GET_CONSUMER_STATUS: offsets by client and queue.

    Source: GetConsumerStatusBody.java.
    """
    tables = (
        f"{dumps(name).decode()}:{queue_map_dumps((queue, str(at)) for queue, at in table.items())}"
        for name, table in clients.items()
    )
    return f'{{"consumerTable":{{{",".join(tables)}}},"messageQueueTable":{{}}}}'.encode()


def group_status_loads(body: bytes) -> dict[str, dict[MessageQueue, int]]:
    """Return offsets by client and queue. Raises ProtocolError."""
    obj = loads_table(body)
    clients = get_field(obj, "consumerTable", dict, {})
    return {str(name): get_queue_table(clients, name, _position) for name in clients}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """One consume-queue entry in QUERY_CONSUME_QUEUE.

    *passes*: the group's filter matches it. Source: ConsumeQueueData.java.
    """

    commitlog_offset: int
    size: int
    tags_code: int
    passes: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "bitMap": None,
            "eval": self.passes,
            "extendDataJson": None,
            "msg": None,
            "physicOffset": self.commitlog_offset,
            "physicSize": self.size,
            "tagsCode": self.tags_code,
        }


def queue_entries_dumps(
    entries: Iterable[QueueEntry],
    first: int,
    end: int,
    subscription: SubscriptionData | None,
    filter_data: str | None,
) -> bytes:
    """Write the answer of QUERY_CONSUME_QUEUE. Source: QueryConsumeQueueResponseBody.java."""
    return dumps(
        {
            "filterData": filter_data,
            "maxQueueIndex": end,
            "minQueueIndex": first,
            "queueData": [entry.to_json() for entry in entries],
            "subscriptionData": None if subscription is None else subscription.to_json(),
        }
    )
