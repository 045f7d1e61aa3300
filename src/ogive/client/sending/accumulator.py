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
from typing import TYPE_CHECKING, Final

from ogive.client.config import ProducerConfig
from ogive.client.ids import UniqueKeys
from ogive.client.sending.connector import Connector
from ogive.client.sending.destinations import targets_on
from ogive.client.sending.in_flight import DeadlineWatch
from ogive.client.sending.inboxes import Inboxes
from ogive.client.sending.message_builder import with_unique_key
from ogive.client.sending.pending import (
    BATCH_PROPERTIES,
    Answer,
    Inbox,
    Lane,
    PendingSend,
    PendingTopic,
    Target,
    is_final,
    is_refusal,
)
from ogive.errors import OgiveError, TransportError
from ogive.model import PropertyName, SendResult
from ogive.transport.connection import Connection
from ogive.wire.command import RemotingCommand
from ogive.wire.message import encode_batch
from ogive.wire.sends import SendEncoder, read_answer, split_result

if TYPE_CHECKING:
    from ogive.client.sending.publisher import Publisher

MAX_RUN: Final = 256


def seal(
    pending: PendingSend, keys: UniqueKeys, now: float, timeout_s: float, *, whole: bool = False
) -> None:
    """Give an accepted message, or each of a batch, its key and its time: *now* is a time of the
    loop's clock. Raises MessageIllegal.

    With *whole* a batch gets a key of its own, too, see ProducerConfig.whole_batches.
    """
    now_ms = int(time.time() * 1000)
    if pending.batch is None:
        pending.key = key = keys.next(now_ms)
        pending.properties = with_unique_key(key, pending.text)
    else:
        names = [keys.next(now_ms) for _ in pending.batch]
        rows = zip(names, pending.batch, strict=True)
        pending.body = encode_batch(
            (flag, body, with_unique_key(key, text)) for key, (flag, body, text) in rows
        )
        pending.key = ",".join(names)
        pending.properties = (
            with_unique_key(keys.next(now_ms), BATCH_PROPERTIES.decode())
            if whole
            else BATCH_PROPERTIES
        )
    pending.born_ms = now_ms
    pending.started = now
    pending.deadline = now + timeout_s


def may_share(pending: PendingSend) -> bool:
    """Return True if the message may be part of a batch: brokers accept no compressed, delayed or
    retry-topic messages there, and choose no queue by priority.
    """
    if (
        pending.alone
        or pending.batch is not None
        or pending.sys_flag
        or pending.topic.startswith("%")
    ):
        return False
    return (
        "DELAY\x01" not in pending.text
        and "WAIT\x01" not in pending.text
        and "TIMER_DEL" not in pending.text
        and f"{PropertyName.PRIORITY}\x01" not in pending.text
    )


def next_run(
    waiting: deque[PendingSend], max_bytes: int, now: float, max_count: int = MAX_RUN
) -> list[PendingSend]:
    """Take as many messages from the front as one request can carry.

    One whose time is up is dropped: it ends by its deadline.
    """
    run: list[PendingSend] = []
    total = 0
    max_count = min(max_count, MAX_RUN)
    while waiting and len(run) < max_count:
        pending = waiting[0]
        if not pending.finished and pending.deadline > now:
            total += pending.size
            if run and (total > max_bytes or not may_share(pending)):
                break
            run.append(pending)
        waiting.popleft()
        if run and not may_share(run[0]):
            break
    return run


def start_run(
    run: Sequence[PendingSend],
    target: Target,
    connection: Connection,
    on_answer: Callable[[Answer], None],
    now: float,
) -> None:
    """Send *run* in one request, as a try of each.

    The answer may take as long as the most patient waits. Raises TransportError.
    """
    latest = now
    for pending in run:
        pending.target = target
        pending.tries += 1
        pending.sent_at = now
        pending.on_way = True
        if pending.deadline > latest:
            latest = pending.deadline
    opaque = connection.next_opaque()
    frame, body = frame_of(run, target.encoder, opaque)
    connection.start_frame(opaque, frame, on_answer, latest - now, body)


