"""Blocking calls to a cluster, for Spark's driver and worker processes.

Connections live on the process's background loop and are used again by every batch, because Spark keeps its Python workers. A forked child
starts afresh. Nothing here is ever pickled.
"""

import asyncio
import functools
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from ogive.client import api
from ogive.client.portal import Portal, portal
from ogive.client.routes import MASTER_ID, broker_addresses, subscribe_queues
from ogive.errors import (
    BrokerBusy,
    BrokerInternalError,
    DataLoss,
    GroupNotExist,
    NoNameServer,
    NoRoute,
    ServiceNotAvailable,
    TopicNotExist,
    TransportError,
)
from ogive.model import TOOLS_GROUP, MessageQueue, PullStatus
from ogive.spark.ranges import Chunks, QueueRange
from ogive.transport.pool import ConnectionPool
from ogive.wire.bodies import TopicOffset, TopicRouteData
from ogive.wire.codes import PullSysFlag
from ogive.wire.headers import PullMessageRequest

log = logging.getLogger(__name__)

T = TypeVar("T")

ROUTE_AGE_S: Final = 30.0
CALL_TIMEOUT_S: Final = 5.0
PULL_TIMEOUT_S: Final = 20.0
RETRY_WINDOW_S: Final = 30.0
"""How long one call is tried again while its broker is away. Longer outages end the task; Spark then tries the task again."""

IN_FLIGHT_BYTES: Final = 16 * 1024 * 1024
MAX_IN_FLIGHT: Final = 32  # chunks, each of at most CHUNK_BYTES and one answer
CHUNK_BYTES: Final = 4 * 1024 * 1024
SETTLE_S: Final = 3.0  # how long a queue may be shorter than it was before: a broker that restarts shows its queues bit by bit

_Fetched = tuple[list[bytes], int]  # answers, and the offset behind the last one


class BrokerAway(NoRoute):
    """The topic has a route, but without the broker of a queue that is to be read: a broker that restarts is missing for a while."""


_PASSING: Final = (TransportError, BrokerBusy, BrokerInternalError, ServiceNotAvailable, BrokerAway)


def cluster(name_servers: tuple[str, ...]) -> "Cluster":
    """This process's connections to the cluster behind *name_servers*."""
    return _cluster_of(os.getpid(), name_servers)


@functools.cache
def _cluster_of(_pid: int, name_servers: tuple[str, ...]) -> "Cluster":
    return Cluster(name_servers, portal())


