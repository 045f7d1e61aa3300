"""Topics, groups and settings at the broker.

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
    """How many topics there are in all pages."""

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
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353). Without *readable* it only asks."""

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
    """How many groups there are in all pages."""

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
