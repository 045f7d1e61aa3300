"""The engine under the producer: where each message goes, in which order, and what happens when a try fails.

Behaviour
- Messages that may go anywhere leave at once while little is on its way, and together beyond that, see ``merging.py``. Messages with a
  sharding key or a fixed queue keep their order, see ``ordered.py``. Messages that wait for a route or a connection keep their places.
- One time budget covers a message from its acceptance to its answer. Connecting counts as waiting, not as a try: a broker that restarts is
  waited for, and messages that may go anywhere move to a broker that can be reached.
- A failed try is repeated on another broker's queue if there is one; a message that is bound to its queue is repeated there. A broker that
  says it is busy is asked again, with growing pauses, as long as the budget lasts (unless there are to be no retries at all).
- A message whose fate is unknown after the last try fails with SendTimeout; one that was certainly not stored with another error.

Differs from Java
- Retries on another queue carry that queue's id. A busy broker is asked again after a pause, not at once.
- The number and the bytes of messages in flight are always bounded.

Everything here runs on the client's loop. There is no task per message: only failures start one.
"""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, Final

from ogive.client.config import ProducerConfig
from ogive.client.ids import UniqueKeys
from ogive.client.instance import ClientInstance
from ogive.client.merging import BATCH_PROPERTIES, Merger, result_of
from ogive.client.ordered import OrderedQueue
from ogive.client.outgoing import FAILED_S, Lane, Outgoing, Pump, Target, Topic
from ogive.client.room import Room
from ogive.client.routes import NotWritable, auto_create_route, publish_queues
from ogive.client.send_frame import SendFrames, with_unique_key
from ogive.errors import (
    BrokerBusy,
    BrokerError,
    ConnectError,
    IllegalStateError,
    NoNameServer,
    NoRoute,
    OgiveError,
    ProtocolError,
    RequestTimeout,
    ResponseCode,
    SendFailed,
    SendTimeout,
    TransportError,
)
from ogive.model import AUTO_CREATE_TOPIC, MessageQueue, SendResult, SendStatus
from ogive.transport.connection import Connection
from ogive.transport.deadlines import Deadlines
from ogive.wire.command import RemotingCommand
from ogive.wire.message import BatchItem, encode_batch, java_hash

log = logging.getLogger(__name__)

MAX_TOPICS: Final = 10_000
RETRY_PAUSE_S: Final = 0.1
HEAD_START_S: Final = 0.1  # a route is given up so long before its message's deadline: the error then says what was missing
MAX_PAUSE_S: Final = 1.0
GRACE_S: Final = 1.0  # beyond its deadline nobody waits for an outcome: it is lost if a second Ctrl-C stopped what the first one had to end
CLOSED_MEANWHILE: Final = "the producer was closed before the message had an outcome"


