"""Messages that may go to any queue of a broker: a few requests on their way at a time, and the next one carries what came meanwhile.

While fewer than ``ProducerConfig.max_requests`` are on their way, each message leaves at once, alone. Beyond that messages wait, and leave
as batches, of one topic and to one queue each, as answers come in: the busier the broker, the larger the batches, which halves the
CPU of a message in the client and in the broker. Messages that cannot stand in a batch always leave at once.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial
from operator import attrgetter
from typing import Final, Protocol

from ogive.client.config import ProducerConfig
from ogive.client.outgoing import Lane, Outgoing, Target, Topic
from ogive.errors import BrokerError, OgiveError, ProtocolError, TransportError, broker_error
from ogive.model import MessageQueue, SendResult, SendStatus
from ogive.transport.connection import Connection
from ogive.wire.command import RemotingCommand
from ogive.wire.message import BatchItem, encode_batch

MAX_RUN: Final = 256
MIN_SHARE: Final = 16  # what waits is shared by the queues, but smaller batches are not worth it
BATCH_PROPERTIES: Final = b"WAIT\x01true\x02"
STORED: Final[dict[int, SendStatus]] = {status.value: status for status in SendStatus}


class Engine(Protocol):
    """What it needs of its publisher."""

    @property
    def config(self) -> ProducerConfig: ...
    def answered(self, outgoing: Outgoing, target: Target, answer: RemotingCommand | TransportError) -> None: ...
    def stored(self, outgoing: Outgoing, target: Target, result: SendResult) -> None: ...
    def attempt_failed(self, outgoing: Outgoing, error: OgiveError) -> None: ...
    def place(self, outgoing: Outgoing) -> None:
        """Choose a queue anew."""

    def targets_on(self, topic: Topic, lane: Lane) -> list[Target]:
        """The topic's queues on that broker; none if it has left."""

    def watch(self, outgoing: Outgoing) -> None:
        """End it at its deadline; ended messages are not taken back from here."""

    def unwatch(self, outgoing: Outgoing) -> None: ...


