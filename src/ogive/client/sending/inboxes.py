"""Inboxes of submitted messages: they wait there for the loop, and leave as batches.

From any thread ``offer`` appends a message to the inbox of its topic or of its ordered queue. The
loop makes one batch of all that is there, by ``form``, as soon as a request may be on its way.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Final

from ogive.client.config import ProducerConfig
from ogive.client.hooks import must_pass
from ogive.client.ids import UniqueKeys
from ogive.client.instance import ClientInstance
from ogive.client.routes import choose_queue
from ogive.client.sending.destinations import Destinations, targets_on
from ogive.client.sending.handle import ITEM_BYTES, KEY_BYTES, BatchOutcome, SendHandle
from ogive.client.sending.in_flight import InFlightLimit
from ogive.client.sending.message_builder import (
    message_property_text,
    property_text,
    sharing_message,
    stored_text,
)
from ogive.client.sending.pending import (
    BATCH_PROPERTIES,
    OVERHEAD_BYTES,
    Inbox,
    PendingSend,
    PendingTopic,
    Publishing,
    Pump,
)
from ogive.errors import IllegalStateError
from ogive.model import MAX_BODY_BYTES, Message, MessageQueue, as_keys
from ogive.wire.message import MAX_BATCH_MESSAGES, decode_batch

CLOSED_MEANWHILE: Final = "the producer was closed before the message had an outcome"
# what is in an inbox is shared by the queues, but smaller batches are not worth it
MIN_BATCH: Final = 256
# property texts of messages with a tag alone
MAX_TEXTS: Final = 256


class NoRoom(Exception):
    """A message that was offered has to wait for room: await ``wait`` with its time budget."""

    def __init__(self, inboxes: "Inboxes", inbox: Inbox, handle: SendHandle) -> None:
        self._inboxes, self._inbox, self._handle = inboxes, inbox, handle

    async def wait(self, timeout_s: float) -> SendHandle:
        """Submit the message once there is room. Raises SendFailed."""
        return await self._inboxes.accept(self._inbox, self._handle, timeout_s)


class Inboxes:
    """The inboxes of all topics and ordered queues of a producer."""

    def __init__(
        self,
        client: ClientInstance,
        config: ProducerConfig,
        destinations: Destinations,
        limit: InFlightLimit,
        keys: UniqueKeys,
        publisher: Publishing,
        *,
        is_observed: bool,
    ) -> None:
        """Make the inboxes. *is_observed*: every message is built in the long way."""
        self._client = client
        self._config = config
        self._destinations = destinations
        self._topics = destinations.topics
        self._limit = limit
        self._keys = keys
        self._publisher = publisher
        self._loop = asyncio.get_running_loop()
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
            namespace = self._client.namespace
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

    async def accept(self, inbox: Inbox, handle: SendHandle, timeout_s: float) -> SendHandle:
        """Wait for room, then submit the message. Raises SendFailed."""
        assert handle._body is not None
        assert handle._text is not None
        self.end_lingering()
        await self._limit.wait(len(handle._body) + len(handle._text) + OVERHEAD_BYTES, timeout_s)
        inbox.inbox.append(handle)
        self.drain(inbox)
        return handle

    def _is_full(self, topic: PendingTopic) -> bool:
        """Return True if a batch of messages like the last one in the inbox is full."""
        body = topic.inbox[-1]._body if topic.inbox else None
        size = ITEM_BYTES + len(body or b"")
        return size * len(topic.inbox) >= self._config.max_batch_bytes

    def _lingers(self, topic: PendingTopic) -> bool:
        """Return True if what is in the inbox waits for more, see ProducerConfig.linger_s."""
        due = topic.inbox[0]._since + self._config.linger_s
        # uvloop's clock counts milliseconds
        if (
            self._publisher.closed
            or self._limit.is_contended
            or self._is_full(topic)
            or due <= self._loop.time() + 0.001
        ):
            return False
        if topic.linger is None:
            topic.linger = self._loop.call_at(due, self._linger_over, topic)
        return True

    def end_lingering(self) -> None:
        """Send what lingers: else nothing may make room before its end."""
        # while anybody waits for room, nothing begins to linger
        if self._config.linger_s and not self._limit.is_contended:
            for topic in list(self._topics.values()):
                while topic.linger is not None and topic.inbox:
                    self.launch(topic, self._publisher.place)

    def launch_all(self, topic: PendingTopic) -> None:
        """Let everything in the topic's inboxes go its way."""
        while topic.inbox:
            self.launch(topic, self._publisher.place)
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
        if inbox.held and not self._publisher.closed:
            self._watch_inbox(inbox)
            return False
        self.launch(inbox, inbox.take)
        return True

    def _send_next_anywhere(self, topic: PendingTopic) -> bool:
        if self._config.linger_s and self._lingers(topic):
            return False
        if self._publisher.closed or topic.targets is None or topic.backlog:
            self.launch(topic, self._publisher.place)
            return True
        target = self._destinations.next_target(topic)
        connection = target.lane.ready()
        if connection is not None and not target.lane.accumulator.has_room:
            now = self._loop.time()
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
            self.launch(topic, self._publisher.place)
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
            if self._publisher.closed:
                raise IllegalStateError(CLOSED_MEANWHILE)
            if not self._client.running:
                # from now on submit raises: a callback that submits again would never end
                self._plain_bytes = 0
                self._client.check_running()
            way(pending)
        except BaseException as exc:
            # even SystemExit: nobody else would hear of it
            self._publisher.abort(pending, exc)
            if must_pass(exc, None):
                raise

    def form(self, waiting: Inbox, most: int = MAX_BATCH_MESSAGES) -> PendingSend:
        """Take messages from the front of an inbox, as many as one request can carry."""
        config, inbox, now_ms = self._config, waiting.inbox, int(time.time() * 1000)
        share = -(-len(inbox) // len(waiting.queues)) if waiting.queues else 0
        most = min(len(inbox), max(share, MIN_BATCH), MAX_BATCH_MESSAGES, most)
        prefix, number = self._keys.take(now_ms, most)
        outcome = BatchOutcome(self._loop, prefix, number)
        body, count = SendHandle._fill(inbox, outcome, prefix, number, config.max_batch_bytes, most)
        outcome.handles, outcome.count = inbox[:count], count
        del inbox[:count]
        first, last = outcome.handles[0], outcome.handles[-1]
        pending = make_pending(waiting.name, body, outcome, f"{prefix}{number:012X}", now_ms)
        self._publisher.under_way.add(pending)
        pending.started, pending.deadline = first._since, last._since + config.send_timeout_s
        return pending

    def _watch_inbox(self, inbox: Inbox) -> None:
        """End what waits in the inbox in time."""
        if inbox.expiry is None and inbox.inbox:
            deadline = inbox.inbox[0]._since + self._config.send_timeout_s
            inbox.expiry = self._loop.call_at(deadline, self._expire_inbox, inbox)

    def _expire_inbox(self, inbox: Inbox) -> None:
        inbox.expiry = None
        # uvloop's clock counts milliseconds
        self.expire(inbox, early_s=0.001)
        self._watch_inbox(inbox)

    def expire(self, waiting: Inbox, early_s: float = 0.0) -> None:
        """End the messages of an inbox whose time is up, as not sent."""
        inbox, latest = waiting.inbox, self._loop.time() - self._config.send_timeout_s + early_s
        while inbox and inbox[0]._since <= latest:
            due = next((i for i, one in enumerate(inbox) if one._since > latest), len(inbox))
            pending = self.form(waiting, due)
            pending.target = next(iter(waiting.queues), None)
            self._publisher.end_late([pending])

    def close(self) -> None:
        """Cancel the timers, and end what is in the inboxes of a closed publisher."""
        for topic in list(self._topics.values()):
            inboxes: list[Inbox] = [topic, *topic.ordered]
            for timer in (topic.linger, *[inbox.expiry for inbox in inboxes]):
                if timer is not None:
                    timer.cancel()
            for inbox in inboxes:
                self.drain(inbox)


def make_pending(
    topic: str, body: bytes, outcome: BatchOutcome, key: str, now_ms: int
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
    return pending
