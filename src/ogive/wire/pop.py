"""Texts of POP consumption: handles, offsets of an answer, bodies, names of retry topics.

Source: ExtraInfoUtil.java, KeyBuilder.java, BatchAck.java, BatchAckMessageRequestBody.java, 5.5.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from ogive.errors import ProtocolError
from ogive.model import RETRY_PREFIX
from ogive.wire.bodies.json_fields import JsonObject, as_object, get_field, listed, member
from ogive.wire.command import parse_long

ORDERLY_QUEUE: Final = 999
"""Revive queue in the handles of orderly requests."""
MAX_POP_MESSAGES: Final = 32
"""Most messages of one request, and so of one lease."""
TOPIC_ITSELF, RETRY_V1, RETRY_V2 = 0, 1, 2
"""The topic that a message was read from: the flag in handles."""
_RETRIES: Final = ("0", "1", "2")
_PARTS: Final = 8
# in a batch acknowledgement; a client sends the handles of one answer, or of a few
MAX_ACKS: Final = 4_096
# a filter may pass over many messages within one read
_BITS_BYTES: Final = 1024
_MAX_INT: Final = 2**31 - 1


def retry_flag(topic: str) -> int:
    """Return the flag in the handle of a message that was read from *topic*."""
    if not topic.startswith(RETRY_PREFIX):
        return TOPIC_ITSELF
    return RETRY_V2 if "+" in topic else RETRY_V1


def read_topic(group: str, topic: str, flag: int) -> str:
    """Return the topic that *flag* names, *topic* or one of its retry topics for *group*."""
    if flag == TOPIC_ITSELF:
        return topic
    return f"{RETRY_PREFIX}{group}{'+' if flag == RETRY_V2 else '_'}{topic}"


class PopHandle(NamedTuple):
    """Everything a broker needs to find the lease of a message: property POP_CK, extraInfo.

    *start* is the offset at which the read of the queue began. *flag*: see read_topic().
    """

    start: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    flag: int
    broker: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return (
            f"{self.start} {self.pop_time_ms} {self.invisible_ms} {self.revive_queue} {self.flag} "
            f"{self.broker} {self.queue_id} {self.offset}"
        )

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a handle; parts after the eighth are ignored. Raises ProtocolError."""
        parts = text.split(" ")
        try:
            numbers = [
                part if at == 5 else parse_long(part) for at, part in enumerate(parts[:_PARTS])
            ]
            handle = cls(*numbers)  # type: ignore[arg-type]  # one text, seven numbers
        except (TypeError, ValueError):
            raise ProtocolError(f"invalid handle {text[:120]!r}") from None
        if not (
            min(handle.start, handle.pop_time_ms, handle.invisible_ms, handle.offset) >= 0
            and 0 <= handle.revive_queue <= ORDERLY_QUEUE
            and 0 <= handle.queue_id <= _MAX_INT
            and handle.flag in (TOPIC_ITSELF, RETRY_V1, RETRY_V2)
            and handle.broker
        ):
            raise ProtocolError(f"invalid handle {text[:120]!r}")
        return handle


class PoppedOffsets(NamedTuple):
    """Messages of one queue in an answer, and where its read began. *flag*: see read_topic()."""

    flag: int
    queue_id: int
    start: int
    offsets: Sequence[int]


def start_offset_info(queues: Iterable[PoppedOffsets]) -> str:
    """Return the text of startOffsetInfo."""
    return ";".join([f"{one.flag} {one.queue_id} {one.start}" for one in queues])


def msg_offset_info(queues: Iterable[PoppedOffsets]) -> str:
    """Return the text of msgOffsetInfo."""
    return ";".join(
        [f"{one.flag} {one.queue_id} {','.join(map(str, one.offsets))}" for one in queues]
    )


