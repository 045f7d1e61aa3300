"""The console's life, and to whom it may answer."""

import importlib.util
import socket
import ssl
import urllib.request
from pathlib import Path

import pytest
import trustme

from ogive.client.config import ClientConfig
from ogive.console.config import ConsoleConfig, require_extra
from ogive.console.server import Console, only_trusting
from ogive.errors import ConnectError, InvalidOption
from ogive.testing.fake_broker import FakeBroker
from ogive.transport.tls import TlsConfig
from ogive.wire.codes import RequestCode
from ogive.wire.signing import Credentials
from tests.browser import Browser

USER = Credentials(access_key="ada", secret_key="lovelace")
NOBODY = ClientConfig(name_server="127.0.0.1:1")


def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            ConnectError, match=f"cannot listen on 127.0.0.1:{port}: address already in use"
        ):
            Console(ConsoleConfig(client=NOBODY, port=port)).start()


def test_a_console_serves_until_it_is_stopped_and_its_port_is_free_then() -> None:
    console = Console(ConsoleConfig(client=NOBODY, port=0))
    console.start()
    assert Browser(console.address).get("/messages").status == 200
    console.stop()
    console.stop()
    with pytest.raises(ConnectionRefusedError):
        Browser(console.address).get("/messages")


async def test_a_page_under_way_does_not_keep_it(fake: FakeBroker) -> None:
    """Also on IPv6, and with a reader who never reads."""
    fake.mute = True
    console = Console(
        ConsoleConfig(client=ClientConfig(name_server=fake.address), host="::1", port=0)
    )
    console.start()
    host, _, port = console.address.rpartition(":")
    assert (host, console.url) == ("[::1]", f"http://[::1]:{port}/")
    with socket.create_connection(("::1", int(port))) as reader:
        reader.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await fake.received(RequestCode.GET_BROKER_CLUSTER_INFO)
        console.stop()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_address_that_others_reach_needs_credentials(host: str) -> None:
    with pytest.raises(
        InvalidOption, match=r"^host \S+ is not loopback.*credentials that browsers must enter$"
    ):
        ConsoleConfig(client=NOBODY, host=host)
    ConsoleConfig(client=NOBODY, host=host, credentials=USER)


def test_what_the_clusters_credentials_may_see_is_not_for_everybody_on_the_machine() -> None:
    client = ClientConfig(credentials=USER)
    with pytest.raises(InvalidOption, match=r"asks for credentials.* browsers must enter$"):
        ConsoleConfig(client=client)
    ConsoleConfig(client=client, credentials=USER)


def test_a_host_name_is_no_address_to_listen_on() -> None:
    with pytest.raises(InvalidOption, match="an IP address is expected"):
        ConsoleConfig(client=NOBODY, host="console.example")


def test_what_is_missing_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    require_extra()
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jinja2" else object()
    )
    with pytest.raises(InvalidOption, match=r"needs jinja2: pip install 'ogive\[console\]'"):
        require_extra()


def test_a_console_speaks_https_and_takes_a_new_certificate(tmp_path: Path) -> None:
    authorities = [trustme.CA(), trustme.CA()]
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def issue(authority: trustme.CA) -> None:
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(key)
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    def look(authority: trustme.CA) -> int:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        with urllib.request.urlopen(
            f"{console.url}messages", context=context, timeout=60
        ) as answer:
            status: int = answer.status
            return status

    issue(authorities[0])
    trusting = only_trusting(cert)
    client = ClientConfig(name_server="127.0.0.1:1", ssl=trusting)
    console = Console(ConsoleConfig(client=client, port=0, tls=TlsConfig(cert=cert, key=key)))
    console.start()
    try:
        assert look(authorities[0]) == 200
        issue(authorities[1])
        console.reload_certificates()
        assert look(authorities[1]) == 200
        assert trusting.cert_store_stats()["x509"] == 2
        cert.write_text("nonsense")
        with pytest.raises(InvalidOption):
            console.reload_certificates()
        assert look(authorities[1]) == 200
    finally:
        console.stop()


def test_of_a_chain_only_the_servers_own_certificate_is_trusted(tmp_path: Path) -> None:
    """Its authorities vouch for others, too."""
    between = trustme.CA().create_child_ca()
    chain = between.issue_cert("broker.example").cert_chain_pems
    assert len(chain) > 1
    (tmp_path / "chain.pem").write_bytes(b"".join(blob.bytes() for blob in chain))
    assert only_trusting(tmp_path / "chain.pem").cert_store_stats()["x509"] == 1


def test_what_holds_no_certificate_is_said(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nonsense")
    for path, reason in (
        (tmp_path / "cert.pem", "holds no certificate"),
        (tmp_path / "none", "cannot be read"),
    ):
        with pytest.raises(InvalidOption, match=reason):
            only_trusting(path)
