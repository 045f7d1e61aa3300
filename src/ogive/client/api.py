"""One short coroutine per RPC: header, request, check, typed result. Retries, caches and choices are the callers'.

Every call takes the pool, the ``host:port`` to ask, and its own time budget. Each raises TransportError when the peer could not be asked,
the BrokerError for an answer that is not SUCCESS, and ProtocolError for an answer that cannot be read.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ogive.errors import NotANameServer, NotSupported, ProtocolError, QueryNotFound, ResponseCode, broker_error
from ogive.model import TOOLS_GROUP, DelayLevels, MessageExt, MessageQueue, PullResult, PullStatus, SendResult, SendStatus
from ogive.transport.pool import ConnectionPool
from ogive.wire import headers as h
from ogive.wire.bodies import (
    Acl,
    ClusterInfo,
    ConsumerConnection,
    HeartbeatData,
    LockBatchBody,
    OffsetWrapper,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicOffset,
    TopicRouteData,
    User,
    acls_loads,
    consume_stats_loads,
    consume_tps_loads,
    consumer_ids_loads,
    dumps,
    group_list_loads,
    kv_table_loads,
    loads_object,
    locked_queues_loads,
    offset_table_loads,
    producer_connections_loads,
    topic_list_loads,
    topic_stats_loads,
    users_loads,
)
from ogive.wire.bodies import Connection as ConnectionInfo
from ogive.wire.codes import Flag, PullSysFlag, RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.compression import MAX_INFLATED_BYTES
from ogive.wire.headers import Header, decode_header, encode_header
from ogive.wire.message import DamagedMessage, NoRecord, decode_messages, decode_some
from ogive.wire.running_info import ConsumerRunningInfo

R = TypeVar("R", bound=Header)

REQUEST_TIMEOUT_S: Final = 3.0  # mqClientApiTimeout
SEND_BACK_TIMEOUT_S: Final = 5.0
LOCK_TIMEOUT_S: Final = 1.0
PAGE: Final = 2000  # topics or groups that a broker of 5.4 answers at a time
MAX_PAGED: Final = 200_000
MAX_FOUND: Final = 32  # messages that a look-up by key gives (defaultQueryMaxNum)
PULL_SUSPEND_S: Final = 15.0  # how long a broker holds a pull that finds nothing (BROKER_SUSPEND_MAX_TIME_MILLIS)
PULL_TIMEOUT_S: Final = 30.0  # CONSUMER_TIMEOUT_MILLIS_WHEN_SUSPEND


def request(header: Header, body: bytes = b"") -> RemotingCommand:
    """The command that carries *header*."""
    return RemotingCommand(header.code, encode_header(header), body)


def check(reply: RemotingCommand, address: str) -> RemotingCommand:
    """*reply*, if it says SUCCESS; else raises the BrokerError for its code."""
    if reply.code == ResponseCode.SUCCESS:
        return reply
    raise broker_error(reply.code, reply.remark, address)


async def _ask(pool: ConnectionPool, address: str, header: Header, timeout_s: float, body: bytes = b"") -> RemotingCommand:
    return check(await pool.call(address, request(header, body), timeout_s), address)


async def _offset(pool: ConnectionPool, address: str, header: Header, timeout_s: float) -> int:
    return decode_header(h.OffsetResponse, (await _ask(pool, address, header, timeout_s)).ext_fields).offset


# --- name server -----------------------------------------------------------------------------------------------------


async def _ask_name_server(pool: ConnectionPool, address: str, header: Header, timeout_s: float) -> RemotingCommand:
    """For requests that every name server knows, and no broker. Raises NotANameServer."""
    try:
        return await _ask(pool, address, header, timeout_s)
    except NotSupported:
        raise NotANameServer(f"{address} is not a name server but, it seems, a broker: give the name server's address") from None


async def get_route(pool: ConnectionPool, address: str, topic: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> TopicRouteData:
    """Raises TopicNotExist where the name server knows no broker for the topic."""
    header = h.GetRouteInfoRequest(topic=topic, accept_standard_json_only=True)
    reply = await _ask_name_server(pool, address, header, timeout_s)
    return TopicRouteData.from_json(loads_object(reply.body))


async def get_cluster_info(pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> ClusterInfo:
    return ClusterInfo.decode((await _ask_name_server(pool, address, h.GetBrokerClusterInfoRequest(), timeout_s)).body)


async def topic_list(pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> list[str]:
    """Every topic that the name server knows, the system's own and retry topics included."""
    return topic_list_loads((await _ask_name_server(pool, address, h.GetAllTopicListRequest(), timeout_s)).body)