class Publisher:
    """Takes Outgoing messages and sees to it that each gets exactly one outcome."""

    def __init__(self, client: ClientInstance, config: ProducerConfig) -> None:
        self.client = client
        self.config = config
        self._loop = asyncio.get_running_loop()
        self._keys = UniqueKeys()
        self._topics: dict[str, Topic] = {}
        self._lanes: dict[str, Lane] = {}
        self.under_way: set[Outgoing] = set()  # without an outcome; the loop's, and a blocking sender's for its own message (lone.py)
        self._room = Room(config.max_in_flight, config.max_in_flight_bytes)
        self._deadlines = Deadlines(self._loop, self._expire)
        self._numbers = itertools.count()
        self._watched: dict[int, Outgoing] = {}  # by number
        self._flushes: list[tuple[set[Outgoing], asyncio.Future[None]]] = []
        self._closed = False
        self.on_close: list[Callable[[], None]] = []
        client.on_route_change.append(self._route_changed)

    # --- accepting ---------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Messages accepted and without an outcome. Any thread may look."""
        return len(self.under_way)

    def has_room(self, size: int) -> bool:
        """Whether a message of *size* may be accepted at once, without passing others that wait."""
        return self._room.has(size)

    async def accept(self, outgoing: Outgoing, timeout_s: float) -> None:
        """Wait for room, then take the message. Raises SendFailed if none comes in time; a cancelled wait sends nothing."""
        if self._room.has(outgoing.size):
            self.take(outgoing, timeout_s)
            return
        started = self._loop.time()
        try:
            await self._room.wait(outgoing.size, timeout_s)
        except BaseException as exc:
            self._refused(outgoing, exc)
            raise
        self._begin_or_refuse(outgoing, timeout_s - (self._loop.time() - started))

    def take(self, outgoing: Outgoing, timeout_s: float) -> None:
        """Accept without asking for room. Every way from here ends in the message's future. Raises IllegalStateError after the end."""
        self._room.take(outgoing.size)
        self._begin_or_refuse(outgoing, timeout_s)

    def _begin_or_refuse(self, outgoing: Outgoing, timeout_s: float) -> None:
        """Raises MessageIllegal for properties that no broker takes, IllegalStateError after the end; the room is free again then."""
        try:
            self._begin(outgoing, timeout_s)
        except OgiveError as exc:
            self._room.give_back(outgoing.size)
            self._refused(outgoing, exc)
            raise

    def _refused(self, outgoing: Outgoing, error: BaseException) -> None:
        if outgoing.on_end is not None:
            outgoing.on_end(outgoing, None, error)

    def _begin(self, outgoing: Outgoing, timeout_s: float) -> None:
        if self._closed:
            raise IllegalStateError("the producer is closed: make a new one")
        form(outgoing, self._keys, self._loop.time(), timeout_s)
        self.under_way.add(outgoing)
        self.place(outgoing)

    # --- routes ------------------------------------------------------------------------------------------------------

    def _add_topic(self, name: str) -> Topic:
        if len(self._topics) >= MAX_TOPICS:
            for old in [topic.name for topic in self._topics.values() if topic.idle][: MAX_TOPICS // 10]:
                del self._topics[old]
        topic = self._topics[name] = Topic(name)
        return topic

    def _park_for_route(self, topic: Topic, outgoing: Outgoing) -> None:
        topic.backlog.append(outgoing)
        self.watch(outgoing)
        if not topic.resolving:
            topic.resolving = True
            self.client.spawn(self._resolve(topic), f"route of {topic.name}")

    async def _resolve(self, topic: Topic) -> None:
        """Find the topic's queues, then let the backlog go; if there are none, everything that waited for the answer fails."""
        try:
            while topic.backlog:
                asking = list(topic.backlog)
                try:
                    first_deadline = min(outgoing.deadline for outgoing in asking)
                    queues = await self.queues(topic.name, first_deadline - self._loop.time() - HEAD_START_S)
                except NoNameServer as exc:  # that is no answer: messages with time left wait for the next
                    for outgoing in asking:
                        outgoing.error = exc
                    last_try = self._loop.time() + RETRY_PAUSE_S + HEAD_START_S
                    self._give_up(topic, [outgoing for outgoing in asking if outgoing.deadline <= last_try], exc)
                    await asyncio.sleep(RETRY_PAUSE_S if topic.backlog else 0)
                    continue
                except OgiveError as exc:
                    self._give_up(topic, asking, exc)
                    continue
                self._set_targets(topic, queues)
                while topic.backlog:
                    outgoing = topic.backlog[0]
                    if not outgoing.finished:
                        self.unwatch(outgoing)
                        outgoing.error = None
                        self._place(topic, outgoing)
                    topic.backlog.popleft()
        finally:
            topic.resolving = False

    def _give_up(self, topic: Topic, waiting: Iterable[Outgoing], error: OgiveError) -> None:
        for outgoing in waiting:
            self.unwatch(outgoing)
            self._end(outgoing, error)
        topic.backlog = deque(outgoing for outgoing in topic.backlog if not outgoing.finished)

    async def queues(self, topic: str, timeout_s: float) -> tuple[MessageQueue, ...]:
        """Where the topic lives; for one that is to be created by its first message, where brokers create topics."""
        budget = min(max(timeout_s, 0.01), self.client.config.request_timeout_s)
        try:
            return await self.client.publish_queues(topic, timeout_s=budget)
        except NotWritable:
            raise
        except NoRoute:
            if topic.startswith("%"):
                raise
            try:
                template = await self.client.route(AUTO_CREATE_TOPIC, timeout_s=budget)
            except NoRoute:
                template = None
            queues = publish_queues(topic, auto_create_route(template, self.config.default_topic_queues)) if template else ()
            if not queues:
                raise
            return queues

    def _set_targets(self, topic: Topic, queues: Iterable[MessageQueue]) -> None:
        known = topic.left | topic.by_queue
        most = max((target.sent for target in known.values()), default=0)  # a new queue gets its share, and not all until it has caught up
        topic.by_queue = {queue: known.get(queue) or self._make_target(queue, most) for queue in queues}
        topic.left = {queue: target for queue, target in known.items() if queue not in topic.by_queue and not target.idle}
        topic.targets = list(topic.by_queue.values()) or None

    def _make_target(self, queue: MessageQueue, sent: int) -> Target:
        lane = self._lanes.get(queue.broker_name) or self._add_lane(queue.broker_name)
        frames = SendFrames(self.config.group, queue, self.config.default_topic_queues, self.client.config)
        return Target(queue, lane, frames, sent)

    def _add_lane(self, broker_name: str) -> Lane:
        lane = self._lanes[broker_name] = Lane(broker_name)
        lane.merger = Merger(lane, self)
        return lane

    def _route_changed(self, name: str) -> None:
        topic = self._topics.get(name)
        route = self.client.known_route(name)
        if topic is not None and topic.targets is not None and route is not None:
            self._set_targets(topic, publish_queues(name, route))
        for lane in self._lanes.values():
            address = self.client.find_address(lane.broker_name)
            if address is not None and address != lane.address:
                lane.connection = None  # the broker moved; what is on its way there may still be answered
            if address is not None and lane.down is not None:
                self._start_opening(lane)

    # --- choosing and sending ----------------------------------------------------------------------------------------

    def _place(self, topic: Topic, outgoing: Outgoing) -> None:
        """Give the message its queue, and send it if the way is free."""
        assert topic.targets is not None
        if outgoing.pinned:
            self._place_in_order(topic, outgoing)
            return
        outgoing.target = target = self._next_target(topic)
        lane = target.lane
        connection = lane.ready()
        if connection is None:
            self._park_for_connection(lane, outgoing)
        else:
            lane.merger.send(topic, outgoing, connection)

    def _send(self, outgoing: Outgoing, connection: Connection) -> None:
        assert outgoing.target is not None
        topic = self._topics.get(outgoing.topic) or self._add_topic(outgoing.topic)
        outgoing.target.lane.merger.send(topic, outgoing, connection)

    def place(self, outgoing: Outgoing) -> None:
        topic = self._topics.get(outgoing.topic) or self._add_topic(outgoing.topic)
        if topic.targets is None or topic.backlog:
            self._park_for_route(topic, outgoing)
        else:
            self._place(topic, outgoing)

    def targets_on(self, topic: Topic, lane: Lane) -> list[Target]:
        return [target for target in topic.targets or () if target.lane is lane]

    def _place_in_order(self, topic: Topic, outgoing: Outgoing) -> None:
        outgoing.target = target = self._pinned_target(topic, outgoing)
        if target is None:
            self._end(outgoing, NoRoute(f"queue {outgoing.queue} is none that {topic.name} may be written to"))
            return
        self.watch(outgoing)  # until its outcome: it may wait behind others
        if target.ordered is None:
            target.ordered = OrderedQueue(target, self)
        target.ordered.put(outgoing)

    def _pinned_target(self, topic: Topic, outgoing: Outgoing) -> Target | None:
        if outgoing.queue is not None:
            return topic.by_queue.get(outgoing.queue)
        assert outgoing.sharding_key is not None
        assert topic.targets is not None
        return topic.targets[abs(java_hash(outgoing.sharding_key)) % len(topic.targets)]  # SelectMessageQueueByHash.java

    def _next_target(self, topic: Topic, avoid: Lane | None = None) -> Target:
        """Round robin over the queues of brokers that can be reached and are not slow, other brokers than *avoid* first."""
        targets = topic.targets
        assert targets is not None
        count, start = len(targets), topic.take_turn()
        target = targets[start % count]
        if target.lane.down is None and not target.lane.avoid_until and target.lane is not avoid:
            return target
        now = self._loop.time()
        ahead = [targets[(start + i) % count] for i in range(count)]
        ahead = [target for target in ahead if target.lane.down is None] or ahead
        ahead = [target for target in ahead if target.lane is not avoid] or ahead
        return next((target for target in ahead if target.lane.avoid_until <= now), ahead[0])

    def answered(self, outgoing: Outgoing, target: Target, answer: RemotingCommand | TransportError) -> None:
        """Go on with one message after a try."""
        result = result_of(outgoing.key, answer, target)
        if isinstance(result, SendResult):
            assert isinstance(answer, RemotingCommand)
            outgoing.answer = answer.ext_fields
            self.stored(outgoing, target, result)
        else:
            self.attempt_failed(outgoing, result)

    def stored(self, outgoing: Outgoing, target: Target, result: SendResult) -> None:
        self.note_latency(target.lane, outgoing, self._loop.time())
        if result.status is not SendStatus.SEND_OK and self.config.retry_when_not_stored_ok:
            outgoing.result = result
            self.attempt_failed(outgoing, SendFailed(f"{target.lane.address} answered {result.status.name}"))
            return
        self.succeed(outgoing, result)

    def note_latency(self, lane: Lane, outgoing: Outgoing, now: float) -> None:
        """An answer came at *now*. From any thread."""
        if self.config.avoid_slow_brokers:
            lane.note(now - outgoing.sent_at, now)

    # --- for a blocking sender, see lone.py --------------------------------------------------------------------------

    def free_target(self, name: str, now: float) -> Target | None:
        """The queue of topic *name* whose turn it is, if nothing stands in the way to its broker. From any thread.

        *now* is a time of ``time.monotonic``: the loop's clock, which itself shows when the loop was last awake.
        """
        topic = self._topics.get(name)
        targets = None if topic is None or topic.backlog else topic.targets
        if topic is None or not targets:
            return None
        target = targets[topic.take_turn() % len(targets)]
        lane = target.lane
        return target if lane.down is None and lane.avoid_until <= now and lane.ready() is not None else None

    def adopt(self, outgoing: Outgoing, target: Target, answer: RemotingCommand | TransportError) -> None:
        """Go on with a message whose sender made the first try itself, and got *answer*."""
        self._room.take(outgoing.size)
        if outgoing.finished:  # the producer was closed meanwhile
            return
        self.under_way.add(outgoing)
        if isinstance(answer, RequestTimeout) and target.lane.connection is not None:
            target.lane.connection.doubt(outgoing.sent_at)
        if self._closed:
            self._end(outgoing, IllegalStateError(CLOSED_MEANWHILE))
        elif isinstance(answer, RemotingCommand) and answer.code == ResponseCode.GO_AWAY:
            outgoing.tries = 0  # nothing was tried: the broker ends, and tells the client's connection in its turn
            self.place(outgoing)
        else:
            self.answered(outgoing, target, answer)

    # --- connections -------------------------------------------------------------------------------------------------

    def _park_for_connection(self, lane: Lane, outgoing: Outgoing) -> None:
        lane.backlog.append(outgoing)
        self.watch(outgoing)
        self._start_opening(lane)

    def stall(self, lane: Lane, queue: Pump) -> None:
        lane.stalled[queue] = None
        self._start_opening(lane)

    def _start_opening(self, lane: Lane) -> None:
        if not lane.opening:
            lane.opening = True
            self.client.spawn(self._open(lane), f"connection to {lane.broker_name}")

    async def _open(self, lane: Lane) -> None:
        """Connect and let the backlog go. While the broker cannot be reached, try again and again, for later messages as well."""
        pause = RETRY_PAUSE_S
        try:
            while not self._closed and self.client.running and (lane.wanted or lane.down is not None):
                try:
                    lane.address = self.client.broker_address(lane.broker_name)
                    async with asyncio.timeout(self.config.send_timeout_s / 3):  # so that messages can still go elsewhere
                        connection = await self.client.pool.get(lane.address)
                except TimeoutError:
                    lane.down = ConnectError(f"no connection to {lane.address} yet", lane.address)
                except (TransportError, NoRoute) as exc:
                    lane.down = exc
                    if isinstance(exc, NoRoute) and not lane.wanted:
                        break  # the broker left for good
                else:
                    self._opened(lane, connection)
                    continue
                self._move_on(lane)
                await self._refresh_one_route(lane)
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE_S)
        finally:
            lane.opening = False

    def _opened(self, lane: Lane, connection: Connection) -> None:
        lane.connection, lane.down = connection, None
        while lane.backlog and not (connection.closed or connection.leaving):
            outgoing = lane.backlog.popleft()
            self.unwatch(outgoing)
            if not outgoing.finished:
                self._send(outgoing, connection)
        stalled, lane.stalled = lane.stalled, {}
        for queue in stalled:
            queue.pump()

    def _move_on(self, lane: Lane) -> None:
        """Send what may go anywhere to brokers that can be reached."""
        waiting, lane.backlog = lane.backlog, deque()
        for outgoing in waiting:
            if outgoing.finished:
                continue
            topic = self._topics.get(outgoing.topic)
            if topic is not None and any(target.lane.down is None for target in topic.targets or ()):
                self.unwatch(outgoing)
                self._place(topic, outgoing)
            else:
                lane.backlog.append(outgoing)

    async def _refresh_one_route(self, lane: Lane) -> None:
        """The broker may have moved to another address."""
        topics = [target.queue.topic for target in self._targets_of(lane)]
        if topics:
            try:
                await self.client.refresh_route(topics[0], doubted=True)
            except OgiveError as exc:  # the address that is known may still be right
                log.debug("connection to %s: %s", lane.broker_name, exc)

    def _targets_of(self, lane: Lane) -> list[Target]:
        return [target for topic in self._topics.values() for target in topic.all_targets if target.lane is lane]

    # --- failures ----------------------------------------------------------------------------------------------------

    def note_failure(self, outgoing: Outgoing, error: OgiveError) -> bool:
        """Remember a failed try; True if another one is allowed."""
        lane = outgoing.target.lane if outgoing.target is not None else None
        outgoing.error = error
        outgoing.unknown = outgoing.unknown or error.outcome_unknown
        outgoing.tried = (outgoing.tried or set()) | ({f"{lane.broker_name} ({lane.address})"} if lane is not None else set())
        if isinstance(error, ProtocolError) or (isinstance(error, BrokerError) and not error.retry_other_broker):
            return False
        if outgoing.once and error.outcome_unknown:
            return False
        if lane is not None and self.config.avoid_slow_brokers:
            lane.note(FAILED_S, self._loop.time())
        allowed = self.config.retries > 0 if isinstance(error, BrokerBusy) else outgoing.tries <= self.config.retries
        return allowed and self._loop.time() < outgoing.deadline

    def attempt_failed(self, outgoing: Outgoing, error: OgiveError) -> None:
        if self.note_failure(outgoing, error) and not outgoing.finished:
            self.watch(outgoing)
            self.spawn(self._try_again(outgoing, error), "send again")
        else:
            self.fail(outgoing)

    async def _try_again(self, outgoing: Outgoing, error: OgiveError) -> None:
        """On another broker at once, on the same one after a pause."""
        previous = outgoing.target
        topic = self._topics.get(outgoing.topic)
        lanes = {id(target.lane) for target in topic.targets or ()} if topic is not None else set()
        if outgoing.tries >= len(lanes) or error.refresh_route:
            await self.before_next_try(outgoing.topic, error, max(1, outgoing.tries - len(lanes) + 1))
        self.unwatch(outgoing)
        if outgoing.finished:
            return
        if topic is None or topic.targets is None or previous is None:
            self.fail(outgoing)
            return
        target = self._next_target(topic, avoid=previous.lane)
        outgoing.target = target
        connection = target.lane.ready()
        if connection is None:
            self._park_for_connection(target.lane, outgoing)
        else:
            target.lane.merger.send(topic, outgoing, connection)

    async def before_next_try(self, topic: str, error: OgiveError, tries: int) -> None:
        """Pause, and refresh the route where the error asks for it."""
        if error.refresh_route:
            try:
                await self.client.refresh_route(topic, doubted=isinstance(error, ConnectError))
            except OgiveError as exc:  # the route that is known may still be right
                log.debug("send again to %s: %s", topic, exc)
        await asyncio.sleep(min(RETRY_PAUSE_S * 2 ** min(tries - 1, 4), MAX_PAUSE_S))

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self.client.spawn(work, name)

    def _outcome(self, outgoing: Outgoing) -> OgiveError:
        """The error that says what happened to the message, all tries together."""
        error = outgoing.error
        if isinstance(error, ProtocolError) or (outgoing.tries == 0 and isinstance(error, NoNameServer)):
            return error
        waited = self._loop.time() - outgoing.started
        tried = sorted(outgoing.tried or ())
        where = ", ".join(tried)
        times = f"{outgoing.tries} {'try' if outgoing.tries == 1 else 'tries'} on {len(tried)} broker{'s' if len(tried) != 1 else ''}"
        if outgoing.unknown:
            first = outgoing.key.partition(",")[0]
            return SendTimeout(
                f"no answer from {where} within {waited:.1f} s after {times}: {error}. "
                f"The message may or may not be stored: its id is {first}."
            )
        if outgoing.tries == 0:
            reason = error or f"no name server answered at {self.client.name_servers}"
            return SendFailed(f"message for {outgoing.topic} was not sent within {waited:.1f} s: {reason}")
        if isinstance(error, BrokerError) and (outgoing.tries == 1 or not error.retry_other_broker):
            return error
        failed = SendFailed(f"message for {outgoing.topic} was not stored after {times} within {waited:.1f} s; at last: {error}")
        failed.__cause__ = error
        return failed

    def succeed(self, outgoing: Outgoing, result: SendResult) -> None:
        result = self.visible(result)
        self._finish(outgoing, result, None)
        if not outgoing.future.done():
            outgoing.future.set_result(result)

    def visible(self, result: SendResult) -> SendResult:
        """With the names that users know. From any thread."""
        if not self.client.namespace:
            return result
        return replace(result, queue=self.client.namespace.strip_queue(result.queue))

    def fail(self, outgoing: Outgoing) -> None:
        """End it with what its tries amount to: an error, unless one of them stored it."""
        if outgoing.result is not None:
            self.succeed(outgoing, outgoing.result)
        else:
            self._end(outgoing, self._outcome(outgoing))

    def _end(self, outgoing: Outgoing, error: OgiveError) -> None:
        self._finish(outgoing, None, error)
        if not outgoing.future.done():
            outgoing.future.set_exception(error)

    def _finish(self, outgoing: Outgoing, result: SendResult | None, error: OgiveError | None) -> None:
        if outgoing.finished:
            return
        outgoing.finished = True
        if outgoing.on_end is not None:
            outgoing.on_end(outgoing, result, error)
        if outgoing.number >= 0:
            self.unwatch(outgoing)
        self.under_way.discard(outgoing)
        self._room.give_back(outgoing.size)
        self.settle(outgoing)

    def settle(self, outgoing: Outgoing) -> None:
        """It has its outcome: whoever waits for that may go on."""
        for waiting, flushed in self._flushes:
            waiting.discard(outgoing)
            if not waiting and not flushed.done():
                flushed.set_result(None)

    # --- time --------------------------------------------------------------------------------------------------------

    def watch(self, outgoing: Outgoing) -> None:
        """End the message at its deadline. In flight by itself it needs no watch: the connection sees to that."""
        if outgoing.number < 0:
            outgoing.number = next(self._numbers)
            self._watched[outgoing.number] = outgoing
            self._deadlines.add(outgoing.number, outgoing.deadline)

    def unwatch(self, outgoing: Outgoing) -> None:
        self._watched.pop(outgoing.number, None)
        outgoing.number = -1

    def _expire(self, numbers: list[int]) -> None:
        due = [outgoing for number in numbers if (outgoing := self._watched.get(number)) is not None]
        for outgoing in due:
            target = outgoing.target
            if outgoing.on_way and target is not None:
                waited = self._loop.time() - outgoing.started
                self.note_failure(outgoing, RequestTimeout(f"no answer from {target.lane.address} within {waited:.1f} s"))
            elif target is not None and outgoing.error is None:
                outgoing.error = target.lane.down or RequestTimeout(f"messages before it on {target.queue} took all of it")
            self.fail(outgoing)
        if due:
            self._drop_finished()

    def _drop_finished(self) -> None:
        holders: list[Topic | Lane] = [*self._topics.values(), *self._lanes.values()]
        for holder in holders:
            if any(outgoing.finished for outgoing in holder.backlog):
                holder.backlog = deque(outgoing for outgoing in holder.backlog if not outgoing.finished)
        for lane in self._lanes.values():
            lane.merger.drop_finished()
        for topic in self._topics.values():
            for target in topic.all_targets:
                if target.ordered is not None:
                    target.ordered.drop_finished()

    # --- the end -----------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until every message accepted so far has its outcome. Never longer than the longest time budget among them."""
        waiting: set[Outgoing] = set()
        entry = (waiting, self._loop.create_future())
        self._flushes.append(entry)  # first: a sender on another thread that is done after the next line sees it, and settles
        try:
            waiting.update(self.under_way)
            if waiting:
                latest = max(outgoing.deadline for outgoing in waiting)
                await asyncio.wait([entry[1]], timeout=latest - self._loop.time() + GRACE_S)
        finally:
            self._flushes.remove(entry)

    @property
    def is_flushing(self) -> bool:
        """Somebody waits for outcomes. From any thread."""
        return bool(self._flushes)

    def close(self) -> None:
        """End what is left with an error, and take nothing more."""
        self._closed = True
        self.client.on_route_change.remove(self._route_changed)
        self._deadlines.clear()
        closed = IllegalStateError(CLOSED_MEANWHILE)
        self._room.close(closed)
        for outgoing in list(self.under_way):
            self._end(outgoing, closed)
        for callback in self.on_close:
            callback()

    # --- one-way -----------------------------------------------------------------------------------------------------

    async def send_oneway(self, outgoing: Outgoing, timeout_s: float) -> None:
        """Hand the message to a connection, and ask for no answer. Raises only what happens before that."""
        now_ms = int(time.time() * 1000)
        properties = with_unique_key(self._keys.next(now_ms), outgoing.text)
        topic = self._topics.get(outgoing.topic) or self._add_topic(outgoing.topic)
        try:
            async with asyncio.timeout(timeout_s):
                if topic.targets is None:
                    self._set_targets(topic, await self.queues(topic.name, timeout_s))
                target = self._pinned_target(topic, outgoing) if outgoing.pinned else self._next_target(topic)
                if target is None:
                    raise NoRoute(f"queue {outgoing.queue} is none that {topic.name} may be written to")
                connection = await self.client.pool.get(self.client.broker_address(target.queue.broker_name))
                await connection.drain()
        except TimeoutError:
            raise SendFailed(f"message for {outgoing.topic} was not sent within {timeout_s:.1f} s") from None
        opaque = connection.next_opaque()
        connection.write(target.frames.single(opaque, now_ms, properties, outgoing.body, outgoing.sys_flag, outgoing.flag, oneway=True))


def form(outgoing: Outgoing, keys: UniqueKeys, now: float, timeout_s: float) -> None:
    """Give an accepted message, or each of a batch, its key, and its time: *now* is one of the loop's clock. Raises MessageIllegal."""
    now_ms = int(time.time() * 1000)
    if outgoing.batch is None:
        outgoing.key = key = keys.next(now_ms)
        outgoing.properties = with_unique_key(key, outgoing.text)
    else:
        names = [keys.next(now_ms) for _ in outgoing.batch]
        rows = zip(names, outgoing.batch, strict=True)
        outgoing.body = encode_batch(BatchItem(flag, body, with_unique_key(key, text)) for key, (flag, body, text) in rows)
        outgoing.key = ",".join(names)
        outgoing.properties = BATCH_PROPERTIES
    outgoing.born_ms = now_ms
    outgoing.started = now
    outgoing.deadline = now + timeout_s
