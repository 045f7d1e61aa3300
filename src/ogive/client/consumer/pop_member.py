"""Members that pop: the broker gives them messages on a lease, and they hold no queue.

Source: DefaultMQPushConsumerImpl.java popMessage, ConsumeMessagePopConcurrentlyService.java, 5.5.

Behaviour
- Each source, all queues of a topic on one broker or a queue that the broker assigns, is popped
  without waiting, after a full answer by up to MAX_POPS at a time. A source without messages is
  asked to report when it has some: so nothing is on its way to a member that waits, or closes.
- The messages of one queue in one answer are a process queue of their own. A finished message is
  acknowledged; acknowledgements share requests.
- A lease is renewed from half of its time on, as long as its message is not finished. What no
  listener call has begun with within the consume timeout is given back.
- A failed message comes again after Java's delay for its number of tries, or for the level that the
  listener asked for. After its last retry it is sent to the dead letters, and acknowledged; so is
  one that comes with more tries than allowed, before a listener is called: its calls may have ended
  the process each time.
- At the close what no listener call has begun with is given back.

Differs from Java
- Orderly listeners pop, too: a queue gives its next messages when all before are acknowledged. A
  failed message is delivered again here, and its lease renewed meanwhile.
- Java's client pops only when the broker says so, drops what waits for longer than the lease, and
  sends nothing to the dead letters.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.group_client import Outages
from ogive.client.consumer.leases import (
    Acknowledger,
    MessageLease,
    PopClient,
    Popped,
    PopSettings,
    now,
)
from ogive.client.consumer.member import MakeService, PushMember
from ogive.client.consumer.offset_store import RemoteOffsetStore
from ogive.client.consumer.process_queue import ProcessQueue, QueueState
from ogive.client.consumer.pull_loop import BUSY_PAUSE_S, FULL_LOOK_S, IDLE_PAUSE_S
from ogive.client.consumer.rebalance import LEAVE_TIMEOUT_S
from ogive.client.consumer.running_info import Statistics
from ogive.client.consumer.send_back import SendBack
from ogive.client.consumer.subscription import MemberContext, OnChange
from ogive.client.consumer.workers import Callers
from ogive.client.instance import ClientInstance
from ogive.client.listener import AnyListener, ListenerConfig
from ogive.errors import BrokerBusy, NotSupported, OgiveError
from ogive.model import MessageExt, MessageQueue
from ogive.wire.pop import MAX_POP_MESSAGES

log = logging.getLogger(__name__)

DELAYS_S: Final = (
    *(10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600),
    *(1200, 1800, 3600, 7200),
)
"""Delay before the next delivery, by the number of tries or the level that a listener asks for.

Source: DefaultMQPushConsumerImpl.java popDelayLevel, 5.5.
"""
MAX_POPS: Final = 4
"""Pops of one source at a time."""
BROKER_BUSY_PAUSE_S: Final = 3.0
"""Also if too many requests wait at the broker."""
RENEWED_AT_ONCE: Final = 32
TOO_OFTEN: Final = "it came with more tries than its listener allows"


def delay_s(message: MessageExt, delay_level: int) -> float:
    """Return the time until the next delivery of a failed message."""
    return DELAYS_S[min(delay_level or message.reconsume_times, len(DELAYS_S) - 1)]


@dataclass(slots=True, eq=False)
class PopSource:
    """Place to pop from, and what came from there and is not finished."""

    queue: MessageQueue
    held: set["PopQueue"] = field(default_factory=set)
    wanted: bool = True
    pops: int = 0
    waiting: asyncio.Task[bool] | None = None
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when messages are finished."""

    @property
    def count(self) -> int:
        return sum(one.count for one in self.held)


class PopQueue(ProcessQueue):
    """Messages of one queue that came with one pop, and their leases by offset."""

    __slots__ = ("leases", "popped_at", "source")

    def __init__(self, source: PopSource, queue: MessageQueue, popped: Sequence[Popped]) -> None:
        messages = [message for message, _ in popped]
        super().__init__(queue, messages[0].queue_offset)
        self.source = source
        self.popped_at = now()
        self.leases = {message.queue_offset: lease for message, lease in popped}
        self.put(messages, messages[-1].queue_offset + 1)
        self.note_leases()

    def note_leases(self) -> None:
        """Let no orderly call begin after the end of the first lease."""
        ends = [lease.ends for lease in self.leases.values()]
        self.leased_until = min(ends, default=self.leased_until)

    def release(self) -> None:
        """Begin no more calls; what runs still counts."""
        if self.state is QueueState.ACTIVE:
            self.move_to(QueueState.RELEASING)


