"""Our client against servers that lie: every call ends by its own time, memory is bounded, nothing
is written, nothing is left.

The deadlines here only keep a test from hanging: that a call ends within its own timeout is seen by
its error, which says so itself.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from ogive import aio
from ogive.client.config import ClientConfig, ProducerConfig
from ogive.errors import OgiveError, TransportError
from ogive.model import MessageQueue
from ogive.testing import FakeBroker
from ogive.wire.codes import Flag
from ogive.wire.command import RemotingCommand, encode_command
from tests.figures import figures
from tests.never.hostile import QUESTIONS, Behaviour, behaviours, more_behaviours
from tests.never.scene import GROUP, RETRY, SEND, TOPIC, UPDATE, WAIT_S, Scene, until

pytestmark = pytest.mark.waits(1)

# the server itself, in the same process, makes answers of some MiB
MAX_GROWTH_KIB = 96 * 1024
CLIENT = ClientConfig(
    request_timeout_s=0.4, connect_timeout_s=0.4, heartbeat_period_s=0.2, route_period_s=0.2
)


def peak_kib() -> int:
    """The most memory that this process has had since ``forget_peak``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


@asynccontextmanager
async def unharmed(folder: Path) -> AsyncIterator[None]:
    """Memory, threads, tasks, descriptors and files are afterwards as before, within bounds."""

    def left() -> tuple[int, int, int]:
        # the loop's own, for names of hosts
        threads = [one for one in threading.enumerate() if not one.name.startswith("asyncio_")]
        return len(threads), len(asyncio.all_tasks()), len(list(Path("/proc/self/fd").iterdir()))

    before = left()
    forget_peak()
    resting = peak_kib()
    yield
    assert peak_kib() - resting < MAX_GROWTH_KIB
    await until(
        lambda: all(now <= then + 1 for now, then in zip(left(), before, strict=True)),
        f"as little as before: {before}",
    )
    assert list(folder.iterdir()) == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a client would write if it wrote anything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with FakeBroker({TOPIC: 1, RETRY: 1}) as broker:
        yield Scene(broker)


async def meets(behaviour: Behaviour, scene: Scene) -> None:
    broker, seen = scene.broker, asyncio.Event()

    def misbehave(request: RemotingCommand) -> Any:
        seen.set()
        return behaviour.answer(broker, request)

    def member() -> aio.PushConsumer:
        return scene.consumer(
            scene.listener(orderly=behaviour.orderly), client=CLIENT, pull_suspend_s=0.2
        )

    scene.put(10)
    broker.on(behaviour.code, misbehave)
    client = replace(CLIENT, name_server=broker.address)
    consumer, running = member(), True
    try:
        await consumer.start()
    except OgiveError:
        # a consumer that cannot learn its route at all says so at once
        await consumer.close()
        consumer, running = member(), False
    async with aio.Producer(
        config=ProducerConfig(send_timeout_s=0.4, retries=1), client=client
    ) as producer:
        await send(producer, scene, b"from us")
        await until(seen.is_set, "a request that is answered badly")
        if running:
            asked = len(broker.requests)
            # routes are asked for every 0.2 s
            await until(lambda: len(broker.requests) > asked + 2, "that life goes on")
        broker.on(behaviour.code, None)
        if not running:
            await consumer.start()
        if behaviour.recovers:
            await until(lambda: not scene.ledger.lost, "every message, once the server behaves")
        async with asyncio.timeout(WAIT_S):
            while not await send(producer, scene, b"from us, later"):
                await asyncio.sleep(0.02)
        await consumer.close()
    assert b"evil" not in scene.ledger.received
    assert not scene.ledger.phantom
    written = {(r.ext_fields["consumerGroup"], r.ext_fields["topic"]) for r in broker.of(UPDATE)}
    assert written <= {(GROUP, TOPIC), (GROUP, RETRY)}
    assert all(0 <= offset <= len(broker.stored[TOPIC, 0]) for offset in scene.commits())


async def send(producer: aio.Producer, scene: Scene, body: bytes) -> bool:
    """Whether it was acknowledged. It ends by its own timeout, or with a plain error."""
    scene.ledger.attempted.add(body)
    try:
        async with asyncio.timeout(WAIT_S):
            await producer.send(TOPIC, body, queue=MessageQueue(TOPIC, "broker-a", 0))
    except OgiveError:
        return False
    return True


@pytest.mark.kills("declared length is believed", param="a send's answer declares 2 GiB")
@pytest.mark.kills("inflate without cap, at the client", param="a broker delivers a bomb of zeros")
@pytest.mark.kills(
    "hostile server: checksums of bodies are not checked",
    param="a broker delivers a message whose checksum is wrong",
)
@pytest.mark.kills(
    "hostile server: a pull goes on at a negative offset",
    param="a broker sends the group to a negative place",
)
@pytest.mark.parametrize("behaviour", list(behaviours()), ids=lambda behaviour: behaviour.name)
async def test_a_client_survives(behaviour: Behaviour, scene: Scene, folder: Path) -> None:
    async with unharmed(folder):
        await meets(behaviour, scene)


