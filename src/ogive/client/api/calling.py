"""What all calls share: header, request, check."""

from typing import Final

from ogive.errors import ResponseCode, broker_error
from ogive.transport.pool import ConnectionPool
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import Header, encode_header

REQUEST_TIMEOUT_S: Final = 3.0  # mqClientApiTimeout


def request(header: Header, body: bytes = b"") -> RemotingCommand:
    """The command that carries *header*."""
    return RemotingCommand(header.code, encode_header(header), body)


def check(reply: RemotingCommand, address: str) -> RemotingCommand:
    """*reply*, if it says SUCCESS; else raises the BrokerError for its code."""
    if reply.code == ResponseCode.SUCCESS:
        return reply
    raise broker_error(reply.code, reply.remark, address)


async def ask(
    pool: ConnectionPool, address: str, header: Header, timeout_s: float, body: bytes = b""
) -> RemotingCommand:
    """The answer, which says SUCCESS."""
    return check(await pool.call(address, request(header, body), timeout_s), address)
