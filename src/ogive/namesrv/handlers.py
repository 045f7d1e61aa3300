"""Handlers of the name server: brokers, routes and settings.

Registration, signs of life, and data about brokers: 103, 104, 106, 205, 217, 322, 327, 901, 904.

Behaviour
- A broker registers its whole table; an unknown broker id that registers exactly one topic is
  refused, as by Java.
- Topics change when the data version differs; topics that a later table lacks stay until they are
  deleted (216).
- The answer to a slave has its master's address. The answer's body is the ORDER_TOPIC_CONFIG
  namespace, if there is one.
- 322 and 904 count as signs of life.
- 205 and 327 apply to each topic until the broker registers another configuration of it, or is
  removed.

Differs from Java
- A broker belongs to the newest connection on which it registered, unregistered or sent a
  heartbeat: the end of an older one, or a late UNREGISTER_BROKER on it, does not remove the broker.
- UNREGISTER_BROKER is carried out at once, without a queue.
- A broker name belongs to one cluster at a time; bad addresses are refused, and tables are bounded.
  A topic with an impossible number of queues is left out of the routes, and named in the log.
- Queue mappings of static topics are ignored; the brokers of a name are not notified of a new
  lowest broker id (905).

KV settings and the name server's own configuration: 100, 101, 102, 219, 318, 319.

Behaviour
- If the name server has a file for KV settings, a change is on stable storage before it is
  answered.
- 319 returns the settings under their names in Apache's namesrv.conf.

Differs from Java
- 318 changes orderMessageEnable until the name server stops, and refuses every other setting by
  name (Java's list of refused settings had holes through which attackers wrote files,
  CVE-2023-37582).
- KV settings are bounded in number and size, and brokers are not notified of a change; they get
  ORDER_TOPIC_CONFIG when they register.

Routes and lists of topics: 105, 206, 216, 224, 304, 311, 312, 313.

Behaviour
- A route is standard JSON for clients of 4.9.4 and later and for those that request it; older ones
  get bare integer keys.
- A missing route is code 17 with a remark that names the topic.
- 216 forgets a topic until a broker registers a table with it.

Differs from Java
- A name server answers from the start, without a waiting time (waitSecondsForService, off there
  too).
- No slave is shown as acting master (supportActingMaster, off there too).
"""

import json
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

from ogive.access.audit import About, Change, Secret, State, named
from ogive.errors import ConnectError, InvalidOption, Refused
from ogive.namesrv.config import NameServerConfig
from ogive.namesrv.kv_config import ORDER_TOPIC_CONFIG, KvConfig
from ogive.namesrv.route_table import BrokerIdentity, BrokerRegistration, RouteTable, can_be_routed
from ogive.transport.connection import split_listed_address
from ogive.wire.bodies.configs import DataVersion
from ogive.wire.bodies.json_fields import dumps, loads_object
from ogive.wire.bodies.routes import RegisterBrokerBody, TopicRouteData, topic_list_dumps
from ogive.wire.bodies.stats import kv_table_dumps
from ogive.wire.checksum import crc32
from ogive.wire.codes import RequestCode as C
from ogive.wire.codes import ResponseCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import Header, encode_header
from ogive.wire.headers.name_server import (
    AddWritePermRequest,
    AddWritePermResponse,
    BrokerHeartbeatRequest,
    DeleteKvConfigRequest,
    DeleteTopicInNameServerRequest,
    GetAllTopicListRequest,
    GetBrokerClusterInfoRequest,
    GetBrokerMemberGroupRequest,
    GetKvConfigRequest,
    GetKvListRequest,
    GetNameServerConfigRequest,
    GetRouteInfoRequest,
    GetSystemTopicListRequest,
    GetTopicsByClusterRequest,
    GetUnitSubTopicListRequest,
    GetUnitSubUnunitTopicListRequest,
    GetUnitTopicListRequest,
    KvConfigResponse,
    PutKvConfigRequest,
    QueryDataVersionRequest,
    QueryDataVersionResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    RegisterTopicRequest,
    UnregisterBrokerRequest,
    UpdateNameServerConfigRequest,
    WipeWritePermRequest,
    WipeWritePermResponse,
)
from ogive.wire.java_properties import parse_properties

