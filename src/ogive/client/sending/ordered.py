"""Messages of one queue that must keep their order: one request on its way at a time, which carries
all that came meanwhile.

A broker may carry out requests of one connection at the same time (Apache's has a pool of threads
for sends), so only what travels in one request, or waits for the answer to the one before, keeps
its order. A run of several messages goes as a batch, which is stored whole or not at all. A failed
run goes to the front again: nothing behind it can overtake. A run whose answer was lost may be
stored twice, as a run.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol

from ogive.client.config import ProducerConfig
from ogive.client.sending.answer import results_of
from ogive.client.sending.connector import Connector
from ogive.client.sending.failures import is_final, is_refusal
from ogive.client.sending.outgoing import Answer, Outgoing, Target
from ogive.client.sending.run import next_run, start_run
from ogive.errors import OgiveError, TransportError
from ogive.model import SendResult


class Engine(Protocol):
    """What an ordered queue needs of its publisher."""

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

    def __init__(
        self, target: Target, config: ProducerConfig, connector: Connector, engine: Engine
    ) -> None:
        self._target = target
        self._config = config
        self._connector = connector
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Outgoing] = deque()
        # on its way
        self._run: list[Outgoing] | None = None
        self._pausing = False

    @property
    def idle(self) -> bool:
        """Nothing waits, and nothing is in flight."""
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
            self._connector.stall(self._target.lane, self)
            return
        now = self._loop.time()
        run = next_run(self._waiting, self._config.max_batch_bytes, now)
        if run:
            self._run = run
            try:
                start_run(run, self._target, connection, self._answered, now)
            except TransportError as exc:
                self._answered(exc)

    def _answered(self, answer: Answer) -> None:
        run, self._run = self._run or [], None
        for outgoing in run:
            outgoing.on_way = False
        results = results_of(run, answer, self._target)
        if isinstance(results, OgiveError):
            self._failed(run, results)
            return
        for outgoing, result in zip(run, results, strict=True):
            outgoing.answer = answer
            self._engine.succeed(outgoing, result)
        self.pump()

    def _failed(self, run: list[Outgoing], error: OgiveError) -> None:
        again: list[Outgoing] = []
        for outgoing in run:
            repeat = self._engine.note_failure(outgoing, error)
            if len(run) > 1 and is_refusal(error):
                # one of them is refused: sending each alone shows which
                outgoing.alone = True
                again.append(outgoing)
            elif repeat and not outgoing.finished:
                again.append(outgoing)
            else:
                self._engine.fail(outgoing)
        self._waiting.extendleft(reversed(again))
        if again and not is_final(error):
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
