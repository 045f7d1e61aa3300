"""Consumption in order: one call of a queue at a time, only under the broker's lock.

Source: ConsumeMessageOrderlyService.java, 5.3.

Behaviour
- The messages of a queue are given to the listener in offset order, one (or one batch) after the
  other; different queues at the same time.
- No call begins unless the queue is ours and its lock is fresh, by a clock that also runs while the
  process is stopped, or the machine sleeps. Each member of a broadcasting group has every queue for
  itself and needs no lock.
- A failed message makes its queue wait, 1 s unless the listener says otherwise, and is delivered
  again.
  Over the limit of retries it is sent to the dead-letter topic by way of the retry topic, and the
  queue moves on; there is no limit unless one is set. A broadcasting group has no dead letters:
  what is over the limit is logged and dropped.
- A queue that is given away waits for the running call; its result still counts.
- Without auto-commit what the listener has consumed stays in the queue until it answers COMMIT;
  after ROLLBACK, and with the queue's next owner, it is delivered again in order. It counts towards
  max_cached_messages: a listener that never commits gets nothing more.

Differs from Java
- A worker takes a run of messages at a time and goes on to the next without asking the loop, up to
  a time slice.
- Of a batch, the messages that the listener calls done are not delivered again.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ogive.client.consumer.group_client import MAX_RETRIES
from ogive.client.consumer.listener_call import call, call_async
from ogive.client.consumer.outcome import BROKEN, Failure, Verdict
from ogive.client.consumer.process_queue import ProcessQueue, QueueState, offsets_of
from ogive.client.consumer.rebalance import lease_time
from ogive.client.consumer.send_back import (
    CopyRefused,
    DeadLetters,
    log_skipped,
    send_to_dead_letters,
)
from ogive.client.consumer.subscription import MemberContext
from ogive.client.consumer.workers import Callers, make_workers
from ogive.client.listener import COMMIT, MAX_SUSPEND_S, MIN_SUSPEND_S, ROLLBACK, AnyListener
from ogive.errors import OgiveError
from ogive.model import MessageExt

log = logging.getLogger(__name__)

TURN_MESSAGES: Final = 256
TURN_S: Final = 0.05
LONG_TURN_S: Final = 0.2
"""Time after which the finished messages of a turn count before its end."""


@dataclass(frozen=True, slots=True)
class TurnResult:
    """Result of a turn: its first *done* messages succeeded; *failure* is about the batch behind
    them, or all are to be delivered again.

    *committed*: the last COMMIT is behind so many of them; None if there was none.
    """

    done: int
    failure: Failure | None = None
    committed: int | None = None
    rolled_back: bool = False


@dataclass(slots=True)
class TurnTally:
    """Answers of a turn, call by call."""

    done: int = 0
    committed: int | None = None

    def take(self, verdict: Verdict, count: int) -> TurnResult | None:
        """Add an answer about *count* messages. Return the result if it ends the turn."""
        if isinstance(verdict, Failure):
            return TurnResult(self.done, verdict, self.committed)
        self.done += count
        if verdict is ROLLBACK:
            return TurnResult(self.done, None, self.committed, rolled_back=True)
        if verdict is COMMIT:
            self.committed = self.done
        return None

    def result(self, failure: Failure | None = None) -> TurnResult:
        return TurnResult(self.done, failure, self.committed)


@dataclass(slots=True, eq=False)
class OrderlyTurn:
    """Messages of a queue for one worker, one batch after the other."""

    process_queue: ProcessQueue
    messages: list[MessageExt]
    tally: TurnTally = field(default_factory=TurnTally)
    counted: int = 0
    """Tally at the last time that it counted."""
    ended: bool = False
    """Its result has been counted."""


def pause_s(asked: float | None, usual: float) -> float:
    """Return the pause of a queue before its next try."""
    return min(MAX_SUSPEND_S, max(MIN_SUSPEND_S, usual if asked is None else asked))


class OrderlyService:
    """Calls of one orderly listener."""

    def __init__(self, group: MemberContext, listener: AnyListener) -> None:
        self._group = group
        self._listener = listener
        self._batch = listener.config.batch
        self._turn = TURN_MESSAGES // self._batch * self._batch or self._batch
        self._loop = asyncio.get_running_loop()
        self._paused: dict[ProcessQueue, asyncio.TimerHandle] = {}
        self._retrying: set[asyncio.Task[Any]] = set()
        self._dead_letters = DeadLetters(group.name)
        self._stopping = False
        # that wait or run
        self._turns = 0
        self._look: asyncio.TimerHandle | None = None
        self._broken = TurnResult(0, Failure(why=BROKEN))
        self._workers = make_workers(
            self._run,
            self._run_async,
            self._finished,
            is_async=listener.is_async,
            failed=self._broken,
            count=listener.config.threads,
            name=f"{group.name} {listener.config.topic}",
        )

    def start(self) -> None:
        self._workers.start()

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        self._dispatch(process_queue)

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        return process_queue.busy

    async def stop(self, timeout_s: float, callers: Callers | None) -> None:
        self._stopping = True
        if self._look is not None:
            self._look.cancel()
        for timer in self._paused.values():
            timer.cancel()
        self._paused.clear()
        deadline = self._loop.time() + timeout_s
        await self._workers.stop(timeout_s, callers)
        # calls that are abandoned: what their workers did before counts
        for _, turn in self._workers.running():
            self._count(turn)
        if self._retrying:
            await asyncio.wait(self._retrying, timeout=max(0.0, deadline - self._loop.time()))

    # --- in the workers ---------------------------------------------------------------------------

    def _run(self, turn: OrderlyTurn) -> TurnResult:
        tally = turn.tally
        for batch in self._batches(turn):
            end = tally.take(call(self._listener, batch, self._group.observer), len(batch))
            if end is not None:
                return end
        return tally.result()

    async def _run_async(self, turn: OrderlyTurn) -> TurnResult:
        tally = turn.tally
        for batch in self._batches(turn):
            end = tally.take(
                await call_async(self._listener, batch, self._group.observer), len(batch)
            )
            if end is not None:
                return end
        return tally.result()

    def _batches(self, turn: OrderlyTurn) -> Iterator[list[MessageExt]]:
        """Yield the messages behind the tally, batch by batch, as long as the queue is held and the
        time slice lasts.
        """
        process_queue, messages, tally = turn.process_queue, turn.messages, turn.tally
        slice_ends = time.monotonic() + TURN_S
        while tally.done < len(messages) and self._may_call(process_queue):
            yield messages[tally.done : tally.done + self._batch]
            if time.monotonic() > slice_ends:
                return

    def _may_call(self, process_queue: ProcessQueue) -> bool:
        return (
            process_queue.active
            and not self._stopping
            and lease_time(time.monotonic()) < process_queue.leased_until
        )

    # --- on the loop ------------------------------------------------------------------------------

    def _dispatch(self, process_queue: ProcessQueue) -> None:
        """Give the next run of messages to a worker, unless the queue is at work, waits, or is not
        ours (any more).
        """
        waiting = process_queue.count - len(process_queue.taken)
        if (
            process_queue.busy
            or process_queue in self._paused
            or waiting <= 0
            or not self._may_call(process_queue)
        ):
            return
        messages = process_queue.head(self._turn, len(process_queue.taken))
        # only what cannot be read is waiting, on its way to the dead letters
        if not messages:
            return
        process_queue.busy = True
        process_queue.taken = [*process_queue.taken, *messages]
        self._turns += 1
        self._workers.submit([OrderlyTurn(process_queue, messages)])
        self._look_soon()

    def _finished(self, results: Sequence[tuple[OrderlyTurn, TurnResult, float]]) -> None:
        now = self._loop.time()
        for turn, result, seconds in results:
            process_queue, messages = turn.process_queue, turn.messages
            turn.ended = True
            self._turns -= 1
            if result is self._broken:
                result = turn.tally.result(result.failure)
            failure, done = result.failure, result.done
            calls, failed = -(-result.done // self._batch), messages[:0]
            if failure is not None:
                calls, done = calls + 1, done + failure.done
                failed = messages[done : result.done + self._batch]
            self._group.statistics.of(process_queue.queue.topic).consumed(
                now, seconds, calls=calls, done=done, failed=len(failed)
            )
            finished, process_queue.taken = self._settle(
                process_queue.taken, len(messages), done, result
            )
            if finished:
                self._group.finish(process_queue, offsets_of(finished))
            if (
                result.rolled_back
                and process_queue.state is QueueState.ACTIVE
                and not self._stopping
            ):
                self._pause(process_queue, None)
            if failure is None or process_queue.dropped:
                self._end_turn(process_queue)
            else:
                task = self._group.spawn(
                    self._retry(process_queue, failed, failure), "retry in order"
                )
                self._retrying.add(task)
                task.add_done_callback(self._retrying.discard)

    def _look_soon(self) -> None:
        if self._look is None and not self._stopping:
            self._look = self._loop.call_later(LONG_TURN_S, self._look_for_long)

    def _look_for_long(self) -> None:
        """Count what long turns have finished, whose present calls may take for ever."""
        self._look = None
        begun_before = self._loop.time() - LONG_TURN_S
        for begun, turn in self._workers.running():
            if begun < begun_before:
                self._count(turn)
        if self._turns:
            self._look_soon()

    def _count(self, turn: OrderlyTurn) -> None:
        """Count what *turn* has finished so far; its result counts the rest."""
        process_queue, tally, done = turn.process_queue, turn.tally, turn.tally.done
        # it is still among the running ones for a moment
        if turn.ended or done == turn.counted:
            return
        turn.counted = done
        finished, _ = self._settle(process_queue.taken, len(turn.messages), done, tally.result())
        if finished:
            process_queue.taken = process_queue.taken[len(finished) :]
            self._group.finish(process_queue, offsets_of(finished))

    def _settle(
        self, taken: Sequence[MessageExt], count: int, done: int, result: TurnResult
    ) -> tuple[Sequence[MessageExt], Sequence[MessageExt]]:
        """Divide *taken* into finished messages, and consumed ones that are not committed. The last
        *count* are the turn's, *done* of them consumed.
        """
        before = len(taken) - count
        consumed = taken[: before + done]
        if self._listener.config.auto_commit:
            return consumed, ()
        end = 0 if result.committed is None else before + result.committed
        return consumed[:end], () if result.rolled_back else consumed[end:]

    def _end_turn(self, process_queue: ProcessQueue) -> None:
        process_queue.busy = False
        self._dispatch(process_queue)

    async def _retry(
        self, process_queue: ProcessQueue, failed: Sequence[MessageExt], failure: Failure
    ) -> None:
        """Give up on what failed too often, count the try of the others, and let the queue wait.

        The queue is busy meanwhile.
        """
        limit = self._listener.config.retries
        waits = False
        for message in failed:
            gives_up = failure.delay_level < 0 or message.reconsume_times >= limit
            if gives_up and await self._to_dead_letters(message, limit, failure.why):
                self._group.finish_message(process_queue, message)
                continue
            process_queue.replace(replace(message, reconsume_times=message.reconsume_times + 1))
            waits = True
        if waits and process_queue.state is QueueState.ACTIVE and not self._stopping:
            self._pause(process_queue, failure.suspend_s)
        self._end_turn(process_queue)

    async def _to_dead_letters(self, message: MessageExt, limit: int, why: str) -> bool:
        """Return True if the queue may move on."""
        if self._group.broadcast:
            log.error(
                "dropped %s/%d (id %s), which failed too often: %s is broadcasting",
                message.queue,
                message.queue_offset,
                message.id,
                self._group.name,
            )
            return True
        try:
            await send_to_dead_letters(self._group.calls, message, min(limit, MAX_RETRIES - 1))
        except CopyRefused as exc:
            log_skipped(message, exc, why)
            return True
        except OgiveError as exc:
            log.warning(
                "could not send %s/%d to the dead-letter topic, its queue waits: %s",
                message.queue,
                message.queue_offset,
                exc,
            )
            return False
        self._dead_letters.note(message, why)
        return True

    def _pause(self, process_queue: ProcessQueue, seconds: float | None) -> None:
        delay = pause_s(seconds, self._listener.config.suspend_s)
        self._paused[process_queue] = self._loop.call_later(delay, self._resume, process_queue)

    def _resume(self, process_queue: ProcessQueue) -> None:
        del self._paused[process_queue]
        self._dispatch(process_queue)
