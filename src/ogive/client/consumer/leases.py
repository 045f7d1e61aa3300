"""Popped messages and their leases: pop, wait, acknowledge, renew.

Source: MQClientAPIImpl.java popMessageAsync, DefaultMQPushConsumerImpl.java, 5.5.

Behaviour
- A broker gives a popped message to nobody else until its lease ends. The clock of the lease is the
  machine's own, and also runs while the process is stopped.
- A change of the time makes a new handle, and the old one is worth nothing then: changes of one
  lease come one after the other, and an acknowledgement waits for the change in flight.
- Several acknowledgements to a broker share a request. Brokers before 5.1.2 get one for each.
- What the broker let through and the filter does not want is acknowledged, as in Java.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from ogive.client import rpc
from ogive.client.consumer.filter import select
from ogive.client.consumer.group_client import GroupClient
from ogive.client.consumer.rebalance import lease_time
from ogive.client.instance import ClientInstance
from ogive.client.listener import Start
from ogive.errors import InvalidOption, NotSupported, OgiveError
from ogive.model import MessageExt, MessageQueue
from ogive.wire.bodies.clients import AssignmentQuery, SubscriptionData
from ogive.wire.headers.pull import NotificationRequest, PopMessageRequest
from ogive.wire.pop import MAX_POP_MESSAGES, PopHandle

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_INVISIBLE_S: Final = 12 * 3600.0
"""Longest lease, as in the SDKs of 5.x. Apache's brokers keep none for more than three days."""
ANY_QUEUE: Final = -1
MAX_ACKS: Final = 1024
"""Acknowledgements in one request."""


def check_invisible(name: str, seconds: float, least: float) -> None:
    """Raise InvalidOption, which names the argument, for an impossible time of a lease."""
    if not least <= seconds <= MAX_INVISIBLE_S:
        raise InvalidOption(
            f"{name} is {seconds}: must be between {least:g} and {MAX_INVISIBLE_S:g} seconds"
        )


def check_start(start: Start) -> None:
    """Raise InvalidOption for a start that a pop cannot ask for."""
    if start not in ("latest", "earliest"):
        raise InvalidOption(
            f'start is {start!r}: a group that pops begins at "latest" or "earliest"; '
            "`ogive group reset` moves it to a time"
        )


@dataclass(slots=True, eq=False)
class MessageLease:
    """Lease of one popped message of *topic*, the one subscribed to.

    *ends* is a ``lease_time``.
    """

    topic: str
    handle: PopHandle
    ends: float
    changing: asyncio.Future[None] | None = None
    """Done when the change in flight has ended."""

    @property
    def ack(self) -> tuple[str, PopHandle]:
        return self.topic, self.handle

    def has_ended(self) -> bool:
        return now() >= self.ends


def now() -> float:
    """Return the present ``lease_time``."""
    return lease_time(time.monotonic())


Popped = tuple[MessageExt, MessageLease]


@dataclass(frozen=True, slots=True)
class PopSettings:
    """Settings of a pop that stay the same."""

    invisible_s: float
    start: Start = "latest"
    orderly: bool = False


