"""Pop consumption of the scripted broker: leases in memory, one retry topic for each group and
topic, filters left to the client.

A message whose lease has ended is in the retry topic with the next look at the queues.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from ogive.wire.codes import RequestCode, ResponseCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import decode_header, encode_header
from ogive.wire.headers.pull import (
    AckMessageRequest,
    ChangeInvisibleTimeRequest,
    ChangeInvisibleTimeResponse,
    NotificationRequest,
    NotificationResponse,
    PopMessageRequest,
    PopMessageResponse,
)
from ogive.wire.message import StoredMessage, encode_stored
from ogive.wire.pop import (
    ORDERLY_QUEUE,
    RETRY_V1,
    TOPIC_ITSELF,
    BatchAckBody,
    PopHandle,
    PoppedOffsets,
    msg_offset_info,
    read_topic,
    retry_flag,
    start_offset_info,
)

CODES: Final = (
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.NOTIFICATION,
)


@dataclass(slots=True)
class FakeLease:
    """Lease of one message; *ends* by the monotonic clock."""

    message: StoredMessage
    pop_time_ms: int
    ends: float
    is_orderly: bool
    is_acked: bool = False
    counts: bool = True


Key = tuple[str, str, int, int]
"""Group, topic that the message is in, queue and offset."""


class FakePop:
    """Leases of a scripted broker.

    *stored* are its messages by topic and queue, *queues* returns the number of a topic's queues.
    *offsets* are the groups' progress.
    """

    def __init__(
        self,
        stored: dict[tuple[str, int], list[StoredMessage]],
        queues: Callable[[str], int],
        broker_name: str,
        offsets: dict[tuple[str, str, int], int],
    ) -> None:
        self._stored = stored
        self._queues = queues
        self._name = broker_name
        self.leases: dict[Key, FakeLease] = {}
        # next offset by group, topic and queue
        self._next = offsets
        # tries of orderly messages
        self._tries: dict[Key, int] = {}
        self._popped_ms = 0

    def answer(self, request: RemotingCommand, *, last: bool) -> RemotingCommand | None:
        """Answer a request. Return None if it waits for messages; not the *last* time."""
        match request.code:
            case RequestCode.POP_MESSAGE:
                return self._pop(decode_header(PopMessageRequest, request.ext_fields), last=last)
            case RequestCode.NOTIFICATION:
                return self._notify(
                    decode_header(NotificationRequest, request.ext_fields), last=last
                )
            case RequestCode.BATCH_ACK_MESSAGE:
                for batch in BatchAckBody.decode(request.body).acks:
                    for bit in range(batch.bits.bit_length()):
                        if batch.bits >> bit & 1:
                            self._ack(
                                (batch.group, batch.read_topic, batch.queue_id, batch.start + bit),
                                batch.pop_time_ms,
                            )
                return RemotingCommand(ResponseCode.SUCCESS, {})
            case RequestCode.ACK_MESSAGE:
                ack = decode_header(AckMessageRequest, request.ext_fields)
                handle = PopHandle.read(ack.extra_info)
                key = ack.consumer_group, ack.topic, ack.queue_id, ack.offset
                self._ack(key, handle.pop_time_ms)
                return RemotingCommand(ResponseCode.SUCCESS, {})
            case _:
                return self._change(decode_header(ChangeInvisibleTimeRequest, request.ext_fields))

    @staticmethod
    def wait_s(request: RemotingCommand) -> float:
        """Return the time for which a request may wait."""
        return int(request.ext_fields.get("pollTime", "0")) / 1000

    # --- requests ---------------------------------------------------------------------------------

    def _pop(self, header: PopMessageRequest, *, last: bool) -> RemotingCommand | None:
        self._popped_ms = max(time.time_ns() // 1_000_000, self._popped_ms + 1)
        self._revive()
        found: list[tuple[PoppedOffsets, list[StoredMessage]]] = []
        room = header.max_msg_nums
        for topic, queue_id in self._sources(header.consumer_group, header.topic, header):
            messages = self._take(header, topic, queue_id, room)
            if messages:
                room -= len(messages)
                offsets = [message.queue_offset for message in messages]
                flag = retry_flag(topic)
                found.append((PoppedOffsets(flag, queue_id, offsets[0], offsets), messages))
        if not found and not last:
            return None
        answer = PopMessageResponse(
            pop_time_ms=self._popped_ms,
            invisible_time_ms=header.invisible_time_ms,
            revive_queue_id=ORDERLY_QUEUE if header.order else 0,
            start_offset_info=start_offset_info(place for place, _ in found),
            msg_offset_info=msg_offset_info(place for place, _ in found),
            order_count_info=";".join(
                f"0 qo{place.queue_id}%{offset} {tries}"
                for place, _ in found
                if header.order
                for offset in place.offsets
                if (tries := self._tries[self._key(header, header.topic, place, offset)])
            ),
        )
        body = b"".join(
            encode_stored(self._delivered(header, place, message))
            for place, messages in found
            for message in messages
        )
        code = ResponseCode.SUCCESS if found else ResponseCode.POLLING_TIMEOUT
        return RemotingCommand(code, encode_header(answer), body)

    @staticmethod
    def _key(header: PopMessageRequest, topic: str, place: PoppedOffsets, offset: int) -> Key:
        return header.consumer_group, topic, place.queue_id, offset

    def _delivered(
        self, header: PopMessageRequest, place: PoppedOffsets, message: StoredMessage
    ) -> StoredMessage:
        """Return a message as it goes out: one of the retry topic has its handle with it."""
        if place.flag == TOPIC_ITSELF:
            return message
        handle = PopHandle(
            place.start,
            self._popped_ms,
            header.invisible_time_ms,
            0,
            place.flag,
            self._name,
            place.queue_id,
            message.queue_offset,
        )
        own = f"POP_CK\x01{handle}\x02".encode()
        return replace(message, topic=header.topic, properties=own + message.properties)

    def _notify(self, header: NotificationRequest, *, last: bool) -> RemotingCommand | None:
        self._revive()
        has_message = any(
            self._position(header.consumer_group, topic, queue_id)
            < len(self._stored[topic, queue_id])
            and not (header.order and self._is_blocked(header.consumer_group, topic, queue_id))
            for topic, queue_id in self._sources(header.consumer_group, header.topic, header)
        )
        if not has_message and not last:
            return None
        answer = NotificationResponse(has_message=has_message)
        return RemotingCommand(ResponseCode.SUCCESS, encode_header(answer))

    def _ack(self, key: Key, pop_time_ms: int) -> None:
        lease = self.leases.get(key)
        if lease is None or lease.pop_time_ms != pop_time_ms:
            return
        if not lease.is_orderly:
            del self.leases[key]
            return
        lease.is_acked = True
        group, topic, queue_id, _ = key
        at = group, topic, queue_id
        while (one := self.leases.get((*at, self._next.get(at, 0)))) is not None and one.is_acked:
            del self.leases[*at, self._next.get(at, 0)]
            self._next[at] = self._next.get(at, 0) + 1

    def _change(self, header: ChangeInvisibleTimeRequest) -> RemotingCommand:
        handle = PopHandle.read(header.extra_info)
        key = header.consumer_group, header.topic, header.queue_id, header.offset
        lease = self.leases.get(key)
        now_ms = max(time.time_ns() // 1_000_000, self._popped_ms + 1)
        pop_time_ms = handle.pop_time_ms if handle.revive_queue == ORDERLY_QUEUE else now_ms
        if lease is not None and lease.pop_time_ms == handle.pop_time_ms:
            self._popped_ms = now_ms
            lease.pop_time_ms = pop_time_ms
            lease.ends = time.monotonic() + header.invisible_time_ms / 1000
            lease.counts = not header.suspend
        answer = ChangeInvisibleTimeResponse(
            pop_time_ms=pop_time_ms,
            invisible_time_ms=now_ms + header.invisible_time_ms - pop_time_ms,
            revive_queue_id=handle.revive_queue,
        )
        return RemotingCommand(ResponseCode.SUCCESS, encode_header(answer))

    # --- queues -----------------------------------------------------------------------------------

    def _sources(
        self, group: str, topic: str, header: PopMessageRequest | NotificationRequest
    ) -> Iterable[tuple[str, int]]:
        if not header.order:
            yield read_topic(group, topic, RETRY_V1), 0
        if header.queue_id >= 0:
            yield topic, header.queue_id
        else:
            for queue_id in range(self._queues(topic)):
                yield topic, queue_id

    def _position(self, group: str, topic: str, queue_id: int) -> int:
        return self._next.get((group, topic, queue_id), 0)

    def _is_blocked(self, group: str, topic: str, queue_id: int) -> bool:
        return any(
            key[:3] == (group, topic, queue_id)
            and not lease.is_acked
            and lease.ends > time.monotonic()
            for key, lease in self.leases.items()
        )

    def _take(
        self, header: PopMessageRequest, topic: str, queue_id: int, room: int
    ) -> list[StoredMessage]:
        group = header.consumer_group
        if header.order and self._is_blocked(group, topic, queue_id):
            return []
        at = self._position(group, topic, queue_id)
        messages = self._stored[topic, queue_id][at : at + room]
        ends = time.monotonic() + header.invisible_time_ms / 1000
        for message in messages:
            key = group, topic, queue_id, message.queue_offset
            self.leases[key] = FakeLease(message, self._popped_ms, ends, header.order)
            if header.order:
                self._tries[key] = self._tries.get(key, -1) + 1
        if not header.order:
            self._next[group, topic, queue_id] = at + len(messages)
        return messages

    def _revive(self) -> None:
        """Put messages whose lease has ended into the retry topic of their group."""
        for key, lease in list(self.leases.items()):
            if lease.ends > time.monotonic() or lease.is_orderly:
                continue
            del self.leases[key]
            group, topic, _, _ = key
            topic = topic if retry_flag(topic) else read_topic(group, topic, RETRY_V1)
            rows = self._stored[topic, 0]
            message = replace(
                lease.message,
                topic=topic,
                queue_id=0,
                queue_offset=len(rows),
                reconsume_times=lease.message.reconsume_times + lease.counts,
            )
            rows.append(message)
