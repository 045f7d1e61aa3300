"""POP_MESSAGE (200050): give messages out for a time.

Source: PopMessageProcessor.java, 5.5.

Behaviour
- The broker chooses messages of the queue, or of all queues of the topic in turn, and of the
  group's retry topics, and moves the group's offset past them once their lease is in the journal.
- A request that finds nothing waits until a message comes or its time is over.
- Every fifth request reads the retry topics first, the others when there is room left.
- In a topic of type PRIORITY, requests read the queues in order of their numbers, the highest
  first, and the retry topics last. priority.factor of the group is the percentage that does so.
- An orderly request (order=true) gets one batch of each queue, see order.py, and nothing from retry
  topics.
- Messages for another try come with the name of their topic, and with their handle (POP_CK).

Differs from Java
- The time of the client's clock (bornTime) is not compared with the broker's: a request waits for
  pollTime from when it came.
- A queue is not locked: what is read is leased in the same step.
- A message in a retry topic wakes the group that waits, whoever wrote it.
- Topics that keep batches whole (queue.type=BatchCQ) are refused.
"""

import random
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Final, NamedTuple

from ogive.access.permissions import to_pull
from ogive.access.policy import AccessRefused
from ogive.broker.filters import Wanted, read_matching, wanted_by
from ogive.broker.pop.leases import Place, Read
from ogive.broker.pop.topics import is_ours, retry_topics
from ogive.broker.pop.waiting import PopHolds
from ogive.broker.pulls.pull import check_readable, reserve_filter
from ogive.broker.replies import ONEWAY, RESPONSE, Rejected, refuse, success
from ogive.broker.services import Context
from ogive.broker.state.topic_table import MESSAGE_TYPE, PRIORITY_FACTOR, keeps_batches
from ogive.errors import OgiveError, ProtocolError, Refused, ResponseCode, StoreError
from ogive.model import PropertyName
from ogive.sql92 import Expression
from ogive.store.consumequeue import FILLER_SIZE
from ogive.store.file_reader import Cold
from ogive.store.types import GetResult, GetStatus
from ogive.transport.connection import Connection
from ogive.wire.bodies.configs import TopicConfig
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.fitting import fit_properties
from ogive.wire.headers.codec import Header, decode_header, encode_header
from ogive.wire.headers.pull import (
    NotificationRequest,
    NotificationResponse,
    PeekMessageRequest,
    PollingInfoRequest,
    PollingInfoResponse,
    PopMessageRequest,
    PopMessageResponse,
)
from ogive.wire.message import (
    StoredMessage,
    decode_properties,
    decode_stored,
    encode_stored,
    join_properties,
)
from ogive.wire.pop import (
    MAX_POP_MESSAGES,
    ORDERLY_QUEUE,
    RETRY_V1,
    PopHandle,
    PoppedOffsets,
    msg_offset_info,
    order_count_info,
    retry_flag,
    start_offset_info,
)
from ogive.wire.signing import ACCESS_KEY

MAX_INVISIBLE_MS: Final = 30 * 24 * 3600 * 1000
MAX_POLL_MS: Final = 120_000
# characters of an attempt id that count
MAX_ATTEMPT_ID: Final = 64
INIT_MIN: Final = 0
# of a stored record: its size, and its queue offset
_SIZE_AND_OFFSET: Final = struct.Struct(">I16xQ")
_NOTHING: Final = PopMessageResponse(start_offset_info="", msg_offset_info="", order_count_info="")
_MOVED: Final = (
    GetStatus.OFFSET_TOO_SMALL,
    GetStatus.OFFSET_OVERFLOW_BADLY,
    GetStatus.OFFSET_FOUND_NULL,
)


class QueueRead(NamedTuple):
    """Messages of one queue for a request: *read* is to be leased.

    *parts* are records as stored; *again* the messages of a retry topic.
    """

    read: Read
    parts: Sequence[bytes | memoryview]
    again: Sequence[StoredMessage]


