"""A small gRPC client on h2, which can also do what no real client does."""

import asyncio
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

SERVICE = "/apache.rocketmq.v2.MessagingService/"


def framed(message: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + len(message).to_bytes(4, "big") + message


@dataclass
class Reply:
    """What came for one call until now."""

    headers: dict[str, str] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    reset: int | None = None

    @property
    def status(self) -> int | None:
        text = self.headers.get("grpc-status")
        return None if text is None else int(text)

    @property
    def messages(self) -> list[bytes]:
        found, at = [], 0
        while len(self.data) - at >= 5:
            size = int.from_bytes(self.data[at + 1 : at + 5], "big")
            if len(self.data) - at - 5 < size:
                break
            found.append(bytes(self.data[at + 5 : at + 5 + size]))
            at += 5 + size
        return found


class GrpcClient(asyncio.Protocol):
    """A connection. ``reads``: give windows back for what arrives."""

    def __init__(self, window: int = 65_535) -> None:
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(config)
        self.h2.local_settings = h2.settings.Settings(
            client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
        )
        self._buffer = bytearray()
        self.replies: dict[int, Reply] = {}
        self.reads = True
        self.lost = asyncio.Event()
        self.goaway = asyncio.Event()
        self.changed = asyncio.Event()
        self.transport: asyncio.Transport

    @classmethod
    async def connect(
        cls,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        before: Iterable[bytes] = (),
        window: int = 65_535,
    ) -> Self:
        """*before*: pieces that are sent, one after another, before TLS and HTTP/2."""
        loop = asyncio.get_running_loop()
        transport, client = await loop.create_connection(lambda: cls(window), "127.0.0.1", port)
        for piece in before:
            transport.write(piece)
            await asyncio.sleep(0.02)
        client.transport = transport
        if tls is not None:
            upgraded = await loop.start_tls(transport, client, tls)
            assert isinstance(upgraded, asyncio.Transport)
            client.transport = upgraded
        client.h2.initiate_connection()
        client.flush()
        # the server's settings, or its refusal
        await client.changed.wait()
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        pass

    def flush(self) -> None:
        self.transport.write(self.h2.data_to_send())

    def _events(self, data: bytes) -> Iterator[h2.events.Event]:
        """Yield what frames say, one by one: h2 takes none after a GOAWAY unless told so."""
        self._buffer += data
        while len(self._buffer) >= 9:
            end = 9 + int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < end:
                return
            yield from self.h2.receive_data(bytes(self._buffer[:end]))
            if self._buffer[3] == 7:
                self.h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
            del self._buffer[:end]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
        for reply in self.replies.values():
            reply.ended.set()
        self.changed.set()

    def data_received(self, data: bytes) -> None:
        for event in self._events(data):
            stream_id = getattr(event, "stream_id", None)
            reply = self.replies.get(stream_id or 0, Reply())
            match event:
                case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                    reply.headers |= {str(name): str(value) for name, value in event.headers or ()}
                case h2.events.DataReceived():
                    reply.data += event.data or b""
                    if self.reads and event.flow_controlled_length:
                        self.h2.acknowledge_received_data(
                            event.flow_controlled_length, stream_id or 0
                        )
                case h2.events.StreamEnded():
                    reply.ended.set()
                case h2.events.StreamReset():
                    reply.reset = event.error_code
                    reply.ended.set()
                case h2.events.ConnectionTerminated():
                    self.goaway.set()
        self.flush()
        self.changed.set()

    def begin(
        self, path: str, *, ended: bool = False, metadata: Iterable[tuple[str, str]] = ()
    ) -> int:
        """Send the headers of a call, and return its stream."""
        stream_id: int = self.h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path if path.startswith("/") else SERVICE + path),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *metadata,
        ]
        self.replies[stream_id] = Reply()
        self.h2.send_headers(stream_id, headers, end_stream=ended)
        self.flush()
        return stream_id

    def send(self, stream_id: int, data: bytes, *, ended: bool = True) -> None:
        """Send at most a window of data."""
        size = self.h2.max_outbound_frame_size
        pieces = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
        for number, piece in enumerate(pieces, 1):
            self.h2.send_data(stream_id, piece, end_stream=ended and number == len(pieces))
        self.flush()

    async def until(self, stream_id: int, count: int) -> Reply:
        """Wait until *count* messages have come."""
        reply = self.replies[stream_id]
        while len(reply.messages) < count and not reply.ended.is_set():
            self.changed.clear()
            await self.changed.wait()
        return reply

    async def finish(self, stream_id: int) -> Reply:
        """Wait for the end of a call."""
        await self.replies[stream_id].ended.wait()
        return self.replies[stream_id]

    async def call(
        self, path: str, *messages: bytes, metadata: Iterable[tuple[str, str]] = ()
    ) -> Reply:
        stream_id = self.begin(path, metadata=metadata)
        self.send(stream_id, b"".join(map(framed, messages)))
        return await self.finish(stream_id)

    def close(self) -> None:
        self.transport.abort()
