"""Sends on the wire: requests to store messages and to end transactions, and their answers.

A client writes the binary header, which brokers of 4.9 and 5.x read, whichever form their answers
have. Source: RocketMQSerializable.java, SendMessageRequestHeaderV2.java,
EndTransactionRequestHeader.java, SendMessageResponseHeader.java, 5.3.
"""

import enum
import json
import struct
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ogive.errors import OgiveError, ProtocolError, broker_error
from ogive.model import AUTO_CREATE_TOPIC, MessageQueue, SendResult, SendStatus
from ogive.native import native
from ogive.wire.codes import (
    VERSION,
    Decision,
    Flag,
    LanguageCode,
    RequestCode,
    SerializeType,
    SysFlag,
)
from ogive.wire.command import RemotingCommand, decode_command, parse_bool, parse_int, parse_long
from ogive.wire.message import MAX_PROPERTIES_BYTES, offset_message_ids
from ogive.wire.signing import ACCESS_KEY, SIGNATURE, Credentials, signed_values

CLIENT_FLAGS: Final = int(
    SysFlag.COMPRESSED
    | SysFlag.MULTI_TAGS
    | SysFlag.COMPRESSION_MASK
    | SysFlag.BORN_HOST_V6
    | SysFlag.STORE_HOST_V6
)
"""System flags that a client may set in an ordinary message."""
MAX_INT: Final = 0x7FFFFFFF
MAX_LONG: Final = 0x7FFFFFFFFFFFFFFF
_SEND_LONG: Final = int(RequestCode.SEND_MESSAGE)
_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_END: Final = int(RequestCode.END_TRANSACTION)
_CODES: Final = frozenset((_SEND, _SEND_BATCH, _END))
_PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)
_ONEWAY: Final = int(Flag.ONEWAY)
# a third of what the call of a named tuple costs
_new: Final = tuple.__new__


class NewMessage(NamedTuple):
    """A message to store, in stored form: body perhaps compressed, properties joined by 0x01 and
    0x02, hosts 8 or 20 bytes.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    sys_flag: int = 0
    flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = bytes(8)
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class SendAnswer(NamedTuple):
    """Answer to a send, without the place of its messages."""

    # None: it is one-way, and not answered
    opaque: int | None
    queue_id: int
    # the unique key of the message, or of the batch if it has one
    key: str | None
    # the number of records with its messages
    records: int = 1
    # one more field of the header: its name and value
    more: tuple[str, str] | None = None


class Origin(NamedTuple):
    """The parts of a message that a broker adds, the same for all of one connection.

    *properties* are in the form of the record.
    """

    properties: bytes
    born_host: bytes
    store_host: bytes


class SendKind(enum.IntEnum):
    """Kinds of requests, by header and properties alone."""

    PLAIN = 0
    """Store one message as it is, where it was sent."""
    BATCH = 1
    """Store several messages, all or none."""
    SPECIAL = 2
    """Store one message that needs a full check: delayed or sent again, without a unique key, or
    with numbers that no client sends.
    """
    HALF = 3
    """Store the message of a transaction, in the form that producers send."""
    END = 4
    """Commit a transaction, or roll it back."""


class Signed(NamedTuple):
    """The signature of a request: it covers *values* and the body."""

    access_key: str
    signature: str
    values: bytes


def _body_in(request: bytes | RemotingCommand) -> tuple[bytes, int]:
    """Return the bytes that hold the body of a request, and where it begins."""
    if isinstance(request, bytes):
        return request, 4 + int.from_bytes(request[1:4])
    return request.body, 0


class Send(NamedTuple):
    """A client's request to store messages."""

    code: int
    kind: int
    message: NewMessage
    """The message of a plain send is ready to be stored; others have their properties as they were
    sent.

    The messages of a batch share it; its properties are those of the batch, and its body is empty.
    """
    answer: SendAnswer
    signed: Signed | None
    """None unless the request has an access key and a signature."""
    request: bytes | RemotingCommand
    """The frame, or the command that was decoded already."""

    @property
    def command(self) -> RemotingCommand:
        """The whole request, with the fields that few sends need."""
        return decode_command(self.request) if isinstance(self.request, bytes) else self.request

    @property
    def batch(self) -> tuple[bytes, int]:
        """The bytes that hold the messages of a batch, and the position at which these begin."""
        return _body_in(self.request)

    @property
    def body(self) -> bytes | memoryview:
        """The body of the request."""
        if self.kind != SendKind.BATCH:
            return self.message.body
        data, start = self.batch
        return memoryview(data)[start:]

    def field(self, name: str) -> str | None:
        """Return a field of the header by its long name, see SendMessageRequestHeader."""
        names = LONG_NAMES if self.code == _SEND_LONG else SHORT_NAMES
        return self.command.ext_fields.get(getattr(names, name))