class Plan:
    """Messages that a request would take. Nothing has changed yet."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.room, self.room_bytes = most, most_bytes
        self.found: list[QueueRead] = []
        # messages that are left, in all queues that were looked at
        self.rest = 0

    @property
    def is_full(self) -> bool:
        return self.room <= 0 or self.room_bytes <= 0


class WaitingRequest(ABC):
    """A request that has passed the checks, and may wait for a message."""

    code: RequestCode

    def __init__(
        self,
        ctx: Context,
        connection: Connection,
        command: RemotingCommand,
        header: PopMessageRequest | NotificationRequest,
        wanted: Wanted,
        holds: PopHolds,
    ) -> None:
        """Reserve memory for the filter. Raises Rejected."""
        self._ctx, self.connection, self._opaque = ctx, connection, command.opaque
        self._holds, self._wanted = holds, wanted
        self._group, self._topic = header.consumer_group, header.topic
        self._queue_id, self._order = header.queue_id, header.order
        self._attempt_id = (header.attempt_id or "")[:MAX_ATTEMPT_ID]
        self.key = (self._group, self._topic, header.queue_id)
        self._retries = [] if header.order else retry_topics(ctx, self._group, self._topic)
        self.topics = [self._topic, *self._retries]
        self.more = False
        self._deadline_s = ctx.loop.time() + min(header.poll_time_ms, MAX_POLL_MS) / 1000
        self._filter_bytes = reserve_filter(
            ctx, connection, header.expression_type, header.expression or "*"
        )
        # the user, and the version of the access rules that let the request through
        self._user, self._rules_version = "", 0
        if ctx.guard is not None:
            self._user = command.ext_fields.get(ACCESS_KEY, "")
            self._rules_version = ctx.guard.table.version

    def serve(self) -> None:
        if not self.try_answer():
            self._hold()

    def _hold(self) -> None:
        left_s = self._deadline_s - self._ctx.loop.time()
        if left_s <= 0 or self._holds.closed:
            self._answer_nothing(ResponseCode.POLLING_TIMEOUT)
        elif not self._holds.hold(self, left_s):
            self._answer_nothing(ResponseCode.POLLING_FULL)
        elif self.more:
            # no arrival is to be waited for: the rest of the queues may have a message
            self._holds.wake(self.key)

    def try_answer(self, *, final: bool = False) -> bool:
        """See WaitingPop."""
        ctx = self._ctx
        # until it has looked: what woke it is for another request
        self.more = True
        if self.connection.closed:
            return True
        if not final and ctx.slow_readers.must_wait(self.connection):
            self.more = ctx.slow_readers.is_slow(self.connection)
            ctx.slow_readers.put(self)
            return True
        try:
            self._check_access()
            self.more = False
            with ctx.store.without_waiting():
                answer = self._read()
            return answer(final)
        except (Refused, StoreError, ProtocolError) as exc:
            self._refuse(exc)
        except Cold as cold:
            ctx.spawn(
                self._from_disk(cold.with_traceback(None)),
                f"pop of {self.connection.remote_address}",
            )
        return True

    async def _from_disk(self, cold: Cold) -> None:
        """Read what is not in memory on another thread, and go on."""
        try:
            answer = await self._ctx.cold_reads.read(self._ctx.store, self._read, cold)
            if self.connection.closed:
                return
            self._check_access()
            if not answer(False):
                self._hold()
        except (Refused, StoreError, ProtocolError) as exc:
            self._refuse(exc)

    def _check_access(self) -> None:
        """Check the permissions again if the rules have changed. Raises AccessRefused."""
        guard = self._ctx.guard
        if guard is None or guard.table.version == self._rules_version:
            return
        for need in to_pull(self._topic, self._group):
            if not guard.may(self._user, self.connection.remote_address, need):
                raise AccessRefused(
                    f"User:{self._user} has no permission any more: {need} is needed"
                )

    @abstractmethod
    def _read(self) -> Callable[[bool], bool]:
        """Read, and change nothing. Return the function that answers, as try_answer() does.

        Raises StoreError, Cold; the function StoreError.
        """

    @abstractmethod
    def _answer_nothing(self, code: ResponseCode) -> None: ...

    def _queue_ids(self) -> Sequence[int]:
        """Return the queues to look at, beginning at any. Raises Rejected."""
        if self._group not in self._ctx.groups:
            raise Rejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{self._group}] was deleted",
            )
        topic = self._ctx.topics.get(self._topic)
        if topic is None:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{self._topic}] not exist")
        if self._queue_id >= 0:
            return (self._queue_id,)
        count = topic.read_queues
        first = random.randrange(count) if count else 0  # noqa: S311  no secret
        return [(first + at) % count for at in range(count)]

    def _retry_queues(self) -> Iterable[tuple[str, int]]:
        for name in self._retries:
            topic = self._ctx.topics.get(name)
            for queue_id in range(topic.read_queues if topic is not None else 0):
                yield name, queue_id

    def _is_blocked(self, place: Place) -> bool:
        """Return True for a queue whose batch of ordered messages is out."""
        orders = self._ctx.leases.orders
        return self._order and orders.blocked_until_s(place, self._attempt_id) is not None

    def _refuse(self, error: OgiveError) -> None:
        self._release_filter()
        refuse(self.connection, RemotingCommand(self.code, opaque=self._opaque), error)

    def _send(self, code: int, header: Header, body: bytes = b"", remark: str = "") -> None:
        self._release_filter()
        self.connection.reply(
            RemotingCommand(code, encode_header(header), body, self._opaque, RESPONSE, remark)
        )

    def _release_filter(self) -> None:
        if self._filter_bytes:
            self._ctx.filter_quota.release(self.connection, self._filter_bytes)
            self._filter_bytes = 0


class Pop(WaitingRequest):
    """One POP_MESSAGE."""

    code = RequestCode.POP_MESSAGE

    def __init__(
        self,
        ctx: Context,
        connection: Connection,
        command: RemotingCommand,
        header: PopMessageRequest,
        wanted: Wanted,
    ) -> None:
        super().__init__(ctx, connection, command, header, wanted, ctx.pop_holds)
        self._most, self._init_mode = header.max_msg_nums, header.init_mode
        self._invisible_ms = header.invisible_time_ms

    # --- what to take -----------------------------------------------------------------------------

    def _read(self) -> Callable[[bool], bool]:
        config = self._ctx.config
        plan = Plan(self._most, config.max_pull_bytes)
        queue_ids = self._queue_ids()
        chance = random.randrange(100)  # noqa: S311  no secret
        by_priority = not self._order and chance < self._priority_factor()
        share = config.pop.priority_retry_share if by_priority else config.pop.retry_share
        retries: Sequence[tuple[str, int]] = list(self._retry_queues())
        if by_priority:
            highest_first = config.pop.priority_ascending
            queue_ids = sorted(queue_ids, reverse=highest_first)
            retries = sorted(retries, key=itemgetter(1), reverse=highest_first)
        queues = [(self._topic, queue_id) for queue_id in queue_ids]
        for queue in (*retries, *queues) if chance < share else (*queues, *retries):
            self._look_at(plan, *queue)
        return partial(self._take, plan)

    def _priority_factor(self) -> int:
        """Return the percentage of requests that read the topic by priority."""
        topic, group = self._ctx.topics.get(self._topic), self._ctx.groups.get(self._group)
        if topic is None or group is None or topic.attributes.get(MESSAGE_TYPE) != "PRIORITY":
            return 0
        return int(group.attributes.get(PRIORITY_FACTOR, 100))

    def _look_at(self, plan: Plan, topic: str, queue_id: int) -> None:
        book, store = self._ctx.leases, self._ctx.store
        place = (self._group, topic, queue_id)
        if self._is_blocked(place):
            return
        position = book.position(place)
        if position is None:
            self._ctx.offsets.check_room(*place)
        start = self._first(topic, queue_id) if position is None else position
        end = store.max_offset(topic, queue_id)
        config = self._ctx.config.pop
        if plan.is_full or (config.limit_out and book.out[place] >= config.max_out):
            plan.rest += max(0, end - start)
            if position is None:
                # the group begins here, and not behind what comes until the queue has its turn
                plan.found.append(QueueRead(Read(place, start, (), start), (), ()))
            return
        result = self._get(plan, topic, queue_id, start)
        if result.status in _MOVED:
            start = result.next_offset
            result = self._get(plan, topic, queue_id, start)
        after = result.next_offset
        plan.rest += max(0, end - after)
        if result.status is GetStatus.FOUND:
            self._add(plan, place, start, result)
        elif after != position:
            plan.found.append(QueueRead(Read(place, start, (), after), (), ()))

    def _add(self, plan: Plan, place: Place, start: int, result: GetResult) -> None:
        flag = retry_flag(place[1])
        again: list[StoredMessage] = []
        offsets = [offset for part in result.parts for offset in _offsets_of(part)]
        if flag:
            again = [message for part in result.parts for message in messages_of(part)]
            if flag == RETRY_V1:
                again = [one for one in again if self._is_ours(one)]
            offsets = [message.queue_offset for message in again]
        plan.found.append(
            QueueRead(Read(place, start, tuple(offsets), result.next_offset), result.parts, again)
        )
        plan.room -= len(offsets)
        plan.room_bytes -= result.size

    def _is_ours(self, message: StoredMessage) -> bool:
        properties = decode_properties(message.properties)
        return is_ours(self._ctx, self._group, self._topic, properties)

    def _get(self, plan: Plan, topic: str, queue_id: int, offset: int) -> GetResult:
        get = partial(self._ctx.store.get, topic, queue_id, wait=False)
        if isinstance(self._wanted, Expression):
            return read_matching(get, self._wanted, offset, plan.room, plan.room_bytes)
        return get(offset, plan.room, plan.room_bytes, self._wanted)

    def _first(self, topic: str, queue_id: int) -> int:
        """Return where a group begins that has no progress in the queue."""
        store = self._ctx.store
        low, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        if self._init_mode == INIT_MIN or retry_flag(topic):
            return low
        if low == 0 and self._ctx.config.pop.look_in_memory:
            first = store.entries(topic, queue_id, 0, 1)
            hot = store.stats().commitlog_end - store.config.hot_log_bytes
            if first and first[0].size != FILLER_SIZE and first[0].commitlog_offset >= hot:
                return 0
        return max(low, end - 1)

    # --- take it and answer -----------------------------------------------------------------------

    def _take(self, plan: Plan, final: bool) -> bool:
        """Lease what was read, and answer once that is safe. Return False to wait.

        Raises StoreError.
        """
        book = self._ctx.leases
        taken = [one.read for one in plan.found if one.read.offsets]
        moved = [one.read for one in plan.found if not one.read.offsets]
        self.more = plan.rest > 0 and bool(moved) and not taken
        if moved:
            book.take(moved, 0, 0, _moved)
        if not taken:
            if final:
                self._answer_nothing(ResponseCode.POLLING_TIMEOUT)
            return final
        if book.is_full:
            remark = f"{len(book)} leases are out, this broker keeps no more"
            self._send(ResponseCode.POLLING_FULL, _NOTHING, remark=remark)
            return True
        invisible_ms = min(self._invisible_ms, MAX_INVISIBLE_MS)
        revive_queue = ORDERLY_QUEUE if self._order else book.next_revive_queue()

        def end(error: OgiveError | None) -> None:
            if error is None:
                self._answer(plan, (pop_time_ms, invisible_ms, revive_queue))
            else:
                self._refuse(error)

        if self._order:
            pop_time_ms = book.take_ordered(taken, invisible_ms, self._attempt_id, end)
        else:
            pop_time_ms = book.take(taken, invisible_ms, revive_queue, end)
        return True

    def _answer(self, plan: Plan, times: tuple[int, int, int]) -> None:
        ctx, queues = self._ctx, []
        body: list[bytes | memoryview] = []
        for found in plan.found:
            group, topic, queue_id = found.read.place
            if not found.read.offsets:
                continue
            queues.append(
                PoppedOffsets(retry_flag(topic), queue_id, found.read.start, found.read.offsets)
            )
            size = sum(map(len, found.parts))
            ctx.traffic.pulled(
                group, topic, queue_id, len(found.read.offsets), size, found.read.after
            )
            if found.again and not ctx.config.pop.actual_retry_topic:
                body += [self._for_another_try(found.read, times, one) for one in found.again]
            elif found.again:
                body += map(encode_stored, found.again)
            else:
                body += found.parts
        pop_time_ms, invisible_ms, revive_queue = times
        header = PopMessageResponse(
            pop_time_ms=pop_time_ms,
            invisible_time_ms=invisible_ms,
            revive_queue_id=revive_queue,
            rest_num=plan.rest,
            start_offset_info=start_offset_info(queues),
            msg_offset_info=msg_offset_info(queues),
            order_count_info=order_count_info(queues, self._counts_of) if self._order else "",
        )
        self._send(ResponseCode.SUCCESS, header, b"".join(body), "FOUND")
        if plan.rest:
            ctx.pop_holds.wake(self.key)

    def _counts_of(self, queue_id: int) -> Mapping[int, int]:
        batch = self._ctx.leases.orders.get((self._group, self._topic, queue_id))
        return {} if batch is None else batch.counts

    def _answer_nothing(self, code: ResponseCode) -> None:
        self._send(code, _NOTHING, remark="NO_MESSAGE_IN_QUEUE")

    def _for_another_try(
        self, read: Read, times: tuple[int, int, int], message: StoredMessage
    ) -> bytes:
        """Return the record of a message of a retry topic as it is given out."""
        pop_time_ms, invisible_ms, revive_queue = times
        properties = decode_properties(message.properties)
        properties.pop(PropertyName.RECORD_CRC, None)
        properties["POP_CK"] = str(
            PopHandle(
                read.start,
                pop_time_ms,
                invisible_ms,
                revive_queue,
                retry_flag(message.topic),
                self._ctx.config.name,
                message.queue_id,
                message.queue_offset,
            )
        )
        # clients in Java read no more properties than fit
        message.topic, message.properties = (
            self._topic, join_properties(fit_properties(properties)),
        )  # fmt: skip
        return encode_stored(message)


def _moved(error: OgiveError | None) -> None:
    """A position could not be written: the next request reads the same messages again."""


def _offsets_of(part: bytes | memoryview) -> list[int]:
    offsets, at = [], 0
    while at < len(part):
        size, offset = _SIZE_AND_OFFSET.unpack_from(part, at)
        offsets.append(offset)
        at += size
    return offsets


def messages_of(part: bytes | memoryview) -> Iterable[StoredMessage]:
    """Yield the records of a read."""
    at = 0
    while at < len(part):
        message = decode_stored(part, at)
        at += message.size
        yield message


def handle(ctx: Context, connection: Connection, command: RemotingCommand) -> None:
    """Check the request, and serve it. Raises OgiveError."""
    header = decode_header(PopMessageRequest, command.ext_fields)
    check_pop(ctx, header.consumer_group, header.topic, header.queue_id)
    if not 0 < header.max_msg_nums <= MAX_POP_MESSAGES:
        raise Rejected(
            ResponseCode.INVALID_PARAMETER,
            f"maxMsgNums {header.max_msg_nums}: must be between 1 and {MAX_POP_MESSAGES}",
        )
    check_time("invisibleTime", header.invisible_time_ms)
    wanted = wanted_by(
        header.expression_type, header.expression or "*", sql=ctx.config.property_filter
    )
    if not command.flag & ONEWAY:
        Pop(ctx, connection, command, header, wanted).serve()


def check_time(what: str, value_ms: int) -> None:
    """Raises Rejected."""
    if not 0 <= value_ms <= MAX_INVISIBLE_MS:
        raise Rejected(
            ResponseCode.INVALID_PARAMETER,
            f"{what} {value_ms} ms: must be between 0 and {MAX_INVISIBLE_MS}",
        )


def check_pop(ctx: Context, group_name: str, topic_name: str, queue_id: int) -> TopicConfig:
    """Return the topic that a group pops. Raises Rejected."""
    group, topic = check_readable(ctx, group_name, topic_name)
    if queue_id != -1 and not 0 <= queue_id < topic.read_queues:
        raise Rejected(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{queue_id}] is illegal, topic:[{topic.name}] has {topic.read_queues} read "
            "queues",
        )
    if keeps_batches(topic.attributes):
        raise Rejected(
            ResponseCode.INVALID_PARAMETER,
            f"{topic.name} keeps batches whole (queue.type=BatchCQ): such topics are pulled",
        )
    if not ctx.groups.may_read(group.name, topic.name):
        raise Rejected(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{group.name}] is forbidden for topic[{topic.name}]",
        )
    return topic


# --- requests that change nothing -----------------------------------------------------------------
# Requests that change nothing: NOTIFICATION (200054), POLLING_INFO (200055), PEEK_MESSAGE
# (200052).
#
# Source: NotificationProcessor.java, PollingInfoProcessor.java, PeekMessageProcessor.java, 5.5.
#
# Behaviour
# - NOTIFICATION waits until there is a message for the group that fits its filter, by tag. With
#   many messages, or with SQL92, the filter is not asked.
# - PEEK_MESSAGE shows the next messages of a group, and changes nothing.

# messages of a queue whose tags are looked at (maxMessageFilterNumForNotification)
_LOOKED_AT: Final = 64


class Notification(WaitingRequest):
    """One NOTIFICATION."""

    code = RequestCode.NOTIFICATION

    def _read(self) -> Callable[[bool], bool]:
        found = any(self._has(self._topic, queue_id) for queue_id in self._queue_ids()) or any(
            self._has(*queue) for queue in self._retry_queues()
        )

        def answer(final: bool) -> bool:
            if found or final:
                self._send(ResponseCode.SUCCESS, NotificationResponse(has_message=found))
            return found or final

        return answer

    def _has(self, topic: str, queue_id: int) -> bool:
        """Return True if a queue has a message for the group. Raises StoreError, Cold."""
        store, place = self._ctx.store, (self._group, topic, queue_id)
        if self._is_blocked(place):
            return False
        start = next_offset(self._ctx, place)
        end = store.max_offset(topic, queue_id)
        if not isinstance(self._wanted, frozenset) or end - start > _LOOKED_AT:
            return start < end
        entries = store.entries(topic, queue_id, start, end - start) if start < end else []
        return any(entry.tags_code in self._wanted for entry in entries)

    def _answer_nothing(self, code: ResponseCode) -> None:
        full = True if code == ResponseCode.POLLING_FULL else None
        self._send(ResponseCode.SUCCESS, NotificationResponse(polling_full=full))


def next_offset(ctx: Context, place: Place) -> int:
    """Return where a group goes on in a queue."""
    position = ctx.leases.position(place)
    low = ctx.store.min_offset(*place[1:])
    return low if position is None else max(low, position)


def notify(ctx: Context, connection: Connection, command: RemotingCommand) -> None:
    """Serve NOTIFICATION. Raises OgiveError."""
    header = decode_header(NotificationRequest, command.ext_fields)
    check_pop(ctx, header.consumer_group, header.topic, header.queue_id)
    wanted = wanted_by(
        header.expression_type, header.expression or "*", sql=ctx.config.property_filter
    )
    if not command.flag & ONEWAY:
        Notification(ctx, connection, command, header, wanted, ctx.notify_holds).serve()


def own_records(
    ctx: Context,
    group: str,
    topic: str,
    read_from: str,
    parts: Sequence[bytes | memoryview],
) -> Sequence[bytes | memoryview]:
    """Return the records in *parts* that are for the group."""
    if retry_flag(read_from) != RETRY_V1:
        return parts
    return [
        encode_stored(message)
        for part in parts
        for message in messages_of(part)
        if is_ours(ctx, group, topic, decode_properties(message.properties))
    ]


def polling_info(
    ctx: Context, connection: Connection, header: PollingInfoRequest, body: bytes
) -> RemotingCommand:
    check_pop(ctx, header.consumer_group, header.topic, header.queue_id)
    key = (header.consumer_group, header.topic, header.queue_id)
    return success(PollingInfoResponse(polling_count=ctx.pop_holds.count(key)))


def peek(
    ctx: Context, connection: Connection, header: PeekMessageRequest, body: bytes
) -> RemotingCommand:
    topic = check_pop(ctx, header.consumer_group, header.topic, header.queue_id)
    room, size = min(header.max_msg_nums, MAX_POP_MESSAGES), ctx.config.max_pull_bytes
    if room <= 0:
        raise Rejected(
            ResponseCode.INVALID_PARAMETER, f"maxMsgNums {header.max_msg_nums}: must be 1 or more"
        )
    queue_ids = range(topic.read_queues) if header.queue_id < 0 else (header.queue_id,)
    places = [(header.consumer_group, topic.name, queue_id) for queue_id in queue_ids]
    places += [
        (header.consumer_group, name, queue_id)
        for name in retry_topics(ctx, header.consumer_group, topic.name)
        if (retry := ctx.topics.get(name)) is not None
        for queue_id in range(retry.read_queues)
    ]
    parts: list[bytes | memoryview] = []
    rest = 0
    for place in places:
        start, end = next_offset(ctx, place), ctx.store.max_offset(*place[1:])
        if room > 0 and size > 0 and start < end:
            result = ctx.store.get(*place[1:], start, room, size)
            if result.status is GetStatus.FOUND:
                parts += own_records(ctx, place[0], topic.name, place[1], result.parts)
                room, size, start = room - result.count, size - result.size, result.next_offset
        rest += max(0, end - start)
    answer = success(PopMessageResponse(rest_num=rest), b"".join(parts))
    if not parts:
        answer.code, answer.remark = ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE"
    return answer
