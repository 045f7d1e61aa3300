"""Routes, registration, and settings of the name server.

Source: the header classes of remoting/protocol/header, 5.5.
"""

from ogive.wire.codes import RequestCode
from ogive.wire.headers.codec import Header, wire


class GetRouteInfoRequest(Header):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    topic: str
    accept_standard_json_only: bool | None = None


class GetBrokerClusterInfoRequest(Header):
    """GET_BROKER_CLUSTER_INFO (106)."""

    code = RequestCode.GET_BROKER_CLUSTER_INFO


class RegisterBrokerRequest(Header):
    """REGISTER_BROKER (103).

    *body_crc32* is the CRC-32 of the body without its sign bit; 0 turns the check off.
    """

    code = RequestCode.REGISTER_BROKER
    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str = ""
    broker_id: int
    compressed: bool = False
    body_crc32: int = wire("bodyCrc32", default=0)
    heartbeat_timeout_ms: int | None = wire("heartbeatTimeoutMillis", default=None)
    enable_acting_master: bool | None = None


class RegisterBrokerResponse(Header):
    """Answer of 103. Only slaves get the address of their master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBrokerRequest(Header):
    """UNREGISTER_BROKER (104)."""

    code = RequestCode.UNREGISTER_BROKER
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


class QueryDataVersionRequest(Header):
    """QUERY_DATA_VERSION (322); the version is the body. Counts as a sign of life."""

    code = RequestCode.QUERY_DATA_VERSION
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


class QueryDataVersionResponse(Header):
    """Answer of 322. *changed*: the broker should register its topics again."""

    changed: bool


class BrokerHeartbeatRequest(Header):
    """BROKER_HEARTBEAT (904)."""

    code = RequestCode.BROKER_HEARTBEAT
    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: int | None = None
    heartbeat_timeout_ms: int | None = wire("heartbeatTimeoutMills", default=None)


class GetBrokerMemberGroupRequest(Header):
    """GET_BROKER_MEMBER_GROUP (901)."""

    code = RequestCode.GET_BROKER_MEMBER_GROUP
    cluster_name: str
    broker_name: str


class GetAllTopicListRequest(Header):
    """GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206)."""

    code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


class GetTopicsByClusterRequest(Header):
    """GET_TOPICS_BY_CLUSTER (224)."""

    code = RequestCode.GET_TOPICS_BY_CLUSTER
    cluster: str


class DeleteTopicInNameServerRequest(Header):
    """DELETE_TOPIC_IN_NAMESRV (216)."""

    code = RequestCode.DELETE_TOPIC_IN_NAMESRV
    topic: str
    cluster_name: str | None = None


class PutKvConfigRequest(Header):
    """PUT_KV_CONFIG (100)."""

    code = RequestCode.PUT_KV_CONFIG
    namespace: str
    key: str
    value: str


class GetKvConfigRequest(Header):
    """GET_KV_CONFIG (101)."""

    code = RequestCode.GET_KV_CONFIG
    namespace: str
    key: str


class KvConfigResponse(Header):
    """Answer of 101."""

    value: str | None = None


class DeleteKvConfigRequest(Header):
    """DELETE_KV_CONFIG (102)."""

    code = RequestCode.DELETE_KV_CONFIG
    namespace: str
    key: str


class GetKvListRequest(Header):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    code = RequestCode.GET_KVLIST_BY_NAMESPACE
    namespace: str


class GetSystemTopicListRequest(Header):
    """GET_SYSTEM_TOPIC_LIST_FROM_NS (304)."""

    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS


class GetBrokerSystemTopicListRequest(Header):
    """GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305)."""

    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER


class GetUnitTopicListRequest(Header):
    """GET_UNIT_TOPIC_LIST (311)."""

    code = RequestCode.GET_UNIT_TOPIC_LIST


class GetUnitSubTopicListRequest(Header):
    """GET_HAS_UNIT_SUB_TOPIC_LIST (312)."""

    code = RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST


class GetUnitSubUnunitTopicListRequest(Header):
    """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST (313)."""

    code = RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST


class RegisterTopicRequest(Header):
    """REGISTER_TOPIC_IN_NAMESRV (217); the topic's route is the body."""

    code = RequestCode.REGISTER_TOPIC_IN_NAMESRV
    topic: str


class WipeWritePermRequest(Header):
    """WIPE_WRITE_PERM_OF_BROKER (205)."""

    code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
    broker_name: str


class WipeWritePermResponse(Header):
    """Answer of 205: the number of topics that are not writable now."""

    wipe_topic_count: int


class AddWritePermRequest(Header):
    """ADD_WRITE_PERM_OF_BROKER (327)."""

    code = RequestCode.ADD_WRITE_PERM_OF_BROKER
    broker_name: str


class AddWritePermResponse(Header):
    """Answer of 327: the number of topics that are writable again."""

    add_topic_count: int


class UpdateNameServerConfigRequest(Header):
    """UPDATE_NAMESRV_CONFIG (318); the settings are the body, as properties text."""

    code = RequestCode.UPDATE_NAMESRV_CONFIG


class GetNameServerConfigRequest(Header):
    """GET_NAMESRV_CONFIG (319)."""

    code = RequestCode.GET_NAMESRV_CONFIG
