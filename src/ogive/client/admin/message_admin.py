"""Search for messages by id, key, place and time; traces; dead letters."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from ipaddress import ip_address
from typing import Final

from ogive.client import rpc
from ogive.client.admin.base import AdminBase, master_addresses, master_of
from ogive.client.admin.offset_admin import to_ms
from ogive.client.config import check_type
from ogive.client.routes import subscribe_queues
from ogive.errors import (
    BrokerError,
    BrokerInternalError,
    ConnectError,
    InvalidOption,
    NoRoute,
    NotSupported,
    OgiveError,
    ProtocolError,
    QueryNotFound,
    ResponseCode,
    TopicNotExist,
    TransportError,
)
from ogive.model import (
    DLQ_PREFIX,
    MAX_OFFSET,
    RETRY_PREFIX,
    TRACE_TOPIC,
    MessageExt,
    MessageQueue,
    PropertyName,
    SendResult,
    check_offset,
    check_queue,
    dlq_topic,
    pop_retry_topics,
    retry_topic,
    validate_group,
    validate_topic,
)
from ogive.transport.connection import split_listed_address
from ogive.transport.event_loop import each
from ogive.wire.bodies.routes import TopicRouteData
from ogive.wire.codes import SysFlag
from ogive.wire.fitting import fit_properties
from ogive.wire.headers.send import SendMessageRequestV2
from ogive.wire.message import encode_properties, parse_offset_message_id
from ogive.wire.trace import TraceRecord, by_time, decode_trace

# of one answer: they are held in memory
MAX_MESSAGES: Final = 10_000
FOR_EVER_MS: Final = 0x7FFF_FFFF_FFFF_FFFF
# messages: brokers give no more to a pull that they cannot tell from a small consumer's
PULL: Final = 32

# as brokers say it, with SYSTEM_ERROR
POPS: Final = "CONSUME_POP"
_NOTHING_THERE: Final = "can not find message by the offset"
_OF_ONE_DELIVERY: Final = frozenset(
    {
        PropertyName.DELAY,
        PropertyName.MIN_OFFSET,
        PropertyName.MAX_OFFSET,
        PropertyName.RECONSUME_TIME,
        PropertyName.MAX_RECONSUME_TIMES,
        PropertyName.REAL_TOPIC,
        PropertyName.REAL_QUEUE_ID,
        PropertyName.CLUSTER,
        PropertyName.RECORD_CRC,
    }
)
"""Properties of a dead letter that tell how it got there, and would mislead if it is sent again."""


def check_place(queue: MessageQueue, offset: int) -> None:
    """Raise InvalidOption unless the number of the queue fits 31 bits and the offset 63;
    TypeError.
    """
    check_queue(queue)
    check_offset(offset)


def check_period(begin_ms: int, end_ms: int) -> None:
    """Raise InvalidOption if a period ends before it begins."""
    if begin_ms > end_ms:
        raise InvalidOption("the period ends before it begins: the earlier time comes first")


class MessageCalls(AdminBase):
    async def message(self, message_id: str, *, topic: str | None = None) -> MessageExt:
        """Return the message with this id, either the broker's (``offset_id``) or the unique key
        from its producer (``id``).

        A unique key is looked up in the brokers' index, in *topic* or in all topics of
        applications. Raises QueryNotFound, and NotSupported if a broker keeps no index.
        """
        check_type("message_id", message_id, str, "str")
        found = await self._by_offset_id(message_id)
        if found is not None:
            return found
        topics = (
            [validate_topic(topic)]
            if topic is not None
            else [
                name
                for name, kind in sorted((await self._topic_kinds()).items())
                if kind == "application"
            ]
        )

        async def of(name: str) -> list[MessageExt]:
            return [
                m
                for m in await self._by_key(name, message_id, 0, FOR_EVER_MS, rpc.MAX_FOUND)
                if m.id == message_id
            ]

        copies = [message for messages in await each(topics, of) for message in messages]
        if copies:
            return min(copies, key=lambda message: message.store_timestamp_ms)
        where = (
            f'topic "{topic}"'
            if topic is not None
            else (
                f"{'the one topic' if len(topics) == 1 else f'any of {len(topics)} topics'} "
                "(retry and dead-letter topics must be named)"
            )
        )
        raise QueryNotFound(
            ResponseCode.QUERY_NOT_FOUND,
            f"no message {message_id} in {where}: it is misspelt, as old as what the brokers have "
            "deleted, or in "
            "a batch that its topic keeps as one record: such a message is found by its queue and "
            "offset",
        )

    async def message_at(self, queue: MessageQueue, offset: int) -> MessageExt:
        """Return the message at this offset of the queue.

        Raises QueryNotFound, which names the offsets that the queue has.
        """
        check_place(queue, offset)
        masters = await self._topic_masters(queue.topic)
        result = await rpc.read_messages(
            self.client.pool, master_of(queue, masters), queue, offset, 1, timeout_s=self._timeout_s
        )
        if result.messages and result.messages[0].queue_offset == offset:
            return result.messages[0]
        held = f"it has {result.min_offset} up to, not including, {result.max_offset}"
        text = (
            f"{queue} holds no message at {offset}; "
            f"{held if result.min_offset < result.max_offset else 'it is empty'}"
        )
        raise QueryNotFound(ResponseCode.QUERY_NOT_FOUND, text)

    async def messages(
        self,
        topic: str,
        *,
        key: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int = 64,
    ) -> list[MessageExt]:
        """Return the messages stored from *start* until before *end*, oldest first: all, or those
        with *key*.

        A *key* is looked up in the brokers' index, which finds at most 64 per broker. Raises
        NoRoute, and NotSupported if a broker keeps no index.
        """
        validate_topic(topic)
        if not 1 <= limit <= MAX_MESSAGES:
            raise InvalidOption(f"limit is {limit}: must be between 1 and {MAX_MESSAGES}")
        begin_ms = 0 if start is None else to_ms(start)
        end_ms = FOR_EVER_MS if end is None else to_ms(end)
        check_period(begin_ms, end_ms)
        if key is None:
            found = await self._by_time(topic, begin_ms, end_ms, limit)
        else:
            candidates = await self._by_key(topic, key, begin_ms, end_ms, limit)
            found = [
                m
                for m in candidates
                if (key in m.keys or m.id == key) and begin_ms <= m.store_timestamp_ms < end_ms
            ]
        return sorted(found, key=lambda m: (m.store_timestamp_ms, m.queue, m.queue_offset))[:limit]

    async def trace(self, key: str, *, trace_topic: str = TRACE_TOPIC) -> list[TraceRecord]:
        """Return the trace records of a message by its unique key, or of all messages with this
        key, in order of time.

        A record may be missing: clients leave some out under heavy load, and the newest 32 trace
        messages of each broker are read, each with the records of up to a few hundred messages.
        """
        try:
            found = await self._by_key(trace_topic, key, 0, FOR_EVER_MS, rpc.MAX_FOUND)
        except NoRoute:
            raise NoRoute(
                f'no broker has the trace topic "{trace_topic}": no client has written a trace yet '
                "(trace=True in its ProducerConfig or "
                "ConsumerConfig); Apache's broker must have traceTopicEnable=true"
            ) from None
        # clients note the address of the broker, and the broker that of the client
        records = {
            replace(record, client=message.born_host)
            for message in found
            for record in decode_trace(message.body)
        }
        return sorted((r for r in records if r.message_id == key or key in r.keys), key=by_time)

    # --- dead letters -----------------------------------------------------------------------------

    async def dead_letters(
        self,
        group: str,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int = 64,
    ) -> list[MessageExt]:
        """Return messages that the group could not consume, oldest first.

        They stay listed after ``send_again``. Raises GroupNotExist, which names similar groups.
        """
        validate_group(group)
        try:
            return await self.messages(dlq_topic(group), start=start, end=end, limit=limit)
        except NoRoute:
            await self._check_known(group)
            return []

    async def send_again(self, group: str, message: MessageExt) -> SendResult:
        """Send a dead letter to its group again, and to no other, through the retry topic.

        It gets all its retries again.

        Raises NoRoute if the group has no retry topic; its members create it when they start.
        Raises InvalidOption while orderly members of the group are online: stop them first.
        """
        validate_group(group)
        check_type("message", message, MessageExt, "one of dead_letters(group)")
        if message.queue.topic != dlq_topic(group):
            raise InvalidOption(
                f'{message.queue} is not a queue of the dead letters of "{group}" '
                f"({DLQ_PREFIX}{group})"
            )
        topic = await self._retries_of(group, message)
        queue = (await self.client.routes.publish_queues(topic))[0]
        header = SendMessageRequestV2(
            producer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            sys_flag=message.sys_flag & (SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
            if message.is_compressed
            else 0,
            born_timestamp=message.born_timestamp_ms,
            flag=message.flag,
            properties=encode_properties(fit_properties(_for_another_try(message))).decode(),
            reconsume_times=0,
            broker_name=queue.broker_name,
        )
        address = self.client.routes.broker_address(queue.broker_name)
        result = await rpc.send_message(
            self.client.pool,
            address,
            header,
            message.body,
            broker_name=queue.broker_name,
            message_id=message.id,
            timeout_s=self._timeout_s,
        )
        if await self._is_dead_again(result, message.queue.topic):
            raise InvalidOption(
                f'group "{group}" has orderly members online: its broker puts what comes to the '
                "retry topic back to the "
                "dead letters. Stop the members, send the message again, and start them"
            )
        return result

    async def was_sent_again(self, group: str, message: MessageExt) -> bool:
        """Return True if this dead letter was sent to its group again, and has not failed since.

        Such a letter has a copy without retries in the group's retry topic, which is looked up in
        the brokers' index. Raises NotSupported if a broker keeps no index.
        """
        validate_group(group)
        topic, end_ms = await self._retries_of(group, message), FOR_EVER_MS
        while True:
            try:
                copies = await self._by_key(
                    topic, message.id, message.store_timestamp_ms, end_ms, rpc.MAX_FOUND
                )
            except NoRoute:
                return False
            if any(
                copy.id == message.id
                and not copy.reconsume_times
                and copy.store_timestamp_ms >= message.store_timestamp_ms
                for copy in copies
            ):
                return True
            # the newest ones of each broker; one that gave as many as it gives may have older ones
            given: dict[str, list[int]] = {}
            for copy in copies:
                given.setdefault(copy.queue.broker_name, []).append(copy.store_timestamp_ms)
            oldest = [min(times) for times in given.values() if len(times) >= rpc.MAX_FOUND]
            if not oldest:
                return False
            # a second less where a broker has more of one second than it gives
            end_ms = min(max(oldest), end_ms - 1000)

    async def _retries_of(self, group: str, message: MessageExt) -> str:
        """Return the retry topic that the members of *group* read, by how they consume now; if none
        is online, or the broker does not say, by how the message was consumed.
        """
        try:
            online = {one.consume_type for _, one in await self._connections(group)}
        except BrokerError:
            online = set()
        pops = POPS in online if online else PropertyName.FIRST_POP_TIME in message.properties
        if not pops:
            return retry_topic(group)
        origin = message.properties.get(PropertyName.RETRY_TOPIC, message.topic)
        if origin.startswith(RETRY_PREFIX):
            # it failed on its way from there
            return origin
        first, second = pop_retry_topics(group, origin)
        try:
            await self.client.routes.find(second)
        except NoRoute:
            return first
        return second

    async def _is_dead_again(self, result: SendResult, dead_letters: str) -> bool:
        """Return True if the broker has stored the message among the *dead_letters* at once.

        Brokers do so for groups that hold locks of queues, and do not say it.
        """
        try:
            stored = await self._by_offset_id(result.offset_id)
        except (BrokerError, TransportError, ProtocolError):
            return False
        return stored is not None and stored.queue.topic == dead_letters

    # --- looking ----------------------------------------------------------------------------------

    async def _by_offset_id(self, message_id: str) -> MessageExt | None:
        """Return the message, or None unless *message_id* is of a broker of this cluster.

        No other address is asked. An id holds an IP address. A broker that is listed by a name is
        asked if its port is that of the id: only the broker knows to which address its name
        belonged when it stored the message.
        """
        try:
            address, offset = parse_offset_message_id(message_id)
        except ProtocolError:
            return None
        place = _place(address)
        if place is None or offset > MAX_OFFSET:
            # A unique key: what would be the port or the offset cannot be one.
            return None
        info = await self.cluster_info()
        listed = {
            at: broker.broker_name
            for broker in info.brokers.values()
            for at in broker.addresses.values()
        }
        places = {at: _place(at) for at in listed}
        for at, name in listed.items():
            if places[at] == place:
                return await self._at(at, name, message_id, offset)
        return await self._at_names(
            [(at, name) for at, name in listed.items() if places[at] == (None, place[1])],
            message_id,
            offset,
        )

    async def _at_names(
        self, brokers: Sequence[tuple[str, str]], message_id: str, offset: int
    ) -> MessageExt | None:
        """Ask brokers that may have stored the message.

        Raises TransportError if one cannot be asked.
        """

        async def ask(broker: tuple[str, str]) -> MessageExt | OgiveError:
            try:
                return await self._at(*broker, message_id, offset)
            except OgiveError as exc:
                return exc

        answers = await each(brokers, ask)
        for answer in answers:
            if isinstance(answer, MessageExt) and answer.offset_id == message_id.upper():
                return answer
        for answer in answers:
            if isinstance(answer, TransportError):
                raise answer
        return None

    async def _at(self, address: str, broker_name: str, message_id: str, offset: int) -> MessageExt:
        try:
            message = await rpc.view_message(
                self.client.pool, address, offset, timeout_s=self._timeout_s
            )
        except BrokerInternalError as exc:
            if not exc.remark.startswith(_NOTHING_THERE):
                raise
            text = (
                f"no message {message_id}: {broker_name} has none at {offset} of its log; it is "
                "misspelt, or old and deleted"
            )
            raise QueryNotFound(ResponseCode.QUERY_NOT_FOUND, text) from None
        return replace(message, queue=replace(message.queue, broker_name=broker_name))

    async def _by_key(
        self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int
    ) -> list[MessageExt]:
        """Return the messages of the topic's brokers under the index hash of *key*, which may be of
        some time before *begin_ms*.
        """
        # Apache's index rounds times down to seconds
        begin_ms = max(0, begin_ms - 999)
        masters = master_addresses(await self._known_route(topic))

        async def ask(master: tuple[str, str]) -> list[MessageExt]:
            name, address = master
            try:
                return await rpc.query_messages(
                    self.client.pool,
                    address,
                    topic,
                    key,
                    begin_ms=begin_ms,
                    end_ms=end_ms,
                    limit=limit,
                    broker_name=name,
                    timeout_s=self._timeout_s,
                )
            except NotSupported as exc:
                text = (
                    f"broker {name} keeps no index of keys: find the message by its offset_id, "
                    "its queue and offset, or its time"
                )
                raise NotSupported(exc.code, text, address) from None

        return [
            message for messages in await each(sorted(masters.items()), ask) for message in messages
        ]

    async def _by_time(
        self, topic: str, begin_ms: int, end_ms: int, limit: int
    ) -> list[MessageExt]:
        route = await self._known_route(topic)
        masters = master_addresses(route)

        async def read(queue: MessageQueue) -> list[MessageExt]:
            address = master_of(queue, masters)
            offset = await rpc.search_offset(
                self.client.pool, address, queue, begin_ms, timeout_s=self._timeout_s
            )
            messages: list[MessageExt] = []
            while len(messages) < limit:
                result = await rpc.read_messages(
                    self.client.pool,
                    address,
                    queue,
                    offset,
                    min(PULL, limit - len(messages)),
                    timeout_s=self._timeout_s,
                )
                messages += [
                    m for m in result.messages if begin_ms <= m.store_timestamp_ms < end_ms
                ]
                past_end = (
                    bool(result.messages) and result.messages[-1].store_timestamp_ms >= end_ms
                )
                if (
                    past_end
                    or result.next_offset <= offset
                    or result.next_offset >= result.max_offset
                ):
                    break
                offset = result.next_offset
            return messages

        return [
            message
            for messages in await each(subscribe_queues(topic, route), read)
            for message in messages
        ]

    async def _known_route(self, topic: str) -> TopicRouteData:
        """Return the topic's route. Raises NoRoute, with the names that are similar."""
        try:
            return await self._route(topic)
        except TopicNotExist:
            return await self.client.routes.refresh(topic)


def _place(listed: str) -> tuple[str | None, int] | None:
    """Return IP address and port of a listed broker, None and the port if it is listed by a name.

    Return None if *listed* is not an address.
    """
    try:
        host, port = split_listed_address(listed)
    except ConnectError:
        return None
    try:
        return str(ip_address(host)), port
    except ValueError:
        return None, port


def _for_another_try(message: MessageExt) -> dict[str, str]:
    """Return the properties of a dead letter, as its group's retry topic holds them: the first
    topic and id are those of the first delivery.
    """
    kept = {
        name: value for name, value in message.properties.items() if name not in _OF_ONE_DELIVERY
    }
    kept.setdefault(PropertyName.ORIGIN_MESSAGE_ID, message.offset_id)
    # without one from its producer: brokers find a message by this id alone, see was_sent_again
    kept.setdefault(PropertyName.UNIQ_KEY, message.id)
    kept[PropertyName.WAIT] = "true"
    return kept