log = logging.getLogger(__name__)

# characters of names in a log line
MAX_SHOWN: Final = 2000


@dataclass(slots=True, kw_only=True)
class NameServerState:
    """The tables of a name server, for its handlers."""

    # UPDATE_NAMESRV_CONFIG replaces it
    config: NameServerConfig
    routes: RouteTable
    kv: KvConfig
    # seconds, monotonic
    now: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Call:
    """The parts of a request beside its header: the connection, the release of its client, and the
    body.
    """

    # number of the connection, see route_table
    owner: int
    version: int
    body: bytes


def success(header: Header | None = None, body: bytes = b"") -> RemotingCommand:
    """Return an answer with SUCCESS; dispatch adds opaque and flag."""
    return RemotingCommand(
        ResponseCode.SUCCESS, {} if header is None else encode_header(header), body
    )


def register(ctx: NameServerState, call: Call, header: RegisterBrokerRequest) -> RemotingCommand:
    if header.body_crc32 and crc32(call.body) & 0x7FFFFFFF != header.body_crc32:
        raise Refused(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    body = (
        RegisterBrokerBody.decode(call.body, compressed=header.compressed) if call.body else _EMPTY
    )
    registration = BrokerRegistration(
        broker=_identity(header),
        data_version=body.data_version,
        topics=body.topics,
        ha_address=header.ha_server_addr,
        expiry_s=None
        if header.heartbeat_timeout_ms is None
        else header.heartbeat_timeout_ms / 1000,
        acting_master=header.enable_acting_master,
    )
    known = ctx.routes.data_version(registration.broker)
    group = ctx.routes.member_group(header.cluster_name, header.broker_name)
    before = group.addresses.get(header.broker_id, header.broker_addr)
    master = ctx.routes.register(registration, now=ctx.now(), owner=call.owner)
    left_out = [topic for topic, config in body.topics.items() if not can_be_routed(config)]
    if left_out and known != body.data_version:
        log.warning(
            "broker %s at %s: topics with invalid queue counts are not routed: %s",
            header.broker_name,
            header.broker_addr,
            ", ".join(left_out)[:MAX_SHOWN],
        )
    if before != header.broker_addr and ctx.routes.data_version(registration.broker) is not None:
        log.warning(
            "broker %s moved from %s to %s. If both are running, each needs a name of its own: "
            "clients find only the later one",
            header.broker_name,
            before,
            header.broker_addr,
        )
    elif known is None:
        log.info(
            "broker %s at %s registered with %d topics",
            header.broker_name,
            header.broker_addr,
            len(body.topics),
        )
    answer = (
        RegisterBrokerResponse(ha_server_addr=master.ha_address, master_addr=master.address)
        if master
        else RegisterBrokerResponse()
    )
    ordered = ctx.kv.namespace(ORDER_TOPIC_CONFIG)
    return success(answer, kv_table_dumps(ordered) if ordered else b"")


_EMPTY = RegisterBrokerBody(data_version=DataVersion(), topics={})


def unregister(
    ctx: NameServerState, call: Call, header: UnregisterBrokerRequest
) -> RemotingCommand:
    if ctx.routes.unregister(_identity(header), owner=call.owner):
        log.info("broker %s at %s unregistered", header.broker_name, header.broker_addr)
    return success()


def query_data_version(
    ctx: NameServerState, call: Call, header: QueryDataVersionRequest
) -> RemotingCommand:
    broker = _identity(header)
    stored = ctx.routes.data_version(broker)
    asked = DataVersion.from_json(loads_object(call.body)) if call.body else None
    ctx.routes.heartbeat(broker.cluster, broker.address, now=ctx.now(), owner=call.owner)
    return success(
        QueryDataVersionResponse(changed=stored is None or stored != asked),
        dumps(stored.to_json()) if stored else b"",
    )


def heartbeat(ctx: NameServerState, call: Call, header: BrokerHeartbeatRequest) -> RemotingCommand:
    ctx.routes.heartbeat(header.cluster_name, header.broker_addr, now=ctx.now(), owner=call.owner)
    return success()


def register_topic(
    ctx: NameServerState, call: Call, header: RegisterTopicRequest
) -> RemotingCommand:
    ctx.routes.add_topic(header.topic, TopicRouteData.from_json(loads_object(call.body)).queues)
    return success()


def cluster_info(
    ctx: NameServerState, call: Call, header: GetBrokerClusterInfoRequest
) -> RemotingCommand:
    return success(body=ctx.routes.cluster_info().encode())


def member_group(
    ctx: NameServerState, call: Call, header: GetBrokerMemberGroupRequest
) -> RemotingCommand:
    """Return the addresses under one broker name; the broker ids are bare keys, as Java writes
    them.
    """
    group = ctx.routes.member_group(header.cluster_name, header.broker_name)
    addresses = ",".join(
        f"{i}:{json.dumps(address)}" for i, address in sorted(group.addresses.items())
    )
    names = f'"brokerName":{json.dumps(group.broker_name)},"cluster":{json.dumps(group.cluster)}'
    return success(
        body=f'{{"brokerMemberGroup":{{"brokerAddrs":{{{addresses}}},{names}}}}}'.encode()
    )


def wipe_write_permission(
    ctx: NameServerState, call: Call, header: WipeWritePermRequest
) -> RemotingCommand:
    count = ctx.routes.set_writable(header.broker_name, False)
    return success(WipeWritePermResponse(wipe_topic_count=count))


def add_write_permission(
    ctx: NameServerState, call: Call, header: AddWritePermRequest
) -> RemotingCommand:
    count = ctx.routes.set_writable(header.broker_name, True)
    return success(AddWritePermResponse(add_topic_count=count))


def _identity(
    header: RegisterBrokerRequest | UnregisterBrokerRequest | QueryDataVersionRequest,
) -> BrokerIdentity:
    try:
        split_listed_address(header.broker_addr)
    except ConnectError as exc:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(exc)) from None
    return BrokerIdentity(
        cluster=header.cluster_name,
        name=header.broker_name,
        broker_id=header.broker_id,
        address=header.broker_addr,
    )


