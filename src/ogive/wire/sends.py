"""Sends on the wire: requests and answers.

A client writes the binary header, which brokers of 4.9 and 5.x read whatever they answer in.
Source: RocketMQSerializable.java, SendMessageRequestHeaderV2.java, SendMessageResponseHeader.java,
5.3.
"""

import json
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ogive.errors import OgiveError, ProtocolError, broker_error
from ogive.model import AUTO_CREATE_TOPIC, MessageQueue, SendResult, SendStatus
from ogive.native import native
from ogive.wire.codes import VERSION, Flag, LanguageCode, RequestCode, SerializeType
from ogive.wire.command import RemotingCommand
from ogive.wire.message import offset_message_ids
from ogive.wire.signing import SIGNATURE, Credentials


class SendAnswer(NamedTuple):
    """Answer to a send, except for the place of its messages."""

    # None: it is one-way, and not answered
    opaque: int | None
    queue_id: int
    # the unique key of the message, or of the batch where it has one
    key: str | None
    # how many records hold its messages
    records: int = 1
    # one more field of the header: its name and value
    more: tuple[str, str] | None = None


def encode_answers_in_python(
    answers: list[SendAnswer],
    places: list[Any],
    region: str,
    store_host: bytes,
    version: int,
) -> bytes:
    """Return the frames of *answers*, one behind the other.

    *places* are those of all their records: queue offset and commit-log offset come first. Raises
    ValueError if they are not as many as the answers say.
    """
    frames: list[bytes] = []
    at = 0
    for opaque, queue_id, key, records, more in answers:
        of_answer = places[at : at + records]
        at += records
        if not 0 < records == len(of_answer):
            raise ValueError("the places are not those of the answers")
        if opaque is None:
            continue
        ids = offset_message_ids(store_host, [place[1] for place in of_answer])
        head = (
            f'{{"code":0,"extFields":{{"queueId":"{queue_id}",'
            + ("" if key is None else f'"transactionId":{_json(key)},')
            + f'"msgId":"{ids}","TRACE_ON":"true","MSG_REGION":{_json(region)},'
            + ("" if more is None else f"{_json(more[0])}:{_json(more[1])},")
            + f'"queueOffset":"{of_answer[0][0]}"}},"flag":1,"language":"PYTHON",'
            f'"opaque":{opaque},"serializeTypeCurrentRPC":"JSON","version":{version}}}'
        ).encode()
        frames.append((4 + len(head)).to_bytes(4) + len(head).to_bytes(4) + head)
    if at != len(places):
        raise ValueError("the places are not those of the answers")
    return b"".join(frames)


def _json(text: str) -> str:
    return f'"{text}"' if text.isascii() and text.isalnum() else json.dumps(text)


encode_answers: Final = encode_answers_in_python if native is None else native.encode_answers


# --- a client's requests --------------------------------------------------------------------------

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


class SendEncoder:
    """Encodes the sends of one producer group to one queue, from parts that are made once."""

    __slots__ = ("_batch", "_credentials", "_fixed", "_plain", "_values_after", "_values_before")

    def __init__(
        self,
        group: str,
        queue: MessageQueue,
        default_topic_queues: int,
        credentials: Credentials | None = None,
        request_fields: Mapping[str, str] = MappingProxyType({}),
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
            **request_fields,
        }
        self._credentials = credentials
        if credentials is not None:
            fixed = credentials.fields | fixed
            # what is signed, in the order of the names: all from AccessKey to "e", then f g h i,
            # then all from "j" on
            self._values_before = "".join(
                [value for name, value in fixed.items() if name < "f"]
            ).encode()
            last = "".join([queue.broker_name, *request_fields.values()]).encode()
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
        """Return the frame of SEND_MESSAGE_V2, which carries one message.

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
        """Return the frame of SEND_BATCH_MESSAGE; *body* as ``encode_batch`` makes it."""
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


# --- a broker's answers ---------------------------------------------------------------------------

_STORED: Final = {status.value: status for status in SendStatus}


def read_answer(
    answer: RemotingCommand, queue: MessageQueue, address: str, key: str = ""
) -> SendResult | OgiveError:
    """Return where a send to *queue* of the broker at *address* is stored, or why it is not.

    The result's id is *key*, or if that is empty, the id that the broker gave.
    """
    status = _STORED.get(answer.code)
    if status is None:
        return broker_error(answer.code, answer.remark, address)
    fields = answer.ext_fields
    try:
        queue_id = int(fields["queueId"])
        if queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        return SendResult(
            status,
            key or fields["msgId"],
            fields["msgId"],
            queue,
            int(fields["queueOffset"]),
            fields.get("recallHandle"),
        )
    except (KeyError, ValueError) as exc:
        return ProtocolError(f"the broker stored the message, but its answer cannot be read: {exc}")


def split_result(result: SendResult, keys: list[str]) -> list[SendResult]:
    """Return the result of a batch as one for each message: consecutive offsets of one queue."""
    if len(keys) == 1:
        return [result]
    ids = result.offset_id.split(",")
    if len(ids) != len(keys):
        # a topic that keeps batches whole has one id for all
        ids = [result.offset_id] * len(keys)
    rows = enumerate(zip(keys, ids, strict=True))
    return [
        SendResult(result.status, key, offset_id, result.queue, result.queue_offset + i)
        for i, (key, offset_id) in rows
    ]
