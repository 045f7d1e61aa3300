"""Receive messages, acknowledge them, change how long they are invisible, give them up.

Source: ReceiveMessageActivity.java, AckMessageActivity.java, ChangeInvisibleDurationActivity.java,
ForwardMessageToDLQActivity.java, 5.5.

Behaviour
- The group decides whether messages come in order (consumeMessageOrderly).
- A message that has had all its attempts becomes a dead letter instead of being delivered.
- Messages that a broken or cancelled stream did not take become visible again at once.
- An expired handle is refused; one that is renewed stands for the newest lease.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Final

from ogive.client import rpc
from ogive.client.rpc.calling import ask
from ogive.errors import BrokerError, OgiveError, ProtocolError, ResponseCode
from ogive.model import MessageExt, retry_topic
from ogive.proxy import rocketmq_pb2 as pb
from ogive.proxy.backend import Ack, Backend
from ogive.proxy.calls import CallContext
from ogive.proxy.messages import group_of, handle_text, now_timestamp, to_message, topic_of
from ogive.proxy.renewals import Key
from ogive.proxy.sessions import Session
from ogive.proxy.settings import LONG_POLLING_S, MAX_RECEIVED, backoff, max_attempts
from ogive.proxy.status import Illegal, ok, status_of
from ogive.wire.bodies.clients import SQL92
from ogive.wire.bodies.configs import SubscriptionGroupConfig
from ogive.wire.command import parse_long
from ogive.wire.headers.pull import PopMessageRequest
from ogive.wire.headers.send import ConsumerSendMsgBackRequest
from ogive.wire.pop import PopHandle

MIN_POLL_S: Final = 5.0
RESERVE_S: Final = 0.1
REQUEST_TIMEOUT_S: Final = 3.0
MIN_INVISIBLE_MS: Final = 10_000
MAX_INVISIBLE_MS: Final = 12 * 3600 * 1000
RENEWED_MS: Final = 60_000
MAX_RECEIVES: Final = 1024
"""Receives of one client that wait at the same time."""
MAX_RECEIVE_BYTES: Final = 64 * 1024
"""Size of a request that may wait."""
MAX_ACKS: Final = 4096
INIT_MAX: Final = 1
# of memory, beside its body
_MESSAGE_BYTES: Final = 1024
# clients before it do not know the code for a deadline that is too short
_KNOWS_POLLING_TIME: Final = (5, 0, 3)


class ReceivingMethods:
    """The methods with which consumers receive messages and acknowledge them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    # --- receive ----------------------------------------------------------------------------------

    async def receive(
        self, session: Session, request: pb.ReceiveMessageRequest, call: CallContext
    ) -> AsyncGenerator[pb.ReceiveMessageResponse, None]:
        """Yield the status, then the messages, then the time."""
        try:
            found = await self._pop(session, request, call)
            status = (
                ok() if found else pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no new message")
            )
        except OgiveError as exc:
            found, status = [], status_of(exc)
        left = found[::-1]
        # while the client reads slowly
        kept = sum(len(message.body) + _MESSAGE_BYTES for message, _, _ in found)
        call.keep(kept)
        try:
            yield pb.ReceiveMessageResponse(status=status)
            while left:
                yield pb.ReceiveMessageResponse(message=left[-1][0])
                left.pop()
            yield pb.ReceiveMessageResponse(delivery_timestamp=now_timestamp())
        finally:
            call.keep(-kept)
            if left:
                keys, acks = [key for _, key, _ in left], [ack for _, _, ack in left]
                self._take_back(session, group_of(request.group), keys, acks)

    def _take_back(
        self, session: Session, group: str, keys: Sequence[Key], acks: Sequence[Ack]
    ) -> None:
        """Make messages visible again that the client did not take."""
        for key in keys:
            session.renewals.forget(key)
        by_broker: dict[str, list[Ack]] = {}
        for ack in acks:
            by_broker.setdefault(ack[1].broker, []).append(ack)
        for broker, some in by_broker.items():
            releasing = session.link.release(broker, group, some, 0)
            self._backend.releases.spawn(releasing, "release messages")

    async def _pop(
        self, session: Session, request: pb.ReceiveMessageRequest, call: CallContext
    ) -> list[tuple[pb.Message, Key, Ack]]:
        """Return messages, each with its handles. Raises OgiveError."""
        if (size := request.ByteSize()) > MAX_RECEIVE_BYTES:
            raise Illegal(pb.BAD_REQUEST, f"a receive of {size} bytes: at most {MAX_RECEIVE_BYTES}")
        topic, name = topic_of(request.message_queue.topic), group_of(request.group)
        session.check_receive(name, topic)
        poll_s = _poll_s(session, request, call)
        invisible_ms = _invisible_ms(request)
        if request.auto_renew and session.renewals.is_full:
            raise Illegal(
                pb.TOO_MANY_REQUESTS,
                f"{len(session.renewals)} messages of this client are not acknowledged yet",
            )
        if session.receives >= MAX_RECEIVES:
            raise Illegal(pb.TOO_MANY_REQUESTS, f"{MAX_RECEIVES} receives of this client wait")
        expression_type, expression = _filter(request.filter_expression)
        group = await self._backend.group(name)
        in_order = group is not None and group.consume_message_orderly
        broker = await self._readable_broker(topic, request.message_queue.broker.name)
        header = PopMessageRequest(
            consumer_group=name,
            topic=topic,
            queue_id=request.message_queue.id if in_order and request.message_queue.id >= 0 else -1,
            max_msg_nums=min(max(request.batch_size, 1), MAX_RECEIVED),
            invisible_time_ms=invisible_ms,
            poll_time_ms=round(poll_s * 1000),
            born_time_ms=time.time_ns() // 1_000_000,
            init_mode=INIT_MAX,
            expression_type=expression_type,
            expression=expression,
            order=in_order,
            attempt_id=request.attempt_id or None,
            broker_name=broker,
        )
        session.receives += 1
        try:
            answer = await session.link.pop(broker, header)
        finally:
            session.receives -= 1
        if answer.is_full:
            raise Illegal(pb.TOO_MANY_REQUESTS, "too many requests wait for messages")
        tags = None if expression_type == SQL92 or expression == "*" else _tags(expression)
        found = []
        try:
            for message, handle in answer.messages:
                ack = (topic, handle)
                # another tag may have the same hash
                is_other = tags is not None and message.tag not in tags
                if is_other or message.reconsume_times >= max_attempts(group):
                    # one that fails comes again when its lease ends
                    with suppress(OgiveError):
                        if is_other:
                            await rpc.ack_message(session.link, handle.broker, name, ack)
                        else:
                            offset = message.commitlog_offset
                            await _to_dead_letters(session, name, ack, offset)
                else:
                    found.append(self._delivery(session, (name, group), ack, message, request))
        except asyncio.CancelledError:
            keys = [key for _, key, _ in found]
            acks = [(topic, handle) for _, handle in answer.messages]
            self._take_back(session, name, keys, acks)
            raise
        return found

    def _delivery(
        self,
        session: Session,
        group: tuple[str, SubscriptionGroupConfig | None],
        ack: Ack,
        message: MessageExt,
        request: pb.ReceiveMessageRequest,
    ) -> tuple[pb.Message, Key, Ack]:
        topic, handle = ack
        text = handle_text(handle, message)
        key = (group[0], message.id, text)
        delivered = to_message(message, topic)
        system = delivered.system_properties
        system.receipt_handle = text
        system.invisible_duration.FromMilliseconds(handle.invisible_ms)
        if request.auto_renew:
            delay_ms = _delay_ms(backoff(group[1]), message.reconsume_times + 2)
            session.renewals.add(key, topic, handle, delay_ms)
        return delivered, key, ack

    async def _readable_broker(self, topic: str, name: str) -> str:
        """Return the named broker if it has the topic, else another one. Raises Illegal."""
        brokers = [data.broker_name for data in await self._backend.route(topic)]
        if not brokers:
            raise Illegal(pb.TOPIC_NOT_FOUND, f"topic {topic} does not exist")
        return name if name in brokers else brokers[0]

    # --- acknowledge ------------------------------------------------------------------------------

    async def ack(self, session: Session, request: pb.AckMessageRequest) -> pb.AckMessageResponse:
        topic, group = topic_of(request.topic), group_of(request.group)
        if not request.entries:
            raise Illegal(pb.BAD_REQUEST, "the request acknowledges nothing")
        if len(request.entries) > MAX_ACKS:
            raise Illegal(
                pb.BAD_REQUEST, f"{len(request.entries)} acknowledgements: at most {MAX_ACKS}"
            )
        response = pb.AckMessageResponse()
        statuses = await asyncio.gather(
            *(self._ack_one(session, group, topic, entry) for entry in request.entries)
        )
        for entry, status in zip(request.entries, statuses, strict=True):
            response.entries.add(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
            )
        if len({status.code for status in statuses}) == 1:
            response.status.CopyFrom(statuses[0])
        else:
            response.status.CopyFrom(
                pb.Status(code=pb.MULTIPLE_RESULTS, message="the entries have different results")
            )
        return response

    async def _ack_one(
        self, session: Session, group: str, topic: str, entry: pb.AckMessageEntry
    ) -> pb.Status:
        try:
            key = (group, entry.message_id, entry.receipt_handle)
            handle = await _usable(session, key)
            await rpc.ack_message(session.link, handle.broker, group, (topic, handle))
        except OgiveError as exc:
            return status_of(_about_handle(exc))
        session.renewals.forget(key)
        return ok()

    async def change(
        self, session: Session, request: pb.ChangeInvisibleDurationRequest
    ) -> pb.ChangeInvisibleDurationResponse:
        topic, group = topic_of(request.topic), group_of(request.group)
        invisible_ms = request.invisible_duration.ToMilliseconds()
        if not 0 <= invisible_ms <= MAX_INVISIBLE_MS:
            raise Illegal(
                pb.ILLEGAL_INVISIBLE_TIME,
                f"invisible duration {invisible_ms} ms: must be between 0 and {MAX_INVISIBLE_MS}",
            )
        key = (group, request.message_id, request.receipt_handle)
        handle = await _usable(session, key)
        try:
            changed = await rpc.change_invisible_time(
                session.link,
                handle.broker,
                group,
                (topic, handle),
                invisible_ms,
                suspend=request.suspend,
            )
        except OgiveError as exc:
            raise _about_handle(exc) from None
        session.renewals.forget(key)
        offset = _commitlog_offset(request.receipt_handle)
        return pb.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=f"{changed} {offset}")

    async def forward(
        self, session: Session, request: pb.ForwardMessageToDeadLetterQueueRequest
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        topic, group = topic_of(request.topic), group_of(request.group)
        key = (group, request.message_id, request.receipt_handle)
        offset = _commitlog_offset(request.receipt_handle)
        if offset < 0:
            raise Illegal(
                pb.INVALID_RECEIPT_HANDLE,
                "the receipt handle does not say where the message is in the log",
            )
        handle = await _usable(session, key)
        try:
            await _to_dead_letters(session, group, (topic, handle), offset)
        except OgiveError as exc:
            raise _about_handle(exc) from None
        session.renewals.forget(key)
        return pb.ForwardMessageToDeadLetterQueueResponse(status=ok())


async def _to_dead_letters(session: Session, group: str, ack: Ack, offset: int) -> None:
    """Store the message in the dead-letter topic, and acknowledge it. Raises OgiveError."""
    topic, handle = ack
    header = ConsumerSendMsgBackRequest(
        offset=offset,
        group=group,
        delay_level=-1,
        origin_topic=retry_topic(group) if handle.flag else topic,
        max_reconsume_times=0,
    )
    await ask(session.link, handle.broker, header, REQUEST_TIMEOUT_S)
    await rpc.ack_message(session.link, handle.broker, group, ack)


# --- what a request asks for ----------------------------------------------------------------------


def _poll_s(session: Session, request: pb.ReceiveMessageRequest, call: CallContext) -> float:
    """Return how long the request may wait. Raises Illegal."""
    now = asyncio.get_running_loop().time()
    left_s = float("inf") if call.deadline is None else call.deadline - now
    if request.HasField("long_polling_timeout"):
        poll_s: float = request.long_polling_timeout.ToMilliseconds() / 1000
    else:
        timeout_s = session.request_timeout_s
        poll_s = left_s - (REQUEST_TIMEOUT_S if timeout_s is None else timeout_s) / 2
    poll_s = min(max(poll_s, MIN_POLL_S), LONG_POLLING_S)
    if poll_s > left_s:
        if left_s < MIN_POLL_S:
            version = call.metadata.get("x-mq-client-version", "")
            code = pb.ILLEGAL_POLLING_TIME if _knows_polling_time(version) else pb.BAD_REQUEST
            raise Illegal(
                code,
                "the deadline time remaining is not enough for polling, please check the network "
                f"condition: {left_s:.1f} s are left, {MIN_POLL_S:g} s are needed",
            )
        poll_s = left_s
    return max(0.0, min(poll_s, left_s - RESERVE_S))


def _knows_polling_time(version: str) -> bool:
    parts = version.split(".")[:3]
    if len(parts) < 3 or not all(part.isdecimal() and len(part) < 9 for part in parts):
        return False
    return tuple(map(int, parts)) >= _KNOWS_POLLING_TIME


def _invisible_ms(request: pb.ReceiveMessageRequest) -> int:
    """Return how long messages stay invisible. Raises Illegal."""
    if request.auto_renew:
        return RENEWED_MS
    invisible_ms: int = request.invisible_duration.ToMilliseconds()
    if not MIN_INVISIBLE_MS <= invisible_ms <= MAX_INVISIBLE_MS:
        raise Illegal(
            pb.ILLEGAL_INVISIBLE_TIME,
            f"invisible duration {invisible_ms} ms: must be between {MIN_INVISIBLE_MS} and "
            f"{MAX_INVISIBLE_MS}, or renewed by the server (auto_renew)",
        )
    return invisible_ms


def _filter(expression: pb.FilterExpression) -> tuple[str, str]:
    """Return type and text of a filter. Raises Illegal."""
    text = expression.expression.strip()
    if expression.type == pb.SQL:
        if not text:
            raise Illegal(pb.ILLEGAL_FILTER_EXPRESSION, "the SQL92 expression is empty")
        return SQL92, text
    return "TAG", text or "*"


def _tags(expression: str) -> frozenset[str]:
    return frozenset(tag.strip() for tag in expression.split("||"))


def _delay_ms(policy: pb.RetryPolicy, attempt: int) -> int:
    """Return the delay before an attempt by a retry policy."""
    if policy.HasField("exponential_backoff"):
        backing = policy.exponential_backoff
        factor = backing.multiplier ** min(attempt, 32)
        initial_ms: int = backing.initial.ToMilliseconds()
        most_ms: int = backing.max.ToMilliseconds()
        return min(round(initial_ms * factor), most_ms)
    delays = policy.customized_backoff.next
    return int(delays[min(attempt, len(delays)) - 1].ToMilliseconds())


# --- handles --------------------------------------------------------------------------------------


async def _usable(session: Session, key: Key) -> PopHandle:
    """Return the newest handle for the one in *key*. Raises Illegal if it has expired."""
    try:
        handle = await session.renewals.newest(key, PopHandle.read(key[2]))
    except ProtocolError as exc:
        raise Illegal(pb.INVALID_RECEIPT_HANDLE, str(exc)) from None
    if handle.pop_time_ms + handle.invisible_ms <= time.time_ns() // 1_000_000:
        raise Illegal(pb.INVALID_RECEIPT_HANDLE, "the receipt handle has expired")
    return handle


def _commitlog_offset(text: str) -> int:
    """Return the last part of a receipt handle, -1 if it has none."""
    parts = text.split(" ")
    try:
        return parse_long(parts[8])
    except (IndexError, ValueError):
        return -1


def _about_handle(error: OgiveError) -> OgiveError:
    """Return the error for a handle whose lease the broker does not know."""
    if isinstance(error, BrokerError) and error.code in (
        ResponseCode.NO_MESSAGE,
        ResponseCode.MESSAGE_ILLEGAL,
    ):
        return Illegal(pb.INVALID_RECEIPT_HANDLE, error.remark)
    return error
