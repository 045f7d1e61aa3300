"""Messages of one queue that must keep their order: one request on its way at a time, which carries all that came meanwhile.

A broker may carry out requests of one connection at the same time (Apache's has a pool of threads for sends), so only what travels in one
request, or waits for the answer to the one before, keeps its order. A run of several messages goes as a batch, which is stored whole or not
at all. A failed run goes to the front again: nothing behind it can overtake. A run whose answer was lost may be stored twice, as a run.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol

from ogive.client.config import ProducerConfig
from ogive.client.merging import BATCH_PROPERTIES, failure_of, next_run, read_results
from ogive.client.outgoing import Lane, Outgoing, Pump, Target
from ogive.errors import BrokerError, OgiveError, ProtocolError, TransportError
from ogive.model import SendResult
from ogive.transport.connection import Connection
from ogive.wire.command import RemotingCommand
from ogive.wire.message import BatchItem, encode_batch


class Engine(Protocol):
    """What an ordered queue needs of its publisher."""

    @property
    def config(self) -> ProducerConfig: ...
    def stall(self, lane: Lane, queue: Pump) -> None:
        """Call ``pump`` once the lane's connection is open."""

    def succeed(self, outgoing: Outgoing, result: SendResult) -> None: ...
    def fail(self, outgoing: Outgoing) -> None:
        """End it with the error that its tries amount to."""

    def note_failure(self, outgoing: Outgoing, error: OgiveError) -> bool:
        """Remember a failed try; True if another one is allowed."""

    async def before_next_try(self, topic: str, error: OgiveError, tries: int) -> None:
        """Pause, and refresh the route where the error asks for it."""

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]: ...


class OrderedQueue:
    """The messages for *target* in the order of their acceptance."""

    def __init__(self, target: Target, engine: Engine) -> None:
        self._target = target
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Outgoing] = deque()
        self._run: list[Outgoing] | None = None  # on its way
        self._pausing = False

    @property
    def idle(self) -> bool:
        """Nothing waits, and nothing is on its way."""
        return self._run is None and not self._waiting

    def put(self, outgoing: Outgoing) -> None:
        self._waiting.append(outgoing)
        if self._run is None:
            self.pump()

    def drop_finished(self) -> None:
        """Forget those whose time was up."""
        self._waiting = deque(outgoing for outgoing in self._waiting if not outgoing.finished)
        if not self._waiting:
            self._target.lane.stalled.pop(self, None)

    def pump(self) -> None:
        """Send the next run, if the way is free."""
        if self._run is not None or self._pausing or not self._waiting:
            return
        connection = self._target.lane.ready()
        if connection is None:
            self._engine.stall(self._target.lane, self)
            return
        run = next_run(self._waiting, self._engine.config.max_batch_bytes, self._loop.time())
        if run:
            self._run = run
            try:
                self._send(run, connection)
            except TransportError as exc:
                self._answered(exc)

    def _send(self, run: list[Outgoing], connection: Connection) -> None:
        for outgoing in run:
            outgoing.tries += 1
            outgoing.on_way = True
        first, frames, opaque = run[0], self._target.frames, connection.next_opaque()
        if len(run) > 1:
            body = encode_batch([BatchItem(one.flag, one.body, one.properties) for one in run])
            frame = frames.batch(opaque, first.born_ms, BATCH_PROPERTIES, body)
        elif first.batch is not None:
            frame = frames.batch(opaque, first.born_ms, first.properties, first.body)
        else:
            frame = frames.single(opaque, first.born_ms, first.properties, first.body, first.sys_flag, first.flag)
        connection.start_frame(opaque, frame, self._answered, max(one.deadline for one in run) - self._loop.time())

    def _answered(self, answer: RemotingCommand | TransportError) -> None:
        run, self._run = self._run or [], None
        for outgoing in run:
            outgoing.on_way = False
        error = failure_of(answer, self._target)
        if error is None:
            assert isinstance(answer, RemotingCommand)
            try:
                results = read_results([outgoing.key for outgoing in run], answer, self._target.queue)
            except ProtocolError as exc:
                error = exc
            else:
                for outgoing, result in zip(run, results, strict=True):
                    outgoing.answer = answer.ext_fields
                    self._engine.succeed(outgoing, result)
        if error is not None:
            self._failed(run, error)
        else:
            self.pump()

    def _failed(self, run: list[Outgoing], error: OgiveError) -> None:
        final = isinstance(error, ProtocolError) or (isinstance(error, BrokerError) and not error.retry_other_broker)
        again: list[Outgoing] = []
        for outgoing in run:
            repeat = self._engine.note_failure(outgoing, error)
            if final and len(run) > 1 and isinstance(error, BrokerError):
                outgoing.alone = True  # one of them is refused: which one shows when each goes by itself
                again.append(outgoing)
            elif repeat and not outgoing.finished:
                again.append(outgoing)
            else:
                self._engine.fail(outgoing)
        self._waiting.extendleft(reversed(again))
        if again and not final:
            self._pausing = True
            self._engine.spawn(self._resume(error, again[0].tries), "send again")
        else:
            self.pump()

    async def _resume(self, error: OgiveError, tries: int) -> None:
        try:
            await self._engine.before_next_try(self._target.queue.topic, error, tries)
        finally:
            self._pausing = False
        self.pump()
