"""Messages that cannot be sent yet: their topic has no route, or their broker no connection.

Delay levels that the brokers of a topic do not have are refused. A broker, Apache's too, uses its
last level for a level above it: 30 becomes two hours. Levels of the default table are sent without
asking.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ogive.client import rpc
from ogive.client.instance import ClientInstance
from ogive.client.routes import NotWritable, auto_create_route, publish_queues
from ogive.client.sending.destinations import Destinations
from ogive.client.sending.in_flight import DeadlineWatch
from ogive.client.sending.pending import Lane, PendingSend, PendingTopic
from ogive.errors import (
    ConnectError,
    InvalidOption,
    NoNameServer,
    NoRoute,
    OgiveError,
    TransportError,
)
from ogive.model import AUTO_CREATE_TOPIC, MessageQueue
from ogive.transport.connection import Connection
from ogive.wire.bodies.configs import DelayLevels

if TYPE_CHECKING:
    from ogive.client.sending.accumulator import OrderedQueue
    from ogive.client.sending.publisher import Publisher

PAUSE_S: Final = 0.1
# a route is given up so long before its message's deadline: the error then says what was missing
HEAD_START_S: Final = 0.1


class Resolver:
    """Messages of topics without a route, in order, until it is known or their time is up."""

    def __init__(
        self,
        client: ClientInstance,
        default_topic_queues: int,
        destinations: Destinations,
        watch: DeadlineWatch,
        publisher: "Publisher",
    ) -> None:
        self._client = client
        self._default_topic_queues = default_topic_queues
        self._destinations = destinations
        self._watch = watch
        self._publisher = publisher
        self._loop = asyncio.get_running_loop()

    def park(self, topic: PendingTopic, pending: PendingSend) -> None:
        topic.backlog.append(pending)
        self._watch.add(pending)
        if not topic.resolving:
            topic.resolving = True
            self._client.spawn(self._resolve(topic), f"route of {topic.name}")

    async def _resolve(self, topic: PendingTopic) -> None:
        """Find the topic's queues, then send the backlog; if there are none, everything that
        waited for the answer fails.
        """
        try:
            while topic.backlog:
                asking = list(topic.backlog)
                first_deadline = min(pending.deadline for pending in asking)
                try:
                    await self.find(topic, first_deadline - self._loop.time() - HEAD_START_S)
                except NoNameServer as exc:
                    # that is no answer: messages with time left wait for the next
                    for pending in asking:
                        pending.error = exc
                    last_try = self._loop.time() + PAUSE_S + HEAD_START_S
                    self._give_up(
                        topic,
                        [pending for pending in asking if pending.deadline <= last_try],
                        exc,
                    )
                    await asyncio.sleep(PAUSE_S if topic.backlog else 0)
                except OgiveError as exc:
                    self._give_up(topic, asking, exc)
                else:
                    self._let_go(topic)
        finally:
            topic.resolving = False

    async def find(self, topic: PendingTopic, timeout_s: float) -> None:
        """Give the topic its queues. Raises NoRoute, NoNameServer."""
        queues = await find_queues(self._client, topic.name, self._default_topic_queues, timeout_s)
        self._destinations.set_queues(topic, queues)

    def _let_go(self, topic: PendingTopic) -> None:
        while topic.backlog:
            # stays until it is placed: later messages must not overtake it
            pending = topic.backlog[0]
            if not pending.finished:
                self._watch.drop(pending)
                pending.error = None
                self._publisher.place_in(topic, pending)
            topic.backlog.popleft()

    def _give_up(
        self, topic: PendingTopic, waiting: Iterable[PendingSend], error: OgiveError
    ) -> None:
        for pending in waiting:
            if pending.tries:
                # one of its tries may have stored it
                pending.error = error
                self._publisher.fail(pending)
            else:
                self._publisher.end(pending, error)
        topic.backlog = deque(pending for pending in topic.backlog if not pending.finished)


async def find_queues(
    client: ClientInstance, topic: str, default_topic_queues: int, timeout_s: float
) -> tuple[MessageQueue, ...]:
    """Return the queues of the topic or, if its first message will create it, those of the brokers
    that create topics.
    """
    budget = min(max(timeout_s, 0.01), client.config.request_timeout_s)
    try:
        return await client.routes.publish_queues(topic, timeout_s=budget)
    except NotWritable:
        raise
    except NoRoute:
        if topic.startswith("%"):
            raise
        try:
            template = await client.routes.find(AUTO_CREATE_TOPIC, timeout_s=budget)
        except NoRoute:
            template = None
        queues = (
            publish_queues(topic, auto_create_route(template, default_topic_queues))
            if template
            else ()
        )
        if not queues:
            raise
        return queues


log = logging.getLogger(__name__)


FIRST_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 1.0


class Connector:
    """Open the connections of lanes while anything waits there, and send it then.

    *patience_s* is the time of one attempt.
    """

    def __init__(
        self,
        client: ClientInstance,
        patience_s: float,
        destinations: Destinations,
        watch: DeadlineWatch,
        publisher: "Publisher",
    ) -> None:
        self._client = client
        self._patience_s = patience_s
        self._destinations = destinations
        self._watch = watch
        self._publisher = publisher
        self._closed = False

    def park(self, lane: Lane, pending: PendingSend) -> None:
        lane.backlog.append(pending)
        self._watch.add(pending)
        self._start(lane)

    def stall(self, lane: Lane, queue: "OrderedQueue") -> None:
        """Call ``pump`` once the lane's connection is open."""
        lane.stalled[queue] = None
        self._start(lane)

    def look_again(self) -> None:
        """Check the lanes after a change of routes: brokers may have moved, or be back."""
        for lane in self._destinations.lanes.values():
            address = self._client.routes.find_address(lane.broker_name)
            if address is not None and address != lane.address:
                # the broker moved; what is in flight there may still be answered
                lane.connection = None
            if address is not None and lane.down is not None:
                self._start(lane)

    def close(self) -> None:
        """Open nothing more."""
        self._closed = True

    def _start(self, lane: Lane) -> None:
        if not lane.opening:
            lane.opening = True
            self._client.spawn(self._open(lane), f"connection to {lane.broker_name}")

    async def _open(self, lane: Lane) -> None:
        """Connect, and send the backlog.

        While the broker cannot be reached, try again and again, for later messages as well.
        """
        pause = FIRST_PAUSE_S
        try:
            while (
                not self._closed and self._client.running and (lane.wanted or lane.down is not None)
            ):
                try:
                    lane.address = self._client.routes.broker_address(lane.broker_name)
                    async with asyncio.timeout(self._patience_s):
                        connection = await self._client.pool.get(lane.address)
                except TimeoutError:
                    lane.down = ConnectError(f"no connection to {lane.address} yet", lane.address)
                except (TransportError, NoRoute) as exc:
                    lane.down = exc
                    if isinstance(exc, NoRoute) and not lane.wanted:
                        # the broker left for good
                        break
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
            pending = lane.backlog.popleft()
            self._watch.drop(pending)
            if not pending.finished:
                self._publisher.send(pending, connection)
        stalled, lane.stalled = lane.stalled, {}
        for queue in stalled:
            queue.pump()

    def _move_on(self, lane: Lane) -> None:
        """Send what may go anywhere to brokers that can be reached."""
        waiting, lane.backlog = lane.backlog, deque()
        for pending in waiting:
            if pending.finished:
                continue
            if self._destinations.can_be_reached(pending.topic):
                self._watch.drop(pending)
                self._publisher.place(pending)
            else:
                lane.backlog.append(pending)

    async def _refresh_one_route(self, lane: Lane) -> None:
        """Ask for the route of a topic there: the broker may have moved to another address."""
        topics = self._destinations.topics_on(lane)
        if topics:
            try:
                await self._client.routes.refresh(topics[0], doubted=True)
            except OgiveError as exc:
                # the address that is known may still be right
                log.debug("connection to %s: %s", lane.broker_name, exc)


