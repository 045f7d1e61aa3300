"""Listeners in one task of a Spark job: the messages of some queue ranges, by the rules of a push
consumer.

Behaviour
- A range is done when each of its messages was consumed, sent back or put into the dead letters,
  and the broker has acknowledged that.
- Progress within a range is committed to the group every second. The next attempt at the range (a
  task that Spark tries again, a batch that is repeated after a crash) continues there, so it
  repeats at most the messages since then.
- Orderly: a range is processed only under the broker's lock of its queue, with a name that no other
  attempt has. An attempt that finds the queue locked waits; a killed worker holds the lock until
  its lease at the broker ends (60 s).
- If a broker is away, the task waits for it, up to AWAY_S; then the task fails and Spark tries it
  again.
- A range counts as done, and the log names the missing part, if its broker has lost it, if its
  topic has lost the queue, or if the topic has no listener any more.
- A message whose body does not match its checksum is skipped once it is certain that the master has
  stored it so, see ``client/consumer/delivery.py``. Until then the task waits, as for a
  broker that is away; so it does at bytes that are not a message, which are never skipped.

Differs from a push consumer
- The batch decides the queues: there is no rebalance, and no heartbeat.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from ogive.client.config import ClientConfig
from ogive.client.consumer.concurrent import ConcurrentService
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.delivery import ConsumeService, CorruptMessages, TopicDelivery
from ogive.client.consumer.filter import select
from ogive.client.consumer.group_client import GroupClient
from ogive.client.consumer.listener_call import bound
from ogive.client.consumer.offset_store import RemoteOffsetStore
from ogive.client.consumer.orderly import OrderlyService
from ogive.client.consumer.process_queue import ProcessQueue
from ogive.client.consumer.rebalance import lease_time
from ogive.client.consumer.running_info import Statistics
from ogive.client.consumer.subscription import MemberContext
from ogive.client.instance import ClientInstance
from ogive.client.listener import AnyListener
from ogive.client.routes import MASTER_ID
from ogive.client.trace import CallEnd
from ogive.errors import BrokerError, GroupNotExist, OgiveError
from ogive.model import MessageExt, MessageQueue, PullResult, PullStatus, retry_topic
from ogive.spark.patience import repeat
from ogive.spark.ranges import QueueRange
from ogive.transport.event_loop import every
from ogive.wire.bodies.clients import SubscriptionData
from ogive.wire.message import DamagedMessage, NoRecord

log = logging.getLogger(__name__)

T = TypeVar("T")

AWAY_S: Final = 120.0
# brokers keep a lock for 60 s
LEASE_WAIT_S: Final = 90.0
LOOK_S: Final = 0.25
PROGRESS_S: Final = 1.0
CLOSE_S: Final = 10.0


class QueueTaken(OgiveError):
    """Error for an orderly queue that another attempt has locked, or whose lock was lost: the task
    fails and is tried again.
    """


@dataclass(frozen=True, slots=True)
class Done:
    """The result for one range; *begun* is where this attempt began, after the messages that an
    earlier attempt had finished.
    """

    wanted: QueueRange
    begun: int
    calls: int
    failed: int


@dataclass(slots=True)
class CallCounts:
    """Counter of a listener's calls.

    Workers call it on their threads, expired() is called from the loop; each change is atomic.
    """

    # queue, number of failed messages
    ends: list[tuple[MessageQueue, int]] = field(default_factory=list)
    # queue, offset of messages that exceeded the consume timeout
    late: set[tuple[MessageQueue, int]] = field(default_factory=set)
    # queue of each damaged message
    skipped: list[MessageQueue] = field(default_factory=list)

    def begun(self, messages: Sequence[MessageExt]) -> Any:
        return None

    def ended(
        self, call: Any, messages: Sequence[MessageExt], end: CallEnd, done: int, why: str = ""
    ) -> None:
        if (messages[0].queue, messages[-1].queue_offset) not in self.late:
            self.ends.append((messages[0].queue, len(messages) - done))

    def expired(self, messages: Sequence[MessageExt]) -> None:
        self.late |= {(message.queue, message.queue_offset) for message in messages}
        self.ends.append((messages[0].queue, len(messages)))

    def of(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the number of calls, and of failed messages: in calls, and damaged ones."""
        failed = [count for place, count in self.ends if place == queue]
        return len(failed), sum(failed) + self.skipped.count(queue)


