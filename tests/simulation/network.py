"""Connections between nodes: ordered bytes that take their time, are held up, or end."""

import asyncio
import contextvars
import errno
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from ogive.wire.codes import Flag, RequestCode
from tests.simulation.loop import Node, VirtualLoop, VirtualSocket, current_node

Factory = Callable[[], asyncio.BaseProtocol]


MEMBERSHIP: Final = frozenset(
    {
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
    }
)


@dataclass(frozen=True, slots=True)
class Mischief:
    """Faults of requests with one of *codes*: the shares that are lost and doubled, and the longest
    delay of each copy.
    """

    lost: float = 0.0
    doubled: float = 0.0
    late_s: float = 0.0
    once: frozenset[int] = frozenset()
    """Codes of requests that are never doubled."""
    codes: frozenset[int] = MEMBERSHIP


def frames_of(data: bytes) -> list[bytes] | None:
    """The whole frames that *data* consists of; None if it does not."""
    frames, at = [], 0
    while at + 8 <= len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4])
        frames.append(data[at:end])
        at = end
    return frames if at == len(data) else None


def request_code(frame: bytes) -> int | None:
    """Return the code of a request with a JSON header, None for any other frame."""
    if frame[4] != 0:
        return None
    header = json.loads(frame[8 : 8 + int.from_bytes(frame[5:8])])
    return None if header["flag"] & Flag.RESPONSE else int(header["code"])


class Wire(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self, network: "Network", node: Node | None, own: tuple[str, int], peer: tuple[str, int]
    ) -> None:
        super().__init__({"peername": peer, "sockname": own})
        self.network, self.node = network, node
        self.context = contextvars.copy_context()
        self.protocol: asyncio.Protocol
        self.other: Wire
        self.closed = False
        self._closing = False
        self._reading = True
        self._arrived: deque[bytes] = deque()
        self._last_arrival = 0.0
        self._on_the_way = 0

    # --- sending ----------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self.closed:
            return
        if self.network.mischief is not None and (frames := frames_of(bytes(data))) is not None:
            for frame in frames:
                self._write_maybe(frame, self.network.mischief)
        else:
            self._write(bytes(data))

    def _write_maybe(self, frame: bytes, mischief: Mischief) -> None:
        """Late ones are overtaken by those behind them: brokers serve requests in several
        threads.
        """
        rng, code = self.network.loop.rng, request_code(frame)
        if code not in mischief.codes or rng.random() < 0.5:
            self._write(frame)
            return
        if rng.random() >= mischief.lost:
            for _ in range(1 + (code not in mischief.once and rng.random() < mischief.doubled)):
                self.network.loop.call_later(
                    rng.random() * mischief.late_s, self._write, frame, context=self.context
                )

    def _write(self, whole: bytes) -> None:
        if self.is_closing():
            return
        rng = self.network.loop.rng
        cut = rng.randrange(1, len(whole)) if len(whole) > 1 and rng.random() < 0.2 else len(whole)
        for piece in filter(None, (whole[:cut], whole[cut:])):
            self._on_the_way += len(piece)
            self._later(self.other._take, piece)

    def _later(self, deliver: Callable[..., None], *args: Any) -> None:
        """Bytes of a connection never overtake each other."""
        loop = self.network.loop
        self._last_arrival = max(self._last_arrival + 1e-7, loop.now + self.network.delay_s())
        loop.call_at(self._last_arrival, deliver, *args, context=self.other.context)

    def _take(self, data: bytes) -> None:
        self.other._on_the_way -= len(data)
        if self.closed:
            return
        if self._reading and not self._arrived:
            self.protocol.data_received(data)
        else:
            self._arrived.append(data)

    def get_write_buffer_size(self) -> int:
        return self._on_the_way

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    # --- reading ----------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        while self._arrived and self._reading and not self.closed:
            self.protocol.data_received(self._arrived.popleft())

    # --- the end ----------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing or self.closed

    def close(self) -> None:
        """What was written arrives first."""
        if not self.is_closing():
            self._closing = True
            self._later(self.other._lost, None)
            self.network.loop.call_soon(self._lost, None, context=self.context)

    def abort(self) -> None:
        self.cut(None)

    def cut(self, reason: OSError | None) -> None:
        """Both ends hear of it soon; what was on the way is lost."""
        self._closing = True
        for end in (self, self.other):
            self.network.loop.call_soon(end._lost, reason, context=end.context)

    def _lost(self, reason: OSError | None) -> None:
        if not self.closed:
            self.closed = True
            self.network.wires.pop(self, None)
            self.protocol.connection_lost(reason)


