"""Blocking calls to a cluster, for Spark's driver and worker processes.

Connections belong to the process's background loop, and every batch uses them again, because Spark
keeps its Python workers. A forked child opens its own. Nothing here is ever pickled.
"""

import asyncio
import functools
import logging
import os
from collections import deque
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from ogive.client import rpc
from ogive.client.config import MAX_TIME_S, ClientConfig, file_stamp, read_credentials
from ogive.client.instance import ClientInstance
from ogive.client.portal import Portal, portal
from ogive.client.routes import (
    MASTER_ID,
    auto_create_route,
    broker_addresses,
    publish_queues,
    subscribe_queues,
)
from ogive.errors import (
    DataLoss,
    GroupNotExist,
    InvalidOption,
    NoPermission,
    NoRoute,
    OgiveError,
    TopicNotExist,
)
from ogive.model import (
    AUTO_CREATE_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    TOOLS_GROUP,
    MessageQueue,
    PullStatus,
    reply_topic,
)
from ogive.spark import marks
from ogive.spark.cluster_options import Access
from ogive.spark.offsets import assigned, matching
from ogive.spark.options import Selection
from ogive.spark.patience import CALL_TIMEOUT_S, USUAL, BrokerAway, Patience
from ogive.spark.range_reader import Fetched, Reading, Throttle, deleted, record_count, removed
from ogive.spark.ranges import ANSWER_BYTES, EVERYTHING, Chunks, Filter, Pace, QueueRange
from ogive.transport.pool import ConnectionPool
from ogive.wire.bodies.configs import DelayLevels
from ogive.wire.bodies.routes import BrokerData, ClusterInfo, TopicRouteData
from ogive.wire.bodies.stats import TopicOffset
from ogive.wire.codes import PullSysFlag
from ogive.wire.headers.pull import PullMessageRequest
from ogive.wire.message import decode_stored

log = logging.getLogger(__name__)

T = TypeVar("T")

ROUTE_AGE_S: Final = 30.0
PULL_TIMEOUT_S: Final = 20.0

# limit for data that is requested and not decoded yet, estimated by the size of messages
IN_FLIGHT_BYTES: Final = 8 * 1024 * 1024
# chunks of one task in flight. With ANSWER_BYTES each they stay below the 64 MiB of unread answers
# at which our broker closes a connection
MAX_IN_FLIGHT: Final = 24
UNHURRIED: Final = Pace(MAX_IN_FLIGHT)
_LEAST_IN_FLIGHT: Final = 2
_SMALLEST_ANSWER: Final = 64 * 1024

NEW_TOPIC_QUEUES: Final = 4  # defaultTopicQueueNums

# messages from which the size of a queue's messages is estimated
SAMPLE_ROWS: Final = 32


class DelayLimits(NamedTuple):
    """The highest delay level and the longest delay that all brokers of a topic allow.

    None: the brokers do not report it.
    """

    last_level: int | None = None
    longest_s: int | None = None


def cluster(access: Access | tuple[str, ...]) -> "Cluster":
    """Return this process's connections to a cluster.

    A text with name servers is an access without credentials and TLS.
    """
    ours = _cluster_of(
        os.getpid(), access if isinstance(access, Access) else Access(name_servers=access)
    )
    ours.read_credentials_again()
    return ours


@functools.cache
def _cluster_of(_pid: int, access: Access) -> "Cluster":
    return connect(access)


def connect(access: Access) -> "Cluster":
    """Return new connections to a cluster. Raises InvalidOption for a file that cannot be read."""
    settings = ClientConfig(request_timeout_s=CALL_TIMEOUT_S, route_period_s=MAX_TIME_S)
    credentials = access.credentials_file
    stamp = None if credentials is None else file_stamp(credentials)
    client, loop = ClientInstance(access.client(settings)), portal()
    loop.call(client.start())
    return Cluster(client, loop, credentials, stamp)


