"""A TCP proxy on loopback that does to connections what networks and broken peers do."""

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass
from typing import Final, Literal, Self

Kind = Literal["delay", "drip", "slow", "cut", "reset", "hole", "half", "garbage", "refuse"]

# bytes that go one by one
DRIPPED: Final = 1000
SLOW_BYTES: Final = 512
SLOW_S: Final = 0.01  # 50 KB/s
READ_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to bytes from now on.

    delay: they come *seconds* later. drip: one by one. slow: 50 KB/s. cut, reset: after
    *after_bytes* of one direction the connection ends, cleanly or with RST. hole: from then on both
    directions swallow everything, for as long as the connection lasts; half: only this one.
    garbage: answers are replaced by bytes that are no frame. refuse: connections end, and new ones
    do at once.
    """

    kind: Kind
    # towards the server
    up: bool = False
    after_bytes: int = 0
    seconds: float = 0.0


class FaultProxy:
    """``async with FaultProxy("127.0.0.1:9876") as proxy``; clients use ``proxy.address``.

    Set *fault*, or None, at any time.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        # that ever were
        self.connections = 0
        self._fault: Fault | None = None
        # bytes of each direction since the fault was set
        self._seen = {True: 0, False: 0}
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()

    @property
    def fault(self) -> Fault | None:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        self._fault = fault
        self._seen = {True: 0, False: 0}
        if fault is not None and fault.kind == "refuse":
            for link in self._links:
                link.cancel()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for link in list(self._links):
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        writers = [writer]
        try:
            if self._fault is not None and self._fault.kind == "refuse":
                return
            host, _, port = self.target.rpartition(":")
            there_reader, there_writer = await asyncio.open_connection(host, int(port))
            writers.append(there_writer)
            # directions that swallow
            dead: set[bool] = set()
            pumps = [
                asyncio.create_task(self._pump(reader, there_writer, writers, dead, up=True)),
                asyncio.create_task(self._pump(there_reader, writer, writers, dead, up=False)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            # the server is away, or the proxy ends: either way this connection does
            pass
        finally:
            for one in writers:
                one.close()
            for one in writers:
                with contextlib.suppress(OSError, asyncio.CancelledError):
                    await one.wait_closed()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        both: list[asyncio.StreamWriter],
        dead: set[bool],
        *,
        up: bool,
    ) -> None:
        """Until the connection ends, by itself or by a fault."""
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                if up in dead:
                    continue
                if not await self._pass(data, writer, both, dead, up=up):
                    return

    async def _pass(
        self,
        data: bytes,
        writer: asyncio.StreamWriter,
        both: list[asyncio.StreamWriter],
        dead: set[bool],
        *,
        up: bool,
    ) -> bool:
        """False when the connection is at its end."""
        fault, before = self._fault, self._seen[up]
        self._seen[up] += len(data)
        if fault is None or fault.up != up or fault.kind == "refuse":
            writer.write(data)
        elif fault.kind == "delay":
            await asyncio.sleep(fault.seconds)
            writer.write(data)
        elif fault.kind == "garbage":
            writer.write(b"\xff" * 64)
        elif fault.kind in ("drip", "slow"):
            await _in_pieces(data, writer, fault.kind)
        elif self._seen[up] < fault.after_bytes:
            writer.write(data)
        else:
            writer.write(data[: max(0, fault.after_bytes - before)])
            return _end(fault.kind, both, dead, up=up)
        await writer.drain()
        return True


async def _in_pieces(data: bytes, writer: asyncio.StreamWriter, kind: Kind) -> None:
    size, pause_s = (1, 0.0) if kind == "drip" else (SLOW_BYTES, SLOW_S)
    end = min(len(data), DRIPPED) if kind == "drip" else len(data)
    for at in range(0, end, size):
        writer.write(data[at : min(at + size, end)])
        await asyncio.sleep(pause_s)
    writer.write(data[end:])


def _end(kind: Kind, both: list[asyncio.StreamWriter], dead: set[bool], *, up: bool) -> bool:
    if kind == "reset":
        for one in both:
            one.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            one.transport.abort()
        return False
    if kind == "cut":
        return False
    dead.update({True, False} if kind == "hole" else {up})
    return True
