"""Consumption without order: every message by itself, on any worker.

Source: ConsumeMessageConcurrentlyService.java, 5.3.

Behaviour
- A worker takes a slice of neighbouring messages, and calls the listener with one (or one batch)
  after the other. Slices are begun in the order in which they were pulled; none mixes queues. They
  are short enough for SLICE_S at the speed of the last calls: one call, if those were slower. The
  rest behind a call that takes longer than expected goes to other workers.
- A slice that was begun is finished, its rest as well, while its queue is given up, and in the
  first second of a shutdown: later messages of the queue may be done, and its next owner would
  repeat those.
- Progress is the lowest unfinished offset of a queue, whatever order the calls end in.
- A failed message is sent back and counts as finished once a broker has taken it; in a broadcasting
  group it is logged and dropped.
- A message that was answered with a Reply is finished once the reply is out, or could not be sent:
  see ``send_back.py``.
- A call that runs longer than the consume timeout: its messages are sent back once, and what it
  returns in the end is ignored.

Differs from Java
- Workers report results together, one wake-up of the loop for all that ended since the last.
- Timeouts are looked for every second at most, not once per timeout.
- At shutdown no new slice begins, and running ones are waited for.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.listener_call import call, call_async
from ogive.client.consumer.outcome import BROKEN, Failure, Verdict
from ogive.client.consumer.process_queue import ProcessQueue, offsets_of
from ogive.client.consumer.send_back import Replier, returns
from ogive.client.consumer.subscription import MemberContext
from ogive.client.consumer.workers import Callers, make_workers
from ogive.client.listener import AnyListener, Reply
from ogive.model import MessageExt
from ogive.transport.event_loop import every

log = logging.getLogger(__name__)

# delay level of messages that ran into the consume timeout
EXPIRED_LEVEL: Final = 3

# calls of one slice, by the speed of those before
SLICE_S: Final = 0.0005
MAX_SLICE_CALLS: Final = 128
# of a slice that has run for so long the rest goes to other workers
LONG_SLICE_S: Final = 0.02
# the rest of a slice is taken away from a call that has not returned for so long
STUCK_S: Final = 0.05
# after a stop, no call of a slice that was begun begins later: the listener may have become slow
FINISH_S: Final = 1.0

Batch = Sequence[MessageExt]


@dataclass(slots=True, eq=False)
class Slice:
    """Messages of a queue for one worker, one call after the other.

    The worker adds results at the end, and the loop takes them from the front. Both take *waiting*
    from the front: a batch goes to one of them.
    """

    process_queue: ProcessQueue
    waiting: deque[Batch]
    current: Batch = ()
    """Messages of the call that runs, begun at *begun* of the loop's clock."""
    begun: float = 0.0
    done: list[MessageExt] = field(default_factory=list)
    """Messages of calls that succeeded."""
    others: list[tuple[Batch, Verdict]] = field(default_factory=list)
    """Calls that ended in another way."""
    is_rest: bool = False
    """It was part of a slice that another worker has begun."""

    def results(self) -> tuple[list[MessageExt], list[tuple[Batch, Verdict]]]:
        """Return what has ended since the last time."""
        done, others = self.done[:], self.others[:]
        del self.done[: len(done)]
        del self.others[: len(others)]
        return done, others

    def take_rest(self) -> list[Any]:
        """Return what the worker has not begun; it gets none of it."""
        rest: list[Any] = []
        while True:
            try:
                rest.append(self.waiting.popleft())
            except IndexError:
                return rest


@dataclass(slots=True)
class QueueResults:
    """Results of one queue since the loop last looked."""

    # offsets
    done: list[Sequence[int]] = field(default_factory=list)
    finished: int = 0
    failed: int = 0
    calls: int = 0
    seconds: float = 0.0