class Cluster:
    """Calls that block the calling thread.

    Raises OgiveError: if another try can help, each call has been tried for RETRY_WINDOW_S.

    Routes are queried when they are needed and older than ROUTE_AGE_S: an idle worker sends no
    requests.
    """

    def __init__(
        self,
        client: ClientInstance,
        portal: Portal,
        credentials_file: str | None = None,
        stamp: tuple[int, int, int] | None = None,
    ) -> None:
        client.name_servers.each_once = True
        self._credentials_file = credentials_file
        # of the credentials file when it was read last
        self._stamp = stamp
        self._client = client
        self._portal = portal
        self.pool = client.pool
        # brokers whose queues were last reported by a slave
        self.without_master: set[str] = set()
        # topic and broker name, if the broker itself has reported that it does not have the topic
        self.deleted: set[tuple[str, str]] = set()
        self._topics: tuple[list[str], float] | None = None
        # the name servers have answered before: every call waits while they are silent
        self._settled = False

    def _start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._portal.loop)

    def read_credentials_again(self) -> None:
        """Sign further requests as the credentials file says now, if it has changed.

        A file that cannot be read is logged; the credentials stay as they were.
        """
        path = self._credentials_file
        if path is None or (stamp := file_stamp(path)) == self._stamp:
            return
        self._stamp = stamp
        try:
            credentials = read_credentials(path)
        except InvalidOption as exc:
            log.warning("credentials stay as they were: %s", exc)
            return
        self._portal.loop.call_soon_threadsafe(self.pool.sign_with, credentials)

    # --- offsets ----------------------------------------------------------------------------------

    def spans(
        self, topics: Iterable[str], patience: Patience = USUAL
    ) -> dict[MessageQueue, TopicOffset]:
        """Return the first and next offset of every queue of *topics*.

        Raises NoRoute for a topic that does not exist.
        """
        return self._portal.call(self._spans(tuple(topics), patience))

    def selected(
        self,
        selection: Selection,
        patience: Patience = USUAL,
        read: Iterable[MessageQueue] = (),
        *,
        any_missing: bool = False,
    ) -> dict[MessageQueue, TopicOffset]:
        """Return first and next offset of the queues of *selection*.

        Raises NoRoute, and InvalidOption if it names a queue that does not exist. Queues that were
        *read* before may be missing, or with *any_missing* any queue. Queues whose topic was
        deleted from their broker are then in ``deleted``.
        """
        return self._portal.call(self._selected(selection, patience, frozenset(read), any_missing))

    def search(
        self, times_ms: Mapping[MessageQueue, int], group: str = TOOLS_GROUP
    ) -> dict[MessageQueue, int]:
        """Return for each queue the first offset stored at that time or later, or its end if there
        is none.
        """

        async def ask(queue: MessageQueue, address: str) -> int:
            return await rpc.search_offset(
                self.pool, address, queue, times_ms[queue], group=group, timeout_s=CALL_TIMEOUT_S
            )

        return self._portal.call(self._each(times_ms, ask))

    def end_of(self, queue: MessageQueue) -> int:
        """Return the end of *queue*, also if the topic no longer has the queue but its broker still
        does.
        """

        async def ask(queue: MessageQueue, address: str) -> int:
            return await rpc.max_offset(self.pool, address, queue, timeout_s=CALL_TIMEOUT_S)

        return self._portal.call(self._each((queue,), ask))[queue]

    def stored_ms(
        self, offsets: Mapping[MessageQueue, int], group: str = TOOLS_GROUP
    ) -> dict[MessageQueue, int]:
        """Return the store time of the message at an offset, for each queue that has a message
        there.
        """

        async def look(queue: MessageQueue, address: str) -> int | None:
            answer = await self._pull(
                group, QueueRange(queue, offsets[queue], offsets[queue] + 1), EVERYTHING
            )
            if answer.status is not PullStatus.FOUND:
                return None
            record = decode_stored(answer.body)
            return record.store_timestamp_ms if record.queue_offset <= offsets[queue] else None

        found = self._portal.call(self._each(offsets, look))
        return {queue: stored_ms for queue, stored_ms in found.items() if stored_ms is not None}

    def record_bytes(self, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, float]:
        """Estimate the size of stored messages from an offset on, by a few of each queue; empty for
        a queue without messages.
        """

        async def look(queue: MessageQueue, address: str) -> float | None:
            answer = await self._pull(
                TOOLS_GROUP,
                QueueRange(queue, positions[queue], positions[queue] + SAMPLE_ROWS),
                EVERYTHING,
            )
            count = record_count(answer.body) if answer.status is PullStatus.FOUND else 0
            return len(answer.body) / count if count else None

        found = self._portal.call(self._each(positions, look))
        return {queue: size for queue, size in found.items() if size is not None}

    def committed(self, group: str, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offsets of *group*, for the queues in which it has any."""
        return self._portal.call(self._committed(group, tuple(queues)))

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Store *offsets* as the group's, each acknowledged. Raises OgiveError."""
        self._portal.call(self._commit(group, offsets, each_acknowledged=True))

    def start_copy(self, group: str, offsets: Mapping[MessageQueue, int]) -> "Future[None]":
        """Copy *offsets* to the group, without waiting.

        Each broker gets one write, in which only the last request asks for an answer.
        """
        return self._start(self._commit(group, dict(offsets), each_acknowledged=False))

    # --- a group's marks --------------------------------------------------------------------------

    def marks(self, group: str, topic: str) -> dict[str, int]:
        """Return the number that each broker keeps as *group*'s offset in queue 0 of *topic*,
        without brokers that have none or are away.
        """
        return self._portal.call(self._marks(group, topic))

    def mark(self, group: str, topic: str, number: int) -> None:
        """Store *number* in this way at every broker.

        Creates *topic* if it is missing. Raises OgiveError if no broker accepts it.
        """
        self._portal.call(self._mark(group, topic, number))

    async def _masters(self) -> dict[str, str]:
        """Name -> address. Raises NoNameServer, BrokerAway for a cluster without masters."""
        masters = {
            name: broker.addresses[MASTER_ID]
            for name, broker in (await self._brokers()).items()
            if MASTER_ID in broker.addresses
        }
        if not masters:
            raise BrokerAway(f"{self._client.name_servers} knows no master")
        return masters

    async def _marks(self, group: str, topic: str) -> dict[str, int]:
        masters = await self._insist(topic, self._masters)
        return await marks.read(self.pool, masters, group, topic)

    async def _mark(self, group: str, topic: str, number: int) -> None:
        async def tell_all() -> None:
            await marks.store(self.pool, await self._masters(), group, topic, number)

        await self._insist(topic, tell_all)

    # --- where to write ---------------------------------------------------------------------------

    def settle(self) -> None:
        """Let every call wait while the name servers do not answer: they have answered before,
        perhaps to another process.
        """
        self._settled = True

    async def writable(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues to send to. For a topic that its first message will create, return its
        future queues. Raises NoRoute.
        """
        if self._settled:
            return await self._insist(topic, functools.partial(self._writable, topic))
        return await self._writable(topic)

    async def _writable(self, topic: str) -> tuple[MessageQueue, ...]:
        try:
            queues = publish_queues(topic, await self._route(topic))
        except NoRoute:
            if topic.startswith("%"):
                raise
            try:
                template = await self._route(AUTO_CREATE_TOPIC)
            except NoRoute:
                template = TopicRouteData(queues=(), brokers=())
            queues = publish_queues(topic, auto_create_route(template, NEW_TOPIC_QUEUES))
            if not queues and not self._settled:
                raise
        if not queues:
            raise BrokerAway(
                f"topic {topic!r} has no queue that can be written: its broker is away, or its "
                "permission forbids it"
            )
        return queues

    def delay_limits(self, topic: str) -> DelayLimits:
        """Return the highest delay level and the longest delay that all brokers of *topic*
        allow.
        """
        return self._portal.call(self._delay_limits(topic))

    async def _delay_limits(self, topic: str) -> DelayLimits:
        try:
            masters = {await self.master_of(queue) for queue in await self.writable(topic)}
        except OgiveError:
            # the send gets the same error, and reports it
            return DelayLimits()

        async def ask(address: str) -> DelayLimits:
            try:
                settings = await rpc.broker_settings(self.pool, address, timeout_s=CALL_TIMEOUT_S)
                levels = settings.get("messageDelayLevel")
                longest = settings.get("timerMaxDelaySec")
                return DelayLimits(
                    last_level=len(DelayLevels.parse(levels).delays_ms) if levels else None,
                    longest_s=int(longest) if longest else None,
                )
            except (OgiveError, ValueError):
                return DelayLimits()

        answers = await asyncio.gather(*map(ask, masters))
        return DelayLimits(
            last_level=min(
                (one.last_level for one in answers if one.last_level is not None), default=None
            ),
            longest_s=min(
                (one.longest_s for one in answers if one.longest_s is not None), default=None
            ),
        )

    async def master_of(self, queue: MessageQueue) -> str:
        """Return the address to write to. Raises BrokerAway."""
        try:
            await self._route(queue.topic)
        except NoRoute:
            await self._route(AUTO_CREATE_TOPIC)
        address = self._client.routes.find_address(queue.broker_name)
        if address is None:
            self.forget_route(queue.topic)
            raise BrokerAway(f"queue {queue} has no master in the route of its topic")
        return address

    def forget_route(self, topic: str) -> None:
        """Expire the route: it is fetched again at its next use."""
        self._client.routes.doubt(topic)

    # --- the work behind the calls ----------------------------------------------------------------

    async def _insist(
        self, topic: str, call: Callable[[], Awaitable[T]], patience: Patience = USUAL
    ) -> T:
        """Repeat *call* while its failure may pass."""
        return await patience.insist(call, lambda: self.forget_route(topic), lambda: self._settled)

    async def _route(self, topic: str) -> TopicRouteData:
        """Return the route of *topic*. Raises NoRoute, and BrokerAway if no name server knows a
        broker.
        """
        try:
            return await self._client.routes.find(topic, max_age_s=ROUTE_AGE_S)
        except NoRoute:
            # a user who may not see the brokers is told at once that there is no such topic
            with suppress(NoPermission):
                await self._brokers()
            raise

    async def _brokers(self) -> Mapping[str, BrokerData]:
        """Return the brokers that the name servers know. Raises BrokerAway if they know none."""
        return (await self._client.ask_name_server(_populated)).brokers

    async def _address(self, queue: MessageQueue) -> str:
        """Return the address from which to read *queue*. Raises BrokerAway."""
        await self._route(queue.topic)
        try:
            return self._client.routes.readable_broker(queue.broker_name)[0]
        except NoRoute:
            self.forget_route(queue.topic)
            raise BrokerAway(f"queue {queue} has no broker in the route of its topic") from None

    async def _each(
        self, queues: Iterable[MessageQueue], call: Callable[[MessageQueue, str], Awaitable[T]]
    ) -> dict[MessageQueue, T]:
        """Call *call* with each queue and the address of its broker."""

        async def one(queue: MessageQueue) -> T:
            return await call(queue, await self._address(queue))

        wanted = tuple(queues)
        answers = await asyncio.gather(
            *(self._insist(queue.topic, functools.partial(one, queue)) for queue in wanted)
        )
        return dict(zip(wanted, answers, strict=True))

    async def _selected(
        self,
        selection: Selection,
        patience: Patience,
        read: frozenset[MessageQueue],
        any_missing: bool,
    ) -> dict[MessageQueue, TopicOffset]:
        topics: Sequence[str] = selection.topics
        if selection.pattern is not None:
            known = await self._insist("", self._all_topics, patience)
            names = self._client.namespace
            ours = [names.strip(topic) for topic in known if names.holds(topic)]
            topics = [names.wrap(topic) for topic in matching(selection.pattern, ours)]
        spans = await self._spans(
            sorted({*topics, *(queue.topic for queue in read)}), patience, read, any_missing
        )
        chosen = {
            queue: span
            for queue, span in spans.items()
            if selection.queue_ids is None or queue.queue_id in selection.queue_ids
        }
        if selection.assigned is None:
            return chosen
        return {
            queue: chosen[queue]
            for queue in assigned(selection.assigned, chosen, read, any_missing=any_missing)
        }

    async def _all_topics(self) -> list[str]:
        """Return every topic that the name server knows, except the brokers' own, at most
        ROUTE_AGE_S old.
        """
        now = asyncio.get_running_loop().time()
        if self._topics is None or now - self._topics[1] >= ROUTE_AGE_S:
            topics = await self._client.ask_name_server(rpc.topic_list)
            info = await self._client.ask_name_server(rpc.get_cluster_info)
            own = (
                SYSTEM_TOPICS
                | info.brokers.keys()
                | info.clusters.keys()
                | {reply_topic(name) for name in info.clusters}
            )
            users = [
                topic
                for topic in topics
                if topic not in own and not topic.lower().startswith(SYSTEM_TOPIC_PREFIX)
            ]
            self._topics = users, now
        return self._topics[0]

    async def _spans(
        self,
        topics: Sequence[str],
        patience: Patience,
        read: Iterable[MessageQueue] = (),
        any_missing: bool = False,
    ) -> dict[MessageQueue, TopicOffset]:
        brokers: dict[str, set[str]] = {}
        for queue in read:
            brokers.setdefault(queue.topic, set()).add(queue.broker_name)
        found: dict[MessageQueue, TopicOffset] = {}
        for part in await asyncio.gather(
            *(
                self._spans_of(topic, patience, brokers.get(topic, set()), any_missing)
                for topic in topics
            )
        ):
            found |= part
        return found

    async def _spans_of(
        self, topic: str, patience: Patience, read: Set[str], any_missing: bool = False
    ) -> dict[MessageQueue, TopicOffset]:
        """Return first and next offset by queue. *read*: brokers whose queues were read before."""

        async def ask() -> dict[MessageQueue, TopicOffset]:
            try:
                route = await self._route(topic)
            except BrokerAway:
                raise
            except NoRoute:
                if not read and not any_missing:
                    raise
                route = TopicRouteData(queues=(), brokers=())
            addresses = broker_addresses((route,))
            self.without_master -= addresses.keys()
            self.without_master |= {
                name for name, there in addresses.items() if MASTER_ID not in there
            }
            if missing := read - addresses.keys():
                addresses |= await self._registered(missing)
            tables = await asyncio.gather(
                *(self._stats(topic, name, there) for name, there in addresses.items())
            )
            known = {
                queue: span
                for table in tables
                if table is not None
                for queue, span in table.items()
            }
            without = {name for name, table in zip(addresses, tables, strict=True) if table is None}
            self.deleted -= {(topic, name) for name in addresses}
            self.deleted |= {(topic, name) for name in without}
            queues = [
                queue
                for queue in subscribe_queues(topic, route)
                if queue.broker_name not in without
            ]
            # A queue that was never written may be missing in a broker's table, and so is one that
            # its topic lost after the route was fetched.
            if any(queue not in known for queue in queues):
                self.forget_route(topic)
            spans = {
                queue: known.get(
                    queue, TopicOffset(min_offset=0, max_offset=0, last_update_timestamp=0)
                )
                for queue in queues
            }
            if without and not spans and not read and not any_missing:
                raise NoRoute(
                    f"topic {topic!r} does not exist: {', '.join(sorted(without))} of its route "
                    "does not have it any more"
                )
            return spans

        return await self._insist(topic, ask, patience)

    async def _registered(self, names: Set[str]) -> dict[str, dict[int, str]]:
        """Return the addresses of the brokers that the name servers know now, if this user may list
        them.
        """
        try:
            brokers = await self._brokers()
        except (BrokerAway, NoPermission):
            return {}
        return {
            name: dict(broker.addresses)
            for name, broker in brokers.items()
            if name in names and MASTER_ID in broker.addresses
        }

    async def _stats(
        self, topic: str, broker_name: str, addresses: Mapping[int, str]
    ) -> dict[MessageQueue, TopicOffset] | None:
        """Return the spans of a broker's queues, or None if it does not have the topic."""
        try:
            return await rpc.topic_stats(
                # the master, or the first slave
                self.pool,
                addresses[min(addresses)],
                topic,
                timeout_s=CALL_TIMEOUT_S,
            )
        except TopicNotExist:
            # name servers of Apache keep the route of a topic that was deleted from a broker, and a
            # slave may not have heard of that
            if MASTER_ID not in addresses:
                raise BrokerAway(
                    f"the master of {broker_name} is away, and its slave does not know topic "
                    f"{topic!r}"
                ) from None
            self.forget_route(topic)
            return None

    async def _why_gone(self, part: QueueRange) -> DataLoss | None:
        """Return the loss if a queue, or its whole topic, was deleted.

        Return None if the queue exists, or if that is unknown.
        """
        queue = part.queue
        self.forget_route(queue.topic)
        try:
            spans = await self._spans_of(queue.topic, Patience(0.0), {queue.broker_name})
        except OgiveError:
            return None
        if (queue.topic, queue.broker_name) in self.deleted:
            return deleted(queue, part.start, part.end)
        others = any(other.broker_name == queue.broker_name for other in spans)
        return removed(part) if others and queue not in spans else None

    async def _committed(
        self, group: str, queues: Sequence[MessageQueue]
    ) -> dict[MessageQueue, int]:
        async def ask(queue: MessageQueue) -> int | None:
            try:
                address = await self._address(queue)
                return await rpc.query_consumer_offset(
                    self.pool, address, group, queue, zero_if_young=False, timeout_s=CALL_TIMEOUT_S
                )
            except GroupNotExist:
                return None

        answers = await asyncio.gather(
            *(self._insist(queue.topic, functools.partial(ask, queue)) for queue in queues)
        )
        return {
            queue: offset
            for queue, offset in zip(queues, answers, strict=True)
            if offset is not None
        }

    async def _commit(
        self, group: str, offsets: Mapping[MessageQueue, int], *, each_acknowledged: bool
    ) -> None:
        """Store *offsets* at each broker, even if some fail. Raises the first failure."""
        failures: list[OgiveError] = []
        of_brokers: dict[str, dict[MessageQueue, int]] = {}
        for queue, offset in offsets.items():
            try:
                of_brokers.setdefault(await self._address(queue), {})[queue] = offset
            except OgiveError as exc:
                failures.append(exc)

        async def store(address: str, ours: Mapping[MessageQueue, int]) -> None:
            await rpc.update_consumer_offsets(
                self.pool,
                address,
                group,
                ours,
                each_acknowledged=each_acknowledged,
                timeout_s=CALL_TIMEOUT_S,
            )

        async def store_in_group(address: str, ours: Mapping[MessageQueue, int]) -> None:
            try:
                await store(address, ours)
            except GroupNotExist:
                # a pull makes a broker create the group, where it creates groups at all
                queue, offset = next(iter(ours.items()))
                await self._pull(group, QueueRange(queue, offset, offset + 1), EVERYTHING)
                await store(address, ours)

        for outcome in await asyncio.gather(
            *(store_in_group(*broker) for broker in of_brokers.items()), return_exceptions=True
        ):
            if isinstance(outcome, OgiveError):
                failures.append(outcome)
            elif outcome is not None:
                raise outcome
        if failures:
            raise failures[0]

    # --- messages ---------------------------------------------------------------------------------

    def read(
        self,
        ranges: Sequence[QueueRange],
        *,
        group: str = TOOLS_GROUP,
        wanted: Filter = EVERYTHING,
        fail_on_data_loss: bool = True,
        patience: Patience = USUAL,
        pace: Pace = UNHURRIED,
    ) -> Iterator[tuple[QueueRange, bytes]]:
        """Yield the stored messages of *ranges*, one answer at a time: range by range, each in
        offset order, and nothing outside of the ranges.

        Each answer has the offsets that it covers. Many pulls are in flight at once, limited by
        *pace* and IN_FLIGHT_BYTES, and by a second of the bytes that *pace* allows. If messages of
        a range were deleted, raises DataLoss, or logs it and continues. The caller, who decodes the
        answers, checks that they have no gaps.
        """
        chunks = Chunks(ranges)
        most_bytes = int(min(IN_FLIGHT_BYTES, pace.bytes_per_s or IN_FLIGHT_BYTES))
        answer_bytes = max(_SMALLEST_ANSWER, min(ANSWER_BYTES, most_bytes))
        most_pulls = min(MAX_IN_FLIGHT, pace.pulls)
        least = min(_LEAST_IN_FLIGHT, most_pulls) if pace.bytes_per_s is None else 1
        throttle = Throttle(pace.bytes_per_s)

        async def pull(part: QueueRange) -> rpc.RawPull:
            return await self.pull(group, part, wanted, patience, answer_bytes)

        reading = Reading(
            pull,
            chunks,
            filtered=not wanted.takes_all,
            fail_on_data_loss=fail_on_data_loss,
            why_gone=self._why_gone,
        )
        window: deque[tuple[QueueRange, Future[Fetched]]] = deque()
        # messages that the window is to bring
        ahead = 0
        try:
            while True:
                while len(window) < most_pulls and (
                    len(window) < least or ahead * chunks.record_bytes < most_bytes
                ):
                    if (chunk := next(chunks, None)) is None:
                        break
                    window.append((chunk, self._start(reading.fetch(chunk))))
                    ahead += len(chunk)
                if not window:
                    return
                chunk, answer = window.popleft()
                ahead -= len(chunk)
                answers, at = answer.result()
                # large messages: the rest comes before the next chunk
                if at < chunk.end:
                    rest = QueueRange(chunk.queue, at, chunk.end)
                    window.appendleft((rest, self._start(reading.fetch(rest))))
                    ahead += len(rest)
                for covered, records in answers:
                    throttle.wait_for(len(records))
                    yield covered, records
        finally:
            for _, answer in window:
                answer.cancel()

    async def _pull(
        self, group: str, part: QueueRange, wanted: Filter, answer_bytes: int = ANSWER_BYTES
    ) -> rpc.RawPull:
        header = PullMessageRequest(
            consumer_group=group,
            topic=part.queue.topic,
            queue_id=part.queue.queue_id,
            queue_offset=part.start,
            max_msg_nums=len(part),
            max_msg_bytes=answer_bytes,
            sys_flag=PullSysFlag.SUBSCRIPTION,
            commit_offset=0,
            subscription=wanted.expression,
            expression_type=wanted.kind,
        )
        return await rpc.pull_raw(
            self.pool, await self._address(part.queue), header, timeout_s=PULL_TIMEOUT_S
        )

    async def pull(
        self,
        group: str,
        part: QueueRange,
        wanted: Filter,
        patience: Patience = USUAL,
        answer_bytes: int = ANSWER_BYTES,
    ) -> rpc.RawPull:
        """Pull once, up to len(part) messages, on the cluster's loop."""
        return await self._insist(
            part.queue.topic, lambda: self._pull(group, part, wanted, answer_bytes), patience
        )


async def _populated(pool: ConnectionPool, address: str, *, timeout_s: float) -> ClusterInfo:
    """Return the cluster as a name server knows it. Raises BrokerAway if that has no broker: others
    may know some.
    """
    info = await rpc.get_cluster_info(pool, address, timeout_s=timeout_s)
    if not info.brokers:
        raise BrokerAway(f"no broker is known at {address}")
    return info
