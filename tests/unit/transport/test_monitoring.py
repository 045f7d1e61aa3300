"""The pages for machines that watch."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ogive.transport import monitoring
from ogive.transport.monitoring import MAX_CONNECTIONS, PageServer, Response


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PageServer]:
    monkeypatch.setattr(monitoring, "TIMEOUT_S", 1.0)
    pages = PageServer(
        {"/a": lambda: Response(200, "größe\n"), "/b": lambda: Response(503, "no\n")},
        host="127.0.0.1",
        port=0,
    )
    await pages.start()
    yield pages
    await pages.stop()


async def ask(server: PageServer, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"GET /a HTTP/1.1\r\nHost: 127.0.0.1:9\r\n\r\n", b"200 OK", "größe\n".encode()),
        (b"GET /a HTTP/1.1\r\nhost:LOCALHOST:9\r\n\r\n", b"200 OK", "größe\n".encode()),
        (b"GET /a HTTP/1.1\r\nHost: [::1]\r\n\r\n", b"200 OK", "größe\n".encode()),
        (b"GET /a?x=1 HTTP/1.0\r\n\r\n", b"200 OK", "größe\n".encode()),
        (b"HEAD /a HTTP/1.1\r\n\r\n", b"200 OK", b""),
        (b"GET /b HTTP/1.1\r\n\r\n", b"503 Service Unavailable", b"no\n"),
        (b"GET /c HTTP/1.1\r\n\r\n", b"404 Not Found", b"no such page; there are /a /b\n"),
        (b"POST /a HTTP/1.1\r\n\r\n", b"405 Method Not Allowed", b"use GET or HEAD\n"),
        (b"\x00\x01\x02\r\n\r\n", b"400 Bad Request", b"this is not an HTTP request\n"),
    ],
)
async def test_a_page_is_answered(
    server: PageServer, request_: bytes, status: bytes, body: bytes
) -> None:
    head, _, found = (await ask(server, request_)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status)
    assert found == body
    assert b"Content-Length: %d" % len("größe\n".encode()) in head or status != b"200 OK"


@pytest.mark.parametrize(
    "hosts",
    [
        b"Host: rebound.example\r\n",
        b"Host:\r\n",
        b"Host: localhost\r\nHost : rebound.example:9\r\n",
    ],
)
async def test_a_name_that_was_pointed_here_is_refused(server: PageServer, hosts: bytes) -> None:
    """DNS rebinding: a page of another site would read this one."""
    assert (await ask(server, b"GET /a HTTP/1.1\r\n" + hosts + b"\r\n")).startswith(
        b"HTTP/1.1 421 Misdirected Request"
    )


async def test_pages_that_a_network_reaches_are_asked_by_any_name(server: PageServer) -> None:
    # as if it listened there
    server.host = "192.0.2.7"
    assert (await ask(server, b"GET /a HTTP/1.1\r\nHost: broker.example\r\n\r\n")).startswith(
        b"HTTP/1.1 200"
    )


async def test_a_request_that_is_too_long_or_never_ends_gets_nothing(server: PageServer) -> None:
    assert await ask(server, b"GET /a HTTP/1.1\r\n" + b"x: y\r\n" * 10_000 + b"\r\n") == b""
    assert await ask(server, b"GET /a") == b""


async def test_who_says_nothing_shuts_out_no_watcher(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that cannot ask /health restarts the broker."""
    monkeypatch.setattr(monitoring, "TIMEOUT_S", 60.0)
    held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(MAX_CONNECTIONS)]
    for _ in range(3):
        assert (await ask(server, b"GET /a HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert len(server._busy) <= MAX_CONNECTIONS
    for _, writer in held:
        writer.close()


async def test_connections_are_bounded_and_the_pages_stay_there(server: PageServer) -> None:
    held = [
        await asyncio.open_connection("127.0.0.1", server.port) for _ in range(MAX_CONNECTIONS + 20)
    ]
    await asyncio.wait_for(
        asyncio.gather(*(reader.read() for reader, _ in held), return_exceptions=True), 30
    )
    for _, writer in held:
        writer.close()
    assert (await ask(server, b"GET /a HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_a_page_may_take_a_moment_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "TIMEOUT_S", 0.05)

    async def later() -> Response:
        await asyncio.sleep(0)
        return Response(200, "later\n")

    async def never() -> Response:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    pages = PageServer({"/later": later, "/never": never}, host="127.0.0.1", port=0)
    await pages.start()
    assert (await ask(pages, b"GET /later HTTP/1.1\r\n\r\n")).endswith(b"later\n")
    assert await ask(pages, b"GET /never HTTP/1.1\r\n\r\n") == b""
    await pages.stop()