def frame_of(run: Sequence[PendingSend], encoder: SendEncoder, opaque: int) -> tuple[bytes, bytes]:
    """Return the frame of the request that carries *run*, and what follows it: the body of a
    batch.
    """
    first = run[0]
    if len(run) > 1:
        body = encode_batch([(one.flag, one.body, one.properties) for one in run])
        return encoder.batch_head(opaque, first.born_ms, BATCH_PROPERTIES, body), body
    if first.batch is not None:
        head = encoder.batch_head(opaque, first.born_ms, first.properties, first.body)
        return head, first.body
    return (
        encoder.single(
            opaque, first.born_ms, first.properties, first.body, first.sys_flag, first.flag
        ),
        b"",
    )


def results_of(
    run: Sequence[PendingSend], answer: Answer, target: Target
) -> list[SendResult] | OgiveError:
    """Return a result for each message of one request, or the error of all."""
    if not isinstance(answer, RemotingCommand):
        return answer
    result = read_answer(answer, target.queue, target.lane.address, run[0].key)
    if not isinstance(result, SendResult):
        return result
    return [result] if len(run) == 1 else split_result(result, [pending.key for pending in run])


class OrderedQueue(Inbox):
    """Messages for one queue, sent in the order of their acceptance.

    They wait in two places: what the loop has accepted, and behind it the inbox.
    """

    def __init__(
        self,
        target: Target,
        config: ProducerConfig,
        connector: Connector,
        publisher: "Publisher",
        inboxes: Inboxes,
    ) -> None:
        super().__init__(target.queue.topic)
        self._target = target
        self._config = config
        self._connector = connector
        self._publisher = publisher
        self._inboxes = inboxes
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[PendingSend] = deque()
        # on its way
        self._run: list[PendingSend] | None = None
        self._pausing = False

    @property
    def queues(self) -> Sequence[Target]:
        return (self._target,)

    @property
    def idle(self) -> bool:
        """Return True if nothing waits, and nothing is in flight."""
        return not (self.held or self.inbox or self.busy)

    @property
    def held(self) -> bool:
        """Return True if messages wait or are in flight that were accepted before the inbox's."""
        return self._run is not None or self._pausing or bool(self._waiting)

    def put(self, pending: PendingSend) -> None:
        """Send the message behind all that were accepted before it."""
        # accepted earlier
        while self.inbox:
            self._inboxes.launch(self, self.take)
        self._watch_and_send(pending)

    def take(self, pending: PendingSend) -> None:
        """Send what was formed from the front of the inbox."""
        pending.target, pending.pinned = self._target, True
        self._watch_and_send(pending)

    def _watch_and_send(self, pending: PendingSend) -> None:
        # until its outcome: it may wait behind others
        self._publisher.watch(pending)
        self._waiting.append(pending)
        self.pump()

    def drop_finished(self) -> None:
        """Forget the messages whose time was up."""
        self._waiting = deque(pending for pending in self._waiting if not pending.finished)
        if not self._waiting:
            self._target.lane.stalled.pop(self, None)
            if self.busy:
                self._loop.call_soon(self.pump)

    def pump(self) -> None:
        """Send the next run, if the last one has its answer."""
        if self._run is not None or self._pausing:
            return
        if not self._waiting:
            if self.busy:
                self._inboxes.drain(self)
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
        elif self.busy:
            # the time of all that waited was up
            self._inboxes.drain(self)

    def _answered(self, answer: Answer) -> None:
        run, self._run = self._run or [], None
        for pending in run:
            pending.on_way = False
        results = results_of(run, answer, self._target)
        if isinstance(results, OgiveError):
            self._failed(run, results)
            return
        for pending, result in zip(run, results, strict=True):
            pending.answer = answer
            self._publisher.succeed(pending, result)
        self.pump()

    def _failed(self, run: list[PendingSend], error: OgiveError) -> None:
        again: list[PendingSend] = []
        for pending in run:
            if pending.count > 1 and is_refusal(error) and not pending.finished:
                singles = self._publisher.split(pending)
                for single in singles:
                    self._publisher.watch(single)
                again += singles
                continue
            repeat = self._publisher.note_failure(pending, error)
            if len(run) > 1 and is_refusal(error):
                # one of them is refused: sending each alone shows which
                pending.alone = True
                again.append(pending)
            elif repeat and not pending.finished:
                again.append(pending)
            else:
                self._publisher.fail(pending)
        self._waiting.extendleft(reversed(again))
        if again and not is_final(error):
            self._pausing = True
            self._publisher.client.spawn(self._resume(error, again[0].tries), "send again")
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
# a message that goes alone is sent before one in the inbox that came at most so much earlier
TIE_S: Final = 0.005