class ConcurrentService:
    """Calls of one concurrent listener."""

    def __init__(self, group: MemberContext, listener: AnyListener, config: ConsumerConfig) -> None:
        self._group = group
        self._listener = listener
        self._batch = listener.config.batch
        self._timeout_s = listener.config.consume_timeout_s
        self._loop = asyncio.get_running_loop()
        self._expiry: asyncio.Task[Any] | None = None
        self._slice_calls = 1
        # seconds of a call in the fastest slice of each of the last reports
        self._fastest: deque[float] = deque(maxlen=4)
        # that are not reported yet, and have more than one call
        self._long: set[Slice] = set()
        # of slices that were begun, and wait for a worker
        self._rests: set[Slice] = set()
        self._look: asyncio.TimerHandle | None = None
        self._stopping = False
        self._workers = make_workers(
            self._run,
            self._run_async,
            self._finished,
            is_async=listener.is_async,
            failed=False,
            count=listener.config.threads,
            name=f"{group.name} {listener.config.topic}",
        )
        self._failed_messages = returns(group, listener, config, self.submit)
        self._replier = Replier(group)

    def start(self) -> None:
        self._workers.start()
        period = min(1.0, self._timeout_s / 4)
        self._expiry = self._group.spawn(
            every(period, self.expire, name="consume timeouts", first_after_s=period),
            "consume timeouts",
        )

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        size = self._batch
        waiting: Sequence[Any] = messages
        if size > 1:
            waiting = [messages[i : i + size] for i in range(0, len(messages), size)]
        calls = self._slice_calls
        slices = [
            Slice(process_queue, deque(waiting[i : i + calls]))
            for i in range(0, len(waiting), calls)
        ]
        if calls > 1:
            self._long.update(slices)
            self._look_soon()
        self._workers.submit(slices)

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        """Return True while a call of the queue runs, a message of it is being sent back, or a
        reply to one is on its way.
        """
        # first: a rest that is not there any more runs, or has run
        waits = any(rest.process_queue is process_queue for rest in tuple(self._rests))
        of_queue = [one for _, one in self._workers.running() if one.process_queue is process_queue]
        running = waits or bool(of_queue)
        self._workers.collect()
        self._report(of_queue)
        return (
            running
            or self._failed_messages.is_busy(process_queue)
            or self._replier.is_busy(process_queue)
        )

    async def stop(self, timeout_s: float, callers: Callers | None) -> None:
        deadline = self._loop.time() + timeout_s
        self._stopping = True
        if self._look is not None:
            self._look.cancel()
        finish = self._loop.call_later(FINISH_S, self._begin_no_more)
        try:
            await self._workers.stop(timeout_s, callers, keep=lambda piece: piece.is_rest)
        finally:
            finish.cancel()
            self._begin_no_more()
        # calls that are abandoned: what their workers did before counts
        self._report(one for _, one in self._workers.running())
        if self._expiry is not None:
            self._expiry.cancel()
        await self._replier.close(max(0.0, deadline - self._loop.time()))
        await self._failed_messages.close(max(0.0, deadline - self._loop.time()))

    # --- in the workers ---------------------------------------------------------------------------
    # Two loops that differ only in the await: a call for a step of them would be one per message.

    def _run(self, piece: Slice) -> bool:
        """Return True: all that the slice has to report stands in it."""
        listener, observer, clock = self._listener, self._group.observer, time.monotonic
        process_queue, waiting, done = piece.process_queue, piece.waiting, piece.done
        single = self._batch == 1
        piece.begun = now = clock()
        ends = now + LONG_SLICE_S
        begins = self._begins(piece)
        while begins and (process_queue.active or not process_queue.dropped):
            try:
                next_one: Any = waiting.popleft()
            except IndexError:
                # none is left, or the loop took the rest
                break
            piece.current = batch = (next_one,) if single else next_one
            verdict = call(listener, batch, observer)
            if verdict is None:
                done += batch
            else:
                piece.others.append((batch, verdict))
            piece.current = ()
            piece.begun = now = clock()
            if now > ends:
                self._give_back(piece)
        return True

    async def _run_async(self, piece: Slice) -> bool:
        """Do as ``_run`` does, with an async listener."""
        listener, observer, clock = self._listener, self._group.observer, self._loop.time
        process_queue, waiting, done = piece.process_queue, piece.waiting, piece.done
        single = self._batch == 1
        worker = asyncio.current_task()
        assert worker is not None
        piece.begun = now = clock()
        ends = now + LONG_SLICE_S
        begins = self._begins(piece)
        while begins and (process_queue.active or not process_queue.dropped):
            try:
                next_one: Any = waiting.popleft()
            except IndexError:
                break
            piece.current = batch = (next_one,) if single else next_one
            # a cancellation that a call has left behind
            while worker.cancelling():
                worker.uncancel()
            verdict = await call_async(listener, batch, observer)
            if verdict is None:
                done += batch
            else:
                piece.others.append((batch, verdict))
            piece.current = ()
            piece.begun = now = clock()
            if now > ends:
                self._give_back(piece)
        if len(done) > 1:
            await asyncio.sleep(0)
        return True

    def _begins(self, piece: Slice) -> bool:
        self._rests.discard(piece)
        return piece.is_rest or (piece.process_queue.active and not self._stopping)

    def _give_back(self, piece: Slice) -> None:
        """Let other workers have the rest, before all that came later."""
        rests = [
            Slice(piece.process_queue, deque((batch,)), is_rest=True) for batch in piece.take_rest()
        ]
        if rests:
            self._rests.update(rests)
            self._workers.submit_first(rests)

    # --- on the loop ------------------------------------------------------------------------------

    def _finished(self, results: Sequence[tuple[Slice, bool, float]]) -> None:
        fastest = LONG_SLICE_S
        for piece, was_run, seconds in results:
            if not was_run:
                # its worker was cancelled from outside, or a hook raised
                piece.others.append((piece.current, Failure(why=BROKEN)))
                piece.current = ()
                self._give_back(piece)
            calls = len(piece.others) + -(-len(piece.done) // self._batch)
            if calls:
                fastest = min(fastest, seconds / calls)
        self._long.difference_update([piece for piece, _, _ in results])
        # threads wait for each other: the fastest of several slices says what a call takes
        self._fastest.append(max(fastest, 1e-9))
        self._slice_calls = max(
            1, min(int(SLICE_S / min(self._fastest)), 8 * self._slice_calls, MAX_SLICE_CALLS)
        )
        self._report((piece for piece, _, _ in results), sum(one[2] for one in results))

    def _report(self, pieces: Iterable[Slice], seconds: float = 0.0) -> None:
        """Record what has ended in the slices since the last time, in *seconds*."""
        found: dict[ProcessQueue, QueueResults] = {}
        for piece in pieces:
            done, others = piece.results()
            # what was not begun is not done, even if its queue is being released
            if not done and not others:
                continue
            tally = found.setdefault(piece.process_queue, QueueResults())
            tally.calls += len(others) + -(-len(done) // self._batch)
            self._finish_messages(tally, done)
            for messages, verdict in others:
                if isinstance(verdict, Reply):
                    tally.finished += 1
                    self._replier.give(piece.process_queue, messages[0], verdict)
                elif isinstance(verdict, Failure):
                    self._failed(piece.process_queue, messages, verdict, tally)
        now, calls = self._loop.time(), sum(tally.calls for tally in found.values())
        for process_queue, tally in found.items():
            self._group.statistics.of(process_queue.queue.topic).consumed(
                now,
                seconds * tally.calls / calls,
                calls=tally.calls,
                done=tally.finished,
                failed=tally.failed,
            )
            for offsets in tally.done or [()]:
                self._group.finish(process_queue, offsets)

    @staticmethod
    def _finish_messages(tally: QueueResults, messages: Sequence[MessageExt]) -> None:
        if messages:
            tally.finished += len(messages)
            tally.done.append(offsets_of(messages))

    def _failed(
        self,
        process_queue: ProcessQueue,
        messages: Sequence[MessageExt],
        failure: Failure,
        tally: QueueResults,
    ) -> None:
        self._finish_messages(tally, messages[: failure.done])
        tally.failed += len(messages) - failure.done
        for message in messages[failure.done :]:
            self._failed_messages.give(process_queue, message, failure.delay_level, failure.why)

    def _begin_no_more(self) -> None:
        for piece in (*self._rests, *(one for _, one in self._workers.running())):
            piece.take_rest()

    def _look_soon(self) -> None:
        if self._look is None and not self._stopping:
            self._look = self._loop.call_later(STUCK_S, self._look_for_stuck)

    def _look_for_stuck(self) -> None:
        """Give what is behind a call that does not return to other workers, and report what is
        before it.
        """
        self._look = None
        before = self._loop.time() - STUCK_S
        for _, piece in self._workers.running():
            if piece.begun < before:
                self._give_back(piece)
                self._report([piece])
        if self._long:
            self._look_soon()

    async def expire(self) -> None:
        """Send back the messages whose calls have run for too long."""
        begun_before = self._loop.time() - self._timeout_s
        for _, piece in self._workers.running():
            process_queue, messages = piece.process_queue, piece.current
            if piece.begun >= begun_before or process_queue.dropped:
                continue
            late = [
                message
                for message in messages
                if message.queue_offset in process_queue
                and not self._failed_messages.is_under_way(process_queue, message.queue_offset)
            ]
            for message in late:
                log.warning(
                    "listener %s has run for more than %g s on %s/%d: the call counts as failed",
                    self._listener.name,
                    self._timeout_s,
                    message.queue,
                    message.queue_offset,
                )
                self._failed_messages.give(
                    process_queue, message, EXPIRED_LEVEL, f"no result within {self._timeout_s:g} s"
                )
            if late and self._group.observer is not None:
                self._group.observer.expired(late)