@dataclass(slots=True, eq=False)
class PopContext(MemberContext):
    """State that the parts of a popping member share: a finished message is acknowledged."""

    acks: Acknowledger | None = None

    def finish(self, process_queue: ProcessQueue, offsets: Iterable[int]) -> None:
        if process_queue.dropped:
            return
        assert isinstance(process_queue, PopQueue)
        assert self.acks is not None
        offsets = offsets if isinstance(offsets, range) else list(offsets)
        for offset in offsets:
            lease = process_queue.leases.pop(offset, None)
            if lease is not None:
                self.acks.add(lease)
        process_queue.ack(offsets)
        source = process_queue.source
        if not process_queue.count:
            source.held.discard(process_queue)
        source.room.set()


class LeaseReturns(SendBack):
    """Failed messages of a listener: their lease ends when they are to come again.

    Those that failed too often become dead letters.
    """

    async def _send(
        self, process_queue: ProcessQueue, message: MessageExt, delay_level: int
    ) -> None:
        if delay_level < 0 or message.reconsume_times >= self._max_retries:
            await super()._send(process_queue, message, -1)
            return
        assert isinstance(process_queue, PopQueue)
        lease = process_queue.leases.pop(message.queue_offset, None)
        # behind its end the message is delivered again already; a change would add another delivery
        if lease is None or lease.has_ended():
            return
        calls = self._group.calls
        assert isinstance(calls, PopClient)
        try:
            await calls.change(lease, delay_s(message, delay_level))
        except OgiveError as exc:
            log.warning(
                "%s/%d comes again when its lease ends, at once: %s",
                message.queue,
                message.queue_offset,
                exc,
            )

    async def bury(self, message: MessageExt, why: str) -> None:
        """Send *message* to the dead letters. Raises OgiveError."""
        queue = ProcessQueue(message.queue, message.queue_offset)
        await super()._send(queue, message, -1)
        self._dead_letters.note(message, why)