def order_count_info(
    queues: Iterable[PoppedOffsets], counts_of: Callable[[int], Mapping[int, int]]
) -> str:
    """Return the text of orderCountInfo: how often messages were delivered before, and for older
    clients the least count of each queue. *counts_of* has the counts above 0 of a queue's messages.
    """
    entries = []
    for one in queues:
        counts = counts_of(one.queue_id)
        entries += [
            f"{one.flag} qo{one.queue_id}%{offset} {counts[offset]}"
            for offset in one.offsets
            if offset in counts
        ]
        least = min([counts.get(offset, 0) for offset in one.offsets], default=0)
        entries.append(f"{one.flag} {one.queue_id} {least}")
    return ";".join(entries)


def read_offset_infos(starts: str, offsets: str) -> list[PoppedOffsets]:
    """Read startOffsetInfo and msgOffsetInfo. Raises ProtocolError."""
    try:
        begins: dict[tuple[int, int], int] = {}
        for entry in filter(None, starts.split(";")):
            flag, queue_id, start = map(parse_long, entry.split(" "))
            begins[flag, queue_id] = start
        found: dict[tuple[int, int], PoppedOffsets] = {}
        for entry in filter(None, offsets.split(";")):
            texts = entry.split(" ")
            key = (parse_long(texts[0]), parse_long(texts[1]))
            found[key] = PoppedOffsets(
                *key, begins[key], tuple(map(parse_long, texts[2].split(",")))
            )
        if len(found) != offsets.count(";") + bool(offsets):
            raise ValueError("a queue twice")
    except (KeyError, IndexError, ValueError):
        raise ProtocolError(
            f"invalid offsets of an answer: {starts[:80]!r}, {offsets[:80]!r}"
        ) from None
    return list(found.values())


def bits_text(bits: int) -> str:
    """Return Base64 of a bit set: bytes little-endian, without trailing zero bytes."""
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def _bits(obj: Any, name: str) -> int:
    text = get_field(obj, name, str, "")
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ProtocolError(f"member {name} is not Base64") from None
    if len(raw) > _BITS_BYTES:
        raise ProtocolError(f"member {name} holds more than {8 * _BITS_BYTES} bits")
    return int.from_bytes(raw, "little")


def _either(short: str, long: str, kind: type, default: Any) -> Any:
    """Declare a member that older clients write with its long name."""
    return member(
        short,
        read=lambda obj, name: get_field(obj, name if name in obj else long, kind, default),
        default=default,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAck(JsonObject):
    """Acknowledgement of messages of one lease: bit i is for offset *start* + i.

    *topic* is the original one, *retry* the flag as a text. Source: BatchAck.java.
    """

    group: str = _either("c", "consumerGroup", str, "")
    topic: str = _either("t", "topic", str, "")
    retry: str = _either("r", "retry", str, "0")
    start: int = _either("so", "startOffset", int, 0)
    queue_id: int = _either("q", "queueId", int, 0)
    revive_queue: int = _either("rq", "reviveQueueId", int, 0)
    pop_time_ms: int = _either("pt", "popTime", int, 0)
    invisible_ms: int = _either("it", "invisibleTime", int, 0)
    bits: int = member(
        "b",
        read=lambda obj, name: _bits(obj, name if name in obj else "bitSet"),
        write=bits_text,
        default=0,
    )

    @property
    def read_topic(self) -> str:
        """The topic that the messages were read from. Raises ProtocolError."""
        if self.retry not in _RETRIES:
            raise ProtocolError(f"member r of an acknowledgement is {self.retry[:20]!r}")
        return read_topic(self.group, self.topic, int(self.retry))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAckBody(JsonObject):
    """Body of BATCH_ACK_MESSAGE. Source: BatchAckMessageRequestBody.java."""

    broker_name: str = ""
    acks: tuple[BatchAck, ...] = listed(
        "acks",
        lambda value: BatchAck.from_json(as_object(value, "an acknowledgement")),
        BatchAck.to_json,
        most=MAX_ACKS,
        default=(),
    )