async def put(ctx: NameServerState, call: Call, header: PutKvConfigRequest) -> RemotingCommand:
    try:
        await ctx.kv.put(header.namespace, header.key, header.value)
    except InvalidOption as exc:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(exc)) from None
    return success()


async def delete(
    ctx: NameServerState, call: Call, header: DeleteKvConfigRequest
) -> RemotingCommand:
    await ctx.kv.delete(header.namespace, header.key)
    return success()


def get(ctx: NameServerState, call: Call, header: GetKvConfigRequest) -> RemotingCommand:
    value = ctx.kv.get(header.namespace, header.key)
    if value is None:
        raise Refused(
            ResponseCode.QUERY_NOT_FOUND,
            f"No config item, Namespace: {header.namespace[:256]} Key: {header.key[:256]}",
        )
    return success(KvConfigResponse(value=value))


def get_namespace(ctx: NameServerState, call: Call, header: GetKvListRequest) -> RemotingCommand:
    entries = ctx.kv.namespace(header.namespace)
    if not entries:
        raise Refused(
            ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace[:256]}"
        )
    return success(body=kv_table_dumps(entries))


def update_config(
    ctx: NameServerState, call: Call, header: UpdateNameServerConfigRequest
) -> RemotingCommand:
    try:
        asked = {name: value.strip().lower() for name, value in parse_properties(call.body).items()}
    except InvalidOption as exc:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(exc)) from None
    for name, value in asked.items():
        if name != "orderMessageEnable":
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"{name[:80]} cannot be changed over the network; orderMessageEnable can",
            )
        if value not in ("true", "false"):
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"orderMessageEnable={value[:80]}: must be true or false",
            )
    if not asked:
        raise Refused(ResponseCode.INVALID_PARAMETER, "no line of the form name=value")
    ctx.config = replace(ctx.config, order_messages=asked["orderMessageEnable"] == "true")
    return success()


