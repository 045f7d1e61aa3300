"""Connections between two peers on loopback."""

import asyncio
import gc
import itertools
import logging
import socket
import tracemalloc
import weakref
from collections.abc import AsyncIterator, Iterable
from typing import Final, cast

import pytest

from ogive.errors import ConnectError, ConnectionLost, RequestTimeout, TooManyRequests
from ogive.transport import connection as transport_connection
from ogive.transport.connection import Connection, connect
from ogive.transport.limits import Limits, ServerLimits
from ogive.transport.pool import ConnectionPool
from ogive.transport.server import Server, ServerConnection
from ogive.wire.codes import Flag, ResponseCode
from ogive.wire.command import RemotingCommand, decode_command, encode_command
from tests.unit.transport.wire import ReadableWire, Wire

HELD: list[tuple[Connection, int]] = []


def answer(command: RemotingCommand, body: bytes = b"") -> RemotingCommand:
    return RemotingCommand(ResponseCode.SUCCESS, {}, body, command.opaque, Flag.RESPONSE)


def echo(connection: Connection, command: RemotingCommand) -> None:
    """Code 1 echoes, code 2 is held back, code 3 echoes what was held before itself (answers out of
    order).
    """
    if command.is_oneway:
        return
    if command.code == 2:
        HELD.append((connection, command.opaque))
        return
    connection.reply(answer(command, command.body))
    if command.code == 3:
        for held, opaque in HELD:
            held.reply(answer(RemotingCommand(2, opaque=opaque), b"held"))
        HELD.clear()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    HELD.clear()
    server = Server(echo, limits=ServerLimits(connection=Limits(max_requests_in_flight=8)))
    await server.start()
    yield server
    await server.stop(grace_s=0.05)


@pytest.mark.feature(119)
@pytest.mark.kills("responses matched by order, T17")
async def test_answers_are_matched_by_opaque_not_by_order(server: Server) -> None:
    connection = await connect("127.0.0.1", server.port)
    held = connection.start_call(RemotingCommand(2), 5.0)
    later = await connection.call(RemotingCommand(3, body=b"later"), 5.0)
    assert later.body == b"later"
    assert (await held).body == b"held"
    connection.close()
    await connection.wait_closed()


@pytest.mark.parametrize("by_us", [True, False])
async def test_a_closed_connection_is_freed_at_once(server: Server, by_us: bool) -> None:
    """At both ends, without a garbage collection: of clients that come and go, thousands would lie
    in memory until the next one.
    """
    gc.disable()
    try:
        connection = await connect("127.0.0.1", server.port)
        await connection.call(RemotingCommand(1), 5.0)
        [served] = server.connections
        both: list[weakref.ref[Connection]] = [weakref.ref(connection), weakref.ref(served)]
        (connection if by_us else served).close()
        await connection.wait_closed()
        await served.wait_closed()
        del connection, served
        async with asyncio.timeout(60):
            while any(one() is not None for one in both):
                await asyncio.sleep(0)
    finally:
        gc.enable()


async def test_a_connection_that_sent_what_is_no_frame_is_freed_at_once(server: Server) -> None:
    """What it sent goes with it, which may be 16 MiB."""
    gc.disable()
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.timeout(60):
            while not server.connections:
                await asyncio.sleep(0)
            served = weakref.ref(next(iter(server.connections)))
            writer.write(b"\x00\x00\x00\x05\x00\x00\x00\x01x")
            while served() is not None:
                await asyncio.sleep(0)
        writer.close()
    finally:
        gc.enable()


async def test_many_requests_in_one_loop_turn_are_answered(server: Server) -> None:
    connection = await connect("127.0.0.1", server.port)
    calls = [connection.start_call(RemotingCommand(1, body=b"%d" % i), 5.0) for i in range(1000)]
    assert [(await call).body for call in calls] == [b"%d" % i for i in range(1000)]
    connection.close()


