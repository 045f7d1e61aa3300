"""Requests about messages: pull, look up, send, send back, recall, end a transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ogive.client.rpc.calling import REQUEST_TIMEOUT_S, Caller, ask, request
from ogive.errors import OgiveError, ProtocolError, QueryNotFound, ResponseCode, broker_error
from ogive.model import (
    TOOLS_GROUP,
    MessageExt,
    MessageQueue,
    PullResult,
    PullStatus,
    RecallResult,
    SendResult,
)
from ogive.transport.pool import ConnectionPool
from ogive.wire.codes import PullSysFlag, RequestCode, SysFlag
from ogive.wire.command import RemotingCommand
from ogive.wire.compression import MAX_INFLATED_BYTES
from ogive.wire.headers.codec import decode_header
from ogive.wire.headers.pull import (
    PullMessageRequest,
    PullMessageResponse,
    QueryMessageRequest,
    ViewMessageRequest,
)
from ogive.wire.headers.send import (
    ConsumerSendMsgBackRequest,
    EndTransactionRequest,
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequestV2,
    SendReplyMessageRequestV2,
)
from ogive.wire.message import (
    DamagedMessage,
    NoRecord,
    decode_message,
    decode_messages,
    decode_some,
    decode_stored,
    measure,
)
from ogive.wire.sends import read_answer

# messages that a look-up by key gives (defaultQueryMaxNum)
MAX_FOUND: Final = 32
# how long a broker holds a pull that finds nothing (BROKER_SUSPEND_MAX_TIME_MILLIS)
PULL_SUSPEND_S: Final = 15.0
PULL_TIMEOUT_S: Final = 30.0  # CONSUMER_TIMEOUT_MILLIS_WHEN_SUSPEND
# records of a pull that looks for a time; brokers give 32 at most
_LOOKED_AT: Final = 32


@dataclass(frozen=True, slots=True)
class RawPull:
    """Answer to one pull, with its records as they came: back to back in *body*, in the commit
    log's layout.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    body: bytes


_PULLED: Final = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


async def pull_raw(
    pool: ConnectionPool,
    address: str,
    header: PullMessageRequest,
    *,
    timeout_s: float = PULL_TIMEOUT_S,
) -> RawPull:
    """Pull without decoding, for readers of whole blocks.

    *timeout_s* must be longer than the time the broker may hold the request.
    """
    return _pulled(await pool.call(address, request(header), timeout_s), address)


def _pulled(reply: RemotingCommand, address: str) -> RawPull:
    # an unknown code is no member, and gives None
    status = _PULLED.get(reply.code)  # type: ignore[call-overload]
    if status is None:
        raise broker_error(reply.code, reply.remark, address)
    answer = decode_header(PullMessageResponse, reply.ext_fields)
    if answer.next_begin_offset < 0:
        raise ProtocolError(
            f"{address} says that a pull goes on at {answer.next_begin_offset}: no queue has such "
            "a place"
        )
    return RawPull(
        status,
        answer.next_begin_offset,
        answer.min_offset,
        answer.max_offset,
        answer.suggest_which_broker_id,
        reply.body,
    )


async def pull_message(
    pool: ConnectionPool,
    address: str,
    header: PullMessageRequest,
    *,
    broker_name: str,
    timeout_s: float = PULL_TIMEOUT_S,
) -> PullResult:
    """Pull, and return the messages decoded and inflated; *broker_name* goes into their queues.

    Raises DamagedMessage and NoRecord, too.

    What is left of an answer behind MAX_INFLATED_BYTES comes with the next pull. Of a batch that
    the broker keeps as one record, all messages from the asked offset on come, however few were
    asked for. Differs from Java, whose client hands out those before the asked offset again.
    """
    reply = await pool.call(address, request(header), timeout_s, as_view=True)
    raw = _pulled(reply, address)
    body: bytes | memoryview = raw.body if reply.view is None else reply.view
    if raw.status is not PullStatus.FOUND:
        body = b""
    try:
        messages, end = decode_some(body, broker_name, max_inflated_bytes=MAX_INFLATED_BYTES)
    except DamagedMessage as exc:
        exc.next_offset = raw.next_offset
        raise
    except NoRecord as exc:
        place = (
            f"{address} answered a pull of {header.topic}/{broker_name}/{header.queue_id} at "
            f"{header.queue_offset}"
        )
        behind = f"{len(exc.intact)} messages and then bytes" if exc.intact else "bytes"
        raise NoRecord(f"{place} with {behind} that are no message: {exc}", exc.intact) from None
    messages = _from(header.queue_offset, messages)
    _check_places(messages, header, raw.next_offset, address)
    next_offset = raw.next_offset if end == len(body) else messages[-1].queue_offset + 1
    return PullResult(
        raw.status,
        next_offset,
        raw.min_offset,
        raw.max_offset,
        tuple(messages),
        raw.suggested_broker_id,
    )


def _from(offset: int, messages: list[MessageExt]) -> list[MessageExt]:
    """Return the messages from *offset* on: of a batch that holds it a broker sends the whole
    record.
    """
    before = (
        offset - messages[0].queue_offset
        if messages and messages[0].sys_flag & SysFlag.INNER_BATCH
        else 0
    )
    if (
        not 0 < before < len(messages)
        or messages[before].commitlog_offset != messages[0].commitlog_offset
    ):
        return messages
    return messages[before:]


