"""Our client and Apache's broker with access control and with TLS."""

import ssl
from collections.abc import Iterator

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

import ogive
from ogive import aio
from ogive.errors import NoPermission, OgiveError
from tests.interop.apache import BROKER_JVM, NAME_SERVER_JVM, Apache, access_control

ROOT = ogive.Credentials(access_key="root", secret_key="root-secret")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    """A broker that asks who is there."""
    settings = access_control("root", "root-secret")
    with Apache(tmp_path_factory.mktemp("guarded"), settings) as running:
        yield running


def client(broker: Apache, credentials: ogive.Credentials | None) -> ogive.ClientConfig:
    return ogive.ClientConfig(name_server=broker.name_server, credentials=credentials)


@pytest.mark.feature(4)
async def test_a_user_with_credentials_administers_sends_and_consumes(
    guarded: Apache, topic: str, group: str
) -> None:
    """Single messages, batches, one-way, keyed runs: each kind of frame carries its signature."""
    config = client(guarded, ROOT)
    async with aio.Admin(client=config) as admin, aio.Producer(client=config) as producer:
        await admin.create_topic(topic, queues=2)
        await producer.send(topic, b"0", tag="größe")
        await producer.send_batch(topic, [b"1", b"2"])
        await producer.send_oneway(topic, b"3")
        for future in [
            await producer.submit(topic, b"%d" % i, sharding_key="k") for i in range(4, 10)
        ]:
            await future
        bodies = set()
        async with aio.PushConsumer(
            topic, group=group, start="earliest", client=config
        ) as consumer:
            async for message in consumer:
                async with message.process():
                    bodies.add(message.body)
                if len(bodies) == 10:
                    break
    assert bodies == {b"%d" % i for i in range(10)}


@pytest.mark.parametrize(
    "wrong", [None, ogive.Credentials(access_key="root", secret_key="wrong-secret")]
)
async def test_without_the_right_credentials_nothing_is_stored(
    guarded: Apache, wrong: ogive.Credentials | None
) -> None:
    async with aio.Producer(client=client(guarded, wrong)) as producer:
        with pytest.raises(OgiveError, match="16 NO_PERMISSION") as refused:
            await producer.send("TopicTest", b"x")
    assert not refused.value.outcome_unknown
    assert isinstance(refused.value.__cause__, NoPermission)


# --- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[Apache]:
    """A name server and a broker that speak TLS to who wants it, and then ask for the client's
    certificate.
    """
    folder = tmp_path_factory.mktemp("encrypted")
    server = authority.issue_cert("127.0.0.1")
    (folder / "server.pem").write_bytes(b"".join(blob.bytes() for blob in server.cert_chain_pems))
    key = serialization.load_pem_private_key(server.private_key_pem.bytes(), None)
    (folder / "server.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    (folder / "ca.pem").write_bytes(authority.cert_pem.bytes())
    properties = {
        "tls.test.mode.enable": "false",
        "tls.server.need.client.auth": "require",
        "tls.server.certPath": folder / "server.pem",
        "tls.server.keyPath": folder / "server.key",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": folder / "ca.pem",
    }
    (folder / "tls.properties").write_text(
        "".join(f"{name}={value}\n" for name, value in properties.items())
    )
    options = ["-Dtls.server.mode=permissive", f"-Dtls.config.file={folder / 'tls.properties'}"]
    with Apache(
        folder / "apache", jvm=[*BROKER_JVM, *options], name_server_jvm=[*NAME_SERVER_JVM, *options]
    ) as running:
        yield running


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_a_message_goes_both_ways_over_tls(
    encrypted: Apache, authority: trustme.CA, topic: str
) -> None:
    context = trusting(authority)
    authority.issue_cert("client@example.org").configure_cert(context)
    config = ogive.ClientConfig(name_server=encrypted.name_server, ssl=context)
    async with aio.Admin(client=config) as admin, aio.Producer(client=config) as producer:
        await admin.create_topic(topic, queues=1)
        sent = await producer.send(topic, b"secret")
        [row] = await admin.offsets(topic)
        assert (row.queue, row.max_offset) == (sent.queue, 1)


async def test_a_server_that_cannot_be_trusted_is_not_spoken_to(
    encrypted: Apache, authority: trustme.CA
) -> None:
    """Another authority than ours; the right one, but no certificate of the client's own."""
    for context in (True, trusting(trustme.CA()), trusting(authority)):
        async with aio.Producer(
            client=ogive.ClientConfig(name_server=encrypted.name_server, ssl=context)
        ) as producer:
            with pytest.raises(OgiveError, match=r"TLS with 127\.0\.0\.1:\d+ failed|certificate"):
                await producer.send("TopicTest", b"x")
