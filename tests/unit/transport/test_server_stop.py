"""A server that stops closes what it has accepted, also what is no connection yet."""

import asyncio
import contextlib
import gc
import socket
import ssl
from pathlib import Path

import pytest
import trustme

from ogive.transport.connection import Connection
from ogive.transport.monitoring import PageServer
from ogive.transport.server import Server
from ogive.transport.tls import TlsConfig
from ogive.wire.command import RemotingCommand

TURNS = range(6)
"""of the loop, between a client's connect and the stop: from not accepted to connected"""


def answer(connection: Connection, command: RemotingCommand) -> None:
    """Never called: nobody asks."""


def stop_after(turns: int, client: socket.socket, tls: ssl.SSLContext | TlsConfig | None) -> None:
    async def serve() -> None:
        server = Server(answer, tls=tls)
        await server.start()
        client.connect((server.host, server.port))
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop(grace_s=0.0)

    asyncio.run(serve())


def check_closed(client: socket.socket) -> None:
    """A socket that was left to the garbage collector is a warning, and so an error."""
    gc.collect()
    client.settimeout(5.0)
    with contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""


@pytest.mark.parametrize("turns", TURNS)
def test_a_connection_that_was_accepted_just_before_is_closed(turns: int) -> None:
    with socket.socket() as client:
        stop_after(turns, client, None)
        check_closed(client)


@pytest.mark.parametrize("turns", TURNS)
def test_a_connection_that_has_not_said_whether_it_speaks_tls_is_closed(
    turns: int, tmp_path: Path
) -> None:
    blob = tmp_path / "server.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(blob))
    with socket.socket() as client:
        stop_after(turns, client, TlsConfig(cert=blob, key=blob, mode="permissive"))
        check_closed(client)


@pytest.mark.parametrize("turns", TURNS)
def test_a_connection_to_a_server_of_pages_is_closed(turns: int) -> None:
    async def serve(client: socket.socket) -> None:
        server = PageServer({}, host="127.0.0.1", port=0)
        await server.start()
        client.connect((server.host, server.port))
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop()

    with socket.socket() as client:
        asyncio.run(serve(client))
        check_closed(client)


async def test_a_stop_that_is_cancelled_leaves_the_port_free() -> None:
    server = Server(answer)
    await server.start()
    stop = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    stop.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await stop
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect((server.host, server.port))
