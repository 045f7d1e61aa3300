"""HAProxy's PROXY header, with which a load balancer names the client before its first byte.

Source: haproxy.org's proxy-protocol.txt, versions 1 and 2.
"""

import asyncio
import ipaddress
import socket
import ssl
import struct
from collections.abc import Callable
from functools import partial
from typing import Final

from ogive.transport.acceptor import Acceptor

V1_BEGIN: Final = b"PROXY "
V1_MAX_BYTES: Final = 107
V2_BEGIN: Final = b"\r\n\r\n\x00\r\nQUIT\n"
# version and command, family and protocol, size of the rest
_V2_HEAD: Final = struct.Struct(">12sBBH")
# of the rest, which may contain more than addresses
V2_MAX_BYTES: Final = 4096
# until the rest of a header is looked for the first time
_PAUSE_S: Final = 0.005
_V2_ADDRESSES: Final = {0x11: struct.Struct(">4s4sHH"), 0x21: struct.Struct(">16s16sHH")}

Client = tuple[str, int]


class ProxyHeaderError(OSError):
    """A PROXY header is malformed."""


def header_size(data: bytes) -> int | None:
    """Return the size of the PROXY header at the start of *data*: 0 if there is none, None if that
    is not known yet. Raises ProxyHeaderError.
    """
    if data.startswith(V1_BEGIN):
        end = data.find(b"\r\n")
        if end < 0 and len(data) > V1_MAX_BYTES:
            raise ProxyHeaderError("its PROXY header has no end")
        return end + 2 if end >= 0 else None
    if data.startswith(V2_BEGIN):
        if len(data) < _V2_HEAD.size:
            return None
        size = int(_V2_HEAD.unpack_from(data)[3])
        if size > V2_MAX_BYTES:
            raise ProxyHeaderError(f"its PROXY header has {size} bytes, above {V2_MAX_BYTES}")
        return _V2_HEAD.size + size if len(data) >= _V2_HEAD.size + size else None
    # a piece of one of both, or of HTTP/2's preface
    return None if V1_BEGIN.startswith(data) or V2_BEGIN.startswith(data) else 0


def parse_header(header: bytes) -> Client | None:
    """Return the client that a PROXY header names; None if it names none, as for health checks.

    Raises ProxyHeaderError.
    """
    return _parse_v1(header) if header.startswith(V1_BEGIN) else _parse_v2(header)


def _parse_v1(header: bytes) -> Client | None:
    words = header.decode("ascii", "replace").split()
    if words[1:2] == ["UNKNOWN"]:
        return None
    try:
        _, family, source, _, port, _ = words
        if not port.isdecimal() or int(port) > 65_535:
            raise ValueError(port)
        # a scope may be any text
        if family not in ("TCP4", "TCP6") or "%" in source:
            raise ValueError(source)
        return str(ipaddress.ip_address(source)), int(port)
    except ValueError:
        raise ProxyHeaderError("its PROXY header is malformed") from None


def _parse_v2(header: bytes) -> Client | None:
    _, command, family, size = _V2_HEAD.unpack_from(header)
    if command >> 4 != 2:
        raise ProxyHeaderError(f"its PROXY header has version {command >> 4}")
    addresses = _V2_ADDRESSES.get(family)
    # LOCAL, or a family that has no port
    if command & 0xF != 1 or addresses is None:
        return None
    if size < addresses.size:
        raise ProxyHeaderError("its PROXY header is too short for its addresses")
    source, _, port, _ = addresses.unpack_from(header, _V2_HEAD.size)
    return str(ipaddress.ip_address(source)), int(port)


class ProxyAcceptor(Acceptor):
    """Acceptor that reads a PROXY header, and makes protocols with the client that it names."""

    def __init__(
        self,
        protocol: Callable[[Client | None], asyncio.Protocol],
        context: ssl.SSLContext | None,
        *,
        plain_too: bool,
        greeting_s: float,
        admit: Callable[[str, int, int], bool],
        no_tls_reason: str,
    ) -> None:
        super().__init__(
            partial(protocol, None),
            context,
            plain_too=plain_too,
            greeting_s=greeting_s,
            admit=admit,
            no_tls_reason=no_tls_reason,
        )
        self._named = protocol

    async def _begin(
        self, connection: socket.socket
    ) -> tuple[Callable[[], asyncio.Protocol], bytes]:
        """Read the header away, see Acceptor._begin. Raises ProxyHeaderError."""
        pause_s = _PAUSE_S
        while True:
            await self._readable(connection)
            data = connection.recv(_V2_HEAD.size + V2_MAX_BYTES, socket.MSG_PEEK)
            size = header_size(data) if data else 0
            if size is not None:
                break
            # what has come stays readable, and many may never send the rest
            await asyncio.sleep(pause_s)
            pause_s *= 2
        if not size:
            return self._protocol, data[:1]
        client = parse_header(connection.recv(size))
        _, first = await super()._begin(connection)
        return partial(self._named, client), first
