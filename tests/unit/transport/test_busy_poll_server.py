"""A loop that looks for the next request, and when a server has it do so.

See test_busy_poll.py.
"""

import asyncio
from collections import deque

import pytest

from ogive.transport.connection import Connection, connect
from ogive.transport.event_loop import SOON, Lookout
from ogive.transport.server import Server, ServerConnection
from ogive.wire.codes import Flag, ResponseCode
from ogive.wire.command import RemotingCommand, encode_command
from tests.unit.transport.machine import LIMIT_S, Machine
from tests.unit.transport.wire import Wire

# --- on a loop ------------------------------------------------------------------------------------


async def test_a_loop_that_looks_serves_its_timers_and_sockets_and_can_be_told_to_sleep() -> None:
    """Time stands still: the looking would never end by itself."""
    machine = Machine()
    expectation = machine.expectation()
    loop = asyncio.get_running_loop()
    lookout = Lookout(loop, expectation)
    for _ in range(SOON):
        lookout.answered()
        lookout.asked(again=True)
    lookout.answered()
    assert expectation.goes_on()
    server = Server(echo)
    await server.start()
    connection = await connect("127.0.0.1", server.port)
    assert (await connection.call(RemotingCommand(1, body=b"there"), 60.0)).body == b"there"
    await asyncio.sleep(0.001)
    assert expectation.goes_on()
    lookout.asked(again=False)
    assert not expectation.goes_on()
    connection.close()
    await server.stop(grace_s=0.05)


async def test_the_loop_is_asked_once_a_turn_and_not_at_all_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    expectation = machine.expectation()
    loop = asyncio.get_running_loop()
    lookout = Lookout(loop, expectation)
    looks = 0
    goes_on = expectation.goes_on

    def counted() -> bool:
        nonlocal looks
        looks += 1
        return goes_on()

    monkeypatch.setattr(expectation, "goes_on", counted)
    for _ in range(SOON + 3):
        lookout.answered()
        lookout.asked(again=True)
    lookout.answered()
    for turn in range(1, 6):
        await asyncio.sleep(0)
        assert looks == turn
    machine.now += 2 * LIMIT_S
    for _ in range(5):
        await asyncio.sleep(0)
    assert looks == 6


# --- at a server ----------------------------------------------------------------------------------


def echo(connection: Connection, command: RemotingCommand) -> None:
    connection.reply(
        RemotingCommand(
            ResponseCode.SUCCESS, body=command.body, opaque=command.opaque, flag=Flag.RESPONSE
        )
    )


class Looks:
    """An Expectation that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def begin(self) -> bool:
        self.told.append("begin")
        return False

    def came(self) -> None:
        self.told.append("came")

    def disturb(self) -> None:
        self.told.append("disturb")


class Scene:
    """A server whose clients ask and are answered when a test says so, and what it was told to
    expect.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._looks = Looks()
        monkeypatch.setattr("ogive.transport.server.Expectation", lambda limit_s: self._looks)
        self._server = Server(self._take, busy_poll_s=LIMIT_S)
        self._clients: dict[str, ServerConnection] = {}
        self._waiting: deque[tuple[Connection, RemotingCommand]] = deque()

    def _take(self, connection: Connection, command: RemotingCommand) -> None:
        self._waiting.append((connection, command))

    def ask(self, client: str, requests: int = 1) -> None:
        if client not in self._clients:
            self._clients[client] = ServerConnection(self._server)
            self._clients[client].connection_made(Wire())
        self._clients[client].data_received(
            b"".join(encode_command(RemotingCommand(1)) for _ in range(requests))
        )

    async def answer(self, requests: int = 1) -> list[str]:
        """Those that have waited longest; returns what was told since the last answer."""
        for _ in range(requests):
            echo(*self._waiting.popleft())
        await asyncio.sleep(0)
        told, self._looks.told = self._looks.told, []
        return told


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


async def test_a_server_expects_the_next_request_of_a_client_that_asks_one_after_another(
    scene: Scene,
) -> None:
    scene.ask("a")
    assert await scene.answer() == ["disturb", "begin"]
    for _ in range(3):
        scene.ask("a")
        assert await scene.answer() == ["came", "begin"]


async def test_a_server_expects_nothing_of_a_client_that_asks_for_much_at_once(
    scene: Scene,
) -> None:
    scene.ask("a", requests=2)
    assert await scene.answer(2) == ["disturb"]


async def test_a_server_expects_nothing_while_a_request_of_the_client_is_under_way(
    scene: Scene,
) -> None:
    """It may be the writer's thread that works for it, which wants the interpreter."""
    scene.ask("a")
    scene.ask("a")
    assert await scene.answer() == ["disturb", "came"]
    assert await scene.answer() == ["begin"]


async def test_clients_that_take_turns_are_not_waited_for(scene: Scene) -> None:
    for client in "aba":
        scene.ask(client)
        assert await scene.answer() == ["disturb", "begin"]


async def test_a_client_is_not_waited_for_while_another_has_asked(scene: Scene) -> None:
    scene.ask("a")
    scene.ask("b")
    assert await scene.answer() == ["disturb", "disturb"]
    assert await scene.answer() == ["begin"]
