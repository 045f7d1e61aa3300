"""RemotingCommand and its two header encodings.

Source: RemotingCommand.java, RemotingSerializable.java, RocketMQSerializable.java.
"""

import json
import struct
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Any, Final, NoReturn, Self

from ogive.errors import ProtocolError
from ogive.native import native
from ogive.wire.codes import VERSION, Flag, LanguageCode, SerializeType
from ogive.wire.java_json import holds_half_a_character

# Frames on a byte stream: length u32 | serialize type u8 + header length u24 | header | body
# (big-endian).


MAX_FRAME_BYTES = 16 * 1024 * 1024 - 4
"""Largest value of the length word; with its own four bytes a frame is at most 16 MiB.

Source: NettyDecoder.java.
"""

MAX_HEADER_BYTES = 256 * 1024
"""Limit for a header: 32,767 bytes of properties with every character escaped need 196,602, and
such a send is valid.
"""

# parts of a frame that are shorter are put together
_SMALL_PART = 4096
# larger frames that come in parts are put together in a buffer that is used again
_LARGE_FRAME = 64 * 1024
_MAX_ROOMS = 2
_MAX_ROOM_BYTES = 4 * 1024 * 1024


class SplitFrame(bytes):
    """A frame up to the end of its header, with its body in a buffer of the decoder.

    The buffer belongs to the frame as long as anybody holds a view of it. New memory for each of
    such frames would cost as much as copying them.
    """

    body: memoryview

    @classmethod
    def of(cls, whole: memoryview) -> Self | None:
        """Return None for a frame that is shorter than its header says."""
        header_end = 4 + (int.from_bytes(whole[:4]) & 0xFFFFFF)
        if len(whole) < header_end:
            return None
        frame = cls(whole[:header_end])
        frame.body = whole[header_end:]
        return frame


class FrameDecoder:
    """Splits a byte stream into frames.

    A frame is one ``bytes`` without its length word. After a ProtocolError the rest of the stream
    has no meaning: the connection must be closed.
    """

    __slots__ = ("_buffered", "_max", "_needed", "_pending", "_room", "_rooms", "_splits")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES, *, splits: bool = False) -> None:
        """*splits*: large frames that come in several reads may be SplitFrames."""
        # the beginning of an incomplete frame, as it was received
        self._pending: list[bytes] = []
        self._buffered = 0
        self._max = max_frame_bytes
        self._splits = splits
        # bytes needed before the next check
        self._needed = 4
        # has the beginning of an incomplete large frame instead
        self._room: bytearray | None = None
        self._rooms: list[bytearray] = []

    @property
    def buffered(self) -> int:
        """Bytes of the incomplete frame."""
        return self._buffered

    def feed(self, data: bytes) -> tuple[list[bytes], ProtocolError | None]:
        """Return the frames that *data* completes, and the error after them, if any.

        The frames before the error are valid.
        """
        frames: list[bytes] = []
        if self._buffered:
            if self._buffered + len(data) < self._needed:
                self._keep(data)
                return [], None
            if self._needed > 4:
                # a single copy, which may be megabytes
                more = self._needed - self._buffered
                frames.append(self._finish(memoryview(data)[:more]))
                data = data[more:]
            else:
                data = b"".join((*self._pending, data))
            self._pending, self._buffered = [], 0
        at, end = 0, len(data)
        self._needed = 4
        if native is not None:
            usual, at = native.frames(data, self._max)
            frames += usual
        while end - at >= 4:
            size = int.from_bytes(data[at : at + 4])
            if not 4 <= size <= self._max:
                return frames, ProtocolError(
                    _stranger(data[at : at + 4]) or f"frame length {size} is outside 4..{self._max}"
                )
            if end - at - 4 < size:
                self._needed = size + 4
                break
            frames.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        if self._rooms and frames and type(frames[-1]) is bytes:
            # the large answers are over
            self._rooms.clear()
        if at < end:
            self._keep(data[at:] if at else data)
        return frames, None

    def _keep(self, data: bytes) -> None:
        """Keep *data*, small parts in one, so that they take no more memory than their bytes."""
        if self._splits and self._needed > _LARGE_FRAME:
            if self._room is None:
                self._room = self._unused_room()
            self._fill(self._room, data)
        elif self._pending and len(self._pending[-1]) < _SMALL_PART:
            self._pending[-1] += data
        else:
            self._pending.append(data)
        self._buffered += len(data)

    def _fill(self, room: bytearray, data: bytes | memoryview) -> None:
        room[self._buffered : self._buffered + len(data)] = data

    def _finish(self, last: memoryview) -> bytes:
        """Return the incomplete frame, which ends with *last*."""
        room, self._room = self._room, None
        if room is None:
            return b"".join((memoryview(self._pending[0])[4:], *self._pending[1:], last))
        self._fill(room, last)
        if len(room) > _MAX_ROOM_BYTES:
            self._rooms.clear()
        whole = memoryview(room).toreadonly()[4 : self._needed]
        return SplitFrame.of(whole) or bytes(whole)

    def _unused_room(self) -> bytearray:
        """Return a buffer of which nobody holds a view."""
        for room in self._rooms:
            try:
                room.append(0)
            except BufferError:
                continue
            del room[-1:]
            return room
        room = bytearray()
        self._rooms = [room, *self._rooms[: _MAX_ROOMS - 1]]
        return room