def get_config(
    ctx: NameServerState, call: Call, header: GetNameServerConfigRequest
) -> RemotingCommand:
    config = ctx.config
    settings: dict[str, object] = {
        "bindAddress": config.host,
        "kvConfigPath": config.kv_path.absolute() if config.kv_path else "",
        "listenPort": config.port,
        "orderMessageEnable": str(config.order_messages).lower(),
        "scanNotActiveBrokerInterval": round(config.scan_s * 1000),
    }
    return success(body="".join(f"{name}={value}\n" for name, value in settings.items()).encode())


# 4.9.4, as MQVersion.java counts
STANDARD_JSON_SINCE = 401
# bits of topicSysFlag
UNIT, UNIT_SUB = 1, 2


def route(ctx: NameServerState, call: Call, header: GetRouteInfoRequest) -> RemotingCommand:
    found = ctx.routes.route(header.topic)
    if found is None:
        raise Refused(
            ResponseCode.TOPIC_NOT_EXIST,
            f"No topic route info in name server for the topic: {header.topic[:256]}",
        )
    if ctx.config.order_messages:
        found = replace(found, order_topic_conf=ctx.kv.get(ORDER_TOPIC_CONFIG, header.topic))
    standard = call.version >= STANDARD_JSON_SINCE or bool(header.accept_standard_json_only)
    return success(body=found.encode(standard=standard))


def all_topics(ctx: NameServerState, call: Call, header: GetAllTopicListRequest) -> RemotingCommand:
    return success(body=topic_list_dumps(ctx.routes.topics()))


def topics_of_cluster(
    ctx: NameServerState, call: Call, header: GetTopicsByClusterRequest
) -> RemotingCommand:
    return success(body=topic_list_dumps(ctx.routes.topics_of_cluster(header.cluster)))


def system_topics(
    ctx: NameServerState, call: Call, header: GetSystemTopicListRequest
) -> RemotingCommand:
    return success(body=topic_list_dumps(ctx.routes.system_topics(), ctx.routes.any_address()))


def unit_topics(
    ctx: NameServerState, call: Call, header: GetUnitTopicListRequest
) -> RemotingCommand:
    return success(body=topic_list_dumps(ctx.routes.topics_by_sys_flag(on=UNIT)))


def unit_sub_topics(
    ctx: NameServerState, call: Call, header: GetUnitSubTopicListRequest
) -> RemotingCommand:
    return success(body=topic_list_dumps(ctx.routes.topics_by_sys_flag(on=UNIT_SUB)))


def unit_sub_ununit_topics(
    ctx: NameServerState, call: Call, header: GetUnitSubUnunitTopicListRequest
) -> RemotingCommand:
    return success(body=topic_list_dumps(ctx.routes.topics_by_sys_flag(on=UNIT_SUB, off=UNIT)))


def delete_topic(
    ctx: NameServerState, call: Call, header: DeleteTopicInNameServerRequest
) -> RemotingCommand:
    ctx.routes.delete_topic(header.topic, header.cluster_name)
    return success()


# --- table of requests ----------------------------------------------------------------------------
# Request codes of the name server, and the changes that its log reports.
#
# The log reports each request in CHANGES, see access/audit.py. The registration of a broker is not
# a change.

H = TypeVar("H", bound=Header)