class Merger:
    """The way to one broker for the messages of one producer that need no order."""

    def __init__(self, lane: Lane, engine: Engine) -> None:
        self._lane = lane
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._on_way = 0  # requests; while anything waits there is at least one, whose answer lets it go
        self._waiting: dict[Topic, deque[Outgoing]] = {}

    def send(self, topic: Topic, outgoing: Outgoing, connection: Connection) -> None:
        """Send the message to its target, or keep it for the next batch of its topic."""
        if self._on_way < self._engine.config.max_requests or not may_share(outgoing):
            self._send_one(outgoing, connection)
        else:
            self._engine.watch(outgoing)
            self._waiting.setdefault(topic, deque()).append(outgoing)

    def drop_finished(self) -> None:
        """Forget those whose time was up."""
        kept = {topic: deque(one for one in waiting if not one.finished) for topic, waiting in self._waiting.items()}
        self._waiting = {topic: waiting for topic, waiting in kept.items() if waiting}

    # --- one message -------------------------------------------------------------------------------------------------

    def _send_one(self, outgoing: Outgoing, connection: Connection) -> None:
        target = outgoing.target
        assert target is not None
        outgoing.tries += 1
        outgoing.sent_at = self._loop.time()
        target.sent += 1
        opaque = connection.next_opaque()
        if outgoing.batch is None:
            frame = target.frames.single(opaque, outgoing.born_ms, outgoing.properties, outgoing.body, outgoing.sys_flag, outgoing.flag)
        else:
            frame = target.frames.batch(opaque, outgoing.born_ms, outgoing.properties, outgoing.body)
        try:
            connection.start_frame(opaque, frame, partial(self._one_answered, outgoing, target), outgoing.deadline - outgoing.sent_at)
        except TransportError as exc:
            self._engine.attempt_failed(outgoing, exc)
        else:
            self._on_way += 1

    def _one_answered(self, outgoing: Outgoing, target: Target, answer: RemotingCommand | TransportError) -> None:
        self._engine.answered(outgoing, target, answer)
        self._freed()

    # --- many --------------------------------------------------------------------------------------------------------

    def _freed(self) -> None:
        """A request has its answer: what waited may go."""
        self._on_way -= 1
        while self._waiting:
            connection = self._lane.ready()
            topic, waiting = next(iter(self._waiting.items()))
            targets = self._engine.targets_on(topic, self._lane)
            if connection is None or not targets:
                del self._waiting[topic]
                self._place_again(waiting)
            elif self._on_way < self._engine.config.max_requests:
                share = max(-(-len(waiting) // len(targets)), MIN_SHARE)
                run = next_run(waiting, self._engine.config.max_batch_bytes, self._loop.time(), share)
                del self._waiting[topic]
                if waiting:
                    self._waiting[topic] = waiting  # behind the other topics
                if run:
                    self._send_run(run, min(targets, key=attrgetter("sent")), connection)
            else:
                return

    def _place_again(self, waiting: Iterable[Outgoing]) -> None:
        for outgoing in waiting:
            if not outgoing.finished:
                self._engine.unwatch(outgoing)
                self._engine.place(outgoing)

    def _send_run(self, run: list[Outgoing], target: Target, connection: Connection) -> None:
        now = self._loop.time()
        target.sent += len(run)
        for outgoing in run:
            outgoing.target = target
            outgoing.tries += 1
            outgoing.sent_at = now
            outgoing.on_way = True
        opaque, first = connection.next_opaque(), run[0]
        if len(run) == 1:
            frame = target.frames.single(opaque, first.born_ms, first.properties, first.body, first.sys_flag, first.flag)
        else:
            body = encode_batch([BatchItem(one.flag, one.body, one.properties) for one in run])
            frame = target.frames.batch(opaque, first.born_ms, BATCH_PROPERTIES, body)
        try:
            connection.start_frame(opaque, frame, partial(self._run_answered, run, target), max(one.deadline for one in run) - now)
        except TransportError as exc:
            self._run_failed(run, exc)
        else:
            self._on_way += 1

    def _run_answered(self, run: list[Outgoing], target: Target, answer: RemotingCommand | TransportError) -> None:
        error = failure_of(answer, target)
        if error is None:
            assert isinstance(answer, RemotingCommand)
            try:
                results = read_results([outgoing.key for outgoing in run], answer, target.queue)
            except ProtocolError as exc:
                error = exc
            else:
                for outgoing, result in zip(run, results, strict=True):
                    outgoing.on_way = False
                    outgoing.answer = answer.ext_fields
                    self._engine.stored(outgoing, target, result)
        if error is not None:
            self._run_failed(run, error)
        self._freed()

    def _run_failed(self, run: list[Outgoing], error: OgiveError) -> None:
        """From now on each goes by itself: if one of them is refused, that shows which."""
        for outgoing in run:
            outgoing.on_way = False
            outgoing.alone = True
        if len(run) > 1 and isinstance(error, BrokerError) and not error.retry_other_broker:
            self._place_again(run)
            return
        for outgoing in run:
            if not outgoing.finished:
                self._engine.attempt_failed(outgoing, error)


# --- what ordered queues do alike ------------------------------------------------------------------------------------


def may_share(outgoing: Outgoing) -> bool:
    """Whether the message may travel in a batch: brokers take no compressed, delayed or retry-topic messages there."""
    if outgoing.alone or outgoing.batch is not None or outgoing.sys_flag or outgoing.topic.startswith("%"):
        return False
    return "DELAY\x01" not in outgoing.text and "WAIT\x01" not in outgoing.text and "TIMER_DEL" not in outgoing.text


def next_run(waiting: deque[Outgoing], max_bytes: int, now: float, max_count: int = MAX_RUN) -> list[Outgoing]:
    """Take from the front what one request can carry. One whose time is up is dropped: it ends by its deadline."""
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


def failure_of(answer: RemotingCommand | TransportError, target: Target) -> OgiveError | None:
    """Why what was sent is not stored; None if it is."""
    if not isinstance(answer, RemotingCommand):
        return answer
    return None if answer.code in STORED else broker_error(answer.code, answer.remark, target.lane.address)


def result_of(key: str, answer: RemotingCommand | TransportError, target: Target) -> SendResult | OgiveError:
    """What one message's try came to: where it is stored, or why nobody can say that it is."""
    error = failure_of(answer, target)
    if error is not None:
        return error
    assert isinstance(answer, RemotingCommand)
    try:
        return read_result(key, answer, target.queue)
    except ProtocolError as exc:
        return exc


def read_result(key: str, answer: RemotingCommand, queue: MessageQueue) -> SendResult:
    """The result of one message from a broker's answer that says it is stored. Raises ProtocolError."""
    ext = answer.ext_fields
    try:
        queue_id = int(ext["queueId"])
        if queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        return SendResult(STORED[answer.code], key, ext["msgId"], queue, int(ext["queueOffset"]), ext.get("recallHandle"))
    except (KeyError, ValueError) as exc:
        raise ProtocolError(f"the broker stored the message, but its answer cannot be read: {exc}") from None


def read_results(keys: list[str], answer: RemotingCommand, queue: MessageQueue) -> list[SendResult]:
    """One result for each of *keys*, which were stored together. Raises ProtocolError."""
    first = read_result(keys[0], answer, queue)
    if len(keys) == 1:
        return [first]
    ids = first.offset_id.split(",")
    if len(ids) != len(keys):
        ids = [first.offset_id] * len(keys)  # a topic that keeps batches whole has one id for all
    rows = enumerate(zip(keys, ids, strict=True))
    return [SendResult(first.status, key, offset_id, first.queue, first.queue_offset + i) for i, (key, offset_id) in rows]
