"""Gather messages into requests: batches per broker, ordered runs per queue.

Messages that may go to any queue of a broker: a few requests on their way at a time, and the
next one carries what came meanwhile.

While fewer than ``ProducerConfig.max_requests`` are on their way, each message leaves at once,
alone. Beyond that messages wait, and leave as batches, of one topic and to one queue each, as
answers come in: the busier the broker, the larger the batches, which halves the CPU of a message in
the client and in the broker. Messages that cannot stand in a batch always leave at once.

Messages of one queue that must keep their order: one request on its way at a time, which carries
all that came meanwhile.

A broker may carry out requests of one connection at the same time (Apache's has a pool of threads
for sends), so only what travels in one request, or waits for the answer to the one before, keeps
its order. A run of several messages goes as a batch, which is stored whole or not at all. A failed
run goes to the front again: nothing behind it can overtake. A run whose answer was lost may be
stored twice, as a run.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Final

from ogive.client.config import ProducerConfig
from ogive.client.ids import UniqueKeys
from ogive.client.sending.connector import Connector
from ogive.client.sending.destinations import targets_on
from ogive.client.sending.in_flight import Watch
from ogive.client.sending.message_builder import with_unique_key
from ogive.client.sending.pending import (
    Answer,
    Lane,
    Outgoing,
    PendingTopic,
    Publishing,
    Target,
    is_final,
    is_refusal,
)
from ogive.errors import OgiveError, TransportError
from ogive.model import SendResult
from ogive.transport.connection import Connection
from ogive.wire.command import RemotingCommand
from ogive.wire.message import encode_batch
from ogive.wire.sends import SendEncoder, read_answer, split_result

MAX_RUN: Final = 256
BATCH_PROPERTIES: Final = b"WAIT\x01true\x02"


def form(
    outgoing: Outgoing, keys: UniqueKeys, now: float, timeout_s: float, *, whole: bool = False
) -> None:
    """Give an accepted message, or each of a batch, its key, and its time: *now* is one of the
    loop's clock. Raises MessageIllegal.

    With *whole* a batch gets a key of its own, too, see ProducerConfig.whole_batches.
    """
    now_ms = int(time.time() * 1000)
    if outgoing.batch is None:
        outgoing.key = key = keys.next(now_ms)
        outgoing.properties = with_unique_key(key, outgoing.text)
    else:
        names = [keys.next(now_ms) for _ in outgoing.batch]
        rows = zip(names, outgoing.batch, strict=True)
        outgoing.body = encode_batch(
            (flag, body, with_unique_key(key, text)) for key, (flag, body, text) in rows
        )
        outgoing.key = ",".join(names)
        outgoing.properties = (
            with_unique_key(keys.next(now_ms), BATCH_PROPERTIES.decode())
            if whole
            else BATCH_PROPERTIES
        )
    outgoing.born_ms = now_ms
    outgoing.started = now
    outgoing.deadline = now + timeout_s


def may_share(outgoing: Outgoing) -> bool:
    """Return True if the message may be part of a batch: brokers accept no compressed, delayed or
    retry-topic messages there.
    """
    if (
        outgoing.alone
        or outgoing.batch is not None
        or outgoing.sys_flag
        or outgoing.topic.startswith("%")
    ):
        return False
    return (
        "DELAY\x01" not in outgoing.text
        and "WAIT\x01" not in outgoing.text
        and "TIMER_DEL" not in outgoing.text
    )


def next_run(
    waiting: deque[Outgoing], max_bytes: int, now: float, max_count: int = MAX_RUN
) -> list[Outgoing]:
    """Take from the front what one request can carry.

    One whose time is up is dropped: it ends by its deadline.
    """
    run: list[Outgoing] = []
    total = 0
    max_count = min(max_count, MAX_RUN)
    while waiting and len(run) < max_count:
        outgoing = waiting[0]
        if not outgoing.finished and outgoing.deadline > now:
            total += outgoing.size
            if run and (total > max_bytes or not may_share(outgoing)):
                break
            run.append(outgoing)
        waiting.popleft()
        if run and not may_share(run[0]):
            break
    return run


def start_run(
    run: Sequence[Outgoing],
    target: Target,
    connection: Connection,
    on_answer: Callable[[Answer], None],
    now: float,
) -> None:
    """Send *run* in one request, as a try of each.

    The answer may take as long as the most patient waits. Raises TransportError.
    """
    latest = now
    for outgoing in run:
        outgoing.target = target
        outgoing.tries += 1
        outgoing.sent_at = now
        outgoing.on_way = True
        if outgoing.deadline > latest:
            latest = outgoing.deadline
    opaque = connection.next_opaque()
    connection.start_frame(opaque, frame_of(run, target.encoder, opaque), on_answer, latest - now)


def frame_of(run: Sequence[Outgoing], encoder: SendEncoder, opaque: int) -> bytes:
    """The request that carries *run*."""
    first = run[0]
    if len(run) > 1:
        body = encode_batch([(one.flag, one.body, one.properties) for one in run])
        return encoder.batch(opaque, first.born_ms, BATCH_PROPERTIES, body)
    if first.batch is not None:
        return encoder.batch(opaque, first.born_ms, first.properties, first.body)
    return encoder.single(
        opaque, first.born_ms, first.properties, first.body, first.sys_flag, first.flag
    )


def results_of(
    run: Sequence[Outgoing], answer: Answer, target: Target
) -> list[SendResult] | OgiveError:
    """Return a result for each message of one request, or the error of all."""
    if not isinstance(answer, RemotingCommand):
        return answer
    result = read_answer(answer, target.queue, target.lane.address, run[0].key)
    if not isinstance(result, SendResult):
        return result
    return [result] if len(run) == 1 else split_result(result, [outgoing.key for outgoing in run])


class OrderedQueue:
    """The messages for *target* in the order of their acceptance."""

    def __init__(
        self, target: Target, config: ProducerConfig, connector: Connector, publisher: Publishing
    ) -> None:
        self._target = target
        self._config = config
        self._connector = connector
        self._publisher = publisher
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
            self._publisher.succeed(outgoing, result)
        self.pump()

    def _failed(self, run: list[Outgoing], error: OgiveError) -> None:
        again: list[Outgoing] = []
        for outgoing in run:
            repeat = self._publisher.note_failure(outgoing, error)
            if len(run) > 1 and is_refusal(error):
                # one of them is refused: sending each alone shows which
                outgoing.alone = True
                again.append(outgoing)
            elif repeat and not outgoing.finished:
                again.append(outgoing)
            else:
                self._publisher.fail(outgoing)
        self._waiting.extendleft(reversed(again))
        if again and not is_final(error):
            self._pausing = True
            self._publisher.spawn(self._resume(error, again[0].tries), "send again")
        else:
            self.pump()

    async def _resume(self, error: OgiveError, tries: int) -> None:
        try:
            await self._publisher.before_next_try(self._target.queue.topic, error, tries)
        finally:
            self._pausing = False
        self.pump()


# what waits is shared by the queues, but smaller batches are not worth it
MIN_SHARE: Final = 16


class Merger:
    """The way to one broker for the messages of one producer that need no order."""

    def __init__(
        self, lane: Lane, config: ProducerConfig, watch: Watch, publisher: Publishing
    ) -> None:
        self._lane = lane
        self._config = config
        self._watch = watch
        self._publisher = publisher
        self._loop = asyncio.get_running_loop()
        # requests; while anything waits there is at least one, whose answer lets it go
        self._on_way = 0
        self._waiting: dict[PendingTopic, deque[Outgoing]] = {}

    def send(self, topic: PendingTopic, outgoing: Outgoing, connection: Connection) -> None:
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
                self._publisher.stored(outgoing, target, result)
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
                self._publisher.attempt_failed(outgoing, error)

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
                self._publisher.place(outgoing)
