"""Users and TLS, named in the URL."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from kombu import Connection, Producer, Queue

import ogive
import ogive_kombu  # noqa: F401
from ogive.testing import Broker

NAME = "Guarded"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Broker]:
    """A broker that asks for TLS and a user; its certificates are in *tmp_path*."""
    authority = trustme.CA()
    pem, users = tmp_path / "server.pem", tmp_path / "root.yml"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    users.write_text("accessKey: root\nsecretKey: root-secret\n")
    tls = ("--tls-cert", str(pem), "--tls-key", str(pem))
    with Broker(options=("--acl", "--credentials", str(users), *tls)) as broker:
        yield broker


@pytest.fixture
def root(guarded: Broker, tmp_path: Path) -> Iterator[ogive.Admin]:
    client = ogive.ClientConfig(
        name_server=guarded.name_server,
        credentials=ogive.Credentials(access_key="root", secret_key="root-secret"),
        ssl=ssl.create_default_context(cafile=str(tmp_path / "ca.pem")),
    )
    with ogive.Admin(client=client) as admin:
        yield admin


def declare(url: str) -> Any:
    with Connection(url) as connection:
        return Queue(NAME)(connection.channel()).queue_declare()


def test_the_url_has_the_user_and_the_authority(guarded: Broker, tmp_path: Path) -> None:
    query = f"?ssl_ca_certs={tmp_path / 'ca.pem'}"
    assert declare(f"rocketmq://root:root-secret@{guarded.name_server}//{query}").queue == NAME
    with pytest.raises(ogive.NoPermission):
        declare(f"rocketmq://root:wrong@{guarded.name_server}//{query}")
    with pytest.raises(ogive.OgiveError, match="certificate"):
        declare(f"rocketmq://root:root-secret@{guarded.name_server}//?ssl=true")


def test_a_worker_needs_the_rules_that_the_readme_names(
    guarded: Broker, root: ogive.Admin, tmp_path: Path
) -> None:
    root.create_topic(NAME)
    root.create_user("worker", "worker-secret")
    root.allow("worker", f"Topic:{NAME}", ["Pub", "Sub", "Get"])
    root.allow("worker", f"Group:{NAME}", ["Sub", "Get", "Create"])
    url = f"rocketmq://worker:worker-secret@{guarded.name_server}//"
    with Connection(f"{url}?ssl_ca_certs={tmp_path / 'ca.pem'}") as connection:
        channel = connection.channel()
        queue = Queue(NAME)(channel)
        Producer(channel).publish("x", routing_key=NAME, declare=[queue])
        message = queue.get()
        assert message.payload == "x"
        message.ack()