_HTTP = frozenset((b"HTTP", b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"CONN"))
# alert, handshake
_TLS_KINDS, _TLS_MAJOR = (0x15, 0x16), 3


def _stranger(start: bytes) -> str | None:
    """Return a sentence about the protocol of a peer's first bytes, or None if it is unknown.

    The usual cause is the address or port of another service.
    """
    if start == b"PRI ":
        return (
            "it speaks gRPC: clients of RocketMQ 5 need the broker's gRPC port, "
            "--grpc-port of `ogive up`, 8081 by default"
        )
    if start in _HTTP:
        return "it speaks HTTP, not RocketMQ's protocol: is that the right port?"
    if start[0] in _TLS_KINDS and start[1] == _TLS_MAJOR:
        return "it speaks TLS, and this side does not"
    return None


MAX_EXT_FIELDS = 256
# in both directions: orjson reads integers just below -2**63 as -2.0**63, so that value is refused
# too
_MAX_LONG: Final = 0x7FFF_FFFF_FFFF_FFFF

# code, language, version, opaque, flag, remark length
_BINARY_FIXED: Final = struct.Struct(">hBhiii")
# a frame's head word; the same fields; the length of the extension fields, which follow if there is
# no remark
_BINARY_PLAIN: Final = struct.Struct(">4xhBhiiii")
_LEAST_BINARY: Final = _BINARY_PLAIN.size - 4
_I32: Final = struct.Struct(">i")
_U32: Final = struct.Struct(">I")
# name length, a name of one letter, value length
_SHORT_ENTRY: Final = struct.Struct(">HxI")
_LANGUAGE_NAMES: Final = {language.name: int(language) for language in LanguageCode}
_LANGUAGES: Final = frozenset(map(int, LanguageCode))
_JSON: Final = int(SerializeType.JSON)
_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)


@dataclass(slots=True)
class RemotingCommand:
    """One request or response.

    ``opaque`` pairs a response with its request, per connection and direction. *language* is one of
    LanguageCode; a peer's unknown language is read as OTHER.
    """

    code: int
    ext_fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: int = LanguageCode.PYTHON
    version: int = VERSION
    serialize_type: int = _JSON
    view: memoryview | None = field(default=None, repr=False, compare=False)
    """The body of a SplitFrame, until ``keep_body``."""

    def keep_body(self) -> None:
        """Copy the body out of the decoder's buffer."""
        if self.view is not None:
            self.body, self.view = bytes(self.view), None

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & Flag.ONEWAY)


