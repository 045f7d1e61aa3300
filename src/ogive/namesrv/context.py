"""The name server's state as handlers see it, and how they answer."""

from collections.abc import Callable
from dataclasses import dataclass

from ogive.namesrv.config import NameServerConfig
from ogive.namesrv.kv_config import KvConfig
from ogive.namesrv.route_table import RouteTable
from ogive.wire.codes import ResponseCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import Header, encode_header


@dataclass(slots=True, kw_only=True)
class Context:
    # another one after UPDATE_NAMESRV_CONFIG
    config: NameServerConfig
    routes: RouteTable
    kv: KvConfig
    now: Callable[[], float]  # seconds, monotonic


@dataclass(frozen=True, slots=True)
class Call:
    """A request without its header: who asks, how new the asker is, and what came with it."""

    # the connection's number, see route_table
    owner: int
    version: int
    body: bytes


def success(header: Header | None = None, body: bytes = b"") -> RemotingCommand:
    """SUCCESS; dispatch adds opaque and flag."""
    return RemotingCommand(
        ResponseCode.SUCCESS, {} if header is None else encode_header(header), body
    )