async def delete_topic_in_name_server(pool: ConnectionPool, address: str, topic: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
    await _ask(pool, address, h.DeleteTopicInNameServerRequest(topic=topic), timeout_s)


# --- topics and groups at a broker -----------------------------------------------------------------------------------


async def create_topic(pool: ConnectionPool, address: str, topic: TopicConfig, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
    """Create the topic, or change it to *topic*. The answer comes after the broker told its name servers."""
    attributes = ",".join(f"+{name}={value}" for name, value in topic.attributes.items())
    header = h.CreateTopicRequest(
        topic=topic.name,
        read_queue_nums=topic.read_queues,
        write_queue_nums=topic.write_queues,
        perm=topic.perm,
        topic_filter_type=topic.filter_type,
        topic_sys_flag=topic.sys_flag,
        order=topic.order,
        attributes=attributes or None,
    )
    await _ask(pool, address, header, timeout_s)


async def delete_topic(pool: ConnectionPool, address: str, topic: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
    await _ask(pool, address, h.DeleteTopicRequest(topic=topic), timeout_s)


async def create_group(pool: ConnectionPool, address: str, group: SubscriptionGroupConfig, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
    """Create the consumer group, or change it to *group*."""
    await _ask(pool, address, h.CreateGroupRequest(), timeout_s, dumps(group.to_json()))


async def topic_config(pool: ConnectionPool, address: str, topic: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> TopicConfig:
    """One topic's settings at a broker of 5.x; those of 4.x raise NotSupported."""
    return TopicConfig.from_json(loads_object((await _ask(pool, address, h.GetTopicConfigRequest(topic=topic), timeout_s)).body))


async def topic_configs(pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> dict[str, TopicConfig]:
    """Every topic of a broker; asked for by pages, which brokers before 5.4 do not know: they answer all at once."""
    return {
        name: TopicConfig.from_json(config)
        for name, config in await _pages(
            lambda seq: h.GetAllTopicConfigRequest(topic_seq=seq, max_topic_num=PAGE, data_version=""),
            "topicConfigTable", "totalTopicNum", pool, address, timeout_s,
        )
    }  # fmt: skip


async def group_configs(pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> dict[str, dict[str, Any]]:
    """Every consumer group of a broker, as it stands in JSON: what one release adds is not lost when a group is changed.

    Not by GET_SUBSCRIPTIONGROUP_CONFIG: Apache's brokers make the group that is asked for.
    """
    rows = await _pages(
        lambda seq: h.GetAllGroupsRequest(group_seq=seq, max_group_num=PAGE, data_version=""),
        "subscriptionGroupTable", "totalGroupNum", pool, address, timeout_s,
    )  # fmt: skip
    return {name: row for name, row in rows if isinstance(row, dict)}


async def _pages(
    header: Callable[[int], Header], table: str, total: str, pool: ConnectionPool, address: str, timeout_s: float
) -> list[tuple[str, Any]]:
    rows: dict[str, Any] = {}
    seq = 0
    while True:
        reply = await _ask(pool, address, header(seq), timeout_s)
        page = loads_object(reply.body).get(table)
        if not isinstance(page, dict):
            raise ProtocolError(f"{address} answered without {table}")
        rows |= page
        seq += PAGE
        if not page or seq >= _int_field(reply, total, default=len(page)) or seq >= MAX_PAGED:
            return [(str(name), row) for name, row in rows.items()]


def _int_field(reply: RemotingCommand, name: str, *, default: int) -> int:
    text = reply.ext_fields.get(name, "")
    return int(text) if text.isdecimal() else default


async def update_group(pool: ConnectionPool, address: str, config: Mapping[str, Any], *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
    """Change the consumer group to *config*, in JSON as ``group_configs`` gave it."""
    await _ask(pool, address, h.CreateGroupRequest(), timeout_s, dumps(dict(config)))


async def delete_group(pool: ConnectionPool, address: str, group: str, *, clean_offset: bool, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
    await _ask(pool, address, h.DeleteGroupRequest(group_name=group, clean_offset=clean_offset, remove_offset=clean_offset), timeout_s)


async def topic_stats(
    pool: ConnectionPool, address: str, topic: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> dict[MessageQueue, TopicOffset]:
    """Minimum and maximum offset of every queue of *topic* at one broker."""
    return topic_stats_loads((await _ask(pool, address, h.GetTopicStatsRequest(topic=topic), timeout_s)).body)


async def consume_stats(
    pool: ConnectionPool, address: str, group: str, topic: str | None = None, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> dict[MessageQueue, OffsetWrapper]:
    """Where the broker's queues end and where *group* stands; all of the group's topics unless one is named."""
    return (await consume_stats_and_rate(pool, address, group, topic, timeout_s=timeout_s))[0]


async def consume_stats_and_rate(
    pool: ConnectionPool, address: str, group: str, topic: str | None = None, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> tuple[dict[MessageQueue, OffsetWrapper], float]:
    """The same, with how many messages the group takes a second from this broker."""
    body = (await _ask(pool, address, h.GetConsumeStatsRequest(consumer_group=group, topic=topic), timeout_s)).body
    return consume_stats_loads(body), consume_tps_loads(body)


async def consumer_connections(
    pool: ConnectionPool, address: str, group: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> ConsumerConnection:
    """The members of *group* that are connected to this broker. Raises ConsumerNotOnline where there is none."""
    header = h.GetConsumerConnectionListRequest(consumer_group=group)
    return ConsumerConnection.decode((await _ask(pool, address, header, timeout_s)).body)


async def producer_connections(
    pool: ConnectionPool, address: str, group: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> list[ConnectionInfo]:
    """The producers of *group* that are connected to this broker. Raises BrokerInternalError where there is none."""
    header = h.GetProducerConnectionListRequest(producer_group=group)
    return producer_connections_loads((await _ask(pool, address, header, timeout_s)).body)


async def topic_groups(pool: ConnectionPool, address: str, topic: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> list[str]:
    """The groups that consume *topic* at this broker, or have."""
    return group_list_loads((await _ask(pool, address, h.QueryTopicConsumeByWhoRequest(topic=topic), timeout_s)).body)


async def consumer_running_info(
    pool: ConnectionPool, address: str, group: str, client_id: str, *, stack: bool = False, timeout_s: float = REQUEST_TIMEOUT_S
) -> ConsumerRunningInfo:
    """What a member says of itself, asked through a broker that it is connected to."""
    header = h.GetConsumerRunningInfoRequest(consumer_group=group, client_id=client_id, jstack_enable=stack)
    return ConsumerRunningInfo.decode((await _ask(pool, address, header, timeout_s)).body)


async def broker_settings(pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> dict[str, str]:
    """A broker's configuration, by the names of broker.conf."""
    text = (await _ask(pool, address, h.GetBrokerConfigRequest(), timeout_s)).body.decode("utf-8", "replace")
    return dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)


async def broker_runtime_info(pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> dict[str, str]:
    return kv_table_loads((await _ask(pool, address, h.GetBrokerRuntimeInfoRequest(), timeout_s)).body)


async def delay_levels(pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> DelayLevels:
    """The delays behind the levels, from the broker's settings (lines as in broker.conf)."""
    levels = (await broker_settings(pool, address, timeout_s=timeout_s)).get("messageDelayLevel")
    if levels is None:
        raise ProtocolError(f"{address} shows settings without messageDelayLevel")
    return DelayLevels.parse(levels)


# --- sending ---------------------------------------------------------------------------------------------------------

_STORED: Final = {status.value: status for status in SendStatus}


async def send_message(
    pool: ConnectionPool,
    address: str,
    header: h.SendMessageRequestV2,
    body: bytes,
    *,
    broker_name: str,
    message_id: str = "",
    batch: bool = False,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> SendResult:
    """One try of one message, or of one batch (*body* as ``encode_batch`` makes it). *message_id* is handed through to the result."""
    command = request(header, body)
    if batch:
        command.code = RequestCode.SEND_BATCH_MESSAGE
    return send_result(await pool.call(address, command, timeout_s), address, header.topic, broker_name, message_id)


def send_result(reply: RemotingCommand, address: str, topic: str, broker_name: str, message_id: str) -> SendResult:
    """What a broker's answer to a send means. Raises the BrokerError where the message was not stored."""
    status = _STORED.get(reply.code)
    if status is None:
        raise broker_error(reply.code, reply.remark, address)
    answer = decode_header(h.SendMessageResponse, reply.ext_fields)
    queue = MessageQueue(topic, broker_name, answer.queue_id)
    return SendResult(status, message_id or answer.msg_id, answer.msg_id, queue, answer.queue_offset, answer.recall_handle)


async def recall_message(
    pool: ConnectionPool, address: str, header: h.RecallMessageRequest, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> str:
    """Take a message back that waits for its time; returns its unique key."""
    return decode_header(h.RecallMessageResponse, (await _ask(pool, address, header, timeout_s)).ext_fields).msg_id


async def send_reply(
    pool: ConnectionPool, address: str, header: h.SendReplyMessageRequestV2, body: bytes, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    """Have the broker bring a reply to the client that asked. Raises BrokerInternalError where it cannot reach that client."""
    await _ask(pool, address, header, timeout_s, body)


async def send_back(
    pool: ConnectionPool,
    address: str,
    message: MessageExt,
    group: str,
    *,
    delay_level: int = 0,
    max_reconsume_times: int | None = None,
    timeout_s: float = SEND_BACK_TIMEOUT_S,
) -> None:
    """Ask for the message again, later: level 0 is the broker's choice (3 + reconsume times), below 0 the dead-letter topic at once."""
    header = h.ConsumerSendMsgBackRequest(
        offset=message.commitlog_offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message.offset_id,
        origin_topic=message.topic,
        max_reconsume_times=max_reconsume_times,
    )
    await _ask(pool, address, header, timeout_s)


async def end_transaction(
    pool: ConnectionPool, address: str, header: h.EndTransactionRequest, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    """Commit or roll back, and wait until that is done. A broker does not answer the decision "unknown"."""
    await _ask(pool, address, header, timeout_s)


# --- pulling and offsets ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RawPull:
    """One pull's answer with its records as they came: back to back in *body*, in the commit log's layout."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    body: bytes


_PULLED: Final = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


async def pull_raw(pool: ConnectionPool, address: str, header: h.PullMessageRequest, *, timeout_s: float = PULL_TIMEOUT_S) -> RawPull:
    """A pull without decoding, for readers of whole blocks. *timeout_s* must be longer than the time the broker may hold the request."""
    reply = await pool.call(address, request(header), timeout_s)
    status = _PULLED.get(reply.code)  # type: ignore[call-overload]  # an unknown code is no member, and gives None
    if status is None:
        raise broker_error(reply.code, reply.remark, address)
    answer = decode_header(h.PullMessageResponse, reply.ext_fields)
    if answer.next_begin_offset < 0:
        raise ProtocolError(f"{address} says that a pull goes on at {answer.next_begin_offset}: no queue has such a place")
    return RawPull(status, answer.next_begin_offset, answer.min_offset, answer.max_offset, answer.suggest_which_broker_id, reply.body)


async def pull_message(
    pool: ConnectionPool, address: str, header: h.PullMessageRequest, *, broker_name: str, timeout_s: float = PULL_TIMEOUT_S
) -> PullResult:
    """A pull with its messages decoded and inflated; *broker_name* goes into their queues. Raises DamagedMessage and NoRecord, too.

    What is left of an answer behind MAX_INFLATED_BYTES comes with the next pull.
    """
    raw = await pull_raw(pool, address, header, timeout_s=timeout_s)
    body = raw.body if raw.status is PullStatus.FOUND else b""
    try:
        messages, end = decode_some(body, broker_name, max_inflated_bytes=MAX_INFLATED_BYTES)
    except DamagedMessage as exc:
        exc.next_offset = raw.next_offset
        raise
    except NoRecord as exc:
        place = f"{address} answered a pull of {header.topic}/{broker_name}/{header.queue_id} at {header.queue_offset}"
        behind = f"{len(exc.intact)} messages and then bytes" if exc.intact else "bytes"
        raise NoRecord(f"{place} with {behind} that are no message: {exc}", exc.intact) from None
    next_offset = raw.next_offset if end == len(body) else messages[-1].queue_offset + 1
    return PullResult(raw.status, next_offset, raw.min_offset, raw.max_offset, tuple(messages), raw.suggested_broker_id)


async def query_consumer_offset(
    pool: ConnectionPool,
    address: str,
    group: str,
    queue: MessageQueue,
    *,
    zero_if_young: bool | None = None,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> int | None:
    """Where *group* stands in *queue*; None only where the broker says that it has no offset. Every failure raises.

    A broker answers 0 for a group without an offset while the queue's first message is still in memory; *zero_if_young* False asks it not
    to (5.x).
    """
    header = h.QueryConsumerOffsetRequest(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=zero_if_young
    )
    try:
        offset = await _offset(pool, address, header, timeout_s)
    except QueryNotFound:
        return None
    if offset < 0:
        raise ProtocolError(f"{address} says that {group} stands at {offset} in {queue}: no queue has such a place")
    return offset


async def update_consumer_offset(
    pool: ConnectionPool, address: str, group: str, queue: MessageQueue, offset: int, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    """Tell the broker where *group* stands. Differs from Java: the broker's answer is awaited."""
    header = h.UpdateConsumerOffsetRequest(consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset)
    await _ask(pool, address, header, timeout_s)


async def max_offset(pool: ConnectionPool, address: str, queue: MessageQueue, *, timeout_s: float = REQUEST_TIMEOUT_S) -> int:
    """The offset that the queue's next message will get."""
    return await _offset(pool, address, h.GetMaxOffsetRequest(topic=queue.topic, queue_id=queue.queue_id), timeout_s)


async def min_offset(pool: ConnectionPool, address: str, queue: MessageQueue, *, timeout_s: float = REQUEST_TIMEOUT_S) -> int:
    """The offset of the oldest message that the queue still holds."""
    return await _offset(pool, address, h.GetMinOffsetRequest(topic=queue.topic, queue_id=queue.queue_id), timeout_s)


async def search_offset(
    pool: ConnectionPool,
    address: str,
    queue: MessageQueue,
    timestamp_ms: int,
    *,
    upper: bool = False,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> int:
    """The first message stored at or after *timestamp_ms*; with *upper* the last one stored at or before it."""
    boundary = "UPPER" if upper else "LOWER"
    header = h.SearchOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms, boundary_type=boundary)
    return await _offset(pool, address, header, timeout_s)


async def earliest_store_time(
    pool: ConnectionPool, address: str, queue: MessageQueue, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> int | None:
    """When the queue's oldest message was stored, in ms; None for an empty queue."""
    header = h.GetEarliestStoreTimeRequest(topic=queue.topic, queue_id=queue.queue_id)
    answer = decode_header(h.TimestampResponse, (await _ask(pool, address, header, timeout_s)).ext_fields)
    return answer.timestamp if answer.timestamp >= 0 else None


async def view_message(
    pool: ConnectionPool, address: str, commitlog_offset: int, topic: str | None = None, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> MessageExt:
    """The message at a commit-log offset (see ``parse_offset_message_id``); its queue has no broker name."""
    header = h.ViewMessageRequest(offset=commitlog_offset, topic=topic)
    messages = decode_messages((await _ask(pool, address, header, timeout_s)).body)
    if len(messages) != 1:
        raise ProtocolError(f"{address} answered {len(messages)} messages where one was asked for")
    return messages[0]


async def read_messages(
    pool: ConnectionPool, address: str, queue: MessageQueue, offset: int, count: int, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> PullResult:
    """Up to *count* messages from *offset* on, for one who only looks: no group makes progress, and nothing is waited for."""
    header = h.PullMessageRequest(
        consumer_group=TOOLS_GROUP,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=PullSysFlag.SUBSCRIPTION,
        commit_offset=0,
        subscription="*",
    )
    return await pull_message(pool, address, header, broker_name=queue.broker_name, timeout_s=timeout_s)


async def query_messages(
    pool: ConnectionPool,
    address: str,
    topic: str,
    key: str,
    *,
    begin_ms: int,
    end_ms: int,
    limit: int = MAX_FOUND,
    broker_name: str = "",
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> list[MessageExt]:
    """Messages under *key* in the broker's index, which goes by a hash: the caller looks whether each really has the key."""
    header = h.QueryMessageRequest(topic=topic, key=key, max_num=limit, begin_timestamp=begin_ms, end_timestamp=end_ms)
    try:
        return list(decode_messages((await _ask(pool, address, header, timeout_s)).body, broker_name))
    except QueryNotFound:
        return []


async def reset_offset(
    pool: ConnectionPool,
    address: str,
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> dict[MessageQueue, int]:
    """Set the group's position in one queue at a broker of 5.x, which tells the member at its next pull."""
    header = h.ResetOffsetRequest(topic=queue.topic, group=group, timestamp=0, queue_id=queue.queue_id, offset=offset)
    return offset_table_loads((await _ask(pool, address, header, timeout_s)).body)


async def reset_offset_by_time(
    pool: ConnectionPool, address: str, group: str, topic: str, timestamp_ms: int, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> dict[MessageQueue, int]:
    """Set the group's position in all queues of a broker to a time (-1: the end); brokers of 4.x hand it to each member (code 220)."""
    header = h.ResetOffsetRequest(topic=topic, group=group, timestamp=timestamp_ms)
    return offset_table_loads((await _ask(pool, address, header, timeout_s)).body)


# --- clients, groups and queue locks ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What a broker says to a heartbeat: its version number, and from 5.1 on what it makes of fingerprints."""

    version: int
    supports_v2: bool | None
    subscription_changed: bool | None


async def heartbeat(pool: ConnectionPool, address: str, data: HeartbeatData, *, timeout_s: float = REQUEST_TIMEOUT_S) -> HeartbeatAnswer:
    """Tell a broker who we are."""
    reply = await _ask(pool, address, h.HeartbeatRequest(), timeout_s, data.encode())
    header = decode_header(h.HeartbeatResponse, reply.ext_fields)
    return HeartbeatAnswer(reply.version, header.supports_v2, header.subscription_changed)


async def unregister(
    pool: ConnectionPool,
    address: str,
    client_id: str,
    *,
    producer_group: str | None = None,
    consumer_group: str | None = None,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    header = h.UnregisterClientRequest(client_id=client_id, producer_group=producer_group, consumer_group=consumer_group)
    await _ask(pool, address, header, timeout_s)


async def check_client_config(
    pool: ConnectionPool, address: str, client_id: str, group: str, subscription: SubscriptionData, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    """Whether the broker can filter like this. Raises SubscriptionInvalid, and BrokerInternalError where it filters by tags only."""
    body = dumps({"clientId": client_id, "group": group, "subscriptionData": subscription.to_json()})
    await _ask(pool, address, h.CheckClientConfigRequest(), timeout_s, body)


async def consumer_ids(pool: ConnectionPool, address: str, group: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> list[str]:
    """Client ids of the members that this broker knows. Brokers of 4.x and 5.x answer a group without members with SYSTEM_ERROR."""
    return consumer_ids_loads((await _ask(pool, address, h.GetConsumerListRequest(consumer_group=group), timeout_s)).body)


async def lock_queues(
    pool: ConnectionPool,
    address: str,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    *,
    timeout_s: float = LOCK_TIMEOUT_S,
) -> list[MessageQueue]:
    """Lock queues of one broker for an orderly consumer, or renew the locks; returns those that are locked now."""
    body = LockBatchBody(group=group, client_id=client_id, queues=tuple(queues)).encode()
    return locked_queues_loads((await _ask(pool, address, h.LockBatchRequest(), timeout_s, body)).body)


async def unlock_queues(
    pool: ConnectionPool,
    address: str,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    *,
    oneway: bool = False,
    timeout_s: float = LOCK_TIMEOUT_S,
) -> None:
    command = request(h.UnlockBatchRequest(), LockBatchBody(group=group, client_id=client_id, queues=tuple(queues)).encode())
    if oneway:
        await pool.send(address, command)
    else:
        check(await pool.call(address, command, timeout_s), address)


# --- answering a broker ----------------------------------------------------------------------------------------------


def success(ext_fields: Mapping[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
    """An answer to a broker's request; opaque is filled in where it is sent."""
    return RemotingCommand(ResponseCode.SUCCESS, dict(ext_fields or {}), body, flag=Flag.RESPONSE)


def refusal(code: int, remark: str) -> RemotingCommand:
    """An answer that says why a broker's request was not carried out."""
    return RemotingCommand(code, {}, flag=Flag.RESPONSE, remark=remark)


# --- users and policies ----------------------------------------------------------------------------------------------


async def create_user(pool: ConnectionPool, address: str, user: User, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
    await _ask(pool, address, h.CreateUserRequest(username=user.username), timeout_s, dumps(user.to_json(with_password=True)))


async def update_user(pool: ConnectionPool, address: str, user: User, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
    """What *user* says nothing about stays."""
    await _ask(pool, address, h.UpdateUserRequest(username=user.username), timeout_s, dumps(user.to_json(with_password=True)))


async def delete_user(pool: ConnectionPool, address: str, name: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
    await _ask(pool, address, h.DeleteUserRequest(username=name), timeout_s)


async def list_users(pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> list[User]:
    reply = await _ask(pool, address, h.ListUsersRequest(), timeout_s)
    return users_loads(reply.body) if reply.body else []


async def update_acl(pool: ConnectionPool, address: str, acl: Acl, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
    """Add policies; an entry replaces the one that there is for the same resource."""
    await _ask(pool, address, h.UpdateAclRequest(subject=acl.subject), timeout_s, dumps(acl.to_json()))


async def delete_acl(
    pool: ConnectionPool, address: str, subject: str, resource: str | None = None, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    await _ask(pool, address, h.DeleteAclRequest(subject=subject, resource=resource), timeout_s)


async def list_acls(pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> list[Acl]:
    reply = await _ask(pool, address, h.ListAclsRequest(), timeout_s)
    return acls_loads(reply.body) if reply.body else []
