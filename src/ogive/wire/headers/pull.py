"""Pulls, offsets, and look-ups of messages.

Source: the header classes of remoting/protocol/header, 5.5.
"""

from ogive.wire.codes import RequestCode
from ogive.wire.headers.codec import Header, Int32, wire


class PullMessageRequest(Header):
    """PULL_MESSAGE (11). Source: PullMessageRequestHeader.java."""

    code = RequestCode.PULL_MESSAGE
    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: int
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: int = 0
    suspend_timeout_ms: int = wire("suspendTimeoutMillis", default=0)
    subscription: str | None = None
    sub_version: int = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    broker_name: str | None = wire("bname", default=None)


class PullMessageResponse(Header):
    """Answer of 11. Source: PullMessageResponseHeader.java."""

    suggest_which_broker_id: int = 0
    next_begin_offset: int
    min_offset: int
    max_offset: int


class QueryConsumerOffsetRequest(Header):
    """QUERY_CONSUMER_OFFSET (14)."""

    code = RequestCode.QUERY_CONSUMER_OFFSET
    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetRequest(Header):
    """UPDATE_CONSUMER_OFFSET (15)."""

    code = RequestCode.UPDATE_CONSUMER_OFFSET
    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: int


class SearchOffsetRequest(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP (29). *boundary_type* is LOWER or UPPER."""

    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    topic: str
    queue_id: Int32
    timestamp: int
    boundary_type: str | None = None


class GetMaxOffsetRequest(Header):
    """GET_MAX_OFFSET (30)."""

    code = RequestCode.GET_MAX_OFFSET
    topic: str
    queue_id: Int32


class GetMinOffsetRequest(Header):
    """GET_MIN_OFFSET (31)."""

    code = RequestCode.GET_MIN_OFFSET
    topic: str
    queue_id: Int32


class GetEarliestStoreTimeRequest(Header):
    """GET_EARLIEST_MSG_STORETIME (32)."""

    code = RequestCode.GET_EARLIEST_MSG_STORETIME
    topic: str
    queue_id: Int32


class OffsetResponse(Header):
    """Answer of 14, 29, 30 and 31."""

    offset: int


class TimestampResponse(Header):
    """Answer of 32: ms, -1 for an empty queue."""

    timestamp: int


class ViewMessageRequest(Header):
    """VIEW_MESSAGE_BY_ID (33). *offset* is a commit-log offset."""

    code = RequestCode.VIEW_MESSAGE_BY_ID
    offset: int
    topic: str | None = None


class QueryMessageRequest(Header):
    """QUERY_MESSAGE (12): by a key, or a unique key, in the index; by a tag with *index_type* T
    (5.5). Times in ms.

    Java's clients add ``_UNIQUE_KEY_QUERY=true`` for a unique key, which only sets *max_num* to 32.
    Ours leaves it out: brokers of 4.9 exclude it from the values under the signature, those of 5.x
    include it.
    """

    code = RequestCode.QUERY_MESSAGE
    topic: str
    key: str
    max_num: Int32
    begin_timestamp: int
    end_timestamp: int
    unique_key_query: bool | None = wire("_UNIQUE_KEY_QUERY", default=None)
    index_type: str | None = None


class QueryMessageResponse(Header):
    """Answer of 12: time and commit-log offset of the newest message that is in the index."""

    index_last_update_timestamp: int
    index_last_update_phyoffset: int


class ResetOffsetRequest(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET (222).

    A *timestamp* (ms) below 0 is the end; *queue_id* and *offset* count only in 5.x, -1 is none.
    """

    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    topic: str
    group: str
    timestamp: int
    is_force: bool = True
    queue_id: Int32 = -1
    offset: int | None = None


class CloneGroupOffsetRequest(Header):
    """CLONE_GROUP_OFFSET (314).

    Without a topic, all topics that *src_group* subscribes to or has progress on.
    """

    code = RequestCode.CLONE_GROUP_OFFSET
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


# POP consumption: headers of 200050 to 200055 and 200151.
#
# Source: the header classes of remoting/protocol/header, 5.5.


class PopMessageRequest(Header):
    """POP_MESSAGE (200050). *queue_id* -1 means all queues of the broker."""

    code = RequestCode.POP_MESSAGE
    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time_ms: int = wire("invisibleTime")
    poll_time_ms: int = wire("pollTime")
    born_time_ms: int = wire("bornTime")
    init_mode: Int32
    expression_type: str | None = wire("expType", default=None)
    expression: str | None = wire("exp", default=None)
    order: bool = False
    attempt_id: str | None = None
    broker_name: str | None = wire("bname", default=None)


class PopMessageResponse(Header):
    """Answer of 200050 and 200052. See ogive.wire.pop for the texts."""

    pop_time_ms: int = wire("popTime", default=0)
    invisible_time_ms: int = wire("invisibleTime", default=0)
    revive_queue_id: Int32 = wire("reviveQid", default=0)
    rest_num: int = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequest(Header):
    """ACK_MESSAGE (200051). *topic* is the one the message was read from; *offset* is its own."""

    code = RequestCode.ACK_MESSAGE
    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: int
    broker_name: str | None = wire("bname", default=None)


class BatchAckMessageRequest(Header):
    """BATCH_ACK_MESSAGE (200151). The body says all, see BatchAckBody."""

    code = RequestCode.BATCH_ACK_MESSAGE
    broker_name: str | None = wire("bname", default=None)


class ChangeInvisibleTimeRequest(Header):
    """CHANGE_MESSAGE_INVISIBLETIME (200053).

    *suspend*: the next delivery does not count as another try.
    """

    code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: int
    invisible_time_ms: int = wire("invisibleTime")
    suspend: bool = False
    broker_name: str | None = wire("bname", default=None)


class ChangeInvisibleTimeResponse(Header):
    """Answer of 200053, of which the client makes the new handle."""

    pop_time_ms: int = wire("popTime")
    invisible_time_ms: int = wire("invisibleTime")
    revive_queue_id: Int32 = wire("reviveQid")


class PeekMessageRequest(Header):
    """PEEK_MESSAGE (200052)."""

    code = RequestCode.PEEK_MESSAGE
    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    broker_name: str | None = wire("bname", default=None)


class NotificationRequest(Header):
    """NOTIFICATION (200054)."""

    code = RequestCode.NOTIFICATION
    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time_ms: int = wire("pollTime")
    born_time_ms: int = wire("bornTime")
    order: bool = False
    attempt_id: str | None = None
    expression_type: str | None = wire("expType", default=None)
    expression: str | None = wire("exp", default=None)
    broker_name: str | None = wire("bname", default=None)


class NotificationResponse(Header):
    """Answer of 200054."""

    has_message: bool = wire("hasMsg", default=False)
    polling_full: bool | None = None


class PollingInfoRequest(Header):
    """POLLING_INFO (200055)."""

    code = RequestCode.POLLING_INFO
    consumer_group: str
    topic: str
    queue_id: Int32
    broker_name: str | None = wire("bname", default=None)


class PollingInfoResponse(Header):
    """Answer of 200055: how many requests wait."""

    polling_count: Int32 = wire("pollingNum", default=0)
