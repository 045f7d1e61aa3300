"""`ogive up`: which name servers its broker registers at, and what of it cannot be."""

import argparse
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from ogive.cli import up_checks
from ogive.cli.main import main
from ogive.cli.parser import build_parser
from ogive.cli.up import (
    OtherNameServers,
    addresses_for_broker,
    dial,
    other_name_servers,
    warn_of_loopback,
)
from ogive.errors import ConnectError, InvalidOption
from ogive.namesrv.config import NameServerConfig
from ogive.namesrv.server import NameServer
from ogive.transport.tls import TlsConfig
from ogive.wire.codes import RequestCode, ResponseCode
from ogive.wire.command import RemotingCommand


def up(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["up", *words])


@pytest.fixture
async def own() -> AsyncIterator[NameServer]:
    server = NameServer(NameServerConfig(port=0))
    await server.start()
    yield server
    await server.stop()


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("--no-broker", "--no-name-server"), "nothing to run"),
        (("--no-name-server",), "--name-servers HOST:PORT"),
        (("--no-broker", "--name-servers", "10.0.0.1:9876"), "leave one of them out"),
        (("--no-broker", "--acl"), "--tls-client-ca"),
        (("--no-broker", "--console-port", "0"), "`ogive console -n HOST:PORT`"),
        (
            ("--no-name-server", "--name-servers", "10.0.0.1:9876", "--console-port", "0"),
            "`ogive console -n HOST:PORT`",
        ),
        (
            ("--name-servers-cafile", "ca.pem"),
            "--name-servers-cafile is about the name servers of --name-servers",
        ),
        (
            ("--name-servers-credentials", "root.yml"),
            "--name-servers-credentials is about the name servers of --name-servers",
        ),
        (
            ("--name-servers", "10.0.0.1:no"),
            "name server '10.0.0.1:no' is not of the form host:port",
        ),
        (("--name-servers", ";"), "no name server is given"),
        (
            ("--name-servers", "a:1", "--name-servers-cafile", "/absent.pem"),
            "authorities file /absent.pem: No such file",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence_with_the_way_out(
    words: tuple[str, ...], advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "store"
    assert (
        main(["up", "--data", str(data), "--name-server-port", "0", "--broker-port", "0", *words])
        == 1
    )
    said = capsys.readouterr().err
    assert advice in said
    assert said.count("\n") == 1
    assert not data.exists()


@pytest.mark.parametrize(
    "text",
    ["10.0.0.1:9876,ns.example:9877", "10.0.0.1:9876;ns.example:9877", "10.0.0.1, ns.example:9877"],
)
def test_a_list_is_divided_by_commas_or_as_namesrvaddr_is(text: str) -> None:
    assert other_name_servers(up("--name-servers", text)).addresses == (
        "10.0.0.1:9876",
        "ns.example:9877",
    )


async def test_the_own_name_server_comes_first_and_is_not_asked_twice(own: NameServer) -> None:
    port = own.local_address.rpartition(":")[2]
    named = OtherNameServers(
        addresses=("10.0.0.1:9876", f"127.0.0.1:{port}", f"localhost:{port}", "10.0.0.1:9876")
    )
    assert addresses_for_broker(own, named) == (own.local_address, "10.0.0.1:9876")
    assert addresses_for_broker(own, OtherNameServers()) == (own.local_address,)
    assert addresses_for_broker(None, OtherNameServers(addresses=("10.0.0.1:9876",))) == (
        "10.0.0.1:9876",
    )


@pytest.mark.parametrize(
    ("broker", "at", "warned"),
    [
        ("127.0.0.1", "10.0.0.1:9876", True),
        ("127.0.0.1", "ns.example:9876", True),
        ("127.0.0.1", "127.0.0.1:9877", False),
        ("127.0.0.1", "localhost:9877", False),
        ("10.0.0.2", "10.0.0.1:9876", False),
    ],
)
def test_an_address_that_only_this_machine_reaches_is_no_use_elsewhere(
    broker: str, at: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    warn_of_loopback(broker, OtherNameServers(addresses=(at,)))
    assert ["--advertised-host" in record.getMessage() for record in caplog.records] == [
        True
    ] * warned


async def test_another_name_server_that_asks_for_certificates_is_shown_the_brokers(
    tmp_path: Path,
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    tls = TlsConfig(
        cert=tmp_path / "both.pem",
        key=tmp_path / "both.pem",
        client_ca=tmp_path / "ca.pem",
        client_auth="required",
    )
    server = NameServer(NameServerConfig(port=0, tls=tls))
    await server.start()
    try:
        named = other_name_servers(
            up("--name-servers", server.address, "--name-servers-cafile", str(tmp_path / "ca.pem"))
        )
        connection = await dial(None, None, named, tls, 5.0)(server.address)
        answer = await connection.call(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), 5.0)
        assert answer.code == ResponseCode.SUCCESS
        connection.close()
        untrusted = OtherNameServers(addresses=named.addresses, ssl=ssl.create_default_context())
        with pytest.raises(ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await dial(None, None, untrusted, tls, 5.0)(server.address)
    finally:
        await server.stop()


def test_options_without_others_are_not_looked_at() -> None:
    up_checks.check(up())
    assert other_name_servers(up()) == OtherNameServers()
    with pytest.raises(InvalidOption):
        up_checks.check(up("--no-name-server"))
