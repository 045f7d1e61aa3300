"""Compression of bodies. Source: CompressorFactory.java, MessageSysFlag.java, 5.3.

zlib is always available. LZ4 (frame format) and ZSTD need the libraries of ``ogive[compression]``,
which are loaded at their first use.
"""

import zlib
from collections.abc import Callable
from typing import Final, Literal

from ogive.errors import CompressionUnavailable, ProtocolError
from ogive.wire.codes import SysFlag

CompressionType = Literal["zlib", "lz4", "zstd"]

# limit for one body, so that a decompression bomb cannot fill the memory
MAX_INFLATED_BYTES: Final = 32 * 1024 * 1024
# input bytes at a time, because the output has no limit: four of them can become 128 KiB
_ZSTD_STEP: Final = 1024


def compress(body: bytes, kind: CompressionType = "zlib", level: int = 5) -> tuple[bytes, int]:
    """Return the shorter form of *body*, and the sysFlag bits for it.

    Raises CompressionUnavailable.
    """
    flag, pack, _ = _CODECS[kind]
    return pack(body, level), SysFlag.COMPRESSED | flag


def decompress(body: bytes, sys_flag: int, limit: int = MAX_INFLATED_BYTES) -> bytes:
    """Decompress a body to at most *limit* bytes. No type bits mean zlib: all clients before 5.0.

    Raises ProtocolError for a body that is damaged, too long, or in an unknown compression;
    CompressionUnavailable.
    """
    kind = _KINDS.get(sys_flag & SysFlag.COMPRESSION_MASK)
    if kind is None:
        raise ProtocolError(
            f"body is compressed in an unknown way ({sys_flag & SysFlag.COMPRESSION_MASK:#x})"
        )
    plain = _CODECS[kind][2](body, limit)
    if len(plain) > limit:
        raise ProtocolError(f"body inflates to more than {limit} bytes")
    return plain


def require(kind: CompressionType) -> None:
    """Raise CompressionUnavailable if *kind* cannot be used here."""
    _CODECS[kind][1](b"", 1)


# --- the codecs: unpack gives at most limit + 1 bytes ---------------------------------------------


def _pack_zlib(body: bytes, level: int) -> bytes:
    return zlib.compress(body, level)


def _unpack_zlib(body: bytes, limit: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, limit + 1)
    except zlib.error as exc:
        raise ProtocolError(f"body is not a zlib stream: {exc}") from None
    if len(plain) <= limit and not inflater.eof:
        raise ProtocolError("compressed body ends in the middle")
    return plain


def _pack_lz4(body: bytes, level: int) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise _unavailable("lz4") from None
    packed: bytes = lz4.frame.compress(body, compression_level=0, content_checksum=False)
    return packed


def _unpack_lz4(body: bytes, limit: int) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise _unavailable("lz4") from None
    inflater = lz4.frame.LZ4FrameDecompressor()
    try:
        plain: bytes = inflater.decompress(body, max_length=limit + 1)
    except RuntimeError as exc:
        raise ProtocolError(f"body is not an LZ4 frame: {exc}") from None
    if len(plain) <= limit and not inflater.eof:
        raise ProtocolError("compressed body ends in the middle")
    return plain


def _pack_zstd(body: bytes, level: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise _unavailable("zstd") from None
    return zstandard.ZstdCompressor(level=level).compress(body)


def _unpack_zstd(body: bytes, limit: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise _unavailable("zstd") from None
    inflater = zstandard.ZstdDecompressor(max_window_size=MAX_INFLATED_BYTES).decompressobj()
    plain = bytearray()
    try:
        for at in range(0, len(body), _ZSTD_STEP):
            plain += inflater.decompress(body[at : at + _ZSTD_STEP])
            if inflater.eof or len(plain) > limit:
                break
    except zstandard.ZstdError as exc:
        raise ProtocolError(f"body is not a ZSTD frame: {exc}") from None
    if len(plain) <= limit and not inflater.eof:
        raise ProtocolError("compressed body ends in the middle")
    return bytes(plain)


def _unavailable(kind: CompressionType) -> CompressionUnavailable:
    return CompressionUnavailable(
        f"bodies compressed with {kind} need another library: pip install 'ogive[compression]'"
    )


_Codec = tuple[int, Callable[[bytes, int], bytes], Callable[[bytes, int], bytes]]
_CODECS: Final[dict[CompressionType, _Codec]] = {
    "zlib": (SysFlag.ZLIB, _pack_zlib, _unpack_zlib),
    "lz4": (SysFlag.LZ4, _pack_lz4, _unpack_lz4),
    "zstd": (SysFlag.ZSTD, _pack_zstd, _unpack_zstd),
}
_KINDS: Final[dict[int, CompressionType]] = {
    0: "zlib",
    SysFlag.ZLIB: "zlib",
    SysFlag.LZ4: "lz4",
    SysFlag.ZSTD: "zstd",
}
