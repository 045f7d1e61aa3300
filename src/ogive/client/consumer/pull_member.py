"""Queues of one pull consumer: pulled ahead, returned by polls, committed.

Source: DefaultLitePullConsumerImpl.java, AssignedMessageQueue.java, 5.3.

Behaviour
- Topics: a member of the group, whose queues change as members come and go. Without topics: the
  queues that ``assign`` names, no member.
- Each queue is pulled ahead, one pull at a time, up to the limits of ConsumerConfig; what a poll
  has handed out counts until the next one.
- With auto-commit what a poll hands out is finished when the next poll is called, or the consumer
  is closed in good order. The progress of a queue is its lowest unfinished message; it goes to the
  broker each persist_period_s, and when the queue is given up.
- A message that cannot be decompressed is handed out as it is (``is_compressed``), with an error in
  the log.
- A seek, or an offset that the broker does not have, replaces the whole state of the queue: nothing
  old can come back.

Differs from Java
- A poll gathers messages of all queues that have some, up to the asked number, not one pull's
  answer.
- Java counts a batch as consumed when it is returned, so that a crash loses it; here it is
  delivered again.
- A clean close commits; Java's does not.
- A paused queue hands out nothing, also not what was pulled before.
- An offset that cannot be learned is not replaced by any other: the queue waits (topics), or
  ``assign`` raises.
- A consumer of assigned queues sends no heartbeats: as a member it would be given queues that it
  does not read.
- PULL_MESSAGE, not LITE_PULL_MESSAGE: the answers are the same, and brokers before 4.9 know it.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.filter import subscription, validate_filter
from ogive.client.consumer.group_client import GroupClient
from ogive.client.consumer.member import GroupMember
from ogive.client.consumer.offset_store import RemoteOffsetStore
from ogive.client.consumer.process_queue import ProcessQueue, QueueState, offsets_of
from ogive.client.consumer.rebalance import Begin, difference
from ogive.client.consumer.running_info import Statistics
from ogive.client.consumer.subscription import MemberContext, OnChange, QueueObserver
from ogive.client.instance import ClientInstance
from ogive.client.listener import Start, is_async, validate_start
from ogive.errors import IllegalStateError, InvalidOption
from ogive.model import TOOLS_GROUP, MessageExt, MessageQueue, validate_group, validate_topic
from ogive.wire.bodies.clients import SubscriptionData
from ogive.wire.message import measure


class Prefetch(QueueObserver):
    """Pulled messages that were not returned yet, by queue, and those that the last ``take``
    returned.

    Takes the place of a listener in a member of a group. Nothing is returned of a queue that is
    given up or paused. The process queues bound the size: both kinds of messages count there as
    unfinished.
    """

    def __init__(self) -> None:
        # the queue that has waited longest comes first
        self._ready: dict[ProcessQueue, list[MessageExt]] = {}
        self._in_hand: dict[ProcessQueue, list[MessageExt]] = {}
        self.news = asyncio.Event()
        """Set for the poll that waits: there are messages, or something else to look at."""

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        _, _, has_compressed = measure(messages)
        if has_compressed:
            self._report_compressed(messages)
        self._ready.setdefault(process_queue, []).extend(messages)
        self.news.set()

    def _report_compressed(self, messages: Sequence[MessageExt]) -> None:
        for message in messages:
            if message.is_compressed:
                log.error(
                    "%s/%d cannot be decompressed and is returned unchanged",
                    message.queue,
                    message.queue_offset,
                )

    def take(self, max_messages: int) -> list[MessageExt]:
        """Return messages: from each queue in order, and from all queues in turn."""
        taken: list[MessageExt] = []
        for process_queue in [one for one in self._ready if one.active and not one.paused]:
            if len(taken) == max_messages:
                break
            ready = self._ready.pop(process_queue)
            batch = ready[: max_messages - len(taken)]
            if len(batch) < len(ready):
                del ready[: len(batch)]
                # behind the others now
                self._ready[process_queue] = ready
            self._in_hand[process_queue] = batch
            taken += batch
        return taken

    def settle(self) -> Iterator[tuple[ProcessQueue, Sequence[int]]]:
        """Return the offsets of the last ``take``, of queues that are still held, and count them as
        done.
        """
        in_hand, self._in_hand = self._in_hand, {}
        return ((one, offsets_of(batch)) for one, batch in in_hand.items() if not one.dropped)

    def take_back(self) -> None:
        """Return the last messages again: they did not arrive."""
        in_hand, self._in_hand = self._in_hand, {}
        for process_queue, batch in in_hand.items():
            if not process_queue.dropped:
                self._ready[process_queue] = batch + self._ready.get(process_queue, [])

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        """Return True if the last ``take`` returned messages of the queue that are not settled: the
        next poll settles them.
        """
        return process_queue in self._in_hand

    def drop_in_hand(self) -> None:
        """Forget the last messages, which nobody will finish."""
        self._in_hand.clear()

    def left(self, process_queue: ProcessQueue) -> None:
        """Free what was pulled from a queue that is not held any more."""
        if process_queue.dropped:
            self._ready.pop(process_queue, None)

    def position(self, process_queue: ProcessQueue) -> int:
        """Return the offset of the next message to return."""
        ready = self._ready.get(process_queue)
        return ready[0].queue_offset if ready else process_queue.pull_offset


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSettings:
    """Subscription and identity of a pull consumer."""

    topics: tuple[str, ...]
    """None: queues are assigned."""
    group: str | None
    """None: nothing is committed."""
    tags: str
    sql: str | None
    start: Start
    auto_commit: bool
    on_change: OnChange | None

    def __post_init__(self) -> None:
        for topic in self.topics:
            validate_topic(topic)
        if len(set(self.topics)) < len(self.topics):
            raise InvalidOption("a topic is named twice")
        if self.group is not None:
            validate_group(self.group)
        elif self.topics:
            raise InvalidOption(
                "who consumes a topic is a member of a group: give group=, or no topic, and assign "
                "queues"
            )
        if self.on_change is not None and not self.topics:
            raise InvalidOption(
                "on_change is for topics: assigned queues do not change by themselves"
            )
        validate_filter(self.tags, self.sql)
        validate_start(self.start)


class PullMember(GroupMember, QueueObserver):
    """Member behind a pull consumer, from its start to its end."""

    def __init__(
        self, instance: ClientInstance, settings: PullSettings, config: ConsumerConfig
    ) -> None:
        name = settings.group or TOOLS_GROUP
        self.calls = calls = GroupClient(instance, name)
        self._offsets = store = RemoteOffsetStore(calls)
        group = MemberContext(
            name,
            instance,
            calls,
            store,
            Statistics(asyncio.get_running_loop().time()),
            polled=True,
            auto_commit=settings.auto_commit and settings.group is not None,
        )
        self._prefetch = Prefetch()
        super().__init__(group, config, self._prefetch)
        self._settings = settings
        for topic in settings.topics:
            self._state.topics[topic] = self._subscription(topic)
            self._state.starts[topic] = settings.start
        self._state.observers += [self._prefetch, self]
        # of which the application does not know yet
        self._gained: set[MessageQueue] = set()
        self._lost: set[MessageQueue] = set()
        # or will be: somebody says which queues are read
        self._assigned = bool(settings.topics)
        self._polling = False
        self._closed = False
        self._assigning = asyncio.Lock()
        self._commits: set[asyncio.Task[None]] = set()

    async def stop(self, *, in_good_order: bool) -> None:
        """Leave the group. The last poll's messages count as finished only *in_good_order*."""
        self._closed = True
        self.wake()
        if in_good_order:
            self._count_in_hand()
        else:
            self._prefetch.drop_in_hand()
        await self._leave()

    def wake(self) -> None:
        """Wake a waiting poll, because something has changed."""
        self._prefetch.news.set()

    # --- polling ----------------------------------------------------------------------------------

    async def poll(self, timeout_s: float | None, max_messages: int) -> list[MessageExt]:
        """See PullConsumer.poll."""
        if not self._assigned:
            raise IllegalStateError("no queues yet: assign(queues), or name topics and a group")
        if self._polling:
            raise IllegalStateError(
                "another poll of this consumer is under way: what it hands out is finished with "
                "the next poll, so one task polls"
            )
        self._polling = True
        try:
            self._count_in_hand()
            return await self._next_messages(timeout_s, max_messages)
        finally:
            self._polling = False

    async def _next_messages(self, timeout_s: float | None, max_messages: int) -> list[MessageExt]:
        loop, news = asyncio.get_running_loop(), self._prefetch.news
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while not self._closed:
            news.clear()
            self._context.instance.check_running()
            await self._tell_changes()
            if self._closed:
                break
            messages = self._prefetch.take(max_messages)
            if messages:
                return messages
            try:
                async with asyncio.timeout_at(deadline):
                    await news.wait()
            except TimeoutError:
                break
        return []

    def take_back(self) -> None:
        """Return the messages of the last poll again with the next one: they did not reach the
        application.
        """
        self._prefetch.take_back()
        self.wake()

    def _count_in_hand(self) -> None:
        for process_queue, offsets in self._prefetch.settle():
            self._context.finish(process_queue, offsets)

    async def _tell_changes(self) -> None:
        """Report changes of the assignment before any message of a new queue is returned, so that
        the application may seek in it first.
        """
        on_change = self._settings.on_change
        while on_change is not None and (self._gained or self._lost):
            gained, lost = sorted(self._gained), sorted(self._lost)
            self._gained.clear()
            self._lost.clear()
            try:
                if is_async(on_change):
                    await on_change(gained, lost)
                else:
                    await asyncio.to_thread(on_change, gained, lost)
            except BaseException:
                # it is told again: nothing of a queue is handed out before the application has set
                # its place
                self._gained |= set(gained) - self._lost
                self._lost = set(lost) | (self._lost - set(gained))
                raise

    def changed(self, gained: Sequence[MessageQueue], lost: Sequence[MessageQueue]) -> None:
        # the application never knew the others
        self._lost.update(set(lost) - self._gained)
        self._gained = (self._gained - set(lost)) | set(gained)
        self.wake()

    # --- queues -----------------------------------------------------------------------------------

    async def assign(self, queues: Collection[MessageQueue]) -> None:
        """See PullConsumer.assign."""
        if self._settings.topics:
            raise IllegalStateError(
                "this consumer takes its queues from its group; to assign queues, make one without "
                "topics"
            )
        async with self._assigning:
            given_up, taken = difference(self._state.held, queues)
            for topic in {queue.topic for queue in taken}:
                # so that their brokers are known
                await self.calls.queues(topic)
            begins = await asyncio.gather(*map(self._begin, taken))
            if self._closed:
                raise IllegalStateError("the pull consumer is closed")
            self._assigned = True
            self._state.topics.update(
                {queue.topic: self._subscription(queue.topic) for queue in taken}
            )
            await self._rebalancer.exchange(given_up, begins)

    async def _begin(self, queue: MessageQueue) -> Begin:
        """Return the first offset in *queue*. Raises OgiveError if a query fails: that never counts
        as "no offset".
        """
        calls, store = self.calls, self._context.store
        offset = None if self._settings.group is None else await store.fetch(queue)
        if offset is not None:
            return Begin(queue, offset, new=offset == 0)
        return Begin(queue, await calls.start_offset(queue, self._settings.start), new=True)

    async def seek(self, queue: MessageQueue, to: int | Start) -> None:
        """See PullConsumer.seek."""
        self._held(queue)
        calls = self.calls
        if isinstance(to, int):
            low, high = await asyncio.gather(calls.min_offset(queue), calls.max_offset(queue))
            if not low <= to <= high:
                raise InvalidOption(f"{queue} holds {low} to {high}: {to} is not among them")
            offset = to
        else:
            offset = await calls.start_offset(queue, to)
        # checked again: it may have been given up in between
        self._rebalancer.jump(self._held(queue), offset)

    def pause(self, queues: Collection[MessageQueue]) -> None:
        for process_queue in self._chosen(queues):
            process_queue.pause()

    def resume(self, queues: Collection[MessageQueue]) -> None:
        for process_queue in self._chosen(queues):
            process_queue.resume()
        self.wake()

    def position(self, queue: MessageQueue) -> int:
        return self._prefetch.position(self._held(queue))

    @property
    def assignment(self) -> list[MessageQueue]:
        return sorted(self._state.held)

    def _reached(self, process_queue: ProcessQueue) -> int:
        return self._prefetch.position(process_queue)

    def _held(self, queue: MessageQueue, *, also_releasing: bool = False) -> ProcessQueue:
        """Return the state of a queue that is held. Raises IllegalStateError.

        *also_releasing*: also one that is being given up, and waits for what the last poll handed
        out.
        """
        process_queue = self._state.held.get(queue)
        if process_queue is None or not (
            also_releasing or process_queue.state is QueueState.ACTIVE
        ):
            raise IllegalStateError(f"{queue} is not held by this consumer (any more)")
        return process_queue

    def _chosen(self, queues: Collection[MessageQueue]) -> list[ProcessQueue]:
        """Return the given held queues, or all active ones if none is given."""
        return (
            [self._held(queue) for queue in queues]
            if queues
            else [p for p in self._state.held.values() if p.active]
        )

    def _properties(self) -> dict[str, str]:
        return {
            "PROP_CONSUME_TYPE": "CONSUME_ACTIVELY",
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "consumerGroup": self.group,
        }

    # --- progress ---------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[MessageQueue, int] | None) -> None:
        """See PullConsumer.commit."""
        if self._settings.group is None:
            raise IllegalStateError("a consumer without a group commits nothing: give group=")
        if offsets is None:
            wanted = {queue: self._prefetch.position(p) for queue, p in self._state.held.items()}
        else:
            wanted = {
                self._held(queue, also_releasing=True).queue: offset
                for queue, offset in offsets.items()
            }
        task = asyncio.create_task(
            self._offsets.commit(wanted, again=offsets is not None), name=f"commit of {self.group}"
        )
        self._commits.add(task)
        task.add_done_callback(self._commit_done)
        # if it were cut short, the next update could overtake it
        await asyncio.shield(task)

    def _commit_done(self, task: asyncio.Task[None]) -> None:
        self._commits.discard(task)
        if not task.cancelled():
            # perhaps nobody waits for it any more
            task.exception()

    async def committed(self, queue: MessageQueue) -> int | None:
        if self._settings.group is None:
            return None
        await self.calls.queues(queue.topic)
        return await self.calls.query_offset(queue, zero_if_young=False)

    def _subscription(self, topic: str) -> SubscriptionData:
        return subscription(topic, self._settings.tags, self._settings.sql, self._started_ms)