class Consuming:
    """One attempt of one task. All listeners are of one group."""

    def __init__(
        self, instance: ClientInstance, listeners: Sequence[AnyListener], config: ConsumerConfig
    ) -> None:
        listeners = [bound(one, instance.namespace) for one in listeners]
        name = listeners[0].config.group
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._orderly = listeners[0].config.orderly
        self._instance = instance
        self._calls = GroupClient(instance, name)
        self._store = RemoteOffsetStore(self._calls)
        self._tally = CallCounts()
        self._group = MemberContext(
            name,
            instance,
            self._calls,
            self._store,
            Statistics(self._loop.time()),
            observer=self._tally,
        )
        retries = retry_topic(name)
        self._subscriptions = self._group.state.topics
        self._subscriptions |= {one.config.topic: one.config.subscription(0) for one in listeners}
        self._subscriptions[retries] = SubscriptionData(topic=retries, version=0)
        self._delivery = TopicDelivery(self._group, listeners[0], config)
        for one in listeners:
            self._delivery.services[one.config.topic] = self._service(one)

    def _service(self, listener: AnyListener) -> ConsumeService:
        return (
            OrderlyService(self._group, listener)
            if self._orderly
            else ConcurrentService(self._group, listener, self._config)
        )

    async def run(self, ranges: Sequence[QueueRange]) -> list[Done]:
        """Process all ranges at once.

        Raises OgiveError for the first that cannot be finished, after all work has ended.
        """
        self._delivery.start()
        telling = self._group.spawn(
            every(
                PROGRESS_S,
                lambda: self._store.persist(list(self._group.state.held)),
                name="progress",
                first_after_s=PROGRESS_S,
            ),
            "progress",
        )
        work = [asyncio.ensure_future(self._consume(wanted)) for wanted in ranges]
        try:
            return list(await asyncio.gather(*work))
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            left = list(self._group.state.held.values())
            for process_queue in left:
                self._group.state.drop(process_queue)
            await self._delivery.stop(CLOSE_S, None)
            telling.cancel()
            for process_queue in left if self._orderly else ():
                # else its call still runs: the lock keeps the others away until its lease ends
                if not process_queue.busy:
                    await self._unlock(process_queue.queue)

    # --- one queue --------------------------------------------------------------------------------

    async def _consume(self, wanted: QueueRange) -> Done:
        queue = wanted.queue
        if queue.topic not in self._subscriptions:
            name = self._group.name
            log.warning(
                "%s: skipped %d to %d: group %s no longer has a listener for them",
                queue,
                wanted.start,
                wanted.end,
                name,
            )
            return Done(wanted, wanted.end, 0, 0)
        queues = await self._insist(
            f"the route of {queue.topic}",
            lambda: self._instance.routes.subscribe_queues(queue.topic),
        )
        if queue not in queues and any(one.broker_name == queue.broker_name for one in queues):
            log.error(
                "%s is no longer a queue of its topic: skipped %d to %d",
                queue,
                wanted.start,
                wanted.end,
            )
            return Done(wanted, wanted.end, 0, 0)
        leased_until = await self._lock(wanted) if self._orderly else float("inf")
        begun = min(max(wanted.start, await self._committed(wanted)), wanted.end)
        if begun > wanted.start:
            log.info("%s: %d to %d were already consumed", queue, wanted.start, begun)
        process_queue = ProcessQueue(queue, begun, leased_until)
        self._group.state.hold(process_queue)
        renewing = (
            self._group.spawn(self._renew(process_queue), f"lock {queue}")
            if self._orderly
            else None
        )
        try:
            end = await self._fill(process_queue, wanted)
            while process_queue.count:
                self._check(process_queue)
                await process_queue.changed(LOOK_S)
            # a queue whose lock is lost is empty, too
            self._check(process_queue)
            if end >= begun:
                self._store.update(queue, end)
                await self._insist(
                    f"progress of {queue}",
                    lambda: self._store.commit({queue: max(end, self._store.read(queue) or 0)}),
                )
        finally:
            if renewing is not None:
                renewing.cancel()
        if self._group.state.is_held(process_queue):
            self._group.state.drop(process_queue)
        if self._orderly:
            await self._unlock(queue)
        return Done(wanted, begun, *self._tally.of(queue))

    async def _fill(self, process_queue: ProcessQueue, wanted: QueueRange) -> int:
        """Pull the whole range, no faster than it is consumed.

        Return its end, which is earlier than planned if the broker has lost the rest.
        """
        queue, config = wanted.queue, self._config
        subscription = self._subscriptions[queue.topic]
        empty_since: float | None = None
        corrupt = CorruptMessages(self._group, queue, config.pull_retry_s, log)
        while process_queue.pull_offset < wanted.end:
            self._check(process_queue)
            if (
                process_queue.count > config.max_cached_messages
                or process_queue.bytes > config.max_cached_bytes
            ):
                await process_queue.changed(LOOK_S)
                continue
            at = process_queue.pull_offset
            result = await self._read(process_queue, wanted, corrupt)
            following = min(result.next_offset, wanted.end)
            if result.status is PullStatus.OFFSET_ILLEGAL and following > at:
                log.warning(
                    "%s: %d to %d were deleted before they were consumed", queue, at, following
                )
            if following > at:
                empty_since = None
                ours = [
                    one
                    for one in select(result.messages, subscription)
                    if one.queue_offset < wanted.end
                ]
                self._delivery.submit(process_queue, process_queue.put(ours, following))
                continue
            empty_since = self._loop.time() if empty_since is None else empty_since
            if self._loop.time() - empty_since > AWAY_S:
                end = await self._insist(
                    f"the end of {queue}", functools.partial(self._calls.max_offset, queue)
                )
                if end > at:
                    raise OgiveError(
                        f"{queue} holds messages up to {end}, but its broker answers with none "
                        f"from {at} on"
                    )
                log.error(
                    "%s ends at %d, but the batch was planned up to %d: its broker lost messages, "
                    "or its topic was recreated. The missing messages are skipped",
                    queue,
                    end,
                    wanted.end,
                )
                return end
            await asyncio.sleep(LOOK_S)
        return wanted.end

    async def _read(
        self, process_queue: ProcessQueue, wanted: QueueRange, corrupt: CorruptMessages
    ) -> PullResult:
        """Pull once. If the next message is stored damaged, return no messages but the offset after
        it.
        """
        queue, at, config = wanted.queue, process_queue.pull_offset, self._config
        deadline = float("inf")
        while True:
            pull = functools.partial(
                self._calls.pull,
                queue,
                at,
                broker_id=MASTER_ID,
                max_messages=corrupt.limit(min(config.pull_batch_size, wanted.end - at)),
                max_bytes=config.pull_batch_bytes,
                subscription=self._subscriptions[queue.topic],
                post_subscription=True,
                suspend_s=0,
            )
            try:
                result = await self._insist(f"messages of {queue}", pull)
            except (DamagedMessage, NoRecord) as exc:
                now = self._loop.time()
                offset = corrupt.after(at, exc, now)
                if offset is not None:
                    self._tally.skipped.append(queue)
                    return PullResult(PullStatus.NO_MATCHED_MSG, offset, 0, 0)
                deadline = min(deadline, now + AWAY_S)
                if now > deadline:
                    raise corrupt.final(at, exc) from None
                await asyncio.sleep(corrupt.pause_s)
                self._check(process_queue)
            else:
                corrupt.was_right()
                return result

    def _check(self, process_queue: ProcessQueue) -> None:
        if process_queue.dropped or lease_time(self._loop.time()) >= process_queue.leased_until:
            raise QueueTaken(f"the lock of {process_queue.queue} was lost")

    async def _committed(self, wanted: QueueRange) -> int:
        """Return the group's offset, or 0.

        An offset behind the end of the queue belongs to a queue that was deleted.
        """

        async def ask() -> int:
            try:
                offset = await self._calls.query_offset(wanted.queue, zero_if_young=False)
            except GroupNotExist:
                return 0
            if offset is None or offset <= wanted.start:
                return 0
            return (
                offset
                if offset <= wanted.end or offset <= await self._calls.max_offset(wanted.queue)
                else 0
            )

        return await self._insist(f"the offset of {wanted.queue}", ask)

    # --- locks ------------------------------------------------------------------------------------

    async def _lock(self, wanted: QueueRange) -> float:
        """Return the ``lease_time`` until which this attempt holds the queue."""
        deadline = lease_time(self._loop.time()) + LEASE_WAIT_S
        waited = False
        while True:
            asked_at = lease_time(self._loop.time())
            granted, _ = await self._insist(
                f"the lock of {wanted.queue}", lambda: self._calls.lock([wanted.queue])
            )
            if wanted.queue in granted:
                return asked_at + self._config.lock_lease_s
            if asked_at > deadline:
                raise QueueTaken(
                    f"{wanted.queue} is locked by another member of the group for "
                    f"{LEASE_WAIT_S:.0f} s"
                )
            if not waited:
                log.info(
                    "%s is locked: waiting until its holder releases it, or its lease ends",
                    wanted.queue,
                )
            waited = True
            await asyncio.sleep(LOOK_S)

    async def _renew(self, process_queue: ProcessQueue) -> None:
        while True:
            await asyncio.sleep(self._config.lock_renew_s / 4)
            asked_at = lease_time(self._loop.time())
            try:
                granted, refused = await self._calls.lock([process_queue.queue])
            except OgiveError as exc:
                log.warning("could not renew the lock of %s: %s", process_queue.queue, exc)
                continue
            if granted and asked_at < process_queue.leased_until:
                process_queue.leased_until = asked_at + self._config.lock_lease_s
            elif refused and self._group.state.is_held(process_queue):
                self._group.state.drop(process_queue)

    async def _unlock(self, queue: MessageQueue) -> None:
        try:
            await self._calls.unlock([queue])
        except OgiveError as exc:
            log.warning("%s stays locked until its lease ends: %s", queue, exc)

    async def _insist(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat *call* as long as its failure may be temporary."""

        def passes(failure: OgiveError) -> bool:
            if isinstance(failure, DamagedMessage | NoRecord):
                return False
            return (
                not isinstance(failure, BrokerError)
                or failure.retry_other_broker
                or failure.refresh_route
            )

        return await repeat(call, passes, AWAY_S, pause_s=LOOK_S, what=what)


async def consume(
    client: ClientConfig,
    listeners: Sequence[AnyListener],
    ranges: Sequence[QueueRange],
    config: ConsumerConfig | None = None,
) -> list[Done]:
    """Process *ranges* with a client of its own, whose id no other attempt has."""
    async with ClientInstance(replace(client, instance_name=None)) as instance:
        return await Consuming(instance, listeners, config or ConsumerConfig()).run(ranges)
