"""Tables that brokers from 5.4 on send in pages, and older ones in one piece."""

from collections.abc import Callable
from typing import Any, Final

from ogive.client.api.calling import ask
from ogive.errors import ProtocolError
from ogive.transport.pool import ConnectionPool
from ogive.wire.bodies import loads_table
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import Header

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
    """The rows of *table*, whose requests *header* makes from the row to begin with; *total* is the
    field that says how many there are.
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
