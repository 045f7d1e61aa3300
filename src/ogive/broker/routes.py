"""Which handler serves which request code. This table is the whole list."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from ogive.broker.context import Context
from ogive.broker.handlers import admin, clients, groups, locks, offsets, pull, send, send_back, topics
from ogive.transport.connection import Connection
from ogive.wire import headers
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import Header

H = TypeVar("H", bound=Header)


@dataclass(frozen=True, slots=True)
class Route(Generic[H]):
    """The handler gets the decoded header and the body, and gives the answer, at once or later."""

    header: type[H]
    handle: Callable[[Context, Connection, H, bytes], RemotingCommand | Awaitable[RemotingCommand]]


@dataclass(frozen=True, slots=True)
class Direct:
    """The handler takes the command as it came and answers through the connection: the hot paths, and what needs the client's version."""

    handle: Callable[[Context, Connection, RemotingCommand], None]


def _table(*routes: Route[Any]) -> dict[int, Route[Any]]:
    return {int(route.header.code): route for route in routes}


ROUTES: Final[dict[int, Route[Any] | Direct]] = {
    RequestCode.SEND_MESSAGE: Direct(send.handle),
    RequestCode.SEND_MESSAGE_V2: Direct(send.handle),
    RequestCode.SEND_BATCH_MESSAGE: Direct(send.handle),
    RequestCode.PULL_MESSAGE: Direct(pull.handle),
    RequestCode.LITE_PULL_MESSAGE: Direct(pull.handle),
    RequestCode.HEART_BEAT: Direct(clients.heartbeat),
    RequestCode.CONSUMER_SEND_MSG_BACK: Direct(send_back.handle),
    **_table(
        Route(headers.QueryConsumerOffsetRequest, offsets.query_consumer_offset),
        Route(headers.UpdateConsumerOffsetRequest, offsets.update_consumer_offset),
        Route(headers.SearchOffsetRequest, offsets.search_offset),
        Route(headers.GetMaxOffsetRequest, offsets.max_offset),
        Route(headers.GetMinOffsetRequest, offsets.min_offset),
        Route(headers.GetEarliestStoreTimeRequest, offsets.earliest_store_time),
        Route(headers.ViewMessageRequest, offsets.view_message),
        Route(headers.UnregisterClientRequest, clients.unregister),
        Route(headers.GetConsumerListRequest, clients.consumer_list),
        Route(headers.CheckClientConfigRequest, clients.check_config),
        Route(headers.LockBatchRequest, locks.lock),
        Route(headers.UnlockBatchRequest, locks.unlock),
        Route(headers.CreateTopicRequest, topics.create),
        Route(headers.DeleteTopicRequest, topics.delete),
        Route(headers.GetAllTopicConfigRequest, topics.show_all),
        Route(headers.GetTopicConfigRequest, topics.show),
        Route(headers.GetBrokerSystemTopicListRequest, topics.show_system_topics),
        Route(headers.GetTopicStatsRequest, topics.statistics),
        Route(headers.QueryTopicConsumeByWhoRequest, topics.who_consumes),
        Route(headers.CreateGroupRequest, groups.create),
        Route(headers.DeleteGroupRequest, groups.delete),
        Route(headers.GetAllGroupsRequest, groups.show_all),
        Route(headers.GetGroupConfigRequest, groups.show),
        Route(headers.UpdateBrokerConfigRequest, admin.update_config),
        Route(headers.GetBrokerConfigRequest, admin.show_config),
        Route(headers.GetBrokerRuntimeInfoRequest, admin.show_runtime_info),
        Route(headers.GetConsumerConnectionListRequest, admin.show_consumers),
        Route(headers.GetProducerConnectionListRequest, admin.show_producers),
        Route(headers.GetConsumeStatsRequest, admin.consume_stats),
        Route(headers.GetConsumerRunningInfoRequest, admin.ask_client),
    ),
}
