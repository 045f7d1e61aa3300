"""gRPC over HTTP/2: messages, timeouts, statuses. Source: gRPC's PROTOCOL-HTTP2.md."""

import struct
import zlib
from typing import Final, NamedTuple

from ogive.http2 import hpack
from ogive.proxy.calls import CallError, GrpcStatus

_PREFIX: Final = struct.Struct(">BI")
_GZIP: Final = 16 + zlib.MAX_WBITS
_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_HEAD: Final = [(b":status", b"200"), (b"content-type", b"application/grpc")]
# grpc-message, before it is encoded: a header block must fit into a frame
_MOST_CHARS: Final = 1000

RESPONSE_HEAD: Final = hpack.encode(_HEAD)
OK_TRAILERS: Final = hpack.encode([(b"grpc-status", b"0")])


def parse_timeout(text: str) -> float:
    """Return the seconds of a grpc-timeout. Raises ValueError."""
    digits, unit = text[:-1], text[-1:]
    if unit not in _SECONDS or not (digits.isascii() and digits.isdigit() and len(digits) <= 8):
        raise ValueError(f"grpc-timeout {text[:20]!r}: up to 8 digits and a unit are expected")
    return int(digits) * _SECONDS[unit]


def message_frame(message: bytes) -> bytes:
    """Return a message with its prefix, not compressed."""
    return _PREFIX.pack(0, len(message)) + message


def trailers(code: GrpcStatus, message: str, *, only: bool) -> bytes:
    """Return the header block that ends a call. *only*: nothing of the response was sent before."""
    encoded = "".join(
        chr(byte) if 0x20 <= byte < 0x7F and byte != 0x25 else f"%{byte:02X}"
        for byte in message[:_MOST_CHARS].encode("utf-8", "replace")
    )
    block = [
        *(_HEAD if only else []),
        (b"grpc-status", b"%d" % code),
        (b"grpc-message", encoded.encode()),
    ]
    if code == GrpcStatus.UNIMPLEMENTED:
        block.append((b"grpc-accept-encoding", b"identity,gzip"))
    return hpack.encode(block)


class Received(NamedTuple):
    """A message as it arrived."""

    data: bytes
    is_compressed: bool

    @property
    def size(self) -> int:
        """Bytes of the request that it took."""
        return _PREFIX.size + len(self.data)


class MessageReader:
    """Splitter of a request's data into messages."""

    __slots__ = ("_buffer", "_encoding", "_max_bytes")

    def __init__(self, encoding: str, max_bytes: int) -> None:
        """*encoding*: the request's grpc-encoding. *max_bytes*: limit of a message."""
        self._encoding = encoding
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the incomplete message."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Received]:
        """Return the messages that are complete now, for ``plain``. Raises CallError for one that
        is too large, or compressed without an encoding.
        """
        buffer = self._buffer
        buffer += data
        messages = []
        at = 0
        while len(buffer) - at >= _PREFIX.size:
            flag, size = _PREFIX.unpack_from(buffer, at)
            if size > self._max_bytes:
                raise self._too_large()
            if flag > 1:
                raise CallError(GrpcStatus.INTERNAL, f"message flag {flag} must be 0 or 1")
            if flag and self._encoding != "gzip":
                raise CallError(
                    GrpcStatus.INTERNAL, "a compressed message needs the header grpc-encoding: gzip"
                )
            begin = at + _PREFIX.size
            if len(buffer) - begin < size:
                break
            at = begin + size
            messages.append(Received(bytes(buffer[begin:at]), bool(flag)))
        del buffer[:at]
        return messages

    def plain(self, received: Received) -> bytes:
        """Return a message, decompressed: a thousand times its size, which must not wait in memory.

        Raises CallError for one that is too large or cannot be decompressed.
        """
        if not received.is_compressed:
            return received.data
        inflater = zlib.decompressobj(_GZIP)
        try:
            inflated = inflater.decompress(received.data, self._max_bytes)
        except zlib.error as exc:
            raise CallError(GrpcStatus.INTERNAL, f"a message is not gzip data: {exc}") from None
        if inflater.unconsumed_tail:
            raise self._too_large()
        if not inflater.eof:
            raise CallError(GrpcStatus.INTERNAL, "a gzip message is incomplete")
        return inflated

    def _too_large(self) -> CallError:
        return CallError(
            GrpcStatus.RESOURCE_EXHAUSTED,
            f"a message of a request must have at most {self._max_bytes} bytes",
        )