class Accumulator:
    """Messages of one producer for one broker that need no order.

    A topic waits here with its messages, with those in its inbox, or with both.
    """

    def __init__(
        self,
        lane: Lane,
        config: ProducerConfig,
        watch: DeadlineWatch,
        publisher: "Publisher",
        inboxes: Inboxes,
    ) -> None:
        self._lane = lane
        self._config = config
        self._watch = watch
        self._publisher = publisher
        self._inboxes = inboxes
        self._loop = asyncio.get_running_loop()
        # requests; while anything waits there is at least one, whose answer lets it go
        self._on_way = 0
        self._waiting: dict[PendingTopic, deque[PendingSend]] = {}

    @property
    def has_room(self) -> bool:
        """Return True if one more request may be on its way."""
        return self._on_way < self._config.max_requests

    def expect(self, topic: PendingTopic) -> None:
        """Send what is in the topic's inbox as answers come in. There is no room now."""
        self._waiting.setdefault(topic, deque())

    def send(self, topic: PendingTopic, pending: PendingSend, connection: Connection) -> None:
        """Send the message to its target, or keep it for the next batch of its topic."""
        if self.has_room or not (may_share(pending) or pending.count > 1):
            assert pending.target is not None
            self.start([pending], pending.target, connection)
        else:
            # ended messages are not removed from here
            self._watch.add(pending)
            self._waiting.setdefault(topic, deque()).append(pending)

    def drop_finished(self) -> None:
        """Forget the messages whose time was up."""
        kept = {
            topic: deque(one for one in waiting if not one.finished)
            for topic, waiting in self._waiting.items()
        }
        self._waiting = {
            topic: waiting
            for topic, waiting in kept.items()
            if waiting or topic.busy or topic.inbox
        }

    def start(self, run: list[PendingSend], target: Target, connection: Connection) -> None:
        """Send *run* in one request."""
        target.sent += sum([pending.count for pending in run])
        try:
            start_run(
                run, target, connection, partial(self._answered, run, target), self._loop.time()
            )
        except TransportError as exc:
            self._failed(run, exc)
        else:
            self._on_way += 1

    def _answered(self, run: list[PendingSend], target: Target, answer: Answer) -> None:
        results = results_of(run, answer, target)
        if isinstance(results, OgiveError):
            self._failed(run, results)
        else:
            for pending, result in zip(run, results, strict=True):
                pending.on_way = False
                pending.answer = answer
                self._publisher.stored(pending, target, result)
        self._on_way -= 1
        if self._waiting:
            self._send_waiting()

    def _failed(self, run: list[PendingSend], error: OgiveError) -> None:
        for pending in run:
            pending.on_way = False
            # from now on each is sent alone: if one is refused, that shows which
            pending.alone = pending.alone or len(run) > 1
        if len(run) > 1 and is_refusal(error):
            self._place_again(run)
            return
        for pending in run:
            if pending.count > 1 and is_refusal(error) and not pending.finished:
                self._place_again(self._publisher.split(pending))
            elif not pending.finished:
                self._publisher.attempt_failed(pending, error)

    def _send_waiting(self) -> None:
        """Send what waited for an answer."""
        while self._waiting:
            connection = self._lane.ready()
            topic, waiting = next(iter(self._waiting.items()))
            targets = targets_on(topic, self._lane)
            if connection is None or not targets:
                del self._waiting[topic]
                self._place_again(waiting)
                self._inboxes.drain(topic)
            elif self.has_room:
                del self._waiting[topic]
                self._inboxes.expire(topic)
                if topic.inbox and not (
                    waiting and waiting[0].started <= topic.inbox[0]._since + TIE_S
                ):
                    run = [self._inboxes.form(topic)]
                else:
                    share = max(-(-len(waiting) // len(targets)), MIN_SHARE)
                    run = next_run(waiting, self._config.max_batch_bytes, self._loop.time(), share)
                if waiting or topic.inbox:
                    # behind the other topics
                    self._waiting[topic] = waiting
                if run:
                    self.start(run, min(targets, key=attrgetter("sent")), connection)
                if not topic.inbox:
                    self._inboxes.drain(topic)
            else:
                return

    def _place_again(self, waiting: Iterable[PendingSend]) -> None:
        for pending in waiting:
            if not pending.finished:
                self._watch.drop(pending)
                self._publisher.place(pending)
