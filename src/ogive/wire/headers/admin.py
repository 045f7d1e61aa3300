"""Headers of administrative requests: topics, groups, users, brokers.

Source: the header classes of remoting/protocol/header, 5.5.
"""

from ogive.model import AUTO_CREATE_TOPIC
from ogive.wire.codes import RequestCode
from ogive.wire.headers.codec import Header, Int32


class CreateTopicRequest(Header):
    """UPDATE_AND_CREATE_TOPIC (17). *attributes* is ``+key=value,-key``."""

    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    topic: str
    default_topic: str = AUTO_CREATE_TOPIC
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class DeleteTopicRequest(Header):
    """DELETE_TOPIC_IN_BROKER (215)."""

    code = RequestCode.DELETE_TOPIC_IN_BROKER
    topic: str


class GetAllTopicConfigRequest(Header):
    """GET_ALL_TOPIC_CONFIG (21); since 5.4 by pages, of one *data_version*."""

    code = RequestCode.GET_ALL_TOPIC_CONFIG
    topic_seq: Int32 | None = None
    max_topic_num: Int32 | None = None
    data_version: str | None = None


class AllTopicConfigResponse(Header):
    """The number of topics in all pages."""

    total_topic_num: int


class GetTopicConfigRequest(Header):
    """GET_TOPIC_CONFIG (351)."""

    code = RequestCode.GET_TOPIC_CONFIG
    topic: str


class CreateGroupRequest(Header):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200); the group's settings are the body."""

    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


class DeleteGroupRequest(Header):
    """DELETE_SUBSCRIPTIONGROUP (207). 4.9 calls *clean_offset* removeOffset."""

    code = RequestCode.DELETE_SUBSCRIPTIONGROUP
    group_name: str
    clean_offset: bool = False
    remove_offset: bool = False


class UpdateGroupForbiddenRequest(Header):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353). Without *readable* it only reads the setting."""

    code = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
    group: str
    topic: str
    readable: bool | None = None


class GetAllGroupsRequest(Header):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201); since 5.4 by pages, of one *data_version*."""

    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    group_seq: Int32 | None = None
    max_group_num: Int32 | None = None
    data_version: str | None = None


class AllGroupsResponse(Header):
    """The number of groups in all pages."""

    total_group_num: int


class GetGroupConfigRequest(Header):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    group: str


class GetTopicStatsRequest(Header):
    """GET_TOPIC_STATS_INFO (202)."""

    code = RequestCode.GET_TOPIC_STATS_INFO
    topic: str


class QueryTopicConsumeByWhoRequest(Header):
    """QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    topic: str


class GetBrokerRuntimeInfoRequest(Header):
    """GET_BROKER_RUNTIME_INFO (28)."""

    code = RequestCode.GET_BROKER_RUNTIME_INFO


class GetBrokerConfigRequest(Header):
    """GET_BROKER_CONFIG (26)."""

    code = RequestCode.GET_BROKER_CONFIG


class UpdateBrokerConfigRequest(Header):
    """UPDATE_BROKER_CONFIG (25); the settings are the body, as properties text."""

    code = RequestCode.UPDATE_BROKER_CONFIG


class BrokerConfigResponse(Header):
    """*version* is the data version as JSON; the settings are the body, as properties text."""

    version: str


class CreateUserRequest(Header):
    """AUTH_CREATE_USER (3001); the user is the body."""

    code = RequestCode.AUTH_CREATE_USER
    username: str


class UpdateUserRequest(Header):
    """AUTH_UPDATE_USER (3002); the changes are the body."""

    code = RequestCode.AUTH_UPDATE_USER
    username: str


class DeleteUserRequest(Header):
    """AUTH_DELETE_USER (3003)."""

    code = RequestCode.AUTH_DELETE_USER
    username: str


class GetUserRequest(Header):
    """AUTH_GET_USER (3004).

    With *signed_text* and *text_signature*, which only ogive's brokers know, it asks for the user
    only if the signature, in hex, is the user's: a proxy checks its clients so.
    """

    code = RequestCode.AUTH_GET_USER
    username: str
    signed_text: str | None = None
    text_signature: str | None = None


class ListUsersRequest(Header):
    """AUTH_LIST_USER (3005); *filter* is a part of the name."""

    code = RequestCode.AUTH_LIST_USER
    filter: str | None = None


class CreateAclRequest(Header):
    """AUTH_CREATE_ACL (3006); the policies are the body."""

    code = RequestCode.AUTH_CREATE_ACL
    subject: str


class UpdateAclRequest(Header):
    """AUTH_UPDATE_ACL (3007); the policies are the body."""

    code = RequestCode.AUTH_UPDATE_ACL
    subject: str


class DeleteAclRequest(Header):
    """AUTH_DELETE_ACL (3008): all of a subject's, or those of one type, or on one resource."""

    code = RequestCode.AUTH_DELETE_ACL
    subject: str
    policy_type: str | None = None
    resource: str | None = None


