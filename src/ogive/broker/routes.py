"""Table from request code to handler, and the changes that the log reports.

Changes, see access/audit.py, are the administrative requests.

Not included are 306, which changes nothing here, and the regular requests of consumers: commits
(15), locks, and messages that are sent back.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from ogive.access.audit import About, Change, Secret, State, named
from ogive.access.user_table import user_of
from ogive.broker.config import CHANGEABLE, setting_text
from ogive.broker.handlers import admin, clients, groups, topics, users
from ogive.broker.large_replies import InPieces
from ogive.broker.pop import acknowledge, pop
from ogive.broker.pulls import lookup, pull
from ogive.broker.sends import commit, reply_messages, send_back
from ogive.broker.services import Context
from ogive.broker.transactions import checks
from ogive.transport.connection import Connection
from ogive.wire.bodies.acls import USER_SUBJECT
from ogive.wire.bodies.clients import RequestMode
from ogive.wire.bodies.configs import (
    SubscriptionGroupConfig,
    TopicConfig,
    group_configs_loads,
    topic_configs_loads,
)
from ogive.wire.bodies.json_fields import dumps, loads_object
from ogive.wire.codes import RequestCode
from ogive.wire.command import MAX_FRAME_BYTES, RemotingCommand
from ogive.wire.headers.admin import (
    CleanExpiredQueuesRequest,
    CleanUnusedTopicRequest,
    CreateAclRequest,
    CreateGroupListRequest,
    CreateGroupRequest,
    CreateTopicListRequest,
    CreateTopicRequest,
    CreateUserRequest,
    DeleteAclRequest,
    DeleteExpiredLogRequest,
    DeleteGroupRequest,
    DeleteTopicRequest,
    DeleteUserRequest,
    GetAclRequest,
    GetAllGroupsRequest,
    GetAllMessageRequestModeRequest,
    GetAllProducerInfoRequest,
    GetAllTopicConfigRequest,
    GetBrokerConfigRequest,
    GetBrokerConsumeStatsRequest,
    GetBrokerRuntimeInfoRequest,
    GetGroupConfigRequest,
    GetTopicConfigRequest,
    GetTopicStatsRequest,
    GetUserRequest,
    InvokeGetConsumerStatusRequest,
    ListAclsRequest,
    ListUsersRequest,
    QueryAssignmentRequest,
    QueryConsumeQueueRequest,
    QueryConsumeTimeSpanRequest,
    QuerySubscriptionByConsumerRequest,
    QueryTopicConsumeByWhoRequest,
    QueryTopicsByConsumerRequest,
    SetMessageRequestModeRequest,
    UpdateAclRequest,
    UpdateBrokerConfigRequest,
    UpdateGroupForbiddenRequest,
    UpdateUserRequest,
    ViewBrokerStatsRequest,
)
from ogive.wire.headers.clients import (
    CheckClientConfigRequest,
    ConsumeMessageDirectlyRequest,
    GetConsumerConnectionListRequest,
    GetConsumerListRequest,
    GetConsumerRunningInfoRequest,
    GetConsumeStatsRequest,
    GetProducerConnectionListRequest,
    LockBatchRequest,
    UnlockBatchRequest,
    UnregisterClientRequest,
)
from ogive.wire.headers.codec import Header
from ogive.wire.headers.name_server import GetBrokerSystemTopicListRequest
from ogive.wire.headers.pull import (
    CloneGroupOffsetRequest,
    GetEarliestStoreTimeRequest,
    GetMaxOffsetRequest,
    GetMinOffsetRequest,
    PeekMessageRequest,
    PollingInfoRequest,
    QueryConsumerOffsetRequest,
    QueryMessageRequest,
    ResetOffsetRequest,
    SearchOffsetRequest,
    UpdateConsumerOffsetRequest,
    ViewMessageRequest,
)
from ogive.wire.headers.send import (
    RecallMessageRequest,
    SendReplyMessageRequest,
    SendReplyMessageRequestV2,
)


def _topics_of(command: RemotingCommand) -> About:
    return {"topic": tuple(config.name for config in topic_configs_loads(command.body))}


def _group_of(command: RemotingCommand) -> About:
    return {"group": (SubscriptionGroupConfig.from_json(loads_object(command.body)).name,)}


def _groups_of(command: RemotingCommand) -> About:
    return {"group": tuple(config.name for config in group_configs_loads(command.body))}


def _mode_of(command: RemotingCommand) -> About:
    mode = RequestMode.decode(command.body)
    return {"group": (mode.group,), "topic": (mode.topic,)}


def _nothing(command: RemotingCommand) -> About:
    return {}


@dataclass(frozen=True, slots=True)
class _Settings:
    """Settings of one of many topics or groups. They become text only when they are reported."""

    config: TopicConfig | SubscriptionGroupConfig

    def __str__(self) -> str:
        return dumps(self.config.to_json()).decode()


# --- before and after -----------------------------------------------------------------------------


def _topics(ctx: Context, about: About) -> State:
    return _settings(about.get("topic", ()), ctx.topics.get)


def _groups(ctx: Context, about: About) -> State:
    return _settings(about.get("group", ()), ctx.groups.get)


def _readable(ctx: Context, about: About) -> State:
    (group,), (topic,) = about.get("group", ("",)), about.get("topic", ("",))
    return {"readable": ctx.groups.may_read(group, topic)}


def _mode(ctx: Context, about: About) -> State:
    (group,), (topic,) = about.get("group", ("",)), about.get("topic", ("",))
    mode = ctx.modes.get(topic, group)
    return {} if mode is None else {"mode": mode.mode, "shared queues": mode.share_queues}


def _settings(names: Iterable[str], get: Callable[[str], Any]) -> State:
    """Return the settings of a single object separately, those of several as one text each."""
    configs = {name: _Settings(config) for name in names if (config := get(name)) is not None}
    if len(configs) == 1:
        (only,) = configs.values()
        return only.config.to_json()
    return configs


def _offsets(ctx: Context, about: About) -> State:
    """Return the offsets of the group that is reset: in the named topic, or in all."""
    (group,) = about.get("to group") or about.get("group") or ("",)
    topics = about.get("topic") or ctx.offsets.topics_of(group)
    return {
        f"{topic}/{queue_id}": offset
        for topic in topics
        for queue_id, offset in sorted(ctx.offsets.queues_of(group, topic).items())
    }


def _user(ctx: Context, about: About) -> State:
    user = None if ctx.guard is None else ctx.guard.table.users.get(*about.get("user", ("",)))
    return (
        {}
        if user is None
        else {"type": user.user_type, "status": user.status, "password": Secret(user.password)}
    )


def _rules(ctx: Context, about: About) -> State:
    (subject,) = about.get("subject", ("",))
    acl = None if ctx.guard is None else ctx.guard.table.acls.get(USER_SUBJECT + user_of(subject))
    return {
        f"{policy.policy_type}/{entry.resource}": " ".join(
            [entry.decision, ",".join(entry.actions), *map(str, entry.source_ips)]
        )
        for policy in (acl.policies if acl is not None else ())
        for entry in policy.entries
    }


def _configuration(ctx: Context, about: About) -> State:
    return {name: setting_text(ctx.config, name) for name in CHANGEABLE}


C: Final = RequestCode

CHANGES: Final[dict[int, Change[Context]]] = {
    C.UPDATE_AND_CREATE_TOPIC: Change("create or change", named(topic="topic"), _topics),
    C.UPDATE_AND_CREATE_TOPIC_LIST: Change("create or change", _topics_of, _topics),
    C.DELETE_TOPIC_IN_BROKER: Change("delete", named(topic="topic"), _topics),
    C.CLEAN_UNUSED_TOPIC: Change("remove what is left of deleted topics", _nothing),
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Change("create or change", _group_of, _groups),
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Change("create or change", _groups_of, _groups),
    C.DELETE_SUBSCRIPTIONGROUP: Change("delete", named(group="groupName"), _groups),
    C.UPDATE_AND_GET_GROUP_FORBIDDEN: Change(
        "set the right to read of", named(group="group", topic="topic"), _readable
    ),
    C.INVOKE_BROKER_TO_RESET_OFFSET: Change(
        "reset the offsets of", named(group="group", topic="topic"), _offsets
    ),
    C.SET_MESSAGE_REQUEST_MODE: Change("set the way of consuming of", _mode_of, _mode),
    C.CLONE_GROUP_OFFSET: Change(
        "copy the offsets of",
        named(**{"group": "srcGroup", "to group": "destGroup", "topic": "topic"}),
        _offsets,
    ),
    C.UPDATE_BROKER_CONFIG: Change("change the broker's settings", _nothing, _configuration),
    C.DELETE_EXPIRED_COMMITLOG: Change("remove old messages at any hour", _nothing),
    C.AUTH_CREATE_USER: Change("create", named(user="username"), _user),
    C.AUTH_UPDATE_USER: Change("change", named(user="username"), _user),
    C.AUTH_DELETE_USER: Change("delete", named(user="username"), _user),
    C.AUTH_CREATE_ACL: Change("allow or deny", named(subject="subject"), _rules),
    C.AUTH_UPDATE_ACL: Change("allow or deny", named(subject="subject"), _rules),
    C.AUTH_DELETE_ACL: Change("remove rules of", named(subject="subject"), _rules),
}


H = TypeVar("H", bound=Header)


SHORT_BODY: Final = 64 * 1024
# lists of thousands: topics, groups, queues, rules; it is read in some ten milliseconds
LONG_BODY: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Route(Generic[H]):
    """Route to a handler that gets the decoded header and the body, and returns the answer, at once
    or later.

    *listing*: the answer grows with the number of objects, so it is built one at a time, and in
    slices if it may be long. *max_body_bytes*: most requests have no body, or a short one.
    """

    header: type[H]
    handle: Callable[
        [Context, Connection, H, bytes],
        RemotingCommand | Awaitable[RemotingCommand] | InPieces[Any],
    ]
    listing: bool = False
    max_body_bytes: int = SHORT_BODY


@dataclass(frozen=True, slots=True)
class Direct:
    """Route to a handler that gets the whole command and answers through the connection: for the
    most frequent requests, and those that need the client's version.
    """

    handle: Callable[[Context, Connection, RemotingCommand], None]


def _table(*routes: Route[Any]) -> dict[int, Route[Any]]:
    return {int(route.header.code): route for route in routes}


ROUTES: Final[dict[int, Route[Any] | Direct]] = {
    RequestCode.SEND_MESSAGE: Direct(commit.handle),
    RequestCode.SEND_MESSAGE_V2: Direct(commit.handle),
    RequestCode.SEND_BATCH_MESSAGE: Direct(commit.handle),
    RequestCode.PULL_MESSAGE: Direct(pull.handle),
    RequestCode.LITE_PULL_MESSAGE: Direct(pull.handle),
    RequestCode.POP_MESSAGE: Direct(pop.handle),
    RequestCode.ACK_MESSAGE: Direct(acknowledge.acknowledge),
    RequestCode.BATCH_ACK_MESSAGE: Direct(acknowledge.acknowledge_batch),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: Direct(acknowledge.change),
    RequestCode.NOTIFICATION: Direct(pop.notify),
    RequestCode.HEART_BEAT: Direct(clients.heartbeat),
    RequestCode.CONSUMER_SEND_MSG_BACK: Direct(send_back.handle),
    RequestCode.END_TRANSACTION: Direct(checks.end),
    **_table(
        Route(RecallMessageRequest, send_back.recall),
        Route(SendReplyMessageRequest, reply_messages.handle, max_body_bytes=MAX_FRAME_BYTES),
        Route(SendReplyMessageRequestV2, reply_messages.handle, max_body_bytes=MAX_FRAME_BYTES),
        Route(QueryConsumerOffsetRequest, groups.query_consumer_offset),
        Route(UpdateConsumerOffsetRequest, groups.update_consumer_offset),
        Route(SearchOffsetRequest, groups.search_offset),
        Route(GetMaxOffsetRequest, groups.max_offset),
        Route(GetMinOffsetRequest, groups.min_offset),
        Route(GetEarliestStoreTimeRequest, groups.earliest_store_time),
        Route(ResetOffsetRequest, groups.reset, listing=True),
        Route(CloneGroupOffsetRequest, groups.clone, listing=True),
        Route(ViewMessageRequest, groups.view_message),
        Route(QueryMessageRequest, lookup.query),
        Route(UnregisterClientRequest, clients.unregister),
        Route(GetConsumerListRequest, clients.consumer_list),
        Route(CheckClientConfigRequest, clients.check_config, max_body_bytes=LONG_BODY),
        Route(LockBatchRequest, clients.lock, max_body_bytes=LONG_BODY),
        Route(UnlockBatchRequest, clients.unlock, max_body_bytes=LONG_BODY),
        Route(CreateTopicRequest, topics.create),
        Route(DeleteTopicRequest, topics.delete),
        Route(GetAllTopicConfigRequest, topics.show_all, listing=True),
        Route(GetTopicConfigRequest, topics.show),
        Route(GetBrokerSystemTopicListRequest, topics.show_system_topics, listing=True),
        Route(GetTopicStatsRequest, topics.statistics, listing=True),
        Route(QueryTopicConsumeByWhoRequest, topics.who_consumes, listing=True),
        Route(CreateGroupRequest, groups.create),
        Route(DeleteGroupRequest, groups.delete),
        Route(GetAllGroupsRequest, groups.show_all, listing=True),
        Route(GetGroupConfigRequest, groups.show),
        Route(UpdateGroupForbiddenRequest, groups.forbid_or_allow),
        Route(UpdateBrokerConfigRequest, admin.update_config),
        Route(GetBrokerConfigRequest, admin.show_config),
        Route(GetBrokerRuntimeInfoRequest, admin.show_runtime_info, listing=True),
        Route(GetConsumerConnectionListRequest, admin.show_consumers, listing=True),
        Route(GetProducerConnectionListRequest, admin.show_producers, listing=True),
        Route(GetConsumeStatsRequest, admin.consume_stats, listing=True),
        Route(CreateUserRequest, users.create_user),
        Route(UpdateUserRequest, users.update_user),
        Route(DeleteUserRequest, users.delete_user),
        Route(GetUserRequest, users.show_user),
        Route(ListUsersRequest, users.list_users, listing=True),
        Route(CreateAclRequest, users.create_acl, max_body_bytes=LONG_BODY),
        Route(UpdateAclRequest, users.update_acl, max_body_bytes=LONG_BODY),
        Route(DeleteAclRequest, users.delete_acl),
        Route(GetAclRequest, users.show_acl),
        Route(ListAclsRequest, users.list_acls, listing=True),
        Route(CreateTopicListRequest, topics.create_all, max_body_bytes=LONG_BODY),
        Route(QueryTopicsByConsumerRequest, topics.topics_of_group, listing=True),
        Route(QuerySubscriptionByConsumerRequest, topics.subscription_of_group),
        Route(CleanUnusedTopicRequest, topics.clean_unused, listing=True),
        Route(DeleteExpiredLogRequest, admin.delete_expired_log),
        Route(CleanExpiredQueuesRequest, admin.clean_expired_queues),
        Route(CreateGroupListRequest, groups.create_all, max_body_bytes=LONG_BODY),
        Route(GetConsumerRunningInfoRequest, clients.running_info),
        Route(ConsumeMessageDirectlyRequest, clients.consume_directly),
        Route(InvokeGetConsumerStatusRequest, clients.consumer_status),
        Route(GetAllProducerInfoRequest, clients.show_all_producers, listing=True),
        Route(ViewBrokerStatsRequest, admin.view),
        Route(GetBrokerConsumeStatsRequest, admin.consume_stats_of_all, listing=True),
        Route(QueryConsumeTimeSpanRequest, admin.consume_time_spans, listing=True),
        Route(QueryConsumeQueueRequest, lookup.show, listing=True),
        Route(QueryAssignmentRequest, clients.query),
        Route(PeekMessageRequest, pop.peek),
        Route(PollingInfoRequest, pop.polling_info),
        Route(SetMessageRequestModeRequest, clients.set_mode),
        Route(GetAllMessageRequestModeRequest, clients.show_modes, listing=True),
    ),
}


def _reasons(reason: str, *codes: RequestCode) -> dict[RequestCode, str]:
    return dict.fromkeys(codes, reason)


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
        "leases are never in RocksDB here, so there is nothing to bring back",
        C.POP_ROLLBACK,
    ),
    **_reasons(
        "an operator's command that this broker does not have",
        C.QUERY_CORRECTION_OFFSET,
        C.RESUME_CHECK_HALF_MESSAGE,
    ),
}
"""Every other code of the protocol, and the reason for REQUEST_CODE_NOT_SUPPORTED."""
