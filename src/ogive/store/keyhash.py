"""Java's String.hashCode of many keys at once.

The polynomial is folded for a whole batch in a few operations on one long integer: neighbouring
lanes of 8, 16, 32 and 64 bits become one of twice the width. Key by key it would be the costliest
step of a send. A Java client's unique key has 32 characters where its host has an IPv4 address, and
56 where it has only an IPv6 one.
"""

import struct
from collections.abc import Sequence
from typing import Final

from ogive.wire.message import java_hash

BATCH: Final = 128
_WIDTH: Final = 32
_WIDE: Final = 2 * _WIDTH
_MASK: Final = 0xFFFFFFFF
_MASK_8, _MASK_16, _MASK_32, _MASK_64 = (
    int.from_bytes((bytes(lane) + b"\xff" * lane) * (_WIDE * BATCH // (2 * lane)))
    for lane in (1, 2, 4, 8)
)
_P2, _P4, _P8 = 31**2, 31**4, 31**8
_P16: Final = 31**16 & _MASK
_P32: Final = 31**32 & _MASK
_P48: Final = 31**48 & _MASK
_POWERS: Final = tuple([pow(31, n, 1 << 32) for n in range(_WIDE + 1)])
_halves: Final = struct.Struct(">12xI12xI").iter_unpack
_quarters: Final = struct.Struct(">12xI12xI12xI12xI").iter_unpack


def java_hashes(prefixes: Sequence[int], keys: Sequence[bytes]) -> list[int]:
    """For each key the hash of its prefix (a hash, see java_prefix) with the key behind it, from 0
    to 2**32 - 1.
    """
    longest = max(map(len, keys), default=0)
    plain = (
        keys
        if longest <= _WIDE and all(map(bytes.isascii, keys))
        else [_short(key) for key in keys]
    )
    tails: list[int] = []
    for at in range(0, len(plain), BATCH):
        tails += _fold(plain[at : at + BATCH], _WIDTH if longest <= _WIDTH else _WIDE)
    if plain is keys:
        return [
            (prefix * _POWERS[len(key)] + tail) & _MASK
            for prefix, key, tail in zip(prefixes, keys, tails, strict=True)
        ]
    return [
        (prefix * _POWERS[len(key)] + tail) & _MASK
        if len(key) <= _WIDE and key.isascii()
        else _long(prefix, key)
        for prefix, key, tail in zip(prefixes, keys, tails, strict=True)
    ]


def java_prefix(text: bytes) -> int:
    """The hash of what stands before the keys, as java_hashes() takes it."""
    return java_hash(text.decode("utf-8", "replace")) & _MASK


def _short(key: bytes) -> bytes:
    return key if len(key) <= _WIDE and key.isascii() else b""


def _fold(keys: Sequence[bytes], width: int) -> list[int]:
    """Hashes of ASCII keys of at most *width* bytes, 32 or 64.

    Zeros before a key add nothing to the polynomial.
    """
    x = int.from_bytes(b"".join([key.rjust(width, b"\0") for key in keys]))
    x = (x & _MASK_8) + 31 * ((x >> 8) & _MASK_8)
    x = (x & _MASK_16) + _P2 * ((x >> 16) & _MASK_16)
    x = (x & _MASK_32) + _P4 * ((x >> 32) & _MASK_32)
    x = (x & _MASK_64) + _P8 * ((x >> 64) & _MASK_64)
    lanes = x.to_bytes(width * len(keys))
    if width == _WIDTH:
        return [(high * _P16 + low) & _MASK for high, low in _halves(lanes)]
    return [(a * _P48 + b * _P32 + c * _P16 + d) & _MASK for a, b, c, d in _quarters(lanes)]


def _long(prefix: int, key: bytes) -> int:
    """A key of any length in any alphabet: in UTF-16 units where it is not ASCII, else in blocks of
    32.
    """
    if not key.isascii():
        units = key.decode("utf-8", "replace").encode("utf-16-be")
        for at in range(0, len(units), 2):
            prefix = (31 * prefix + (units[at] << 8 | units[at + 1])) & _MASK
        return prefix
    first = len(key) % _WIDTH
    blocks = [key[:first], *[key[at : at + _WIDTH] for at in range(first, len(key), _WIDTH)]]
    for at in range(0, len(blocks), BATCH):
        for block, tail in zip(
            blocks[at : at + BATCH], _fold(blocks[at : at + BATCH], _WIDTH), strict=True
        ):
            prefix = (
                prefix * (_P32 if len(block) == _WIDTH else _POWERS[len(block)]) + tail
            ) & _MASK
    return prefix
