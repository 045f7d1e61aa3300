"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361).

Source: PullMessageProcessor.java, DefaultPullMessageResultHandler.java, 5.3.

Behaviour
- The subscription is the one in the request (flag SUBSCRIPTION), else the one in the group's
  heartbeats; where that changes, a pull that waits looks again at what the one before had passed
  over. Tags are matched by hash; clients compare the text again. An SQL92 expression
  (property_filter) is put to the properties of each record; what it makes unknown, or cannot be put
  to, does not match.
- The answer's body is the records as they stand in the log. In a topic of batches the record with
  the asked offset comes whole.
- A pull that finds nothing new, and may be suspended, is held until its queue has a message for it
  or its time is over. It commits nothing a second time.
- Each member's first pull after the group was put elsewhere (222, 314) is answered with
  OFFSET_RESET and the offset to go on from, and its commit does not count. Pulls that are held are
  answered so at once, but may be of a place that their member has left: the next one is answered
  so, too, unless it is from that offset.
- A pull from beyond the end of its queue is sent to the progress of its group, and to the end where
  there is none to tell. A commit beyond the end, of a member that has outlived a broker and what
  that lost, does not count.
- A client that does not read its answers gets no further ones read from the log until it does.
- With access control, a pull that has waited, for whatever, gets messages only if its user may
  still have them.
- What is not in memory is read from disk on another thread, see broker/off_loop_reads.py, and the
  pull goes on when it is there.

Limits. A pull that asks for at most 32 messages gets at most 256 KiB, as from Apache's broker. One
that asks for more knows what it does: it gets up to max_large_pull_messages and
max_large_pull_bytes (or its own maxMsgBytes, if that is less).

Differs from Java
- New messages that all fail a held pull's filter are passed over once; its answer, when the time is
  over, moves the client past them.
- OFFSET_FOUND_NULL is answered at once, so that the client moves on; Java holds the pull where it
  stands.
- No slave, so suggestWhichBrokerId is always 0. What forbids a pull is told in its remark alone,
  without forbiddenType, which proxies read.
- SQL92 is on by default (property_filter); in Java it is off (enablePropertyFilter).
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from ogive.access.permissions import to_pull
from ogive.access.policy import AccessRefused
from ogive.broker.filters import (
    Wanted,
    check_expression_type,
    memory_of_filter,
    read_matching,
    wanted_by,
)
from ogive.broker.off_loop_reads import MAX_TRIES
from ogive.broker.quota import FilterShare
from ogive.broker.replies import ONEWAY, Rejected, framed, refuse
from ogive.broker.services import Context
from ogive.broker.state.client_table import ConsumerGroup, Subscription
from ogive.broker.state.group_table import NONE_IS_MADE
from ogive.errors import Refused, ResponseCode, StoreError
from ogive.sql92 import Expression
from ogive.store.file_reader import Cold
from ogive.store.types import GetResult, GetStatus
from ogive.transport.connection import Connection
from ogive.wire.bodies.configs import SubscriptionGroupConfig
from ogive.wire.bodies.json_fields import PERM_READ
from ogive.wire.codes import VERSION, PullSysFlag, RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import decode_header
from ogive.wire.headers.pull import PullMessageRequest
from ogive.wire.signing import ACCESS_KEY

MAX_SUSPEND_S: Final = 120.0

_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    # PULL_NOT_FOUND for a pull from offset 0, where such a queue starts
    GetStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
}
_HEAD: Final = (
    b'{"code":%d,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%d","minOffset":"%d",'
    b'"maxOffset":"%d"},"flag":1,'
    b'"language":"PYTHON","opaque":%d,"remark":"%b","serializeTypeCurrentRPC":"JSON","version":'
    + str(VERSION).encode()
    + b"}"
)
_REMARKS: Final = {status: status.name.encode() for status in GetStatus}


