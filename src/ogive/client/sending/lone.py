"""The short way of a blocking send that is alone: its thread asks the broker itself, and sleeps
once.

Through the loop a send wakes the loop's thread, which wakes it again when the answer is there, and
each of them may have to wait for the interpreter besides. On a quiet machine these hand-overs are
two thirds of its time.

Behaviour
- A message goes this way while nothing else of its producer is under way, if it needs no order, is
  not large, nobody watches its outcome (hooks, trace), and its broker is connected, well and spoken
  to without TLS. All others go through the loop, where they share requests.
- It is one try like any other: the queue whose turn it is, the same frame, the same time budget.
  Whatever is not plainly stored goes to the publisher as that try's answer, and the publisher
  decides as ever: another try, or which error.
- The connection is one of its own beside the client's, to the same address, for sends only: no
  heartbeats, so a broker asks nothing there. It is made in the background when sends follow one
  another, and closed when idle: firewalls forget silent ones.
- Where answers come in a moment the thread looks for its own before it sleeps
  (``ProducerConfig.busy_poll_s``, transport/busy_poll.py).
- An interrupt (Ctrl-C, or whatever a signal handler raises) closes it. The message then has no
  further try, and may or may not be stored; the exception gets a note that says so.
"""

import asyncio
import logging
import os
import socket
import sys
import time
from math import inf
from typing import Any, Final

from ogive.client.ids import UniqueKeys
from ogive.client.portal import Portal
from ogive.client.sending.accumulator import form
from ogive.client.sending.answer import result_of
from ogive.client.sending.pending import Lane, Outgoing, Target
from ogive.client.sending.publisher import Publisher
from ogive.errors import ResponseCode, TransportError
from ogive.model import SendResult, SendStatus
from ogive.transport.busy_poll import Expectation
from ogive.transport.line import Line
from ogive.wire.command import RemotingCommand

log = logging.getLogger(__name__)

# beyond the publisher's bound on what is in flight there is one message, and a small one
MAX_BYTES: Final = 64 * 1024
# a send so soon after another is worth a connection
FOLLOWS_S: Final = 1.0
# between two attempts to open one to the same broker
OPEN_PAUSE_S: Final = 5.0
IDLE_S: Final = 10.0


