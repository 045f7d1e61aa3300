"""Members of consumer groups: their topics, their queues and the listeners that they feed."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.delivery import ConsumeService, Receiver, TopicDelivery
from ogive.client.consumer.group_client import GroupClient
from ogive.client.consumer.listener_call import bound, consume_directly, no_function
from ogive.client.consumer.offset_store import (
    LocalOffsetStore,
    OffsetStore,
    RemoteOffsetStore,
    offsets_path,
)
from ogive.client.consumer.process_queue import ProcessQueue
from ogive.client.consumer.pull_loop import PullService
from ogive.client.consumer.rebalance import Rebalancer, lease_time
from ogive.client.consumer.running_info import (
    Statistics,
    left_behind,
    properties,
    queue_info,
    stuck,
)
from ogive.client.consumer.subscription import Announcer, MemberContext, OnChange, bare_on_change
from ogive.client.consumer.tool_requests import answer_requests
from ogive.client.consumer.workers import Callers
from ogive.client.ids import local_ip
from ogive.client.instance import ClientInstance
from ogive.client.listener import AnyListener, ListenerConfig, consume_from_where
from ogive.client.metrics import TopicFigures
from ogive.client.trace import ConsumeTrace, Tracer
from ogive.errors import BrokerError, IllegalStateError, InvalidOption, NoRoute
from ogive.model import MessageExt, MessageQueue, PropertyName, retry_topic
from ogive.transport.event_loop import cancel_all, each
from ogive.wire.bodies.clients import (
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    SubscriptionData,
)

log = logging.getLogger(__name__)


# messages of tools, at a time: no limit of a queue counts them
MAX_CALLED_DIRECTLY: Final = 8

MakeService = Callable[[MemberContext, AnyListener, ConsumerConfig], ConsumeService]


class GroupMember(ABC):
    """Member of a consumer group, whether it pushes messages or is polled.

    It joins the group with ``start``. Names are those on the wire. *receiver* gets the messages.
    """

    def __init__(self, group: MemberContext, config: ConsumerConfig, receiver: Receiver) -> None:
        self.group = group.name
        self._context = group
        self._state = group.state
        self._config = config
        self._retry_topic = None if group.polled else retry_topic(group.name)
        self._started_ms = time.time_ns() // 1_000_000
        self._rebalancer = Rebalancer(group, config, receiver)
        self._pulls = PullService(group, config, receiver, self._rebalancer)
        self._jobs: list[asyncio.Task[Any]] = []
        self._persisting: list[asyncio.Task[Any]] = []

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group and take over queues. A topic that does not exist yet is waited for.

        A member without topics joins nothing. Raises NoNameServer, what brokers say of a filter in
        SQL (SubscriptionInvalid, BrokerInternalError), and the BrokerError of a broker that refuses
        the member. After an error only ``stop`` may be called.
        """
        if self._state.starts:
            await self.prepare()
            self.register()
            await self._context.instance.announce()
        self.begin()

    async def prepare(self) -> None:
        """Find the topics, and have the filters checked. Raises what ``start`` raises."""
        await self._context.store.open()
        await each([self._state.topics[topic] for topic in self.topics], self._find)

    async def _find(self, subscription: SubscriptionData) -> None:
        """Find the route of a topic, and have a broker check the filter. Raises OgiveError.

        A topic without a route is waited for.
        """
        try:
            await self._context.instance.routes.find(subscription.topic)
            await self._context.calls.check_filter(subscription)
        except NoRoute as exc:
            log.warning("group %s waits for its topic: %s", self.group, exc)

    def register(self) -> None:
        """Become a member with the next heartbeat."""
        self._context.instance.register_consumer(self)
        self._context.instance.metrics.groups[self.group] = self._figures

    def begin(self) -> None:
        """Keep progress, and take over queues from now on."""
        group, config = self._context, self._config
        self._persisting = group.keep_progress(config)
        if not self._state.starts:
            return
        self._jobs = [group.spawn(self._rebalancer.run(), "rebalance")]
        if group.locks:
            self._jobs.append(
                group.every(config.lock_renew_s, self._rebalancer.renew_locks, "renew locks")
            )
        self._rebalancer.soon()

    async def _leave(self, *ending: Awaitable[None]) -> None:
        """Leave the group after *ending*: progress goes to the brokers last."""
        await asyncio.gather(self._stop_fetching(), *ending)
        await self._rebalancer.give_up_all()
        # not before: an update that is cut short could overtake the last one
        await cancel_all(self._persisting)
        await self._context.store.close()
        await self._context.instance.unregister_consumer(self)

    async def _stop_fetching(self) -> None:
        await self._rebalancer.settle()
        await cancel_all(self._jobs)
        await self._pulls.stop_all()

    # --- what others ask --------------------------------------------------------------------------

    @property
    def topics(self) -> Sequence[str]:
        """Topics that the application names."""
        return [topic for topic in self._state.starts if topic != self._retry_topic]

    async def lag(self) -> dict[MessageQueue, int]:
        """Return the number of unfinished messages of each held queue, as the brokers count them
        now.
        """
        held = [p for p in self._state.held.values() if p.queue.topic != self._retry_topic]
        ends = await asyncio.gather(
            *(self._context.calls.max_offset(process_queue.queue) for process_queue in held)
        )
        return {p.queue: max(0, end - self._reached(p)) for p, end in zip(held, ends, strict=True)}

    def _reached(self, process_queue: ProcessQueue) -> int:
        return process_queue.safe_offset

    def consumer_data(self) -> ConsumerData:
        group = self._context
        start = self._state.starts[self.topics[0]] if self.topics else "earliest"
        return ConsumerData(
            group=self.group,
            consume_type=self._consume_type(),
            message_model="BROADCASTING" if group.broadcast else "CLUSTERING",
            consume_from_where=consume_from_where(start),
            subscriptions=tuple(self._state.topics.values()),
        )

    def _consume_type(self) -> str:
        return "CONSUME_ACTIVELY" if self._context.polled else "CONSUME_PASSIVELY"

    def on_consumer_ids_changed(self) -> None:
        self._rebalancer.soon()

    def holdings(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        return self._rebalancer.holdings(queues)

    def running_info(self) -> bytes:
        group, held = self._context, self._state.held
        now, now_ms = asyncio.get_running_loop().time(), time.time_ns() // 1_000_000
        info = ConsumerRunningInfo(
            properties={
                **self._properties(),
                **stuck(held.values()),
                **left_behind(group.statistics.left_behind),
            },
            subscriptions=tuple(self._state.topics.values()),
            queues={
                queue: queue_info(
                    process_queue,
                    group.store.read(queue),
                    lease_s=self._config.lock_lease_s if group.locks else None,
                    now=lease_time(now),
                    now_ms=now_ms,
                )
                for queue, process_queue in held.items()
            },
            topics={topic: group.statistics.of(topic).status(now) for topic in self._state.topics},
        )
        return info.encode()

    def _figures(self) -> list[TopicFigures]:
        held = self._cached()
        return [self._figures_of(topic, held) for topic in list(self._state.topics)]

    def _figures_of(self, topic: str, held: Iterable[ProcessQueue]) -> TopicFigures:
        statistics = self._context.statistics.of(topic)
        of_topic = [one for one in held if one.queue.topic == topic]
        ends = [one for one in of_topic if one.end_offset is not None]
        return TopicFigures(
            topic,
            statistics.succeeded_calls.histogram(),
            statistics.failed_calls.histogram(),
            statistics.pulled_messages,
            sum(one.count for one in of_topic),
            sum(one.bytes for one in of_topic),
            sum(max(0, (one.end_offset or 0) - self._reached(one)) for one in ends)
            if ends
            else None,
        )

    def _cached(self) -> Sequence[ProcessQueue]:
        """Return what holds messages that are not finished."""
        return list(self._state.held.values())

    @abstractmethod
    def _properties(self) -> dict[str, str]:
        """Return what the running info says of the settings."""


class PushMember(GroupMember):
    """Member that calls listeners. Source: DefaultMQPushConsumerImpl.java, 5.3.

    All *listeners* are of one group. Raises InvalidOption for listeners that cannot share a group.
    """

    def __init__(
        self,
        instance: ClientInstance,
        listeners: Sequence[AnyListener],
        config: ConsumerConfig,
        make_service: MakeService,
        on_change: OnChange | None = None,
    ) -> None:
        check_one_group([listener.config for listener in listeners])
        self._namespace = namespace = instance.namespace
        self._make_service = make_service
        listeners = [bound(listener, namespace, config.interceptors) for listener in listeners]
        group = self._context_of(instance, listeners[0].config, config)
        self._delivery = TopicDelivery(group, listeners[0], config)
        super().__init__(group, config, self._delivery)
        bare = namespace.strip(self.group)
        self._tracer = Tracer(instance, bare, "CONSUME") if config.trace else None
        if self._tracer is not None:
            timeouts = {one.config.topic: one.config.consume_timeout_s for one in listeners}
            group.observer = ConsumeTrace(self._tracer, bare, timeouts)
        self._listeners: dict[str, AnyListener] = {}
        for listener in listeners:
            self._listen(listener, listener.config.subscription(self._started_ms))
            self._state.starts[listener.config.topic] = listener.config.start
        if not group.broadcast:
            retries = retry_topic(self.group)
            self._state.topics[retries] = SubscriptionData(topic=retries, version=self._started_ms)
            self._state.starts[retries] = "earliest"
        on_change = bare_on_change(on_change, namespace)
        if on_change is not None:
            self._state.observers.append(Announcer(on_change, group))
        self._called_directly = 0

    def _context_of(
        self, instance: ClientInstance, first: ListenerConfig, config: ConsumerConfig
    ) -> MemberContext:
        """Return what the parts of this member share."""
        calls = GroupClient(instance, first.group)
        return MemberContext(
            first.group,
            instance,
            calls,
            _store(calls, instance, config) if first.broadcast else RemoteOffsetStore(calls),
            Statistics(asyncio.get_running_loop().time()),
            broadcast=first.broadcast,
            locks=first.orderly and not first.broadcast,
        )

    def _listen(self, listener: AnyListener, subscription: SubscriptionData) -> ConsumeService:
        topic = listener.config.topic
        service = self._make_service(self._context, listener, self._config)
        self._listeners[topic] = listener
        self._delivery.services[topic] = service
        self._state.topics[topic] = subscription
        return service

    # --- life -------------------------------------------------------------------------------------

    def register(self) -> None:
        super().register()
        answer_requests(self._context.instance)
        self._delivery.start()

    async def stop(self, callers: Callers | None = None) -> None:
        """Leave the group: running listener calls end first, progress goes to the brokers last.

        *callers*: see Workers.stop.
        """
        try:
            await self._leave(self._delivery.stop(self._config.await_termination_s, callers))
        finally:
            if self._tracer is not None:
                await self._tracer.close()

    def abandon(self) -> None:
        """Call no listener any more, because the client has failed.

        The group gets again what was not committed.
        """
        self._rebalancer.lose_all()

    # --- more and less, at run time ---------------------------------------------------------------

    async def add(self, listener: AnyListener) -> None:
        """Listen to one more topic.

        Raises InvalidOption where the listener cannot join the group, NoNameServer, and the
        BrokerError of a broker that refuses the topic. Nothing has changed then.
        """
        listener = bound(listener, self._namespace, self._config.interceptors)
        check_one_group([*self._settings, listener.config])
        topic = listener.config.topic
        subscription = listener.config.subscription(time.time_ns() // 1_000_000)
        await self._find(subscription)
        self._listen(listener, subscription).start()
        try:
            await self._context.instance.announce()
        except BrokerError:
            # A refused heartbeat renews nothing: the next one must leave the topic out, or the
            # whole group ends.
            await self._end_calls(topic, None)
            await self._forget(topic)
            raise
        self._join(topic, listener.config)

    def _join(self, topic: str, listener: ListenerConfig) -> None:
        """Consume *topic* from now on."""
        self._rebalancer.join(topic, listener.start)

    async def remove(self, topic: str, callers: Callers | None = None) -> None:
        """Remove the topic; the member must have another one. *callers*: see Workers.stop."""
        await self._rebalancer.leave(topic, lambda: self._end_calls(topic, callers))
        await self._forget(topic)

    async def _end_calls(self, topic: str, callers: Callers | None) -> None:
        """End the listener's calls. From now on retries of its topic go to the other listeners."""
        service = self._delivery.services.pop(topic)
        await service.stop(self._config.await_termination_s, callers)

    async def _forget(self, topic: str) -> None:
        """Leave the topic out of heartbeats from now on, its calls having ended."""
        del self._listeners[topic], self._state.topics[topic]
        self._context.statistics.forget(topic)
        await self._context.instance.heartbeat_now()
        for process_queue in list(self._state.held.values()):
            if any(message.topic == topic for message in process_queue.head(process_queue.count)):
                # retries that the service left behind
                await self._rebalancer.go_to(process_queue, process_queue.safe_offset)

    def announce(self) -> None:
        """Tell the application that the queues are gone, after ``stop``."""
        self._state.report([], [])

    def suspend(self) -> None:
        """Pull nothing more; what is here already is still consumed."""
        self._pulls.suspend()

    def resume(self) -> None:
        self._pulls.resume()
        self._rebalancer.soon()

    @property
    def assignment(self) -> Mapping[MessageQueue, ProcessQueue]:
        """Queues that this member holds now, the retry topic's included."""
        return self._state.held

    # --- what tools ask ---------------------------------------------------------------------------

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets in the queues that are held; the owners of the others are told,
        too.
        """
        held = [
            (self._state.held[queue], offset)
            for queue, offset in offsets.items()
            if queue in self._state.held
        ]
        for process_queue, offset in held:
            log.warning(
                "%s: a tool reset the offset of %s to %d", process_queue.queue, self.group, offset
            )
        await asyncio.gather(
            *(self._rebalancer.go_to(process_queue, offset) for process_queue, offset in held)
        )

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        known = {
            queue: self._context.store.read(queue)
            for queue in self._state.held
            if queue.topic == topic
        }
        return {queue: offset for queue, offset in known.items() if offset is not None}

    async def consume_directly(self, message: MessageExt) -> ConsumeDirectlyResult:
        """Call the listener with a message that a tool gives. Raises IllegalStateError if messages
        are iterated over, so that there is no listener, and for too many calls at a time.
        """
        if self._called_directly >= MAX_CALLED_DIRECTLY:
            raise IllegalStateError(
                f"group {self.group} works on {MAX_CALLED_DIRECTLY} messages that tools have given "
                "to it already"
            )
        topic = message.properties.get(PropertyName.RETRY_TOPIC, message.topic)
        listener = self._listeners.get(topic)
        if listener is None or listener.function is no_function:
            raise IllegalStateError(f"group {self.group} has no listener of {topic} in this client")
        self._called_directly += 1
        try:
            return await consume_directly(listener, replace(message, topic=topic))
        finally:
            self._called_directly -= 1

    @property
    def _settings(self) -> list[ListenerConfig]:
        return [listener.config for listener in self._listeners.values()]

    def _properties(self) -> dict[str, str]:
        return properties(
            self._settings,
            self._config,
            self._context.instance.config,
            from_where=self.consumer_data().consume_from_where,
            started_ms=self._started_ms,
        )


def _store(calls: GroupClient, instance: ClientInstance, config: ConsumerConfig) -> OffsetStore:
    """Return the store of a broadcasting member."""
    return LocalOffsetStore(
        offsets_path(config.offsets_dir, local_ip(), instance.config.instance_name, calls.group)
    )


def check_one_group(settings: Sequence[ListenerConfig]) -> None:
    """Raise InvalidOption unless the listeners can be one member of one group."""
    group, topics = settings[0].group, [one.topic for one in settings]
    if len(set(topics)) < len(topics):
        raise InvalidOption(
            f"group {group} has two listeners to one topic: each topic of a group takes one"
        )
    if len({one.broadcast for one in settings}) > 1:
        raise InvalidOption(
            f"group {group} has a broadcasting listener beside one that is not: a group is one or "
            "the other"
        )
    if len({one.mode for one in settings}) > 1:
        raise InvalidOption(
            f"group {group} has a listener that pops beside one that pulls: a group does one or "
            "the other, in all of its members"
        )
    if len(settings) > 1 and any(one.orderly for one in settings):
        raise InvalidOption(
            f"group {group} has an orderly listener beside another one: give each orderly listener "
            "a group of its own"
        )
