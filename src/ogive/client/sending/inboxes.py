"""Inboxes of submitted messages: they wait there for the loop, and leave as batches.

From any thread ``offer`` appends a message to the inbox of its topic or of its ordered queue. The
loop makes one batch of all that is there, by ``form``, as soon as a request may be on its way.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

from ogive.client.config import ProducerConfig
from ogive.client.instance import ClientInstance
from ogive.client.instrumentation import must_pass
from ogive.client.routes import choose_queue
from ogive.client.sending.batches import Batches, Observed
from ogive.client.sending.destinations import Destinations, targets_on
from ogive.client.sending.handle import ITEM_BYTES, BatchOutcome, SendHandle
from ogive.client.sending.in_flight import InFlightLimit
from ogive.client.sending.message_builder import (
    MessageBuilder,
    as_message,
    check_arguments,
    may_stand_in_batch,
    message_property_text,
    stored_text,
)
from ogive.client.sending.pending import (
    OVERHEAD_BYTES,
    Inbox,
    PendingSend,
    PendingTopic,
)
from ogive.errors import IllegalStateError
from ogive.model import MAX_BODY_BYTES, Message, MessageQueue
from ogive.wire.message import MAX_BATCH_MESSAGES

if TYPE_CHECKING:
    from ogive.client.sending.accumulator import OrderedQueue
    from ogive.client.sending.publisher import Publisher

CLOSED_MEANWHILE: Final = "the producer was closed before the message had an outcome"


class NoRoom(Exception):
    """A message that was offered has to wait for room: await ``wait``.

    It submits the message once there is room, and raises SendFailed if its time is up before.
    """

    def __init__(
        self, wait: Callable[[], Coroutine[Any, Any, SendHandle]], budget_s: float
    ) -> None:
        self.wait, self.budget_s = wait, budget_s


class Inboxes:
    """The inboxes of all topics and ordered queues of a producer."""

    def __init__(
        self,
        client: ClientInstance,
        config: ProducerConfig,
        destinations: Destinations,
        limit: InFlightLimit,
        publisher: "Publisher",
        builder: MessageBuilder,
        batches: Batches,
    ) -> None:
        self._client = client
        self._config = config
        self._destinations = destinations
        self._topics = destinations.topics
        self._limit = limit
        self._publisher = publisher
        self._builder = builder
        self._batches = batches
        self._loop = asyncio.get_running_loop()
        # smaller bodies can be sent as they are
        self._plain_bytes = (
            MAX_BODY_BYTES + 1
            if config.compress_over_bytes is None
            else min(config.compress_over_bytes, MAX_BODY_BYTES + 1)
        )
        self._wrap = client.namespace.wrap if client.namespace else None
        self._not_sent = BatchOutcome(self._loop)
        # threads that are about to wake the loop
        self._wakers: list[None] = []

    def offer(
        self,
        given: str | Message,
        body: Any,
        tag: str | None,
        keys: str | Iterable[str],
        properties: Mapping[str, str] | None,
        sharding_key: str | None,
        queue: MessageQueue | None,
        delay_level: int,
        deliver_at: datetime | None,
        delay_s: float | None,
        priority: int | None,
        own_budget_s: float | None,
        now: float,
        on_done: Callable[[SendHandle], object] | None,
    ) -> SendHandle | PendingSend:
        """Submit a message that can stand in a batch; return any other, which has to be accepted.
        Any thread may call this, at *now* of the loop's clock.

        Raises what the serializer and ``Message`` raise, InvalidOption, MessageIllegal, and NoRoom.
        """
        builder = self._builder
        if builder.serializer is not None:
            body = builder.raw(body)
        message: Message | None = None
        observed: Observed | None = None
        if builder.is_observed or properties or not isinstance(given, str):
            check_arguments(sharding_key, queue)
            message = as_message(
                given,
                body,
                tag,
                keys,
                properties,
                sharding_key,
                delay_level,
                deliver_at,
                delay_s,
                priority,
            )
            if builder.is_observed:
                self._client.check_running()
                observed = builder.begin(message)
                message = observed[0]
            name, body, tag, keys = message.topic, message.body, message.tag, message.keys
            sharding_key = message.sharding_key
            stands = may_stand_in_batch(message)
        else:
            name = given
            stands = not delay_level and deliver_at is None and delay_s is None and priority is None
        topic = self._topics.get(name if self._wrap is None else self._wrap(name))
        inbox: Inbox | None = None
        if (
            stands
            and topic is not None
            and type(body) is bytes
            and len(body) < self._plain_bytes
            and topic.shares_batches
        ):
            alone = sharding_key is None and queue is None
            inbox = topic if alone else self._ordered(topic, sharding_key, queue)
        if inbox is None:
            if message is not None:
                return builder.pending_of(message, () if observed is None else observed[1], queue)
            return builder.message(
                name,
                body,
                tag,
                keys,
                None,
                sharding_key,
                queue,
                delay_level,
                deliver_at,
                delay_s,
                priority,
            )
        if message is not None and message.properties:
            text = stored_text(message_property_text(message))
        elif tag is None and keys == () and sharding_key is None:
            text = b""
        else:
            text = builder.stored_text(name, body, tag, keys, sharding_key)
        flag = 0 if message is None else message.flag
        handle = SendHandle(self._not_sent, body, text, now, None if on_done is None else [on_done])
        if not self._limit.take(len(body) + len(text) + OVERHEAD_BYTES):
            budget_s = self._config.send_timeout_s if own_budget_s is None else own_budget_s
            raise NoRoom(
                partial(self._wait_for_room, inbox, handle, own_budget_s, observed, flag), budget_s
            )
        if own_budget_s is not None or observed is not None or flag:
            self._batches.note(handle, own_budget_s, observed, flag)
        inbox.inbox.append(handle)
        if (
            not inbox.busy
            or self._wakers
            or (inbox.linger is not None and (own_budget_s is not None or self._is_full(inbox)))
        ):
            self._wake(inbox)
        return handle

    def _ordered(
        self, topic: PendingTopic, sharding_key: str | None, queue: MessageQueue | None
    ) -> "OrderedQueue | None":
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

    async def _wait_for_room(
        self,
        inbox: Inbox,
        handle: SendHandle,
        own_budget_s: float | None,
        observed: Observed | None,
        flag: int,
    ) -> SendHandle:
        """Wait for room, then submit the message. Raises SendFailed."""
        assert handle._body is not None
        assert handle._text is not None
        self.end_lingering()
        budget_s = self._config.send_timeout_s if own_budget_s is None else own_budget_s
        try:
            size = len(handle._body) + len(handle._text) + OVERHEAD_BYTES
            await self._limit.wait(size, budget_s)
        except BaseException as exc:
            self._batches.refuse(inbox, observed, exc)
            raise
        self._batches.note(handle, own_budget_s, observed, flag)
        inbox.inbox.append(handle)
        self.drain(inbox)
        return handle

    def _is_full(self, waiting: Inbox) -> bool:
        """Return True if a batch of messages like the last one in the inbox is full."""
        body = waiting.inbox[-1]._body if waiting.inbox else None
        size = ITEM_BYTES + len(body or b"")
        return size * len(waiting.inbox) >= self._config.max_batch_bytes

    def _lingers(self, topic: PendingTopic) -> bool:
        """Return True if what is in the inbox waits for more, see ProducerConfig.linger_s."""
        due = topic.inbox[0]._since + self._config.linger_s
        # uvloop's clock counts milliseconds
        if (
            self._publisher.closed
            or self._limit.is_contended
            or self._is_full(topic)
            or self._batches.has_own_budgets
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
                # an append before that line did not wake the loop
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
        ordered = cast("OrderedQueue", inbox)
        if ordered.held and not self._publisher.closed:
            self._watch_inbox(inbox)
            return False
        self.launch(ordered, ordered.take)
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
        pending = self._batches.form(waiting, most)
        self._publisher.under_way.add(pending)
        return pending

    def _watch_inbox(self, inbox: Inbox) -> None:
        """End what waits in the inbox in time."""
        if inbox.expiry is None and inbox.inbox:
            deadline = self._batches.next_look(inbox)
            inbox.expiry = self._loop.call_at(deadline, self._expire_inbox, inbox)

    def _expire_inbox(self, inbox: Inbox) -> None:
        inbox.expiry = None
        # uvloop's clock counts milliseconds
        self.expire(inbox, early_s=0.001)
        self._watch_inbox(inbox)

    def expire(self, waiting: Inbox, early_s: float = 0.0) -> None:
        """End the messages of an inbox whose time is up, as not sent."""
        while due := self._batches.bring_due_forward(waiting, self._loop.time() + early_s):
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
