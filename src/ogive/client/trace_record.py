"""Trace records as text: what happened to a message, as Apache's tools read it.

Source: TraceDataEncoder.java, 5.3.

Fields are separated by 0x01, records ended by 0x02; a field without a value is the text ``null``.
"""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ogive.model import MessageExt, PropertyName, SendResult, SendStatus

# of one trace message; Java's producer of traces allows 128,000 with everything
MAX_BODY_BYTES: Final = 120_000
# the keys of a message are properties, and all properties together have 32,767 bytes
MAX_KEYS_CHARS: Final = 8_000


class MessageKind(enum.IntEnum):
    """Source: MessageType.java; its ordinals."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3


class CallEnd(enum.IntEnum):
    """Result of a listener's call. Source: ConsumeReturnType.java; its ordinals."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    NONSENSE = 3  # RETURNNULL
    LATER = 4  # FAILED


@dataclass(frozen=True, slots=True)
class EncodedTrace:
    """Trace record as text, and the keys to find it by: the message's id and its own keys."""

    keys: tuple[str, ...]
    text: str


def sent(
    *,
    timestamp_ms: int,
    region: str,
    group: str,
    tags: str | None,
    keys: tuple[str, ...],
    broker: str,
    body_bytes: int,
    cost_ms: int,
    kind: MessageKind,
    result: SendResult,
) -> EncodedTrace:
    """Return a record of type Pub: a message was stored."""
    stored_ok = result.status is SendStatus.SEND_OK
    return _record(
        (result.id, *keys),
        "Pub",
        timestamp_ms,
        region,
        group,
        result.queue.topic,
        result.id,
        tags,
        " ".join(keys) or None,
        broker,
        body_bytes,
        cost_ms,
        int(kind),
        result.offset_id,
        stored_ok,
    )


def begun(message: MessageExt, *, timestamp_ms: int, group: str, request_id: str) -> EncodedTrace:
    """Return a record of type SubBefore: a listener gets the message."""
    region = message.properties.get(PropertyName.MSG_REGION)
    return _record(
        (message.id, *message.keys),
        "SubBefore",
        timestamp_ms,
        region,
        group,
        request_id,
        message.id,
        message.reconsume_times,
        " ".join(message.keys) or None,
    )


def ended(
    message: MessageExt,
    *,
    timestamp_ms: int,
    group: str,
    request_id: str,
    cost_ms: int,
    success: bool,
    end: CallEnd,
) -> EncodedTrace:
    """Return a record of type SubAfter: the call is over. One that succeeded too late is a success
    that timed out.
    """
    return _record(
        (message.id, *message.keys),
        "SubAfter",
        request_id,
        message.id,
        cost_ms,
        success,
        " ".join(message.keys) or None,
        int(end),
        timestamp_ms,
        group,
    )


def _record(keys: tuple[str, ...], *fields: object) -> EncodedTrace:
    return EncodedTrace(keys, "\x01".join(map(_field, fields)) + "\x02")


def _field(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def packed(records: Iterable[EncodedTrace]) -> Iterator[tuple[tuple[str, ...], bytes]]:
    """Pack the records into few messages: keys and body of each.

    A record is never split, and goes alone if it is over a limit.
    """
    keys: dict[str, None] = {}
    texts: list[bytes] = []
    size = key_chars = 0
    for record in records:
        text = record.text.encode("utf-8", "replace")
        new = [key for key in dict.fromkeys(record.keys) if key not in keys]
        new_chars = sum(map(len, new)) + len(new)
        if texts and (size + len(text) > MAX_BODY_BYTES or key_chars + new_chars > MAX_KEYS_CHARS):
            yield tuple(keys), b"".join(texts)
            keys, texts, size, key_chars = {}, [], 0, 0
            new = list(dict.fromkeys(record.keys))
            new_chars = sum(map(len, new)) + len(new)
        keys.update(dict.fromkeys(new))
        texts.append(text)
        size += len(text)
        key_chars += new_chars
    if texts:
        yield tuple(keys), b"".join(texts)
