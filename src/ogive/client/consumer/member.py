"""One member of one consumer group: its subscriptions, its queues and the listeners that they
feed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.direct import consume_directly
from ogive.client.consumer.group_client import GroupClient
from ogive.client.consumer.intercept import intercepted
from ogive.client.consumer.message_iterator import no_function
from ogive.client.consumer.namespaced_listener import wired, wired_on_change
from ogive.client.consumer.offset_store import (
    LocalOffsetStore,
    OffsetStore,
    RemoteOffsetStore,
    offsets_path,
)
from ogive.client.consumer.process_queue import ProcessQueue
from ogive.client.consumer.pull_loop import PullService
from ogive.client.consumer.rebalance import Rebalancer, lease_time
from ogive.client.consumer.requests import answer_requests
from ogive.client.consumer.running_info import (
    Statistics,
    left_behind,
    properties,
    queue_info,
    stuck,
)
from ogive.client.consumer.send_back import returns
from ogive.client.consumer.subscription import Announcer, ConsumeService, MemberContext, OnChange
from ogive.client.ids import local_ip
from ogive.client.instance import ClientInstance
from ogive.client.listener import AnyListener, ListenerConfig, Start, consume_from_where, decoded
from ogive.client.trace import ConsumeTrace, Tracer
from ogive.errors import (
    BrokerError,
    CompressionUnavailable,
    IllegalStateError,
    InvalidOption,
    NoRoute,
    ProtocolError,
)
from ogive.model import MessageExt, MessageQueue, PropertyName, retry_topic
from ogive.transport.event_loop import cancel_all, each
from ogive.wire.bodies.clients import ConsumerData, SubscriptionData
from ogive.wire.bodies.running_info import ConsumeDirectlyResult, ConsumerRunningInfo
from ogive.wire.compression import decompress

log = logging.getLogger(__name__)

DEAD_LETTER_LEVEL: Final = -1
# messages of tools, at a time: no limit of a queue counts them
MAX_CALLED_DIRECTLY: Final = 8

MakeService = Callable[[MemberContext, AnyListener, ConsumerConfig], ConsumeService]


class PushMember:
    """Joins the group with ``start``, leaves it with ``stop``.

    Source: DefaultMQPushConsumerImpl.java, 5.3.

    All *listeners* are of one group. Names are from here on those on the wire. A message that comes
    back through the retry topic goes to the listener of the topic that it was first sent to. Raises
    InvalidOption for listeners that cannot share a group.
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
        self._namespace = instance.namespace
        listeners = [
            wired(intercepted(decoded(listener), config.interceptors), self._namespace)
            for listener in listeners
        ]
        settings = [listener.config for listener in listeners]
        self._make_service = make_service
        self.group = settings[0].group
        self._settings = settings
        self._config = config
        self._broadcast = settings[0].broadcast
        self._orderly = settings[0].orderly
        self._retry_topic = retry_topic(self.group)
        self._loop = asyncio.get_running_loop()
        self._started_ms = time.time_ns() // 1_000_000
        calls = GroupClient(instance, self.group)
        self._context = group = MemberContext(
            self.group,
            instance,
            calls,
            self._store(instance, calls),
            Statistics(self._loop.time()),
            broadcast=self._broadcast,
        )
        self._tracer = (
            Tracer(instance, self._namespace.strip(self.group), "CONSUME") if config.trace else None
        )
        if self._tracer is not None:
            group.observer = ConsumeTrace(
                self._tracer,
                self._namespace.strip(self.group),
                {one.topic: one.consume_timeout_s for one in settings},
            )
        self._subscriptions = {one.topic: one.subscription(self._started_ms) for one in settings}
        starts: dict[str, Start] = {one.topic: one.start for one in settings}
        if not self._broadcast:
            self._subscriptions[self._retry_topic] = SubscriptionData(
                topic=self._retry_topic, version=self._started_ms
            )
            starts[self._retry_topic] = "earliest"
        self._listeners = {
            one.config.topic: one for one in listeners if one.function is not no_function
        }
        self._services = {one.config.topic: make_service(group, one, config) for one in listeners}
        self._pulls = PullService(
            group,
            config,
            self._subscriptions,
            deliver=self._deliver,
            reject=self._reject,
            repair=self._go_to,
            verify=self._verify,
        )
        self._rejected = returns(
            group,
            listeners[0],
            config,
            returned=group.finish_message,
            redeliver=lambda process_queue, message: self._reject(process_queue, [message]),
        )
        self._locks = self._orderly and not self._broadcast
        self._rebalancer = Rebalancer(
            group,
            config,
            self._pulls,
            starts=starts,
            orderly=self._locks,
            quiet=self._quiet,
            renewed=lambda process_queue: self._deliver(process_queue, ()),
            changed=lambda *_: self.announce(),
        )
        on_change = wired_on_change(on_change, self._namespace)
        self._announcer = (
            Announcer(on_change, group.held, group.spawn) if on_change is not None else None
        )
        self._called_directly = 0
        self._jobs: list[asyncio.Task[Any]] = []
        self._persisting: list[asyncio.Task[Any]] = []

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group and take over queues. A topic that does not exist yet is waited for.

        Raises NoNameServer, what brokers say of a filter in SQL (SubscriptionInvalid,
        BrokerInternalError), and the BrokerError of a broker that refuses the member. After an
        error only ``stop`` may be called.
        """
        await self.prepare()
        self.register()
        await self._context.instance.announce()
        self.begin()

    async def prepare(self) -> None:
        """Find the topics, and have the filters checked. Raises what ``start`` raises."""
        await self._context.store.open()
        await each(self._services, self._find)

    async def _find(self, topic: str) -> None:
        await self._find_route(topic)
        await self._context.calls.check_filter(self._subscriptions[topic])

    def register(self) -> None:
        """Become a member with the next heartbeat."""
        group = self._context
        group.instance.register_consumer(self)
        answer_requests(group.instance)
        for service in self._services.values():
            service.start()

    def begin(self) -> None:
        """Take over queues from now on."""
        group, config = self._context, self._config
        self._jobs = [group.spawn(self._rebalancer.run(), "rebalance")]
        self._persisting = group.keep_progress(config)
        if self._locks:
            self._jobs.append(
                group.every(config.lock_renew_s, self._rebalancer.renew_locks, "renew locks")
            )
        self._rebalancer.soon()

    async def stop(self, caller: object = None) -> None:
        """Leave the group: running listener calls end first, progress goes to the brokers last.

        *caller*: see Workers.stop.
        """
        ending = [
            service.stop(self._config.await_termination_s, caller)
            for service in self._services.values()
        ]
        ending.append(self._rejected.close(self._config.await_termination_s))
        try:
            await asyncio.gather(self._stop_fetching(), *ending)
            await self._rebalancer.give_up_all()
            # not before: an update that is cut short could overtake the last one
            await cancel_all(self._persisting)
            await self._context.store.close()
            await self._context.instance.unregister_consumer(self)
        finally:
            if self._tracer is not None:
                await self._tracer.close()

    def abandon(self) -> None:
        """The client has failed: call no listener any more.

        The group gets again what was not committed.
        """
        self._rebalancer.lose_all()

    # --- more and less, at run time ---------------------------------------------------------------

    async def add(self, listener: AnyListener) -> None:
        """Listen to one more topic.

        Raises InvalidOption where the listener cannot join the group, NoNameServer, and the
        BrokerError of a broker that refuses the topic. Nothing has changed then.
        """
        listener = wired(intercepted(decoded(listener), self._config.interceptors), self._namespace)
        check_one_group([*self._settings, listener.config])
        topic = listener.config.topic
        await self._find_route(topic)
        subscription = listener.config.subscription(time.time_ns() // 1_000_000)
        await self._context.calls.check_filter(subscription)
        self._settings.append(listener.config)
        self._listeners[topic] = listener
        self._services[topic] = service = self._make_service(self._context, listener, self._config)
        self._subscriptions[topic] = subscription
        service.start()
        try:
            await self._context.instance.announce()
        except BrokerError:
            # A refused heartbeat renews nothing: the next one must leave the topic out, or the
            # whole group ends.
            await self._end_calls(topic, None)
            await self._forget(topic)
            raise
        self._rebalancer.join(topic, listener.config.start)

    async def remove(self, topic: str, caller: object = None) -> None:
        """Remove the topic; the member must have another one. *caller*: see Workers.stop."""
        await self._rebalancer.leave(topic, lambda: self._end_calls(topic, caller))
        await self._forget(topic)

    async def _end_calls(self, topic: str, caller: object) -> None:
        """End the listener's calls. From now on retries of its topic go to the other listeners."""
        await self._services.pop(topic).stop(self._config.await_termination_s, caller)

    async def _forget(self, topic: str) -> None:
        """Leave the topic out of heartbeats from now on, its calls having ended."""
        self._settings = [one for one in self._settings if one.topic != topic]
        del self._listeners[topic], self._subscriptions[topic]
        self._context.statistics.forget(topic)
        await self._context.instance.heartbeat_now()
        for process_queue in list(self._context.held.values()):
            if any(message.topic == topic for message in process_queue.head(process_queue.count)):
                # retries that the service left behind
                await self._go_to(process_queue, process_queue.safe_offset)

    def announce(self) -> None:
        """Tell the application if its queues have changed since the last time."""
        if self._announcer is not None:
            self._announcer.look()

    @property
    def topics(self) -> Collection[str]:
        return self._services.keys()

    def suspend(self) -> None:
        """Pull nothing more; what is here already is still consumed."""
        self._pulls.suspend()

    def resume(self) -> None:
        self._pulls.resume()
        self._rebalancer.soon()

    async def lag(self) -> dict[MessageQueue, int]:
        """Messages of each held queue that are not finished yet, asked from the brokers now."""
        held = [p for p in self._context.held.values() if p.queue.topic != self._retry_topic]
        ends = await asyncio.gather(
            *(self._context.calls.max_offset(process_queue.queue) for process_queue in held)
        )
        return {p.queue: max(0, end - p.safe_offset) for p, end in zip(held, ends, strict=True)}

    @property
    def assignment(self) -> Mapping[MessageQueue, ProcessQueue]:
        """The queues that this member holds now, the retry topic's included."""
        return self._context.held

    # --- what the client asks ---------------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        where = consume_from_where(self._settings[0].start)
        return ConsumerData(
            group=self.group,
            message_model="BROADCASTING" if self._broadcast else "CLUSTERING",
            consume_from_where=where,
            subscriptions=tuple(self._subscriptions.values()),
        )

    def on_consumer_ids_changed(self) -> None:
        self._rebalancer.soon()

    def holdings(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        return self._rebalancer.holdings(queues)

    def running_info(self) -> bytes:
        now, now_ms = self._loop.time(), time.time_ns() // 1_000_000
        lease_s = self._config.lock_lease_s if self._locks else None
        store, statistics = self._context.store, self._context.statistics
        info = ConsumerRunningInfo(
            properties=properties(
                self._settings,
                self._config,
                self._context.instance.config,
                from_where=self.consumer_data().consume_from_where,
                started_ms=self._started_ms,
            )
            | stuck(self._context.held.values())
            | left_behind(statistics.left_behind),
            subscriptions=tuple(self._subscriptions.values()),
            queues={
                queue: queue_info(
                    process_queue,
                    store.read(queue),
                    lease_s=lease_s,
                    now=lease_time(now),
                    now_ms=now_ms,
                )
                for queue, process_queue in self._context.held.items()
            },
            topics={topic: statistics.of(topic).status(now) for topic in self._subscriptions},
        )
        return info.encode()

    # --- what tools ask (see requests.py) ---------------------------------------------------------

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets in the queues that are held; the owners of the others are told,
        too.
        """
        held = [
            (self._context.held[queue], offset)
            for queue, offset in offsets.items()
            if queue in self._context.held
        ]
        for process_queue, offset in held:
            log.warning("%s: %s was told to go on at %d", process_queue.queue, self.group, offset)
        await asyncio.gather(
            *(self._go_to(process_queue, offset) for process_queue, offset in held)
        )

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        known = {
            queue: self._context.store.read(queue)
            for queue in self._context.held
            if queue.topic == topic
        }
        return {queue: offset for queue, offset in known.items() if offset is not None}

    async def consume_directly(self, message: MessageExt) -> ConsumeDirectlyResult:
        """Raises IllegalStateError if messages are iterated over, so that there is no listener, and
        for too many calls at a time.
        """
        if self._called_directly >= MAX_CALLED_DIRECTLY:
            raise IllegalStateError(
                f"group {self.group} works on {MAX_CALLED_DIRECTLY} messages that tools have given "
                "to it already"
            )
        topic = message.properties.get(PropertyName.RETRY_TOPIC, message.topic)
        listener = self._listeners.get(topic)
        if listener is None:
            raise IllegalStateError(f"group {self.group} has no listener of {topic} in this client")
        self._called_directly += 1
        try:
            return await consume_directly(listener, replace(message, topic=topic))
        finally:
            self._called_directly -= 1

    # --- inside -----------------------------------------------------------------------------------

    def _store(self, instance: ClientInstance, calls: GroupClient) -> OffsetStore:
        if not self._broadcast:
            return RemoteOffsetStore(calls)
        return LocalOffsetStore(
            offsets_path(
                self._config.offsets_dir, local_ip(), instance.config.instance_name, self.group
            )
        )

    async def _find_route(self, topic: str) -> None:
        try:
            await self._context.instance.routes.find(topic)
        except NoRoute as exc:
            log.warning("group %s waits for its topic: %s", self.group, exc)

    async def _stop_fetching(self) -> None:
        await self._rebalancer.settle()
        await cancel_all(self._jobs)
        await self._pulls.stop_all()

    async def _go_to(self, process_queue: ProcessQueue, offset: int) -> None:
        await self._rebalancer.go_to(process_queue, offset)

    async def _verify(self, process_queue: ProcessQueue) -> None:
        await self._rebalancer.verify(process_queue)

    async def _quiet(self, process_queue: ProcessQueue, timeout_s: float) -> bool:
        return all(
            await asyncio.gather(
                *(service.quiet(process_queue, timeout_s) for service in self._services.values())
            )
        )

    def _deliver(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        if len(self._services) == 1:
            service = next(iter(self._services.values()))
            service.submit(process_queue, messages)
        elif process_queue.queue.topic != self._retry_topic:
            self._services[process_queue.queue.topic].submit(process_queue, messages)
        else:
            self._deliver_retries(process_queue, messages)

    def _reject(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """Send an unreadable message to the dead letters: it would fail at every member."""
        for message in messages:
            why = "it cannot be read"
            try:
                decompress(message.body, message.sys_flag)
            except (ProtocolError, CompressionUnavailable) as exc:
                why = f"{why}: {exc}"
                log.error(
                    "%s/%d cannot be read and goes to the dead letters of %s: %s",
                    message.queue,
                    message.queue_offset,
                    self.group,
                    exc,
                )
            self._rejected.give(process_queue, message, DEAD_LETTER_LEVEL, why)

    def _deliver_retries(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        by_topic: dict[str, list[MessageExt]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message)
        fallback = next(iter(self._services))
        for topic, ours in by_topic.items():
            if topic not in self._services:
                log.warning(
                    "%d retries of %s, which %s does not listen to, go to its listener of %s",
                    len(ours),
                    topic,
                    self.group,
                    fallback,
                )
            self._services.get(topic, self._services[fallback]).submit(process_queue, ours)


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
    if len(settings) > 1 and any(one.orderly for one in settings):
        raise InvalidOption(
            f"group {group} has an orderly listener beside another one: give each orderly listener "
            "a group of its own"
        )
