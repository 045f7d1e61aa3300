"""TLS at a server: who is let in, which versions, and what stuck or hostile connections cost."""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from ogive.errors import ConnectError, ConnectionLost, InvalidOption
from ogive.transport.connection import Connection, connect
from ogive.transport.limits import ServerLimits
from ogive.transport.server import Server
from ogive.transport.tls import TlsConfig, TlsMode
from ogive.wire.codes import Flag
from ogive.wire.command import RemotingCommand

StartServer = Callable[..., Awaitable[Server]]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


YEARS_AGO = datetime(2001, 1, 1, tzinfo=UTC)


def write_certificate(
    folder: Path, authority: trustme.CA, name: str = "127.0.0.1", *, until: datetime | None = None
) -> tuple[Path, Path]:
    issued = authority.issue_cert(name, not_after=until)
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return cert, key


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> TlsConfig:
    cert, key = write_certificate(tmp_path, authority)
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    return TlsConfig(cert=cert, key=key)


def echo(connection: Connection, command: RemotingCommand) -> None:
    connection.reply(
        RemotingCommand(0, body=command.body, opaque=command.opaque, flag=Flag.RESPONSE)
    )


@pytest.fixture
async def start() -> AsyncIterator[StartServer]:
    servers: list[Server] = []

    async def start_one(tls: TlsConfig | None, **limits: float) -> Server:
        # the test names fields of the right type
        server = Server(echo, tls=tls, limits=ServerLimits(**limits))  # type: ignore[arg-type]
        await server.start()
        servers.append(server)
        return server

    yield start_one
    for server in servers:
        await server.stop()


