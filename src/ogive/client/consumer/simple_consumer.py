"""Simple consumer: the application receives messages on a lease, and acknowledges each.

Source: SimpleConsumer.java of rocketmq-clients, 5.x, over the remoting protocol.

Behaviour
- Brokers are asked in turn, without waiting, until one has messages; if none has, they are all
  asked to report when they do. So nothing is on its way to this consumer while it waits, and
  nothing is lost when a receive is cancelled or the consumer closes.
- A pop that a cancelled receive has begun is completed: its messages come with the next receive,
  and at the close they are given back.

Differs from Java
- Requests go to brokers, not to a proxy.
- An acknowledgement after the end of the lease raises LeaseEnded; brokers answer it with success.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ogive.client.config import DEFAULT_NAME_SERVER, ClientConfig, check_type
from ogive.client.consumer.filter import subscription, validate_filter, warn_of_tags
from ogive.client.consumer.leases import (
    MessageLease,
    PopClient,
    Popped,
    PopSettings,
    check_invisible,
    check_start,
    raise_first,
)
from ogive.client.consumer.rebalance import LEAVE_TIMEOUT_S
from ogive.client.instance import ClientInstance, ClientOwner, StartedByWith
from ogive.client.instrumentation import M, observed
from ogive.client.listener import Start, consume_from_where
from ogive.errors import (
    BrokerError,
    IllegalStateError,
    InvalidOption,
    LeaseEnded,
    NoRoute,
    OgiveError,
)
from ogive.keywords import explains
from ogive.model import MessageExt, MessageQueue, PropertyName, validate_group, validate_topic
from ogive.wire.bodies.clients import ConsumerData, ConsumerRunningInfo, SubscriptionData
from ogive.wire.message import Properties
from ogive.wire.pop import MAX_POP_MESSAGES

log = logging.getLogger(__name__)

MAX_LEASES: Final = 65_536
"""Received messages that are neither acknowledged nor ended."""
MAX_WAIT_S: Final = 3600.0
NOTHING_PAUSE_S: Final = 0.05
"""After brokers reported messages that another member was faster to pop."""
RETRY_PAUSE_S: Final = 0.5
"""Between two looks for a broker or a topic that is missing, if no other has messages."""


class Leases:
    """Open leases of one consumer, by the first handle of each."""

    def __init__(self) -> None:
        self._open: dict[str, MessageLease] = {}
        self._prune_at = 1024

    def add(self, message: MessageExt, lease: MessageLease) -> MessageExt:
        """Keep *lease*. Return the message with its handle as a property."""
        key = str(lease.handle)
        self._open[key] = lease
        # as it was decoded; nobody else has it yet, or it has the handle already
        assert isinstance(message.properties, Properties)
        message.properties.put(PropertyName.POP_CK, key)
        return message

    def find(self, message: MessageExt) -> MessageLease | None:
        """Return the lease of *message*, or None if it has none any more."""
        lease = self._open.get(message.properties.get(PropertyName.POP_CK, ""))
        return None if lease is None or lease.has_ended() else lease

    def remove(self, messages: Iterable[MessageExt]) -> None:
        for message in messages:
            self._open.pop(message.properties[PropertyName.POP_CK], None)

    def room(self) -> int:
        """Return the number of leases that can be added."""
        if len(self._open) >= self._prune_at:
            self._open = {key: one for key, one in self._open.items() if not one.has_ended()}
            self._prune_at = min(MAX_LEASES, max(1024, 2 * len(self._open)))
        return MAX_LEASES - len(self._open)


class _Member:
    """Member of the group, as its client sees it. See RegisteredConsumer."""

    def __init__(self, group: str, start: Start, subscriptions: Mapping[str, SubscriptionData]):
        self.group = group
        self._start = start
        self._subscriptions = subscriptions
        self._started_ms = time.time_ns() // 1_000_000

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group=self.group,
            consume_type="CONSUME_POP",
            consume_from_where=consume_from_where(self._start),
            subscriptions=tuple(self._subscriptions.values()),
        )

    def on_consumer_ids_changed(self) -> None:
        """Do nothing: no member holds a queue."""

    def holdings(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        return ()

    def running_info(self) -> bytes:
        return ConsumerRunningInfo(
            properties={
                "PROP_CONSUME_TYPE": "CONSUME_POP",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "consumerGroup": self.group,
            },
            subscriptions=tuple(self._subscriptions.values()),
            queues={},
            topics={},
        ).encode()


def _check_receive(max_messages: int, invisible_s: float, wait_s: float) -> None:
    """Raise TypeError or InvalidOption for an argument of ``receive``."""
    check_type("max_messages", max_messages, int, "int")
    check_type("invisible_s", invisible_s, int | float, "a number of seconds")
    check_type("wait_s", wait_s, int | float, "a number of seconds")
    if max_messages < 1:
        raise InvalidOption(f"max_messages is {max_messages}: must be at least 1")
    check_invisible("invisible_s", invisible_s, 0.001)
    if not 0 <= wait_s <= MAX_WAIT_S:
        raise InvalidOption(f"wait_s is {wait_s}: must be between 0 and {MAX_WAIT_S:g} seconds")


@explains
class SimpleConsumer(StartedByWith):
    """Consumer of messages on a lease: ``async with SimpleConsumer("Orders", group="billing") as
    consumer``, then ``receive`` and ``ack``.

    No member holds a queue: each receive gets messages that no other member has at present. A
    message that is not acknowledged before its lease ends is delivered again.

    *tags* or *sql* choose messages of the *topics*; ``subscribe`` takes other ones. *start* is
    where a new group begins: "latest" or "earliest". *client* takes either settings, instead of
    *name_server*, or a running client to share, which stays open. Raises InvalidOption.
    """

    def __init__(
        self,
        *topics: str,
        group: str,
        tags: str = "*",
        sql: str | None = None,
        start: Start = "latest",
        name_server: str = DEFAULT_NAME_SERVER,
        client: ClientConfig | ClientInstance | None = None,
    ) -> None:
        validate_group(group)
        check_start(start)
        self._owner = ClientOwner("simple consumer", name_server, client)
        self._namespace = self._owner.namespace
        self._start = start
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._member = _Member(self._namespace.wrap(group), start, self._subscriptions)
        for topic in topics:
            self._add(topic, tags, sql)
        warn_of_tags(tags)
        self._calls: PopClient | None = None
        self._leases = Leases()
        # popped for a receive that was cancelled
        self._kept: deque[Popped] = deque()
        self._popping: set[asyncio.Task[list[Popped]]] = set()
        self._turn = 0
        # places whose last pop failed
        self._failing: set[MessageQueue] = set()
        # kept messages have come, or the consumer closes
        self._news = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None

    def _add(self, topic: str, tags: str, sql: str | None) -> SubscriptionData:
        validate_topic(topic)
        validate_filter(tags, sql)
        topic = self._namespace.wrap(topic)
        wanted = subscription(topic, tags, sql, time.time_ns() // 1_000_000)
        self._subscriptions[topic] = wanted
        return wanted

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group.

        Raises NoNameServer, the BrokerError of a broker that refuses the member or a filter, and
        IllegalStateError after an earlier start. A topic that does not exist yet is waited for.
        """
        instance = await self._owner.start()
        self._calls = PopClient(instance, self._member.group)
        try:
            await raise_first(self._find(self._calls, one) for one in self._subscriptions.values())
            instance.register_consumer(self._member)
            await instance.announce()
        except BaseException:
            await self.close()
            raise

    async def _find(self, calls: PopClient, wanted: SubscriptionData) -> None:
        """Find the topic, and have a broker check the filter."""
        try:
            await calls.queues(wanted.topic)
            await calls.check_filter(wanted)
        except NoRoute as exc:
            log.warning("group %s waits for its topic: %s", self._member.group, exc)

    async def close(self) -> None:
        """Leave the group and close the client.

        Messages that were popped and did not reach the application are given back. Those that it
        received and has not acknowledged come again when their lease ends. Closing again does
        nothing.
        """
        if not self._owner.started:
            return
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="close simple consumer")
            self._news.set()
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        instance = self._owner.client
        try:
            if self._popping:
                await asyncio.wait(self._popping, timeout=LEAVE_TIMEOUT_S)
            # receives that were cancelled keep what their pops brought
            await asyncio.sleep(0)
            calls, leases = self._calls, [lease for _, lease in self._kept]
            if calls is not None:
                await raise_first(
                    calls.change(lease, 0.0, as_try=False)
                    for lease in leases
                    if not lease.has_ended()
                )
        except OgiveError as exc:
            log.warning(
                "could not give messages back, which come again when their lease ends: %s", exc
            )
        finally:
            await instance.unregister_consumer(self._member)
            await self._owner.close()

    def _running(self) -> PopClient:
        self._owner.client.check_running()
        self._owner.client.check_loop()
        if self._closing is not None or self._calls is None:
            raise IllegalStateError("the simple consumer is closed: make a new one")
        return self._calls

    @property
    def client_id(self) -> str:
        """Name of this consumer at the brokers."""
        return self._owner.client.client_id

    # --- subscriptions ----------------------------------------------------------------------------

    @property
    def topics(self) -> list[str]:
        """Topics subscribed to."""
        return list(map(self._namespace.strip, self._subscriptions))

    async def subscribe(self, topic: str, *, tags: str = "*", sql: str | None = None) -> None:
        """Receive messages of *topic* as well, or choose others of it from now on.

        Raises InvalidOption, NoNameServer, and the BrokerError of a broker that refuses the topic
        or the filter; nothing has changed then.
        """
        calls = self._running()
        before = self._subscriptions.get(self._namespace.wrap(topic))
        wanted = self._add(topic, tags, sql)
        warn_of_tags(tags)
        try:
            await self._find(calls, wanted)
            await self._owner.client.announce()
        except BaseException:
            if before is None:
                del self._subscriptions[wanted.topic]
            else:
                self._subscriptions[wanted.topic] = before
            raise

    async def unsubscribe(self, topic: str) -> None:
        """Receive no more messages of *topic*. Raises InvalidOption for an unknown one."""
        self._running()
        if self._subscriptions.pop(self._namespace.wrap(topic), None) is None:
            raise InvalidOption(f"{topic!r} is not subscribed to: {', '.join(self.topics)}")
        await self._owner.client.heartbeat_now()

    # --- messages ---------------------------------------------------------------------------------

    async def receive(
        self, max_messages: int = 16, *, invisible_s: float = 30.0, wait_s: float = 20.0
    ) -> list[MessageExt]:
        """Return up to *max_messages* as soon as there is one, or an empty list after *wait_s* or
        at the close.

        No member gets them again within *invisible_s*; ``ack`` finishes one for good. Brokers give
        at most 32 at a time. Raises IllegalStateError without topics, and with 65,536 messages that
        are neither acknowledged nor delivered again; OgiveError if all brokers fail.
        """
        calls = self._running()
        _check_receive(max_messages, invisible_s, wait_s)
        work = self._receive(calls, max_messages, invisible_s, wait_s)
        return await self._observed("receive", work)

    def _observed(self, operation: str, work: Awaitable[M]) -> Awaitable[M]:
        strip = self._namespace.strip
        return observed(operation, strip(self._member.group), map(strip, self._subscriptions), work)

    async def _receive(
        self, calls: PopClient, max_messages: int, invisible_s: float, wait_s: float
    ) -> list[MessageExt]:
        most = min(max_messages, MAX_POP_MESSAGES)
        if self._leases.room() < most:
            raise IllegalStateError(
                f"{MAX_LEASES} received messages are not acknowledged yet: acknowledge them, or "
                "receive them for a shorter time"
            )
        settings = PopSettings(invisible_s, self._start)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        sources, failure = await self._sources(calls)
        ready: Collection[MessageQueue] = sources
        while True:
            if self._closing is None:
                self._news.clear()
            if messages := self._take_kept(most):
                return messages
            popped, failed = await self._pop_first(calls, ready, settings, most, len(sources))
            failure = failed or failure
            if popped:
                return self._hand_out(popped)
            if self._closing is not None:
                return []
            if loop.time() >= deadline:
                if failure is not None:
                    raise failure
                return []
            if failure is not None or ready is not sources:
                pause = NOTHING_PAUSE_S if failure is None else RETRY_PAUSE_S
                await self._sleep(min(pause, deadline - loop.time()))
            known = sources
            sources, failure = await self._sources(calls)
            ready = [source for source in sources if source not in known]
            if not ready:
                left = max(0.0, deadline - loop.time())
                ready = await self._await_messages(
                    calls, sources, left if failure is None else min(left, RETRY_PAUSE_S)
                )

    async def _pop_first(
        self,
        calls: PopClient,
        ready: Iterable[MessageQueue],
        settings: PopSettings,
        most: int,
        places: int,
    ) -> tuple[list[Popped], OgiveError | None]:
        """Pop from the first of *ready* that has messages. Return them, and why one failed.

        Raises the first refusal if all *places* refuse.
        """
        failure: OgiveError | None = None
        refusals: list[BrokerError] = []
        for source in self._in_turn(ready):
            try:
                popped = await self._pop(calls, source, settings, most)
            except OgiveError as exc:
                failure = exc
                refusals += [exc] if isinstance(exc, BrokerError) else []
                self._failing.add(source)
            else:
                self._failing.discard(source)
                if popped:
                    return popped, failure
        if refusals and len(refusals) == places:
            raise refusals[0]
        return [], failure

    async def _sources(self, calls: PopClient) -> tuple[list[MessageQueue], OgiveError | None]:
        """Return where to pop, and why a topic has no place."""
        if not self._subscriptions:
            raise IllegalStateError(
                "the simple consumer has no topic: SimpleConsumer('Orders', group=...), or "
                "subscribe('Orders')"
            )
        found: list[MessageQueue] = []
        failure: OgiveError | None = None
        for topic in list(self._subscriptions):
            try:
                found += await calls.sources(topic)
            except NoRoute as exc:
                failure = exc
        return found, failure

    def _in_turn(self, sources: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return *sources* beginning with another one each time; those that fail come last."""
        ordered = list(sources)
        self._turn += 1
        at = self._turn % max(1, len(ordered))
        return sorted(ordered[at:] + ordered[:at], key=self._failing.__contains__)

    async def _pop(
        self, calls: PopClient, source: MessageQueue, settings: PopSettings, most: int
    ) -> list[Popped]:
        """Pop without waiting. If the caller is cancelled, what comes is kept for the next one."""
        wanted = self._subscriptions.get(source.topic)
        if wanted is None or self._closing is not None:
            return []

        async def pop() -> list[Popped]:
            return (await calls.pop(source, wanted, settings, max_messages=most))[0]

        task = asyncio.create_task(pop(), name=f"pop {source} {self._member.group}")
        self._popping.add(task)
        task.add_done_callback(self._popping.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._keep)
            raise

    def _keep(self, task: "asyncio.Task[list[Popped]]") -> None:
        if not task.cancelled() and task.exception() is None:
            self._kept.extend(task.result())
            self._news.set()

    def _take_kept(self, most: int) -> list[MessageExt]:
        popped: list[Popped] = []
        while self._kept and len(popped) < most:
            message, lease = self._kept.popleft()
            if not lease.has_ended() and lease.topic in self._subscriptions:
                popped.append((message, lease))
        return self._hand_out(popped)

    def _hand_out(self, popped: Sequence[Popped]) -> list[MessageExt]:
        strip = self._namespace.strip_message
        return [strip(self._leases.add(message, lease)) for message, lease in popped]

    def take_back(self, messages: Sequence[MessageExt]) -> None:
        """Return *messages* again: they did not reach the application.

        For the blocking facade.
        """
        for message in messages:
            lease = self._leases.find(message)
            if lease is not None:
                wrapped = replace(
                    message,
                    topic=lease.topic,
                    queue=self._namespace.wrap_queue(message.queue),
                )
                self._kept.append((wrapped, lease))
        self._news.set()

    async def _await_messages(
        self, calls: PopClient, sources: Sequence[MessageQueue], wait_s: float
    ) -> Collection[MessageQueue]:
        """Wait until one of *sources* reports messages, or for *wait_s*. Return those that do.

        Shorter if one refuses: it is asked again. Raises the first refusal if all refuse.
        """
        loop = asyncio.get_running_loop()
        asking: dict[asyncio.Future[bool], MessageQueue] = {
            asyncio.ensure_future(
                calls.await_message(source, self._subscriptions[source.topic], wait_s)
            ): source
            for source in sources
            if source.topic in self._subscriptions
        }
        news = asyncio.ensure_future(self._until_news())
        try:
            waiting: set[asyncio.Future[bool]] = {*asking, news}
            ends = loop.time() + wait_s
            ready: set[MessageQueue] = set()
            refusals: list[BrokerError] = []
            while not ready and not news.done():
                done, waiting = await asyncio.wait(
                    waiting,
                    timeout=max(0.0, ends - loop.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not done:
                    break
                for one in done - {news}:
                    error = one.exception()
                    if isinstance(error, BrokerError):
                        refusals.append(error)
                        ends = min(ends, loop.time() + RETRY_PAUSE_S)
                    elif error is not None and not isinstance(error, OgiveError):
                        raise error
                    # One that cannot be reached is asked for messages next: that finds its route.
                    elif error is not None or one.result():
                        ready.add(asking[one])
                if refusals and len(refusals) == len(asking):
                    raise refusals[0]
            return ready
        finally:
            for task in (*asking, news):
                task.cancel()
            await asyncio.gather(*asking, news, return_exceptions=True)

    async def _until_news(self) -> bool:
        await self._news.wait()
        return False

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but not beyond the next news."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    async def ack(self, *messages: MessageExt) -> None:
        """Finish received messages: they are not delivered again. Several go in one request.

        Raises LeaseEnded if one cannot be finished any more: it is delivered again, or was
        acknowledged before. The others are acknowledged then. After another OgiveError the messages
        may be acknowledged again.
        """
        await self._observed("ack", self._ack(self._running(), messages))

    async def _ack(self, calls: PopClient, messages: Sequence[MessageExt]) -> Sequence[MessageExt]:
        leases = [(message, self._lease(message)) for message in messages]
        held = [(message, lease) for message, lease in leases if lease is not None]
        if held:
            await calls.ack([lease for _, lease in held])
            self._leases.remove(message for message, _ in held)
        late = [message for message, lease in leases if lease is None]
        if late:
            raise LeaseEnded(self._why_ended(late[0], "acknowledged"), late)
        return messages

    async def change_invisible(self, message: MessageExt, seconds: float) -> None:
        """Keep a received message for *seconds* from now; 0 has it delivered again at once.

        Raises LeaseEnded if it is delivered again already, or was acknowledged.
        """
        calls = self._running()
        check_type("seconds", seconds, int | float, "a number of seconds")
        check_invisible("seconds", seconds, 0)
        lease = self._lease(message)
        if lease is None:
            raise LeaseEnded(self._why_ended(message, "kept"), [message])
        await calls.change(lease, seconds)

    def _lease(self, message: MessageExt) -> MessageLease | None:
        check_type("message", message, MessageExt, "an ogive.MessageExt, as receive() returns it")
        return self._leases.find(message)

    @staticmethod
    def _why_ended(message: MessageExt, what: str) -> str:
        return (
            f"{message.queue}/{message.queue_offset} (id {message.id}) cannot be {what}: its lease "
            "has ended and it is delivered again, or it was acknowledged before, or another "
            "consumer received it. receive(invisible_s=) or change_invisible() gives more time"
        )
