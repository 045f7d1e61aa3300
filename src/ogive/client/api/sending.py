"""Sending, sending back and recalling messages, and ending transactions."""

from typing import Final

from ogive.client.api.calling import REQUEST_TIMEOUT_S, ask, request
from ogive.errors import broker_error
from ogive.model import MessageExt, MessageQueue, RecallResult, SendResult, SendStatus
from ogive.transport.pool import ConnectionPool
from ogive.wire import headers as h
from ogive.wire.codes import RequestCode
from ogive.wire.headers import decode_header

SEND_BACK_TIMEOUT_S: Final = 5.0
STORED: Final[dict[int, SendStatus]] = {status.value: status for status in SendStatus}


async def send_message(
    pool: ConnectionPool,
    address: str,
    header: h.SendMessageRequestV2,
    body: bytes,
    *,
    broker_name: str,
    message_id: str = "",
    batch: bool = False,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> SendResult:
    """One try of one message, or of one batch (*body* as ``encode_batch`` makes it).

    *message_id* is handed through to the result.

    Raises the BrokerError where it was not stored.
    """
    command = request(header, body)
    if batch:
        command.code = RequestCode.SEND_BATCH_MESSAGE
    reply = await pool.call(address, command, timeout_s)
    status = STORED.get(reply.code)
    if status is None:
        raise broker_error(reply.code, reply.remark, address)
    answer = decode_header(h.SendMessageResponse, reply.ext_fields)
    queue = MessageQueue(header.topic, broker_name, answer.queue_id)
    return SendResult(
        status,
        message_id or answer.msg_id,
        answer.msg_id,
        queue,
        answer.queue_offset,
        answer.recall_handle,
    )


async def recall_message(
    pool: ConnectionPool,
    address: str,
    header: h.RecallMessageRequest,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> RecallResult:
    """Take a message back that waits for its time."""
    answer = decode_header(
        h.RecallMessageResponse, (await ask(pool, address, header, timeout_s)).ext_fields
    )
    return RecallResult(answer.msg_id, answer.recalled)


async def send_reply(
    pool: ConnectionPool,
    address: str,
    header: h.SendReplyMessageRequestV2,
    body: bytes,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    """Have the broker bring a reply to the client that asked.

    Raises BrokerInternalError where it cannot reach that client.
    """
    await ask(pool, address, header, timeout_s, body)


async def send_back(
    pool: ConnectionPool,
    address: str,
    message: MessageExt,
    group: str,
    *,
    delay_level: int = 0,
    max_reconsume_times: int | None = None,
    timeout_s: float = SEND_BACK_TIMEOUT_S,
) -> None:
    """Ask for the message again, later: level 0 is the broker's choice (3 + reconsume times), below
    0 the dead-letter topic at once.
    """
    header = h.ConsumerSendMsgBackRequest(
        offset=message.commitlog_offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message.offset_id,
        origin_topic=message.topic,
        max_reconsume_times=max_reconsume_times,
    )
    await ask(pool, address, header, timeout_s)


async def end_transaction(
    pool: ConnectionPool,
    address: str,
    header: h.EndTransactionRequest,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    """Commit or roll back, and wait until that is done.

    A broker does not answer the decision "unknown".
    """
    await ask(pool, address, header, timeout_s)
