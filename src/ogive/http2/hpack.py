"""Header compression. Source: RFC 7541.

Blocks are decoded in full. Encoded ones use the static table only: they change no state, so a block
can be kept and sent again.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

Headers = list[tuple[bytes, bytes]]

# SETTINGS_HEADER_TABLE_SIZE's default, which a peer must not exceed
TABLE_BYTES: Final = 4096
# what an entry counts besides its name and value
ENTRY_BYTES: Final = 32
# most digits of a number: 28 bits
_MOST_DIGITS: Final = 4

_NAMES: Final = """\
accept-language accept-ranges accept access-control-allow-origin age allow authorization
cache-control content-disposition content-encoding content-language content-length content-location
content-range content-type cookie date etag expect expires from host if-match if-modified-since
if-none-match if-range if-unmodified-since last-modified link location max-forwards
proxy-authenticate proxy-authorization range referer refresh retry-after server set-cookie
strict-transport-security transfer-encoding user-agent vary via www-authenticate"""
_STATIC: Final[Headers] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    *((b":status", b"%d" % code) for code in (200, 204, 206, 304, 400, 404, 500)),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    *((name.encode(), b"") for name in _NAMES.split()),
]
_INDEX: Final = {entry: at for at, entry in enumerate(_STATIC, 1)}
_NAME_INDEX: Final = {name: at for at, (name, _) in reversed(list(enumerate(_STATIC, 1)))}

_SYMBOLS: Final = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: b"\x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4"
    b"\xc6\xe4\xe8\xe9",
    23: b"\x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b\x9d\x9e\xa5\xa6\xa8\xae\xaf\xb4"
    b"\xb6\xb7\xbc\xbf\xc5\xe7\xef",
    24: b"\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff",
    27: b"\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe",
    28: b"\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12\x13\x14\x15\x17\x18\x19\x1a\x1b"
    b"\x1c\x1d\x1e\x1f\x7f\xdc\xf9",
    30: b"\n\r\x16",
}
"""Symbols by the length of their Huffman code, in the order of their codes: the code is canonical.

