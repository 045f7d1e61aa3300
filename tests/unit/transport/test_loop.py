"""What the standard loop says of a process without a free descriptor."""

import asyncio
import errno
import logging
import os
import socket
import sys

import pytest

from ogive.transport.event_loop import new_event_loop

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