class Ending(NamedTuple):
    """End of a transaction, with both offsets of its half message."""

    group: str
    queue_offset: int
    commitlog_offset: int
    decision: int


class End(NamedTuple):
    """A client's request to end a transaction. Its fields are in the order of those of a Send."""

    code: int
    kind: int
    ending: Ending
    answer: SendAnswer
    signed: Signed | None
    request: bytes
    """The frame."""

    @property
    def command(self) -> RemotingCommand:
        """The whole request."""
        return decode_command(self.request)

    @property
    def body(self) -> bytes | memoryview:
        """The body of the request, which is not used, but is covered by a signature."""
        data, start = _body_in(self.request)
        return memoryview(data)[start:]


class SendNames(NamedTuple):
    """Names of the fields in a send's header."""

    topic: str
    queue_id: str
    sys_flag: str
    born_timestamp: str
    flag: str
    properties: str
    reconsume_times: str
    max_reconsume_times: str
    default_topic: str
    default_topic_queues: str
    unit_mode: str
    batch: str


LONG_NAMES: Final = SendNames(
    "topic",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "maxReconsumeTimes",
    "defaultTopic",
    "defaultTopicQueueNums",
    "unitMode",
    "batch",
)
SHORT_NAMES: Final = SendNames("b", "e", "f", "g", "h", "i", "j", "l", "c", "d", "k", "m")


def read_send(
    command: RemotingCommand, origin: Origin, request: bytes | RemotingCommand | None = None
) -> Send:
    """Return the send in *command*.

    Raises ProtocolError if a field is missing, or is not a number.
    """
    ext = command.ext_fields
    # half the cost of attribute look-ups
    topic_name, queue_id_name, sys_flag_name, born_name, flag_name, text_name, times_name, *_ = (
        names := LONG_NAMES if command.code == _SEND_LONG else SHORT_NAMES
    )
    try:
        topic = ext[topic_name]
        queue_id = parse_int(ext[queue_id_name])
        sys_flag = parse_int(ext.get(sys_flag_name, "0"))
        born_ms = parse_long(ext[born_name])
        flag = parse_int(ext.get(flag_name, "0"))
        times = parse_int(ext.get(times_name, "0"))
    except (KeyError, ValueError) as exc:
        raise ProtocolError(
            f"send header: {'field missing' if isinstance(exc, KeyError) else 'no integer'}: {exc}"
        ) from None
    properties, key = ext.get(text_name, "").encode(), None
    kind = SendKind.SPECIAL
    others = sys_flag & ~CLIENT_FLAGS
    if command.code == _SEND_BATCH or parse_bool(ext.get(names.batch, "")):
        kind, key = SendKind.BATCH, _plain_key(properties)
    elif topic[:1] not in ("", "%") and not others & ~_PREPARED and fit(born_ms, flag, times):
        stored = b""
        if not others and (key := _plain_key(properties)) is not None:
            stored = properties + (b"" if properties[-1] == 2 else b"\x02") + origin.properties
        if stored and len(stored) <= MAX_PROPERTIES_BYTES:
            kind, properties = SendKind.PLAIN, stored
        elif (key := None if times else _half_key(properties)) is not None:
            kind = SendKind.HALF
    message = _new(
        NewMessage,
        (
            topic,
            queue_id,
            b"" if kind == SendKind.BATCH else command.body,
            properties,
            sys_flag,
            flag,
            born_ms,
            origin.born_host,
            origin.store_host,
            times,
            0,
        ),
    )
    return Send(
        command.code,
        kind,
        message,
        SendAnswer(
            None if command.flag & _ONEWAY else command.opaque,
            queue_id,
            None if key is None else key.decode(),
        ),
        _signed(command),
        command if request is None else request,
    )


def _read_end(command: RemotingCommand, frame: bytes) -> End:
    """Return the end of a transaction. Raises ProtocolError if its fields are unusual."""
    ext = command.ext_fields
    try:
        ending = Ending(
            ext["producerGroup"],
            parse_long(ext["tranStateTableOffset"]),
            parse_long(ext["commitLogOffset"]),
            _DECISIONS[ext["commitOrRollback"]],
        )
    except (KeyError, ValueError) as exc:
        raise ProtocolError(f"end of a transaction: {exc}") from None
    answer = SendAnswer(None if command.flag & _ONEWAY else command.opaque, 0, None)
    return End(command.code, SendKind.END, ending, answer, _signed(command), frame)


def fit(born_ms: int, flag: int, reconsume_times: int) -> bool:
    """Return True if these are numbers that a client may send."""
    return (
        0 <= born_ms <= MAX_LONG and -MAX_INT <= flag <= MAX_INT and 0 <= reconsume_times <= MAX_INT
    )


