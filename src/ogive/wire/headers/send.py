"""Sends, replies, messages sent back, and the ends of transactions.

Source: the header classes of remoting/protocol/header, 5.5.
"""

from ogive.model import AUTO_CREATE_TOPIC
from ogive.wire.codes import RequestCode
from ogive.wire.headers.codec import Header, Int32, wire


class SendMessageRequest(Header):
    """SEND_MESSAGE (10). Source: SendMessageRequestHeader.java."""

    code = RequestCode.SEND_MESSAGE
    producer_group: str
    topic: str
    default_topic: str = AUTO_CREATE_TOPIC
    default_topic_queue_nums: Int32 = 4
    queue_id: Int32
    sys_flag: Int32 = 0
    born_timestamp: int
    flag: Int32 = 0
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = wire("bname", default=None)


class SendMessageRequestV2(Header):
    """SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): the same content under one-letter
    names.
    """

    code = RequestCode.SEND_MESSAGE_V2
    producer_group: str = wire("a")
    topic: str = wire("b")
    default_topic: str = wire("c", default=AUTO_CREATE_TOPIC)
    default_topic_queue_nums: Int32 = wire("d", default=4)
    queue_id: Int32 = wire("e")
    sys_flag: Int32 = wire("f", default=0)
    born_timestamp: int = wire("g")
    flag: Int32 = wire("h", default=0)
    properties: str | None = wire("i", default=None)
    reconsume_times: Int32 | None = wire("j", default=None)
    unit_mode: bool | None = wire("k", default=None)
    max_reconsume_times: Int32 | None = wire("l", default=None)
    batch: bool | None = wire("m", default=None)
    broker_name: str | None = wire("n", default=None)


class SendMessageResponse(Header):
    """*msg_id* is the broker's offset id, a comma-separated list for a batch; *queue_offset* is
    that of the first message.
    """

    msg_id: str
    queue_id: Int32
    queue_offset: int
    transaction_id: str | None = None
    region: str | None = wire("MSG_REGION", default=None)
    trace_on: str | None = wire("TRACE_ON", default=None)
    # of a timer message
    recall_handle: str | None = None
    # of a batch that is stored as one record: its own key, and the answer has one id for all
    batch_uniq_id: str | None = None


class SendReplyMessageRequest(SendMessageRequest):
    """SEND_REPLY_MESSAGE (324): a reply to the client in its property REPLY_TO_CLIENT."""

    code = RequestCode.SEND_REPLY_MESSAGE


class SendReplyMessageRequestV2(SendMessageRequestV2):
    """SEND_REPLY_MESSAGE_V2 (325)."""

    code = RequestCode.SEND_REPLY_MESSAGE_V2


class PushReplyMessageRequest(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326), broker to client; hosts are ``ip:port``.

    Source: ReplyMessageRequestHeader.java.
    """

    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    producer_group: str
    topic: str
    default_topic: str = AUTO_CREATE_TOPIC
    default_topic_queue_nums: Int32 = 4
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: int
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    born_host: str
    store_host: str
    store_timestamp: int


class ConsumerSendMsgBackRequest(Header):
    """CONSUMER_SEND_MSG_BACK (36).

    *offset* is a commit-log offset; *delay_level* below 0 means dead letter, 0 the broker's choice.
    """

    code = RequestCode.CONSUMER_SEND_MSG_BACK
    offset: int
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class RecallMessageRequest(Header):
    """RECALL_MESSAGE (370). Source: RecallMessageRequestHeader.java, 5.5."""

    code = RequestCode.RECALL_MESSAGE
    topic: str
    recall_handle: str
    producer_group: str | None = None
    broker_name: str | None = wire("bname", default=None)


class RecallMessageResponse(Header):
    """Answer of 370. *msg_id* is the unique key in the handle.

    *recalled* is ogive's own field: True if a waiting message was cancelled, False if none was
    waiting. Other brokers do not send it.
    """

    msg_id: str
    recalled: bool | None = None
    region: str | None = wire("MSG_REGION", default=None)


class EndTransactionRequest(Header):
    """END_TRANSACTION (37).

    The offsets are those of the half message: *tran_state_table_offset* counts in its queue.

    *commit_or_rollback* is a ``Decision``.
    """

    code = RequestCode.END_TRANSACTION
    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: Int32
    msg_id: str = ""
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None
    broker_name: str | None = wire("bname", default=None)


class CheckTransactionStateRequest(Header):
    """CHECK_TRANSACTION_STATE (39), a request of the broker; END_TRANSACTION answers it.

    Body: the half message, under its real topic.
    """

    code = RequestCode.CHECK_TRANSACTION_STATE
    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    broker_name: str | None = wire("bname", default=None)
