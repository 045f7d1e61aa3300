"""Request and response headers, each declared once; one codec reads the declarations.

A field's name on the wire is its Python name in camelCase, unless metadata says otherwise; a field with a default is optional. Headers of
5.x carry five more optional fields (ns, nsd, bname, oway, lo); unknown fields are ignored, as Java does.
Source: the header classes of remoting/protocol/header, 5.5.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from ogive.errors import ProtocolError
from ogive.wire.codes import RequestCode

H = TypeVar("H", bound="Header")


class Header:
    """Base of all headers; *code* is set on requests only."""

    __slots__ = ()
    code: ClassVar[int]


def wire(name: str, **options: Any) -> Any:
    """A field whose name on the wire does not follow from its Python name."""
    return field(metadata={"wire": name}, **options)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    wire: str
    kind: type
    required: bool


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


_declared: dict[type[Header], tuple[_Field, ...]] = {}


def _fields(cls: type[Header]) -> tuple[_Field, ...]:
    known = _declared.get(cls)
    if known is not None:
        return known
    hints = typing.get_type_hints(cls)
    found: list[_Field] = []
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]  # every header is a dataclass
        kind = hints[f.name]
        if isinstance(kind, types.UnionType):
            kind = next(part for part in typing.get_args(kind) if part is not type(None))
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        found.append(_Field(f.name, f.metadata.get("wire") or _camel(f.name), kind, required))
    return _declared.setdefault(cls, tuple(found))


def encode_header(header: Header) -> dict[str, str]:
    """The extension fields: text for every field that is not None, as Java's toString writes it."""
    out: dict[str, str] = {}
    for f in _fields(type(header)):
        value = getattr(header, f.name)
        if value is None:
            continue
        out[f.wire] = value if f.kind is str else ("true" if value else "false") if f.kind is bool else str(value)
    return out


def decode_header(cls: type[H], ext: Mapping[str, str]) -> H:
    """The header in *ext*. Raises ProtocolError that names the field which is missing or no number."""
    values: dict[str, Any] = {}
    for f in _fields(cls):
        text = ext.get(f.wire)
        if text is not None:
            values[f.name] = text if f.kind is str else _PARSE[f.kind](f, text)
        elif f.required:
            raise ProtocolError(f"{cls.__name__}: field {f.wire} is missing")
    return cls(**values)


