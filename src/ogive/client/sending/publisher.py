"""The producer's one engine: the place and the order of each message, and its retries.

Behaviour
- Messages that may go anywhere leave at once while little is on its way, and together beyond that,
  see ``accumulator.py``. Messages with a sharding key or a fixed queue keep their order, see
  ``accumulator.py``. Messages that wait for a route or a connection keep their places.
- One time budget covers a message from its acceptance to its answer. Connecting counts as waiting,
  not as a try: a broker that restarts is waited for, and messages that may go anywhere move to a
  broker that can be reached.
- A failed try is repeated on another broker's queue if there is one; a message that is bound to its
  queue is repeated there. A broker that says it is busy is asked again, with growing pauses, as
  long as the budget lasts (unless there are to be no retries at all).
- A message whose fate is unknown after the last try fails with SendTimeout; one that was certainly
  not stored with another error.

Differs from Java
- Retries on another queue carry that queue's id. A busy broker is asked again after a pause, not at
  once.
- The number and the bytes of messages in flight are always bounded.

Everything here runs on the client's loop. There is no task per message: only failures start one.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from ogive.client.config import ProducerConfig
from ogive.client.hooks import must_pass
from ogive.client.ids import UniqueKeys
from ogive.client.instance import ClientInstance
from ogive.client.routes import choose_queue, publish_queues
from ogive.client.sending.accumulator import BATCH_PROPERTIES, Accumulator, OrderedQueue, seal
from ogive.client.sending.connector import Connector
from ogive.client.sending.delay_levels import LevelCheck
from ogive.client.sending.destinations import (
    Destinations,
    Resolver,
    no_such_queue,
    pinned_target,
    targets_on,
)
from ogive.client.sending.handle import (
    ITEM_BYTES,
    KEY_BYTES,
    BatchOutcome,
    SendHandle,
)
from ogive.client.sending.in_flight import DeadlineWatch, InFlightLimit
from ogive.client.sending.message_builder import (
    message_property_text,
    property_text,
    sharing_message,
    stored_text,
    with_unique_key,
)
from ogive.client.sending.pending import (
    FAILED_S,
    OVERHEAD_BYTES,
    Inbox,
    Lane,
    PendingSend,
    PendingTopic,
    Pump,
    Target,
    held_up,
    is_final,
    may_try_again,
    outcome_of,
)
from ogive.errors import (
    ConnectError,
    IllegalStateError,
    OgiveError,
    RequestTimeout,
    SendFailed,
)
from ogive.model import (
    MAX_BODY_BYTES,
    Message,
    MessageQueue,
    SendResult,
    SendStatus,
    as_keys,
)
from ogive.transport.connection import Connection
from ogive.wire.message import MAX_BATCH_MESSAGES, decode_batch, encode_batch
from ogive.wire.sends import SendEncoder, split_result

log = logging.getLogger(__name__)

RETRY_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 1.0
# beyond its deadline nobody waits for an outcome: it is lost if a second Ctrl-C stopped what the
# first one had to end
GRACE_S: Final = 1.0
CLOSED_MEANWHILE: Final = "the producer was closed before the message had an outcome"
# what is in an inbox is shared by the queues, but smaller batches are not worth it
MIN_BATCH: Final = 256
# property texts of messages with a tag alone
MAX_TEXTS: Final = 256


class NoRoom(Exception):
    """A message that was offered has to wait for room: await ``wait`` with its time budget."""

    def __init__(self, publisher: "Publisher", inbox: Inbox, handle: SendHandle) -> None:
        self._publisher, self._inbox, self._handle = publisher, inbox, handle

    async def wait(self, timeout_s: float) -> SendHandle:
        """Submit the message once there is room. Raises SendFailed."""
        return await self._publisher.accept_handle(self._inbox, self._handle, timeout_s)


class Publisher:
    """Engine of a producer: gives each message that it accepts exactly one outcome."""

    def __init__(
        self, client: ClientInstance, config: ProducerConfig, *, is_observed: bool = False
    ) -> None:
        """Make an engine. *is_observed*: every message is built in the long way."""
        self.client = client
        self.config = config
        self._metrics = client.metrics
        self._loop = asyncio.get_running_loop()
        self.clock = self._loop.time
        self._keys = UniqueKeys()
        self._limit = InFlightLimit(config.max_in_flight, config.max_in_flight_bytes)
        self._watch = DeadlineWatch(self._loop, self._expire)
        self.destinations = Destinations(self._loop, self._make_lane, self._make_target)
        self._topics = self.destinations.topics
        self._resolver = Resolver(
            client, config.default_topic_queues, self.destinations, self._watch, self
        )
        # so that messages can still go elsewhere
        patience_s = config.send_timeout_s / 3
        self._levels = LevelCheck(client, config.default_topic_queues)
        self._connector = Connector(client, patience_s, self.destinations, self._watch, self)
        # without an outcome
        self._under_way: set[PendingSend] = set()
        self._flushes: list[tuple[set[PendingSend], asyncio.Future[None]]] = []
        self._closed = False
        # smaller bodies can be sent as they are, unless somebody wants to see the messages
        self._plain_bytes = (
            0
            if config.hooks or config.trace or is_observed
            else MAX_BODY_BYTES + 1
            if config.compress_over_bytes is None
            else min(config.compress_over_bytes, MAX_BODY_BYTES + 1)
        )
        self._wrap = client.namespace.wrap if client.namespace else None
        self._not_sent = BatchOutcome(self._loop)
        self._texts: dict[str, bytes] = {}
        # threads that are about to wake the loop
        self._wakers: list[None] = []
        client.routes.on_change.append(self._route_changed)

    def _make_lane(self, broker_name: str) -> Lane:
        lane = Lane(broker_name)
        lane.accumulator = Accumulator(lane, self.config, self._watch, self)
        return lane

    def _make_target(self, queue: MessageQueue, lane: Lane, sent: int) -> Target:
        config = self.client.config
        encoder = SendEncoder(
            self.config.group,
            queue,
            self.config.default_topic_queues,
            config.credentials,
            config.request_fields,
        )
        return Target(queue, lane, encoder, sent)

    def _route_changed(self, name: str) -> None:
        topic, route = self._topics.get(name), self.client.routes.known(name)
        if topic is not None and topic.targets is not None and route is not None:
            self.destinations.set_queues(topic, publish_queues(name, route))
        self._connector.look_again()

    # --- accepting --------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Return the number of accepted messages without an outcome. Any thread may ask."""
        return self._limit.count

    def has_room(self, size: int, before: int = 0) -> bool:
        """Return True if a message of *size* bytes may be accepted at once, behind *before* others,
        without passing any that wait.
        """
        return self._limit.admits(size, before)

    async def accept(self, pending: PendingSend, timeout_s: float) -> None:
        """Wait for room, then take the message.

        Raises SendFailed if there is no room in time, and InvalidOption for a delay level that the
        topic's brokers do not have. A cancelled wait sends nothing.
        """
        try:
            await self._accept(pending, timeout_s)
        except BaseException:
            outcome = getattr(pending, "future", None)
            if isinstance(outcome, BatchOutcome):
                # its handle is the caller's alone, who has not got it: it would stay in memory
                outcome.handles = []
            raise

    async def _accept(self, pending: PendingSend, timeout_s: float) -> None:
        if pending.unusual_level:
            timeout_s = await self._check_level(pending, timeout_s)
        if self._limit.admits(pending.size):
            self.take(pending, timeout_s)
            return
        started = self._loop.time()
        self._end_lingering()
        try:
            await self._limit.wait(pending.size, timeout_s)
        except BaseException as exc:
            if pending.on_end is not None:
                pending.on_end(pending, None, exc)
            raise
        self._begin(pending, timeout_s - (self._loop.time() - started))

    async def _check_level(self, pending: PendingSend, timeout_s: float) -> float:
        """Check the delay level, and return the time that is left."""
        started = self._loop.time()
        try:
            await self._levels.check(pending, timeout_s)
        except BaseException as exc:
            if pending.on_end is not None:
                pending.on_end(pending, None, exc)
            raise
        return max(0.0, timeout_s - (self._loop.time() - started))

    def take(self, pending: PendingSend, timeout_s: float) -> None:
        """Take the message even over the limit. Errors that are not raised here end in its future.

        Raises MessageIllegal for properties that no broker takes, IllegalStateError after the end.
        """
        self._limit.acquire(pending.size)
        self._begin(pending, timeout_s)

    def offer(
        self,
        name: str | Message,
        body: object,
        tag: str | None,
        keys: str | Iterable[str],
        properties: Mapping[str, str] | None,
        sharding_key: str | None,
        queue: MessageQueue | None,
        now: float,
        on_done: Callable[[SendHandle], object] | None,
    ) -> SendHandle | None:
        """Submit a message that can stand in a batch; None if it has to be accepted in the long
        way. Any thread may call this, at *now* of the loop's clock.

        Raises what ``Message`` raises, MessageIllegal, and NoRoom.
        """
        message: Message | None = None
        if properties or type(name) is not str:
            message = sharing_message(name, body, tag, keys, properties, sharding_key)
            if message is None:
                return None
            name, body, sharding_key = message.topic, message.body, message.sharding_key
        if type(body) is not bytes:
            return None
        topic = self._topics.get(name if self._wrap is None else self._wrap(name))
        size = len(body)
        if topic is None or size >= self._plain_bytes or not topic.shares_batches:
            return None
        inbox: Inbox = topic
        if sharding_key is not None or queue is not None:
            ordered = self._ordered(topic, sharding_key, queue)
            if ordered is None:
                return None
            inbox = ordered
        if message is not None:
            text = stored_text(message_property_text(message))
        elif tag is None and keys == () and sharding_key is None:
            text = b""
        else:
            text = self._text(name, body, tag, keys, sharding_key)
        handle = SendHandle(self._not_sent, body, text, now, None if on_done is None else [on_done])
        size += len(text) + OVERHEAD_BYTES
        if not self._limit.take(size):
            raise NoRoom(self, inbox, handle)
        inbox.inbox.append(handle)
        if (
            not inbox.busy
            or self._wakers
            or (inbox is topic and topic.linger is not None and self._is_full(topic))
        ):
            self._wake(inbox)
        return handle

    def _ordered(
        self, topic: PendingTopic, sharding_key: str | None, queue: MessageQueue | None
    ) -> Pump | None:
        """Return the ordered queue for a message; None before its first one was accepted, and for
        arguments that are to be refused.
        """
        targets = topic.targets
        if targets is None or topic.backlog:
            return None
        if queue is None:
            target = choose_queue(sharding_key, targets) if type(sharding_key) is str else None
        elif sharding_key is None and isinstance(queue, MessageQueue):
            namespace = self.client.namespace
            target = topic.by_queue.get(namespace.wrap_queue(queue) if namespace else queue)
        else:
            target = None
        return None if target is None else target.ordered

    def _text(
        self,
        name: str,
        body: bytes,
        tag: str | None,
        keys: str | Iterable[str],
        sharding_key: str | None,
    ) -> bytes:
        """Return the properties as they are stored, without the unique key. Raises what ``Message``
        raises, and MessageIllegal where a broker would refuse them.
        """
        alone = tag if keys == () and sharding_key is None and isinstance(tag, str) else None
        found = None if alone is None else self._texts.get(alone)
        if found is None:
            found = stored_text(property_text(name, body, tag, as_keys(keys), sharding_key, 0))
            if alone is not None:
                if len(self._texts) >= MAX_TEXTS:
                    self._texts.clear()
                self._texts[alone] = found
        return found

    async def accept_handle(self, inbox: Inbox, handle: SendHandle, timeout_s: float) -> SendHandle:
        """Wait for room, then submit the message. Raises SendFailed."""
        assert handle._body is not None
        assert handle._text is not None
        self._end_lingering()
        await self._limit.wait(len(handle._body) + len(handle._text) + OVERHEAD_BYTES, timeout_s)
        inbox.inbox.append(handle)
        self.drain(inbox)
        return handle

    def _is_full(self, topic: PendingTopic) -> bool:
        """Return True if a batch of messages like the last one in the inbox is full."""
        body = topic.inbox[-1]._body if topic.inbox else None
        size = ITEM_BYTES + len(body or b"")
        return size * len(topic.inbox) >= self.config.max_batch_bytes

    def _lingers(self, topic: PendingTopic) -> bool:
        """Return True if what is in the inbox waits for more, see ProducerConfig.linger_s."""
        due = topic.inbox[0]._since + self.config.linger_s
        # uvloop's clock counts milliseconds
        if (
            self._closed
            or self._limit.is_contended
            or self._is_full(topic)
            or due <= self.clock() + 0.001
        ):
            return False
        if topic.linger is None:
            topic.linger = self._loop.call_at(due, self._linger_over, topic)
        return True

    def _end_lingering(self) -> None:
        """Send what lingers: else nothing may make room before its end."""
        # while anybody waits for room, nothing begins to linger
        if self.config.linger_s and not self._limit.is_contended:
            for topic in list(self._topics.values()):
                while topic.linger is not None and topic.inbox:
                    self.launch(topic, self.place)

    def _launch_all(self, topic: PendingTopic) -> None:
        """Let everything in the topic's inboxes go its way."""
        while topic.inbox:
            self.launch(topic, self.place)
        for ordered in topic.ordered:
            while ordered.inbox:
                self.launch(ordered, ordered.take)

    def _linger_over(self, topic: PendingTopic) -> None:
        topic.linger = None
        self.drain(topic)

    def _wake(self, inbox: Inbox) -> None:
        """Make the loop look at the inbox. A signal handler in here wakes it, too."""
        try:
            self._wakers.append(None)
            inbox.busy = True
            self._loop.call_soon_threadsafe(self.drain, inbox)
        except BaseException:
            # Ctrl-C: later callers would wait for a loop that was never woken
            inbox.busy = False
            raise
        finally:
            del self._wakers[:1]

    def drain(self, inbox: Inbox) -> None:
        """Send what is in an inbox, as far as there is room."""
        inbox.busy = True
        try:
            while True:
                while inbox.inbox:
                    if not self._send_next(inbox):
                        return
                inbox.busy = False
                # who appended before that did not wake the loop
                if not inbox.inbox:
                    return
                inbox.busy = True
        except BaseException:
            # else nobody would look at the inbox again
            inbox.busy = False
            self._watch_inbox(inbox)
            raise

    def _send_next(self, inbox: Inbox) -> bool:
        """Send the next batch of the inbox, or park it. Return False if it has to wait for an
        answer, which then sends it.
        """
        if isinstance(inbox, PendingTopic):
            return self._send_next_anywhere(inbox)
        assert isinstance(inbox, Pump)
        if inbox.held and not self._closed:
            self._watch_inbox(inbox)
            return False
        self.launch(inbox, inbox.take)
        return True

    def _send_next_anywhere(self, topic: PendingTopic) -> bool:
        if self.config.linger_s and self._lingers(topic):
            return False
        if self._closed or topic.targets is None or topic.backlog:
            self.launch(topic, self.place)
            return True
        target = self.destinations.next_target(topic)
        connection = target.lane.ready()
        if connection is not None and not target.lane.accumulator.has_room:
            now = self.clock()
            # avoided ones have room, but are not to get what the others have none for
            lanes = {one.lane: None for one in topic.targets if one.lane.avoid_until <= now}
            # it is avoided only if all are
            lanes[target.lane] = None
            for lane in lanes:
                connection = lane.ready()
                if lane.down is None and connection is not None and lane.accumulator.has_room:
                    target = targets_on(topic, lane)[0]
                    break
            else:
                for lane in lanes:
                    if lane.ready() is not None:
                        lane.accumulator.expect(topic)
                self._watch_inbox(topic)
                return False
        if connection is None:
            self.launch(topic, self.place)
        else:
            least = min(targets_on(topic, target.lane), key=attrgetter("sent"))
            target = least if least.sent < target.sent else target
            accumulator, ready = target.lane.accumulator, connection
            self.launch(topic, lambda pending: accumulator.start([pending], target, ready))
        return True

    def launch(self, inbox: Inbox, way: Callable[[PendingSend], None]) -> None:
        """Let the next batch of an inbox go its *way*."""
        self.expire(inbox)
        if not inbox.inbox:
            return
        pending = self.form(inbox)
        try:
            if self._closed:
                raise IllegalStateError(CLOSED_MEANWHILE)
            if not self.client.running:
                # from now on submit raises: a callback that submits again would never end
                self._plain_bytes = 0
                self.client.check_running()
            way(pending)
        except BaseException as exc:
            # even SystemExit: nobody else would hear of it
            self._finish(pending, None, exc)
            if not pending.future.done():
                pending.future.set_exception(exc)
            if must_pass(exc, None):
                raise

    def form(self, waiting: Inbox, most: int = MAX_BATCH_MESSAGES) -> PendingSend:
        """Take messages from the front of an inbox, as many as one request can carry."""
        config, inbox, now_ms = self.config, waiting.inbox, int(time.time() * 1000)
        share = -(-len(inbox) // len(waiting.queues)) if waiting.queues else 0
        most = min(len(inbox), max(share, MIN_BATCH), MAX_BATCH_MESSAGES, most)
        prefix, number = self._keys.take(now_ms, most)
        outcome = BatchOutcome(self._loop, prefix, number)
        body, count = SendHandle._fill(inbox, outcome, prefix, number, config.max_batch_bytes, most)
        outcome.handles, outcome.count = inbox[:count], count
        del inbox[:count]
        first, last = outcome.handles[0], outcome.handles[-1]
        pending = self._submitted(waiting.name, body, outcome, f"{prefix}{number:012X}", now_ms)
        pending.started, pending.deadline = first._since, last._since + config.send_timeout_s
        return pending

    def _submitted(
        self, topic: str, body: bytes, outcome: BatchOutcome, key: str, now_ms: int
    ) -> PendingSend:
        """Return what is sent for messages that were submitted; *body* is that of a batch."""
        count = outcome.count
        if count == 1:
            [(flag, body, properties)] = decode_batch(body)
            pending = PendingSend(topic, body, "", None, None, flag=flag)
            pending.properties = properties
            pending.size += len(properties) - KEY_BYTES
        else:
            pending = PendingSend(topic, body, "", None, None, batch=[])
            pending.properties = BATCH_PROPERTIES
            pending.size = len(body) + count * (OVERHEAD_BYTES - ITEM_BYTES)
        pending.count, pending.outcome, pending.future = count, outcome, outcome
        pending.key, pending.born_ms = key, now_ms
        self._under_way.add(pending)
        return pending

    def split(self, pending: PendingSend) -> list[PendingSend]:
        """Return the messages of a batch that was submitted, each by itself."""
        whole = pending.outcome
        assert whole is not None
        pending.finished = True
        self._under_way.discard(pending)
        self._watch.drop(pending)
        singles: list[PendingSend] = []
        keys = [whole.key_of(index) for index in range(whole.count)]
        # an earlier try stored it, with a weaker guarantee than wished for
        results = None if pending.result is None else split_result(pending.result, keys)
        for handle, item in zip(whole.handles, decode_batch(pending.body), strict=True):
            outcome = BatchOutcome(self._loop)
            outcome.handles = [handle]
            handle._index, handle._batch = 0, outcome
            index = len(singles)
            one = self._submitted(
                pending.topic, encode_batch([item]), outcome, keys[index], pending.born_ms
            )
            one.result = None if results is None else results[index]
            one.started, one.deadline, one.alone = pending.started, pending.deadline, True
            one.tries, one.tried, one.error = pending.tries, pending.tried, pending.error
            one.target, one.unknown = pending.target, pending.unknown
            one.pinned = pending.pinned
            singles.append(one)
        whole.handles = []
        for waiting, _ in self._flushes:
            if pending in waiting:
                waiting.update(singles)
                waiting.discard(pending)
        return singles

    def _watch_inbox(self, inbox: Inbox) -> None:
        """End what waits in the inbox in time."""
        if inbox.expiry is None and inbox.inbox:
            deadline = inbox.inbox[0]._since + self.config.send_timeout_s
            inbox.expiry = self._loop.call_at(deadline, self._expire_inbox, inbox)

    def _expire_inbox(self, inbox: Inbox) -> None:
        inbox.expiry = None
        # uvloop's clock counts milliseconds
        self.expire(inbox, early_s=0.001)
        self._watch_inbox(inbox)

    def expire(self, waiting: Inbox, early_s: float = 0.0) -> None:
        """End the messages of an inbox whose time is up, as not sent."""
        inbox, latest = waiting.inbox, self._loop.time() - self.config.send_timeout_s + early_s
        while inbox and inbox[0]._since <= latest:
            due = next((i for i, one in enumerate(inbox) if one._since > latest), len(inbox))
            pending = self.form(waiting, due)
            pending.target = next(iter(waiting.queues), None)
            self._expire([pending])

    def watch(self, pending: PendingSend) -> None:
        """End the message when its time is up."""
        self._watch.add(pending)

    def handle_of(
        self, pending: PendingSend, on_done: Callable[[SendHandle], object] | None
    ) -> SendHandle:
        """Return the handle of a message that is accepted in the long way."""
        outcome = pending.future = BatchOutcome(self._loop)
        handle = SendHandle(outcome, b"", b"", 0.0, None if on_done is None else [on_done])
        outcome.handles = [handle]
        return handle

    def _begin(self, pending: PendingSend, timeout_s: float) -> None:
        try:
            if self._closed:
                raise IllegalStateError("the producer is closed: make a new one")
            seal(pending, self._keys, self._loop.time(), timeout_s, whole=self.config.whole_batches)
            self._under_way.add(pending)
            self.place(pending)
        except BaseException as exc:
            self._finish(pending, None, exc)
            raise

    # --- placing ----------------------------------------------------------------------------------

    def place(self, pending: PendingSend) -> None:
        """Give the message a queue, as soon as its topic has any."""
        topic = self._topics.get(pending.topic) or self.destinations.add_topic(pending.topic)
        if topic.targets is None or topic.backlog:
            self._resolver.park(topic, pending)
        else:
            self.place_in(topic, pending)

    def place_in(
        self, topic: PendingTopic, pending: PendingSend, avoid: Lane | None = None
    ) -> None:
        """Give the message one of the topic's queues, which are known, and send it if the way is
        free.
        """
        if pending.pinned:
            self._place_in_order(topic, pending)
            return
        pending.target = target = self.destinations.next_target(topic, avoid)
        lane = target.lane
        connection = lane.ready()
        if connection is None:
            self._connector.park(lane, pending)
        else:
            lane.accumulator.send(topic, pending, connection)

    def _place_in_order(self, topic: PendingTopic, pending: PendingSend) -> None:
        pending.target = target = pinned_target(topic, pending)
        if target is None:
            self.end(pending, no_such_queue(topic, pending))
            return
        if target.ordered is None:
            target.ordered = OrderedQueue(target, self.config, self._connector, self)
        target.ordered.put(pending)

    def send(self, pending: PendingSend, connection: Connection) -> None:
        """Send a message that needs no order to the queue that it has."""
        assert pending.target is not None
        topic = self._topics.get(pending.topic) or self.destinations.add_topic(pending.topic)
        pending.target.lane.accumulator.send(topic, pending, connection)

    async def send_oneway(self, pending: PendingSend, timeout_s: float) -> None:
        """Hand the message to a connection, and ask for no answer.

        Raises only what happens before that.
        """
        now_ms = int(time.time() * 1000)
        properties = with_unique_key(self._keys.next(now_ms), pending.text)
        topic = self._topics.get(pending.topic) or self.destinations.add_topic(pending.topic)
        try:
            async with asyncio.timeout(timeout_s):
                if topic.targets is None:
                    await self._resolver.find(topic, timeout_s)
                if pending.unusual_level:
                    await self._levels.check(pending, timeout_s)
                target = (
                    pinned_target(topic, pending)
                    if pending.pinned
                    else self.destinations.next_target(topic)
                )
                if target is None:
                    raise no_such_queue(topic, pending)
                connection = await self.client.pool.get(
                    self.client.routes.broker_address(target.queue.broker_name)
                )
                await connection.drain()
        except TimeoutError:
            raise SendFailed(
                f"message for {pending.topic} was not sent within {timeout_s:.1f} s"
            ) from None
        opaque = connection.next_opaque()
        connection.write(
            target.encoder.single(
                opaque,
                now_ms,
                properties,
                pending.body,
                pending.sys_flag,
                pending.flag,
                oneway=True,
            )
        )

    # --- after a try ------------------------------------------------------------------------------

    def stored(self, pending: PendingSend, target: Target, result: SendResult) -> None:
        """Take the answer to a try, which stored a message that needs no order."""
        if self.config.avoid_slow_brokers:
            now = self._loop.time()
            target.lane.note(now - pending.sent_at, now)
        if (
            result.status is not SendStatus.SEND_OK
            and self.config.retry_when_not_stored_ok
            and not pending.once
        ):
            pending.result = result
            self.attempt_failed(
                pending, SendFailed(f"{target.lane.address} answered {result.status.name}")
            )
            return
        self.succeed(pending, result)

    def note_failure(self, pending: PendingSend, error: OgiveError) -> bool:
        """Record a failed try. Return True if another one is allowed."""
        lane = pending.target.lane if pending.target is not None else None
        pending.error = error
        pending.unknown = pending.unknown or error.outcome_unknown
        pending.tried = (pending.tried or set()) | (
            {f"{lane.broker_name} ({lane.address})"} if lane is not None else set()
        )
        if is_final(error) or (pending.once and error.outcome_unknown):
            return False
        now = self._loop.time()
        if lane is not None and self.config.avoid_slow_brokers:
            lane.note(FAILED_S, now)
        return may_try_again(pending, error, self.config.retries, now)

    def attempt_failed(self, pending: PendingSend, error: OgiveError) -> None:
        """Try a message that needs no order again, or end it."""
        if self.note_failure(pending, error) and not pending.finished:
            self._watch.add(pending)
            self.spawn(self._try_again(pending, error), "send again")
        else:
            self.fail(pending)

    async def _try_again(self, pending: PendingSend, error: OgiveError) -> None:
        """Try another broker at once, the same one after a pause."""
        previous = pending.target
        topic = self._topics.get(pending.topic)
        lanes = {id(target.lane) for target in topic.targets or ()} if topic is not None else set()
        if pending.tries >= len(lanes) or error.refresh_route:
            await self.before_next_try(pending.topic, error, max(1, pending.tries - len(lanes) + 1))
        self._watch.drop(pending)
        if pending.finished:
            return
        if topic is None:
            # forgotten meanwhile, as one of too many
            self.place(pending)
        elif topic.targets is None or previous is None:
            self.fail(pending)
        else:
            self.place_in(topic, pending, avoid=previous.lane)

    async def before_next_try(self, topic: str, error: OgiveError, tries: int) -> None:
        """Pause, and refresh the route where the error asks for it."""
        if error.refresh_route:
            try:
                await self.client.routes.refresh(topic, doubted=isinstance(error, ConnectError))
            except OgiveError as exc:
                # the route that is known may still be right
                log.debug("send again to %s: %s", topic, exc)
        await asyncio.sleep(min(RETRY_PAUSE_S * 2 ** min(tries - 1, 4), MAX_PAUSE_S))

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self.client.spawn(work, name)

    def _expire(self, due: list[PendingSend]) -> None:
        """End the messages whose time is up, whether they were sent or not."""
        for pending in due:
            target = pending.target
            if pending.on_way and target is not None:
                waited = self._loop.time() - pending.started
                self.note_failure(
                    pending,
                    RequestTimeout(f"no answer from {target.lane.address} within {waited:.1f} s"),
                )
            elif target is not None and pending.error is None:
                pending.error = target.lane.down or held_up(target)
            self.fail(pending)
        self.destinations.drop_finished()

    # --- the outcome ------------------------------------------------------------------------------

    def succeed(self, pending: PendingSend, result: SendResult) -> None:
        if self.client.namespace:
            result = replace(result, queue=self.client.namespace.strip_queue(result.queue))
        self._count(pending, stored=True)
        self._finish(pending, result, None)
        if not pending.future.done():
            pending.future.set_result(result)

    def fail(self, pending: PendingSend) -> None:
        """End it with the result of its tries: an error, unless one of them stored it."""
        if pending.result is not None:
            self.succeed(pending, pending.result)
        else:
            self.end(pending, outcome_of(pending, self._loop.time(), self.client.name_servers))

    def end(self, pending: PendingSend, error: OgiveError) -> None:
        self._count(pending, stored=False)
        self._finish(pending, None, error)
        # its traceback would keep the message in memory
        pending.error = None
        if not pending.future.done():
            pending.future.set_exception(error)

    def _count(self, pending: PendingSend, *, stored: bool) -> None:
        if not pending.finished:
            # a batch of send_batch counts by its list
            count = len(pending.batch) if pending.batch else pending.count
            self._metrics.sent(
                pending.topic, self._loop.time() - pending.started, count, stored=stored
            )

    def _finish(
        self, pending: PendingSend, result: SendResult | None, error: BaseException | None
    ) -> None:
        """Release what the message holds, once. The caller sets its future."""
        if pending.finished:
            return
        pending.finished = True
        if pending.on_end is not None:
            pending.on_end(pending, result, error)
        if pending.number >= 0:
            self._watch.drop(pending)
        self._under_way.discard(pending)
        self._limit.release(pending.size, pending.count)
        for waiting, flushed in self._flushes:
            waiting.discard(pending)
            if not waiting and not flushed.done():
                flushed.set_result(None)

    async def flush(self) -> None:
        """Wait until every message accepted so far has its outcome.

        Never longer than the longest time budget among them.
        """
        for topic in list(self._topics.values()):
            self._launch_all(topic)
        waiting = set(self._under_way)
        if not waiting:
            return
        latest = max(pending.deadline for pending in waiting)
        entry = (waiting, self._loop.create_future())
        self._flushes.append(entry)
        try:
            await asyncio.wait([entry[1]], timeout=latest - self._loop.time() + GRACE_S)
        finally:
            self._flushes.remove(entry)

    def close(self) -> None:
        """End what is left with an error, and take nothing more."""
        self._closed = True
        self.client.routes.on_change.remove(self._route_changed)
        self._connector.close()
        self._watch.clear()
        closed = IllegalStateError(CLOSED_MEANWHILE)
        self._limit.close(closed)
        for topic in list(self._topics.values()):
            inboxes: list[Inbox] = [topic, *topic.ordered]
            for timer in (topic.linger, *[inbox.expiry for inbox in inboxes]):
                if timer is not None:
                    timer.cancel()
            for inbox in inboxes:
                self.drain(inbox)
        for pending in list(self._under_way):
            self.end(pending, closed)
