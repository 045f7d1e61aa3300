"""Requests of administration tools to a broker.

Source: the header classes of remoting/protocol/header, 5.5.
"""

from ogive.wire.codes import RequestCode
from ogive.wire.headers.codec import Header, Int32


class CreateTopicListRequest(Header):
    """UPDATE_AND_CREATE_TOPIC_LIST (18); the topics' settings are the body."""

    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST


class CreateGroupListRequest(Header):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225); the groups' settings are the body."""

    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST


class InvokeGetConsumerStatusRequest(Header):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): *client_addr*, if given, is the id of the only
    client that is asked.
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
    """QUERY_ASSIGNMENT (400); who asks for what is the body."""

    code = RequestCode.QUERY_ASSIGNMENT


class SetMessageRequestModeRequest(Header):
    """SET_MESSAGE_REQUEST_MODE (401); topic, group and mode are the body."""

    code = RequestCode.SET_MESSAGE_REQUEST_MODE
