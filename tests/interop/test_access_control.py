"""Our broker and name server with access control and TLS: Apache's Java client and mqadmin with
credentials, and ours beside them.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

import ogive
from ogive import aio
from ogive.errors import NoPermission, OgiveError
from ogive.testing import Broker
from tests.interop import apache

ROOT = ("root", "root-secret-0815")


@dataclass(frozen=True)
class Guarded:
    broker: Broker
    credentials: Path

    @property
    def name_server(self) -> str:
        return self.broker.name_server

    def ogive(self, *words: str, given: str = "") -> str:
        """What the command line says, as the super user."""
        command = [
            sys.executable,
            "-m",
            "ogive",
            *words,
            "-n",
            self.name_server,
            "--credentials",
            str(self.credentials),
        ]
        return subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=60, check=True
        ).stdout


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    credentials = folder / "root.yml"
    credentials.write_text("accessKey: {}\nsecretKey: {}\n".format(*ROOT))
    credentials.chmod(0o600)
    with Broker(
        data=folder / "store", options=("--acl", "--credentials", str(credentials))
    ) as broker:
        yield Guarded(broker, credentials)


def config(guarded: Guarded, user: tuple[str, str] | None) -> ogive.ClientConfig:
    credentials = (
        None if user is None else ogive.Credentials(access_key=user[0], secret_key=user[1])
    )
    return ogive.ClientConfig(name_server=guarded.name_server, credentials=credentials)


def test_mqadmin_manages_users_and_policies(guarded: Guarded, topic: str, group: str) -> None:
    """createUser, updateUser, listUser, getUser, createAcl, getAcl, listAcl, updateAcl, deleteAcl,
    deleteUser; and their effect.
    """
    at = f"-b {guarded.broker.address}"
    outputs = apache.admin(
        guarded.name_server,
        f"updateTopic {at} -t {topic} -r 2 -w 2",
        f"createUser {at} -u alice -p alice-secret-0815",
        f"createUser {at} -u boss -p boss-secret-0815 -t Super",
        f"updateUser {at} -u boss -s disable",
        f"listUser {at}",
        f"getUser {at} -u alice",
        f"createAcl {at} -s User:alice -r Topic:{topic} -a Pub,Sub -d Allow",
        f"createAcl {at} -s User:alice -r Group:{group} -a Sub -i 127.0.0.0/8 -d Allow",
        f"getAcl {at} -s User:alice",
        f"listAcl {at} -s alice",
        credentials=ROOT,
    )
    for output in outputs:
        assert "Exception" not in output, output
    assert outputs[1].startswith("create user to")
    users = {
        line.split()[0]: line.split()[1:]
        for line in outputs[4].splitlines()
        if line.split()[:1] in (["alice"], ["boss"], ["root"])
    }
    assert users == {
        "root": ["null", "Super", "enable"],
        "alice": ["null", "Normal", "enable"],
        "boss": ["null", "Super", "disable"],
    }
    assert "alice" in outputs[5]
    assert "secret-0815" not in "".join(outputs)
    for output in outputs[8:]:
        rows = {
            line.split()[2]: line.split()
            for line in output.splitlines()
            if line.startswith("User:alice")
        }
        assert rows[f"Topic:{topic}"][1] == "Custom"
        assert "127.0.0.0/8" in rows[f"Group:{group}"][4]

    user: dict[str, Any] = {"accessKey": "alice", "secretKey": "alice-secret-0815"}
    assert len(apache.send(guarded.name_server, topic, 3, **user)) == 3
    bodies = {line["body"] for line in apache.consume(guarded.name_server, topic, group, 3, **user)}
    assert bodies == {"message 0", "message 1", "message 2"}

    gone = apache.admin(
        guarded.name_server,
        f"updateAcl {at} -s User:alice -r Topic:{topic} -a Pub -d Deny",
        f"deleteAcl {at} -s User:alice -r Group:{group}",
        f"getAcl {at} -s User:alice",
        f"deleteUser {at} -u boss",
        f"deleteUser {at} -u root",
        credentials=ROOT,
    )
    assert "Deny" in gone[2]
    assert group not in gone[2]
    assert "Exception" not in "".join(gone[:4])
    assert "last super user" in gone[4]
    with pytest.raises(AssertionError, match=r"NO_PERMISSION|CODE: 16|no permission"):
        apache.send(guarded.name_server, topic, 1, **user)


def test_mqadmin_copies_rules_to_another_broker_but_no_password(
    guarded: Guarded, topic: str, tmp_path: Path
) -> None:
    """docs/security.md says what to do instead."""
    with Broker(
        data=tmp_path / "store", options=("--acl", "--credentials", str(guarded.credentials))
    ) as other:
        at, to = f"-b {guarded.broker.address}", f"-f {guarded.broker.address} -t {other.address}"
        made, ruled, unknown, there, copied, rules, ignored = apache.admin(
            guarded.name_server,
            f"createUser {at} -u carol -p carol-secret-0815",
            f"createAcl {at} -s User:carol -r Topic:{topic} -a Pub -d Allow",
            f"copyUser {to} -u carol",
            f"createUser -b {other.address} -u carol -p another-secret",
            f"copyAcl {to} -s User:carol",
            f"listAcl -b {other.address}",
            f"copyUser {to} -u carol",
            credentials=ROOT,
        )
    assert "CODE: 29  DESC: user carol needs a password" in unknown
    for output in (made, ruled, there, copied, rules, ignored):
        assert "Exception" not in output, output
    assert f"Topic:{topic}" in rules
    assert "secret" not in unknown + copied + rules + ignored


@pytest.mark.parametrize(
    "user",
    [
        {},
        {"accessKey": "root", "secretKey": "a-guess-0815"},
        {"accessKey": "nobody", "secretKey": "a-guess"},
    ],
)
def test_javas_client_without_the_right_credentials_is_refused(
    guarded: Guarded, topic: str, user: dict[str, Any]
) -> None:
    with pytest.raises(AssertionError, match=r"CODE: 16|No route info|credentials|NO_PERMISSION"):
        apache.send(guarded.name_server, topic, 1, **user)


def test_mqadmin_without_credentials_is_refused(guarded: Guarded, topic: str) -> None:
    made, users = apache.admin(
        guarded.name_server,
        f"updateTopic -b {guarded.broker.address} -t {topic}",
        f"listUser -b {guarded.broker.address}",
    )
    assert "asks for credentials" in made
    assert "asks for credentials" in users
    assert "root" not in users


async def test_users_made_on_the_command_line_do_what_rules_allow(
    guarded: Guarded, topic: str, group: str
) -> None:
    def commands() -> tuple[str, str]:
        guarded.ogive("topic", "create", topic, "--queues", "2")
        guarded.ogive("user", "create", f"u{topic}", given="u-secret-0815\n")
        guarded.ogive("acl", "allow", f"u{topic}", f"Topic:{topic}", "pub,sub")
        guarded.ogive("acl", "allow", f"u{topic}", f"Group:{group}", "sub")
        return guarded.ogive("user", "list"), guarded.ogive("acl", "list", f"u{topic}")

    users, rules = await asyncio.to_thread(commands)
    assert [line.split() for line in users.splitlines() if topic in line] == [
        [f"u{topic}", "normal", "enabled"]
    ]
    assert [line.split()[1:] for line in rules.splitlines()[1:]] == [
        ["allow", f"Group:{group}", "Sub", "anywhere"],
        ["allow", f"Topic:{topic}", "Pub,Sub", "anywhere"],
    ]
    mine = config(guarded, (f"u{topic}", "u-secret-0815"))
    async with aio.Producer(client=mine) as producer:
        await producer.send(topic, b"mine")
        with pytest.raises(OgiveError) as refused:
            await producer.send(f"{topic}x", b"theirs")
        assert not refused.value.outcome_unknown
    async with aio.PushConsumer(topic, group=group, start="earliest", client=mine) as consumer:
        async for message in consumer:
            async with message.process():
                assert message.body == b"mine"
            break
    async with aio.Admin(client=mine) as admin:
        with pytest.raises(NoPermission):
            await admin.create_user("mallory", "x", super_user=True)


async def test_everything_holds_after_a_restart(guarded: Guarded, topic: str) -> None:
    """--credentials makes a user, and changes none: a password that was changed since stays
    changed.
    """
    async with aio.Admin(client=config(guarded, ROOT)) as admin:
        await admin.create_topic(topic, queues=1)
        await admin.create_user("second", "second-secret", super_user=True)
        await admin.update_user("root", password="changed-secret")
    await asyncio.to_thread(guarded.broker.stop)
    await asyncio.to_thread(guarded.broker.start)
    async with aio.Admin(client=config(guarded, ("root", "changed-secret"))) as admin:
        assert "second" in {user.name for user in await admin.users()}
        await admin.update_user("root", password=ROOT[1])
    async with aio.Producer(client=config(guarded, ("second", "second-secret"))) as producer:
        await producer.send(topic, b"x")
    secrets = (guarded.broker.data / "config" / "access" / "access.json").read_text()
    # signatures are computed with it: see docs/security.md
    assert "second-secret" in secrets


def test_javas_client_over_tls(tmp_path: Path, topic: str, group: str) -> None:
    """Both ask for certificates: theirs of ours, ours of theirs.

    Permissive: our own tool still comes without.
    """
    authority = trustme.CA()
    files = {
        name: tmp_path / f"{name}.pem" for name in ("cert", "key", "ca", "client", "client_key")
    }
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("client@example.org")
    for issued, cert, key in ((server, "cert", "key"), (client, "client", "client_key")):
        files[cert].write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        # Java reads PKCS#8 only
        private = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        files[key].write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    files["ca"].write_bytes(authority.cert_pem.bytes())
    options = (
        "--tls-cert",
        str(files["cert"]),
        "--tls-key",
        str(files["key"]),
        "--tls-client-ca",
        str(files["ca"]),
    )
    java = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(files["ca"]),
        "tls.client.certPath": str(files["client"]),
        "tls.client.keyPath": str(files["client_key"]),
    }
    with Broker(data=tmp_path / "store", options=(*options, "--tls-mode", "permissive")) as broker:
        assert len(apache.send(broker.name_server, topic, 3, system=java)) == 3
        with ogive.Admin(broker.name_server) as admin:
            assert sum(row.max_offset for row in admin.offsets(topic)) == 3
    with Broker(data=tmp_path / "store", options=options) as broker:
        assert len(apache.consume(broker.name_server, topic, group, 3, system=java)) == 3
        with pytest.raises(
            AssertionError,
            match=r"RemotingSendRequestException|RemotingConnectException|No route info",
        ):
            apache.send(broker.name_server, topic, 1)
