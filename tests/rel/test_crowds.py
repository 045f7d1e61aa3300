"""Many connections at once: idle ones, ones that come and go, and ones that never finish what they
say (T27, T28, T29, T37).
"""

import asyncio
import contextlib
import gc
import itertools
import logging
import os
import random
import re
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from ogive.broker import Broker, BrokerConfig
from ogive.errors import ResponseCode
from ogive.testing import Broker as OgiveUp
from ogive.testing.broker import Ready
from ogive.transport.limits import ServerLimits
from ogive.transport.tls import TlsConfig
from ogive.wire.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand, encode_command
from ogive.wire.message import encode_host
from tests.figures import figures, p99_ms
from tests.raw_client import RawClient, messages

pytestmark = [pytest.mark.rel, pytest.mark.apart(10)]
DEADLINE_S = 60.0
# clients, how often they are measured, and what each sends then
BUSY, ROUNDS, SENDS = 20, 5, 50
# at a time; that they are members of
VISITORS, GROUPS = 500, 200
# pulls that are measured before anybody slow is there
ALONE = 30
sizes = pytest.mark.parametrize


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Broker]:
    limits = ServerLimits(max_connections=20_000, max_connections_per_address=20_000)
    broker = Broker(
        BrokerConfig(data=tmp_path / "store", port=0, segment_bytes=1024 * 1024, server=limits)
    )
    await broker.start()
    yield broker
    await broker.stop()


def descriptors(pid: int | str = "self") -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def needs_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        if hard < count:
            pytest.skip(f"{count} file descriptors are needed, {hard} are allowed (ulimit -n)")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def beat(number: int, group: str) -> bytes:
    consumer = ConsumerData(group=group, subscriptions=(SubscriptionData.of_tags("T"),))
    return HeartbeatData(
        client_id=f"client-{number}", consumers=(consumer,), producers=(f"P{number % 10}",)
    ).encode()


def blocks() -> int:
    """Of memory that Python's objects have; what nobody asked of a task that failed is told while
    it is counted.
    """
    # five for each of the newest 8,192 addresses
    encode_host.cache_clear()
    gc.collect()
    return sys.getallocatedblocks()