def _parse_int(f: _Field, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ProtocolError(f"field {f.wire} is no integer: {text[:40]!r}") from None
    if not -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
        raise ProtocolError(f"field {f.wire} is outside 64 bits: {text[:40]!r}")
    return value


def _parse_bool(_: _Field, text: str) -> bool:
    """Boolean.parseBoolean; the C++ client writes 1 and 0."""
    return text.lower() == "true" or text == "1"


_PARSE: dict[type, Callable[[_Field, str], Any]] = {int: _parse_int, bool: _parse_bool}


# --- sending ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageRequest(Header):
    """SEND_MESSAGE (10). Source: SendMessageRequestHeader.java."""

    code = RequestCode.SEND_MESSAGE
    producer_group: str
    topic: str
    default_topic: str = "TBW102"
    default_topic_queue_nums: int = 4
    queue_id: int
    sys_flag: int = 0
    born_timestamp: int
    flag: int = 0
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: int | None = None
    broker_name: str | None = wire("bname", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageRequestV2(Header):
    """SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): the same content under one-letter names."""

    code = RequestCode.SEND_MESSAGE_V2
    producer_group: str = wire("a")
    topic: str = wire("b")
    default_topic: str = wire("c", default="TBW102")
    default_topic_queue_nums: int = wire("d", default=4)
    queue_id: int = wire("e")
    sys_flag: int = wire("f", default=0)
    born_timestamp: int = wire("g")
    flag: int = wire("h", default=0)
    properties: str | None = wire("i", default=None)
    reconsume_times: int | None = wire("j", default=None)
    unit_mode: bool | None = wire("k", default=None)
    max_reconsume_times: int | None = wire("l", default=None)
    batch: bool | None = wire("m", default=None)
    broker_name: str | None = wire("n", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageResponse(Header):
    """*msg_id* is the broker's offset id, a comma list for a batch; *queue_offset* that of the first message."""

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    region: str | None = wire("MSG_REGION", default=None)
    trace_on: str | None = wire("TRACE_ON", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReplyMessageRequest(SendMessageRequest):
    """SEND_REPLY_MESSAGE (324): a reply on its way to the client that REPLY_TO_CLIENT, one of its properties, names."""

    code = RequestCode.SEND_REPLY_MESSAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReplyMessageRequestV2(SendMessageRequestV2):
    """SEND_REPLY_MESSAGE_V2 (325)."""

    code = RequestCode.SEND_REPLY_MESSAGE_V2


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReplyMessageRequest(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326), broker to client; hosts are ``ip:port``. Source: ReplyMessageRequestHeader.java."""

    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    producer_group: str
    topic: str
    default_topic: str = "TBW102"
    default_topic_queue_nums: int = 4
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None
    born_host: str
    store_host: str
    store_timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSendMsgBackRequest(Header):
    """CONSUMER_SEND_MSG_BACK (36). *offset* is a commit-log offset; *delay_level* below 0 means dead letter, 0 the broker's choice."""

    code = RequestCode.CONSUMER_SEND_MSG_BACK
    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionRequest(Header):
    """END_TRANSACTION (37). The offsets are those of the half message: *tran_state_table_offset* counts in its queue.

    *commit_or_rollback* is a ``Decision``.
    """

    code = RequestCode.END_TRANSACTION
    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: int
    msg_id: str = ""
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None
    broker_name: str | None = wire("bname", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTransactionStateRequest(Header):
    """CHECK_TRANSACTION_STATE (39), a broker's question; END_TRANSACTION answers it. Body: the half message, under its real topic."""

    code = RequestCode.CHECK_TRANSACTION_STATE
    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    broker_name: str | None = wire("bname", default=None)


# --- pulling and offsets ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessageRequest(Header):
    """PULL_MESSAGE (11). Source: PullMessageRequestHeader.java."""

    code = RequestCode.PULL_MESSAGE
    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_ms: int = wire("suspendTimeoutMillis", default=0)
    subscription: str | None = None
    sub_version: int = 0
    expression_type: str | None = None
    max_msg_bytes: int | None = None
    broker_name: str | None = wire("bname", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessageResponse(Header):
    """Source: PullMessageResponseHeader.java."""

    suggest_which_broker_id: int = 0
    next_begin_offset: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumerOffsetRequest(Header):
    """QUERY_CONSUMER_OFFSET (14)."""

    code = RequestCode.QUERY_CONSUMER_OFFSET
    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConsumerOffsetRequest(Header):
    """UPDATE_CONSUMER_OFFSET (15)."""

    code = RequestCode.UPDATE_CONSUMER_OFFSET
    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOffsetRequest(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP (29). *boundary_type* is LOWER or UPPER."""

    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMaxOffsetRequest(Header):
    """GET_MAX_OFFSET (30)."""

    code = RequestCode.GET_MAX_OFFSET
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMinOffsetRequest(Header):
    """GET_MIN_OFFSET (31)."""

    code = RequestCode.GET_MIN_OFFSET
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEarliestStoreTimeRequest(Header):
    """GET_EARLIEST_MSG_STORETIME (32)."""

    code = RequestCode.GET_EARLIEST_MSG_STORETIME
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResponse(Header):
    """Answer of 14, 29, 30 and 31."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampResponse(Header):
    """Answer of 32: ms, -1 for an empty queue."""

    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMessageRequest(Header):
    """VIEW_MESSAGE_BY_ID (33). *offset* is a commit-log offset."""

    code = RequestCode.VIEW_MESSAGE_BY_ID
    offset: int
    topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageRequest(Header):
    """QUERY_MESSAGE (12): by a key, or a unique key, in the index. Times in ms.

    Java's clients add ``_UNIQUE_KEY_QUERY=true`` for a unique key, which only sets *max_num* to 32. Ours leaves it out: brokers of 4.9
    take it out of what they check a signature against, those of 5.x do not.
    """

    code = RequestCode.QUERY_MESSAGE
    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    unique_key_query: bool | None = wire("_UNIQUE_KEY_QUERY", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageResponse(Header):
    """Answer of 12: time and commit-log offset of the newest message that is in the index."""

    index_last_update_timestamp: int
    index_last_update_phyoffset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsetRequest(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET (222). A *timestamp* (ms) below 0 is the end; *queue_id* and *offset* count only in 5.x, -1 is none."""

    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    topic: str
    group: str
    timestamp: int
    is_force: bool = True
    queue_id: int = -1
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneGroupOffsetRequest(Header):
    """CLONE_GROUP_OFFSET (314). Without a topic, those that *src_group* subscribes to or has progress on."""

    code = RequestCode.CLONE_GROUP_OFFSET
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


# --- clients and groups ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest(Header):
    """HEART_BEAT (34); the content is the body."""

    code = RequestCode.HEART_BEAT


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse(Header):
    """5.x answers that it knows heartbeats without subscriptions."""

    supports_v2: bool | None = wire("IS_SUPPORT_HEART_BEAT_V2", default=None)
    subscription_changed: bool | None = wire("IS_SUB_CHANGE", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterClientRequest(Header):
    """UNREGISTER_CLIENT (35)."""

    code = RequestCode.UNREGISTER_CLIENT
    client_id: str = wire("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerListRequest(Header):
    """GET_CONSUMER_LIST_BY_GROUP (38)."""

    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConsumerIdsChangedRequest(Header):
    """NOTIFY_CONSUMER_IDS_CHANGED (40), broker to client, one-way."""

    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchRequest(Header):
    """LOCK_BATCH_MQ (41); the queues are in the body."""

    code = RequestCode.LOCK_BATCH_MQ


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlockBatchRequest(Header):
    """UNLOCK_BATCH_MQ (42); the queues are in the body."""

    code = RequestCode.UNLOCK_BATCH_MQ


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckClientConfigRequest(Header):
    """CHECK_CLIENT_CONFIG (46); the subscription is in the body."""

    code = RequestCode.CHECK_CLIENT_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerConnectionListRequest(Header):
    """GET_CONSUMER_CONNECTION_LIST (203)."""

    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetProducerConnectionListRequest(Header):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    producer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumeStatsRequest(Header):
    """GET_CONSUME_STATS (208)."""

    code = RequestCode.GET_CONSUME_STATS
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerRunningInfoRequest(Header):
    """GET_CONSUMER_RUNNING_INFO (307)."""

    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeMessageDirectlyRequest(Header):
    """CONSUME_MESSAGE_DIRECTLY (309); the message is the body. Source: ConsumeMessageDirectlyResultRequestHeader.java, 5.3."""

    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetConsumerOffsetRequest(Header):
    """RESET_CONSUMER_CLIENT_OFFSET (220), broker to consumer; the offsets are the body. Source: ResetOffsetRequestHeader.java, 5.3."""

    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    topic: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerStatusRequest(Header):
    """GET_CONSUMER_STATUS_FROM_CLIENT (221). Source: GetConsumerStatusRequestHeader.java, 5.3."""

    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    topic: str
    group: str
    client_addr: str | None = None


# --- topics and groups at the broker ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicRequest(Header):
    """UPDATE_AND_CREATE_TOPIC (17). *attributes* is ``+key=value,-key``."""

    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    topic: str
    default_topic: str = "TBW102"
    read_queue_nums: int
    write_queue_nums: int
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicRequest(Header):
    """DELETE_TOPIC_IN_BROKER (215)."""

    code = RequestCode.DELETE_TOPIC_IN_BROKER
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllTopicConfigRequest(Header):
    """GET_ALL_TOPIC_CONFIG (21); since 5.4 by pages, of one *data_version*."""

    code = RequestCode.GET_ALL_TOPIC_CONFIG
    topic_seq: int | None = None
    max_topic_num: int | None = None
    data_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllTopicConfigResponse(Header):
    """How many topics there are in all pages."""

    total_topic_num: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicConfigRequest(Header):
    """GET_TOPIC_CONFIG (351)."""

    code = RequestCode.GET_TOPIC_CONFIG
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateGroupRequest(Header):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200); the group's settings are the body."""

    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupRequest(Header):
    """DELETE_SUBSCRIPTIONGROUP (207). 4.9 calls *clean_offset* removeOffset."""

    code = RequestCode.DELETE_SUBSCRIPTIONGROUP
    group_name: str
    clean_offset: bool = False
    remove_offset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllGroupsRequest(Header):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201); since 5.4 by pages, of one *data_version*."""

    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    group_seq: int | None = None
    max_group_num: int | None = None
    data_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllGroupsResponse(Header):
    """How many groups there are in all pages."""

    total_group_num: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetGroupConfigRequest(Header):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicStatsRequest(Header):
    """GET_TOPIC_STATS_INFO (202)."""

    code = RequestCode.GET_TOPIC_STATS_INFO
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTopicConsumeByWhoRequest(Header):
    """QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerRuntimeInfoRequest(Header):
    """GET_BROKER_RUNTIME_INFO (28)."""

    code = RequestCode.GET_BROKER_RUNTIME_INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConfigRequest(Header):
    """GET_BROKER_CONFIG (26)."""

    code = RequestCode.GET_BROKER_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBrokerConfigRequest(Header):
    """UPDATE_BROKER_CONFIG (25); the settings are the body, as properties text."""

    code = RequestCode.UPDATE_BROKER_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfigResponse(Header):
    """*version* is the data version as JSON; the settings are the body, as properties text."""

    version: str


# --- name server -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRouteInfoRequest(Header):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    topic: str
    accept_standard_json_only: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerClusterInfoRequest(Header):
    """GET_BROKER_CLUSTER_INFO (106)."""

    code = RequestCode.GET_BROKER_CLUSTER_INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRequest(Header):
    """REGISTER_BROKER (103). *body_crc32* is the CRC-32 of the body without its sign bit; 0 switches the check off."""

    code = RequestCode.REGISTER_BROKER
    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str = ""
    broker_id: int
    compressed: bool = False
    body_crc32: int = wire("bodyCrc32", default=0)
    heartbeat_timeout_ms: int | None = wire("heartbeatTimeoutMillis", default=None)
    enable_acting_master: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerResponse(Header):
    """Set for slaves only: where their master is."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRequest(Header):
    """UNREGISTER_BROKER (104)."""

    code = RequestCode.UNREGISTER_BROKER
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDataVersionRequest(Header):
    """QUERY_DATA_VERSION (322); the version is the body. Counts as a sign of life."""

    code = RequestCode.QUERY_DATA_VERSION
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDataVersionResponse(Header):
    """*changed*: the broker should register its topics again."""

    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatRequest(Header):
    """BROKER_HEARTBEAT (904)."""

    code = RequestCode.BROKER_HEARTBEAT
    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: int | None = None
    heartbeat_timeout_ms: int | None = wire("heartbeatTimeoutMills", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerMemberGroupRequest(Header):
    """GET_BROKER_MEMBER_GROUP (901)."""

    code = RequestCode.GET_BROKER_MEMBER_GROUP
    cluster_name: str
    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllTopicListRequest(Header):
    """GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206)."""

    code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicsByClusterRequest(Header):
    """GET_TOPICS_BY_CLUSTER (224)."""

    code = RequestCode.GET_TOPICS_BY_CLUSTER
    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicInNameServerRequest(Header):
    """DELETE_TOPIC_IN_NAMESRV (216)."""

    code = RequestCode.DELETE_TOPIC_IN_NAMESRV
    topic: str
    cluster_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PutKvConfigRequest(Header):
    """PUT_KV_CONFIG (100)."""

    code = RequestCode.PUT_KV_CONFIG
    namespace: str
    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKvConfigRequest(Header):
    """GET_KV_CONFIG (101)."""

    code = RequestCode.GET_KV_CONFIG
    namespace: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KvConfigResponse(Header):
    """Answer of 101."""

    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteKvConfigRequest(Header):
    """DELETE_KV_CONFIG (102)."""

    code = RequestCode.DELETE_KV_CONFIG
    namespace: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKvListRequest(Header):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    code = RequestCode.GET_KVLIST_BY_NAMESPACE
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSystemTopicListRequest(Header):
    """GET_SYSTEM_TOPIC_LIST_FROM_NS (304)."""

    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerSystemTopicListRequest(Header):
    """GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305)."""

    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER


@dataclass(frozen=True, slots=True, kw_only=True)
class GetUnitTopicListRequest(Header):
    """GET_UNIT_TOPIC_LIST (311)."""

    code = RequestCode.GET_UNIT_TOPIC_LIST


@dataclass(frozen=True, slots=True, kw_only=True)
class GetUnitSubTopicListRequest(Header):
    """GET_HAS_UNIT_SUB_TOPIC_LIST (312)."""

    code = RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST


@dataclass(frozen=True, slots=True, kw_only=True)
class GetUnitSubUnunitTopicListRequest(Header):
    """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST (313)."""

    code = RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterTopicRequest(Header):
    """REGISTER_TOPIC_IN_NAMESRV (217); the topic's route is the body."""

    code = RequestCode.REGISTER_TOPIC_IN_NAMESRV
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeWritePermRequest(Header):
    """WIPE_WRITE_PERM_OF_BROKER (205)."""

    code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeWritePermResponse(Header):
    """How many topics were closed for writing."""

    wipe_topic_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddWritePermRequest(Header):
    """ADD_WRITE_PERM_OF_BROKER (327)."""

    code = RequestCode.ADD_WRITE_PERM_OF_BROKER
    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddWritePermResponse(Header):
    """How many topics were opened for writing."""

    add_topic_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateNameServerConfigRequest(Header):
    """UPDATE_NAMESRV_CONFIG (318); the settings are the body, as properties text."""

    code = RequestCode.UPDATE_NAMESRV_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class GetNameServerConfigRequest(Header):
    """GET_NAMESRV_CONFIG (319)."""

    code = RequestCode.GET_NAMESRV_CONFIG
