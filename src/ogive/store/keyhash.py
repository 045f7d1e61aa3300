"""Java's String.hashCode of many keys at once.

The polynomial is folded for a whole batch in a few operations on one long integer: neighbouring lanes of 8, 16, 32 and 64 bits become
one of twice the width. Key by key it would be the dearest step of a send.
"""

import struct
from collections.abc import Sequence
from typing import Final

from ogive.wire.message import java_hash

BATCH: Final = 128
_WIDTH: Final = 32
_MASK: Final = 0xFFFFFFFF
_MASK_8, _MASK_16, _MASK_32, _MASK_64 = (
    int.from_bytes((bytes(lane) + b"\xff" * lane) * (_WIDTH * BATCH // (2 * lane))) for lane in (1, 2, 4, 8)
)
_P2, _P4, _P8 = 31**2, 31**4, 31**8
_P16: Final = 31**16 & _MASK
_P32: Final = 31**32 & _MASK
_MOST: Final = 2 * _WIDTH  # an id of Java's client has 32 digits, or 56 where the machine has no IPv4 address to show
_POWERS: Final = tuple([pow(31, n, 1 << 32) for n in range(_MOST + 1)])
_halves: Final = struct.Struct(">12xI12xI").iter_unpack


def java_hashes(prefixes: Sequence[int], keys: Sequence[bytes]) -> list[int]:
    """For each key the hash of its prefix (a hash, see java_prefix) with the key behind it, from 0 to 2**32 - 1.

    1.5 us a key of up to 32 bytes, 2.5 us up to 64; one by one, as longer ones are and others than ASCII, it is 10 us.
    """
    if not keys:
        return []
    plain = keys if all(len(key) <= _MOST and key.isascii() for key in keys) else [_short(key) for key in keys]
    if max([len(key) for key in plain]) <= _WIDTH:
        tails = _folded(plain)
    else:
        heads, ends = _folded([key[:-_WIDTH] for key in plain]), _folded([key[-_WIDTH:] for key in plain])
        tails = [head * _P32 + end for head, end in zip(heads, ends, strict=True)]
    if plain is keys:
        return [(prefix * _POWERS[len(key)] + tail) & _MASK for prefix, key, tail in zip(prefixes, keys, tails, strict=True)]
    return [
        (prefix * _POWERS[len(key)] + tail) & _MASK if len(key) <= _MOST and key.isascii() else _long(prefix, key)
        for prefix, key, tail in zip(prefixes, keys, tails, strict=True)
    ]


def java_prefix(text: bytes) -> int:
    """The hash of what stands before the keys, as java_hashes() takes it."""
    return java_hash(text.decode("utf-8", "replace")) & _MASK


def _short(key: bytes) -> bytes:
    return key if len(key) <= _MOST and key.isascii() else b""


def _folded(keys: Sequence[bytes]) -> list[int]:
    if len(keys) <= BATCH:
        return _fold(keys)
    found: list[int] = []
    for at in range(0, len(keys), BATCH):
        found += _fold(keys[at : at + BATCH])
    return found


def _fold(keys: Sequence[bytes]) -> list[int]:
    """Hashes of ASCII keys of at most 32 bytes. Zeros before a key add nothing to the polynomial."""
    x = int.from_bytes(b"".join([key.rjust(_WIDTH, b"\0") for key in keys]))
    x = (x & _MASK_8) + 31 * ((x >> 8) & _MASK_8)
    x = (x & _MASK_16) + _P2 * ((x >> 16) & _MASK_16)
    x = (x & _MASK_32) + _P4 * ((x >> 32) & _MASK_32)
    x = (x & _MASK_64) + _P8 * ((x >> 64) & _MASK_64)
    return [(high * _P16 + low) & _MASK for high, low in _halves(x.to_bytes(_WIDTH * len(keys)))]


def _long(prefix: int, key: bytes) -> int:
    """A key of any length in any alphabet: in UTF-16 units where it is not ASCII, else in blocks of 32."""
    if not key.isascii():
        units = key.decode("utf-8", "replace").encode("utf-16-be")
        for at in range(0, len(units), 2):
            prefix = (31 * prefix + (units[at] << 8 | units[at + 1])) & _MASK
        return prefix
    first = len(key) % _WIDTH
    blocks = [key[:first], *[key[at : at + _WIDTH] for at in range(first, len(key), _WIDTH)]]
    for at in range(0, len(blocks), BATCH):
        for block, tail in zip(blocks[at : at + BATCH], _fold(blocks[at : at + BATCH]), strict=True):
            prefix = (prefix * (_P32 if len(block) == _WIDTH else _POWERS[len(block)]) + tail) & _MASK
    return prefix