async def until(what: str, condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def busy_p99_ms(busy: list[RawClient]) -> float:
    """Of sends of all the busy ones at once, each of which waits for its answer before the next; in
    the best of some rounds, so that what else the machine does just then is not counted.
    """

    async def send(client: RawClient) -> list[float]:
        took = []
        for number in range(SENDS):
            began = time.perf_counter()
            await client.send("T", b"%d" % number)
            took.append(time.perf_counter() - began)
        return took

    rounds = []
    for _ in range(ROUNDS):
        took = [one for each in await asyncio.gather(*map(send, busy)) for one in each]
        rounds.append(p99_ms(took))
    return min(rounds)


@sizes("count", [1_000, pytest.param(8_000, marks=[pytest.mark.nightly, pytest.mark.slow])])
async def test_a_crowd_of_idle_clients_goes_at_once_and_leaves_nothing(
    server: Broker, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """T27.

    All send a heartbeat, again every 30 s; twenty busy clients go on beside them; all vanish in one
    moment.
    """
    needs_descriptors(2 * count + 500)
    caplog.set_level(logging.WARNING)
    ctx = server.context
    async with contextlib.AsyncExitStack() as stack:
        line = stack.enter_context(figures("T27", nightly=count > 1_000, attempts=count))
        room = asyncio.Semaphore(200)

        async def come(number: int) -> RawClient:
            async with room:
                client = await RawClient.open(server.address)
                await client.ok(RequestCode.HEART_BEAT, beat(number, f"G{number % 50}"))
                return client

        async def stay(crowd: list[RawClient]) -> None:
            for number, client in itertools.cycle(enumerate(crowd)):
                await client.ok(RequestCode.HEART_BEAT, beat(number, f"G{number % 50}"))
                await asyncio.sleep(30 / count)

        busy = [
            await stack.enter_async_context(await RawClient.open(server.address))
            for _ in range(BUSY)
        ]
        alone_ms = await busy_p99_ms(busy)
        crowd = await asyncio.gather(*(come(number) for number in range(count)))
        assert sum(len(group.members) for group in ctx.clients.consumers.values()) == count
        staying = asyncio.create_task(stay(crowd))
        beside_ms = await busy_p99_ms(busy)
        staying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await staying
        began = time.monotonic()
        for client in crowd:
            client.connection.abort("")
        await until("only the busy ones are left", lambda: len(ctx.origins) == BUSY)
        line["tables_empty_s"] = round(time.monotonic() - began, 2)
        assert not any(group.members for group in ctx.clients.consumers.values())
        assert not any(ctx.clients.producers.values())
        # they go on
        await busy_p99_ms(busy)
        line.update(
            acknowledged=3 * ROUNDS * BUSY * SENDS,
            send_p99_alone_ms=alone_ms,
            send_p99_beside_ms=beside_ms,
        )
        assert sum(ctx.store.max_offset("T", queue) for queue in range(4)) == line["acknowledged"]
    assert len(caplog.records) <= 20


def resident_kib(pid: int) -> int:
    [line] = [
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    ]
    return int(line.split()[1])


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="what a process holds is read from /proc"
)
@sizes("count", [900, pytest.param(8_000, marks=[pytest.mark.nightly, pytest.mark.slow])])
def test_an_idle_client_costs_a_broker_less_than_20_kib(tmp_path: Path, count: int) -> None:
    """T27. `ogive up`, and connections that send a heartbeat each and stay."""
    needs_descriptors(count + 200)
    with OgiveUp(data=tmp_path / "store") as broker, contextlib.ExitStack() as stack:
        host, _, port = broker.address.rpartition(":")

        def come(number: int) -> None:
            # a broker takes a thousand of one address
            own = f"127.0.1.{1 + number // 900}"
            line = stack.enter_context(
                socket.create_connection(
                    (host, int(port)), timeout=DEADLINE_S, source_address=(own, 0)
                )
            )
            line.sendall(
                encode_command(
                    RemotingCommand(
                        RequestCode.HEART_BEAT, body=beat(number, f"G{number % 50}"), opaque=1
                    )
                )
            )
            assert line.recv(65_536)

        # what is loaded and made once
        for number in range(200):
            come(number)
        before = resident_kib(broker.pid)
        for number in range(200, count):
            come(number)
        with figures("T27 memory", nightly=count > 1_000, attempts=count) as row:
            row["each_kib"] = round((resident_kib(broker.pid) - before) / (count - 200), 1)
    assert row["each_kib"] <= 20


@sizes("count", [200, pytest.param(2_000, marks=pytest.mark.nightly)])
async def test_held_pulls_are_answered_once_each_and_those_of_the_gone_are_forgotten(
    server: Broker, count: int
) -> None:
    """Every second client goes while its pulls wait; then one message comes to each queue."""
    holds = server.context.holds
    async with await RawClient.open(server.address) as producer:
        for queue in range(4):
            await producer.send("T", b"old", queue=queue)
        with figures("T27 held pulls", nightly=count > 200, attempts=count) as line:
            clients = [await RawClient.open(server.address) for _ in range(20)]
            pulls = [
                [
                    client.start_pull(f"G{number}", "T", 1, queue=number % 4, suspend_ms=120_000)
                    for number in range(count // 20)
                ]
                for client in clients
            ]
            await until("all are held", lambda: len(holds) == count)
            for client in clients[::2]:
                client.connection.abort("")
            await until("those of half the clients are forgotten", lambda: len(holds) == count // 2)
            for queue in range(4):
                await producer.send("T", b"new", queue=queue)
            answers = [answer for one in pulls[1::2] for answer in await asyncio.gather(*one)]
            line["acknowledged"], line["received"] = count // 2, len(answers)
            assert {(answer.code, messages(answer)[0].body) for answer in answers} == {(0, b"new")}
            assert len(holds) == 0
            for one in pulls[::2]:
                await asyncio.gather(*one, return_exceptions=True)
            for client in clients:
                client.connection.close()
                await client.connection.wait_closed()


_FRAME = encode_command(RemotingCommand(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}))


async def churn(address: str, dice: random.Random, visits: int) -> None:
    """So many visits, VISITORS at a time: a heartbeat, half a frame, gone.

    By random clients of the groups, which stay, and so are few.
    """
    host, _, port = address.rpartition(":")
    room = asyncio.Semaphore(VISITORS)

    async def visit() -> None:
        async with room:
            # a broker takes a thousand of one address, and counts those it has not yet let go
            own = f"127.0.1.{dice.randrange(1, 5)}"
            reader, writer = await asyncio.open_connection(host, int(port), local_addr=(own, 0))
            body = beat(dice.getrandbits(64), f"G{dice.randrange(GROUPS)}")
            writer.write(
                encode_command(RemotingCommand(RequestCode.HEART_BEAT, body=body, opaque=1))
            )
            await reader.readexactly(4)
            writer.write(_FRAME[: dice.randrange(1, len(_FRAME))])
            if dice.random() < 0.5:
                writer.transport.abort()
            else:
                writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    await asyncio.gather(*(visit() for _ in range(visits)))


visits = sizes(
    "count", [2_000, pytest.param(20_000, marks=[pytest.mark.nightly, pytest.mark.slow])]
)


@visits
async def test_clients_that_come_beat_and_break_off_leave_nothing(
    server: Broker, count: int
) -> None:
    """T28. In the tables of the broker, and in Python's memory."""
    needs_descriptors(2 * VISITORS + 500)
    ctx, dice, before = server.context, random.Random(count), descriptors()
    unread: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, about: unread.append(about))
    with figures("T28", nightly=count > 2_000, seed=count, attempts=count):
        await churn(server.address, dice, count // 2)
        await until("every table is empty", lambda: not ctx.origins)
        held = blocks()
        await churn(server.address, dice, count // 2)
        await until("every table is empty", lambda: not ctx.origins)
        assert not any(group.members for group in ctx.clients.consumers.values())
        assert not any(ctx.clients.producers.values())
        assert server._server._read_buffer_bytes == 0
        assert not server._server._per_host
        await until("the descriptors are back", lambda: descriptors() <= before + 5)
        more = blocks() - held
    assert not unread
    # of Python's memory, after half of all visits
    assert more < 500


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="what a process holds is read from /proc"
)
@visits
async def test_clients_that_come_beat_and_break_off_leave_a_process_as_it_was(
    tmp_path: Path, count: int
) -> None:
    """T28. `ogive up`: what it has resident, its descriptors, the members of each group, and what
    it said.
    """
    needs_descriptors(VISITORS + 500)
    dice, groups = random.Random(count), [f"G{number}" for number in range(GROUPS)]
    with up(tmp_path, "") as ((_, address, _), pid):
        async with await RawClient.open(address) as client:
            # or it would be closed as one that never says anything
            await client.send("T", b"there")
            idle = connections_of(pid)
            async with await RawClient.open(address) as first:
                # whoever comes first makes its retry topic, which stays
                for group in groups:
                    await first.ok(RequestCode.HEART_BEAT, beat(0, group))
            # what is loaded and made once, and room for so many at a time
            await churn(address, dice, max(1_000, count // 10))
            await until("those are gone", lambda: connections_of(pid) == idle)
            held, open_files = resident_kib(pid), descriptors(pid)
            with figures("T28 memory", nightly=count > 2_000, seed=count, attempts=count) as line:
                await churn(address, dice, count)
                await until("all are gone", lambda: connections_of(pid) == idle)
                line["more_kib"] = resident_kib(pid) - held
            await until("the descriptors are back", lambda: descriptors(pid) <= open_files)
            for group in groups:
                answer = await client.call(
                    RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group
                )
                assert answer.code == ResponseCode.SYSTEM_ERROR, answer
    assert line["more_kib"] <= 10 * 1024
    said = (tmp_path / "broker.log").read_text()
    assert "Traceback" not in said
    assert "never retrieved" not in said
    assert said.count("\n") <= 20


async def silent(port: int, count: int, until: contextlib.ExitStack) -> list[socket.socket]:
    """Connected by a thread, for the server is on this loop: it would accept nobody while the loop
    connects, and its queue is short.
    """

    def come() -> list[socket.socket]:
        return [
            until.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(count)
        ]

    held = await asyncio.to_thread(come)
    for one in held:
        one.setblocking(False)
    return held


def is_closed(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


async def test_who_never_finishes_a_frame_is_closed_and_holds_up_nobody(tmp_path: Path) -> None:
    """T37. At a broker, byte by byte, or nothing at all; real clients are answered meanwhile."""
    count = 2_000
    needs_descriptors(2 * count + 200)
    frame = encode_command(RemotingCommand(RequestCode.HEART_BEAT, {"x": "y" * 5_000}))
    limits = ServerLimits(first_frame_s=2.0, max_connections_per_address=20_000)
    broker = Broker(
        BrokerConfig(data=tmp_path / "store", port=0, segment_bytes=1024 * 1024, server=limits)
    )
    await broker.start()
    server, asked = broker._server, 0
    with figures("T37", attempts=count) as line, contextlib.ExitStack() as stack:
        left, at = await silent(server.port, count, stack), 0
        async with asyncio.timeout(DEADLINE_S):
            while left:
                for one in left[::2]:
                    with contextlib.suppress(OSError):
                        one.send(frame[at : at + 1])
                at += 1
                async with await RawClient.open(broker.address) as client:
                    await client.send("T", b"%d" % asked)
                asked += 1
                await asyncio.sleep(0.05)
                left = [one for one in left if not is_closed(one)]
        line["acknowledged"] = asked
    assert asked
    await until("nothing is held any more", lambda: not server.connections)
    assert server._read_buffer_bytes == 0
    assert broker.context.store.max_offset("T", 0) == asked
    await broker.stop()


def client_hello(context: ssl.SSLContext) -> bytes:
    """What a TLS client says first."""
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="127.0.0.1").do_handshake()
    return sent.read()


async def test_who_never_finishes_a_handshake_is_closed_and_holds_up_nobody(tmp_path: Path) -> None:
    """T37.

    Silent, or stuck after a byte, half of the first words or all of them; real clients come and are
    answered meanwhile.
    """
    count = 500
    needs_descriptors(2 * count + 200)
    authority, pem = trustme.CA(), tmp_path / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    hello = client_hello(context)
    limits = ServerLimits(first_frame_s=2.0, max_connections_per_address=20_000)
    tls = TlsConfig(cert=pem, key=pem)
    broker = Broker(
        BrokerConfig(
            data=tmp_path / "store", port=0, segment_bytes=1024 * 1024, server=limits, tls=tls
        )
    )
    await broker.start()
    server, before, asked = broker._server, descriptors(), 0
    with figures("T37 handshakes", attempts=count) as line, contextlib.ExitStack() as stack:
        left = await silent(server.port, count, stack)
        for number, one in enumerate(left):
            one.send(hello[: (0, 1, len(hello) // 2, len(hello))[number % 4]])
        async with asyncio.timeout(DEADLINE_S):
            while left:
                async with await RawClient.open(broker.address, context=context) as client:
                    await client.send("T", b"%d" % asked)
                asked += 1
                await asyncio.sleep(0.05)
                left = [one for one in left if not has_ended(one)]
        line["acknowledged"] = asked
    assert asked > 1
    await until(
        "nothing is held any more", lambda: not server.connections and descriptors() <= before + 5
    )
    assert broker.context.store.max_offset("T", 0) == asked
    await broker.stop()


def has_ended(one: socket.socket) -> bool:
    """Whether the other side closed it, after whatever it said of the handshake."""
    try:
        while one.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


_LIMITS = """
from ogive.transport.limits import ServerLimits

ServerLimits.__init__.__kwdefaults__.update(
    slow_reader_s={slow_reader_s}, max_unread_bytes={budget}
)
"""
_IMPATIENT = """
from ogive.transport.limits import ServerLimits

ServerLimits.__init__.__kwdefaults__.update(first_frame_s=2.0, max_connections_per_address=20_000)
"""
_DESCRIPTORS = """
import resource

resource.setrlimit(resource.RLIMIT_NOFILE, ({most}, {most}))
"""
_UP = """
import sys
from ogive.cli.main import main

ports = ["--name-server-port", "0", "--broker-port", "0", "--no-grpc"]
sys.exit(main(["up", "--data", sys.argv[1], *ports, *sys.argv[2:]]))
"""


@contextlib.contextmanager
def up(folder: Path, before: str, *options: str) -> Iterator[tuple[Ready, int]]:
    """``ogive up`` in a process that does something *before*: its addresses, and its id.

    Its log is broker.log.
    """
    command = [sys.executable, "-c", before + _UP, str(folder / "store"), *options]
    with (folder / "broker.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL
        )
    assert process.stdout is not None
    try:
        ready = Ready.parse(process.stdout.readline().decode())
        assert ready is not None, (folder / "broker.log").read_text()[-2000:]
        yield ready, process.pid
        assert process.poll() is None, "the broker ended by itself"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def peak_bytes(pid: int) -> int:
    """What the process ever had resident."""
    [kib] = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kib) * 1024


def connections_of(pid: int) -> int:
    links = []
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(str(one.readlink()))
    return sum(link.startswith("socket:") for link in links)


QUICK_CROWD = 100, 400, 100


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="the peak of a process's memory is read from /proc",
)
@sizes(
    ("silent", "slow", "stuck"),
    [
        QUICK_CROWD,
        pytest.param(500, 2_000, 0, marks=pytest.mark.nightly),
        pytest.param(0, 0, 500, marks=pytest.mark.nightly),
    ],
)
async def test_a_process_under_who_never_finishes_keeps_its_memory_and_takes_real_clients(
    tmp_path: Path, silent: int, slow: int, stuck: int
) -> None:
    """T37.

    *silent* connections, *slow* ones that send a byte now and then, and some *stuck* in their
    handshake; all are closed.
    """
    count = silent + slow + stuck
    needs_descriptors(count + 200)
    hello = client_hello(ssl.create_default_context())
    frame = encode_command(RemotingCommand(RequestCode.HEART_BEAT, {"x": "y" * 5_000}))
    with (
        up(tmp_path, _IMPATIENT, *with_tls(tmp_path)) as ((_, address, _), pid),
        contextlib.ExitStack() as stack,
    ):
        host, _, port = address.rpartition(":")
        async with await RawClient.open(address) as client:
            await client.send("T", b"first")
            before, idle = peak_bytes(pid), connections_of(pid)
            line = stack.enter_context(
                figures("T37", nightly=(silent, slow, stuck) != QUICK_CROWD, attempts=count)
            )
            held = [
                stack.enter_context(socket.create_connection((host, int(port)), DEADLINE_S))
                for _ in range(count)
            ]
            for number, one in enumerate(held[silent + slow :]):
                one.sendall(hello[: len(hello) // (1 + number % 2)])
            all_there = time.monotonic()
            took: list[float] = []
            async with asyncio.timeout(DEADLINE_S):
                while len(took) < 3 or connections_of(pid) > idle:
                    for one in held[silent : silent + slow]:
                        with contextlib.suppress(OSError):
                            one.send(frame[len(took) : len(took) + 1])
                    began = time.perf_counter()
                    async with await RawClient.open(address) as real:
                        await real.send("T", b"%d" % len(took))
                    took.append(time.perf_counter() - began)
                    await asyncio.sleep(0.05)
            line["closed_s"] = round(time.monotonic() - all_there, 2)
            line.update(
                acknowledged=len(took),
                send_slowest_ms=round(1000 * max(took), 1),
                more_kib=(peak_bytes(pid) - before) // 1024,
            )
    assert line["more_kib"] <= 50 * 1024
    assert len((tmp_path / "broker.log").read_text().splitlines()) <= 40, "a line for each of them"


@pytest.mark.apart(75)
@pytest.mark.kills("outgoing buffer without limit", param="quick-40-none")
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="the peak of a process's memory is read from /proc",
)
@sizes(
    ("pulls", "rate"), [pytest.param(40, 0, id="40-none"), pytest.param(1, 1024, id="1-trickle")]
)
@sizes(
    ("count", "budget", "slow_reader_s"),
    [
        pytest.param(60, 64 * 1024 * 1024, 3.0, id="quick"),
        pytest.param(
            200,
            ServerLimits().max_unread_bytes,
            ServerLimits().slow_reader_s,
            id="long",
            marks=pytest.mark.nightly,
        ),
    ],
)
async def test_readers_that_do_not_read_are_closed_and_memory_stays_bounded(
    tmp_path: Path, count: int, budget: int, slow_reader_s: float, pulls: int, rate: int
) -> None:
    """T29.

    Each asks for pull answers of up to 4 MiB and takes none, or a little each second; others pull
    on.
    """
    fields = {
        "consumerGroup": "S",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "4096",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    pull = encode_command(RemotingCommand(RequestCode.PULL_MESSAGE, fields))
    limits = _LIMITS.format(slow_reader_s=slow_reader_s, budget=budget)
    with up(tmp_path, limits) as ((_, address, _), pid), contextlib.ExitStack() as stack:
        async with await RawClient.open(address) as client:
            for _ in range(6):
                await client.send("T", os.urandom(1024 * 1024))
            before, idle = peak_bytes(pid), connections_of(pid)

            async def pull_s(puller: RawClient) -> float:
                """Seconds of one, and a pause behind it."""
                began = time.perf_counter()
                assert len(messages(await puller.pull("G", "T", 0, count=64))) == 3
                took_s = time.perf_counter() - began
                await asyncio.sleep(0.1)
                return took_s

            with figures("T29", nightly=count > 60, attempts=count) as line:
                alone_s = [await pull_s(client) for _ in range(ALONE)]
                host, _, port = address.rpartition(":")
                held = []
                for _ in range(count):
                    one = stack.enter_context(socket.socket())
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    one.connect((host, int(port)))
                    one.sendall(pull * pulls)
                    one.setblocking(False)
                    held.append(one)
                took: list[float] = []
                async with (
                    await RawClient.open(address) as other,
                    asyncio.timeout(slow_reader_s + DEADLINE_S),
                ):
                    # the first answer tells that those before it are there
                    while not took or connections_of(pid) > idle + 1:
                        took.append(await pull_s(other))
                        for one in held if rate and len(took) % 10 == 0 else ():
                            with contextlib.suppress(OSError):
                                one.recv(rate)
                line.update(
                    acknowledged=len(took),
                    pull_p99_alone_ms=p99_ms(alone_s),
                    pull_p99_beside_ms=p99_ms(took),
                )
                line["more_kib"] = (peak_bytes(pid) - before) // 1024
    assert line["more_kib"] <= (budget >> 10) + 64 * 1024
    assert (tmp_path / "broker.log").read_text().count("is cut off") >= 10


def with_tls(folder: Path) -> tuple[str, ...]:
    """Options for a server that takes TLS beside plain connections: each is looked at before it is
    one.
    """
    pem = folder / "server.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    return "--tls-cert", str(pem), "--tls-key", str(pem), "--tls-mode", "permissive"


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="the descriptors of a process are counted in /proc"
)
@sizes("tls", [False, True])
async def test_connections_never_take_the_last_descriptors(tmp_path: Path, tls: bool) -> None:
    """T27.

    Silent ones at broker and name server, more than there are descriptors: topics are still made
    and saved, and messages stored.
    """
    options, most = with_tls(tmp_path) if tls else (), 200
    with (
        up(tmp_path, _DESCRIPTORS.format(most=most), *options) as (ready, pid),
        contextlib.ExitStack() as stack,
    ):
        async with await RawClient.open(ready.broker) as client:
            await client.send("Before", b"x")
            before = connections_of(pid)
            for number in range(2 * most):
                host, _, port = ready[number % 2].rpartition(":")
                one = stack.enter_context(socket.socket())
                one.settimeout(DEADLINE_S)
                one.bind((f"127.0.0.{2 + number % 3}", 0))
                one.connect((host, int(port)))
            await until("many are there", lambda: connections_of(pid) >= before + most // 2 - 5)
            for number in range(20):
                await client.send(f"Topic{number}", b"x", queue=0)
            await client.ok(RequestCode.GET_BROKER_CONFIG)
            assert len(list(Path(f"/proc/{pid}/fd").iterdir())) < most - 20
        log = (tmp_path / "broker.log").read_text()
        assert "is refused" in log
        assert "out of system resource" not in log
        assert "cannot" not in log