def _processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class LoneSends:
    """The short way of one producer.

    Its state belongs to whoever holds the turn; what the loop does, says so.
    """

    def __init__(self, publisher: Publisher, portal: Portal) -> None:
        self._publisher = publisher
        self._destinations = publisher.destinations
        self._portal = portal
        self._possible = not publisher.client.config.ssl
        # taken by a `del`: one thread succeeds, and no interrupt comes between it and the next
        # `try`
        self._turn = {"free": True}
        # not the publisher's: that one is the loop's
        self._keys = UniqueKeys()
        # by address; the loop adds
        self._lines: dict[str, Line] = {}
        # the loop's: when a connection was last tried, by address
        self._tried_at: dict[str, float] = {}
        self._last_at = -inf
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        publisher.on_close.append(self._close)

    def send(self, outgoing: Outgoing, timeout_s: float) -> bool:
        """Send it and give its future the outcome, or see to it that the publisher does; False if
        it has to go through the loop.

        Raises MessageIllegal like the publisher's ``take``.
        """
        publisher = self._publisher
        if (
            publisher.under_way
            or outgoing.pinned
            or outgoing.unusual_level
            or outgoing.on_end is not None
            or outgoing.size > MAX_BYTES
            or self._portal.posted
            or not self._possible
        ):
            return False
        try:
            del self._turn["free"]
        except KeyError:
            return False
        try:
            now = time.monotonic()
            target = self._destinations.free_target(outgoing.topic, now)
            line = None if target is None else self._line(target.lane, now)
            self._last_at = now
            if target is None or line is None:
                return False
            form(outgoing, self._keys, now, timeout_s)
            self._ask(line, target, outgoing)
            return True
        finally:
            self._turn["free"] = True
            if self._closed:
                self._close_lines(inf)

    def _line(self, lane: Lane, now: float) -> Line | None:
        line = self._lines.get(lane.address)
        if line is not None:
            if now - line.used_at < IDLE_S and line.is_fit():
                return line
            del self._lines[lane.address]
            line.close()
        if now - self._last_at < FOLLOWS_S:
            self._portal.post(self._prepare, lane)
        return None

    def _ask(self, line: Line, target: Target, outgoing: Outgoing) -> None:
        publisher, handed_over = self._publisher, False
        outgoing.target = target
        outgoing.tries = 1
        outgoing.sent_at = outgoing.started
        target.sent += 1
        opaque = line.next_opaque()
        frame = target.frames.single(
            opaque,
            outgoing.born_ms,
            outgoing.properties,
            outgoing.body,
            outgoing.sys_flag,
            outgoing.flag,
        )
        answer: RemotingCommand | TransportError
        try:
            publisher.under_way.add(outgoing)
            try:
                answer = line.ask(opaque, frame, outgoing.deadline - outgoing.started)
            except TransportError as exc:
                answer = exc
            result = result_of(outgoing.key, answer, target)
            if isinstance(result, SendResult) and result.status is SendStatus.SEND_OK:
                publisher.note_latency(target.lane, outgoing, time.monotonic())
                outgoing.future.set_result(publisher.visible(result))
                return
            if isinstance(answer, RemotingCommand) and answer.code == ResponseCode.GO_AWAY:
                line.hang_up()
            self._portal.post(publisher.adopt, outgoing, target, answer, waiter=outgoing.future)
            handed_over = True
        except BaseException as exc:
            # an interrupt: every other error is an answer
            exc.add_note(f"The message may or may not be stored: its id is {outgoing.key}.")
            raise
        finally:
            if not handed_over:
                # first, and without a call of Python's: nothing can interrupt before it is done
                publisher.under_way.discard(outgoing)
                if publisher.is_flushing:
                    self._portal.post(publisher.settle, outgoing)

    # --- connections, on the loop -----------------------------------------------------------------

    def _prepare(self, lane: Lane) -> None:
        """Open a connection to where the lane's own one leads, unless that was tried just now."""
        now, connection = time.monotonic(), lane.ready()
        if (
            self._closed
            or connection is None
            or connection.peer is None
            or now - self._tried_at.get(lane.address, -inf) < OPEN_PAUSE_S
        ):
            return
        self._tried_at = {
            known: at for known, at in self._tried_at.items() if now - at < OPEN_PAUSE_S
        } | {lane.address: now}
        self._publisher.spawn(
            self._open(lane.address, connection.peer), f"line to {lane.broker_name}"
        )

    async def _open(self, address: str, peer: tuple[Any, ...]) -> None:
        connecting = socket.socket(
            socket.AF_INET6 if ":" in peer[0] else socket.AF_INET, socket.SOCK_STREAM
        )
        opened = False
        try:
            connecting.setblocking(False)
            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(self._publisher.client.config.connect_timeout_s):
                await self._portal.loop.sock_connect(connecting, peer)
            opened = not self._closed and address not in self._lines
        except OSError as exc:
            # and TimeoutError: sends go through the loop, whose connection stands
            log.debug("no second connection to %s: %s", address, exc)
        finally:
            if not opened:
                connecting.close()
        if opened:
            self._lines[address] = Line(connecting, address, self._expectation())
            self._timer = self._timer or self._portal.loop.call_later(IDLE_S, self._close_idle)

    def _expectation(self) -> Expectation | None:
        limit_s = self._publisher.config.busy_poll_s
        # on a single one the broker could not work meanwhile
        return Expectation(limit_s) if limit_s and _processors() > 1 else None

    def _close_idle(self) -> None:
        self._close_lines(time.monotonic() - IDLE_S)
        self._timer = (
            self._portal.loop.call_later(IDLE_S, self._close_idle) if self._lines else None
        )

    def _close(self) -> None:
        """The producer ends.

        A thread that still waits for an answer gets an error, and cleans up.
        """
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for line in list(self._lines.values()):
            line.hang_up()
        self._close_lines(inf)

    def _close_lines(self, before: float) -> None:
        """Close the lines last used before *before*, unless a send is in progress."""
        try:
            del self._turn["free"]
        except KeyError:
            return
        try:
            # a copy: the loop may add one meanwhile
            for line in list(self._lines.values()):
                if line.used_at <= before:
                    del self._lines[line.address]
                    line.close()
        finally:
            self._turn["free"] = True