_UNIQ_KEY: Final = b"UNIQ_KEY\x01"
_SPECIAL_NAMES: Final = (
    b"DELAY\x01",
    b"TRAN_MSG\x01",
    b"TIMER_",
    b"POP_CK\x01",
    b"INNER_NUM\x01",
    b"_SYS_MSG_PRIORITY_\x01",
    # it was stored by a broker before
    b"CLUSTER\x01",
)


def _plain_key(properties: bytes) -> bytes | None:
    """Return the unique key of a message with these properties; None if it is not plain."""
    at = properties.find(_UNIQ_KEY)
    if (
        at < 0
        or (at and properties[at - 1] != 2)
        # if there are two, the last counts
        or properties.find(_UNIQ_KEY, at + 1) >= 0
        or any(name in properties for name in _SPECIAL_NAMES)
    ):
        return None
    at += len(_UNIQ_KEY)
    end = properties.find(b"\x02", at)
    return properties[at:end] if end >= 0 else properties[at:]


# properties of half messages that need a full check
_NOT_IN_HALVES: Final = frozenset(
    (
        b"DELAY",
        b"POP_CK",
        b"INNER_NUM",
        b"_SYS_MSG_PRIORITY_",
        b"CLUSTER",
        b"MSG_REGION",
        b"TRACE_ON",
        b"TRANSACTION_CHECK_TIMES",
        b"TRAN_PREPARED_QUEUE_OFFSET",
        b"CHECK_IMMUNITY_TIME_IN_SECONDS",
        b"__transactionId__",
        b"REAL_TOPIC",
        b"REAL_QID",
        b"__CRC32#",
    )
)
_MAX_HALF_NAMES: Final = 32
_DECISIONS: Final = {
    str(int(decision)): int(decision) for decision in (Decision.COMMIT, Decision.ROLLBACK)
}


def _half_key(properties: bytes) -> bytes | None:
    """Return the unique key of a half message in the form that producers send; None for other
    properties.
    """
    if b"TRAN_MSG\x01true" not in properties:
        return None
    pairs = [one.partition(b"\x01") for one in properties.removesuffix(b"\x02").split(b"\x02")]
    found = {name: value for name, _, value in pairs}
    if (
        len(pairs) > _MAX_HALF_NAMES
        or len(found) < len(pairs)
        or not all(name and value for name, _, value in pairs)
        or not _NOT_IN_HALVES.isdisjoint(found)
        or any(b"TIMER_" in name for name in found)
        or found.get(b"TRAN_MSG") != b"true"
        or b"PGROUP" not in found
    ):
        return None
    return found.get(b"UNIQ_KEY")


def _signed(command: RemotingCommand) -> Signed | None:
    ext = command.ext_fields
    access_key, signature = ext.get(ACCESS_KEY), ext.get(SIGNATURE)
    if not access_key or not signature:
        return None
    return Signed(access_key, signature, signed_values(ext, command.version))


def read_sends_in_python(
    frames: list[bytes], at: int, most: int, most_bytes: int, most_body: int, origin: Origin
) -> list[Send | End]:
    """Return consecutive sends of one code and kind from frames[at] on. Half messages and ends of
    transactions count as one kind.

    There are at most *most*, and if there are several frames, they have at most *most_bytes*. The
    list ends before a send with a body of more than *most_body* bytes, one with the long names, and
    one that cannot be read: decode_command() and read_send() are for these.
    """
    sends: list[Send | End] = []
    size = 0
    for frame in islice(frames, at, at + max(0, most)):
        size += len(frame)
        if (sends and size > most_bytes) or not _may_be_send(frame):
            break
        try:
            command = decode_command(frame)
            send = (
                _read_end(command, frame)
                if command.code == _END
                else read_send(command, origin, frame)
            )
        except ProtocolError:
            break
        if (
            command.code not in _CODES
            or command.flag & ~_ONEWAY
            or len(command.body) > most_body
            or (sends and not _goes_on(sends[0], send))
        ):
            break
        sends.append(send)
    return sends


def _goes_on(first: Send | End, send: Send | End) -> bool:
    """Return True if *send* is of the code and kind of *first*."""
    return first[:2] == send[:2] or (first.kind >= SendKind.HALF and send.kind >= SendKind.HALF)


def _may_be_send(frame: bytes) -> bool:
    """Return True if the header seems to have one of _CODES."""
    if frame[:1] == b"\x01":
        return int.from_bytes(frame[4:6]) in _CODES
    end = 4 + int.from_bytes(frame[1:4])
    return any(frame.find(b'"code":%d' % code, 4, end) >= 0 for code in _CODES)


