"""A server that says GO_AWAY: what is asked of it goes to a new connection, and what it still
answers is taken.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ogive.errors import ConnectError, ConnectionLost
from ogive.transport.connection import Connection
from ogive.transport.pool import ConnectionPool
from ogive.transport.server import Server
from ogive.wire.codes import Flag, ResponseCode
from ogive.wire.command import RemotingCommand, encode_command
from ogive.wire.signing import Credentials

WAIT_S = 60.0
ECHO, HELD = 1, 2
CREDENTIALS = Credentials(access_key="ann", secret_key="secret12")


def answer(command: RemotingCommand, code: int = ResponseCode.SUCCESS) -> RemotingCommand:
    return RemotingCommand(code, {}, command.body, command.opaque, Flag.RESPONSE)


class Leaver:
    """Echoes; *tired* connections, in the order in which they came, answer GO_AWAY.

    HELD requests get no answer until *give*.
    """

    def __init__(self, *tired: int) -> None:
        self.tired = tired
        self.connections: list[Connection] = []
        self.requests: list[tuple[int, RemotingCommand]] = []
        self.held: list[tuple[Connection, RemotingCommand]] = []

    def handle(self, connection: Connection, command: RemotingCommand) -> None:
        if connection not in self.connections:
            self.connections.append(connection)
        number = self.connections.index(connection)
        self.requests.append((number, command))
        if command.code == HELD:
            self.held.append((connection, command))
        else:
            connection.reply(
                answer(
                    command, ResponseCode.GO_AWAY if number in self.tired else ResponseCode.SUCCESS
                )
            )

    def give(self) -> None:
        for connection, command in self.held:
            connection.reply(answer(command))


@pytest.fixture
async def leaver() -> Leaver:
    return Leaver(0)


@pytest.fixture
async def address(leaver: Leaver) -> AsyncIterator[str]:
    server = Server(leaver.handle)
    await server.start()
    yield f"127.0.0.1:{server.port}"
    await server.stop(grace_s=0.05)


@pytest.fixture
async def pool() -> AsyncIterator[ConnectionPool]:
    made = ConnectionPool(credentials=CREDENTIALS)
    yield made
    await made.close()


async def test_a_request_that_was_not_carried_out_goes_out_once_more_on_a_new_connection(
    leaver: Leaver, address: str, pool: ConnectionPool
) -> None:
    left = await pool.get(address)
    reply = await pool.call(address, RemotingCommand(ECHO, {"a": "1"}, b"x"), WAIT_S)
    assert (reply.code, reply.body) == (ResponseCode.SUCCESS, b"x")
    assert [number for number, _ in leaver.requests] == [0, 1]
    first, second = (command.ext_fields for _, command in leaver.requests)
    assert first == second == CREDENTIALS.sign({"a": "1"}, b"x")
    await left.wait_closed()
    assert pool.existing(address) not in (None, left)


async def test_requests_on_their_way_get_their_answers_on_the_connection_that_is_left(
    leaver: Leaver, address: str, pool: ConnectionPool
) -> None:
    left = await pool.get(address)
    held = left.start_call(RemotingCommand(HELD, body=b"held"), WAIT_S)
    assert (await pool.call(address, RemotingCommand(ECHO), WAIT_S)).code == ResponseCode.SUCCESS
    assert (left.leaving, left.closed) == (True, False)
    leaver.give()
    assert (await held).body == b"held"
    await left.wait_closed()


async def test_an_idle_connection_that_is_left_ends_and_takes_nothing_more(
    leaver: Leaver, address: str, pool: ConnectionPool
) -> None:
    leaver.tired = ()
    await pool.call(address, RemotingCommand(ECHO), WAIT_S)
    connection = await pool.get(address)
    connection.leave()
    with pytest.raises(ConnectError):
        connection.start_call(RemotingCommand(ECHO), WAIT_S)
    await connection.wait_closed()


async def test_callers_of_one_connection_move_to_one_new_connection(
    leaver: Leaver, address: str, pool: ConnectionPool
) -> None:
    replies = await asyncio.gather(
        *(pool.call(address, RemotingCommand(ECHO), WAIT_S) for _ in range(20))
    )
    assert {reply.code for reply in replies} == {ResponseCode.SUCCESS}
    assert len(leaver.connections) == 2


async def test_a_server_that_says_so_for_ever_is_left_once(
    leaver: Leaver, address: str, pool: ConnectionPool
) -> None:
    """It would be a new connection with every request otherwise."""
    leaver.tired = tuple(range(100))
    replies = [await pool.call(address, RemotingCommand(ECHO), WAIT_S) for _ in range(5)]
    assert {reply.code for reply in replies} == {ResponseCode.GO_AWAY}
    assert len(leaver.connections) == 2
    assert len(leaver.requests) == 6


async def test_a_pool_that_closes_takes_the_connection_that_is_left_along(
    leaver: Leaver, address: str, pool: ConnectionPool
) -> None:
    left = await pool.get(address)
    held = left.start_call(RemotingCommand(HELD), WAIT_S)
    await pool.call(address, RemotingCommand(ECHO), WAIT_S)
    await pool.close()
    with pytest.raises(ConnectionLost):
        await held
    assert left.closed


async def test_where_nobody_takes_its_place_the_answer_is_the_servers(pool: ConnectionPool) -> None:
    """The request was not carried out; "no connection" would say less."""

    async def last_words(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        # takes no new connections
        server.close()
        writer.write(encode_command(answer(RemotingCommand(ECHO, opaque=1), ResponseCode.GO_AWAY)))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(last_words, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reply = await pool.call(f"127.0.0.1:{port}", RemotingCommand(ECHO), WAIT_S)
    assert reply.code == ResponseCode.GO_AWAY