The code of the end of a text, 30 ones, comes last; a text must not contain it.
"""

_Node = list["_Node | int | None"]


class HpackError(Exception):
    """A header block is malformed, or too large. The connection cannot go on."""


def _tree() -> _Node:
    root: _Node = [None, None]
    code = before = 0
    for length, symbols in _SYMBOLS.items():
        for symbol in symbols:
            code <<= length - before
            before = length
            node = root
            for bit in range(length - 1, 0, -1):
                way = code >> bit & 1
                child = node[way]
                if not isinstance(child, list):
                    child = node[way] = [None, None]
                node = child
            node[code & 1] = symbol
            code += 1
    return root


class _Huffman:
    """Huffman decoder: steps of a byte, each computed once, at most 256 for each inner node."""

    def __init__(self) -> None:
        self._root = _tree()
        # inner nodes by number, and the steps from them by byte: (number of the next node, output)
        self._nodes: list[_Node] = [self._root]
        self._numbers: dict[int, int] = {id(self._root): 0}
        self._steps: dict[int, tuple[int, bytes]] = {}
        # where a text may end: after at most 7 ones of padding
        self._ends = {0}
        node = self._root
        for _ in range(7):
            child = node[1]
            assert isinstance(child, list), "no symbol is only ones"
            node = child
            self._ends.add(self._number(node))

    def _number(self, node: _Node) -> int:
        number = self._numbers.get(id(node))
        if number is None:
            number = self._numbers[id(node)] = len(self._nodes)
            self._nodes.append(node)
        return number

    def _step(self, key: int) -> tuple[int, bytes]:
        node, out = self._nodes[key >> 8], bytearray()
        for bit in range(7, -1, -1):
            child = node[key >> bit & 1]
            if child is None:
                raise HpackError("invalid Huffman code")
            if isinstance(child, int):
                out.append(child)
                child = self._root
            node = child
        found = self._steps[key] = (self._number(node), bytes(out))
        return found

    def decode(self, data: bytes) -> bytes:
        at, out, steps = 0, [], self._steps
        for byte in data:
            key = at << 8 | byte
            at, text = steps.get(key) or self._step(key)
            out.append(text)
        if at not in self._ends:
            raise HpackError("invalid Huffman padding")
        return b"".join(out)


_huffman: Final = _Huffman()


class HpackDecoder:
    """Decoder of the header blocks of one direction of a connection."""

    def __init__(self, max_list_bytes: int) -> None:
        """*max_list_bytes*: limit of one decoded block, whose headers count as in a table."""
        self._max_list_bytes = max_list_bytes
        # the newest first
        self._table: deque[tuple[bytes, bytes]] = deque()
        self._table_bytes = 0
        self._most_bytes = TABLE_BYTES

    def decode(self, block: bytes) -> Headers:
        """Return the headers of a block. Raises HpackError."""
        headers: Headers = []
        at, end, room = 0, len(block), self._max_list_bytes
        try:
            while at < end:
                first = block[at]
                if first >= 0x80:
                    index, at = _integer(block, at, 0x7F)
                    header = self._entry(index)
                elif first & 0xE0 == 0x20:
                    if headers:
                        raise HpackError("change of the table's size after a header")
                    size, at = _integer(block, at, 0x1F)
                    self._resize(size)
                    continue
                else:
                    indexed = first >= 0x40
                    index, at = _integer(block, at, 0x3F if indexed else 0x0F)
                    if index:
                        name = self._entry(index)[0]
                    else:
                        name, at = _text(block, at)
                    value, at = _text(block, at)
                    header = (name, value)
                    if indexed:
                        self._add(header)
                room -= len(header[0]) + len(header[1]) + ENTRY_BYTES
                if room < 0:
                    raise HpackError(f"headers of more than {self._max_list_bytes} bytes")
                headers.append(header)
        except IndexError:
            raise HpackError("incomplete header block, or no such entry") from None
        return headers

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if index > len(_STATIC):
            return self._table[index - len(_STATIC) - 1]
        if not index:
            raise HpackError("there is no entry 0")
        return _STATIC[index - 1]

    def _add(self, header: tuple[bytes, bytes]) -> None:
        size = len(header[0]) + len(header[1]) + ENTRY_BYTES
        self._evict(self._most_bytes - size)
        if size <= self._most_bytes:
            self._table.appendleft(header)
            self._table_bytes += size

    def _resize(self, size: int) -> None:
        if size > TABLE_BYTES:
            raise HpackError(f"a table of {size} bytes, at most {TABLE_BYTES} are allowed")
        self._most_bytes = size
        self._evict(size)

    def _evict(self, most: int) -> None:
        while self._table and self._table_bytes > most:
            name, value = self._table.pop()
            self._table_bytes -= len(name) + len(value) + ENTRY_BYTES


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Return a number, and the position after it. Raises IndexError for an incomplete block."""
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    for digit in range(_MOST_DIGITS):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << 7 * digit
        if byte < 0x80:
            return value, at
    raise HpackError("a number is too large")


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    is_huffman = block[at] >= 0x80
    size, at = _integer(block, at, 0x7F)
    raw = block[at : at + size]
    if len(raw) < size:
        raise HpackError("a text is longer than its block")
    return _huffman.decode(raw) if is_huffman else raw, at + size


def encode(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a block that adds nothing to the peer's table."""
    out = bytearray()
    for name, value in headers:
        index = _INDEX.get((name, value))
        if index is not None:
            out.append(0x80 | index)
            continue
        index = _NAME_INDEX.get(name, 0)
        _put_integer(out, index, 0x0F)
        if not index:
            _put_integer(out, len(name), 0x7F)
            out += name
        _put_integer(out, len(value), 0x7F)
        out += value
    return bytes(out)


def _put_integer(out: bytearray, value: int, mask: int) -> None:
    if value < mask:
        out.append(value)
        return
    out.append(mask)
    value -= mask
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