class Pull:
    """One pull that has passed the checks. Can be tried again, see pull_hold."""

    __slots__ = (
        "_asked",
        "_ctx",
        "_group",
        "_max_bytes",
        "_max_messages",
        "_opaque",
        "_room",
        "_rules_version",
        "_subscription",
        "_suspend_s",
        "_tries",
        "_user",
        "_wanted",
        "connection",
        "key",
        "offset",
    )

    def __init__(
        self,
        ctx: Context,
        connection: Connection,
        command: RemotingCommand,
        header: PullMessageRequest,
        wanted: Wanted | Subscription,
    ) -> None:
        """*wanted*: the request's own filter, or the group's subscription, which may change while
        the pull waits. Raises Rejected where the filters of pulls take too much memory.
        """
        self._ctx, self.connection, self._opaque = ctx, connection, command.opaque
        self._subscription = wanted if isinstance(wanted, Subscription) else None
        self._wanted, self._room = (
            (wanted.wanted, None)
            if isinstance(wanted, Subscription)
            else (wanted, _room(ctx, connection, header))
        )
        # whose pull it is, and the version of the access rules that let it through
        self._user, self._rules_version = "", 0
        if ctx.guard is not None:
            self._user, self._rules_version = (
                command.ext_fields.get(ACCESS_KEY, ""),
                ctx.guard.table.version,
            )
        self._group = header.consumer_group
        self.key = (header.topic, header.queue_id)
        self.offset = self._asked = header.queue_offset
        self._tries = 0
        suspended = header.sys_flag & PullSysFlag.SUSPEND and header.suspend_timeout_ms > 0
        self._suspend_s = min(header.suspend_timeout_ms / 1000, MAX_SUSPEND_S) if suspended else 0.0
        config = ctx.config
        if header.max_msg_nums <= config.max_pull_messages:
            self._max_messages, self._max_bytes = max(1, header.max_msg_nums), config.max_pull_bytes
        else:
            self._max_messages = min(header.max_msg_nums, config.max_large_pull_messages)
            self._max_bytes = config.max_large_pull_bytes
            if header.max_msg_bytes is not None and header.max_msg_bytes > 0:
                self._max_bytes = min(self._max_bytes, header.max_msg_bytes)

    @property
    def is_costly(self) -> bool:
        return isinstance(self._wanted, Expression)

    def read(self) -> GetResult:
        """Raises StoreError, AccessRefused; Cold where the disk must be waited for."""
        self._check_access()
        self._check_filter()
        started = self._ctx.loop.time()
        wanted, get, wait = self._wanted, self._ctx.store.get, self._tries >= MAX_TRIES
        if isinstance(wanted, Expression):
            result = read_matching(
                partial(get, *self.key, wait=wait),
                wanted,
                self.offset,
                self._max_messages,
                self._max_bytes,
            )
        else:
            result = get(
                *self.key, self.offset, self._max_messages, self._max_bytes, wanted, wait=wait
            )
        self._ctx.traffic.get_times.add(self._ctx.loop.time() - started)
        return result

    def _check_access(self) -> None:
        """The request was let through when it came; rules may have changed meanwhile.

        Raises AccessRefused.
        """
        guard = self._ctx.guard
        if guard is None or guard.table.version == self._rules_version:
            return
        for need in to_pull(self.key[0], self._group):
            if not guard.may(self._user, self.connection.remote_address, need):
                raise AccessRefused(
                    f"User:{self._user} has no permission any more: {need} is needed"
                )

    def _check_filter(self) -> None:
        """The group may have subscribed anew: what the filter before passed over is looked at
        again.
        """
        if self._subscription is None:
            return
        online = self._ctx.clients.consumer_group(self._group)
        now = (
            online.subscriptions.get(self.key[0], self._subscription)
            if online is not None
            else self._subscription
        )
        if now is not self._subscription and not now.fault:
            self._subscription, self._wanted, self.offset = now, now.wanted, self._asked

    def serve(self) -> None:
        """Answer, or hold if there is nothing yet. Raises Rejected, AccessRefused, StoreError."""
        try:
            result = self.read()
        except Cold as cold:
            self._fetch(cold, self._serve_again)
            return
        if self._suspend_s and self.is_unanswered(result) and not self._ctx.holds.closed:
            if not self._ctx.holds.hold(self, self._suspend_s):
                raise Rejected(
                    ResponseCode.SYSTEM_BUSY,
                    "[REJECTREQUEST]system busy: too many pulls wait for messages already",
                )
            return
        self.reply(result)

    def _serve_again(self) -> None:
        if self.connection.closed:
            return
        try:
            if not self.answer_reset(waited=True):
                self.serve()
        except (Refused, StoreError) as exc:
            self._refuse(exc)

    def _fetch(self, cold: Cold, then: Callable[[], None]) -> None:
        """Continue once it has been read. Raises StoreError."""
        self._tries += 1
        self._ctx.cold_reads.fetch(
            cold.place, lambda error: then() if error is None else self._refuse(error)
        )

    def reply(self, result: GetResult) -> None:
        status = result.status
        self._ctx.traffic.pulled(
            self._group, *self.key, result.count + result.more, result.size, result.next_offset
        )
        code = _CODES[status]
        if status is GetStatus.NO_MESSAGE_IN_QUEUE and self.offset == 0:
            code = ResponseCode.PULL_NOT_FOUND
        next_offset = (
            self._progress_below(result)
            if status is GetStatus.OFFSET_OVERFLOW_BADLY
            else result.next_offset
        )
        head = _HEAD % (
            code,
            next_offset,
            result.min_offset,
            result.max_offset,
            self._opaque,
            _REMARKS[status],
        )
        self.connection.reply(b"".join((framed(head, result.size), *result.parts)))

    def _progress_below(self, result: GetResult) -> int:
        """Where a member goes on that stands beyond the end of its queue: after a power cut new
        messages have the offsets of lost ones.

        Its group's progress, which for a group without any is the beginning, as it is for a member
        that asks (QUERY_CONSUMER_OFFSET).
        """
        known, online = (
            self._ctx.offsets.get(self._group, *self.key),
            self._ctx.clients.consumer_group(self._group),
        )
        if (
            known is None
            and online is not None
            and not online.is_broadcasting
            and result.min_offset == 0
        ):
            return 0
        return (
            known
            if known is not None and result.min_offset <= known <= result.max_offset
            else result.next_offset
        )

    def answer_reset(self, *, waited: bool) -> bool:
        """Tell the client the offset that its group was reset to, unless it knows.

        *waited*: it may not have the queue any more.
        """
        resets = self._ctx.offsets.resets
        if not resets:
            return False
        place = self._group, *self.key, self._ctx.clients.asker(self._group, self.connection)
        offset = resets.hint(*place) if waited else resets.redirect(*place, self._asked)
        if offset is None:
            return False
        ends = self._ctx.store.min_offset(*self.key), self._ctx.store.max_offset(*self.key)
        head = _HEAD % (
            ResponseCode.PULL_OFFSET_MOVED,
            offset,
            *ends,
            self._opaque,
            b"OFFSET_RESET",
        )
        self.connection.reply(framed(head))
        return True

    def is_unanswered(self, result: GetResult) -> bool:
        """Whether there is nothing yet, and a later message may be what is waited for."""
        status = result.status
        return status is GetStatus.OFFSET_OVERFLOW_ONE or (
            status is GetStatus.NO_MESSAGE_IN_QUEUE and self.offset == 0
        )

    def try_answer(self) -> bool:
        """Try a held pull again after an arrival.

        Messages that the filter rejects are passed over for good; there may be more.
        """
        if self._ctx.slow_readers.must_wait(self.connection):
            self._ctx.slow_readers.put(self)
            return True
        try:
            result = self.read()
            self._tries = 0
        except (AccessRefused, StoreError) as exc:
            self._refuse(exc)
            return True
        except Cold:
            self.answer()
            return True
        if result.status is GetStatus.NO_MATCHED_MESSAGE:
            self.offset = result.next_offset
            return False
        if self.is_unanswered(result):
            return False
        self.reply(result)
        return True

    def answer(self) -> None:
        """Whatever there is now."""
        try:
            self._check_access()
            if not self.answer_reset(waited=True):
                self.reply(self.read())
        except (AccessRefused, StoreError) as exc:
            self._refuse(exc)
        except Cold as cold:
            try:
                self._fetch(cold, self.answer)
            except StoreError as exc:
                self._refuse(exc)

    def _refuse(self, error: Refused | StoreError) -> None:
        refuse(
            self.connection, RemotingCommand(RequestCode.PULL_MESSAGE, opaque=self._opaque), error
        )