class Listening:
    """What create_server returns, as far as it is used."""

    def __init__(
        self, network: "Network", node: Node | None, address: tuple[str, int], factory: Factory
    ) -> None:
        self.network, self.node, self.address, self.factory = network, node, address, factory
        self.context = contextvars.copy_context()
        self.sockets = (self,)

    def fileno(self) -> int:
        """Return a number that is no descriptor: nothing is accepted unseen here."""
        return -1

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def close(self) -> None:
        self.network.listening.pop(self.address, None)


class Network:
    """Replaces the loop's own ways to listen and to connect."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.slow_s = 0.0
        self.mischief: Mischief | None = None
        self.listening: dict[tuple[str, int], Listening] = {}
        # a dict for its order: that of a set would differ from run to run
        self.wires: dict[Wire, None] = {}
        self._ports = iter(range(40_000, 10_000_000))
        loop.create_server = self._create_server  # type: ignore[method-assign,assignment]
        loop.create_connection = self._create_connection  # type: ignore[method-assign,assignment]

    def delay_s(self) -> float:
        return 0.0001 + self.loop.rng.expovariate(1000.0) + self.slow_s * self.loop.rng.random()

    async def _create_server(self, factory: Factory, *, sock: VirtualSocket, **_: Any) -> Any:
        address = sock.getsockname()
        there = self.listening.get(address)
        if there is not None and not (there.node is not None and there.node.dead):
            raise OSError(errno.EADDRINUSE, "address already in use")
        self.listening[address] = server = Listening(self, current_node(), address, factory)
        return server

    async def _create_connection(self, factory: Factory, host: str, port: int, **_: Any) -> Any:
        await asyncio.sleep(self.delay_s())
        server = self.listening.get((host, port))
        if server is None or (server.node is not None and server.node.dead):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
        own = ("127.0.0.1", next(self._ports))
        here = Wire(self, current_node(), own, (host, port))
        there = server.context.run(Wire, self, server.node, (host, port), own)
        here.other, there.other = there, here
        here.protocol = cast(asyncio.Protocol, factory())
        there.protocol = cast(asyncio.Protocol, there.context.run(server.factory))
        self.wires[here] = self.wires[there] = None
        self.loop.call_soon(there.protocol.connection_made, there, context=there.context)
        here.protocol.connection_made(here)
        return here, here.protocol

    # --- faults -----------------------------------------------------------------------------------

    def node_died(self, node: Node) -> None:
        """Its peers see their connections end, as the kernel of a killed process has it."""
        for address, server in list(self.listening.items()):
            if server.node is node:
                del self.listening[address]
        for wire in list(self.wires):
            if wire.node is node:
                self.wires.pop(wire, None)
                wire.closed = True
                other = wire.other
                self.loop.call_later(
                    self.delay_s(),
                    other._lost,
                    ConnectionResetError(errno.ECONNRESET, "reset"),
                    context=other.context,
                )

    def cut_one(self) -> str:
        """One connection, picked at random, ends for both."""
        if not self.wires:
            return "none"
        wire = self.loop.rng.choice(list(self.wires))
        wire.cut(ConnectionResetError(errno.ECONNRESET, "reset"))
        return f"{wire.node.name if wire.node else '?'}"