class LevelCheck:
    """Delay levels of one client's brokers, asked for when a message needs them."""

    def __init__(self, client: ClientInstance, default_topic_queues: int) -> None:
        self._client = client
        self._default_topic_queues = default_topic_queues
        # By address. None: the broker does not show its settings.
        self._known: dict[str, DelayLevels | None] = {}

    async def check(self, pending: PendingSend, timeout_s: float) -> None:
        """Raise InvalidOption for a level that a broker of the topic does not have, and NoRoute or
        NoNameServer if these brokers cannot be found out.

        Brokers that do not show their levels are ignored.
        """
        addresses = {
            queue.broker_name: self._client.routes.broker_address(queue.broker_name)
            for queue in await self._queues(pending.topic, timeout_s)
        }
        level = pending.unusual_level
        for name, address in sorted(addresses.items()):
            levels = self._known.get(address)
            if address not in self._known or (levels is not None and level > len(levels.delays_ms)):
                # A refusal rests on a fresh answer: a broker may have started again with other
                # levels.
                levels = await self._ask(address, timeout_s)
            if levels is not None and level > (count := len(levels.delays_ms)):
                raise InvalidOption(
                    f"delay_level is {level}: {name} has {count} delay "
                    f"level{'' if count == 1 else 's'}, the last is "
                    f"{levels.delays_ms[-1] / 1000:g} s; delay_s= and deliver_at= take any time"
                )

    async def _queues(self, topic: str, timeout_s: float) -> tuple[MessageQueue, ...]:
        """Return the queues of the topic; as a send does, wait for a name server that answers."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            try:
                return await find_queues(
                    self._client, topic, self._default_topic_queues, deadline - loop.time()
                )
            except NoNameServer:
                if loop.time() + PAUSE_S + HEAD_START_S >= deadline:
                    raise
                await asyncio.sleep(PAUSE_S)

    async def _ask(self, address: str, timeout_s: float) -> DelayLevels | None:
        budget = min(timeout_s, self._client.config.request_timeout_s)
        try:
            levels = await rpc.delay_levels(self._client.pool, address, timeout_s=budget)
        except TransportError:
            # It may answer the next time.
            return None
        except OgiveError:
            levels = None
        # There are as many as brokers that routes name, or were named once.
        self._known[address] = levels
        return levels