class Cluster:
    """Calls that block the calling thread. Raises OgiveError: each call has been tried again for RETRY_WINDOW_S where that can help."""

    def __init__(self, name_servers: tuple[str, ...], portal: Portal) -> None:
        self._name_servers = name_servers
        self._portal = portal
        self._pool = ConnectionPool()
        self._routes: dict[str, tuple[TopicRouteData, float]] = {}

    def _start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._portal.loop)

    # --- offsets -----------------------------------------------------------------------------------------------------

    def spans(self, topics: Iterable[str]) -> dict[MessageQueue, TopicOffset]:
        """First and next offset of every queue of *topics*. Raises NoRoute for a topic that does not exist."""
        return self._portal.call(self._spans(tuple(topics)))

    def committed(self, group: str, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Where *group* stands, for the queues in which it has an offset."""
        return self._portal.call(self._committed(group, tuple(queues)))

    def start_commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> "Future[None]":
        """Store *offsets* as the group's, without waiting."""
        return self._start(self._commit(group, dict(offsets)))

    async def _spans(self, topics: Sequence[str]) -> dict[MessageQueue, TopicOffset]:
        found: dict[MessageQueue, TopicOffset] = {}
        for part in await asyncio.gather(*(self._spans_of(topic) for topic in topics)):
            found |= part
        return found

    async def _spans_of(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        async def ask() -> dict[MessageQueue, TopicOffset]:
            route = await self._route(topic)
            addresses = broker_addresses((route,))
            tables = await asyncio.gather(
                *(api.topic_stats(self._pool, _master(addresses[name]), topic, timeout_s=CALL_TIMEOUT_S) for name in addresses)
            )
            known = {queue: span for table in tables for queue, span in table.items()}
            # a queue that was never written may be missing in a broker's table
            return {
                queue: known.get(queue, TopicOffset(min_offset=0, max_offset=0, last_update_timestamp=0))
                for queue in subscribe_queues(topic, route)
            }

        return await self._insist(topic, ask)

    async def _committed(self, group: str, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        async def ask(queue: MessageQueue) -> int | None:
            try:
                address = await self._address(queue)
                return await api.query_consumer_offset(self._pool, address, group, queue, zero_if_young=False, timeout_s=CALL_TIMEOUT_S)
            except GroupNotExist:
                return None

        answers = await asyncio.gather(*(self._insist(queue.topic, functools.partial(ask, queue)) for queue in queues))
        return {queue: offset for queue, offset in zip(queues, answers, strict=True) if offset is not None}

    async def _commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            address = await self._address(queue)
            try:
                await api.update_consumer_offset(self._pool, address, group, queue, offset, timeout_s=CALL_TIMEOUT_S)
            except GroupNotExist:
                # a pull makes a broker create the group, where it creates groups at all
                await self._pull(group, QueueRange(queue, offset, offset + 1), "*")
                await api.update_consumer_offset(self._pool, address, group, queue, offset, timeout_s=CALL_TIMEOUT_S)

    # --- messages ----------------------------------------------------------------------------------------------------

    def read(
        self, ranges: Sequence[QueueRange], *, group: str = TOOLS_GROUP, subscription: str = "*", fail_on_data_loss: bool = True
    ) -> Iterator[tuple[MessageQueue, bytes]]:
        """The stored messages of *ranges*, an answer at a time: range by range, each in offset order, nothing outside of the ranges.

        Many pulls are on their way at once, IN_FLIGHT_BYTES and MAX_IN_FLIGHT bound them. *subscription* is a tag expression that the
        broker applies by hash code. Raises DataLoss where messages of a range are gone, or logs it and goes on.
        """
        chunks = Chunks(ranges)
        reading = _Reading(self, chunks, group, subscription, fail_on_data_loss)
        window: deque[tuple[QueueRange, Future[_Fetched]]] = deque()
        depth, largest = 4, 0
        try:
            while True:
                while len(window) < depth and (chunk := next(chunks, None)) is not None:
                    window.append((chunk, self._start(reading.fetch(chunk))))
                if not window:
                    return
                chunk, answer = window.popleft()
                bodies, at = answer.result()
                largest = max(largest, sum(map(len, bodies)))
                depth = max(2, min(MAX_IN_FLIGHT, IN_FLIGHT_BYTES // max(1, largest)))
                if at < chunk.end:  # large messages: the rest comes before the next chunk
                    rest = QueueRange(chunk.queue, at, chunk.end)
                    window.appendleft((rest, self._start(reading.fetch(rest))))
                for body in bodies:
                    yield chunk.queue, body
        finally:
            for _, answer in window:
                answer.cancel()

    async def _pull(self, group: str, wanted: QueueRange, subscription: str) -> api.RawPull:
        header = PullMessageRequest(
            consumer_group=group,
            topic=wanted.queue.topic,
            queue_id=wanted.queue.queue_id,
            queue_offset=wanted.start,
            max_msg_nums=len(wanted),
            sys_flag=PullSysFlag.SUBSCRIPTION,
            commit_offset=0,
            subscription=subscription,
            expression_type="TAG",
        )
        return await api.pull_raw(self._pool, await self._address(wanted.queue), header, timeout_s=PULL_TIMEOUT_S)

    async def pull(self, group: str, wanted: QueueRange, subscription: str) -> api.RawPull:
        """One pull of up to len(wanted) messages, on the cluster's loop."""
        return await self._insist(wanted.queue.topic, lambda: self._pull(group, wanted, subscription))

    # --- routes ------------------------------------------------------------------------------------------------------

    async def _address(self, queue: MessageQueue) -> str:
        addresses = broker_addresses((await self._route(queue.topic),)).get(queue.broker_name)
        if addresses is None:
            self._expire(queue.topic)
            raise BrokerAway(f"queue {queue} has no broker in the route of its topic")
        return _master(addresses)

    async def _route(self, topic: str) -> TopicRouteData:
        """The route of *topic*, at most ROUTE_AGE_S old."""
        now = asyncio.get_running_loop().time()
        known = self._routes.get(topic)
        if known is not None and now - known[1] < ROUTE_AGE_S:
            return known[0]
        try:
            route = await self._ask_name_servers(topic)
        except (NoNameServer, NoRoute):
            if known is None:
                raise
            return known[0]  # a name server or broker that restarts: the addresses are likely still right
        self._routes[topic] = (route, now)
        return route

    def _expire(self, topic: str) -> None:
        known = self._routes.get(topic)
        if known is not None:
            self._routes[topic] = (known[0], -ROUTE_AGE_S)

    async def _ask_name_servers(self, topic: str) -> TopicRouteData:
        failures: list[str] = []
        for address in self._name_servers:
            try:
                return await api.get_route(self._pool, address, topic, timeout_s=CALL_TIMEOUT_S)
            except TransportError as exc:
                failures.append(str(exc))
            except TopicNotExist:
                raise NoRoute(f"topic {topic!r} has no route on {address}: it does not exist, or its broker is down") from None
        raise NoNameServer("; ".join(failures))

    async def _insist(self, topic: str, call: Callable[[], Awaitable[T]]) -> T:
        """*call*, again while its failure may pass."""
        clock = asyncio.get_running_loop()
        deadline = clock.time() + RETRY_WINDOW_S
        pause = 0.05
        while True:
            try:
                return await call()
            except _PASSING as exc:
                if clock.time() + pause > deadline:
                    raise
                log.warning("trying again in %.2f s: %s", pause, exc)
                self._expire(topic)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 2.0)


class _Reading:
    """One call of Cluster.read."""

    def __init__(self, cluster: Cluster, chunks: Chunks, group: str, subscription: str, fail_on_data_loss: bool) -> None:
        self._cluster = cluster
        self._chunks = chunks
        self._group = group
        self._subscription = subscription
        self._fail_on_data_loss = fail_on_data_loss

    async def fetch(self, chunk: QueueRange) -> _Fetched:
        """The messages of one chunk and where they end: at the chunk's end, unless CHUNK_BYTES are reached before."""
        bodies: list[bytes] = []
        at, size = chunk.start, 0
        while at < chunk.end and size < CHUNK_BYTES:
            wanted = QueueRange(chunk.queue, at, chunk.end)
            answer = await self._cluster.pull(self._group, wanted, self._subscription)
            following = min(max(answer.next_offset, at), chunk.end)
            if at == chunk.start:
                self._chunks.learn(len(wanted), following - at)
            if answer.status is PullStatus.FOUND and following > at:
                body = until(answer.body, chunk.end) if answer.next_offset > chunk.end else answer.body
                self._check_first(wanted, body)
                bodies.append(body)
                size += len(body)
            elif answer.status is PullStatus.NO_MATCHED_MSG and self._subscription != "*" and following > at:
                pass  # the broker looked at these and none had the tag
            elif following > at:
                self._lost(QueueRange(chunk.queue, at, following))
            else:
                following = await self._settle(wanted)
            at = following
        return bodies, at

    def _check_first(self, wanted: QueueRange, body: bytes) -> None:
        """Without a filter the first message must be the one that was asked for."""
        if self._subscription == "*" and (first := queue_offset(body)) > wanted.start:
            self._lost(QueueRange(wanted.queue, wanted.start, first))

    async def _settle(self, wanted: QueueRange) -> int:
        """The queue ends before *wanted*, although it was longer when the read was planned: give a starting broker a moment.

        Returns where to go on.
        """
        clock = asyncio.get_running_loop()
        deadline = clock.time() + SETTLE_S
        while clock.time() < deadline:
            await asyncio.sleep(0.1)
            answer = await self._cluster.pull(self._group, wanted, self._subscription)
            if answer.next_offset > wanted.start:
                return wanted.start
        self._lost(wanted)
        return wanted.end

    def _lost(self, gone: QueueRange) -> None:
        if self._fail_on_data_loss:
            raise data_loss(gone)
        log.warning("%s", data_loss(gone))


def shrunk(queue: MessageQueue, end: int, position: int) -> DataLoss:
    return DataLoss(
        f"{queue} ends at offset {end}, but was read up to {position}: it lost messages, and new ones get the offsets of old ones. "
        f"With failOnDataLoss=false reading goes on at {end}."
    )


def data_loss(gone: QueueRange) -> DataLoss:
    return DataLoss(
        f"{len(gone)} messages of {gone.queue} are gone: offsets {gone.start} to {gone.end - 1} were deleted before they were read. "
        "With failOnDataLoss=false the read goes on behind them."
    )


def queue_offset(body: bytes) -> int:
    """Of the first record."""
    return int.from_bytes(body[20:28])


def until(body: bytes, end: int) -> bytes:
    """The records before queue offset *end*."""
    at = 0
    while at < len(body) and int.from_bytes(body[at + 20 : at + 28]) < end:
        at += max(1, int.from_bytes(body[at : at + 4]))  # never 0: the decoder reports damage, here it must only not loop
    return body[:at]


def _master(addresses: Mapping[int, str]) -> str:
    """The master's address; the first slave's while there is none: reading goes on."""
    return addresses.get(MASTER_ID) or addresses[min(addresses)]


__all__ = ["SETTLE_S", "Cluster", "cluster", "data_loss", "shrunk"]