class PopClient(GroupClient):
    """Requests of a group that pops. Every method raises OgiveError if the broker cannot be asked
    or refuses.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        super().__init__(instance, group)
        # names of brokers before 5.1.2
        self._without_batches: set[str] = set()

    async def sources(self, topic: str) -> list[MessageQueue]:
        """Return one entry for each broker that holds *topic*, which stands for all its queues
        there. Raises NoRoute.
        """
        names = {queue.broker_name for queue in await self.queues(topic)}
        return [MessageQueue(topic, name, ANY_QUEUE) for name in sorted(names)]

    async def assigned(self, topic: str) -> list[MessageQueue] | None:
        """Return the queues of *topic* that a broker assigns to this client to pop.

        Return None if it leaves that to the clients: it is set to pulling, does not know the client
        yet, or does not answer such questions.
        """
        question = AssignmentQuery(
            topic=topic,
            group=self.group,
            client_id=self._instance.client_id,
            strategy="AVG",
            message_model="CLUSTERING",
        )
        try:
            found = await self._list_keeper(
                topic,
                lambda a: rpc.query_assignment(self._pool, a, question, timeout_s=self._timeout_s),
            )
        except NotSupported:
            return None
        queues = {queue for queue, mode in found or () if mode == "POP"}
        return sorted(queues) or None

    async def pop(
        self,
        source: MessageQueue,
        subscription: SubscriptionData,
        settings: PopSettings,
        *,
        max_messages: int = MAX_POP_MESSAGES,
        wait_s: float = 0.0,
        attempt_id: str | None = None,
    ) -> tuple[list[Popped], rpc.PopAnswer]:
        """Pop messages of *source*. Return those that *subscription* wants, and the answer.

        The others are acknowledged.
        """
        header = PopMessageRequest(
            consumer_group=self.group,
            topic=source.topic,
            queue_id=source.queue_id,
            max_msg_nums=min(max_messages, MAX_POP_MESSAGES),
            invisible_time_ms=max(1, int(settings.invisible_s * 1000)),
            poll_time_ms=int(wait_s * 1000),
            # the broker's clock
            born_time_ms=0,
            init_mode=0 if settings.start == "earliest" else 1,
            expression_type=subscription.expression_type,
            expression=subscription.expression,
            order=settings.orderly,
            attempt_id=attempt_id,
            broker_name=source.broker_name,
        )
        # not when the answer comes: that may be long after the lease began
        ends = now() + settings.invisible_s
        answer = await self._master(
            source,
            lambda a: rpc.pop_message(self._pool, a, header, broker_name=source.broker_name),
        )
        for failure in answer.damaged:
            log.error("group %s: %s; it comes again when its lease ends", self.group, failure)
        popped = [
            (message, MessageLease(source.topic, handle, ends))
            for message, handle in answer.messages
        ]
        wanted = {id(one) for one in select([message for message, _ in popped], subscription)}
        unwanted = [lease for message, lease in popped if id(message) not in wanted]
        if unwanted:
            try:
                await self.ack(unwanted)
            except OgiveError as exc:
                log.warning(
                    "%d messages of %s that the filter does not want come again: %s",
                    len(unwanted),
                    source.topic,
                    exc,
                )
        return [one for one in popped if id(one[0]) in wanted], answer

    async def await_message(
        self,
        source: MessageQueue,
        subscription: SubscriptionData,
        wait_s: float,
        *,
        orderly: bool = False,
    ) -> bool:
        """Wait until *source* has something to pop. Return False if it has not within *wait_s*."""
        header = NotificationRequest(
            consumer_group=self.group,
            topic=source.topic,
            queue_id=source.queue_id,
            poll_time_ms=int(wait_s * 1000),
            born_time_ms=0,
            order=orderly,
            expression_type=subscription.expression_type,
            expression=subscription.expression,
            broker_name=source.broker_name,
        )
        return await self._master(source, lambda a: rpc.await_message(self._pool, a, header))

    async def ack(self, leases: Sequence[MessageLease]) -> None:
        """Acknowledge messages, of several brokers at a time. Raises the first failure after every
        broker was asked.
        """
        while changing := {lease.changing for lease in leases if lease.changing is not None}:
            await asyncio.wait(changing)
        by_broker: dict[str, list[MessageLease]] = {}
        for lease in leases:
            by_broker.setdefault(lease.handle.broker, []).append(lease)
        await raise_first(
            self._ack_at(broker_name, ours[at : at + MAX_ACKS])
            for broker_name, ours in by_broker.items()
            for at in range(0, len(ours), MAX_ACKS)
        )

    async def _ack_at(self, broker_name: str, leases: Sequence[MessageLease]) -> None:
        source = MessageQueue(leases[0].topic, broker_name, ANY_QUEUE)
        together = [lease.ack for lease in leases if rpc.fits_batch(lease.handle)]
        if len(together) > 1 and broker_name not in self._without_batches:
            try:
                await self._master(
                    source,
                    lambda a: rpc.ack_messages(
                        self._pool, a, broker_name, self.group, together, timeout_s=self._timeout_s
                    ),
                )
            except NotSupported:
                self._without_batches.add(broker_name)
            else:
                leases = [lease for lease in leases if not rpc.fits_batch(lease.handle)]
        await raise_first(self._ack_one(source, lease) for lease in leases)

    async def _ack_one(self, source: MessageQueue, lease: MessageLease) -> None:
        await self._master(
            source,
            lambda a: rpc.ack_message(
                self._pool, a, self.group, lease.ack, timeout_s=self._timeout_s
            ),
        )

    async def change(self, lease: MessageLease, seconds: float, *, as_try: bool = True) -> None:
        """Let the lease end *seconds* from now.

        Unless *as_try*, the next delivery does not count as another try; brokers before 5.5 count
        each.
        """
        while lease.changing is not None:
            await asyncio.wait((lease.changing,))
        lease.changing = asyncio.get_running_loop().create_future()
        ends = now() + seconds
        try:
            lease.handle = await self._master(
                MessageQueue(lease.topic, lease.handle.broker, ANY_QUEUE),
                lambda a: rpc.change_invisible_time(
                    self._pool,
                    a,
                    self.group,
                    lease.ack,
                    int(seconds * 1000),
                    suspend=not as_try,
                    timeout_s=self._timeout_s,
                ),
            )
            lease.ends = ends
        finally:
            lease.changing.set_result(None)
            lease.changing = None


async def raise_first(work: Iterable[Awaitable[object]]) -> None:
    """Await all of *work*. Raise the first failure afterwards."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


class Acknowledger:
    """Acknowledgements that nobody waits for, one request at a time to each broker: what comes
    meanwhile goes together in the next one.

    One that fails is sent again until its lease ends.
    """

    def __init__(
        self,
        client: PopClient,
        spawn: Callable[[Awaitable[None]], "asyncio.Task[None]"],
        retry_s: float,
    ) -> None:
        self._client = client
        self._spawn = spawn
        self._retry_s = retry_s
        self._waiting: dict[str, list[MessageLease]] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}

    def add(self, lease: MessageLease) -> None:
        """Acknowledge the message of *lease*. Its number is limited by those that were popped."""
        broker_name = lease.handle.broker
        self._waiting.setdefault(broker_name, []).append(lease)
        if broker_name not in self._sending:
            self._sending[broker_name] = self._spawn(self._send(broker_name))

    async def _send(self, broker_name: str) -> None:
        failing = False
        try:
            while leases := self._waiting.pop(broker_name, None):
                try:
                    await self._client.ack(leases)
                except OgiveError as exc:
                    log.log(
                        logging.DEBUG if failing else logging.WARNING,
                        "could not acknowledge %d messages at %s, trying again: %s",
                        len(leases),
                        broker_name,
                        exc,
                    )
                    failing = True
                    left = [lease for lease in leases if not lease.has_ended()]
                    self._waiting[broker_name] = left + self._waiting.get(broker_name, [])
                    await asyncio.sleep(self._retry_s)
                else:
                    failing = False
        finally:
            del self._sending[broker_name]

    async def close(self, timeout_s: float) -> None:
        """Wait at most *timeout_s* for the rest. What is left comes again."""
        if self._sending:
            await asyncio.wait(list(self._sending.values()), timeout=timeout_s)
        for task in list(self._sending.values()):
            task.cancel()
