"""One pull in flight for each queue, for as long as the queue is held.

Source: DefaultMQPushConsumerImpl.java pullMessage, 5.3.

Behaviour
- A pull waits up to 15 s at the broker for a message (long poll).
- A queue is not pulled while too much of it, of its topic or of the whole group is unfinished:
  count, bytes, or (of the queue) distance from the lowest to the highest message; nor while the
  consumer is suspended.
- Brokers filter tags by hash, and SQL as they can; what they let through is filtered again.
  Filtered messages count as finished.
- After an error the queue is pulled again a second later; its loop ends only with the queue. If its
  broker could not be reached, the broker is asked first whether others have gone on in the queue
  meanwhile.
- An offset that the broker does not have is corrected, with a line in the log.
- A message whose body does not match its checksum reaches nobody: it is read again, and passed over
  once that is how it is stored; see ``delivery.py``. Bytes that are no message at all are
  never passed over: the queue waits in front of them.

Differs from Java
- A pull carries no progress along: see RemoteOffsetStore.
- A slave's word that an offset is not there is not believed: it may only be behind. The master is
  asked instead.
- A queue that is full waits for its consumers, not for the next look 50 ms later.
- Java does not look at checksums of bodies when it pulls, and hands over what came.
"""

import asyncio
import logging
import time
from typing import Final

from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.delivery import CorruptMessages, Receiver
from ogive.client.consumer.filter import select
from ogive.client.consumer.group_client import Outages
from ogive.client.consumer.process_queue import ProcessQueue
from ogive.client.consumer.rebalance import Rebalancer
from ogive.client.consumer.subscription import MemberContext, QueueObserver
from ogive.client.routes import MASTER_ID
from ogive.errors import BrokerBusy, OgiveError, SubscriptionOutdated, TransportError
from ogive.model import PullResult, PullStatus
from ogive.wire.bodies.clients import SubscriptionData
from ogive.wire.message import DamagedMessage, NoRecord

log = logging.getLogger(__name__)

BUSY_PAUSE_S: Final = 0.02  # after FLOW_CONTROL
# after an answer that came at once and led nowhere: a broker without long polls, or an odd one
IDLE_PAUSE_S: Final = 0.05
# when the group's total is used up, other queues may make room unseen
FULL_LOOK_S: Final = 0.05
FULL_REPORT_EVERY: Final = 1000


def moved(result: PullResult, asked: int, group: str) -> str:
    """Return the reason why a broker sends *group* to another offset than *asked*, and that
    offset.
    """
    first, end, there = result.min_offset, result.max_offset, result.next_offset
    if first <= asked <= end:
        return (
            f"the broker sends {group} from {asked} to {there}: the group was reset (the broker "
            f"holds {first} to {end})"
        )
    return f"the broker holds {first} to {end} and not {asked}; the group goes on at {there}"


