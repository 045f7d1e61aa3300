"""Which handler serves which request code. This table is the whole list."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from ogive.broker.context import Context
from ogive.broker.handlers import (
    access,
    admin,
    ask_clients,
    assignment,
    cleaning,
    clients,
    groups,
    locks,
    offsets,
    pull,
    query,
    queue_entries,
    recall,
    replies,
    send,
    send_back,
    statistics,
    topics,
    transaction,
)
from ogive.store.disk import Pieces
from ogive.transport.connection import Connection
from ogive.wire import headers
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.frame import MAX_FRAME_BYTES
from ogive.wire.headers import Header

H = TypeVar("H", bound=Header)


SHORT_BODY: Final = 64 * 1024
# lists of thousands: topics, groups, queues, rules; it is read in some ten milliseconds
LONG_BODY: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Route(Generic[H]):
    """The handler gets the decoded header and the body, and gives the answer, at once or later.

    *listing*: one that grows with what the broker holds, so it is made one at a time, and in pieces
    where it may be long. *max_body_bytes*: most requests have no body, or a short one.
    """

    header: type[H]
    handle: Callable[
        [Context, Connection, H, bytes],
        RemotingCommand | Awaitable[RemotingCommand] | Pieces[RemotingCommand],
    ]
    listing: bool = False
    max_body_bytes: int = SHORT_BODY


@dataclass(frozen=True, slots=True)
class Direct:
    """The handler takes the command as it came and answers through the connection: the hot paths,
    and what needs the client's version.
    """

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
    RequestCode.END_TRANSACTION: Direct(transaction.end),
    **_table(
        Route(headers.RecallMessageRequest, recall.handle),
        Route(headers.SendReplyMessageRequest, replies.handle, max_body_bytes=MAX_FRAME_BYTES),
        Route(headers.SendReplyMessageRequestV2, replies.handle, max_body_bytes=MAX_FRAME_BYTES),
        Route(headers.QueryConsumerOffsetRequest, offsets.query_consumer_offset),
        Route(headers.UpdateConsumerOffsetRequest, offsets.update_consumer_offset),
        Route(headers.SearchOffsetRequest, offsets.search_offset),
        Route(headers.GetMaxOffsetRequest, offsets.max_offset),
        Route(headers.GetMinOffsetRequest, offsets.min_offset),
        Route(headers.GetEarliestStoreTimeRequest, offsets.earliest_store_time),
        Route(headers.ResetOffsetRequest, offsets.reset, listing=True),
        Route(headers.CloneGroupOffsetRequest, offsets.clone, listing=True),
        Route(headers.ViewMessageRequest, offsets.view_message),
        Route(headers.QueryMessageRequest, query.query),
        Route(headers.UnregisterClientRequest, clients.unregister),
        Route(headers.GetConsumerListRequest, clients.consumer_list),
        Route(headers.CheckClientConfigRequest, clients.check_config, max_body_bytes=LONG_BODY),
        Route(headers.LockBatchRequest, locks.lock, max_body_bytes=LONG_BODY),
        Route(headers.UnlockBatchRequest, locks.unlock, max_body_bytes=LONG_BODY),
        Route(headers.CreateTopicRequest, topics.create),
        Route(headers.DeleteTopicRequest, topics.delete),
        Route(headers.GetAllTopicConfigRequest, topics.show_all, listing=True),
        Route(headers.GetTopicConfigRequest, topics.show),
        Route(headers.GetBrokerSystemTopicListRequest, topics.show_system_topics, listing=True),
        Route(headers.GetTopicStatsRequest, topics.statistics, listing=True),
        Route(headers.QueryTopicConsumeByWhoRequest, topics.who_consumes, listing=True),
        Route(headers.CreateGroupRequest, groups.create),
        Route(headers.DeleteGroupRequest, groups.delete),
        Route(headers.GetAllGroupsRequest, groups.show_all, listing=True),
        Route(headers.GetGroupConfigRequest, groups.show),
        Route(headers.UpdateGroupForbiddenRequest, groups.forbid_or_allow),
        Route(headers.UpdateBrokerConfigRequest, admin.update_config),
        Route(headers.GetBrokerConfigRequest, admin.show_config),
        Route(headers.GetBrokerRuntimeInfoRequest, admin.show_runtime_info, listing=True),
        Route(headers.GetConsumerConnectionListRequest, admin.show_consumers, listing=True),
        Route(headers.GetProducerConnectionListRequest, admin.show_producers, listing=True),
        Route(headers.GetConsumeStatsRequest, admin.consume_stats, listing=True),
        Route(headers.CreateUserRequest, access.create_user),
        Route(headers.UpdateUserRequest, access.update_user),
        Route(headers.DeleteUserRequest, access.delete_user),
        Route(headers.GetUserRequest, access.show_user),
        Route(headers.ListUsersRequest, access.list_users, listing=True),
        Route(headers.CreateAclRequest, access.create_acl, max_body_bytes=LONG_BODY),
        Route(headers.UpdateAclRequest, access.update_acl, max_body_bytes=LONG_BODY),
        Route(headers.DeleteAclRequest, access.delete_acl),
        Route(headers.GetAclRequest, access.show_acl),
        Route(headers.ListAclsRequest, access.list_acls, listing=True),
        Route(headers.CreateTopicListRequest, topics.create_all, max_body_bytes=LONG_BODY),
        Route(headers.QueryTopicsByConsumerRequest, topics.topics_of_group, listing=True),
        Route(headers.QuerySubscriptionByConsumerRequest, topics.subscription_of_group),
        Route(headers.CleanUnusedTopicRequest, topics.clean_unused, listing=True),
        Route(headers.DeleteExpiredLogRequest, cleaning.delete_expired_log),
        Route(headers.CleanExpiredQueuesRequest, cleaning.clean_expired_queues),
        Route(headers.CreateGroupListRequest, groups.create_all, max_body_bytes=LONG_BODY),
        Route(headers.GetConsumerRunningInfoRequest, ask_clients.running_info),
        Route(headers.ConsumeMessageDirectlyRequest, ask_clients.consume_directly),
        Route(headers.InvokeGetConsumerStatusRequest, ask_clients.consumer_status),
        Route(headers.GetAllProducerInfoRequest, ask_clients.show_all_producers, listing=True),
        Route(headers.ViewBrokerStatsRequest, statistics.view),
        Route(headers.GetBrokerConsumeStatsRequest, statistics.consume_stats_of_all, listing=True),
        Route(headers.QueryConsumeTimeSpanRequest, statistics.consume_time_spans, listing=True),
        Route(headers.QueryConsumeQueueRequest, queue_entries.show, listing=True),
        Route(headers.QueryAssignmentRequest, assignment.query),
        Route(headers.SetMessageRequestModeRequest, assignment.set_mode),
    ),
}


def _reasons(reason: str, *codes: RequestCode) -> dict[RequestCode, str]:
    return dict.fromkeys(codes, reason)


C: Final = RequestCode

NOT_SUPPORTED: Final[dict[RequestCode, str]] = {
    **_reasons(
        "name servers answer it",
        C.PUT_KV_CONFIG,
        C.GET_KV_CONFIG,
        C.DELETE_KV_CONFIG,
        C.REGISTER_BROKER,
        C.UNREGISTER_BROKER,
        C.GET_ROUTEINFO_BY_TOPIC,
        C.GET_BROKER_CLUSTER_INFO,
        C.WIPE_WRITE_PERM_OF_BROKER,
        C.ADD_WRITE_PERM_OF_BROKER,
        C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        C.DELETE_TOPIC_IN_NAMESRV,
        C.REGISTER_TOPIC_IN_NAMESRV,
        C.GET_KVLIST_BY_NAMESPACE,
        C.GET_TOPICS_BY_CLUSTER,
        C.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        C.GET_UNIT_TOPIC_LIST,
        C.GET_HAS_UNIT_SUB_TOPIC_LIST,
        C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        C.UPDATE_NAMESRV_CONFIG,
        C.GET_NAMESRV_CONFIG,
        C.QUERY_DATA_VERSION,
        C.GET_BROKER_MEMBER_GROUP,
        C.BROKER_HEARTBEAT,
    ),
    **_reasons(
        "clients answer it",
        C.CHECK_TRANSACTION_STATE,
        C.NOTIFY_CONSUMER_IDS_CHANGED,
        C.RESET_CONSUMER_CLIENT_OFFSET,
        C.GET_CONSUMER_STATUS_FROM_CLIENT,
        C.PUSH_REPLY_MESSAGE_TO_CLIENT,
        C.NOTIFY_UNSUBSCRIBE_LITE,
    ),
    **_reasons(
        "no broker of Apache's answers it either",
        C.QUERY_BROKER_OFFSET,
        C.GET_TOPIC_CONFIG_LIST,
        C.GET_TOPIC_NAME_LIST,
        C.TRIGGER_DELETE_FILES,
        C.GET_CLIENT_CONFIG,
        C.SUSPEND_CONSUMER,
        C.RESUME_CONSUMER,
        C.RESET_CONSUMER_OFFSET_IN_CONSUMER,
        C.RESET_CONSUMER_OFFSET_IN_BROKER,
        C.ADJUST_CONSUMER_THREAD_POOL,
        C.WHO_CONSUME_THE_MESSAGE,
        C.REGISTER_FILTER_SERVER,
        C.REGISTER_MESSAGE_FILTER_CLASS,
    ),
    **_reasons(
        "one broker without slaves or controller has nothing to say to it",
        C.ADD_BROKER,
        C.REMOVE_BROKER,
        C.NOTIFY_MIN_BROKER_ID_CHANGE,
        C.EXCHANGE_BROKER_HA_INFO,
        C.GET_BROKER_HA_STATUS,
        C.RESET_MASTER_FLUSH_OFFSET,
        C.CONTROLLER_ALTER_SYNC_STATE_SET,
        C.CONTROLLER_ELECT_MASTER,
        C.CONTROLLER_REGISTER_BROKER,
        C.CONTROLLER_GET_REPLICA_INFO,
        C.CONTROLLER_GET_METADATA_INFO,
        C.CONTROLLER_GET_SYNC_STATE_DATA,
        C.GET_BROKER_EPOCH_CACHE,
        C.NOTIFY_BROKER_ROLE_CHANGED,
        C.UPDATE_CONTROLLER_CONFIG,
        C.GET_CONTROLLER_CONFIG,
        C.CLEAN_BROKER_DATA,
        C.CONTROLLER_GET_NEXT_BROKER_ID,
        C.CONTROLLER_APPLY_BROKER_ID,
        C.BROKER_CLOSE_CHANNEL_REQUEST,
        C.CHECK_NOT_ACTIVE_BROKER_REQUEST,
        C.GET_BROKER_LIVE_INFO_REQUEST,
        C.GET_SYNC_STATE_DATA_REQUEST,
        C.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST,
        C.UPDATE_AND_CREATE_STATIC_TOPIC,
        C.GET_ALL_CONSUMER_OFFSET,
        C.GET_ALL_DELAY_OFFSET,
        C.GET_ALL_MESSAGE_REQUEST_MODE,
        C.GET_TIMER_CHECK_POINT,
    ),
    **_reasons(
        "the part of Apache's store that it is about does not exist here",
        C.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
        C.EXPORT_ROCKSDB_CONFIG_TO_JSON,
        C.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        C.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        C.GET_COLD_DATA_FLOW_CTR_INFO,
        C.SET_COMMITLOG_READ_MODE,
        C.SWITCH_TIMER_ENGINE,
        C.GET_TIMER_METRICS,
    ),
    **_reasons(
        "lite topics are not supported",
        C.POP_LITE_MESSAGE,
        C.LITE_SUBSCRIPTION_CTL,
        C.ACK_LITE_MESSAGE,
        C.GET_BROKER_LITE_INFO,
        C.GET_PARENT_TOPIC_INFO,
        C.GET_LITE_TOPIC_INFO,
        C.GET_LITE_CLIENT_INFO,
        C.GET_LITE_GROUP_INFO,
        C.TRIGGER_LITE_DISPATCH,
    ),
    **_reasons(
        "pop consumption is not supported",
        C.POP_MESSAGE,
        C.ACK_MESSAGE,
        C.BATCH_ACK_MESSAGE,
        C.PEEK_MESSAGE,
        C.CHANGE_MESSAGE_INVISIBLETIME,
        C.NOTIFICATION,
        C.POLLING_INFO,
        C.POP_ROLLBACK,
    ),
    **_reasons(
        "an operator's command that this broker does not have",
        C.QUERY_CORRECTION_OFFSET,
        C.RESUME_CHECK_HALF_MESSAGE,
    ),
}
"""Every other code of the protocol, and why it gets REQUEST_CODE_NOT_SUPPORTED."""
