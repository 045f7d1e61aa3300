"""Work at the end of an iteration, for whom at the end of a read; slices, tasks, descriptors."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from ogive.errors import ConnectError, NoNameServer, OgiveError
from ogive.transport import event_loop
from ogive.transport.connection import Connection
from ogive.transport.event_loop import (
    AT_ONCE,
    SLICE_S,
    Deadlines,
    Slices,
    Turn,
    every,
    new_event_loop,
)
from ogive.transport.server import Server, ServerConnection
from ogive.wire.codes import Flag, ResponseCode
from ogive.wire.command import RemotingCommand, encode_command
from tests.unit.transport.wire import Wire


def turn() -> Turn:
    return Turn(asyncio.get_running_loop())


async def test_jobs_run_in_order_and_what_they_bring_along_follows_in_the_same_turn() -> None:
    done: list[str] = []
    jobs = turn()

    def write_to_log() -> None:
        done.append("log")
        jobs.add(lambda: done.append("answer"))

    jobs.add(write_to_log)
    jobs.add(lambda: done.append("other"))
    assert not done
    await asyncio.sleep(0)
    assert done == ["log", "other", "answer"]
    jobs.add(lambda: done.append("next"))
    await asyncio.sleep(0)
    assert done[3:] == ["next"]


async def test_who_holds_the_turn_runs_the_jobs_and_the_loop_does_not() -> None:
    done: list[int] = []
    jobs = turn()
    assert jobs.hold()
    jobs.add(lambda: done.append(1))
    await asyncio.sleep(0)
    assert not done
    jobs.run()
    await asyncio.sleep(0)
    assert done == [1]


async def test_a_turn_that_has_something_waiting_is_not_held() -> None:
    """What one client brings then goes with what another has brought."""
    done: list[int] = []
    jobs = turn()
    jobs.add(lambda: done.append(1))
    assert not jobs.hold()
    jobs.add(lambda: done.append(2))
    await asyncio.sleep(0)
    assert done == [1, 2]
    assert jobs.hold()
    assert not jobs.hold()
    jobs.run()


async def test_a_job_that_fails_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []
    jobs = turn()

    def fail() -> None:
        raise RuntimeError("a bug")

    jobs.add(fail)
    jobs.add(lambda: done.append(1))
    with caplog.at_level(logging.CRITICAL):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert done == [1]
    jobs.add(lambda: done.append(2))
    await asyncio.sleep(0)
    assert done == [1, 2]


async def test_what_a_thread_reports_is_followed_by_what_it_brings_along() -> None:
    done: list[str] = []
    jobs, answered = turn(), asyncio.Event()

    def report() -> None:
        jobs.add(lambda: done.append("answer"))
        jobs.add(answered.set)

    thread = threading.Thread(target=jobs.call_from_thread, args=(report,))
    thread.start()
    thread.join()
    async with asyncio.timeout(60):
        await answered.wait()
    assert done == ["answer"]


# --- a server's connections -----------------------------------------------------------------------


class Peer:
    """A client of *server*, without a socket."""

    def __init__(self, server: Server) -> None:
        self.wire = Wire()
        self.connection = ServerConnection(server)
        self.connection.connection_made(self.wire)

    def ask(self, *bodies: bytes) -> int:
        """All of them arrive in one read; how many writes have answered this client so far."""
        self.connection.data_received(
            b"".join(encode_command(RemotingCommand(1, body=body)) for body in bodies)
        )
        return len(self.wire.written)


def answering_server(groups: list[list[bytes]]) -> Server:
    """What is asked for in one turn becomes one of *groups*, and only then is answered."""
    waiting: list[tuple[Connection, RemotingCommand]] = []

    def finish() -> None:
        groups.append([command.body for _, command in waiting])
        for connection, command in waiting:
            connection.reply(
                RemotingCommand(ResponseCode.SUCCESS, opaque=command.opaque, flag=Flag.RESPONSE)
            )
        waiting.clear()

    def take(connection: Connection, command: RemotingCommand) -> None:
        if not waiting:
            server.turn.add(finish)
        waiting.append((connection, command))

    server = Server(take)
    return server


async def test_a_client_that_alone_asks_one_request_after_another_is_answered_within_the_read() -> (
    None
):
    groups: list[list[bytes]] = []
    peer = Peer(answering_server(groups))
    # there may be others
    assert peer.ask(b"1") == 0
    await asyncio.sleep(0)
    assert len(peer.wire.written) == 1
    assert peer.ask(b"2") == 2
    assert peer.ask(b"3", b"4") == 3
    await asyncio.sleep(0)
    assert groups == [[b"1"], [b"2"], [b"3", b"4"]]
    assert len(peer.wire.written) == 3


async def test_what_several_clients_ask_in_one_turn_becomes_one_group() -> None:
    groups: list[list[bytes]] = []
    server = answering_server(groups)
    one, two = Peer(server), Peer(server)
    one.ask(b"1")
    two.ask(b"2")
    one.ask(b"3")
    assert not groups
    await asyncio.sleep(0)
    assert groups == [[b"1", b"2", b"3"]]
    assert (len(one.wire.written), len(two.wire.written)) == (1, 1)


async def test_a_client_whose_neighbour_has_something_waiting_joins_it() -> None:
    groups: list[list[bytes]] = []
    server = answering_server(groups)
    one, two = Peer(server), Peer(server)
    two.ask(b"1")
    one.ask(b"2")
    one.ask(b"3")
    await asyncio.sleep(0)
    assert groups == [[b"1", b"2", b"3"]]


async def test_a_handler_that_fails_leaves_nothing_held() -> None:
    done: list[int] = []

    def handle(connection: Connection, command: RemotingCommand) -> None:
        server.turn.add(lambda: done.append(1))
        if command.body == b"fail":
            raise RuntimeError("a bug")

    server = Server(handle)
    peer = Peer(server)
    peer.ask(b"first")
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        peer.ask(b"fail")
    assert done == [1, 1]
    assert server.turn.hold()


# --- slices ---------------------------------------------------------------------------------------


class Steps:
    """Tasks whose first step takes so much of a slice, by a clock of the test's; in which turn each
    took it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, part: float) -> None:
        monkeypatch.setattr(event_loop, "SLICE_S", SLICE_S)
        self._now, self._part = 0.0, part
        self.slices = Slices(lambda: self._now)
        self.turn = 0
        self.taken: list[tuple[int, int]] = []

    async def take(self, number: int) -> None:
        await self.slices.mine()
        self._now += self._part * SLICE_S
        self.taken.append((self.turn, number))

    async def finish(self, tasks: list[asyncio.Task[None]]) -> None:
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            self.turn += 1

    def most_in_a_turn(self) -> int:
        return max(sum(at == turn for at, _ in self.taken) for turn, _ in self.taken)


