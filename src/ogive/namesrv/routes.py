"""The request codes that the name server answers."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from ogive.namesrv.context import Call, Context
from ogive.namesrv.handlers import brokers, settings, topics
from ogive.wire import headers as h
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import Header

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
        Route(h.PutKvConfigRequest, settings.put),
        Route(h.GetKvConfigRequest, settings.get),
        Route(h.DeleteKvConfigRequest, settings.delete),
        Route(h.RegisterBrokerRequest, brokers.register, ANY_FRAME),
        Route(h.UnregisterBrokerRequest, brokers.unregister),
        Route(h.GetRouteInfoRequest, topics.route),
        Route(h.GetBrokerClusterInfoRequest, brokers.cluster_info),
        Route(h.WipeWritePermRequest, brokers.wipe_write_permission),
        Route(h.GetAllTopicListRequest, topics.all_topics),
        Route(h.DeleteTopicInNameServerRequest, topics.delete_topic),
        Route(h.RegisterTopicRequest, brokers.register_topic),
        Route(h.GetKvListRequest, settings.get_namespace),
        Route(h.GetTopicsByClusterRequest, topics.topics_of_cluster),
        Route(h.GetSystemTopicListRequest, topics.system_topics),
        Route(h.GetUnitTopicListRequest, topics.unit_topics),
        Route(h.GetUnitSubTopicListRequest, topics.unit_sub_topics),
        Route(h.GetUnitSubUnunitTopicListRequest, topics.unit_sub_ununit_topics),
        Route(h.UpdateNameServerConfigRequest, settings.update_config),
        Route(h.GetNameServerConfigRequest, settings.get_config),
        Route(h.QueryDataVersionRequest, brokers.query_data_version),
        Route(h.AddWritePermRequest, brokers.add_write_permission),
        Route(h.GetBrokerMemberGroupRequest, brokers.member_group),
        Route(h.BrokerHeartbeatRequest, brokers.heartbeat),
    )
}
