"""One member of one consumer group: its subscriptions, its queues and the listeners that they feed."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ogive.client.consumer.calls import GroupCalls
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.group import ConsumeService, Group
from ogive.client.consumer.offset_store import RemoteOffsetStore
from ogive.client.consumer.process_queue import ProcessQueue
from ogive.client.consumer.pull_service import PullService
from ogive.client.consumer.rebalance import Rebalancer
from ogive.client.consumer.send_back import SendBack
from ogive.client.instance import ClientInstance
from ogive.client.listener import AnyListener, ListenerConfig, Start
from ogive.client.trace import ConsumeTrace, Tracer
from ogive.errors import CompressionUnavailable, InvalidOption, NoRoute, ProtocolError
from ogive.model import MessageExt, MessageQueue, retry_topic
from ogive.transport.tasks import every
from ogive.wire.bodies import ConsumerData, SubscriptionData, queue_map_dumps
from ogive.wire.compression import decompress

log = logging.getLogger(__name__)

_FROM_WHERE: Final[dict[Start, str]] = {"earliest": "CONSUME_FROM_FIRST_OFFSET", "latest": "CONSUME_FROM_LAST_OFFSET"}

DEAD_LETTER_LEVEL: Final = -1

MakeService = Callable[[Group, AnyListener, ConsumerConfig], ConsumeService]


class Member:
    """Joins the group with ``start``, leaves it with ``stop``. Source: DefaultMQPushConsumerImpl.java, 5.3.

    All *listeners* are of one group. A message that comes back through the retry topic goes to the listener of the topic that it was first
    sent to. Raises InvalidOption for listeners that cannot share a group.
    """

    def __init__(
        self, instance: ClientInstance, listeners: Sequence[AnyListener], config: ConsumerConfig, make_service: MakeService
    ) -> None:
        settings = [listener.config for listener in listeners]
        check_one_group(settings)
        self.group = settings[0].group
        self._settings = settings
        self._config = config
        self._orderly = settings[0].orderly
        self._retry_topic = retry_topic(self.group)
        self._started_ms = time.time_ns() // 1_000_000
        calls = GroupCalls(instance, self.group)
        self._context = group = Group(self.group, instance, calls, RemoteOffsetStore(calls))
        self._tracer = Tracer(instance, self.group, "CONSUME") if config.trace else None
        if self._tracer is not None:
            group.observer = ConsumeTrace(self._tracer, self.group, {one.topic: one.consume_timeout_s for one in settings})
        self._subscriptions = {one.topic: one.subscription(self._started_ms) for one in settings}
        self._subscriptions[self._retry_topic] = SubscriptionData(topic=self._retry_topic, version=self._started_ms)
        self._services = {one.config.topic: make_service(group, one, config) for one in listeners}
        self._pulls = PullService(group, config, self._subscriptions, deliver=self._deliver, reject=self._reject, repair=self._go_to)
        self._rejected = SendBack(
            calls,
            group.spawn,
            max_retries=settings[0].retries,
            retry_s=config.send_back_retry_s,
            returned=lambda process_queue, message: group.finish(process_queue, (message.queue_offset,)),
            redeliver=lambda process_queue, message: self._reject(process_queue, [message]),
        )
        starts: dict[str, Start] = {one.topic: one.start for one in settings}
        self._rebalancer = Rebalancer(
            group, config, self._pulls, starts={**starts, self._retry_topic: "earliest"}, orderly=self._orderly, quiet=self._quiet
        )
        self._jobs: list[asyncio.Task[Any]] = []
        self._persisting: list[asyncio.Task[Any]] = []

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group and take over queues. Raises NoNameServer. A topic that does not exist yet is waited for."""
        group, config = self._context, self._config
        for topic in self._services:
            try:
                await group.instance.route(topic)
            except NoRoute as exc:
                log.warning("group %s waits for its topic: %s", self.group, exc)
        group.instance.register_consumer(self)
        for service in self._services.values():
            service.start()
        await group.instance.heartbeat_now()
        self._jobs = [group.spawn(self._rebalancer.run(), "rebalance")]
        self._persisting = [
            self._every(config.persist_period_s, partial(self._persist, again=False), "persist offsets"),
            self._every(config.persist_again_s, partial(self._persist, again=True), "persist offsets again"),
        ]
        if self._orderly:
            self._jobs.append(self._every(config.lock_renew_s, self._rebalancer.renew_locks, "renew locks"))
        self._rebalancer.soon()

    async def stop(self, caller: object = None) -> None:
        """Leave the group: running listener calls end first, progress goes to the brokers last. *caller*: see Workers.stop."""
        ending = [service.stop(self._config.await_termination_s, caller) for service in self._services.values()]
        ending.append(self._rejected.close(self._config.await_termination_s))
        try:
            await asyncio.gather(self._stop_fetching(), *ending)
            await self._rebalancer.give_up_all()
            await _cancel(self._persisting)  # not before: an update cut off on its way could overtake the last one
            await self._context.instance.unregister_consumer(self.group)
        finally:
            if self._tracer is not None:
                await self._tracer.close()

    def suspend(self) -> None:
        """Pull nothing more; what is here already is still consumed."""
        self._pulls.suspend()

    def resume(self) -> None:
        self._pulls.resume()
        self._rebalancer.soon()

    async def lag(self) -> dict[MessageQueue, int]:
        """Messages of each held queue that are not finished yet, asked from the brokers now."""
        held = [p for p in self._context.held.values() if p.queue.topic != self._retry_topic]
        ends = await asyncio.gather(*(self._context.calls.max_offset(process_queue.queue) for process_queue in held))
        return {p.queue: max(0, end - p.safe_offset) for p, end in zip(held, ends, strict=True)}

    @property
    def assignment(self) -> Mapping[MessageQueue, ProcessQueue]:
        """The queues that this member holds now, the retry topic's included."""
        return self._context.held

    # --- what the client asks ----------------------------------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        where = _FROM_WHERE.get(self._settings[0].start, "CONSUME_FROM_TIMESTAMP")
        return ConsumerData(group=self.group, consume_from_where=where, subscriptions=tuple(self._subscriptions.values()))

    def on_consumer_ids_changed(self) -> None:
        self._rebalancer.soon()

    def running_info(self) -> bytes:
        """Source: ConsumerRunningInfo.java, 5.3."""
        queues = [
            (
                queue,
                json.dumps(
                    {
                        "commitOffset": self._context.store.read(queue) or 0,
                        "cachedMsgCount": p.count,
                        "cachedMsgSizeInMiB": p.bytes >> 20,
                        "cachedMsgMinOffset": p.safe_offset if p.count else 0,
                        "cachedMsgMaxOffset": p.safe_offset + p.span if p.count else 0,
                        "locked": self._orderly,
                        "droped": p.dropped,
                    }
                ),
            )
            for queue, p in self._context.held.items()
        ]
        rest = {
            "properties": {
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_CONSUMEORDERLY": str(self._orderly).lower(),
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "PROP_THREADPOOL_CORE_SIZE": str(sum(one.threads for one in self._settings)),
            },
            "subscriptionSet": [subscription.to_json() for subscription in self._subscriptions.values()],
            "statusTable": {},
            "userConsumerInfo": {},
        }
        return f'{{"mqTable":{queue_map_dumps(queues)},{json.dumps(rest)[1:]}'.encode()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _every(self, period_s: float, job: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[Any]:
        return self._context.spawn(every(period_s, job, name=f"{name} of {self.group}", first_after_s=period_s), name)

    async def _stop_fetching(self) -> None:
        await self._rebalancer.settle()
        await _cancel(self._jobs)
        await self._pulls.stop_all()

    async def _go_to(self, process_queue: ProcessQueue, offset: int) -> None:
        await self._rebalancer.go_to(process_queue, offset)

    async def _persist(self, *, again: bool) -> None:
        await self._context.store.persist(list(self._context.held), again=again)

    async def _quiet(self, process_queue: ProcessQueue, timeout_s: float) -> bool:
        return all(await asyncio.gather(*(service.quiet(process_queue, timeout_s) for service in self._services.values())))

    def _deliver(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        if len(self._services) == 1:
            service = next(iter(self._services.values()))
            service.submit(process_queue, messages)
        elif process_queue.queue.topic != self._retry_topic:
            self._services[process_queue.queue.topic].submit(process_queue, messages)
        else:
            self._deliver_retries(process_queue, messages)

    def _reject(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """What cannot be read would fail at every member and for ever: it goes to the dead letters, as it is."""
        for message in messages:
            try:
                decompress(message.body, message.sys_flag)
            except (ProtocolError, CompressionUnavailable) as exc:
                log.error(
                    "%s/%d cannot be read and goes to the dead letters of %s: %s", message.queue, message.queue_offset, self.group, exc
                )
            self._rejected.give(process_queue, message, DEAD_LETTER_LEVEL)

    def _deliver_retries(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        by_topic: dict[str, list[MessageExt]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message)
        fallback = next(iter(self._services))
        for topic, ours in by_topic.items():
            if topic not in self._services:
                log.warning(
                    "%d retries of %s, which %s does not listen to, go to its listener of %s", len(ours), topic, self.group, fallback
                )
            self._services.get(topic, self._services[fallback]).submit(process_queue, ours)


async def _cancel(jobs: Sequence[asyncio.Task[Any]]) -> None:
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)


def check_one_group(settings: Sequence[ListenerConfig]) -> None:
    """Whether listeners may be one member of one group. Raises InvalidOption."""
    group, topics = settings[0].group, [one.topic for one in settings]
    if len(set(topics)) < len(topics):
        raise InvalidOption(f"group {group} has two listeners to one topic: each topic of a group takes one")
    if len(settings) > 1 and any(one.orderly for one in settings):
        raise InvalidOption(f"group {group} has an orderly listener beside another one: give each orderly listener a group of its own")