class PopService:
    """Pops of one member, and the renewal of their leases.

    *deliver* gets the messages of a queue, *is_busy* says whether a listener works on some.
    """

    def __init__(
        self,
        group: PopContext,
        calls: PopClient,
        config: ConsumerConfig,
        deliver: Callable[[PopQueue, Sequence[MessageExt]], None],
        is_busy: Callable[[ProcessQueue], bool],
        listeners: Mapping[str, AnyListener],
    ) -> None:
        self._group, self._calls, self._config = group, calls, config
        self._deliver, self._is_busy, self._listeners = deliver, is_busy, listeners
        self._loop = asyncio.get_running_loop()
        self.sources: dict[MessageQueue, PopSource] = {}
        # those with unfinished messages that are popped no more
        self._left: set[PopSource] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._outages = Outages()
        self._soon = asyncio.Event()
        self._may_pop = asyncio.Event()
        self._may_pop.set()
        self._stopping = False
        self._returns = LeaseReturns(group, 0, config.send_back_retry_s, lambda *_: None)

    # --- who pops what ----------------------------------------------------------------------------

    def soon(self) -> None:
        """Ask soon who pops what."""
        self._soon.set()

    def suspend(self) -> None:
        self._may_pop.clear()

    def resume(self) -> None:
        self._may_pop.set()

    async def run(self) -> None:
        """Follow what the broker assigns, and the brokers of the topics."""
        while not self._stopping:
            self._soon.clear()
            complete = await self._assign()
            period = self._config.rebalance_period_s if complete else self._config.rebalance_pause_s
            try:
                async with asyncio.timeout(period):
                    await self._soon.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(self._config.rebalance_pause_s / 10)

    async def _assign(self) -> bool:
        """Pop from what is this member's now. Return False if that is not known of all topics."""
        complete, starts = True, self._group.state.starts
        # not what the group has not joined yet, or is leaving
        for topic in [one for one in self._listeners if one in starts]:
            try:
                # the topic's route comes first: it names the broker to ask
                places = await self._calls.sources(topic)
                wanted = set(await self._calls.assigned(topic) or places)
            except OgiveError as exc:
                log.debug(
                    "group %s does not know where to pop %s: %s", self._group.name, topic, exc
                )
                complete = False
                continue
            if topic not in starts or self._stopping:
                continue
            for queue in [one for one in self.sources if one.topic == topic and one not in wanted]:
                self._leave(queue)
            for queue in wanted - self.sources.keys():
                self.sources[queue] = source = PopSource(queue)
                self._spawn(self._pop_while_wanted(source), f"pop {queue}")
        return complete

    def leave(self, topic: str) -> None:
        """Pop no more from *topic*."""
        for queue in [one for one in self.sources if one.topic == topic]:
            self._leave(queue)

    def _leave(self, queue: MessageQueue) -> None:
        source = self.sources.pop(queue)
        source.wanted = False
        if source.waiting is not None:
            source.waiting.cancel()
        self._left.add(source)
        self._outages.ends(queue)

    def _spawn(self, work: Any, name: str) -> None:
        task = self._group.spawn(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- popping ----------------------------------------------------------------------------------

    async def _pop_while_wanted(self, source: PopSource, *, waits: bool = True) -> None:
        """Pop again and again. Without *waits*: until an answer is not full."""
        source.pops += 1
        # the same for all tries of one request: an answer that was lost is given again
        attempt_id = secrets.token_hex(16)
        try:
            while source.wanted:
                await self._may_pop.wait()
                if not source.wanted:
                    return
                if not self._has_room(source):
                    if not waits:
                        return
                    await self._await_room(source)
                    continue
                if self._stopping:
                    return
                count = await self._pop_once(source, attempt_id)
                if count is None:
                    continue
                attempt_id = secrets.token_hex(16)
                if count < MAX_POP_MESSAGES and not waits:
                    return
                if not count:
                    await self._await_messages(source)
                elif count == MAX_POP_MESSAGES and source.pops < MAX_POPS:
                    self._spawn(
                        self._pop_while_wanted(source, waits=False), f"pop more of {source.queue}"
                    )
        finally:
            source.pops -= 1

    def _has_room(self, source: PopSource) -> bool:
        return source.count < self._config.max_popped_messages and (
            not source.count or self._bytes() < self._config.max_total_bytes
        )

    async def _await_room(self, source: PopSource) -> None:
        """Wait until messages are finished; others may make room unseen."""
        source.room.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FULL_LOOK_S):
                await source.room.wait()

    def _bytes(self) -> int:
        return sum(held.bytes for source in self._all() for held in source.held)

    def _all(self) -> list[PopSource]:
        return [*self.sources.values(), *self._left]

    def unfinished(self) -> list[PopQueue]:
        """Return what was popped and is not finished. Any thread may ask."""
        return [held for source in self._all() for held in list(source.held)]

    async def _pop_once(self, source: PopSource, attempt_id: str) -> int | None:
        """Pop once. Return the number of messages, or None if it failed."""
        config, queue, asked_at = self._config, source.queue, self._loop.time()
        listener = self._listeners[queue.topic].config
        settings = PopSettings(config.pop_invisible_s, listener.start, listener.orderly)
        try:
            popped, answer = await self._calls.pop(
                queue,
                self._group.state.topics[queue.topic],
                settings,
                attempt_id=attempt_id if listener.orderly else None,
            )
        except OgiveError as exc:
            await self._after_failure(queue, exc)
            return None
        if self._outages.ends(queue):
            log.info("pops of %s from %s succeed again", queue.topic, queue.broker_name)
        if popped:
            at = self._loop.time()
            self._group.statistics.of(queue.topic).pulled(at, at - asked_at, len(popped))
        self._take(source, popped)
        return len(answer.messages)

    async def _await_messages(self, source: PopSource) -> None:
        """Wait until the broker reports messages, the time is over, or *source* is left."""
        queue, listener = source.queue, self._listeners.get(source.queue.topic)
        if listener is None or not source.wanted:
            return
        asked_at = self._loop.time()
        source.waiting = task = asyncio.ensure_future(
            self._calls.await_message(
                queue,
                self._group.state.topics[queue.topic],
                self._config.pull_suspend_s,
                orderly=listener.config.orderly,
            )
        )
        try:
            await asyncio.wait((task,))
        finally:
            source.waiting = None
            task.cancel()
        if task.cancelled():
            return
        failure = task.exception()
        if isinstance(failure, OgiveError):
            await self._after_failure(queue, failure)
        elif failure is not None:
            raise failure
        elif self._loop.time() - asked_at < IDLE_PAUSE_S:
            # others may have been faster to pop it, and be so again
            await asyncio.sleep(BUSY_PAUSE_S)

    async def _after_failure(self, queue: MessageQueue, exc: OgiveError) -> None:
        level = logging.ERROR if isinstance(exc, NotSupported) else logging.WARNING
        level = level if self._outages.begins(queue, str(exc)) else logging.DEBUG
        log.log(level, "pop of %s failed, trying again: %s", queue, exc)
        is_busy = isinstance(exc, BrokerBusy)
        await asyncio.sleep(BROKER_BUSY_PAUSE_S if is_busy else self._config.pull_retry_s)

    def _take(self, source: PopSource, popped: Sequence[Popped]) -> None:
        """Deliver messages, those of a queue together; what comes too late is given back."""
        if not source.wanted or self._stopping:
            self._give_back([lease for _, lease in popped])
            return
        places: dict[tuple[int, int], list[Popped]] = {}
        for one in popped:
            handle = one[1].handle
            places.setdefault((handle.flag, handle.queue_id), []).append(one)
        limit = self._listeners[source.queue.topic].config.retries
        for (_, queue_id), found in places.items():
            found.sort(key=lambda one: one[0].queue_offset)
            queue = MessageQueue(source.queue.topic, source.queue.broker_name, queue_id)
            held = PopQueue(source, queue, found)
            source.held.add(held)
            spent = [message for message, _ in found if message.reconsume_times > limit]
            if spent:
                self._spawn(self._bury(held, spent), "send to the dead letters")
            else:
                self._deliver(held, [message for message, _ in found])

    async def _bury(self, held: PopQueue, spent: Sequence[MessageExt]) -> None:
        """Send messages that were tried too often to the dead letters, and deliver the others.

        One that no broker takes comes again when its lease ends.
        """
        for message in spent:
            try:
                await self._returns.bury(message, TOO_OFTEN)
            except OgiveError as exc:
                log.error(
                    "could not send %s/%d (id %s), which was tried too often, to the dead letters; "
                    "it comes again: %s",
                    message.queue,
                    message.queue_offset,
                    message.id,
                    exc,
                )
                held.leases.pop(message.queue_offset, None)
            self._group.finish_message(held, message)
        if not held.source.wanted:
            # the others are given back
            held.release()
        elif left := held.head(held.count):
            self._deliver(held, left)

    # --- leases -----------------------------------------------------------------------------------

    async def renew(self) -> None:
        """Renew what is due, and let go of what is finished or too old. A periodic job."""
        by_broker: dict[str, list[tuple[PopQueue, MessageLease]]] = {}
        for source in self._all():
            due = by_broker.setdefault(source.queue.broker_name, [])
            for held in list(source.held):
                due += [(held, lease) for lease in self._due(source, held)]
        self._left = {source for source in self._left if source.held}
        # a broker that does not answer holds up no other
        await asyncio.gather(*map(self._renew_all, by_broker.values()))

    async def _renew_all(self, due: Sequence[tuple[PopQueue, MessageLease]]) -> None:
        for at in range(0, len(due), RENEWED_AT_ONCE):
            await asyncio.gather(
                *(self._renew(held, lease) for held, lease in due[at : at + RENEWED_AT_ONCE])
            )

    def _due(self, source: PopSource, held: PopQueue) -> Sequence[MessageLease]:
        """Return the leases to renew now; forget *held* if there are none any more."""
        if not held.leases and not held.count:
            source.held.discard(held)
            return ()
        listener = self._listeners.get(held.queue.topic)
        if (
            listener is None
            or any(lease.has_ended() for lease in held.leases.values())
            or (
                held.active
                and not listener.config.orderly
                and now() - held.popped_at > listener.config.consume_timeout_s
                and not self._is_busy(held)
            )
        ):
            held.release()
        if not held.active and not self._is_busy(held):
            self._drop(source, held)
            return ()
        if held.active and listener is not None and listener.config.orderly:
            # it may have stopped at the end of a lease that it does not need any more
            held.note_leases()
            self._deliver(held, ())
        soon = now() + self._config.pop_invisible_s / 2
        return [lease for lease in held.leases.values() if lease.ends < soon]

    def _drop(self, source: PopSource, held: PopQueue) -> None:
        source.held.discard(held)
        leases = list(held.leases.values())
        held.leases.clear()
        held.move_to(QueueState.DROPPED)
        self._give_back(leases)

    async def _renew(self, held: PopQueue, lease: MessageLease) -> None:
        # another member has it, it is finished meanwhile, or is being renewed: a change behind the
        # acknowledgement, which waits for that one, would have the message delivered again
        if lease.has_ended() or lease not in held.leases.values() or lease.changing is not None:
            return
        try:
            await self._calls.change(lease, self._config.pop_invisible_s)
        except OgiveError as exc:
            log.warning("could not renew the lease of a message of %s: %s", held.queue, exc)
        held.note_leases()

    def _give_back(self, leases: Sequence[MessageLease]) -> None:
        """Let others have messages that no listener call has begun with."""
        open_ones = [lease for lease in leases if not lease.has_ended()]
        if open_ones:
            self._spawn(self._return_all(open_ones), "give back")

    async def _return_all(self, leases: Sequence[MessageLease]) -> None:
        for at in range(0, len(leases), RENEWED_AT_ONCE):
            results = await asyncio.gather(
                *(
                    self._calls.change(lease, 0.0, as_try=False)
                    for lease in leases[at : at + RENEWED_AT_ONCE]
                ),
                return_exceptions=True,
            )
            for result in results:
                if isinstance(result, OgiveError):
                    log.debug("a message comes again when its lease ends: %s", result)
                elif isinstance(result, BaseException):
                    raise result

    # --- the end ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Begin no pop any more. What is on its way is given back."""
        self._stopping = True
        for queue in list(self.sources):
            self._leave(queue)
        self._may_pop.set()

    async def close(self, timeout_s: float) -> None:
        """Give back what is left, and send the acknowledgements. Brokers that do not answer hold
        this up by one and a half times *timeout_s* at most.
        """
        assert self._group.acks is not None
        # the pops in flight, which do not wait: what they bring is given back
        await self._end(timeout_s / 2)
        for source in self._all():
            for held in list(source.held):
                self._drop(source, held)
        await asyncio.gather(self._group.acks.close(timeout_s), self._end(timeout_s))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _end(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(self._tasks)

    def abandon(self) -> None:
        """Begin no call any more: the client has failed."""
        self._stopping = True
        for source in self._all():
            for held in source.held:
                held.release()


class PopMember(PushMember):
    """Member that pops, and calls listeners with what comes."""

    def __init__(
        self,
        instance: ClientInstance,
        listeners: Sequence[AnyListener],
        config: ConsumerConfig,
        make_service: MakeService,
        on_change: OnChange | None = None,
    ) -> None:
        super().__init__(instance, listeners, config, make_service, on_change)
        context = self._context
        assert isinstance(context, PopContext)
        self._pops = PopService(
            context,
            self._pop_calls,
            config,
            self._delivery.submit,
            self._delivery.is_busy,
            self._listeners,
        )

    def _context_of(
        self, instance: ClientInstance, first: ListenerConfig, config: ConsumerConfig
    ) -> MemberContext:
        self._pop_calls = calls = PopClient(instance, first.group)

        def spawn(work: Any) -> "asyncio.Task[None]":
            return instance.spawn(work, f"{first.group}: acknowledge")

        return PopContext(
            first.group,
            instance,
            calls,
            RemoteOffsetStore(calls),
            Statistics(asyncio.get_running_loop().time()),
            returns=LeaseReturns,
            acks=Acknowledger(calls, spawn, config.pull_retry_s),
        )

    def begin(self) -> None:
        """Pop from now on."""
        context = self._context
        self._jobs = [
            context.spawn(self._pops.run(), "who pops"),
            context.every(self._config.pop_invisible_s / 6, self._pops.renew, "renew leases"),
        ]

    async def _leave(self, *ending: Awaitable[None]) -> None:
        self._pops.stop()
        await asyncio.gather(*ending)
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self._pops.close(LEAVE_TIMEOUT_S)
        await self._context.store.close()
        await self._context.instance.unregister_consumer(self)

    def abandon(self) -> None:
        self._pops.abandon()

    def _cached(self) -> Sequence[ProcessQueue]:
        return self._pops.unfinished()

    def _join(self, topic: str, listener: ListenerConfig) -> None:
        self._state.starts[topic] = listener.start
        self._pops.soon()

    async def remove(self, topic: str, callers: Callers | None = None) -> None:
        self._pops.leave(topic)
        del self._state.starts[topic]
        await self._end_calls(topic, callers)
        await self._forget(topic)
        # what its listener left is given back
        await self._pops.renew()

    def suspend(self) -> None:
        self._pops.suspend()

    def resume(self) -> None:
        self._pops.resume()

    def on_consumer_ids_changed(self) -> None:
        self._pops.soon()

    def _consume_type(self) -> str:
        return "CONSUME_POP"

    def holdings(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        return ()

    @property
    def assignment(self) -> Mapping[MessageQueue, Any]:
        """Places that this member pops from; queue id -1 is all queues of that broker."""
        return self._pops.sources

    async def lag(self) -> dict[MessageQueue, int]:
        """Return the number of messages of each queue that no member has popped yet."""
        calls = self._context.calls
        queues = [queue for topic in self.topics for queue in await calls.queues(topic)]

        async def left(queue: MessageQueue) -> int:
            end, at = await asyncio.gather(calls.max_offset(queue), calls.query_offset(queue))
            return max(0, end - (at or 0))

        return dict(zip(queues, await asyncio.gather(*map(left, queues)), strict=True))

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Do nothing: the broker itself goes on elsewhere."""