_FORMS: Final = (Send, NewMessage, SendAnswer, Signed, End, Ending)
read_sends: Final[Callable[[list[bytes], int, int, int, int, Origin], list[Send | End]]] = (
    read_sends_in_python if native is None else partial(native.read_sends, _FORMS)
)


# offset of a record in the commit log
_OFFSET: Final = struct.Struct(">q")


def encode_answers_in_python(
    answers: list[SendAnswer],
    places: list[Any],
    region: str,
    store_host: bytes,
    version: int,
) -> bytes:
    """Return the frames of *answers*, one behind the other.

    *places* holds the PutResult of each. Raises ValueError if they are not as many.
    """
    if len(places) != len(answers):
        raise ValueError("the places are not those of the answers")
    frames: list[bytes] = []
    for (opaque, queue_id, key, _, more), place in zip(answers, places, strict=True):
        if opaque is None:
            continue
        queue_offset, commitlog_offset, _, _, of_batch = place
        offsets = [offset for (offset,) in _OFFSET.iter_unpack(of_batch)] or [commitlog_offset]
        ids = offset_message_ids(store_host, offsets)
        head = (
            f'{{"code":0,"extFields":{{"queueId":"{queue_id}",'
            + ("" if key is None else f'"transactionId":{_json(key)},')
            + f'"msgId":"{ids}","TRACE_ON":"true","MSG_REGION":{_json(region)},'
            + ("" if more is None else f"{_json(more[0])}:{_json(more[1])},")
            + f'"queueOffset":"{queue_offset}"}},"flag":1,"language":"PYTHON",'
            f'"opaque":{opaque},"serializeTypeCurrentRPC":"JSON","version":{version}}}'
        ).encode()
        frames.append((4 + len(head)).to_bytes(4) + len(head).to_bytes(4) + head)
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


def _entry(name: str, value: str) -> bytes:
    key, text = name.encode(), value.encode()
    return b"%b%b%b%b" % (len(key).to_bytes(2), key, len(text).to_bytes(4), text)


class SendEncoder:
    """Encoder for sends of one producer group to one queue, from parts that are built once."""

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
            # their names are last in the order of names
            **request_fields,
        }
        self._credentials = credentials
        if credentials is not None:
            fixed = credentials.fields | fixed
            # the signed values in the order of the names: all from AccessKey to "e", then f g h i,
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
        """Return the frame of SEND_MESSAGE_V2, for one message.

        *properties* in their stored form, not empty; *born_ms* has at most 13 digits (until the
        year 2286), and leading zeros where a clock was not set and is before 2001.
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
        flags = _ONEWAY if oneway else 0
        return _head(_SEND, opaque, flags, entries, born_ms, properties, len(body)) + body

    def batch(self, opaque: int, born_ms: int, properties: bytes, body: bytes) -> bytes:
        """Return the frame of SEND_BATCH_MESSAGE; *body* in the form of ``encode_batch``."""
        return self.batch_head(opaque, born_ms, properties, body) + body

    def batch_head(self, opaque: int, born_ms: int, properties: bytes, body: bytes) -> bytes:
        """Return the frame of SEND_BATCH_MESSAGE up to its *body*."""
        entries = self._batch
        if self._credentials is not None:
            entries += self._signature(
                self._credentials, 0, born_ms, 0, properties, body, batch=True
            )
        return _head(_SEND_BATCH, opaque, 0, entries, born_ms, properties, len(body))

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
        values = b"%b%d%013d%d%b%b" % (
            self._values_before,
            sys_flag,
            born_ms,
            flag,
            properties,
            self._values_after[batch],
        )
        return _entry(SIGNATURE, credentials.signature(values, body))


def _head(
    code: int,
    opaque: int,
    flag: int,
    entries: bytes,
    born_ms: int,
    properties: bytes,
    body_bytes: int,
) -> bytes:
    """Return a frame up to its body."""
    # 20 bytes of "g" with its 13 digits, 7 bytes of name and length before the properties
    size = len(entries) + 27 + len(properties)
    header = _HEADER_FIXED + size
    head = _HEAD.pack(
        4 + header + body_bytes, _BINARY | header, code, _PYTHON, VERSION, opaque, flag, 0, size
    )
    return b"%b%b\0\1g\0\0\0\x0d%013d\0\1i%b%b" % (
        head,
        entries,
        born_ms,
        len(properties).to_bytes(4),
        properties,
    )


# --- a broker's answers ---------------------------------------------------------------------------

_STORED: Final = {status.value: status for status in SendStatus}


def read_answer(
    answer: RemotingCommand, queue: MessageQueue, address: str, key: str = ""
) -> SendResult | OgiveError:
    """Return the result of a send to *queue* of the broker at *address*, or the error if it was
    refused.

    The result's id is *key*, or if that is empty, the broker's id.
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
