"""Finds the routes of topics, and keeps the messages that wait for them."""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from ogive.client.instance import ClientInstance
from ogive.client.routes import NotWritable, auto_create_route, publish_queues
from ogive.client.sending.destinations import Destinations
from ogive.client.sending.outgoing import Outgoing, Topic
from ogive.client.sending.watch import Watch
from ogive.errors import NoNameServer, NoRoute, OgiveError
from ogive.model import AUTO_CREATE_TOPIC, MessageQueue

PAUSE_S: Final = 0.1
# a route is given up so long before its message's deadline: the error then says what was missing
HEAD_START_S: Final = 0.1


class Engine(Protocol):
    """What it needs of its publisher."""

    def place_in(self, topic: Topic, outgoing: Outgoing) -> None:
        """Give the message one of the topic's queues, which are known."""

    def end(self, outgoing: Outgoing, error: OgiveError) -> None: ...


class Resolver:
    """Keeps messages of topics without a route, in their order, until it is known or their time is
    up.
    """

    def __init__(
        self,
        client: ClientInstance,
        default_topic_queues: int,
        destinations: Destinations,
        watch: Watch,
        engine: Engine,
    ) -> None:
        self._client = client
        self._default_topic_queues = default_topic_queues
        self._destinations = destinations
        self._watch = watch
        self._engine = engine
        self._loop = asyncio.get_running_loop()

    def park(self, topic: Topic, outgoing: Outgoing) -> None:
        topic.backlog.append(outgoing)
        self._watch.add(outgoing)
        if not topic.resolving:
            topic.resolving = True
            self._client.spawn(self._resolve(topic), f"route of {topic.name}")

    async def _resolve(self, topic: Topic) -> None:
        """Find the topic's queues, then let the backlog go; if there are none, everything that
        waited for the answer fails.
        """
        try:
            while topic.backlog:
                asking = list(topic.backlog)
                first_deadline = min(outgoing.deadline for outgoing in asking)
                try:
                    await self.find(topic, first_deadline - self._loop.time() - HEAD_START_S)
                except NoNameServer as exc:
                    # that is no answer: messages with time left wait for the next
                    for outgoing in asking:
                        outgoing.error = exc
                    last_try = self._loop.time() + PAUSE_S + HEAD_START_S
                    self._give_up(
                        topic,
                        [outgoing for outgoing in asking if outgoing.deadline <= last_try],
                        exc,
                    )
                    await asyncio.sleep(PAUSE_S if topic.backlog else 0)
                except OgiveError as exc:
                    self._give_up(topic, asking, exc)
                else:
                    self._let_go(topic)
        finally:
            topic.resolving = False

    async def find(self, topic: Topic, timeout_s: float) -> None:
        """Give the topic its queues. Raises NoRoute, NoNameServer."""
        queues = await find_queues(self._client, topic.name, self._default_topic_queues, timeout_s)
        self._destinations.set_queues(topic, queues)

    def _let_go(self, topic: Topic) -> None:
        while topic.backlog:
            # stays until it is placed: later messages must not overtake it
            outgoing = topic.backlog[0]
            if not outgoing.finished:
                self._watch.drop(outgoing)
                outgoing.error = None
                self._engine.place_in(topic, outgoing)
            topic.backlog.popleft()

    def _give_up(self, topic: Topic, waiting: Iterable[Outgoing], error: OgiveError) -> None:
        for outgoing in waiting:
            self._engine.end(outgoing, error)
        topic.backlog = deque(outgoing for outgoing in topic.backlog if not outgoing.finished)


async def find_queues(
    client: ClientInstance, topic: str, default_topic_queues: int, timeout_s: float
) -> tuple[MessageQueue, ...]:
    """Where the topic lives; for one that is to be created by its first message, where brokers
    create topics.
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
