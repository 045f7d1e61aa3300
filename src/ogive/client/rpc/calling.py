"""Parts that all requests share: header, call, check, paging; answers to brokers.

From 5.4 on brokers send large tables in pages.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from ogive.errors import ProtocolError, ResponseCode, broker_error
from ogive.transport.pool import ConnectionPool
from ogive.wire.bodies.json_fields import loads_table
from ogive.wire.codes import Flag
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import Header, encode_header

# mqClientApiTimeout
REQUEST_TIMEOUT_S: Final = 3.0


class Caller(Protocol):
    """The way to a peer: a ConnectionPool, or a link of the proxy."""

    async def call(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        """Send a request to *address*, and return its answer, whatever its code."""


def request(header: Header, body: bytes = b"") -> RemotingCommand:
    """Return the command that carries *header*."""
    return RemotingCommand(header.code, encode_header(header), body)


def check(reply: RemotingCommand, address: str) -> RemotingCommand:
    """Return *reply* if it says SUCCESS, else raise the BrokerError for its code."""
    if reply.code == ResponseCode.SUCCESS:
        return reply
    raise broker_error(reply.code, reply.remark, address)


async def ask(
    pool: Caller, address: str, header: Header, timeout_s: float, body: bytes = b""
) -> RemotingCommand:
    """Send a request. Return the answer, which says SUCCESS."""
    return check(await pool.call(address, request(header, body), timeout_s), address)


def success(ext_fields: Mapping[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
    """Return an answer to a broker's request; opaque is filled in where it is sent."""
    return RemotingCommand(ResponseCode.SUCCESS, dict(ext_fields or {}), body, flag=Flag.RESPONSE)


def refusal(code: int, remark: str) -> RemotingCommand:
    """Return an answer that says why a broker's request was not carried out."""
    return RemotingCommand(code, {}, flag=Flag.RESPONSE, remark=remark)


# topics or groups that a broker of 5.4 answers at a time
PAGE: Final = 2000
MAX_PAGED: Final = 200_000


async def pages(
    header: Callable[[int], Header],
    table: str,
    total: str,
    pool: ConnectionPool,
    address: str,
    timeout_s: float,
) -> list[tuple[str, Any]]:
    """Return all rows of *table*, asked for page by page; *header* makes the request for the page
    from a row on, and *total* is the field with the number of rows.
    """
    rows: dict[str, Any] = {}
    seq = 0
    while True:
        reply = await ask(pool, address, header(seq), timeout_s)
        page = loads_table(reply.body).get(table)
        if not isinstance(page, dict):
            raise ProtocolError(f"{address} answered without {table}")
        rows |= page
        seq += PAGE
        if not page or seq >= _int_field(reply, total, default=len(page)) or seq >= MAX_PAGED:
            return [(str(name), row) for name, row in rows.items()]


def _int_field(reply: RemotingCommand, name: str, *, default: int) -> int:
    text = reply.ext_fields.get(name, "")
    return int(text) if text.isdecimal() else default
