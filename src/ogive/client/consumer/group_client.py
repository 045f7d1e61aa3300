"""RPCs of one consumer group, addressed by queue: broker, time budget, and a fresh route if an
error asks for it.

A broker whose queues fail alike is one line in the log, instead of one for each queue.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from ogive.client import rpc
from ogive.client.instance import ClientInstance
from ogive.client.listener import Start
from ogive.client.routes import MASTER_ID
from ogive.errors import ConnectError, MessageIllegal, OgiveError, ResponseCode, TransportError
from ogive.model import MessageExt, MessageQueue, PropertyName, PullResult, PullStatus, retry_topic
from ogive.transport.connection import Connection
from ogive.wire.bodies.clients import SQL92, ConsumerRunningInfo, SubscriptionData
from ogive.wire.codes import PullSysFlag, SysFlag
from ogive.wire.command import MAX_FRAME_BYTES
from ogive.wire.compression import compress
from ogive.wire.fitting import fit_properties
from ogive.wire.headers.pull import PullMessageRequest
from ogive.wire.headers.send import SendMessageRequestV2, SendReplyMessageRequestV2
from ogive.wire.message import MAX_PROPERTIES_BYTES, DamagedMessage, encode_properties

T = TypeVar("T")

log = logging.getLogger(__name__)

INNER_GROUP: Final = "CLIENT_INNER_PRODUCER"
# brokers, as many as a send tries
REPLY_TRIES: Final = 3
_NOT_COPIED: Final = {
    # Half-message mark, what goes into the header, and the sum over the old record.
    PropertyName.TRANSACTION_PREPARED,
    PropertyName.RECONSUME_TIME,
    PropertyName.MAX_RECONSUME_TIMES,
    PropertyName.RECORD_CRC,
    # of the lease of a popped message
    PropertyName.POP_CK,
    # Only in a batch item, which no broker checks. A broker would refuse the copy for them, or
    # delay the dead letter.
    "INNER_NUM",
    "TIMER_DELAY_SEC",
    PropertyName.TIMER_DELAY_MS,
    PropertyName.TIMER_DELIVER_MS,
    "TIMER_DEL_UNIQKEY",
}
MAX_RETRIES: Final = 0x7FFFFFFF
ASKED_IN_ONE: Final = 100
"""Queues in one question to a member: our broker refuses a body of more than 64 KiB."""
_ADDED_BYTES: Final = 1024
"""Brokers add less to the properties of a copy: where it waits for its delay, where it came in, and
a unique key."""
_MAX_COPY_BYTES: Final = MAX_FRAME_BYTES - 128 * 1024
"""The rest of a frame is for the header, which holds the properties."""


class GroupClient:
    """RPCs of one consumer group. Every method raises OgiveError if the broker cannot be asked or
    refuses.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._pool = instance.pool
        self._timeout_s = instance.config.request_timeout_s
        self.group = group

    async def _master(
        self,
        queue: MessageQueue,
        call: Callable[[str], Awaitable[T]],
        *,
        or_slave: bool = False,
    ) -> T:
        """Ask the master of the queue's broker, or with *or_slave* a slave if no route names it;
        after a failure that blames the route, the next call finds a new one.
        """
        routes = self._instance.routes
        try:
            if or_slave:
                address, _ = routes.readable_broker(queue.broker_name)
            else:
                address = routes.broker_address(queue.broker_name)
            return await call(address)
        except OgiveError as exc:
            await self._learn(exc, queue.topic)
            raise

    async def _learn(self, failure: OgiveError, topic: str) -> None:
        """Ask for the route again if it may be to blame.

        Whether that works or not, *failure* is what the caller hears of.
        """
        if failure.refresh_route:
            with contextlib.suppress(OgiveError):
                await self._instance.routes.refresh(
                    topic, doubted=isinstance(failure, ConnectError)
                )

    # --- members and locks ------------------------------------------------------------------------

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the readable queues of *topic*, sorted. Raises NoRoute."""
        return await self._instance.routes.subscribe_queues(topic)

    async def members(self, topic: str) -> tuple[list[str], Connection | None]:
        """Return the client ids of the group, sorted, and the connection of the answer.

        Each id comes once: Apache's broker repeats a client that has two connections, and by
        position in such a list the second entry's queues would belong to nobody.

        All members must see the same list, so all ask the topic's first broker. If that cannot be
        reached the next one is asked: those with a connection come first, as a dead one may cost
        its whole timeout.
        """

        async def ask(address: str) -> tuple[list[str], Connection | None]:
            ids = await rpc.consumer_ids(self._pool, address, self.group, timeout_s=self._timeout_s)
            return sorted({*ids}), self._pool.existing(address)

        return await self._list_keeper(topic, ask)

    async def held_by(
        self, topic: str, member: str, queues: Collection[MessageQueue], timeout_s: float
    ) -> Collection[MessageQueue]:
        """Return the queues that *member* has, asked through the broker that lists the members.

        Our members name only those among *queues*.
        """

        async def ask(some: Sequence[MessageQueue]) -> ConsumerRunningInfo:
            return await self._list_keeper(
                topic,
                lambda a: rpc.consumer_running_info(
                    self._pool, a, self.group, member, queues=some, timeout_s=timeout_s
                ),
            )

        asked = list(queues)
        answers = [
            await ask(asked[at : at + ASKED_IN_ONE]) for at in range(0, len(asked), ASKED_IN_ONE)
        ]
        return {queue for answer in answers for queue in answer.queues}

    async def languages(self, topic: str) -> Mapping[str, str]:
        """Return the language of each member, a name of LanguageCode, by client id."""

        async def ask(address: str) -> Mapping[str, str]:
            connected = await rpc.consumer_connections(
                self._pool, address, self.group, timeout_s=self._timeout_s
            )
            return {one.client_id: one.language for one in connected.connections}

        return await self._list_keeper(topic, ask)

    async def queues_in_progress(
        self, topic: str, member: str, timeout_s: float
    ) -> Collection[MessageQueue]:
        """Return the queues of *topic* in which *member* has progress.

        The request goes through the broker that lists the members.
        """
        return await self._list_keeper(
            topic,
            lambda a: rpc.member_progress(
                self._pool, a, self.group, topic, member, timeout_s=timeout_s
            ),
        )

    async def _list_keeper(self, topic: str, call: Callable[[str], Awaitable[T]]) -> T:
        route = await self._instance.routes.find(topic)
        addresses = sorted(
            self._instance.routes.group_brokers(route),
            key=lambda address: self._pool.existing(address) is None,
        )
        for address in addresses:
            try:
                return await call(address)
            except OgiveError as exc:
                await self._learn(exc, topic)
                if not isinstance(exc, TransportError) or address == addresses[-1]:
                    raise
        raise AssertionError("a route names a broker")

    async def heartbeat(self) -> None:
        await self._instance.heartbeat_now()

    async def check_filter(self, subscription: SubscriptionData) -> None:
        """Have a broker check a SQL filter, so that an invalid one fails at the start.

        Does nothing without a route.

        Raises SubscriptionInvalid, and BrokerInternalError from a broker that filters by tags only.
        """
        route = self._instance.routes.known(subscription.topic)
        if subscription.expression_type == SQL92 and route is not None:
            address = self._instance.routes.group_brokers(route)[0]
            await rpc.check_client_config(
                self._pool,
                address,
                self._instance.client_id,
                self.group,
                subscription,
                timeout_s=self._timeout_s,
            )

    async def lock(
        self, queues: Iterable[MessageQueue]
    ) -> tuple[set[MessageQueue], set[MessageQueue]]:
        """Lock queues, or renew their locks, one request a broker. Return those granted and those
        refused.

        Those of a failing broker are in neither.
        """
        granted: set[MessageQueue] = set()
        refused: set[MessageQueue] = set()

        async def ask(ours: list[MessageQueue]) -> OgiveError | None:
            try:
                got = await self._master(
                    ours[0],
                    lambda a: rpc.lock_queues(
                        self._pool, a, self.group, self._instance.client_id, ours
                    ),
                )
            except OgiveError as exc:
                return exc
            granted.update(set(ours).intersection(got))
            refused.update(set(ours).difference(got))
            return None

        failures = [
            failure
            for failure in await asyncio.gather(*map(ask, _by_broker(queues)))
            if failure is not None
        ]
        if failures and not granted and not refused:
            raise failures[0]
        return granted, refused

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks back. Raises the first failure after every broker was asked."""

        async def ask(ours: list[MessageQueue]) -> None:
            await self._master(
                ours[0],
                lambda a: rpc.unlock_queues(
                    self._pool, a, self.group, self._instance.client_id, ours
                ),
            )

        results = await asyncio.gather(*map(ask, _by_broker(queues)), return_exceptions=True)
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure

    # --- offsets ----------------------------------------------------------------------------------

    async def query_offset(
        self, queue: MessageQueue, *, zero_if_young: bool | None = None
    ) -> int | None:
        """See ``rpc.query_consumer_offset``. While no route names the master, a slave answers: its
        copy may be some seconds old, so that messages are delivered again.
        """
        if self._instance.routes.find_address(queue.broker_name) is None:
            # a slave may lack the group's progress, which then does not begin at 0
            zero_if_young = False
        return await self._master(
            queue,
            lambda a: rpc.query_consumer_offset(
                self._pool,
                a,
                self.group,
                queue,
                zero_if_young=zero_if_young,
                timeout_s=self._timeout_s,
            ),
            or_slave=True,
        )

    async def update_offset(self, queue: MessageQueue, offset: int) -> bool:
        """See ``rpc.update_consumer_offset``."""
        return await self._master(
            queue,
            lambda a: rpc.update_consumer_offset(
                self._pool, a, self.group, queue, offset, timeout_s=self._timeout_s
            ),
        )

    def link(self, queue: MessageQueue) -> Connection | None:
        """Return the connection to the queue's broker, or None if there is none now."""
        address = self._instance.routes.find_address(queue.broker_name)
        return self._pool.existing(address) if address is not None else None

    async def max_offset(self, queue: MessageQueue) -> int:
        return await self._master(
            queue, lambda a: rpc.max_offset(self._pool, a, queue, timeout_s=self._timeout_s)
        )

    async def min_offset(self, queue: MessageQueue) -> int:
        return await self._master(
            queue, lambda a: rpc.min_offset(self._pool, a, queue, timeout_s=self._timeout_s)
        )

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after *timestamp_ms*."""
        return await self._master(
            queue,
            lambda a: rpc.search_offset(
                self._pool, a, queue, timestamp_ms, group=self.group, timeout_s=self._timeout_s
            ),
        )

    async def start_offset(self, queue: MessageQueue, start: Start) -> int:
        """Return the first offset in *queue* of a group that has none."""
        if start == "latest":
            return await self.max_offset(queue)
        if start == "earliest":
            return await self.min_offset(queue)
        return await self.offset_at(queue, int(start.timestamp() * 1000))

    # --- messages ---------------------------------------------------------------------------------

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        broker_id: int,
        max_messages: int,
        max_bytes: int,
        subscription: SubscriptionData,
        post_subscription: bool = False,
        suspend_s: float,
    ) -> PullResult:
        """Pull with long polling; with *suspend_s* 0 the broker answers at once.

        With *post_subscription* the request says itself what it wants, else the group's heartbeat
        has done so. Differs from Java: it carries no progress along, see RemoteOffsetStore. A
        slave's word that an offset is not there is not believed; without a master it raises
        NoRoute. A DamagedMessage names the broker whose it is.
        """
        timeout_s = suspend_s + rpc.PULL_TIMEOUT_S - rpc.PULL_SUSPEND_S
        answering_id = MASTER_ID
        try:
            address, answering_id = self._instance.routes.readable_broker(
                queue.broker_name, broker_id
            )
            header = PullMessageRequest(
                consumer_group=self.group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=offset,
                max_msg_nums=max_messages,
                sys_flag=(PullSysFlag.SUSPEND if suspend_s > 0 else 0)
                | (PullSysFlag.SUBSCRIPTION if post_subscription else 0),
                commit_offset=0,
                suspend_timeout_ms=int(suspend_s * 1000),
                subscription=subscription.expression if post_subscription else None,
                sub_version=subscription.version,
                expression_type=subscription.expression_type,
                max_msg_bytes=max_bytes,
            )
            result = await rpc.pull_message(
                self._pool, address, header, broker_name=queue.broker_name, timeout_s=timeout_s
            )
            if result.status is PullStatus.OFFSET_ILLEGAL and answering_id != MASTER_ID:
                log.warning(
                    "%s: slave %d does not have offset %d: it may be behind, asking the master",
                    queue,
                    answering_id,
                    offset,
                )
                address = self._instance.routes.broker_address(queue.broker_name)
                answering_id = MASTER_ID
                result = await rpc.pull_message(
                    self._pool, address, header, broker_name=queue.broker_name, timeout_s=timeout_s
                )
            return result
        except DamagedMessage as exc:
            exc.broker_id = answering_id
            raise
        except OgiveError as exc:
            await self._learn(exc, queue.topic)
            raise

    async def send_back(self, message: MessageExt, *, delay_level: int, max_retries: int) -> None:
        """Ask the broker that holds *message* to deliver it again later
        (CONSUMER_SEND_MSG_BACK).
        """
        await self._master(
            message.queue,
            lambda a: rpc.send_back(
                self._pool,
                a,
                message,
                self.group,
                delay_level=delay_level,
                max_reconsume_times=max_retries,
                timeout_s=rpc.SEND_BACK_TIMEOUT_S,
            ),
        )

    async def send_retry(
        self, message: MessageExt, *, delay_level: int, reconsume_times: int, max_retries: int
    ) -> None:
        """Send a copy of *message* to the group's retry topic, if its broker cannot send it back.

        More *reconsume_times* than *max_retries* make the broker put it into the dead-letter topic
        instead. Properties that do not fit are removed, the largest first. Raises MessageIllegal if
        the broker refuses even that.
        """
        topic = retry_topic(self.group)
        queues = await self._instance.routes.publish_queues(topic)
        queue = queues[message.queue_offset % len(queues)]
        body, sys_flag = await _copied_body(message)
        properties = _retry_properties(message, delay_level)
        header = SendMessageRequestV2(
            producer_group=INNER_GROUP,
            topic=topic,
            queue_id=queue.queue_id,
            born_timestamp=message.born_timestamp_ms,
            sys_flag=sys_flag,
            flag=message.flag,
            properties=encode_properties(fit_properties(properties)).decode(),
            reconsume_times=min(reconsume_times, MAX_RETRIES),
            max_reconsume_times=min(max_retries, MAX_RETRIES - 1),
        )
        try:
            await self._send_copy(queue, header, body)
        except MessageIllegal:
            shorter = encode_properties(
                fit_properties(properties, MAX_PROPERTIES_BYTES - _ADDED_BYTES)
            ).decode()
            if shorter == header.properties:
                raise
            await self._send_copy(queue, replace(header, properties=shorter), body)

    async def _send_copy(
        self, queue: MessageQueue, header: SendMessageRequestV2, body: bytes
    ) -> None:
        address = self._instance.routes.broker_address(queue.broker_name)
        await rpc.send_message(
            self._pool,
            address,
            header,
            body,
            broker_name=queue.broker_name,
            timeout_s=rpc.SEND_BACK_TIMEOUT_S,
        )

    async def send_reply(
        self, topic: str, body: bytes, properties: bytes, *, broker_name: str
    ) -> None:
        """Send a reply through a broker that holds the reply *topic*: by *broker_name* if it does,
        and by others if that fails.
        """
        queues = {
            queue.broker_name: queue for queue in await self._instance.routes.publish_queues(topic)
        }
        failure: OgiveError | None = None
        for queue in sorted(
            queues.values(), key=lambda queue: (queue.broker_name != broker_name, queue)
        )[:REPLY_TRIES]:
            header = SendReplyMessageRequestV2(
                producer_group=INNER_GROUP,
                topic=topic,
                queue_id=queue.queue_id,
                born_timestamp=time.time_ns() // 1_000_000,
                properties=properties.decode(),
                broker_name=queue.broker_name,
            )
            try:
                address = self._instance.routes.broker_address(queue.broker_name)
                await rpc.send_reply(self._pool, address, header, body, timeout_s=self._timeout_s)
            except OgiveError as exc:
                failure = exc
                if exc.outcome_unknown:
                    # it may have arrived
                    break
            else:
                return
        assert failure is not None
        raise failure


async def _copied_body(message: MessageExt) -> tuple[bytes, int]:
    """Return the body of a copy and its sysFlag.

    A body that came compressed is compressed again: inflated it may be longer than brokers accept.
    Raises MessageIllegal for one that is too long for a frame.
    """
    body = message.body
    sys_flag = message.sys_flag & (SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
    if len(body) > message.stored_bytes > 0:
        body, sys_flag = await asyncio.to_thread(compress, body)
    if len(body) > _MAX_COPY_BYTES:
        raise MessageIllegal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"a body of {len(body)} bytes is over the limit of {_MAX_COPY_BYTES}",
        )
    return body, sys_flag


def _retry_properties(message: MessageExt, delay_level: int) -> dict[str, str]:
    """Return the properties of a retry. Source: DefaultMQPushConsumerImpl.java
    sendMessageBackAsNormalMessage, 5.3.

    Differs from Java: ORIGIN_MESSAGE_ID is the offset id, as where the broker makes the copy, by
    which the original is found.
    """
    properties = {
        name: value for name, value in message.properties.items() if name not in _NOT_COPIED
    }
    properties.setdefault(PropertyName.ORIGIN_MESSAGE_ID, message.offset_id)
    properties.setdefault(PropertyName.RETRY_TOPIC, message.topic)
    properties.pop(PropertyName.DELAY, None)
    if delay_level > 0:
        properties[PropertyName.DELAY] = str(delay_level)
    return properties


def _by_broker(queues: Iterable[MessageQueue]) -> list[list[MessageQueue]]:
    groups: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        groups.setdefault(queue.broker_name, []).append(queue)
    return list(groups.values())


class Outages:
    """Queues whose requests fail."""

    def __init__(self) -> None:
        # with what it failed first
        self._failing: dict[MessageQueue, str] = {}

    def begins(self, queue: MessageQueue, error: str) -> bool:
        """Record that a request failed. Return True unless the queue, or another of its broker with
        the same error, is failing already.
        """
        known = {
            text for other, text in self._failing.items() if other.broker_name == queue.broker_name
        }
        is_news = queue not in self._failing and error not in known
        self._failing.setdefault(queue, error)
        return is_news

    def ends(self, queue: MessageQueue) -> bool:
        """Record that a request succeeded. Return True if none of its broker fails any more."""
        failed = self._failing.pop(queue, None) is not None
        return failed and all(other.broker_name != queue.broker_name for other in self._failing)
