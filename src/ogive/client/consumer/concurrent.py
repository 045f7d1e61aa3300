"""Consumption without order: every message by itself, on any worker.

Source: ConsumeMessageConcurrentlyService.java, 5.3.

Behaviour
- Messages are begun in the order in which they were pulled; a batch never mixes queues.
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
- At shutdown no new call begins, and running ones are waited for.
"""

import asyncio
import enum
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.listener_call import call, call_async
from ogive.client.consumer.outcome import BROKEN, Failure, Verdict
from ogive.client.consumer.process_queue import ProcessQueue
from ogive.client.consumer.send_back import Replier, returns
from ogive.client.consumer.subscription import MemberContext
from ogive.client.consumer.workers import make_workers
from ogive.client.listener import AnyListener, Reply
from ogive.model import MessageExt
from ogive.transport.event_loop import every

log = logging.getLogger(__name__)

# delay level of messages that ran into the consume timeout
EXPIRED_LEVEL: Final = 3

Batch = tuple[ProcessQueue, list[MessageExt]]


class NotBegun(enum.Enum):
    """Outcome of a message whose queue was given up before the listener was called."""

    NOT_BEGUN = enum.auto()


NOT_BEGUN: Final = NotBegun.NOT_BEGUN
Result = Verdict | NotBegun


@dataclass(slots=True)
class QueueResults:
    """Results of one queue since the loop last looked."""

    done: list[int] = field(default_factory=list)  # offsets
    # finished once their reply is out
    replied: int = 0
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
        broken: Result = Failure(why=BROKEN)
        self._workers = make_workers(
            self._run,
            self._run_async,
            self._finished,
            is_async=listener.is_async,
            failed=broken,
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
        if size == 1:
            self._workers.submit([(process_queue, [message]) for message in messages])
        else:
            self._workers.submit(
                [
                    (process_queue, list(messages[i : i + size]))
                    for i in range(0, len(messages), size)
                ]
            )

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        """Return True while a call of the queue runs, a message of it is being sent back, or a
        reply to one is on its way.
        """
        running = any(batch[0] is process_queue for _, batch in self._workers.running())
        self._workers.collect()
        return (
            running
            or self._failed_messages.is_busy(process_queue)
            or self._replier.is_busy(process_queue)
        )

    async def stop(self, timeout_s: float, caller: object) -> None:
        deadline = self._loop.time() + timeout_s
        await self._workers.stop(timeout_s, caller)
        if self._expiry is not None:
            self._expiry.cancel()
        await self._replier.close(max(0.0, deadline - self._loop.time()))
        await self._failed_messages.close(max(0.0, deadline - self._loop.time()))

    # --- in the workers ---------------------------------------------------------------------------

    def _run(self, batch: Batch) -> Result:
        return (
            call(self._listener, batch[1], self._group.observer) if batch[0].active else NOT_BEGUN
        )

    async def _run_async(self, batch: Batch) -> Result:
        return (
            await call_async(self._listener, batch[1], self._group.observer)
            if batch[0].active
            else NOT_BEGUN
        )

    # --- on the loop ------------------------------------------------------------------------------

    def _finished(self, results: Sequence[tuple[Batch, Result, float]]) -> None:
        tallies: defaultdict[ProcessQueue, QueueResults] = defaultdict(QueueResults)
        for (process_queue, messages), result, seconds in results:
            # what was not begun is not done, even if its queue is being released
            if result is NOT_BEGUN:
                continue
            tally = tallies[process_queue]
            tally.calls += 1
            tally.seconds += seconds
            if isinstance(result, Reply):
                tally.replied += 1
                self._replier.give(process_queue, messages[0], result)
            elif isinstance(result, Failure):
                self._failed(process_queue, messages, result, tally)
            else:
                tally.done += [message.queue_offset for message in messages]
        now = self._loop.time()
        for process_queue, tally in tallies.items():
            self._group.statistics.of(process_queue.queue.topic).consumed(
                now,
                tally.seconds,
                calls=tally.calls,
                done=len(tally.done) + tally.replied,
                failed=tally.failed,
            )
            self._group.finish(process_queue, tally.done)

    def _failed(
        self,
        process_queue: ProcessQueue,
        messages: Sequence[MessageExt],
        failure: Failure,
        tally: QueueResults,
    ) -> None:
        tally.done += [message.queue_offset for message in messages[: failure.done]]
        tally.failed += len(messages) - failure.done
        for message in messages[failure.done :]:
            self._failed_messages.give(process_queue, message, failure.delay_level, failure.why)

    async def expire(self) -> None:
        """Send back the messages whose calls have run for too long."""
        begun_before = self._loop.time() - self._timeout_s
        for begun, (process_queue, messages) in self._workers.running():
            if begun >= begun_before or process_queue.dropped:
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