def _room(ctx: Context, connection: Connection, header: PullMessageRequest) -> FilterShare | None:
    return ctx.filter_room.take(
        connection, memory_of_filter(header.expression_type, header.subscription or "*")
    )


def handle(ctx: Context, connection: Connection, command: RemotingCommand) -> None:
    header = decode_header(PullMessageRequest, command.ext_fields)
    wanted = _check(ctx, header)
    offsets, place = ctx.offsets, (header.consumer_group, header.topic, header.queue_id)
    untold = bool(offsets.resets) and offsets.resets.is_untold(
        *place, ctx.clients.asker(header.consumer_group, connection)
    )
    commits = header.sys_flag & PullSysFlag.COMMIT_OFFSET and not untold
    if commits and 0 <= header.commit_offset <= ctx.store.max_offset(header.topic, header.queue_id):
        offsets.commit(*place, header.commit_offset)
    if command.flag & ONEWAY:
        return
    pull = Pull(ctx, connection, command, header, wanted)
    if ctx.slow_readers.must_wait(connection):
        ctx.slow_readers.put(pull)
        return
    if not untold or not pull.answer_reset(waited=False):
        pull.serve()


def _check(ctx: Context, header: PullMessageRequest) -> Wanted | Subscription:
    """The filter. Raises Rejected."""
    group = ctx.groups.find_or_create(header.consumer_group)
    if group is None:
        why = f"subscription group [{header.consumer_group}] does not exist, and {NONE_IS_MADE}"
        raise Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, why)
    if not group.consume_enable:
        raise Rejected(
            ResponseCode.NO_PERMISSION, f"subscription group no permission, {group.name}"
        )
    topic = ctx.topics.get(header.topic)
    if topic is None:
        raise Rejected(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!"
        )
    if not topic.perm & PERM_READ:
        raise Rejected(
            ResponseCode.NO_PERMISSION, f"the topic[{topic.name}] pulling message is forbidden"
        )
    if not 0 <= header.queue_id < topic.read_queues:
        remark = (
            f"queueId[{header.queue_id}] is illegal, topic:[{topic.name}] has "
            f"{topic.read_queues} read queues"
        )
        raise Rejected(ResponseCode.INVALID_PARAMETER, remark)
    if header.sys_flag & PullSysFlag.SUBSCRIPTION:
        return wanted_by(
            header.expression_type, header.subscription or "*", sql=ctx.config.property_filter
        )
    return _subscribed(ctx, ctx.clients.consumer_group(group.name), group, header)


def _subscribed(
    ctx: Context,
    online: ConsumerGroup | None,
    group: SubscriptionGroupConfig,
    header: PullMessageRequest,
) -> Subscription:
    if online is None:
        raise Rejected(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"the consumer's group info not exist: no member of {group.name} is online",
        )
    if online.is_broadcasting and not group.consume_broadcast_enable:
        raise Rejected(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{group.name}] can not consume by broadcast way",
        )
    if not ctx.groups.may_read(group.name, header.topic):
        raise Rejected(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{group.name}] is forbidden for topic[{header.topic}]",
        )
    subscription = online.subscriptions.get(header.topic)
    if subscription is None:
        raise Rejected(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"the consumer's subscription not exist: {group.name} does not subscribe to "
            f"{header.topic}",
        )
    if subscription.data.version < header.sub_version:
        raise Rejected(
            ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
        )
    if (
        check_expression_type(subscription.data.expression_type, sql=ctx.config.property_filter)
        and subscription.fault
    ):
        raise Rejected(
            ResponseCode.FILTER_DATA_NOT_EXIST,
            "The broker's consumer filter data is not exist! Your expression may be wrong! "
            f"{subscription.fault}",
        )
    return subscription