class PullService(QueueObserver):
    """Pulls into the process queues of one group, each as long as it is held.

    *receiver* gets what is new in a queue; *rebalancer* puts a queue at another offset, and settles
    a doubt about it (``ProcessQueue.doubted``).
    """

    def __init__(
        self,
        group: MemberContext,
        config: ConsumerConfig,
        receiver: Receiver,
        rebalancer: Rebalancer,
    ) -> None:
        self._group = group
        self._state = group.state
        self._config = config
        self._receiver = receiver
        self._rebalancer = rebalancer
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[ProcessQueue, asyncio.Task[None]] = {}
        # topics of which messages came that the filter does not want
        self._unwanted: set[str] = set()
        self._outages = Outages()
        self._times_full = 0
        self._may_pull = asyncio.Event()
        self._may_pull.set()
        self._state.observers.append(self)

    def taken(self, process_queue: ProcessQueue) -> None:
        task = self._group.spawn(
            self._pull_while_held(process_queue), f"pull {process_queue.queue}"
        )
        self._tasks[process_queue] = task
        task.add_done_callback(lambda _: self._ended(process_queue))

    def _ended(self, process_queue: ProcessQueue) -> None:
        self._tasks.pop(process_queue, None)
        self._outages.ends(process_queue.queue)

    def left(self, process_queue: ProcessQueue) -> None:
        """Cancel the pull in flight: its answer is not used."""
        task = self._tasks.get(process_queue)
        if task is not None:
            task.cancel()

    async def stop_all(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def suspend(self) -> None:
        self._may_pull.clear()

    def resume(self) -> None:
        self._may_pull.set()

    # --- one queue --------------------------------------------------------------------------------

    async def _pull_while_held(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        corrupt = CorruptMessages(self._group, queue, self._config.pull_retry_s, log)
        while process_queue.active:
            await self._may_pull.wait()
            look_again_s = self._full(process_queue)
            if look_again_s is not None:
                self._report_full(process_queue)
                await process_queue.changed(look_again_s)
                continue
            try:
                if process_queue.doubted:
                    await self._rebalancer.verify(process_queue)
                    continue
                await self._pull_once(process_queue, corrupt)
            except (DamagedMessage, NoRecord) as exc:
                await self._after_corrupt(process_queue, exc, corrupt)
            except OgiveError as exc:
                level = logging.WARNING if self._outages.begins(queue, str(exc)) else logging.DEBUG
                log.log(level, "pull of %s failed, trying again: %s", queue, exc)
                await self._after_failure(process_queue, exc)
            else:
                if self._outages.ends(queue):
                    log.info("pulls of %s from %s succeed again", queue.topic, queue.broker_name)

    def _full(self, process_queue: ProcessQueue) -> float | None:
        """Return None if the queue may be pulled, else the seconds after which to check again at
        the latest.
        """
        config = self._config
        if (
            process_queue.paused
            or process_queue.count > config.max_cached_messages
            or process_queue.bytes > config.max_cached_bytes
            or process_queue.span > config.max_span
        ):
            return 1.0
        if process_queue.count and (
            sum(other.bytes for other in self._state.held.values()) > config.max_total_bytes
            or self._topic_full(process_queue.queue.topic)
        ):
            return FULL_LOOK_S
        return None

    def _topic_full(self, topic: str) -> bool:
        messages, bytes_ = self._config.max_topic_messages, self._config.max_topic_bytes
        if messages is None and bytes_ is None:
            return False
        held = [other for queue, other in self._state.held.items() if queue.topic == topic]
        return (messages is not None and sum(other.count for other in held) > messages) or (
            bytes_ is not None and sum(other.bytes for other in held) > bytes_
        )

    def _report_full(self, process_queue: ProcessQueue) -> None:
        """Log a full queue, once in FULL_REPORT_EVERY times: a consumer slower than its producers
        is full all the time.

        The first time is no warning: every backlog is more than a pull.
        """
        self._times_full += 1
        if self._times_full % FULL_REPORT_EVERY == 1:
            log.log(
                logging.INFO if self._times_full == 1 else logging.WARNING,
                "%s is not pulled until some messages are finished: it holds %d, of %d bytes, %d "
                "offsets apart (flow control, %d times)",
                process_queue.queue,
                process_queue.count,
                process_queue.bytes,
                process_queue.span,
                self._times_full,
            )

    async def _pull_once(self, process_queue: ProcessQueue, corrupt: CorruptMessages) -> None:
        config, asked_at, offset = self._config, self._loop.time(), process_queue.pull_offset
        queue = process_queue.queue
        process_queue.pulled_at_ms = time.time_ns() // 1_000_000
        result = await self._group.calls.pull(
            queue,
            offset,
            broker_id=process_queue.suggested_broker_id,
            max_messages=corrupt.limit(config.pull_batch_size),
            max_bytes=config.pull_batch_bytes,
            subscription=self._state.topics[queue.topic],
            post_subscription=self._group.polled,
            suspend_s=config.pull_suspend_s,
        )
        corrupt.was_right()
        process_queue.stuck_at = None
        if not process_queue.active or process_queue.doubted:
            return
        process_queue.suggested_broker_id = result.suggested_broker_id
        process_queue.end_offset = result.max_offset
        if result.status is PullStatus.OFFSET_ILLEGAL:
            await self._go_to(process_queue, result)
            return
        wanted = self._take(process_queue, result)
        if result.status is PullStatus.FOUND:
            now = self._loop.time()
            self._group.statistics.of(queue.topic).pulled(now, now - asked_at, wanted)
        if result.next_offset == offset and self._loop.time() - asked_at < IDLE_PAUSE_S:
            await asyncio.sleep(IDLE_PAUSE_S)

    def _take(self, process_queue: ProcessQueue, result: PullResult) -> int:
        """Accept the messages that are ours, and return their number."""
        if result.next_offset < process_queue.pull_offset:
            log.warning(
                "%s: the broker moved back from offset %d to %d",
                process_queue.queue,
                process_queue.pull_offset,
                result.next_offset,
            )
        subscription = self._state.topics[process_queue.queue.topic]
        wanted = select(result.messages, subscription)
        if len(wanted) < len(result.messages):
            self._report_unwanted(subscription)
        fresh = process_queue.put(wanted, result.next_offset)
        if fresh:
            self._receiver.submit(process_queue, fresh)
        elif not process_queue.count:
            # nothing of it was for us: that is progress too
            self._group.finish(process_queue, ())
        return len(wanted)

    def _report_unwanted(self, subscription: SubscriptionData) -> None:
        # once for each topic
        level = logging.DEBUG if subscription.topic in self._unwanted else logging.WARNING
        self._unwanted.add(subscription.topic)
        log.log(
            level,
            "the broker sends %s messages of %s that do not match %s: all members of a group "
            "must have the same subscriptions, or messages are lost",
            self._group.name,
            subscription.topic,
            subscription.expression,
        )

    async def _after_corrupt(
        self,
        process_queue: ProcessQueue,
        failure: DamagedMessage | NoRecord,
        corrupt: CorruptMessages,
    ) -> None:
        """Skip the message, or have it read again."""
        if not process_queue.active:
            return
        now = self._loop.time()
        offset = corrupt.after(process_queue.pull_offset, failure, now)
        if offset is not None:
            self._group.statistics.of(process_queue.queue.topic).consumed(
                now, 0.0, calls=0, done=0, failed=1
            )
            self._take(process_queue, PullResult(PullStatus.NO_MATCHED_MSG, offset, 0, 0))
            return
        process_queue.stuck_at = corrupt.stuck_at
        process_queue.suggested_broker_id = MASTER_ID
        await asyncio.sleep(corrupt.pause_s)

    async def _go_to(self, process_queue: ProcessQueue, result: PullResult) -> None:
        there = result.next_offset
        # past what is here: that is dropped
        was_reset = result.min_offset <= there <= result.max_offset and process_queue.count
        if there == process_queue.pull_offset and not was_reset:
            if result.min_offset <= there <= result.max_offset:
                log.info("%s: the group was reset to %d, where it is", process_queue.queue, there)
            else:
                log.warning(
                    "%s: the broker refused offset %d and named the same offset to continue at",
                    process_queue.queue,
                    there,
                )
            await asyncio.sleep(self._config.pull_retry_s)
            return
        log.warning(
            "%s: %s",
            process_queue.queue,
            moved(result, process_queue.pull_offset, self._group.name),
        )
        # it may send us back and forth
        await asyncio.sleep(IDLE_PAUSE_S)
        if process_queue.active:
            await self._rebalancer.go_to(process_queue, result.next_offset)

    async def _after_failure(self, process_queue: ProcessQueue, exc: OgiveError) -> None:
        process_queue.suggested_broker_id = 0
        process_queue.doubted |= isinstance(exc, TransportError)
        if isinstance(exc, SubscriptionOutdated):
            await self._group.calls.heartbeat()
        await asyncio.sleep(
            BUSY_PAUSE_S if isinstance(exc, BrokerBusy) else self._config.pull_retry_s
        )
