"""Settings and figures of a broker."""

from ogive.client.api.calling import REQUEST_TIMEOUT_S, ask
from ogive.errors import ProtocolError
from ogive.model import DelayLevels
from ogive.transport.pool import ConnectionPool
from ogive.wire import headers as h
from ogive.wire.bodies import kv_table_loads


async def broker_settings(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> dict[str, str]:
    """A broker's configuration, by the names of broker.conf."""
    text = (await ask(pool, address, h.GetBrokerConfigRequest(), timeout_s)).body.decode(
        "utf-8", "replace"
    )
    return dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)


async def broker_runtime_info(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> dict[str, str]:
    return kv_table_loads(
        (await ask(pool, address, h.GetBrokerRuntimeInfoRequest(), timeout_s)).body
    )


async def delay_levels(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> DelayLevels:
    """The delays behind the levels, from the broker's settings (lines as in broker.conf)."""
    levels = (await broker_settings(pool, address, timeout_s=timeout_s)).get("messageDelayLevel")
    if levels is None:
        raise ProtocolError(f"{address} shows settings without messageDelayLevel")
    return DelayLevels.parse(levels)