def trusting(
    authority: trustme.CA, client: trustme.CA | None = None, *, until: datetime | None = None
) -> ssl.SSLContext:
    """*client*: who issued the client's certificate, which ends at *until*."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if client is not None:
        client.issue_cert("client@example.org", not_after=until).configure_cert(context)
    return context


async def say(server: Server, context: ssl.SSLContext | None, body: bytes = b"hello") -> bytes:
    connection = await connect("127.0.0.1", server.port, ssl=context)
    try:
        return (await connection.call(RemotingCommand(1, body=body), 10)).body
    finally:
        connection.close()
        await connection.wait_closed()


async def is_refused(server: Server, context: ssl.SSLContext | None) -> bool:
    try:
        await say(server, context)
    except (OSError, ConnectError, ConnectionLost):
        return True
    return False


async def test_enforcing_takes_tls_and_nothing_else(
    start: StartServer, files: TlsConfig, authority: trustme.CA
) -> None:
    server = await start(files)
    assert await say(server, trusting(authority)) == b"hello"
    assert await say(server, trusting(authority), b"x" * 3_000_000) == b"x" * 3_000_000
    assert await is_refused(server, None)
    assert not server.connections


async def test_permissive_takes_both_on_one_port(
    start: StartServer, files: TlsConfig, authority: trustme.CA
) -> None:
    server = await start(TlsConfig(cert=files.cert, key=files.key, mode="permissive"))
    assert await say(server, trusting(authority)) == b"hello"
    assert await say(server, None) == b"hello"


async def test_who_speaks_tls_to_one_who_does_not_hears_that(
    start: StartServer, files: TlsConfig, authority: trustme.CA
) -> None:
    with pytest.raises(
        ConnectError, match="it ended the TLS handshake; perhaps it does not speak TLS"
    ):
        await say(await start(None), trusting(authority))
    with pytest.raises(ConnectionLost, match="before its first answer; perhaps it speaks TLS only"):
        await say(await start(files), None)


async def test_a_client_that_does_not_trust_the_certificate_stays_away(
    start: StartServer, files: TlsConfig, authority: trustme.CA
) -> None:
    server = await start(files)
    with pytest.raises(
        ConnectError,
        match=r"TLS with .*: CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate",
    ):
        await say(server, trusting(trustme.CA()))
    with pytest.raises(ConnectError, match="TLS with"):
        await say(server, ssl.create_default_context())
    wrong_host = trusting(authority)
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=wrong_host, server_hostname="example.org"
        )


async def test_a_client_that_leaves_within_the_handshake_is_told_from_one_that_says_nothing(
    start: StartServer, files: TlsConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = await start(files, first_frame_s=1.0)
    silent = socket.create_connection(("127.0.0.1", server.port))
    assert await is_refused(server, trusting(trustme.CA()))
    async with asyncio.timeout(60):
        while len(caplog.messages) < 2:
            await asyncio.sleep(0.01)
    silent.close()
    left, nothing = sorted(caplog.messages, key=lambda line: "nothing came" in line)
    assert (
        "the client ended the TLS handshake, perhaps it does not trust the certificate" in left
        or "UNKNOWN_CA" in left
    )
    assert "nothing came within 1 s" in nothing


@pytest.mark.parametrize("mode", ["enforcing", "permissive"])
async def test_a_client_stays_away_from_an_expired_certificate(
    start: StartServer, tmp_path: Path, authority: trustme.CA, mode: str
) -> None:
    cert, key = write_certificate(tmp_path, authority, until=YEARS_AGO)
    # parametrized text
    server = await start(TlsConfig(cert=cert, key=key, mode=mode))  # type: ignore[arg-type]
    with pytest.raises(
        ConnectError, match=r"TLS with .*: CERTIFICATE_VERIFY_FAILED: certificate has expired"
    ):
        await say(server, trusting(authority))
    assert not server.connections


@pytest.mark.parametrize("mode", ["enforcing", "permissive"])
@pytest.mark.parametrize(
    ("version", "works"),
    [
        (ssl.TLSVersion.TLSv1, False),
        (ssl.TLSVersion.TLSv1_1, False),
        (ssl.TLSVersion.TLSv1_2, True),
        (ssl.TLSVersion.TLSv1_3, True),
    ],
)
async def test_old_versions_are_refused(
    start: StartServer,
    files: TlsConfig,
    authority: trustme.CA,
    mode: TlsMode,
    version: ssl.TLSVersion,
    works: bool,
) -> None:
    server = await start(TlsConfig(cert=files.cert, key=files.key, mode=mode))
    context = trusting(authority)
    # else this client would not even offer 1.0 and 1.1
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with (
        pytest.warns(DeprecationWarning, match=f"{version.name} is deprecated")
        if not works
        else contextlib.nullcontext()
    ):
        context.minimum_version = context.maximum_version = version
    assert await is_refused(server, context) is not works


@pytest.mark.parametrize("mode", ["enforcing", "permissive"])
@pytest.mark.parametrize(
    ("auth", "certificate", "works"),
    [
        ("required", "good", True),
        ("required", "none", False),
        ("required", "strange", False),
        ("required", "expired", False),
        ("optional", "good", True),
        ("optional", "none", True),
        ("optional", "strange", False),
        ("optional", "expired", False),
    ],
)
async def test_client_certificates(
    start: StartServer,
    files: TlsConfig,
    authority: trustme.CA,
    mode: str,
    auth: str,
    certificate: str,
    works: bool,
) -> None:
    # parametrized text
    config = TlsConfig(
        cert=files.cert,
        key=files.key,
        mode=mode,  # type: ignore[arg-type]
        client_ca=files.cert.with_name("ca.pem"),
        client_auth=auth,  # type: ignore[arg-type]
    )
    server = await start(config)
    own = {"good": authority, "strange": trustme.CA(), "expired": authority, "none": None}[
        certificate
    ]
    context = trusting(authority, own, until=YEARS_AGO if certificate == "expired" else None)
    assert await is_refused(server, context) is not works
    assert not server.connections or works


async def test_permissive_asks_only_those_who_speak_tls_for_a_certificate(
    start: StartServer, files: TlsConfig, authority: trustme.CA
) -> None:
    """Who comes without TLS is not kept out by client certificates: that takes the enforcing
    mode.
    """
    own = files.cert.with_name("ca.pem")
    permissive = await start(
        TlsConfig(
            cert=files.cert, key=files.key, mode="permissive", client_ca=own, client_auth="required"
        )
    )
    assert await say(permissive, None) == b"hello"
    assert await is_refused(permissive, trusting(authority))
    enforcing = await start(
        TlsConfig(cert=files.cert, key=files.key, client_ca=own, client_auth="required")
    )
    assert await is_refused(enforcing, None)


async def test_certificates_are_read_again_and_bad_ones_change_nothing(
    start: StartServer, files: TlsConfig, authority: trustme.CA, tmp_path: Path
) -> None:
    server = await start(files)
    another = trustme.CA()
    write_certificate(tmp_path, another)
    assert await is_refused(server, trusting(another))
    await server.reload_certificates()
    assert await say(server, trusting(another)) == b"hello"
    files.key.write_text("no key")
    with pytest.raises(InvalidOption):
        await server.reload_certificates()
    assert await say(server, trusting(another)) == b"hello"


async def test_connections_inside_the_process_need_no_tls(
    start: StartServer, files: TlsConfig
) -> None:
    server = await start(files)
    connection = await server.connect_here()
    assert (await connection.call(RemotingCommand(1, body=b"here"), 10)).body == b"here"
    connection.close()
    await connection.wait_closed()


async def test_stuck_handshakes_are_counted_and_closed_while_others_come_in(
    start: StartServer, files: TlsConfig, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    """200 that say nothing, or a part of a greeting; one more than allowed is closed at once."""
    server = await start(files, first_frame_s=4.0, max_connections_per_address=202)
    stuck = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    for one in stuck[::2]:
        one.sendall(b"\x16\x03\x01\x02\x00\x01")
    assert await say(server, trusting(authority)) == b"hello"
    more = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
    for one in (*more, *stuck):
        one.setblocking(False)
    closed: set[socket.socket] = set()
    async with asyncio.timeout(60):
        while len(closed) < 205:
            await asyncio.sleep(0.02)
            for one in {*more, *stuck} - closed:
                with contextlib.suppress(BlockingIOError):
                    try:
                        if not one.recv(4096):
                            closed.add(one)
                    except ConnectionResetError:
                        closed.add(one)
    for one in closed:
        one.close()
    assert await say(server, trusting(authority)) == b"hello"
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 1


async def test_stopping_drops_connections_in_the_middle_of_a_handshake(files: TlsConfig) -> None:
    server = Server(echo, tls=files)
    await server.start()
    with socket.create_connection(("127.0.0.1", server.port)) as one:
        one.sendall(b"\x16\x03\x01")
        await asyncio.sleep(0)
        await server.stop()
        one.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert one.recv(1) == b""


@pytest.mark.parametrize("spoil", ["no cert", "no key", "garbage", "two keys", "no authorities"])
def test_bad_files_are_named(files: TlsConfig, tmp_path: Path, spoil: str) -> None:
    config = files
    if spoil == "no cert":
        config = TlsConfig(cert=tmp_path / "absent.pem", key=files.key)
    elif spoil == "no key":
        files.key.unlink()
    elif spoil == "garbage":
        files.cert.write_text("garbage")
    elif spoil == "two keys":
        (tmp_path / "other").mkdir()
        config = TlsConfig(
            cert=files.cert, key=write_certificate(tmp_path / "other", trustme.CA())[1]
        )
    else:
        (tmp_path / "empty.pem").write_text("")
        config = TlsConfig(
            cert=files.cert, key=files.key, client_ca=tmp_path / "empty.pem", client_auth="required"
        )
    with pytest.raises(InvalidOption, match=r"\.pem"):
        config.context()


def test_files_that_are_swapped_or_hold_something_else_are_told(files: TlsConfig) -> None:
    with pytest.raises(
        InvalidOption,
        match=r"key\.pem holds no certificate in PEM form; are certificate and key swapped\?$",
    ):
        TlsConfig(cert=files.key, key=files.cert).context()
    with pytest.raises(InvalidOption, match=r"cert\.pem holds no key in PEM form$"):
        TlsConfig(cert=files.cert, key=files.cert).context()
    files.cert.write_text("garbage")
    with pytest.raises(InvalidOption, match=r"cert\.pem holds no certificate in PEM form$"):
        files.context()


def test_what_a_client_would_say_of_a_certificate_is_known_without_one(
    tmp_path: Path, authority: trustme.CA, files: TlsConfig
) -> None:
    assert files.doubt("127.0.0.1") == ""
    assert "IP address mismatch" in files.doubt("192.0.2.2")
    assert "Hostname mismatch" in files.doubt("broker.example")
    asking = TlsConfig(
        cert=files.cert, key=files.key, client_ca=tmp_path / "ca.pem", client_auth="required"
    )
    assert asking.doubt("127.0.0.1") == ""
    write_certificate(tmp_path, authority, until=YEARS_AGO)
    assert files.doubt("127.0.0.1") == "certificate has expired"
    # with a chain
    write_certificate(tmp_path, authority.create_child_ca())
    files.cert.write_bytes("Brücke\n".encode() + files.cert.read_bytes())
    assert files.doubt("127.0.0.1") == ""
    files.cert.write_text(files.cert.read_text().replace(" CERTIFICATE-", " X509 CERTIFICATE-"))
    # what cannot be tried stops nothing
    assert files.doubt("192.0.2.2") == ""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_without_waiting_for_who_writes_it(files: TlsConfig) -> None:
    files.cert.unlink()
    os.mkfifo(files.cert)
    with pytest.raises(InvalidOption, match="is not a file"):
        files.context()


def test_an_encrypted_key_is_refused_without_asking_at_the_terminal(files: TlsConfig) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    form = serialization.BestAvailableEncryption(b"password")
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, form)
    )
    with pytest.raises(InvalidOption, match="encrypted"):
        files.context()


def test_settings_that_contradict_each_other_are_refused(files: TlsConfig) -> None:
    with pytest.raises(InvalidOption):
        TlsConfig(cert=files.cert, key=files.key, client_auth="required")
    with pytest.raises(InvalidOption):
        TlsConfig(cert=files.cert, key=files.key, client_ca=files.cert)
    with pytest.raises(InvalidOption):
        # what a user might write
        TlsConfig(cert=files.cert, key=files.key, mode="off")  # type: ignore[arg-type]
