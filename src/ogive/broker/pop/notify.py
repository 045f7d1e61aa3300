"""Requests that change nothing: NOTIFICATION (200054), POLLING_INFO (200055),
PEEK_MESSAGE (200052).

Source: NotificationProcessor.java, PollingInfoProcessor.java, PeekMessageProcessor.java, 5.5.

Behaviour
- NOTIFICATION waits until there is a message for the group that fits its filter, by tag. With many
  messages, or with SQL92, the filter is not asked.
- PEEK_MESSAGE shows the next messages of a group, and changes nothing.
"""

from collections.abc import Callable, Sequence
from typing import Final

from ogive.broker.filters import wanted_by
from ogive.broker.pop.leases import Place
from ogive.broker.pop.pop import WaitingRequest, check_pop, messages_of
from ogive.broker.pop.topics import is_ours, retry_topics
from ogive.broker.replies import ONEWAY, Rejected, success
from ogive.broker.services import Context
from ogive.errors import ResponseCode
from ogive.store.types import GetStatus
from ogive.transport.connection import Connection
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import decode_header
from ogive.wire.headers.pop import (
    NotificationRequest,
    NotificationResponse,
    PeekMessageRequest,
    PollingInfoRequest,
    PollingInfoResponse,
    PopMessageResponse,
)
from ogive.wire.message import decode_properties, encode_stored
from ogive.wire.pop import MAX_POP_MESSAGES, RETRY_V1, retry_flag

# messages of a queue whose tags are looked at (maxMessageFilterNumForNotification)
_LOOKED_AT: Final = 64


class Notification(WaitingRequest):
    """One NOTIFICATION."""

    code = RequestCode.NOTIFICATION

    def _read(self) -> Callable[[bool], bool]:
        found = any(self._has(self._topic, queue_id) for queue_id in self._queue_ids()) or any(
            self._has(*queue) for queue in self._retry_queues()
        )

        def answer(final: bool) -> bool:
            if found or final:
                self._send(ResponseCode.SUCCESS, NotificationResponse(has_message=found))
            return found or final

        return answer

    def _has(self, topic: str, queue_id: int) -> bool:
        """Return True if a queue has a message for the group. Raises StoreError, Cold."""
        store, place = self._ctx.store, (self._group, topic, queue_id)
        if self._is_blocked(place):
            return False
        start = next_offset(self._ctx, place)
        end = store.max_offset(topic, queue_id)
        if not isinstance(self._wanted, frozenset) or end - start > _LOOKED_AT:
            return start < end
        entries = store.entries(topic, queue_id, start, end - start) if start < end else []
        return any(entry.tags_code in self._wanted for entry in entries)

    def _answer_nothing(self, code: ResponseCode) -> None:
        full = True if code == ResponseCode.POLLING_FULL else None
        self._send(ResponseCode.SUCCESS, NotificationResponse(polling_full=full))


def next_offset(ctx: Context, place: Place) -> int:
    """Return where a group goes on in a queue."""
    position = ctx.leases.position(place)
    low = ctx.store.min_offset(*place[1:])
    return low if position is None else max(low, position)


def notify(ctx: Context, connection: Connection, command: RemotingCommand) -> None:
    """Serve NOTIFICATION. Raises OgiveError."""
    header = decode_header(NotificationRequest, command.ext_fields)
    check_pop(ctx, header.consumer_group, header.topic, header.queue_id)
    wanted = wanted_by(
        header.expression_type, header.expression or "*", sql=ctx.config.property_filter
    )
    if not command.flag & ONEWAY:
        Notification(ctx, connection, command, header, wanted, ctx.notify_holds).serve()


def own_records(
    ctx: Context,
    group: str,
    topic: str,
    read_from: str,
    parts: Sequence[bytes | memoryview],
) -> Sequence[bytes | memoryview]:
    """Return the records in *parts* that are for the group."""
    if retry_flag(read_from) != RETRY_V1:
        return parts
    return [
        encode_stored(message)
        for part in parts
        for message in messages_of(part)
        if is_ours(ctx, group, topic, decode_properties(message.properties))
    ]


def polling_info(
    ctx: Context, connection: Connection, header: PollingInfoRequest, body: bytes
) -> RemotingCommand:
    check_pop(ctx, header.consumer_group, header.topic, header.queue_id)
    key = (header.consumer_group, header.topic, header.queue_id)
    return success(PollingInfoResponse(polling_count=ctx.pop_holds.count(key)))


def peek(
    ctx: Context, connection: Connection, header: PeekMessageRequest, body: bytes
) -> RemotingCommand:
    topic = check_pop(ctx, header.consumer_group, header.topic, header.queue_id)
    room, size = min(header.max_msg_nums, MAX_POP_MESSAGES), ctx.config.max_pull_bytes
    if room <= 0:
        raise Rejected(
            ResponseCode.INVALID_PARAMETER, f"maxMsgNums {header.max_msg_nums}: must be 1 or more"
        )
    queue_ids = range(topic.read_queues) if header.queue_id < 0 else (header.queue_id,)
    places = [(header.consumer_group, topic.name, queue_id) for queue_id in queue_ids]
    places += [
        (header.consumer_group, name, queue_id)
        for name in retry_topics(ctx, header.consumer_group, topic.name)
        if (retry := ctx.topics.get(name)) is not None
        for queue_id in range(retry.read_queues)
    ]
    parts: list[bytes | memoryview] = []
    rest = 0
    for place in places:
        start, end = next_offset(ctx, place), ctx.store.max_offset(*place[1:])
        if room > 0 and size > 0 and start < end:
            result = ctx.store.get(*place[1:], start, room, size)
            if result.status is GetStatus.FOUND:
                parts += own_records(ctx, place[0], topic.name, place[1], result.parts)
                room, size, start = room - result.count, size - result.size, result.next_offset
        rest += max(0, end - start)
    answer = success(PopMessageResponse(rest_num=rest), b"".join(parts))
    if not parts:
        answer.code, answer.remark = ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE"
    return answer
