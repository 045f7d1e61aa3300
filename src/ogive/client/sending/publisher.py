"""The producer's one engine: the place and the order of each message, and its retries.

Behaviour
- Messages that may go anywhere leave at once while little is on its way, and together beyond that,
  and messages with a sharding key or a fixed queue keep their order, see ``accumulator.py``.
  Messages that wait for a route or a connection keep their places, see ``connector.py``.
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
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ogive.client.config import ProducerConfig
from ogive.client.ids import UniqueKeys
from ogive.client.instance import ClientInstance
from ogive.client.routes import publish_queues
from ogive.client.sending.accumulator import Accumulator, OrderedQueue, seal
from ogive.client.sending.batches import Batches
from ogive.client.sending.connector import Connector, LevelCheck, Resolver
from ogive.client.sending.destinations import Destinations, no_such_queue, pinned_target
from ogive.client.sending.handle import (
    BatchOutcome,
    SendHandle,
)
from ogive.client.sending.in_flight import DeadlineWatch, InFlightLimit
from ogive.client.sending.inboxes import CLOSED_MEANWHILE, Inboxes
from ogive.client.sending.message_builder import MessageBuilder, with_unique_key
from ogive.client.sending.pending import (
    FAILED_S,
    Lane,
    PendingSend,
    PendingTopic,
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
    MessageQueue,
    SendResult,
    SendStatus,
)
from ogive.transport.connection import Connection
from ogive.wire.sends import SendEncoder

log = logging.getLogger(__name__)

RETRY_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 1.0
# beyond its deadline nobody waits for an outcome: it is lost if a second Ctrl-C stopped what the
# first one had to end
GRACE_S: Final = 1.0


class Publisher:
    """Engine of a producer: gives each message that it accepts exactly one outcome."""

    def __init__(
        self, client: ClientInstance, config: ProducerConfig, builder: MessageBuilder
    ) -> None:
        self.client = client
        self.config = config
        self._metrics = client.metrics
        self._loop = asyncio.get_running_loop()
        self.clock = self._loop.time
        self._keys = UniqueKeys()
        self._limit = InFlightLimit(config.max_in_flight, config.max_in_flight_bytes)
        self._watch = DeadlineWatch(self._loop, self.end_late)
        self.destinations = Destinations(self._loop, self._make_lane, self._make_target)
        self._topics = self.destinations.topics
        self._resolver = Resolver(
            client, config.default_topic_queues, self.destinations, self._watch, self
        )
        self._batches = Batches(self._loop, config, self._keys, builder.ended)
        self.inboxes = Inboxes(
            client, config, self.destinations, self._limit, self, builder, self._batches
        )
        # so that messages can still go elsewhere
        patience_s = config.send_timeout_s / 3
        self._levels = LevelCheck(client, config.default_topic_queues)
        self._connector = Connector(client, patience_s, self.destinations, self._watch, self)
        # without an outcome
        self.under_way: set[PendingSend] = set()
        self._flushes: list[tuple[set[PendingSend], asyncio.Future[None]]] = []
        self.closed = False
        client.routes.on_change.append(self._route_changed)

    def _make_lane(self, broker_name: str) -> Lane:
        lane = Lane(broker_name)
        lane.accumulator = Accumulator(lane, self.config, self._watch, self, self.inboxes)
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
        self.inboxes.end_lingering()
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

    def split(self, pending: PendingSend) -> list[PendingSend]:
        """Return the messages of a batch that was submitted, each by itself."""
        pending.finished = True
        self.under_way.discard(pending)
        self._watch.drop(pending)
        singles = self._batches.split(pending)
        self.under_way.update(singles)
        for waiting, _ in self._flushes:
            if pending in waiting:
                waiting.update(singles)
                waiting.discard(pending)
        return singles

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
            if self.closed:
                raise IllegalStateError("the producer is closed: make a new one")
            seal(pending, self._keys, self._loop.time(), timeout_s, whole=self.config.whole_batches)
            self.under_way.add(pending)
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
            target.ordered = OrderedQueue(target, self.config, self._connector, self, self.inboxes)
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
            self.client.spawn(self._try_again(pending, error), "send again")
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

    def end_late(self, due: list[PendingSend]) -> None:
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
        if self.client.namespace.name:
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

    def abort(self, pending: PendingSend, error: BaseException) -> None:
        """End a message with an error that is no answer of a broker."""
        self._finish(pending, None, error)
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
        self.under_way.discard(pending)
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
            self.inboxes.launch_all(topic)
        waiting = set(self.under_way)
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
        self.closed = True
        self.client.routes.on_change.remove(self._route_changed)
        self._connector.close()
        self._watch.clear()
        closed = IllegalStateError(CLOSED_MEANWHILE)
        self._limit.close(closed)
        self.inboxes.close()
        for pending in list(self.under_way):
            self.end(pending, closed)
