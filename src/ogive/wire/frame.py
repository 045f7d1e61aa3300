"""Frames on a byte stream: length u32 | serialize type u8 + header length u24 | header | body
(big-endian).
"""

from ogive.errors import ProtocolError
from ogive.native import native

MAX_FRAME_BYTES = 16 * 1024 * 1024 - 4
"""Largest value of the length word; with its own four bytes a frame is at most 16 MiB.

Source: NettyDecoder.java.
"""

MAX_HEADER_BYTES = 256 * 1024
"""32,767 bytes of properties with every character escaped need 196,602: a legal send must pass."""


class FrameDecoder:
    """Splits a byte stream into frames.

    A frame is one ``bytes`` without its length word. After a ProtocolError the rest of the stream
    has no meaning: the connection must be closed.
    """

    __slots__ = ("_max", "_needed", "_pending")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        # the start of a frame that is not complete; grows in amortised constant time
        self._pending = bytearray()
        self._max = max_frame_bytes
        # bytes of _pending before it is worth looking again
        self._needed = 4

    @property
    def buffered(self) -> int:
        """Bytes held of the frame that is not complete yet."""
        return len(self._pending)

    def feed(self, data: bytes) -> tuple[list[bytes], ProtocolError | None]:
        """Return the frames that *data* completes, and the error behind them, if any.

        The frames before the error are valid.
        """
        frames: list[bytes] = []
        if self._pending:
            self._pending += data
            if len(self._pending) < self._needed:
                return [], None
            pending, self._pending = memoryview(self._pending), bytearray()
            # of a frame that came in many parts: one copy of its megabytes instead of two
            if self._needed > 4:
                frames.append(bytes(pending[4 : self._needed]))
                pending = pending[self._needed :]
            data = bytes(pending)
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
            self._pending += data[at:] if at else data
        return frames, None


_HTTP = frozenset((b"HTTP", b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"CONN"))
# an alert, a greeting
_TLS_KINDS, _TLS_MAJOR = (0x15, 0x16), 3


def _stranger(start: bytes) -> str | None:
    """Return a sentence about the protocol of a peer's first bytes, or None if it is unknown.

    The usual cause is the address or port of another service.
    """
    if start in _HTTP:
        return "it speaks HTTP, not RocketMQ's protocol: is that the right port?"
    if start[0] in _TLS_KINDS and start[1] == _TLS_MAJOR:
        return "it speaks TLS, and this side does not"
    return None
