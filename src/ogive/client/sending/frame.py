"""Frames of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE with the binary header, built from parts that
are made once per queue.

Brokers of 4.9 and 5.x read the binary header whatever they answer in. Source:
RocketMQSerializable.java, SendMessageRequestHeaderV2.java, 5.3.
"""

import struct
from typing import Final

from ogive.client.config import ClientConfig
from ogive.model import AUTO_CREATE_TOPIC, MessageQueue
from ogive.wire.codes import VERSION, Flag, LanguageCode, RequestCode, SerializeType
from ogive.wire.signing import SIGNATURE, Credentials

# total, type and header length, code, language, version, opaque, flag, remark length, ext length
_HEAD: Final = struct.Struct(">IIhBhiiii")
_HEADER_FIXED: Final = _HEAD.size - 8
_BINARY: Final = SerializeType.ROCKETMQ << 24
_PYTHON: Final = int(LanguageCode.PYTHON)
_ONEWAY: Final = int(Flag.ONEWAY)
_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)


def _entry(name: str, value: str) -> bytes:
    key, text = name.encode(), value.encode()
    return b"%b%b%b%b" % (len(key).to_bytes(2), key, len(text).to_bytes(4), text)


class SendFrames:
    """Request frames towards one queue of one producer group."""

    __slots__ = ("_batch", "_credentials", "_fixed", "_plain", "_values_after", "_values_before")

    def __init__(
        self, group: str, queue: MessageQueue, default_topic_queues: int, config: ClientConfig
    ) -> None:
        fixed = {
            "a": group,
            "b": queue.topic,
            "c": AUTO_CREATE_TOPIC,
            "d": str(default_topic_queues),
            "e": str(queue.queue_id),
            "j": "0",
            "k": "false",
            "n": queue.broker_name,
            # their names come last, in the order of names, too
            **config.request_fields,
        }
        self._credentials = credentials = config.credentials
        if credentials is not None:
            fixed = credentials.fields | fixed
            # what is signed, in the order of the names: all from AccessKey to "e", then f g h i,
            # then all from "j" on
            self._values_before = "".join(
                [value for name, value in fixed.items() if name < "f"]
            ).encode()
            last = "".join([queue.broker_name, *config.request_fields.values()]).encode()
            self._values_after = (b"0falsefalse" + last, b"0falsetrue" + last)
        self._fixed = b"".join(_entry(name, value) for name, value in fixed.items())
        flags = _entry("f", "0") + _entry("h", "0")
        self._plain = self._fixed + _entry("m", "false") + flags
        self._batch = self._fixed + _entry("m", "true") + flags

    def single(
        self,
        opaque: int,
        born_ms: int,
        properties: bytes,
        body: bytes,
        sys_flag: int = 0,
        flag: int = 0,
        *,
        oneway: bool = False,
    ) -> bytes:
        """One message.

        *properties* in their stored form, not empty; *born_ms* with 13 digits (the years 2001 to
        2286).
        """
        if sys_flag or flag:
            entries = (
                self._fixed
                + _entry("m", "false")
                + _entry("f", str(sys_flag))
                + _entry("h", str(flag))
            )
        else:
            entries = self._plain
        if self._credentials is not None:
            entries += self._signature(self._credentials, sys_flag, born_ms, flag, properties, body)
        return _frame(_SEND, opaque, _ONEWAY if oneway else 0, entries, born_ms, properties, body)

    def batch(self, opaque: int, born_ms: int, properties: bytes, body: bytes) -> bytes:
        """Several messages, *body* as ``encode_batch`` makes it."""
        entries = self._batch
        if self._credentials is not None:
            entries += self._signature(
                self._credentials, 0, born_ms, 0, properties, body, batch=True
            )
        return _frame(_SEND_BATCH, opaque, 0, entries, born_ms, properties, body)

    def _signature(
        self,
        credentials: Credentials,
        sys_flag: int,
        born_ms: int,
        flag: int,
        properties: bytes,
        body: bytes,
        *,
        batch: bool = False,
    ) -> bytes:
        values = b"%b%d%d%d%b%b" % (
            self._values_before,
            sys_flag,
            born_ms,
            flag,
            properties,
            self._values_after[batch],
        )
        return _entry(SIGNATURE, credentials.signature(values, body))


def _frame(
    code: int, opaque: int, flag: int, entries: bytes, born_ms: int, properties: bytes, body: bytes
) -> bytes:
    # 20 bytes of "g" with its 13 digits, 7 bytes of name and length before the properties
    size = len(entries) + 27 + len(properties)
    header = _HEADER_FIXED + size
    head = _HEAD.pack(
        4 + header + len(body), _BINARY | header, code, _PYTHON, VERSION, opaque, flag, 0, size
    )
    return b"%b%b\0\1g\0\0\0\x0d%d\0\1i%b%b%b" % (
        head,
        entries,
        born_ms,
        len(properties).to_bytes(4),
        properties,
        body,
    )
