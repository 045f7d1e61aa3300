"""Request codes of the name server, and the changes that its log reports.

The log reports each request in CHANGES, see access/audit.py. The registration of a broker is not a
change.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from ogive.access.audit import About, Change, Secret, State, named
from ogive.namesrv import handlers
from ogive.namesrv.handlers import Call, NameServerState
from ogive.wire.codes import RequestCode as C
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import Header
from ogive.wire.headers.name_server import (
    AddWritePermRequest,
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
    PutKvConfigRequest,
    QueryDataVersionRequest,
    RegisterBrokerRequest,
    RegisterTopicRequest,
    UnregisterBrokerRequest,
    UpdateNameServerConfigRequest,
    WipeWritePermRequest,
)

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
        RequestHandler(PutKvConfigRequest, handlers.put),
        RequestHandler(GetKvConfigRequest, handlers.get),
        RequestHandler(DeleteKvConfigRequest, handlers.delete),
        RequestHandler(RegisterBrokerRequest, handlers.register, ANY_FRAME),
        RequestHandler(UnregisterBrokerRequest, handlers.unregister),
        RequestHandler(GetRouteInfoRequest, handlers.route),
        RequestHandler(GetBrokerClusterInfoRequest, handlers.cluster_info),
        RequestHandler(WipeWritePermRequest, handlers.wipe_write_permission),
        RequestHandler(GetAllTopicListRequest, handlers.all_topics),
        RequestHandler(DeleteTopicInNameServerRequest, handlers.delete_topic),
        RequestHandler(RegisterTopicRequest, handlers.register_topic),
        RequestHandler(GetKvListRequest, handlers.get_namespace),
        RequestHandler(GetTopicsByClusterRequest, handlers.topics_of_cluster),
        RequestHandler(GetSystemTopicListRequest, handlers.system_topics),
        RequestHandler(GetUnitTopicListRequest, handlers.unit_topics),
        RequestHandler(GetUnitSubTopicListRequest, handlers.unit_sub_topics),
        RequestHandler(GetUnitSubUnunitTopicListRequest, handlers.unit_sub_ununit_topics),
        RequestHandler(UpdateNameServerConfigRequest, handlers.update_config),
        RequestHandler(GetNameServerConfigRequest, handlers.get_config),
        RequestHandler(QueryDataVersionRequest, handlers.query_data_version),
        RequestHandler(AddWritePermRequest, handlers.add_write_permission),
        RequestHandler(GetBrokerMemberGroupRequest, handlers.member_group),
        RequestHandler(BrokerHeartbeatRequest, handlers.heartbeat),
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
