"""POP consumption: headers of 200050 to 200055 and 200151.

Source: the header classes of remoting/protocol/header, 5.5.
"""

from ogive.wire.codes import RequestCode
from ogive.wire.headers.codec import Header, Int32, wire


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
