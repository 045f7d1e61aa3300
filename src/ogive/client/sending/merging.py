"""Messages that may go to any queue of a broker: a few requests on their way at a time, and the
next one carries what came meanwhile.

While fewer than ``ProducerConfig.max_requests`` are on their way, each message leaves at once,
alone. Beyond that messages wait, and leave as batches, of one topic and to one queue each, as
answers come in: the busier the broker, the larger the batches, which halves the CPU of a message in
the client and in the broker. Messages that cannot stand in a batch always leave at once.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial
from operator import attrgetter
from typing import Final, Protocol

from ogive.client.config import ProducerConfig
from ogive.client.sending.answer import results_of
from ogive.client.sending.destinations import targets_on
from ogive.client.sending.failures import is_refusal
from ogive.client.sending.outgoing import Answer, Lane, Outgoing, Target, Topic
from ogive.client.sending.run import may_share, next_run, start_run
from ogive.client.sending.watch import Watch
from ogive.errors import OgiveError, TransportError
from ogive.model import SendResult
from ogive.transport.connection import Connection

# what waits is shared by the queues, but smaller batches are not worth it
MIN_SHARE: Final = 16


class Engine(Protocol):
    """What it needs of its publisher."""

    def stored(self, outgoing: Outgoing, target: Target, result: SendResult) -> None: ...
    def attempt_failed(self, outgoing: Outgoing, error: OgiveError) -> None: ...
    def place(self, outgoing: Outgoing) -> None:
        """Choose a queue again."""


class Merger:
    """The way to one broker for the messages of one producer that need no order."""

    def __init__(self, lane: Lane, config: ProducerConfig, watch: Watch, engine: Engine) -> None:
        self._lane = lane
        self._config = config
        self._watch = watch
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        # requests; while anything waits there is at least one, whose answer lets it go
        self._on_way = 0
        self._waiting: dict[Topic, deque[Outgoing]] = {}

    def send(self, topic: Topic, outgoing: Outgoing, connection: Connection) -> None:
        """Send the message to its target, or keep it for the next batch of its topic."""
        if self._on_way < self._config.max_requests or not may_share(outgoing):
            assert outgoing.target is not None
            self._start([outgoing], outgoing.target, connection)
        else:
            # ended messages are not taken back from here
            self._watch.add(outgoing)
            self._waiting.setdefault(topic, deque()).append(outgoing)

    def drop_finished(self) -> None:
        """Forget those whose time was up."""
        kept = {
            topic: deque(one for one in waiting if not one.finished)
            for topic, waiting in self._waiting.items()
        }
        self._waiting = {topic: waiting for topic, waiting in kept.items() if waiting}

    def _start(self, run: list[Outgoing], target: Target, connection: Connection) -> None:
        target.sent += len(run)
        try:
            start_run(
                run, target, connection, partial(self._answered, run, target), self._loop.time()
            )
        except TransportError as exc:
            self._failed(run, exc)
        else:
            self._on_way += 1

    def _answered(self, run: list[Outgoing], target: Target, answer: Answer) -> None:
        results = results_of(run, answer, target)
        if isinstance(results, OgiveError):
            self._failed(run, results)
        else:
            for outgoing, result in zip(run, results, strict=True):
                outgoing.on_way = False
                outgoing.answer = answer
                self._engine.stored(outgoing, target, result)
        self._on_way -= 1
        if self._waiting:
            self._send_waiting()

    def _failed(self, run: list[Outgoing], error: OgiveError) -> None:
        for outgoing in run:
            outgoing.on_way = False
            # from now on each is sent alone: if one is refused, that shows which
            outgoing.alone = outgoing.alone or len(run) > 1
        if len(run) > 1 and is_refusal(error):
            self._place_again(run)
            return
        for outgoing in run:
            if not outgoing.finished:
                self._engine.attempt_failed(outgoing, error)

    def _send_waiting(self) -> None:
        """A request has its answer: what waited may go."""
        while self._waiting:
            connection = self._lane.ready()
            topic, waiting = next(iter(self._waiting.items()))
            targets = targets_on(topic, self._lane)
            if connection is None or not targets:
                del self._waiting[topic]
                self._place_again(waiting)
            elif self._on_way < self._config.max_requests:
                share = max(-(-len(waiting) // len(targets)), MIN_SHARE)
                run = next_run(waiting, self._config.max_batch_bytes, self._loop.time(), share)
                del self._waiting[topic]
                if waiting:
                    # behind the other topics
                    self._waiting[topic] = waiting
                if run:
                    self._start(run, min(targets, key=attrgetter("sent")), connection)
            else:
                return

    def _place_again(self, waiting: Iterable[Outgoing]) -> None:
        for outgoing in waiting:
            if not outgoing.finished:
                self._watch.drop(outgoing)
                self._engine.place(outgoing)
