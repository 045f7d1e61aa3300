"""Frames on a byte stream: length u32 | serialize type u8 + header length u24 | header | body
(big-endian).
"""

from collections.abc import Sequence
from typing import Self

from ogive.errors import ProtocolError
from ogive.native import native

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


class SplitFrame(bytes):
    """A frame up to the end of its header, with its body beside it: megabytes are copied once."""

    body: bytes

    @classmethod
    def of(cls, first: memoryview, rest: Sequence[bytes | memoryview]) -> Self | None:
        """Join the parts of a frame. Return None unless the whole header is in the first one."""
        header_end = 4 + (int.from_bytes(first[:4]) & 0xFFFFFF)
        if len(first) < header_end:
            return None
        frame = cls(first[:header_end])
        frame.body = b"".join((first[header_end:], *rest))
        return frame


class FrameDecoder:
    """Splits a byte stream into frames.

    A frame is one ``bytes`` without its length word. After a ProtocolError the rest of the stream
    has no meaning: the connection must be closed.
    """

    __slots__ = ("_buffered", "_max", "_needed", "_pending", "_splits")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES, *, splits: bool = False) -> None:
        """*splits*: frames that come in several reads may be SplitFrames."""
        # the beginning of an incomplete frame, as it was received
        self._pending: list[bytes] = []
        self._buffered = 0
        self._max = max_frame_bytes
        self._splits = splits
        # bytes needed in _pending before the next check
        self._needed = 4

    @property
    def buffered(self) -> int:
        """Bytes of the incomplete frame."""
        return self._buffered

    def feed(self, data: bytes) -> tuple[list[bytes], ProtocolError | None]:
        """Return the frames that *data* completes, and the error after them, if any.

        The frames before the error are valid.
        """
        frames: list[bytes] = []
        if self._pending:
            if self._buffered + len(data) < self._needed:
                self._keep(data)
                return [], None
            if self._needed > 4:
                # a single copy, which may be megabytes
                more = self._needed - self._buffered
                first = memoryview(self._pending[0])[4:]
                rest: list[bytes | memoryview] = [*self._pending[1:], memoryview(data)[:more]]
                split = SplitFrame.of(first, rest) if self._splits else None
                frames.append(b"".join((first, *rest)) if split is None else split)
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
        if at < end:
            self._keep(data[at:] if at else data)
        return frames, None

    def _keep(self, data: bytes) -> None:
        """Keep *data*, small parts in one, so that they take no more memory than their bytes."""
        self._buffered += len(data)
        if self._pending and len(self._pending[-1]) < _SMALL_PART:
            self._pending[-1] += data
        else:
            self._pending.append(data)


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
