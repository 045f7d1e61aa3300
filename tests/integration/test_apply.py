"""Settings as a file: exported from one broker, applied to another, and compared."""

import subprocess
import sys
from pathlib import Path

import pytest

import ogive
from ogive.cli.main import main
from ogive.testing import Broker
from tests.peers import RunningBroker

pytestmark = pytest.mark.client_suite


def exported(name_server: str, *kinds: str) -> str:
    """Return what the exports of *kinds* print, one after the other."""
    words = [sys.executable, "-m", "ogive"]
    return "".join(
        subprocess.run(
            [*words, kind, "export", "-n", name_server], capture_output=True, text=True, check=True
        ).stdout
        for kind in kinds
    )


@pytest.mark.since("5.0.0", what="types of messages")
def test_an_exported_cluster_is_made_again_on_another(
    broker: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.toml"
    with Broker() as other, ogive.Admin(other.name_server) as admin:
        admin.create_topic("AppliedOrders", queues=3, message_type="FIFO", order=True)
        admin.create_topic("AppliedPrices", queues=4, perm="r")
        admin.update_topic("AppliedPrices", write_queues=2)
        admin.create_group("applied-billing", max_retries=3, broadcast=False)
        file.write_text(exported(other.name_server, "topic", "group"))
    there = ["apply", str(file), "-n", broker.name_server]
    assert main([*there, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "topic AppliedOrders" in shown
    with ogive.Admin(broker.name_server) as admin:
        assert "AppliedOrders" not in [row.name for row in admin.topics()]
        # without a terminal nobody can agree
        assert main(there) == 1
        assert "add --yes" in capsys.readouterr().err
        assert main([*there, "--yes"]) == 0
        (row,) = admin.topic("AppliedPrices").brokers
        assert (row.read_queues, row.write_queues, row.perm) == (4, 2, "r")
        assert admin.topic("AppliedOrders").message_type == "FIFO"
        group = admin.group("applied-billing")
        assert (group.max_retries, group.broadcast) == (3, False)
        capsys.readouterr()
        assert main([*there, "--yes"]) == 0
        assert capsys.readouterr().out == "the cluster is like that already\n"
        admin.update_group("applied-billing", max_retries=5)
        assert main([*there, "--dry-run"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert " ".join(lines[-1].split()) == "group applied-billing on broker-a max_retries 5 3"


def test_rules_are_applied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secrets = tmp_path / "root.yml"
    secrets.write_text("accessKey: root\nsecretKey: 12345678\n")
    credentials = ogive.Credentials(access_key="root", secret_key="12345678")
    file = tmp_path / "rules.toml"
    file.write_text(
        '[[rules]]\nuser = "ann"\nresource = "Topic:Orders"\nactions = ["Pub"]\nallowed = true\n'
        'source_ips = ["10.0.0.0/8"]\n'
    )
    with (
        Broker(options=("--acl", "--credentials", str(secrets))) as broker,
        ogive.Admin(
            client=ogive.ClientConfig(name_server=broker.name_server, credentials=credentials)
        ) as admin,
    ):
        admin.create_user("ann", "secret-of-ann")
        command = ["apply", str(file), "-n", broker.name_server, "--credentials", str(secrets)]
        assert main([*command, "--yes"]) == 0
        (rule,) = admin.access_rules()
        assert (rule.user, rule.actions, rule.source_ips) == ("ann", ("Pub",), ("10.0.0.0/8",))
        capsys.readouterr()
        assert main([*command, "--yes"]) == 0
        assert capsys.readouterr().out == "the cluster is like that already\n"