def _check_places(
    messages: Sequence[MessageExt], header: PullMessageRequest, end: int, address: str
) -> None:
    """Raise NoRecord if a record's own offset cannot follow: no checksum covers it, and a group's
    progress depends on it.
    """
    at = header.queue_offset
    _, ascending, _ = measure(messages)
    if ascending and (
        not messages or (at <= messages[0].queue_offset and messages[-1].queue_offset < end)
    ):
        return
    for index, message in enumerate(messages):
        if not at <= message.queue_offset < end:
            raise NoRecord(
                f"{address} answered a pull of {header.topic}/{header.queue_id} at "
                f"{header.queue_offset}, to go on at {end}, with a "
                f"message that says it has offset {message.queue_offset}, where {at} or a later "
                "one must come",
                messages[:index],
            )
        at = message.queue_offset + 1


async def read_messages(
    pool: ConnectionPool,
    address: str,
    queue: MessageQueue,
    offset: int,
    count: int,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> PullResult:
    """Return up to *count* messages from *offset* on, without progress of any group, and without
    waiting.
    """
    return await pull_message(
        pool,
        address,
        _reading(TOOLS_GROUP, queue, offset, count),
        broker_name=queue.broker_name,
        timeout_s=timeout_s,
    )


async def first_stored_since(
    pool: ConnectionPool,
    address: str,
    queue: MessageQueue,
    offset: int,
    timestamp_ms: int,
    *,
    group: str,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> int:
    """Return the offset of the first message from *offset* on that was stored at *timestamp_ms* or
    later; the queue's end if there is none.

    Bodies are not looked at, so that a damaged one is no obstacle.
    """
    while True:
        header = _reading(group, queue, offset, _LOOKED_AT)
        raw = await pull_raw(pool, address, header, timeout_s=timeout_s)
        at, end = 0, len(raw.body) if raw.status is PullStatus.FOUND else 0
        while at < end:
            record = decode_stored(raw.body, at)
            if record.store_timestamp_ms >= timestamp_ms:
                return record.queue_offset
            at += record.size
        if raw.next_offset <= offset or raw.next_offset >= raw.max_offset:
            return raw.next_offset
        offset = raw.next_offset


def _reading(group: str, queue: MessageQueue, offset: int, count: int) -> PullMessageRequest:
    return PullMessageRequest(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=PullSysFlag.SUBSCRIPTION,
        commit_offset=0,
        subscription="*",
    )


async def view_message(
    pool: ConnectionPool,
    address: str,
    commitlog_offset: int,
    topic: str | None = None,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> MessageExt:
    """Return the message at a commit-log offset (see ``parse_offset_message_id``); its queue has no
    broker name.
    """
    header = ViewMessageRequest(offset=commitlog_offset, topic=topic)
    return decode_message((await ask(pool, address, header, timeout_s)).body)


async def query_messages(
    pool: ConnectionPool,
    address: str,
    topic: str,
    key: str,
    *,
    begin_ms: int,
    end_ms: int,
    limit: int = MAX_FOUND,
    broker_name: str = "",
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> list[MessageExt]:
    """Return the messages under *key* in the broker's index, which uses a hash: the caller checks
    that each really has the key.

    Behind MAX_INFLATED_BYTES of inflated bodies they stay compressed.
    """
    header = QueryMessageRequest(
        topic=topic, key=key, max_num=limit, begin_timestamp=begin_ms, end_timestamp=end_ms
    )
    try:
        body = (await ask(pool, address, header, timeout_s)).body
    except QueryNotFound:
        return []
    return decode_messages(body, broker_name)


SEND_BACK_TIMEOUT_S: Final = 5.0


async def send_message(
    pool: Caller,
    address: str,
    header: SendMessageRequestV2,
    body: bytes,
    *,
    broker_name: str,
    message_id: str = "",
    batch: bool = False,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> SendResult:
    """Try once to send one message, or one batch (*body* as ``encode_batch`` makes it).

    *message_id* is handed through to the result.

    Raises the BrokerError where it was not stored.
    """
    command = request(header, body)
    if batch:
        command.code = RequestCode.SEND_BATCH_MESSAGE
    reply = await pool.call(address, command, timeout_s)
    queue = MessageQueue(header.topic, broker_name, header.queue_id)
    result = read_answer(reply, queue, address, message_id)
    if isinstance(result, OgiveError):
        raise result
    return result


async def recall_message(
    pool: Caller,
    address: str,
    header: RecallMessageRequest,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> RecallResult:
    """Take a message back that waits for its time."""
    answer = decode_header(
        RecallMessageResponse, (await ask(pool, address, header, timeout_s)).ext_fields
    )
    return RecallResult(answer.msg_id, answer.recalled)


async def send_reply(
    pool: ConnectionPool,
    address: str,
    header: SendReplyMessageRequestV2,
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
    header = ConsumerSendMsgBackRequest(
        offset=message.commitlog_offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message.offset_id,
        origin_topic=message.topic,
        max_reconsume_times=max_reconsume_times,
    )
    await ask(pool, address, header, timeout_s)


async def end_transaction(
    pool: Caller,
    address: str,
    header: EndTransactionRequest,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    """Commit or roll back, and wait until that is done.

    A broker does not answer the decision "unknown".
    """
    await ask(pool, address, header, timeout_s)
