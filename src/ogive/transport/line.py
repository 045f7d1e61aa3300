"""A TCP connection for one request at a time, written and read by the thread that waits for the
answer, without an event loop.
"""

import contextlib
import itertools
import select
import socket
import time
from typing import Final

from ogive.errors import ConnectionLost, ProtocolError, RequestTimeout
from ogive.transport.busy_poll import Expectation
from ogive.wire.codes import Flag
from ogive.wire.command import RemotingCommand, decode_command
from ogive.wire.frame import FrameDecoder

_RESPONSE: Final = int(Flag.RESPONSE)
_READ_BYTES: Final = 64 * 1024
# two thousand million requests are some days' work
_MAX_OPAQUE: Final = 0x7FFFFFFF


class Line:
    """Used by one thread at a time.

    Whatever ends a request before its answer, even an interrupt (Ctrl-C) at any moment, closes the
    line: a stream is never continued in the middle of an answer.

    Where answers come within a moment, the thread looks for the next one that long before it
    sleeps: see busy_poll.py.
    """

    __slots__ = (
        "_asking",
        "_decoder",
        "_expectation",
        "_opaques",
        "_readable",
        "_socket",
        "address",
        "used_at",
    )

    def __init__(
        self, connected: socket.socket, address: str, expectation: Expectation | None = None
    ) -> None:
        """*connected* does not block. Without *expectation* it sleeps for every answer."""
        self.address = address
        self.used_at = time.monotonic()
        self._socket = connected
        self._readable = select.poll()
        self._readable.register(connected, select.POLLIN)
        self._decoder = FrameDecoder()
        self._expectation = expectation
        self._opaques = itertools.count(1)
        self._asking = False

    def next_opaque(self) -> int:
        """A number for one request."""
        return next(self._opaques) & _MAX_OPAQUE

    def is_fit(self) -> bool:
        """Return True if it can take a request: the peer has not closed it, and nothing is left of
        the last one.
        """
        return not self._asking and not self._readable.poll(0)

    def ask(self, opaque: int, frame: bytes, timeout_s: float) -> RemotingCommand:
        """Send a whole request frame that carries *opaque*, and wait for the answer.

        Raises RequestTimeout, ConnectionLost.
        """
        started = time.monotonic()
        # until the answer is there: even if the closing below is interrupted, the line is not used
        # again
        self._asking = True
        try:
            self._write(frame, started + timeout_s)
            answer = self._read(opaque, started + timeout_s)
            self.used_at = time.monotonic()
            self._asking = False
        except TimeoutError:
            waited = time.monotonic() - started
            raise RequestTimeout(
                f"no answer from {self.address} within {waited:.1f} s", self.address
            ) from None
        except ProtocolError as exc:
            raise ConnectionLost(
                f"{self.address} sent a malformed frame: {exc}", self.address
            ) from None
        except OSError as exc:
            raise ConnectionLost(
                f"connection to {self.address} was lost: {exc}", self.address
            ) from None
        finally:
            if self._asking:
                self._socket.close()
        return answer

    def _write(self, frame: bytes, deadline: float) -> None:
        sent = self._socket.send(frame)
        if sent < len(frame):
            writable = select.poll()
            writable.register(self._socket, select.POLLOUT)
            while sent < len(frame):
                _wait(writable, deadline)
                sent += self._socket.send(frame[sent:])

    def _read(self, opaque: int, deadline: float) -> RemotingCommand:
        self._await(deadline)
        while True:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("the peer closed it")
            frames, fault = self._decoder.feed(data)
            for frame in frames:
                command = decode_command(frame)
                if command.opaque == opaque and command.flag & _RESPONSE:
                    return command
            if fault is not None:
                raise fault
            _wait(self._readable, deadline)

    def _await(self, deadline: float) -> None:
        """The first bytes of the answer."""
        expectation = self._expectation
        if expectation is None:
            _wait(self._readable, deadline)
            return
        looking, poll = expectation.begin(), self._readable.poll
        # a third of what it costs to read in vain
        while looking and not poll(0):
            looking = expectation.goes_on()
        if not looking:
            _wait(self._readable, deadline)
        expectation.came()

    def hang_up(self) -> None:
        """End the request that is on its way, if there is one; its thread then closes the line.

        From any thread.
        """
        # the peer was faster
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Only when nobody uses it: the system would give its number to another socket, and a
        reader would read from that.
        """
        self._socket.close()


def _wait(ready: select.poll, deadline: float) -> None:
    left_s = deadline - time.monotonic()
    if left_s <= 0 or not ready.poll(left_s * 1000):
        raise TimeoutError
