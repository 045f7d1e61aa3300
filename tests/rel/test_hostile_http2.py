"""HTTP/2 that somebody made to do harm, at the gRPC port of ``ogive up`` and of ``ogive proxy``
(T36).

For each kind of harm: the process gets little larger and uses little of the processor, a client
that is there before, during and after it is served, and the log says what was done, in few lines.
"""

import asyncio
import contextlib
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import pytest

import ogive
from ogive.http2 import connection as http2
from ogive.http2.connection import frame
from ogive.http2.hpack import encode
from ogive.proxy import rocketmq_pb2 as pb
from ogive.testing import Broker
from tests.figures import figures
from tests.grpc_client import SERVICE, GrpcClient, framed

pytestmark = [
    pytest.mark.rel,
    pytest.mark.apart(200),
    pytest.mark.skipif(
        not Path("/proc/self/status").exists(),
        reason="memory and processor time of a process are read from /proc",
    ),
]
MIB: Final = 1024 * 1024
DEADLINE_S: Final = 60.0
CONNECTIONS: Final = 20
# of what waits for all clients together; what else a process may grow by
BUDGET: Final = 32 * MIB
MORE: Final = 96 * MIB
# of one core, for all that is sent; most kinds need a tenth of it
MAX_CPU_S: Final = 10.0
MAX_LINES: Final = 60
_PROGRAM: Final = f"""
import sys
from ogive.cli.main import main
from ogive.transport.limits import ServerLimits

ServerLimits.__init__.__kwdefaults__.update(
    first_frame_s=2.0, slow_reader_s=2.0, max_read_buffer_bytes={BUDGET}
)
sys.exit(main(sys.argv[1:]))
"""
REQUEST: Final = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", (SERVICE + "QueryRoute").encode()),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
    (b"x-mq-client-id", b"hostile"),
]
BLOCK: Final = encode(REQUEST)
BEGIN: Final = http2.PREFACE + frame(http2.SETTINGS, 0, 0)
ROUTE: Final = pb.QueryRouteRequest(
    topic=pb.Resource(name="Orders"),
    endpoints=pb.Endpoints(
        scheme=pb.AddressScheme.DOMAIN_NAME, addresses=[pb.Address(host="typed.example", port=1)]
    ),
).SerializeToString()
V2: Final = b"\r\n\r\n\x00\r\nQUIT\n"


def opened(count: int, flags: int = http2.END_HEADERS, block: bytes = BLOCK) -> bytes:
    """The headers of *count* calls."""
    return b"".join(frame(http2.HEADERS, flags, 2 * n + 1, block) for n in range(count))


def window(size: int) -> bytes:
    """A setting: the window of streams."""
    return frame(http2.SETTINGS, 0, 0, b"\0\x04" + size.to_bytes(4, "big"))


def _resets() -> bytes:
    return BEGIN + b"".join(
        frame(http2.HEADERS, http2.END_HEADERS, 2 * n + 1, BLOCK)
        + frame(http2.RST_STREAM, 0, 2 * n + 1, bytes(4))
        for n in range(20_000)
    )


def _resets_of_the_server() -> bytes:
    return BEGIN + b"".join(
        frame(http2.HEADERS, http2.END_HEADERS, 2 * n + 1, BLOCK)
        + frame(http2.WINDOW_UPDATE, 0, 2 * n + 1, bytes(4))
        for n in range(20_000)
    )


def _bomb() -> bytes:
    """An entry of 4 KB in the table, and then a byte for each of its copies."""
    entry = b"\x40\x01x\x7f\x81\x1e" + bytes(3968)
    return (
        BEGIN
        + frame(http2.HEADERS, http2.END_HEADERS, 1, BLOCK + entry)
        + b"".join(
            frame(http2.HEADERS, http2.END_HEADERS, 2 * n + 3, BLOCK + b"\xbe" * 15_000)
            for n in range(100)
        )
    )


def _tiny_windows() -> bytes:
    """Answers that wait for a window of nothing, which then grows by one again and again."""
    route = framed(ROUTE)
    calls = b"".join(
        frame(http2.HEADERS, http2.END_HEADERS, 2 * n + 1, BLOCK)
        + frame(http2.DATA, http2.END_STREAM, 2 * n + 1, route)
        for n in range(1000)
    )
    updates = b"".join(
        frame(http2.WINDOW_UPDATE, 0, stream, b"\0\0\0\1") for stream in (0, 1, 0, 3) * 20_000
    )
    return BEGIN + window(0) + calls + updates


def _window_changes() -> bytes:
    """Each of the frames is about all of a thousand streams."""
    return BEGIN + opened(1000) + b"".join(window(n & 1) for n in range(20_000))