def encode_command(command: RemotingCommand) -> bytes:
    """Return the whole frame, length word included.

    Raises ProtocolError if the command does not fit the protocol.
    """
    if command.serialize_type == _JSON:
        header = _encode_json(command)
    elif command.serialize_type == _ROCKETMQ:
        header = _encode_binary(command)
    else:
        raise ProtocolError(f"unknown serialize type {command.serialize_type}")
    total = 4 + len(header) + len(command.body)
    if len(header) > MAX_HEADER_BYTES or total > MAX_FRAME_BYTES:
        raise ProtocolError(
            f"a frame of {total} bytes with a header of {len(header)} is over the limit"
        )
    return b"%b%b%b%b" % (
        total.to_bytes(4),
        (command.serialize_type << 24 | len(header)).to_bytes(4),
        header,
        command.body,
    )


def decode_command(frame: bytes) -> RemotingCommand:
    """Return the command in a frame (without its length word); the body of a SplitFrame is its
    *view*. Raises ProtocolError.
    """
    command = _decode_whole(frame)
    if isinstance(frame, SplitFrame):
        command.view = frame.body
    return command


def _decode_whole(frame: bytes) -> RemotingCommand:
    if native is not None and (parts := native.binary_command(frame)) is not None:
        return RemotingCommand(*parts)
    word = int.from_bytes(frame[:4])
    serialize_type, header_end = word >> 24, 4 + (word & 0xFFFFFF)
    if len(frame) < 4 or header_end > len(frame):
        raise ProtocolError(
            f"a header of {header_end - 4} bytes does not fit a frame of {len(frame)}"
        )
    if header_end - 4 > MAX_HEADER_BYTES:
        raise ProtocolError(
            f"a header of {header_end - 4} bytes is over the limit of {MAX_HEADER_BYTES}"
        )
    if serialize_type == _ROCKETMQ:
        return _decode_binary(frame, header_end)
    if serialize_type == _JSON:
        return _decode_json(frame, header_end)
    raise ProtocolError(f"unknown serialize type {serialize_type}")


# --- JSON -----------------------------------------------------------------------------------------