class GetAclRequest(Header):
    """AUTH_GET_ACL (3009)."""

    code = RequestCode.AUTH_GET_ACL
    subject: str


class ListAclsRequest(Header):
    """AUTH_LIST_ACL (3010); filters are parts of the names."""

    code = RequestCode.AUTH_LIST_ACL
    subject_filter: str | None = None
    resource_filter: str | None = None


class CreateTopicListRequest(Header):
    """UPDATE_AND_CREATE_TOPIC_LIST (18); the topics' settings are the body."""

    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST


class CreateGroupListRequest(Header):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225); the groups' settings are the body."""

    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST


class InvokeGetConsumerStatusRequest(Header):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): *client_addr*, if given, is the id of the only
    client to ask.
    """

    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    topic: str
    group: str
    client_addr: str | None = None


class QueryConsumeTimeSpanRequest(Header):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    code = RequestCode.QUERY_CONSUME_TIME_SPAN
    topic: str
    group: str


class CleanExpiredQueuesRequest(Header):
    """CLEAN_EXPIRED_CONSUMEQUEUE (306)."""

    code = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE


class DeleteExpiredLogRequest(Header):
    """DELETE_EXPIRED_COMMITLOG (329)."""

    code = RequestCode.DELETE_EXPIRED_COMMITLOG


class ViewBrokerStatsRequest(Header):
    """VIEW_BROKER_STATS_DATA (315)."""

    code = RequestCode.VIEW_BROKER_STATS_DATA
    stats_name: str
    stats_key: str


class CleanUnusedTopicRequest(Header):
    """CLEAN_UNUSED_TOPIC (316)."""

    code = RequestCode.CLEAN_UNUSED_TOPIC


class GetBrokerConsumeStatsRequest(Header):
    """GET_BROKER_CONSUME_STATS (317)."""

    code = RequestCode.GET_BROKER_CONSUME_STATS
    is_order: bool = False


class QueryConsumeQueueRequest(Header):
    """QUERY_CONSUME_QUEUE (321): *count* entries from *index* on."""

    code = RequestCode.QUERY_CONSUME_QUEUE
    topic: str
    queue_id: Int32
    index: int
    count: Int32
    consumer_group: str | None = None


class GetAllProducerInfoRequest(Header):
    """GET_ALL_PRODUCER_INFO (328)."""

    code = RequestCode.GET_ALL_PRODUCER_INFO


class QueryTopicsByConsumerRequest(Header):
    """QUERY_TOPICS_BY_CONSUMER (343)."""

    code = RequestCode.QUERY_TOPICS_BY_CONSUMER
    group: str


class QuerySubscriptionByConsumerRequest(Header):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    code = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
    group: str
    topic: str


class QueryAssignmentRequest(Header):
    """QUERY_ASSIGNMENT (400); client, group and topic are in the body."""

    code = RequestCode.QUERY_ASSIGNMENT


class GetAllMessageRequestModeRequest(Header):
    """GET_ALL_MESSAGE_REQUEST_MODE (402)."""

    code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE


class SetMessageRequestModeRequest(Header):
    """SET_MESSAGE_REQUEST_MODE (401); topic, group and mode are the body."""

    code = RequestCode.SET_MESSAGE_REQUEST_MODE