@dataclass(frozen=True, slots=True)
class RequestHandler(Generic[H]):
    """Handler of a request: a plain function if possible, a coroutine if it must wait."""

    header: type[H]
    handle: Callable[
        [NameServerState, Call, H], RemotingCommand | Coroutine[Any, Any, RemotingCommand]
    ]
    max_body_bytes: int = 64 * 1024


ANY_FRAME: Final = 16 * 1024 * 1024

ROUTES: Final[dict[int, RequestHandler[Any]]] = {
    route.header.code: route
    for route in (
        RequestHandler(PutKvConfigRequest, put),
        RequestHandler(GetKvConfigRequest, get),
        RequestHandler(DeleteKvConfigRequest, delete),
        RequestHandler(RegisterBrokerRequest, register, ANY_FRAME),
        RequestHandler(UnregisterBrokerRequest, unregister),
        RequestHandler(GetRouteInfoRequest, route),
        RequestHandler(GetBrokerClusterInfoRequest, cluster_info),
        RequestHandler(WipeWritePermRequest, wipe_write_permission),
        RequestHandler(GetAllTopicListRequest, all_topics),
        RequestHandler(DeleteTopicInNameServerRequest, delete_topic),
        RequestHandler(RegisterTopicRequest, register_topic),
        RequestHandler(GetKvListRequest, get_namespace),
        RequestHandler(GetTopicsByClusterRequest, topics_of_cluster),
        RequestHandler(GetSystemTopicListRequest, system_topics),
        RequestHandler(GetUnitTopicListRequest, unit_topics),
        RequestHandler(GetUnitSubTopicListRequest, unit_sub_topics),
        RequestHandler(GetUnitSubUnunitTopicListRequest, unit_sub_ununit_topics),
        RequestHandler(UpdateNameServerConfigRequest, update_config),
        RequestHandler(GetNameServerConfigRequest, get_config),
        RequestHandler(QueryDataVersionRequest, query_data_version),
        RequestHandler(AddWritePermRequest, add_write_permission),
        RequestHandler(GetBrokerMemberGroupRequest, member_group),
        RequestHandler(BrokerHeartbeatRequest, heartbeat),
    )
}


def _setting(ctx: NameServerState, about: About) -> State:
    """Return the setting, with its value as a secret: the value may be anything."""
    (namespace,), (key,) = about.get("namespace", ("",)), about.get("key", ("",))
    value = ctx.kv.get(namespace, key)
    return {} if value is None else {"value": Secret(value)}


def _closed(ctx: NameServerState, about: About) -> State:
    return {"topics closed for writing": ctx.routes.closed(*about.get("broker", ("",)))}


def _brokers(ctx: NameServerState, about: About) -> State:
    route = ctx.routes.route(*about.get("topic", ("",)))
    return (
        {}
        if route is None
        else {"brokers": ",".join(sorted(queue.broker_name for queue in route.queues))}
    )


def _configuration(ctx: NameServerState, about: About) -> State:
    return {"orderMessageEnable": str(ctx.config.order_messages).lower()}


_SETTING: Final = named(namespace="namespace", key="key")

CHANGES: Final[dict[int, Change[NameServerState]]] = {
    C.PUT_KV_CONFIG: Change("set", _SETTING, _setting),
    C.DELETE_KV_CONFIG: Change("delete", _SETTING, _setting),
    C.WIPE_WRITE_PERM_OF_BROKER: Change(
        "close for writing all topics of", named(broker="brokerName"), _closed
    ),
    C.ADD_WRITE_PERM_OF_BROKER: Change(
        "open for writing all topics of", named(broker="brokerName"), _closed
    ),
    C.DELETE_TOPIC_IN_NAMESRV: Change(
        "forget the route of", named(topic="topic", cluster="clusterName"), _brokers
    ),
    C.REGISTER_TOPIC_IN_NAMESRV: Change("add a route of", named(topic="topic"), _brokers),
    C.UPDATE_NAMESRV_CONFIG: Change(
        "change the name server's settings", lambda command: {}, _configuration
    ),
}