def _huge_headers() -> bytes:
    """A thousand calls, each with as many headers as are allowed, whose requests never come."""
    many = [*REQUEST, *((b"x-%d" % n, b"") for n in range(350))]
    return BEGIN + opened(1000, block=encode(many))


def _slow_reader() -> bytes:
    """Streams of requests whose answers, twenty times as large, are not read."""
    path = b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    head = encode([(name, path if name == b":path" else value) for name, value in REQUEST])
    symbol = b"apache.rocketmq.v2.MessagingService"
    body = framed(b"\x22" + bytes([len(symbol)]) + symbol) * 100
    return BEGIN + b"".join(
        frame(http2.HEADERS, http2.END_HEADERS, 2 * n + 1, head)
        + frame(http2.DATA, 0, 2 * n + 1, body)
        for n in range(200)
    )


def client_hello() -> bytes:
    sent = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


HELLO: Final = client_hello()
CONTINUED: Final = frame(http2.HEADERS, 0, 1, BLOCK)


@dataclass(frozen=True)
class Harm:
    """What each of some connections sends. *said*: of it in the log; *reads* the answers, and
    *ends*: the connection, not only its calls.
    """

    make: Callable[[], bytes]
    said: str
    reads: bool = True
    ends: bool = True
    connections: int = CONNECTIONS