@pytest.mark.parametrize(("part", "most"), [(3.0, 1), (0.6, 2), (0.03, 34)])
async def test_the_loop_turns_between_first_steps_that_take_long(
    monkeypatch: pytest.MonkeyPatch, part: float, most: int
) -> None:
    """Requests with many steps that came together began all in one turn, however long that took."""
    steps = Steps(monkeypatch, part)
    count = 3 * AT_ONCE
    await steps.finish([asyncio.create_task(steps.take(number)) for number in range(count)])
    assert [number for _, number in steps.taken] == list(range(count))
    assert steps.most_in_a_turn() == most
    assert not steps.slices._turning


async def test_a_task_that_is_cancelled_keeps_no_other_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = Steps(monkeypatch, 3.0)
    tasks = [asyncio.create_task(steps.take(number)) for number in range(5)]
    await asyncio.sleep(0)
    for number in (1, 3):
        tasks[number].cancel()
    await steps.finish(tasks)
    assert [number for _, number in steps.taken] == [0, 2, 4]
    await steps.finish([asyncio.create_task(steps.take(5))])
    assert steps.taken[-1][1] == 5


LIMIT_S = 60.0


class WithoutDescriptors(socket.socket):
    """Nobody can be accepted."""

    def accept(self) -> tuple[socket.socket, object]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_clients_that_cannot_be_accepted_are_one_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio tells of each try to take one of a whole backlog, with a traceback."""
    monkeypatch.setitem(sys.modules, "uvloop", None)

    async def wait_in_vain() -> None:
        listener = WithoutDescriptors()
        listener.bind(("127.0.0.1", 0))
        server = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, sock=listener, backlog=100
        )
        client = socket.create_connection(listener.getsockname())
        async with asyncio.timeout(LIMIT_S):
            while not caplog.records:
                await asyncio.sleep(0)
        client.close()
        server.close()

    with caplog.at_level(logging.ERROR), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(wait_in_vain())
    assert [record.getMessage() for record in caplog.records] == [
        "clients wait to connect: [Errno 24] Too many open files; raise the limit (ulimit -n)"
    ]


def test_other_faults_are_told_as_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = new_event_loop()
    loop.call_exception_handler({"message": "something else"})
    loop.close()
    assert [record.getMessage() for record in caplog.records] == ["something else"]


async def test_a_job_that_fails_is_one_line_until_it_works_or_fails_otherwise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The texts of an outage differ in the number of tries."""
    outcomes: list[OgiveError | None] = [
        *(
            NoNameServer("tried 7 times"),
            NoNameServer("tried 6 times"),
            ConnectError("refused"),
            None,
        ),
        *(None, NoNameServer("again")),
    ]

    async def job() -> None:
        if not outcomes:
            raise asyncio.CancelledError
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    with caplog.at_level(logging.INFO), contextlib.suppress(asyncio.CancelledError):
        await every(0.0, job, name="routes")
    assert caplog.messages == [
        "routes: failed, tried again every 0.0 s: tried 7 times",
        "routes: failed, tried again every 0.0 s: refused",
        "routes: works again",
        "routes: failed, tried again every 0.0 s: again",
    ]


class EarlyLoop:
    """Its timers come nearly a millisecond early, as uvloop's do."""

    def __init__(self) -> None:
        self._now = 10.0
        self._timers: list[tuple[float, Callable[..., Any]]] = []
        self.runs = 0

    def get_debug(self) -> bool:
        return False

    def time(self) -> float:
        return self._now

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        self._timers.append((when, callback))
        return asyncio.TimerHandle(when, callback, args, cast(asyncio.AbstractEventLoop, self))

    def run(self) -> None:
        while self._timers and self.runs < 10:
            when, callback = self._timers.pop(0)
            self._now = when - 0.0009
            self.runs += 1
            callback()


def test_a_timer_that_comes_early_is_set_once_for_deadlines_that_pass_together() -> None:
    loop, passed = EarlyLoop(), list[int]()
    deadlines = Deadlines(cast(asyncio.AbstractEventLoop, loop), passed.extend)
    deadlines.add(1, 10.5)
    deadlines.add(2, 10.501)
    deadlines.add(3, 10.9)
    loop.run()
    assert passed == [1, 2, 3]
    assert loop.runs == 2
