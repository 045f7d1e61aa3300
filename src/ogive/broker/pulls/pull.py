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
from ogive.broker.quota import SMALL_FILTER
from ogive.broker.replies import ONEWAY, Rejected, framed, refuse
from ogive.broker.services import Context
from ogive.broker.state.client_table import ConsumerGroup, Subscription
from ogive.broker.state.config_table import NONE_IS_MADE
from ogive.errors import Refused, ResponseCode, StoreError
from ogive.sql92 import Expression
from ogive.store.file_reader import Cold
from ogive.store.types import GetResult, GetStatus
from ogive.transport.connection import Connection
from ogive.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
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
    """One pull that has passed the checks.

    It may wait for a message, for its connection to drain, or for the disk. The connection's share
    of the filter quota is released with the answer, or when the connection closes.
    """

    __slots__ = (
        "_asked",
        "_ctx",
        "_filter_bytes",
        "_group",
        "_is_held",
        "_max_bytes",
        "_max_messages",
        "_opaque",
        "_rules_version",
        "_subscription",
        "_suspend_s",
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
        """Reserve memory for the request's own filter.

        *wanted* is that filter, or the group's subscription, which may change while the pull waits.
        Raises Rejected if the filter quota is used up.
        """
        self._ctx, self.connection, self._opaque = ctx, connection, command.opaque
        self._filter_bytes = 0
        if isinstance(wanted, Subscription):
            self._subscription: Subscription | None = wanted
            self._wanted = wanted.wanted
        else:
            self._subscription, self._wanted = None, wanted
            self._filter_bytes = reserve_filter(
                ctx, connection, header.expression_type, header.subscription or "*"
            )
        # the user, and the version of the access rules that let the request through
        self._user, self._rules_version = "", 0
        if ctx.guard is not None:
            self._user = command.ext_fields.get(ACCESS_KEY, "")
            self._rules_version = ctx.guard.table.version
        self._group = header.consumer_group
        self.key = (header.topic, header.queue_id)
        self.offset = self._asked = header.queue_offset
        self._is_held = False
        suspended = header.sys_flag & PullSysFlag.SUSPEND and header.suspend_timeout_ms > 0
        self._suspend_s = (
            min(header.suspend_timeout_ms / 1000, MAX_SUSPEND_S)
            if suspended and not ctx.holds.closed
            else 0.0
        )
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

    def serve(self, *, is_reset: bool) -> None:
        """Answer the request, or hold it until there is a message for it.

        *is_reset*: the group was reset, and this member has not been notified yet.
        """
        if is_reset and not self._must_drain() and self._answer_reset(waited=False):
            return
        if self.try_answer():
            return
        self._is_held = True
        if not self._ctx.holds.hold(self, self._suspend_s):
            self._refuse(
                Rejected(
                    ResponseCode.SYSTEM_BUSY,
                    "[REJECTREQUEST]system busy: too many pulls wait for messages already",
                )
            )

    def try_answer(self, *, final: bool = False) -> bool:
        """Answer if there is something to deliver, or, if *final*, in any case.

        Return False if the pull should be held. A held pull skips messages that its filter rejects.
        There may be more of them below the queue's end.
        """
        ctx = self._ctx
        if not final and self._must_drain():
            ctx.slow_readers.put(self)
            return True
        try:
            if final and self._answer_waited():
                return True
            result = self._read()
        except (Refused, StoreError) as exc:
            self._refuse(exc)
            return True
        except Cold as cold:
            ctx.spawn(
                self._answer_from_disk(cold.with_traceback(None)),
                f"pull of {self.connection.remote_address}",
            )
            return True
        if not final:
            if self._is_held and result.status is GetStatus.NO_MATCHED_MESSAGE:
                self.offset = result.next_offset
                return False
            if self._suspend_s and self._is_unanswered(result):
                return False
        self._reply(result)
        return True

    async def _answer_from_disk(self, cold: Cold) -> None:
        """Answer in any case, and read data that is not in memory on another thread."""
        try:
            result = await self._ctx.cold_reads.read(self._ctx.store, self._read_waited, cold)
        except (Refused, StoreError) as exc:
            self._refuse(exc)
        except Exception:
            # a bug: as for any request that fails otherwise than with an answer
            self.connection.abort(
                f"a pull of {self.connection.remote_address} ended without an answer"
            )
            raise
        else:
            if result is not None:
                self._reply(result)
        finally:
            self._release_filter()

    def _read_waited(self) -> GetResult | None:
        """Read for a pull that has waited. Return None if it is answered or its client is gone."""
        if self.connection.closed or self._answer_waited():
            return None
        return self._read()

    def _answer_waited(self) -> bool:
        """Answer a pull that has waited if its group was reset. Raises AccessRefused."""
        self._check_access()
        return self._answer_reset(waited=True)

    def _must_drain(self) -> bool:
        return self._ctx.slow_readers.must_wait(self.connection)

    def _read(self) -> GetResult:
        """Read from the store. Raises StoreError, AccessRefused, Cold."""
        self._check_access()
        self._check_filter()
        started = self._ctx.loop.time()
        wanted, get = self._wanted, self._ctx.store.get
        if isinstance(wanted, Expression):
            result = read_matching(
                partial(get, *self.key, wait=False),
                wanted,
                self.offset,
                self._max_messages,
                self._max_bytes,
            )
        else:
            result = get(
                *self.key, self.offset, self._max_messages, self._max_bytes, wanted, wait=False
            )
        self._ctx.traffic.get_times.add(self._ctx.loop.time() - started)
        return result

    def _check_access(self) -> None:
        """Check the permissions again if the rules have changed since the request arrived.

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
        """Use a new subscription of the group.

        The pull then checks the messages again that the previous filter skipped.
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

    def _reply(self, result: GetResult) -> None:
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
        self._release_filter()
        self.connection.reply(b"".join((framed(head, result.size), *result.parts)))

    def _progress_below(self, result: GetResult) -> int:
        """Return the offset at which a member continues that is beyond the end of its queue.

        After a power cut new messages have the offsets of lost ones. The member continues at its
        group's progress; without any, at the beginning, like a member that queries its offset
        (QUERY_CONSUMER_OFFSET).
        """
        known = self._ctx.offsets.get(self._group, *self.key)
        online = self._ctx.clients.consumer_group(self._group)
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

    def _answer_reset(self, *, waited: bool) -> bool:
        """Send the client the offset to which its group was reset, unless it knows.

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
        self._release_filter()
        self.connection.reply(framed(head))
        return True

    def _is_unanswered(self, result: GetResult) -> bool:
        """Return True if there is no message yet, and a later one may match."""
        status = result.status
        return status is GetStatus.OFFSET_OVERFLOW_ONE or (
            status is GetStatus.NO_MESSAGE_IN_QUEUE and self.offset == 0
        )

    def _refuse(self, error: Refused | StoreError) -> None:
        self._release_filter()
        refuse(
            self.connection, RemotingCommand(RequestCode.PULL_MESSAGE, opaque=self._opaque), error
        )

    def _release_filter(self) -> None:
        if self._filter_bytes:
            self._ctx.filter_quota.release(self.connection, self._filter_bytes)
            self._filter_bytes = 0


def reserve_filter(
    ctx: Context, connection: Connection, expression_type: str | None, expression: str
) -> int:
    """Reserve memory for the request's own filter, and return its size, 0 for a small one.

    Raises Rejected.
    """
    size = memory_of_filter(expression_type, expression)
    if size <= SMALL_FILTER:
        return 0
    if not ctx.filter_quota.acquire(connection, size):
        raise Rejected(
            ResponseCode.SYSTEM_BUSY,
            "[REJECTREQUEST]system busy: the filters of pulls that wait take "
            f"{ctx.filter_quota.excess(connection, size)}",
        )
    return size


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
    if not command.flag & ONEWAY:
        Pull(ctx, connection, command, header, wanted).serve(is_reset=untold)


def _check(ctx: Context, header: PullMessageRequest) -> Wanted | Subscription:
    """Check the request, and return its filter. Raises Rejected."""
    group, topic = check_readable(ctx, header.consumer_group, header.topic)
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


def check_readable(
    ctx: Context, group_name: str, topic_name: str
) -> tuple[SubscriptionGroupConfig, TopicConfig]:
    """Return a group that may consume, created if allowed, and a topic that can be read.

    Raises Rejected.
    """
    group = ctx.groups.find_or_create(group_name)
    if group is None:
        why = f"subscription group [{group_name}] does not exist, and {NONE_IS_MADE}"
        raise Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, why)
    if not group.consume_enable:
        raise Rejected(
            ResponseCode.NO_PERMISSION, f"subscription group no permission, {group.name}"
        )
    topic = ctx.topics.get(topic_name)
    if topic is None:
        raise Rejected(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic_name}] not exist, apply first please!"
        )
    if not topic.perm & PERM_READ:
        raise Rejected(
            ResponseCode.NO_PERMISSION, f"the topic[{topic.name}] pulling message is forbidden"
        )
    return group, topic


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