@pytest.mark.nightly
@pytest.mark.parametrize("behaviour", list(more_behaviours()), ids=lambda behaviour: behaviour.name)
async def test_a_client_survives_this_as_well(
    behaviour: Behaviour, scene: Scene, folder: Path
) -> None:
    with figures("T40", nightly=True, faults=1) as line:
        async with unharmed(folder):
            await meets(behaviour, scene)
        line.update(
            attempts=len(scene.ledger.attempted),
            acknowledged=len(scene.ledger.acknowledged),
            lost=len(scene.ledger.lost),
        )


@pytest.mark.parametrize("oneway", [False, True], ids=["asked", "told"])
@pytest.mark.parametrize("name", QUESTIONS)
async def test_a_client_survives_a_server_that(
    name: str, oneway: bool, scene: Scene, folder: Path
) -> None:
    """Asked, it answers with an error or what it knows of itself; told, it says nothing.

    Neither listener nor progress hears of it.
    """
    question = QUESTIONS[name]
    async with unharmed(folder):
        scene.put(5)
        async with (
            scene.consumer(pull_suspend_s=0.1) as consumer,
            aio.Producer(scene.broker.address) as producer,
        ):
            await until(lambda: scene.progress() == 5, "the first messages")
            link = scene.broker.members[GROUP][consumer.client_id]
            for _ in range(50):
                command = RemotingCommand(question.code, dict(question.ext_fields), question.body)
                if oneway:
                    link.send_nowait(command)
                else:
                    try:
                        answer = await link.call(
                            command, 0.5 if question.code in SAY_NOTHING else WAIT_S
                        )
                    except TransportError:
                        # some are never answered, as by Java
                        break
                    assert answer.flag & Flag.RESPONSE
                if question.code in SAY_NOTHING and not oneway:
                    break
            scene.put(5)
            await until(lambda: scene.progress() == 10, "later messages")
            await producer.send(TOPIC, b"from us")
            scene.ledger.attempted.add(b"from us")
        assert scene.ledger.duplicates == 0
        assert b"evil" not in scene.ledger.received
        scene.check()


# requests that Java's clients never answer
SAY_NOTHING = {39, 40, 220}


# --- encryption that is taken away ----------------------------------------------------------------

NAMES = (
    "plain text",
    "a certificate of nobody",
    "another name",
    "TLS 1.1",
    "the end of the connection",
)


@pytest.mark.parametrize("how", NAMES)
async def test_a_client_that_wants_encryption_is_not_talked_out_of_it_by(
    how: str, folder: Path
) -> None:
    """Nothing of ours leaves but the greeting."""
    ours, theirs = trustme.CA(), trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (theirs if how == "a certificate of nobody" else ours).issue_cert(
        "elsewhere.example" if how == "another name" else "127.0.0.1"
    ).configure_cert(server)
    if how == "TLS 1.1":
        server.minimum_version = server.maximum_version = ssl.TLSVersion.TLSv1_2
        server.set_ciphers("ECDHE+AESGCM")
    trust = ssl.create_default_context()
    ours.configure_trust(trust)
    if how == "TLS 1.1":
        trust.minimum_version = ssl.TLSVersion.TLSv1_3
    config = ClientConfig(ssl=trust, request_timeout_s=0.5, connect_timeout_s=0.5)
    async with FakeBroker({TOPIC: 1}, ssl=None if how == "plain text" else server) as broker:
        listening: asyncio.Server | None = None
        address = broker.address
        if how == "the end of the connection":
            listening = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
            address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        client = ClientConfig(
            name_server=address, ssl=config.ssl, request_timeout_s=0.5, connect_timeout_s=0.5
        )
        async with (
            unharmed(folder),
            aio.Producer(config=ProducerConfig(send_timeout_s=0.5), client=client) as producer,
        ):
            with pytest.raises(OgiveError, match=r"TLS|no name server answered"):
                await producer.send(TOPIC, b"secret")
        assert broker.of(SEND) == []
        assert broker.requests == []
        if listening is not None:
            listening.close()
            await listening.wait_closed()


async def test_a_client_is_not_flooded_by_a_server_that_asks_and_never_reads(
    scene: Scene, folder: Path
) -> None:
    """100,000 questions at once, whose answers nobody takes: what waits is bounded, and the
    connection is given up or goes on.
    """
    async with unharmed(folder):
        question = encode_command(RemotingCommand(987_654, {}, b"", 1))
        reader_gone = asyncio.Event()

        def flood() -> None:
            with socket.create_server(("127.0.0.1", 0)) as listening:
                ports.append(listening.getsockname()[1])
                ready.set()
                listening.settimeout(WAIT_S)
                link, _ = listening.accept()
                with link:
                    link.settimeout(5.0)
                    try:
                        for _ in range(100):
                            link.sendall(question * 1000)
                    except OSError:
                        pass
            loop.call_soon_threadsafe(reader_gone.set)

        loop, ports, ready = asyncio.get_running_loop(), list[int](), threading.Event()
        flooding = asyncio.create_task(asyncio.to_thread(flood))
        await asyncio.to_thread(ready.wait, WAIT_S)
        client = ClientConfig(name_server=f"127.0.0.1:{ports[0]}", request_timeout_s=0.5)
        async with aio.Producer(
            config=ProducerConfig(send_timeout_s=0.5, retries=0), client=client
        ) as producer:
            with pytest.raises(OgiveError):
                await producer.send(TOPIC, b"x")
            await asyncio.wait_for(reader_gone.wait(), WAIT_S)
        await flooding
