"""Request codes of the name server, and the changes that its log reports.

What access/audit.py reports is listed here; what brokers say of themselves is no change.

What brokers say of themselves is none.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from ogive.access.audit import About, Change, Secret, State, named
from ogive.namesrv import handlers
from ogive.namesrv.context import Call, Context
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
class Route(Generic[H]):
    """*handle* is a plain function where it can be, a coroutine where it must wait."""

    header: type[H]
    handle: Callable[[Context, Call, H], RemotingCommand | Coroutine[Any, Any, RemotingCommand]]
    max_body_bytes: int = 64 * 1024


ANY_FRAME: Final = 16 * 1024 * 1024

ROUTES: Final[dict[int, Route[Any]]] = {
    route.header.code: route
    for route in (
        Route(PutKvConfigRequest, handlers.put),
        Route(GetKvConfigRequest, handlers.get),
        Route(DeleteKvConfigRequest, handlers.delete),
        Route(RegisterBrokerRequest, handlers.register, ANY_FRAME),
        Route(UnregisterBrokerRequest, handlers.unregister),
        Route(GetRouteInfoRequest, handlers.route),
        Route(GetBrokerClusterInfoRequest, handlers.cluster_info),
        Route(WipeWritePermRequest, handlers.wipe_write_permission),
        Route(GetAllTopicListRequest, handlers.all_topics),
        Route(DeleteTopicInNameServerRequest, handlers.delete_topic),
        Route(RegisterTopicRequest, handlers.register_topic),
        Route(GetKvListRequest, handlers.get_namespace),
        Route(GetTopicsByClusterRequest, handlers.topics_of_cluster),
        Route(GetSystemTopicListRequest, handlers.system_topics),
        Route(GetUnitTopicListRequest, handlers.unit_topics),
        Route(GetUnitSubTopicListRequest, handlers.unit_sub_topics),
        Route(GetUnitSubUnunitTopicListRequest, handlers.unit_sub_ununit_topics),
        Route(UpdateNameServerConfigRequest, handlers.update_config),
        Route(GetNameServerConfigRequest, handlers.get_config),
        Route(QueryDataVersionRequest, handlers.query_data_version),
        Route(AddWritePermRequest, handlers.add_write_permission),
        Route(GetBrokerMemberGroupRequest, handlers.member_group),
        Route(BrokerHeartbeatRequest, handlers.heartbeat),
    )
}


def _setting(ctx: Context, about: About) -> State:
    """Its value may be anything, so it is not told."""
    (namespace,), (key,) = about.get("namespace", ("",)), about.get("key", ("",))
    value = ctx.kv.get(namespace, key)
    return {} if value is None else {"value": Secret(value)}


def _closed(ctx: Context, about: About) -> State:
    return {"topics closed for writing": ctx.routes.closed(*about.get("broker", ("",)))}


def _brokers(ctx: Context, about: About) -> State:
    route = ctx.routes.route(*about.get("topic", ("",)))
    return (
        {}
        if route is None
        else {"brokers": ",".join(sorted(queue.broker_name for queue in route.queues))}
    )


def _configuration(ctx: Context, about: About) -> State:
    return {"orderMessageEnable": str(ctx.config.order_messages).lower()}


_SETTING: Final = named(namespace="namespace", key="key")

CHANGES: Final[dict[int, Change[Context]]] = {
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