@pytest.mark.feature(119)
async def test_twenty_thousand_calls_that_wait_together_get_their_own_answers() -> None:
    """The last request is answered first, and the numbers of the requests begin again in
    between.
    """
    count, waiting = 20_000, list[RemotingCommand]()
    limits = Limits(max_calls_in_flight=count, max_requests_in_flight=count + 1)

    def last_first(connection: Connection, command: RemotingCommand) -> None:
        waiting.append(command)
        if len(waiting) == count:
            for request in reversed(waiting):
                connection.reply(answer(request, request.body))

    server = Server(last_first, limits=ServerLimits(connection=limits))
    await server.start()
    connection = await connect("127.0.0.1", server.port, limits=limits)
    connection._opaques = itertools.count(2**31 - count // 2)
    calls = [connection.start_call(RemotingCommand(1, body=b"%d" % i), 60.0) for i in range(count)]
    assert connection.calls_in_flight == count
    assert all([(await call).body == b"%d" % i for i, call in enumerate(calls)])
    assert len({request.opaque for request in waiting}) == count
    assert connection.calls_in_flight == 0
    connection.close()
    await server.stop()


@pytest.mark.feature(117, 125, 127, 129)
async def test_a_call_without_answer_times_out_and_says_that_the_outcome_is_unknown(
    server: Server,
) -> None:
    connection = await connect("127.0.0.1", server.port)
    with pytest.raises(
        RequestTimeout, match=rf"127.0.0.1:{server.port} within \d+\.\d s"
    ) as caught:
        await connection.call(RemotingCommand(2), 0.1)
    assert caught.value.outcome_unknown


async def test_a_peer_that_stays_silent_counts_as_dead_when_calls_time_out(server: Server) -> None:
    """However short their own timeouts are."""
    connection = await connect("127.0.0.1", server.port, limits=Limits(silence_s=0.1))
    async with asyncio.timeout(60):
        while not connection.closed:
            with pytest.raises(RequestTimeout):
                await connection.call(RemotingCommand(2), 0.03)


async def test_an_impatient_call_does_not_take_the_calls_of_others_with_it(server: Server) -> None:
    """A peer that did not answer within a moment is not dead yet."""
    connection = await connect("127.0.0.1", server.port)
    patient = connection.start_call(RemotingCommand(2), 5.0)
    with pytest.raises(RequestTimeout):
        await connection.call(RemotingCommand(2), 0.01)
    assert (connection.closed, patient.done()) == (False, False)
    connection.close()
    with pytest.raises(ConnectionLost):
        await patient


@pytest.mark.feature(126)
async def test_a_timeout_beside_other_traffic_leaves_the_connection_open(server: Server) -> None:
    connection = await connect("127.0.0.1", server.port)
    slow = connection.start_call(RemotingCommand(2), 0.1)
    await connection.call(RemotingCommand(1), 5.0)
    with pytest.raises(RequestTimeout):
        await slow
    assert not connection.closed
    connection.close()


@pytest.mark.feature(121, 122, 123)
async def test_lost_connection_fails_every_call_in_flight_at_once(server: Server) -> None:
    connection = await connect("127.0.0.1", server.port)
    calls = [connection.start_call(RemotingCommand(2), 60.0) for _ in range(3)]
    await connection.call(RemotingCommand(1), 5.0)
    for peer in server.connections:
        peer.abort("")
    for call in calls:
        with pytest.raises(ConnectionLost):
            await call
    with pytest.raises(ConnectError):
        connection.start_call(RemotingCommand(1), 1.0)


@pytest.mark.feature(120, 121, 125)
async def test_calls_in_flight_are_limited(server: Server) -> None:
    connection = await connect("127.0.0.1", server.port, limits=Limits(max_calls_in_flight=2))
    calls = [connection.start_call(RemotingCommand(2), 60.0) for _ in range(2)]
    with pytest.raises(TooManyRequests):
        connection.start_call(RemotingCommand(1), 1.0)
    connection.close()
    await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.feature(121)
async def test_after_faults_as_many_calls_fit_as_before_and_not_one_more(server: Server) -> None:
    """Timeouts, calls that nobody waits for any more, late answers, answers that nobody asked for,
    a lost connection.
    """

    async def two_fit(connection: Connection) -> list[asyncio.Future[RemotingCommand]]:
        assert connection.calls_in_flight == 0
        calls = [connection.start_call(RemotingCommand(2), 5.0) for _ in range(2)]
        with pytest.raises(TooManyRequests):
            connection.start_call(RemotingCommand(1), 5.0)
        return calls

    limits = Limits(max_calls_in_flight=2)
    connection = await connect("127.0.0.1", server.port, limits=limits)
    for _ in range(3):
        late = [connection.start_call(RemotingCommand(2), 0.02) for _ in range(2)]
        late[0].cancel()
        with pytest.raises(RequestTimeout):
            await late[1]
        # and with it the late answers
        await connection.call(RemotingCommand(3), 5.0)
        calls = await two_fit(connection)
        while len(HELD) < 2:
            await asyncio.sleep(0)
        for peer, opaque in [*HELD, *HELD, (HELD[0][0], 999_999)]:
            peer.reply(answer(RemotingCommand(2, opaque=opaque)))
        HELD.clear()
        await asyncio.gather(*calls)
    lost = await two_fit(connection)
    for peer in server.connections:
        peer.abort("")
    assert all(
        isinstance(result, ConnectionLost)
        for result in await asyncio.gather(*lost, return_exceptions=True)
    )
    assert connection.calls_in_flight == 0
    HELD.clear()
    again = await connect("127.0.0.1", server.port, limits=limits)
    calls = await two_fit(again)
    again.close()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_a_server_reads_no_more_while_too_many_requests_wait(server: Server) -> None:
    """The ninth request of a connection that may have eight in flight is read only after answers
    have gone.
    """
    connection = await connect("127.0.0.1", server.port)
    calls = [connection.start_call(RemotingCommand(2), 60.0) for _ in range(8)]
    while len(HELD) < 8:
        await asyncio.sleep(0)
    ninth = connection.start_call(RemotingCommand(1, body=b"ninth"), 60.0)
    done, _ = await asyncio.wait([ninth], timeout=0.1)
    assert not done
    for held, opaque in HELD:
        held.reply(answer(RemotingCommand(2, opaque=opaque)))
    HELD.clear()
    assert (await ninth).body == b"ninth"
    await asyncio.gather(*calls)
    connection.close()


async def test_requests_before_a_broken_frame_are_answered(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    connection = await connect("127.0.0.1", server.port)
    held = connection.start_call(RemotingCommand(2), 5.0)
    good = connection.start_call(RemotingCommand(1, body=b"good"), 5.0)
    connection.write(b"\xff\xff\xff\xff nonsense")
    assert (await good).body == b"good"
    for peer, opaque in HELD:
        peer.reply(answer(RemotingCommand(2, opaque=opaque), b"after the fault"))
    assert (await held).body == b"after the fault"
    await connection.wait_closed()


async def test_a_request_that_nobody_handles_is_refused_at_once() -> None:
    server = Server(lambda connection, command: None)
    await server.start()
    connection = await connect("127.0.0.1", server.port)
    while not server.connections:
        await asyncio.sleep(0)
    (peer,) = server.connections
    assert (
        await peer.call(RemotingCommand(40), 5.0)
    ).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    connection.close()
    await server.stop()


async def test_a_connection_accepted_while_the_server_stops_is_closed_and_a_new_start_serves() -> (
    None
):
    server = Server(echo)
    await server.start()
    await server.stop()
    theirs, ours = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(
        lambda: ServerConnection(server), theirs
    )
    ours.settimeout(10)
    assert await asyncio.to_thread(ours.recv, 1) == b""
    ours.close()
    while server.connections:
        await asyncio.sleep(0)
    await server.start()
    connection = await connect("127.0.0.1", server.port)
    assert (await connection.call(RemotingCommand(1), 5.0)).code == ResponseCode.SUCCESS
    connection.close()
    await server.stop()


@pytest.mark.feature(117)
async def test_connect_says_address_and_reason() -> None:
    server = Server(echo)
    await server.start()
    port = server.port
    await server.stop()
    with pytest.raises(ConnectError, match=f"no connection to 127.0.0.1:{port}: .*refused"):
        await connect("127.0.0.1", port)


async def test_pool_shares_one_connection_and_replaces_a_lost_one(server: Server) -> None:
    pool = ConnectionPool()
    address = server.address
    first, second = await asyncio.gather(pool.get(address), pool.get(address))
    assert first is second
    first.close()
    await first.wait_closed()
    third = await pool.get(address)
    assert third is not first
    await pool.close()
    assert third.closed
    with pytest.raises(ConnectError, match="closed"):
        await pool.get(address)


async def test_a_pool_is_closed_in_time_although_a_peer_takes_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ogive.transport.pool.LINGER_S", 0.05)
    accepted: list[asyncio.Transport] = []

    class Deaf(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(cast(asyncio.Transport, transport))
            accepted[0].pause_reading()

    listening = await asyncio.get_running_loop().create_server(Deaf, "127.0.0.1", 0)
    pool = ConnectionPool()
    connection = await pool.get(f"127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    connection.write(bytes(32 * 1024 * 1024))
    async with asyncio.timeout(60):
        await pool.close()
        await connection.wait_closed()
    accepted[0].abort()
    listening.close()
    await listening.wait_closed()


async def test_pool_connects_to_a_good_address_while_another_hangs(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect_or_hang(host: str, port: int, **options: object) -> Connection:
        if port == 9:
            await asyncio.Event().wait()
        return await connect(host, port)

    monkeypatch.setattr("ogive.transport.pool.connect", connect_or_hang)
    pool = ConnectionPool()
    hanging = asyncio.create_task(pool.get("127.0.0.1:9"))
    reply = await pool.call(server.address, RemotingCommand(1, body=b"x"), 5.0)
    assert reply.body == b"x"
    assert not hanging.done()
    await pool.close()
    # nobody has cancelled the caller
    with pytest.raises(ConnectError, match="the client was closed meanwhile"):
        await hanging


async def test_first_frame_must_come_in_time(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(echo, limits=ServerLimits(first_frame_s=0.05))
    await server.start()
    connection = await connect("127.0.0.1", server.port)
    await asyncio.wait_for(connection.wait_closed(), 60)
    assert "no whole frame within 0.05 s" in caplog.text
    await server.stop()


FRAME: Final = encode_command(RemotingCommand(1, body=bytes(99_000)))


async def sends_half(server: Server, buffered: int) -> Connection:
    """Its frame arrives up to the middle; *buffered* are the bytes of all half frames then."""
    connection = await connect("127.0.0.1", server.port)
    connection.write(FRAME[:50_000])
    async with asyncio.timeout(60):
        while server._read_buffer_bytes < buffered:
            await asyncio.sleep(0)
    return connection


async def test_half_frames_of_all_connections_share_one_budget(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who holds it for longest goes, and not who comes to it: its frame would never get through."""
    server = Server(echo, limits=ServerLimits(max_read_buffer_bytes=120_000))
    await server.start()
    holders = [await sends_half(server, 50_000), await sends_half(server, 100_000)]
    client = await sends_half(server, 100_000)
    await asyncio.wait_for(holders[0].wait_closed(), 60)
    client.write(FRAME[50_000:])
    async with asyncio.timeout(60):
        while not client.received_frames:
            await asyncio.sleep(0)
    assert not holders[1].closed
    assert "hold more memory than allowed" in caplog.text
    for connection in (*holders, client):
        connection.close()
    await server.stop()
    assert server._read_buffer_bytes == server._stranger_bytes == 0


async def test_connections_that_access_control_let_nothing_through_of_share_less() -> None:
    def trusting(connection: Connection, command: RemotingCommand) -> None:
        if command.code == 5:
            connection.trust()
        echo(connection, command)

    server = Server(trusting, guarded=True, limits=ServerLimits(max_stranger_bytes=60_000))
    await server.start()
    known = await connect("127.0.0.1", server.port)
    await known.call(RemotingCommand(5), 10.0)
    known.write(FRAME[:50_000])
    strangers = [await sends_half(server, 100_000), await sends_half(server, 100_000)]
    await asyncio.wait_for(strangers[0].wait_closed(), 60)
    assert not known.closed
    assert not strangers[1].closed
    for connection in (*strangers, known):
        connection.close()
    await server.stop()
    assert server._read_buffer_bytes == server._stranger_bytes == 0


async def test_a_frame_that_stops_arriving_ends_its_connection_however_much_of_it_is_there(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after whole frames: 16 MiB in hand would last for hours at the least rate that is asked
    for.
    """
    monkeypatch.setattr("ogive.transport.server.SWEEP_S", 0.01)
    server = Server(echo, limits=ServerLimits(first_frame_s=0.2))
    await server.start()
    connection = await connect("127.0.0.1", server.port)
    await connection.call(RemotingCommand(1), 10.0)
    connection.write(FRAME[:50_000])
    await asyncio.wait_for(connection.wait_closed(), 60)
    assert "its frame arrives too slowly" in caplog.text
    await server.stop()


async def test_a_connection_that_ends_inside_a_read_leaves_nothing_in_the_budget_of_half_frames(
    server: Server,
) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    no_header = (5).to_bytes(4) + b"\0\0\0\x01x"
    writer.write(no_header + (1000).to_bytes(4) + bytes(500))
    async with asyncio.timeout(60):
        while not server.connections:
            await asyncio.sleep(0)
        while server.connections:
            await asyncio.sleep(0)
    assert server._read_buffer_bytes == 0
    writer.close()


async def test_connections_per_address_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(echo, limits=ServerLimits(max_connections_per_address=1))
    await server.start()
    first = await connect("127.0.0.1", server.port)
    await first.call(RemotingCommand(1), 5.0)
    second = await connect("127.0.0.1", server.port)
    await asyncio.wait_for(second.wait_closed(), 60)
    assert (await first.call(RemotingCommand(1), 5.0)).code == ResponseCode.SUCCESS
    first.close()
    await server.stop()


def large_answers(connection: Connection, command: RemotingCommand) -> None:
    """To each request one MiB, like a broker that is asked for stored messages or all its
    topics.
    """
    HELD.append((connection, command.opaque))
    connection.reply(answer(command, bytes(1024 * 1024)))


async def deaf_peer(
    server: Server, requests: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Sends *requests* and reads no answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
    cast(asyncio.Transport, writer.transport).pause_reading()
    writer.write(requests)
    return reader, writer


async def test_an_idle_client_is_no_cause_for_alarm(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ogive.transport.server.SWEEP_S", 0.01)
    caplog.set_level(logging.INFO)
    server = Server(echo, limits=ServerLimits(connection=Limits(idle_s=0.05)))
    await server.start()
    connection = await connect("127.0.0.1", server.port)
    await connection.call(RemotingCommand(1), 5)
    await connection.wait_closed()
    await server.stop()
    (said,) = [record for record in caplog.records if "idle for 0.05 s" in record.getMessage()]
    assert said.levelno == logging.INFO


async def test_a_peer_that_asks_and_does_not_read_is_cut_off_and_the_rest_is_not_handled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    HELD.clear()
    server = Server(large_answers, limits=ServerLimits(max_unsent_bytes=16 * 1024 * 1024))
    await server.start()
    _, writer = await deaf_peer(
        server, b"".join(encode_command(RemotingCommand(1, opaque=i)) for i in range(1000))
    )
    async with asyncio.timeout(60):
        while not HELD or server.connections:
            await asyncio.sleep(0.01)
    assert len(HELD) < 50
    assert "bytes wait for it to read" in caplog.text
    writer.transport.abort()
    await server.stop(grace_s=0.05)


async def test_a_closed_connection_counts_until_its_socket_is_gone_and_goes_after_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a peer that makes itself be closed, and never reads, holds sockets and memory that
    nobody counts.
    """
    monkeypatch.setattr("ogive.transport.server.SWEEP_S", 0.01)
    HELD.clear()
    server = Server(large_answers, limits=ServerLimits(linger_s=0.3))
    await server.start()
    requests = b"".join(encode_command(RemotingCommand(1, opaque=i)) for i in range(12))
    _, writer = await deaf_peer(server, requests + b"no frame at all!")
    async with asyncio.timeout(60):
        while not HELD or not HELD[0][0].closed:
            await asyncio.sleep(0)
        assert len(server.connections) == 1
        while server.connections:
            await asyncio.sleep(0.01)
    assert "does not take its last answers" in caplog.text
    writer.transport.abort()
    await server.stop(grace_s=0.05)


async def test_a_peer_that_takes_less_than_the_least_rate_is_slow_however_little_waits() -> None:
    """Beyond what writers are held back for.

    Else it keeps that much memory for as long as it takes a byte now and then.
    """
    limits = ServerLimits(
        connection=Limits(write_high_bytes=1000),
        max_write_buffer_bytes=50_000,
        slow_reader_s=10.0,
        slow_reader_bytes_per_s=100,
    )
    server = Server(large_answers, limits=limits)

    def ends(waiting: int, taken: Iterable[int]) -> bool:
        """Whether a peer is closed for which so much waits, and that has taken so much at each
        look.
        """
        connection = ServerConnection(server)
        connection.received_frames = 1
        connection._unsent_bytes = waiting
        reasons = []
        for i, bytes_ in enumerate(taken):
            connection._written_bytes = bytes_
            connection.received_at = now = connection.opened_at + i
            reasons.append(server._overdue(connection, now))
        return any(reason is not None and "unread" in reason for reason in reasons)

    assert ends(40_000, [0] * 13)
    assert ends(40_000, range(0, 13 * 50, 50))
    # over the limit, it is too slow as well
    assert ends(60_000, range(0, 13 * 1000, 1000))
    assert not ends(40_000, range(0, 40 * 101, 101))
    # in large steps
    assert not ends(40_000, [1010 * (i // 9) for i in range(40)])
    assert not ends(900, [0] * 40)


async def test_stop_answers_what_is_in_flight(server: Server) -> None:
    connection = await connect("127.0.0.1", server.port)
    call = connection.start_call(RemotingCommand(2), 5.0)
    while not HELD:
        await asyncio.sleep(0)
    stopping = asyncio.create_task(server.stop(grace_s=5.0))
    await asyncio.sleep(0)
    (held, opaque) = HELD[0]
    held.reply(answer(RemotingCommand(2, opaque=opaque), b"last"))
    assert (await call).body == b"last"
    await stopping
    await connection.wait_closed()


def test_server_connection_is_a_connection() -> None:
    assert issubclass(ServerConnection, Connection)


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".invalid", "a\0b"])
async def test_a_host_that_is_no_name_is_a_connect_error(host: str) -> None:
    """Python's look-up raises UnicodeError or ValueError there, not OSError."""
    with pytest.raises(ConnectError, match="is not a host name"):
        await connect(host, 9876)


# --- runs of requests -----------------------------------------------------------------------------


class Read:
    """A server's connection that is given what a read brings.

    Requests of code 10 that follow each other are carried out in one step, and not answered.
    """

    def __init__(self, *, limits: ServerLimits | None = None) -> None:
        self.steps: list[int] = []
        self.seen: list[int] = []
        self.wire = ReadableWire()
        server = Server(lambda _, command: self.seen.append(command.opaque), limits=limits)
        server.on_frames = self._on_frames
        self.connection = ServerConnection(server)
        self.connection.connection_made(self.wire)

    def _on_frames(self, connection: Connection, frames: list[bytes], at: int) -> int:
        assert connection is self.connection
        codes = [decode_command(frame).code for frame in frames[at:]]
        together = next((n for n, code in enumerate(codes) if code != 10), len(codes))
        self.steps.append(together)
        if together:
            connection.take_requests(together)
        else:
            connection.take_frame(frames[at])
        return together or 1

    def bring(self, *codes: int) -> None:
        self.connection.data_received(
            b"".join(
                [encode_command(RemotingCommand(code, opaque=n)) for n, code in enumerate(codes)]
            )
        )


async def test_frames_that_came_together_are_carried_out_in_steps_and_in_order() -> None:
    read = Read()
    read.bring(10, 10, 1, 10, 10, 10, 2, 2, 10)
    assert (read.steps, read.seen) == ([2, 0, 3, 0, 0, 1], [2, 6, 7])
    assert read.connection.received_frames == 9
    assert read.connection._requests_in_flight == 9


async def test_behind_a_step_that_ends_the_connection_nothing_is_carried_out() -> None:
    read = Read()
    read.wire.abort = lambda: None  # type: ignore[method-assign]
    connection = read.connection
    connection.take_requests = lambda count: connection.abort("")  # type: ignore[method-assign]
    read.bring(10, 10, 1, 10, 10)
    assert (read.steps, read.seen) == ([2], [])


async def test_a_step_counts_for_the_limit_of_requests_and_one_answer_for_all_of_it() -> None:
    read = Read(limits=ServerLimits(connection=Limits(max_requests_in_flight=8)))
    read.bring(*[10] * 7)
    assert read.wire.is_read
    read.bring(*[10] * 3)
    assert not read.wire.is_read
    read.connection.reply(b"five", 5)
    assert not read.wire.is_read
    read.connection.reply(b"three", 3)
    assert read.wire.is_read
    read.connection.reply(b"two", 2)
    assert read.connection._requests_in_flight == 0
    await read.connection.finish_requests()
    await asyncio.sleep(0)
    assert b"".join(read.wire.written) == b"fivethreetwo"


async def test_what_comes_after_the_start_of_the_end_is_not_read_however_many_are_answered() -> (
    None
):
    """It would be carried out, and the connection closed before the answer."""
    read = Read(limits=ServerLimits(connection=Limits(max_requests_in_flight=8)))
    read.bring(*[10] * 7)
    finishing = asyncio.create_task(read.connection.finish_requests())
    await asyncio.sleep(0)
    for number in (1, 5, 1):
        assert not read.wire.is_read
        read.connection.reply(b"", number)
    await finishing
    assert not read.wire.is_read


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request each."""
    monkeypatch.setattr(transport_connection, "SLICE_S", -1.0)


@pytest.mark.usefixtures("short_slices")
async def test_requests_that_came_together_and_take_long_let_others_have_their_turn() -> None:
    """However many there are: 900 pulls with filters in one read stopped a broker for seconds."""
    read = Read()
    read.bring(10, 10, 1, 2, 3)
    turns = []
    while read.connection._kept:
        assert not read.wire.is_read
        turns.append(list(read.seen))
        await asyncio.sleep(0)
    assert turns == [[], [2], [2, 3]]
    assert (read.seen, read.wire.is_read) == ([2, 3, 4], True)


@pytest.mark.usefixtures("short_slices")
async def test_answers_that_nobody_waits_for_let_others_have_their_turn_too() -> None:
    """From anybody, without a signature: a broker with forty such connections answered nobody else
    for seconds.
    """
    connection = ServerConnection(Server(lambda connection, _: None))
    connection.connection_made(ReadableWire())
    connection.data_received(encode_command(RemotingCommand(0, flag=Flag.RESPONSE)) * 5)
    left = [len(connection._kept)]
    while connection._kept:
        await asyncio.sleep(0)
        left.append(len(connection._kept))
    assert left == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("as_view", [False, True])
async def test_large_answers_in_many_reads_are_whole_and_stay_as_they_are(as_view: bool) -> None:
    bodies = [bytes([number]) * 300_000 for number in range(4)]
    connection = Connection()
    connection.connection_made(ReadableWire())
    calls = [connection.start_call(RemotingCommand(1), 5.0, as_view=as_view) for _ in bodies]
    stream = b"".join(
        encode_command(answer(RemotingCommand(1, opaque=opaque), body))
        for opaque, body in enumerate(bodies, 1)
    )
    for at in range(0, len(stream), 70_000):
        connection.data_received(stream[at : at + 70_000])
    answers = await asyncio.gather(*calls)
    assert [one.body if one.view is None else one.view for one in answers] == bodies
    assert {one.view is not None for one in answers} == {as_view}


async def test_connections_of_clients_keep_no_memory_after_a_large_request() -> None:
    server = Server(lambda connection, command: None)
    frame = encode_command(RemotingCommand(1, body=bytes(3_000_000), flag=Flag.ONEWAY))
    connections = [ServerConnection(server) for _ in range(4)]
    tracemalloc.start()
    try:
        for connection in connections:
            connection.connection_made(ReadableWire())
            for at in range(0, len(frame), 200_000):
                connection.data_received(frame[at : at + 200_000])
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.usefixtures("short_slices")
async def test_many_connections_with_much_to_do_take_one_slice_of_a_turn() -> None:
    served: list[Connection] = []
    server = Server(lambda connection, _: served.append(connection))
    connections = [ServerConnection(server) for _ in range(3)]
    for connection in connections:
        connection.connection_made(ReadableWire())
        connection.data_received(encode_command(RemotingCommand(1)) * 3)
    turns = [len(served)]
    while any(connection._kept for connection in connections):
        await asyncio.sleep(0)
        turns.append(len(served))
    assert turns == list(range(3, 10))
    assert served == connections * 3


@pytest.mark.usefixtures("short_slices")
async def test_what_was_read_and_not_begun_is_answered_before_the_end() -> None:
    read = Read()
    read.bring(1, 1, 1)
    finishing = asyncio.create_task(read.connection.finish_requests())
    for _ in range(3):
        await asyncio.sleep(0)
        assert not finishing.done()
        read.connection.reply(b"")
    await finishing
    assert (read.seen, read.wire.is_read) == ([0, 1, 2], False)


@pytest.mark.usefixtures("short_slices")
async def test_a_fault_behind_requests_for_later_slices_ends_the_connection_after_them() -> None:
    read = Read()
    read.connection.data_received(encode_command(RemotingCommand(1)) * 3 + bytes(4))
    read.connection.data_received(b"of no meaning any more")
    assert (len(read.seen), read.connection._closing_reason) == (1, None)
    while read.connection._kept:
        await asyncio.sleep(0)
    assert len(read.seen) == 3
    assert read.connection._closing_reason is not None
    read.connection.reply(b"", 3)
    await asyncio.sleep(0)
    assert read.connection.closed


@pytest.mark.usefixtures("short_slices")
async def test_what_a_transport_brings_although_it_was_told_to_pause_waits_its_turn() -> None:
    read = Read()
    read.bring(1, 2)
    read.bring(3)
    assert len(read.seen) == 1
    while read.connection._kept:
        await asyncio.sleep(0)
    assert read.seen == [0, 1, 0]


@pytest.mark.usefixtures("short_slices")
async def test_a_connection_that_ends_carries_out_nothing_more() -> None:
    read = Read()
    read.wire.abort = lambda: None  # type: ignore[method-assign]
    read.bring(1, 1, 1)
    read.connection.abort("")
    for _ in range(3):
        await asyncio.sleep(0)
    assert read.seen == [0]


async def test_a_fault_behind_a_run_ends_the_connection_once_the_run_is_answered() -> None:
    read = Read()
    frames = b"".join([encode_command(RemotingCommand(10, opaque=n)) for n in range(3)])
    read.connection.data_received(frames + bytes(4))
    assert read.connection._closing_reason is not None
    assert not read.connection.closed
    read.connection.reply(b"three", 3)
    await asyncio.sleep(0)
    assert read.connection.closed
    assert b"".join(read.wire.written) == b"three"


async def test_large_frames_of_one_turn_pause_the_writer() -> None:
    """They are written in few pieces, and not copied for that."""
    listening = socket.create_server(("127.0.0.1", 0))
    try:
        connection = await connect("127.0.0.1", listening.getsockname()[1])
        for _ in range(8):
            connection.write(bytes(4 * 1024 * 1024))
        await asyncio.sleep(0.05)
        assert not connection.is_writable
        connection.abort("enough", level=logging.DEBUG)
    finally:
        listening.close()


async def test_small_frames_of_one_turn_are_joined_around_large_ones() -> None:
    wire = Wire()
    connection = Connection(echo)
    connection.connection_made(wire)
    small, large = [b"%05d" % number for number in range(40_000)], bytes(100_000)
    frames = [*small, large, b"last"]
    for frame in frames:
        connection.write(frame)
    await asyncio.sleep(0)
    assert b"".join(wire.written) == b"".join(frames)
    assert len(wire.written) == 6
    assert large in wire.written