HARMS: Final = {
    "rapid resets": Harm(_resets, "too many resets"),
    "resets that the server must send": Harm(_resets_of_the_server, "too many resets"),
    "continuations without end": Harm(
        lambda: BEGIN + CONTINUED + frame(http2.CONTINUATION, 0, 1, b"x" * 16_000) * 1000,
        "a header block without end",
    ),
    "empty continuations": Harm(
        lambda: BEGIN + CONTINUED + frame(http2.CONTINUATION, 0, 1) * 100_000,
        "a header block without end",
    ),
    "header bombs": Harm(_bomb, "headers of more than"),
    "tiny windows": Harm(_tiny_windows, "tiny frames"),
    "changes of a thousand windows": Harm(_window_changes, "tiny frames"),
    "larger windows for nobody": Harm(
        lambda: BEGIN + frame(http2.WINDOW_UPDATE, 0, 0, b"\0\0\0\1") * 100_000, "tiny frames"
    ),
    "half-open calls": Harm(
        lambda: BEGIN + opened(1000), "a request of QueryRoute never came whole", ends=False
    ),
    "huge headers": Harm(_huge_headers, "the most of all clients"),
    "a request in tiny frames": Harm(
        lambda: BEGIN + opened(1) + frame(http2.DATA, 0, 1, b"\0") * 100_000, "tiny frames"
    ),
    "readers that do not read": Harm(_slow_reader, "cut off", reads=False),
    "settings": Harm(lambda: BEGIN + frame(http2.SETTINGS, 0, 0) * 100_000, "tiny frames"),
    "settings whose answers are not read": Harm(
        lambda: BEGIN + frame(http2.SETTINGS, 0, 0) * 100_000, "tiny frames", reads=False
    ),
    "pings": Harm(lambda: BEGIN + frame(http2.PING, 0, 0, bytes(8)) * 100_000, "tiny frames"),
    "pings whose answers are not read": Harm(
        lambda: BEGIN + frame(http2.PING, 0, 0, bytes(8)) * 100_000, "tiny frames", reads=False
    ),
    "priorities": Harm(
        lambda: BEGIN + frame(http2.PRIORITY, 0, 1, bytes(5)) * 100_000, "tiny frames"
    ),
    "another protocol": Harm(lambda: b"GET / HTTP/1.1\r\n\r\n", "does not begin as HTTP/2 does"),
    "half of the preface": Harm(lambda: BEGIN[:9], "sent no HTTP/2", connections=200),
    "silence": Harm(lambda: b"", "nothing came", connections=200),
    "handshakes that stop": Harm(lambda: HELLO[: len(HELLO) // 2], "handshake", connections=200),
    "handshakes without an end": Harm(lambda: HELLO, "handshake", connections=200),
    "half a PROXY header": Harm(lambda: b"PROXY TCP4 ", "nothing came", connections=400),
    "half a binary PROXY header": Harm(
        lambda: V2 + b"\x21\x11\x0f\xff", "nothing came", connections=400
    ),
    "a PROXY header of two": Harm(
        lambda: b"PROXY TCP4 192.0.2.7 192.0.2.1 5 443\r\n" * 2 + BEGIN, "as HTTP/2 does"
    ),
    "a PROXY header with an address of escapes": Harm(
        lambda: b"PROXY TCP6 fe80::1%\x1b[2J ::1 1 2\r\n" + BEGIN, "PROXY header is malformed"
    ),
}


QUICK: Final = (
    "rapid resets",
    "continuations without end",
    "header bombs",
    "changes of a thousand windows",
    "half-open calls",
    "readers that do not read",
    "half a PROXY header",
)


class Hostile(asyncio.Protocol):
    """A connection that sends bytes, and perhaps reads."""

    def __init__(self, data: bytes, reads: bool) -> None:
        self._data, self._reads = data, reads
        self.ended = asyncio.Event()
        self.transport: asyncio.Transport

    @classmethod
    async def send(cls, port: int, data: bytes, *, reads: bool) -> Self:
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(lambda: cls(data, reads), "127.0.0.1", port)
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if not self._reads:
            transport.pause_reading()
        transport.write(self._data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


@dataclass(frozen=True)
class Target:
    """A process with a gRPC port."""

    port: int
    pid: int
    log: Path

    def peak_bytes(self) -> int:
        [kib] = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        return int(kib) * 1024

    def cpu_s(self) -> float:
        user, system = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def sockets(self) -> int:
        links = []
        for one in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                links.append(str(one.readlink()))
        return sum(link.startswith("socket:") for link in links)

    async def canary(self, client: GrpcClient) -> None:
        """Ask for a route, as a client that means no harm."""
        reply = await client.call("QueryRoute", ROUTE, metadata=[("x-mq-client-id", "canary")])
        [message] = reply.messages
        assert pb.QueryRouteResponse.FromString(message).status.code == pb.OK


@contextlib.contextmanager
def serving(folder: Path, *words: str) -> Iterator[Target]:
    log = folder / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *words, "--grpc-port", "0", "-v"],
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline().decode()
        found = re.fullmatch(r"ready name-server=(\S+) (?:\S+ )?grpc=\S+:(\d+)\n", line)
        assert found is not None, log.read_text()[-2000:]
        with ogive.Admin(found[1]) as admin:
            admin.create_topic("Orders")
        yield Target(int(found[2]), process.pid, log)
        assert process.poll() is None, "the server ended by itself"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(params=["up", pytest.param("proxy", marks=pytest.mark.nightly)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    with contextlib.ExitStack() as stack:
        if request.param == "proxy":
            words = ["proxy", "-n", stack.enter_context(Broker()).name_server]
        else:
            words = ["up", "--data", str(tmp_path / "data"), "--name-server-port", "0"]
            words += ["--broker-port", "0"]
        yield stack.enter_context(serving(tmp_path, *words))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.02)


async def served_while(target: Target, harm: Callable[[], Awaitable[None]]) -> int:
    """Do *harm*; return how many calls of a client were answered meanwhile."""
    client = await GrpcClient.connect(target.port)
    answered = 0
    try:
        doing = asyncio.ensure_future(harm())
        while not doing.done() or not answered:
            async with asyncio.timeout(DEADLINE_S):
                await target.canary(client)
            answered += 1
            await asyncio.sleep(0.02)
        await doing
    finally:
        client.close()
    return answered


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.nightly) for kind in HARMS],
)
async def test_harm_costs_little_and_others_are_served(
    target: Target, kind: str, request: pytest.FixtureRequest
) -> None:
    """T36."""
    harm = HARMS[kind]
    data = harm.make()
    await served_while(target, lambda: asyncio.sleep(0))
    idle, before, cpu_s = target.sockets(), target.peak_bytes(), target.cpu_s()
    lines = len(target.log.read_text().splitlines())

    async def do() -> None:
        hostile = [
            await Hostile.send(target.port, data, reads=harm.reads) for _ in range(harm.connections)
        ]
        try:
            async with asyncio.timeout(DEADLINE_S):
                await until(lambda: harm.said in target.log.read_text())
                if harm.ends:
                    await until(lambda: target.sockets() <= idle + 1)
        finally:
            for one in hostile:
                one.transport.abort()

    nightly = request.node.get_closest_marker("nightly") is not None
    with figures("T36", nightly=nightly, attempts=harm.connections) as line:
        line["acknowledged"] = await served_while(target, do)
        line["more_kib"] = (target.peak_bytes() - before) // 1024
        line["cpu_s"] = round(target.cpu_s() - cpu_s, 2)
    await until(lambda: target.sockets() <= idle)
    assert await served_while(target, lambda: asyncio.sleep(0)) > 0
    assert line["more_kib"] * 1024 <= BUDGET + MORE
    assert line["cpu_s"] <= MAX_CPU_S
    said = target.log.read_text()
    assert "\x1b" not in said
    assert len(said.splitlines()) - lines <= harm.connections + MAX_LINES
