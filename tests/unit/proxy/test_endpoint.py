"""The gRPC endpoint, from a socket to a handler and back."""

import asyncio
import contextlib
import gzip
import logging
import ssl
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trustme

from ogive.errors import ConnectError
from ogive.http2.connection import RST_STREAM, frame
from ogive.proxy.calls import CallContext, CallError, CallKind, GrpcStatus, Method
from ogive.proxy.config import EndpointConfig
from ogive.proxy.endpoint import Endpoint
from ogive.transport.limits import ServerLimits
from tests.grpc_client import SERVICE, GrpcClient, framed

MIB = 1024 * 1024


class Text:
    """The message of these tests: any bytes but b"bad"."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def SerializeToString(self) -> bytes:  # noqa: N802
        return self.data

    @classmethod
    def FromString(cls, s: bytes, /) -> "Text":  # noqa: N802
        if s == b"bad":
            raise ValueError("not a text")
        return cls(s)


class Service:
    """Handlers that record what happens to them."""

    def __init__(self) -> None:
        self.contexts: list[CallContext] = []
        self.cancelled = asyncio.Event()
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.yielded = 0

    async def echo(self, request: Text, context: CallContext) -> Text:
        self.contexts.append(context)
        return request

    async def fail(self, request: Text, context: CallContext) -> Text:
        if request.data == b"bug":
            raise RuntimeError("a fault of the service")
        raise CallError(GrpcStatus.UNAUTHENTICATED, "who is Jürgen at 100 %?")

    async def wait(self, request: Text, context: CallContext) -> Text:
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return request

    async def many(self, request: Text, context: CallContext) -> AsyncIterator[Text]:
        try:
            for _ in range(int(request.data)):
                self.yielded += 1
                yield Text(bytes(10_000))
        finally:
            self.cancelled.set()

    async def talk(
        self, requests: AsyncIterator[Text], context: CallContext
    ) -> AsyncIterator[Text]:
        try:
            async for request in requests:
                yield Text(request.data.upper())
            yield Text(b"end")
        finally:
            self.cancelled.set()

    def methods(self) -> dict[str, Method]:
        kinds: list[tuple[str, CallKind, Callable[..., Any]]] = [
            ("Echo", CallKind.UNARY, self.echo),
            ("Fail", CallKind.UNARY, self.fail),
            ("Wait", CallKind.UNARY, self.wait),
            ("Many", CallKind.SERVER_STREAM, self.many),
            ("Talk", CallKind.BOTH_STREAMS, self.talk),
        ]
        return {SERVICE + name: Method(name, kind, Text, run) for name, kind, run in kinds}


class Running:
    """An endpoint with its service and clients."""

    def __init__(self, endpoint: Endpoint, service: Service) -> None:
        self.endpoint = endpoint
        self.service = service
        self.clients: list[GrpcClient] = []

    async def connect(self, **options: Any) -> GrpcClient:
        client = await GrpcClient.connect(self.endpoint.port, **options)
        self.clients.append(client)
        return client


@asynccontextmanager
async def running(
    tls: ssl.SSLContext | None = None, *, plain_too: bool = True, why: str = "", **settings: Any
) -> AsyncIterator[Running]:
    service = Service()
    config = EndpointConfig(port=0, stop_grace_s=0.2, **settings)
    endpoint = Endpoint(service.methods(), config, tls=tls, plain_too=plain_too, no_tls_reason=why)
    await endpoint.start()
    run = Running(endpoint, service)
    try:
        yield run
    finally:
        for client in run.clients:
            client.close()
        await endpoint.stop()
        assert endpoint.in_progress == 0
        assert not endpoint.connections


async def soon(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


async def test_a_unary_call() -> None:
    async with running() as run:
        client = await run.connect()
        reply = await client.call("Echo", b"hello", metadata=[("x-mq-client-id", "me")])
        assert reply.messages == [b"hello"]
        assert reply.headers == {
            ":status": "200",
            "content-type": "application/grpc",
            "grpc-status": "0",
        }
        [context] = run.service.contexts
        assert context.metadata["x-mq-client-id"] == "me"
        assert context.peer[0] == "127.0.0.1"
        assert (context.tls, context.deadline) == (False, None)


async def test_calls_at_once_on_one_connection() -> None:
    """More than a thousand: a client keeps a receive open for each of its queues."""
    async with running() as run:
        client = await run.connect()
        waiting = [client.begin("Wait") for _ in range(1000)]
        for stream_id in waiting:
            client.send(stream_id, framed(b"%d" % stream_id))
        assert (await client.call("Echo", b"between")).status == 0
        run.service.go_on.set()
        for stream_id in waiting:
            assert (await client.finish(stream_id)).messages == [b"%d" % stream_id]


async def test_streams_both_ways() -> None:
    async with running() as run:
        client = await run.connect()
        stream_id = client.begin("Talk")
        client.send(stream_id, framed(b"one"), ended=False)
        assert (await client.until(stream_id, 1)).messages == [b"ONE"]
        # two messages in three pieces
        client.send(stream_id, framed(b"two")[:3], ended=False)
        client.send(stream_id, framed(b"two")[3:] + framed(b"three")[:6], ended=False)
        client.send(stream_id, framed(b"three")[6:])
        reply = await client.finish(stream_id)
        assert reply.messages == [b"ONE", b"TWO", b"THREE", b"end"]
        assert reply.status == 0


async def test_a_stream_takes_more_than_its_window_over_time() -> None:
    """Windows are given back as the handler takes the messages."""
    async with running(max_request_bytes=MIB) as run:
        client = await run.connect()
        stream_id = client.begin("Talk")
        for number in range(40):
            while client.h2.local_flow_control_window(stream_id) < 60_005:
                client.changed.clear()
                await client.changed.wait()
            client.send(stream_id, framed(b"a" * 60_000), ended=False)
            reply = await client.until(stream_id, number + 1)
            assert len(reply.messages) == number + 1


async def test_a_slow_reader_stops_a_stream() -> None:
    """Not more than a window and a few messages are taken from the handler until it reads."""
    async with running() as run:
        client = await run.connect()
        client.reads = False
        stream_id = client.begin("Many")
        client.send(stream_id, framed(b"1000"))
        await client.until(stream_id, 6)
        for _ in range(20):
            await asyncio.sleep(0)
        assert run.service.yielded < 10
        client.reads = True
        client.h2.increment_flow_control_window(10**8)
        client.h2.increment_flow_control_window(10**8, stream_id)
        client.flush()
        reply = await client.finish(stream_id)
        assert len(reply.messages) == 1000


async def test_a_window_of_one_byte() -> None:
    async with running() as run:
        client = await run.connect(window=1)
        reply = await client.call("Echo", b"0123456789")
        assert reply.messages == [b"0123456789"]


async def test_errors_are_statuses() -> None:
    async with running() as run:
        client = await run.connect()
        reply = await client.call("Fail", b"x")
        assert reply.status == GrpcStatus.UNAUTHENTICATED
        assert reply.headers["grpc-message"] == "who is J%C3%BCrgen at 100 %25?"
        reply = await client.call("PullMessage", b"x")
        assert reply.status == GrpcStatus.UNIMPLEMENTED
        assert reply.headers[":status"] == "200"
        assert SERVICE + "PullMessage" in reply.headers["grpc-message"]
        assert (await client.call("Echo", b"bad")).status == GrpcStatus.INTERNAL
        assert (await client.call("Echo")).status == GrpcStatus.INTERNAL
        assert (await client.call("Echo", b"a", b"b")).status == GrpcStatus.INTERNAL
        assert (await client.call("Echo", b"still there")).status == 0


async def test_a_fault_of_the_service_ends_one_call(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as run:
        client = await run.connect()
        reply = await client.call("Fail", b"bug")
        assert reply.status == GrpcStatus.INTERNAL
        assert "a fault of the service" in caplog.text
        assert (await client.call("Echo", b"x")).status == 0


@pytest.mark.parametrize(
    ("metadata", "status"),
    [
        ([("grpc-encoding", "zstd")], GrpcStatus.UNIMPLEMENTED),
        ([("grpc-timeout", "3 s")], GrpcStatus.INVALID_ARGUMENT),
        ([("grpc-timeout", "123456789S")], GrpcStatus.INVALID_ARGUMENT),
    ],
)
async def test_headers_that_are_refused(
    metadata: list[tuple[str, str]], status: GrpcStatus
) -> None:
    async with running() as run:
        client = await run.connect()
        assert (await client.call("Echo", b"x", metadata=metadata)).status == status


async def test_a_compressed_request() -> None:
    async with running(max_request_bytes=100_000) as run:
        client = await run.connect()
        for body, encoding, status in (
            (gzip.compress(b"long " * 1000), "gzip", GrpcStatus.OK),
            (gzip.compress(bytes(10 * MIB)), "gzip", GrpcStatus.RESOURCE_EXHAUSTED),
            (gzip.compress(b"x" * 1000)[:-9], "gzip", GrpcStatus.INTERNAL),
            (b"no gzip", "gzip", GrpcStatus.INTERNAL),
            (b"x", "identity", GrpcStatus.INTERNAL),
        ):
            stream_id = client.begin("Echo", metadata=[("grpc-encoding", encoding)])
            client.send(stream_id, framed(body, flag=1))
            reply = await client.finish(stream_id)
            assert reply.status == status, encoding
            assert reply.messages == ([b"long " * 1000] if status is GrpcStatus.OK else [])


async def test_compressed_requests_wait_as_small_as_they_came() -> None:
    bomb = framed(gzip.compress(bytes(10 * MIB)), flag=1)
    async with running() as run:
        client = await run.connect()
        tracemalloc.start()
        try:
            for _ in range(20):
                stream_id = client.begin("Echo", metadata=[("grpc-encoding", "gzip")])
                client.send(stream_id, bomb, ended=False)
            assert (await client.call("Echo", b"x")).messages == [b"x"]
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 20 * MIB


async def test_a_message_that_is_too_large_is_refused_before_it_arrives() -> None:
    async with running(max_request_bytes=1000) as run:
        client = await run.connect()
        stream_id = client.begin("Echo")
        client.send(stream_id, b"\0" + (1001).to_bytes(4, "big"), ended=False)
        reply = await client.finish(stream_id)
        assert reply.status == GrpcStatus.RESOURCE_EXHAUSTED
        assert "at most 1000 bytes" in reply.headers["grpc-message"]


async def test_a_cancelled_call_cancels_its_handler() -> None:
    async with running() as run:
        client = await run.connect()
        stream_id = client.begin("Wait")
        client.send(stream_id, framed(b"x"))
        await run.service.begun.wait()
        client.h2.reset_stream(stream_id, 8)
        client.flush()
        await run.service.cancelled.wait()
        await soon(lambda: run.endpoint.in_progress == 0)
        assert run.endpoint.calls_total["Wait", GrpcStatus.CANCELLED] == 1


@pytest.mark.parametrize("method", ["Wait", "Many", "Talk"])
async def test_a_lost_connection_cancels_its_handlers(method: str) -> None:
    async with running() as run:
        client = await run.connect()
        client.reads = False
        stream_id = client.begin(method)
        client.send(stream_id, framed(b"1000"), ended=method != "Talk")
        await (run.service.begun.wait() if method == "Wait" else client.until(stream_id, 1))
        client.close()
        await run.service.cancelled.wait()


async def test_a_deadline_cancels_a_handler() -> None:
    async with running() as run:
        client = await run.connect()
        reply = await client.call("Wait", b"x", metadata=[("grpc-timeout", "500m")])
        assert reply.status == GrpcStatus.DEADLINE_EXCEEDED
        await run.service.cancelled.wait()
        assert (
            await client.call("Echo", b"x", metadata=[("grpc-timeout", "99999999H")])
        ).status == 0
        assert run.service.contexts[0].deadline is not None


async def test_a_stop_waits_for_calls_and_ends_the_others() -> None:
    async with running() as run:
        client = await run.connect()
        stream_id = client.begin("Wait")
        client.send(stream_id, framed(b"x"))
        talk = client.begin("Talk")
        client.send(talk, framed(b"hi"), ended=False)
        await client.until(talk, 1)
        await run.service.begun.wait()
        stopping = asyncio.ensure_future(run.endpoint.stop())
        await client.goaway.wait()
        run.service.go_on.set()
        assert (await client.finish(stream_id)).status == 0
        assert (await client.finish(talk)).status == GrpcStatus.UNAVAILABLE
        await client.lost.wait()
        await stopping
        with pytest.raises(ConnectionRefusedError):
            await GrpcClient.connect(run.endpoint.port)


async def test_an_address_in_use_is_an_error() -> None:
    async with running() as run:
        other = Endpoint({}, EndpointConfig(port=run.endpoint.port))
        with pytest.raises(ConnectError, match=f"cannot listen on 127.0.0.1:{run.endpoint.port}"):
            await other.start()
        await other.stop()


# --- TLS and PROXY --------------------------------------------------------------------------------


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.set_alpn_protocols(["h2"])
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    client.check_hostname = False
    client.set_alpn_protocols(["h2"])
    authority.configure_trust(client)
    return server, client


async def test_tls_and_plaintext_share_a_port() -> None:
    server, client_tls = contexts()
    async with running(server) as run:
        secure, plain = await run.connect(tls=client_tls), await run.connect()
        assert secure.transport.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        for client in (secure, plain):
            assert (await client.call("Echo", b"x")).messages == [b"x"]
        assert [context.tls for context in run.service.contexts] == [True, False]
        assert 'ogive_grpc_connections{tls="true"} 1' in run.endpoint.metrics()


async def test_plaintext_is_refused_where_tls_is_needed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server, client_tls = contexts()
    async with running(server, plain_too=False) as run:
        plain = await run.connect()
        await plain.lost.wait()
        assert "it does not speak TLS" in caplog.text
        assert (await (await run.connect(tls=client_tls)).call("Echo", b"x")).status == 0


async def test_tls_without_a_certificate_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    _, client_tls = contexts()
    async with running(why="install cryptography") as run:
        with pytest.raises(ConnectionError):
            await run.connect(tls=client_tls)
        assert "it speaks TLS: install cryptography" in caplog.text


V2 = b"\r\n\r\n\x00\r\nQUIT\n"


@pytest.mark.parametrize("with_tls", [False, True])
@pytest.mark.parametrize(
    ("header", "peer"),
    [
        (b"PROXY TCP4 192.0.2.7 192.0.2.1 56324 443\r\n", ("192.0.2.7", 56324)),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 56324 443\r\n", ("2001:db8::7", 56324)),
        (b"PROXY UNKNOWN\r\n", ("127.0.0.1", None)),
        (
            V2 + b"\x21\x11\x00\x0f\xc0\x00\x02\x07\xc0\x00\x02\x01\xdc\x04\x01\xbb\x04\x00\x00",
            ("192.0.2.7", 56324),
        ),
        (
            V2 + b"\x21\x21\x00\x24" + bytes(15) + b"\x07" + bytes(16) + b"\xdc\x04\x01\xbb",
            ("::7", 56324),
        ),
        (V2 + b"\x20\x00\x00\x00", ("127.0.0.1", None)),
    ],
)
async def test_a_load_balancer_names_the_client(
    header: bytes, peer: tuple[str, int | None], with_tls: bool
) -> None:
    server, client_tls = contexts()
    async with running(server) as run:
        client = await run.connect(before=[header], tls=client_tls if with_tls else None)
        assert (await client.call("Echo", b"x")).status == 0
        [context] = run.service.contexts
        assert context.peer[0] == peer[0]
        assert peer[1] in (None, context.peer[1])
        # not the header's, which anyone can send
        assert (context.through or context.peer)[0] == "127.0.0.1"


async def test_a_proxy_header_in_pieces() -> None:
    async with running() as run:
        pieces = (b"P", b"ROXY TCP4 192.0.2.7 192.0", b".2.1 5 443\r", b"\n")
        client = await run.connect(before=pieces)
        assert (await client.call("Echo", b"x")).status == 0
        assert run.service.contexts[0].peer == ("192.0.2.7", 5)


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY TCP4 here there 1 2\r\n",
        b"PROXY TCP6 fe80::1%\x1b[2J ::1 1 2\r\n",
        b"PROXY TCP4 192.0.2.7 192.0.2.1 -1 443\r\n",
        b"PROXY " + bytes(200),
        V2 + b"\x21\x11\xff\xff",
        V2 + b"\x11\x11\x00\x0c" + bytes(12),
        V2 + b"\x21\x11\x00\x04" + bytes(4),
    ],
)
async def test_a_malformed_proxy_header_ends_the_connection(
    header: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running() as run:
        client = await run.connect(before=[header])
        await client.lost.wait()
        assert "its PROXY header" in caplog.text


async def test_who_never_finishes_a_proxy_header_costs_little_until_it_is_closed() -> None:
    """What came is not looked at again and again."""
    count, looks = 20, 0

    def count_looks(_: object, event: str, called: object) -> None:
        nonlocal looks
        looks += event == "c_call" and getattr(called, "__name__", "") == "recv"

    async with running(server=ServerLimits(first_frame_s=1.0)) as run:
        sys.setprofile(count_looks)
        try:
            silent = [
                await asyncio.open_connection("127.0.0.1", run.endpoint.port) for _ in range(count)
            ]
            for _, writer in silent:
                writer.write(b"PROXY TCP4 ")
            for reader, writer in silent:
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()
                writer.close()
        finally:
            sys.setprofile(None)
    # besides one for each end here
    assert looks <= count * 12


# --- limits ---------------------------------------------------------------------------------------


async def test_calls_above_the_limit_are_refused() -> None:
    async with running(max_calls=2) as run:
        client = await run.connect()
        waiting = [client.begin("Wait") for _ in range(2)]
        reply = await client.call("Echo", b"x")
        assert reply.status == GrpcStatus.RESOURCE_EXHAUSTED
        for stream_id in waiting:
            client.h2.reset_stream(stream_id, 8)
        assert (await client.call("Echo", b"x")).status == 0


async def test_connections_above_the_limit_are_closed() -> None:
    async with running(server=ServerLimits(max_connections_per_address=2)) as run:
        for _ in range(2):
            assert (await (await run.connect()).call("Echo", b"x")).status == 0
        await (await run.connect()).lost.wait()


async def test_rapid_resets_end_the_connection() -> None:
    async with running() as run:
        client = await run.connect()
        for _ in range(4000):
            client.h2.reset_stream(client.begin("Wait"), 8)
            client.flush()
            if client.goaway.is_set():
                break
        await client.lost.wait()
        await soon(lambda: run.endpoint.in_progress == 0)
        assert (await (await run.connect()).call("Echo", b"x")).status == 0


async def test_half_open_requests_end(caplog: pytest.LogCaptureFixture) -> None:
    """Headers, or a part of a message, and then nothing."""
    async with running(server=ServerLimits(first_frame_s=0.5)) as run:
        client = await run.connect()
        streams = [client.begin("Echo"), client.begin("Echo")]
        client.send(streams[1], framed(b"half")[:6], ended=False)
        for stream_id in streams:
            assert (await client.finish(stream_id)).status == GrpcStatus.DEADLINE_EXCEEDED
        assert (await client.call("Echo", b"x")).status == 0
        assert "127.0.0.1: a request of Echo never came whole" in caplog.text


async def test_a_silent_connection_is_closed() -> None:
    async with running(server=ServerLimits(first_frame_s=0.5)) as run:
        for start in (b"", b"P", b"PRI * HTTP/2"):
            reader, writer = await asyncio.open_connection("127.0.0.1", run.endpoint.port)
            writer.write(start)
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
            writer.close()


async def test_an_idle_connection_is_told_to_go() -> None:
    async with running(idle_s=0.5) as run:
        client, busy = await run.connect(), await run.connect()
        stream_id = busy.begin("Talk")
        assert (await client.call("Echo", b"x")).status == 0
        await client.goaway.wait()
        await client.lost.wait()
        busy.send(stream_id, framed(b"still here"), ended=False)
        assert (await busy.until(stream_id, 1)).messages == [b"STILL HERE"]


async def test_requests_that_hold_too_much_memory_end_the_largest_client() -> None:
    limits = ServerLimits(max_read_buffer_bytes=200_000)
    async with running(server=limits) as run:
        small, large = await run.connect(), await run.connect()
        stream_id = small.begin("Echo")
        small.send(stream_id, framed(bytes(30_000))[:20_000], ended=False)
        for _ in range(10):
            if not large.lost.is_set():
                large.send(large.begin("Echo"), framed(bytes(30_000))[:25_000], ended=False)
                await asyncio.sleep(0.01)
        await large.lost.wait()
        small.send(stream_id, framed(bytes(30_000))[20_000:])
        assert (await small.finish(stream_id)).status == 0


async def test_headers_count_as_memory_of_their_client() -> None:
    """Calls whose requests never come, with as many headers as are allowed."""
    many = [(f"x-{number}", "") for number in range(300)]
    limits = ServerLimits(max_read_buffer_bytes=1_000_000)
    async with running(server=limits) as run:
        small, large = await run.connect(), await run.connect()
        waiting = small.begin("Echo")
        for _ in range(100):
            if not large.lost.is_set():
                large.begin("Echo", metadata=many)
                await asyncio.sleep(0)
        await large.lost.wait()
        assert run.endpoint.in_progress == 1
        small.send(waiting, framed(b"x"))
        assert (await small.finish(waiting)).status == 0


async def test_messages_of_nothing_count_as_memory_of_their_client() -> None:
    """A stream whose answers are not read, and so its requests are not taken."""
    async with running(server=ServerLimits(max_read_buffer_bytes=1_000_000)) as run:
        client = await run.connect(window=0)
        stream_id = client.begin("Talk")
        client.send(stream_id, framed(b"one"), ended=False)
        client.send(stream_id, framed(b"") * 10_000, ended=False)
        await client.lost.wait()
        assert (await (await run.connect()).call("Echo", b"x")).status == 0


async def test_headers_above_the_limit_end_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as run:
        client = await run.connect()
        client.begin("Echo", metadata=[("x-huge", "x" * 17_000)])
        await client.lost.wait()
        assert "headers of more than" in caplog.text
        assert (await (await run.connect()).call("Echo", b"x")).status == 0


async def test_responses_that_hold_too_much_memory_end_the_client() -> None:
    """Many calls whose answers wait for a window of nothing."""
    async with running(server=ServerLimits(max_unsent_bytes=100_000)) as run:
        client = await run.connect(window=0)
        for _ in range(10):
            if not client.lost.is_set():
                client.send(client.begin("Echo"), framed(bytes(20_000)))
        await client.lost.wait()


async def test_a_reader_that_takes_nothing_is_cut_off() -> None:
    limits = ServerLimits(slow_reader_s=0.1)
    async with running(server=limits) as run:
        client = await run.connect(window=10)
        client.reads = False
        client.send(client.begin("Echo"), framed(bytes(1000)))
        await client.lost.wait()


async def test_another_protocol_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running() as run:
        reader, writer = await asyncio.open_connection("127.0.0.1", run.endpoint.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.read()
        writer.close()
        assert "does not begin as HTTP/2 does" in caplog.text


# --- figures and log ------------------------------------------------------------------------------


async def test_calls_are_counted_by_method_and_status() -> None:
    async with running() as run:
        client = await run.connect()
        for _ in range(2):
            await client.call("Echo", b"x")
        await client.call("Fail", b"x")
        await client.call("PullMessage", b"x")
        await client.call("Anything", b"x")
        page = run.endpoint.metrics()
        assert 'ogive_grpc_calls_total{method="Echo",status="OK"} 2\n' in page
        assert 'ogive_grpc_calls_total{method="Fail",status="UNAUTHENTICATED"} 1\n' in page
        assert 'ogive_grpc_calls_total{method="unknown",status="UNIMPLEMENTED"} 2\n' in page


async def test_equal_refusals_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as run:
        client = await run.connect()
        for _ in range(5):
            await client.call("Fail", b"x")
        lines = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
        assert lines == [
            "Fail of 127.0.0.1 was refused: UNAUTHENTICATED: who is J\\xfcrgen at 100 %?"
        ]


async def test_equal_faults_of_a_host_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as run:
        for stream_id in range(9):
            client = await run.connect()
            client.transport.write(frame(RST_STREAM, 0, 2 * stream_id + 1, bytes(4)))
            await client.lost.wait()
        [line] = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
        assert line == "127.0.0.1: the connection is closed: reset of stream 1, not open"


def test_settings_must_be_above_zero() -> None:
    with pytest.raises(Exception, match="above zero"):
        EndpointConfig(max_calls=0)
