"""Heartbeats, members of groups, queue locks, and requests of brokers to clients.

Source: the header classes of remoting/protocol/header, 5.5.
"""

from ogive.wire.codes import RequestCode
from ogive.wire.headers.codec import Header, wire


class HeartbeatRequest(Header):
    """HEART_BEAT (34); the content is the body."""

    code = RequestCode.HEART_BEAT


class HeartbeatResponse(Header):
    """Header field with which 5.x reports that it supports heartbeats without subscriptions."""

    supports_v2: bool | None = wire("IS_SUPPORT_HEART_BEAT_V2", default=None)
    subscription_changed: bool | None = wire("IS_SUB_CHANGE", default=None)


class UnregisterClientRequest(Header):
    """UNREGISTER_CLIENT (35)."""

    code = RequestCode.UNREGISTER_CLIENT
    client_id: str = wire("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListRequest(Header):
    """GET_CONSUMER_LIST_BY_GROUP (38)."""

    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    consumer_group: str


class NotifyConsumerIdsChangedRequest(Header):
    """NOTIFY_CONSUMER_IDS_CHANGED (40), broker to client, one-way."""

    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    consumer_group: str


class LockBatchRequest(Header):
    """LOCK_BATCH_MQ (41); the queues are in the body."""

    code = RequestCode.LOCK_BATCH_MQ


class UnlockBatchRequest(Header):
    """UNLOCK_BATCH_MQ (42); the queues are in the body."""

    code = RequestCode.UNLOCK_BATCH_MQ


class CheckClientConfigRequest(Header):
    """CHECK_CLIENT_CONFIG (46); the subscription is in the body."""

    code = RequestCode.CHECK_CLIENT_CONFIG


class GetConsumerConnectionListRequest(Header):
    """GET_CONSUMER_CONNECTION_LIST (203)."""

    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    consumer_group: str


class GetProducerConnectionListRequest(Header):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    producer_group: str


class GetConsumeStatsRequest(Header):
    """GET_CONSUME_STATS (208)."""

    code = RequestCode.GET_CONSUME_STATS
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetConsumerRunningInfoRequest(Header):
    """GET_CONSUMER_RUNNING_INFO (307)."""

    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


class ConsumeMessageDirectlyRequest(Header):
    """CONSUME_MESSAGE_DIRECTLY (309); the message is the body.

    Source: ConsumeMessageDirectlyResultRequestHeader.java, 5.3.
    """

    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None


class ResetConsumerOffsetRequest(Header):
    """RESET_CONSUMER_CLIENT_OFFSET (220), broker to consumer; the offsets are the body.

    Source: ResetOffsetRequestHeader.java, 5.3.
    """

    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    topic: str
    group: str


class GetConsumerStatusRequest(Header):
    """GET_CONSUMER_STATUS_FROM_CLIENT (221). Source: GetConsumerStatusRequestHeader.java, 5.3."""

    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    topic: str
    group: str
    client_addr: str | None = None
