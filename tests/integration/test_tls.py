"""`ogive up` with TLS, as an operator runs it."""

import os
import signal
import ssl
import time
from pathlib import Path

import pytest
import trustme

import ogive
from ogive.cli.main import main
from ogive.errors import OgiveError
from ogive.testing import Broker


def write(folder: Path, authority: trustme.CA) -> None:
    issued = authority.issue_cert("127.0.0.1")
    (folder / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    (folder / "key.pem").write_bytes(issued.private_key_pem.bytes())
    (folder / "ca.pem").write_bytes(authority.cert_pem.bytes())


def config(broker: Broker, folder: Path) -> ogive.ClientConfig:
    return ogive.ClientConfig(
        name_server=broker.name_server,
        ssl=ssl.create_default_context(cafile=str(folder / "ca.pem")),
    )


def test_clients_and_commands_use_tls_and_sighup_brings_new_certificates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, trustme.CA())
    options = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with (
        Broker(options=options) as broker,
        ogive.Producer(client=config(broker, tmp_path)) as producer,
    ):
        producer.send("T", b"x")
        assert (
            main(["topic", "list", "-n", broker.name_server, "--cafile", str(tmp_path / "ca.pem")])
            == 0
        )
        assert "T " in capsys.readouterr().out
        with ogive.Producer(broker.name_server) as plain, pytest.raises(OgiveError):
            plain.send("T", b"x", timeout_s=1.0)

        write(tmp_path, trustme.CA())
        os.kill(broker.pid, signal.SIGHUP)
        give_up = time.monotonic() + 60
        while not is_trusted(broker, tmp_path):
            assert time.monotonic() < give_up, "the new certificate is not there"
        producer.send("T", b"a connection of before goes on")


def test_commands_show_a_certificate_where_one_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, trustme.CA())
    pem, key, ca = (str(tmp_path / f"{name}.pem") for name in ("cert", "key", "ca"))
    with Broker(options=("--tls-cert", pem, "--tls-key", key, "--tls-client-ca", ca)) as broker:
        command = ["topic", "list", "-n", broker.name_server, "--cafile", ca]
        assert main([*command, "--certfile", pem, "--keyfile", key]) == 0
        assert main(command) == 1
        assert "asks for one. Show one with --certfile FILE." in capsys.readouterr().err


def is_trusted(broker: Broker, folder: Path) -> bool:
    with ogive.Admin(client=config(broker, folder)) as admin:
        try:
            return bool(admin.cluster_info().brokers)
        except OgiveError:
            return False


def test_without_tls_sighup_changes_nothing() -> None:
    """systemd's reload must not end a broker."""
    with Broker() as broker, ogive.Producer(broker.name_server) as producer:
        producer.send("T", b"x")
        os.kill(broker.pid, signal.SIGHUP)
        # the signal ends a process at once or not at all
        for _ in range(50):
            producer.send("T", b"y")
            time.sleep(0.01)