def _encode_json(command: RemotingCommand) -> bytes:
    """Write keys in Java's order, without spaces, and text as UTF-8.

    This takes half the time of json.dumps.
    """
    quote = encode_basestring
    ext = ",".join([f"{quote(name)}:{quote(value)}" for name, value in command.ext_fields.items()])
    remark = "" if command.remark is None else f'"remark":{quote(command.remark)},'
    language = LanguageCode(command.language).name
    text = (
        f'{{"code":{command.code},"extFields":{{{ext}}},"flag":{int(command.flag)},'
        f'"language":"{language}","opaque":{command.opaque},'
        f'{remark}"serializeTypeCurrentRPC":"JSON","version":{command.version}}}'
    )
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise ProtocolError(f"header text cannot be written as UTF-8: {exc.reason}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ProtocolError(f"{name} is not a JSON number")


_standard_decode: Final = json.JSONDecoder(parse_constant=_refuse_constant).decode


def _standard_loads(raw: bytes) -> Any:
    try:
        text = raw.decode()
        value = _standard_decode(text)
    except (ValueError, RecursionError) as exc:
        # invalid UTF-8 or JSON, an integer that is too long to parse, nested too deeply
        raise ProtocolError(f"header is not JSON: {exc}") from None
    if holds_half_a_character(text):
        raise ProtocolError("header holds half a character, which no UTF-8 can hold")
    return value


try:
    import orjson
except ImportError:
    _loads = _standard_loads
else:

    def _loads(raw: bytes) -> Any:
        """Read with orjson, and let the standard reader refuse the text if orjson refuses it.

        So there is one wording of errors. Two differences are left, and no field shows them. orjson
        reads an integer over 64 bits as a float: _int32 and _text_fields refuse it in either form.
        It reads slightly deeper nesting than Python's recursion limit allows: such values are not
        used.
        """
        try:
            return orjson.loads(raw)
        except ValueError:
            return _standard_loads(raw)


def _decode_json(frame: bytes, header_end: int) -> RemotingCommand:
    header = _loads(frame[4:header_end])
    if not isinstance(header, dict):
        raise ProtocolError("header is not a JSON object")
    ext = header.get("extFields")
    remark = header.get("remark")
    if remark is not None and not isinstance(remark, str):
        raise ProtocolError("header field remark is not text")
    language = header.get("language")
    if isinstance(language, str):
        language = _LANGUAGE_NAMES.get(language, LanguageCode.OTHER)
    return RemotingCommand(
        _int32(header, "code"),
        {} if ext is None else _text_fields(ext),
        frame[header_end:],
        _int32(header, "opaque"),
        _int32(header, "flag"),
        remark,
        language if isinstance(language, int) and language in _LANGUAGES else LanguageCode.OTHER,
        _int32(header, "version"),
        _JSON,
    )


def _int32(header: dict[str, Any], name: str) -> int:
    value = header.get(name, 0)
    if type(value) is not int or not -0x80000000 <= value <= 0x7FFFFFFF:
        raise ProtocolError(f"header field {name} is not a 32-bit integer")
    return value


def _text_fields(ext: Any) -> dict[str, str]:
    """Return the extension fields as text.

    Java writes every value as a string; the C++ client writes some numbers bare, and null means
    absent.
    """
    if not isinstance(ext, dict):
        raise ProtocolError("extFields is not a JSON object")
    if len(ext) > MAX_EXT_FIELDS:
        raise ProtocolError(f"{len(ext)} extension fields are over the limit of {MAX_EXT_FIELDS}")
    fields: dict[str, str] = {}
    for name, value in ext.items():
        if type(value) is str:
            fields[name] = value
        elif value is True or value is False:
            fields[name] = "true" if value else "false"
        elif type(value) is int or type(value) is float:
            if not -_MAX_LONG <= value <= _MAX_LONG:
                raise ProtocolError(f"extension field {name[:64]!r} is not a 64-bit number")
            fields[name] = str(value)
        elif value is not None:
            raise ProtocolError(f"extension field {name[:64]!r} is neither text nor number")
    return fields


# --- ROCKETMQ -------------------------------------------------------------------------------------


def _encode_binary(command: RemotingCommand) -> bytes:
    if not -0x8000 <= command.code <= 0x7FFF:
        raise ProtocolError(f"code {command.code} does not fit the binary header; send it as JSON")
    try:
        remark = b"" if command.remark is None else command.remark.encode()
        parts = [b"", remark, b""]
        size = 0
        for name, value in command.ext_fields.items():
            key, text = name.encode(), value.encode()
            parts.append(b"%b%b%b%b" % (len(key).to_bytes(2), key, len(text).to_bytes(4), text))
            size += 6 + len(key) + len(text)
        parts[0] = _BINARY_FIXED.pack(
            command.code,
            command.language,
            command.version,
            command.opaque,
            command.flag,
            len(remark),
        )
    except (UnicodeEncodeError, OverflowError, struct.error) as exc:
        raise ProtocolError(f"command does not fit the binary header: {exc}") from None
    parts[2] = _I32.pack(size)
    return b"".join(parts)


def _decode_binary(frame: bytes, header_end: int) -> RemotingCommand:
    if header_end < 4 + _LEAST_BINARY:
        raise ProtocolError(f"a binary header of {header_end - 4} bytes is too short")
    code, language, version, opaque, flag, remark_length, ext_length = _BINARY_PLAIN.unpack_from(
        frame
    )
    remark, at = None, 4 + _LEAST_BINARY
    try:
        if remark_length:
            if not 0 < remark_length <= header_end - at:
                raise ProtocolError(f"remark length {remark_length} does not fit the header")
            remark = frame[at - 4 : at - 4 + remark_length].decode()
            at += remark_length
            (ext_length,) = _I32.unpack_from(frame, at - 4)
        if not 0 <= ext_length <= header_end - at:
            raise ProtocolError(f"extension length {ext_length} does not fit the header")
        end = at + ext_length
        fields = _binary_fields(frame, at, end)
    except (struct.error, IndexError):
        raise ProtocolError("binary header ends in the middle of a field") from None
    except UnicodeDecodeError as exc:
        raise ProtocolError(f"binary header holds text that is not UTF-8: {exc.reason}") from None
    if len(fields) > MAX_EXT_FIELDS:
        raise ProtocolError(
            f"{len(fields)} extension fields are over the limit of {MAX_EXT_FIELDS}"
        )
    if language not in _LANGUAGES:
        language = LanguageCode.OTHER
    return RemotingCommand(
        code, fields, frame[header_end:], opaque, flag, remark, language, version, _ROCKETMQ
    )


def _binary_fields(frame: bytes, at: int, end: int) -> dict[str, str]:
    """Read name length u16 | name | value length u32 | value, and so on.

    One call decodes all names and values that are ASCII; only the others are decoded one by one.
    """
    fields: dict[str, str] = {}
    # a character for each byte, so offsets mean the same in both
    text = frame[:end].decode("latin-1")
    short_entry = _SHORT_ENTRY.unpack_from
    while at < end:
        name_size, value_size = short_entry(frame, at)
        # all names of a send are letters
        if name_size == 1 and (name := text[at + 2]) < "\x80":
            at += 7
        else:
            name_end = at + 2 + name_size
            (value_size,) = _U32.unpack_from(frame, name_end)
            name = text[at + 2 : name_end]
            if not name.isascii():
                name = frame[at + 2 : name_end].decode()
            at = name_end + 4
        value_end = at + value_size
        if value_end > end:
            raise ProtocolError("an extension field does not fit the header")
        value = text[at:value_end]
        # Java decodes an empty one to null: absent
        if name and value:
            fields[name] = value if value.isascii() else frame[at:value_end].decode()
        at = value_end
    return fields


# --- numbers and booleans in text: in headers, properties, settings and tables --------------------
# longer numbers fit into no record
_DIGITS: Final = 9
_LONG_DIGITS: Final = 19
_INT_BITS: Final = 31
_LONG_BITS: Final = 63


def whole_number(text: str) -> int | None:
    """Return the queue id, delay level or count in *text*, or None if it is not a number."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None


def parse_long(text: str) -> int:
    """Return the number in *text* as Java's Long.parseLong reads it.

    That is an optional sign and decimal digits, also with leading zeros and of other scripts;
    unlike int(), it accepts neither blanks nor underscores. Raises ValueError if Java throws
    NumberFormatException.
    """
    if text.isascii() and text.isdecimal() and len(text) < _LONG_DIGITS:
        return int(text)
    return _parse(text, _LONG_BITS)


def parse_int(text: str) -> int:
    """Return the number in *text* as Java's Integer.parseInt reads it. Raises as parse_long()."""
    if text.isascii() and text.isdecimal() and len(text) <= _DIGITS:
        return int(text)
    return _parse(text, _INT_BITS)


def parse_bool(text: str) -> bool:
    """Return True for *true* in any case, as Java's Boolean.parseBoolean does, and for 1, which the
    C++ client writes.
    """
    return text.lower() == "true" or text == "1"


def _parse(text: str, bits: int) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    # Java reads UTF-16 units: a digit above U+FFFF is two of them, and neither is a digit.
    if not digits.isdecimal() or max(digits) > "\uffff":
        raise ValueError(f"not a number: {text[:40]!r}")
    significant = digits.lstrip("0")
    value = int(significant or "0") if len(significant) <= _LONG_DIGITS else 1 << _LONG_BITS
    value = -value if text[0] == "-" else value
    if not -(1 << bits) <= value < 1 << bits:
        raise ValueError(f"not a number of {bits + 1} bits: {text[:40]!r}")
    return value
