"""Send failed messages back to brokers, and replies of listeners to requesters.

Behaviour
- A message stays in its process queue, and so holds back the group's progress, until a broker has
  taken it.
- First the broker that holds it is asked to send it back; if that fails a copy goes to the retry
  topic through any broker; if that fails too, the message is given to the listener again after 5 s.
- A message of a batch that the broker keeps as one record goes as a copy at once: the broker knows
  the record only, and refuses it.
- Each message is on its way at most once at a time.
- A message whose copy brokers refuse for what it is, in either way, is skipped after its last
  retry, with an ERROR that has its offset id: it would be refused for ever, and the group's
  progress would stop there. Our broker, and mostly Apache's too, refuses none.

Sends the replies of listeners to the requesters.

Source: MessageUtil.java createReplyMessage, 5.3.

Behaviour
- A reply goes to the reply topic of the cluster that the request came through, first by the broker
  that holds the request: it knows the client that asked.
- The message counts as finished when its reply is out, and also when the reply cannot be sent: that
  is logged. Java's listeners, which send their replies themselves, do the same. Delivering the
  request again would repeat the work, and come after the requester's timeout.
- A Reply to a message that is no request is dropped, with a warning.

The number of replies in flight is bounded by the process queues: each message keeps its place until
its reply is out.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.group_client import GroupClient
from ogive.client.consumer.process_queue import ProcessQueue
from ogive.client.consumer.subscription import MemberContext
from ogive.client.ids import UniqueKeys
from ogive.client.listener import AnyListener, Reply
from ogive.client.sending.message_builder import message_property_text, with_unique_key
from ogive.errors import BrokerInternalError, MessageIllegal, OgiveError
from ogive.model import MessageExt, PropertyName, dlq_topic, reply_topic
from ogive.wire.codes import SysFlag

log = logging.getLogger(__name__)

LINES: Final = 10
WINDOW_S: Final = 60.0


class DeadLetters:
    """Log of dead letters: one line a message, at most LINES in WINDOW_S. The next line says how
    many were left out.
    """

    def __init__(self, group: str, now: Callable[[], float] = time.monotonic) -> None:
        self._topic = dlq_topic(group)
        self._now = now
        self._ends = float("-inf")
        self._lines = self._left_out = 0

    def note(self, message: MessageExt, why: str) -> None:
        """Log that a broker has stored *message* as a dead letter; *why* its last try failed."""
        now = self._now()
        if now >= self._ends:
            self._ends, self._lines = now + WINDOW_S, 0
        if self._lines == LINES:
            self._left_out += 1
            return
        more = f" (and {self._left_out:,} others before it)" if self._left_out else ""
        self._lines, self._left_out = self._lines + 1, 0
        tries = message.reconsume_times + 1
        log.warning(
            "%s/%d (id %s) is given up after %d %s and is in %s now%s: %s",
            message.queue,
            message.queue_offset,
            message.id,
            tries,
            "try" if tries == 1 else "tries",
            self._topic,
            more,
            why,
        )


_COPIED: Final = (PropertyName.CORRELATION_ID, PropertyName.REPLY_TO_CLIENT, PropertyName.TTL)
_NEEDED: Final = (PropertyName.CORRELATION_ID, PropertyName.REPLY_TO_CLIENT, PropertyName.CLUSTER)


class Replier:
    """Replies of one listener. A message is finished when its reply is stored or given up."""

    def __init__(self, group: MemberContext) -> None:
        self._group = group
        self._keys = UniqueKeys()
        self._under_way: dict[asyncio.Task[Any], ProcessQueue] = {}

    def give(self, process_queue: ProcessQueue, request: MessageExt, reply: Reply) -> None:
        """Send *reply* to the sender of *request*."""
        task = self._group.spawn(self._send(process_queue, request, reply), "reply")
        self._under_way[task] = process_queue
        task.add_done_callback(self._under_way.pop)

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        """Return True while replies to requests of the queue are on their way."""
        return any(one is process_queue for one in self._under_way.values())

    async def close(self, timeout_s: float) -> None:
        """Wait at most *timeout_s* for replies in flight; the group gets the other requests
        again.
        """
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=timeout_s)
        for task in list(self._under_way):
            task.cancel()

    async def _send(self, process_queue: ProcessQueue, request: MessageExt, reply: Reply) -> None:
        where = f"{request.queue}/{request.queue_offset}"
        missing = [name for name in _NEEDED if not request.properties.get(name)]
        if missing:
            log.warning(
                "dropped the reply to %s, which is not a request: its properties lack %s",
                where,
                ", ".join(missing),
            )
        else:
            topic = reply_topic(request.properties[PropertyName.CLUSTER])
            try:
                properties = with_unique_key(
                    self._keys.next(time.time_ns() // 1_000_000), _properties(request, reply, topic)
                )
                await self._group.calls.send_reply(
                    topic, reply.body, properties, broker_name=request.queue.broker_name
                )
            except OgiveError as exc:
                log.warning(
                    "lost the reply to %s, request %s: %s",
                    where,
                    request.properties[PropertyName.CORRELATION_ID],
                    exc,
                )
        self._group.finish_message(process_queue, request)


def _properties(request: MessageExt, reply: Reply, topic: str) -> str:
    copied = [(name, request.properties[name]) for name in _COPIED if name in request.properties]
    own = "".join(
        [
            f"{name}\x01{value}\x02"
            for name, value in [(PropertyName.MESSAGE_TYPE, "reply"), *copied]
        ]
    )
    return own + message_property_text(reply.message(topic))


MAX_AT_A_TIME: Final = 16
# what a broker uses for delay level 0 and the first retry
FIRST_RETRY_LEVEL: Final = 3


Redeliver = Callable[[ProcessQueue, Sequence[MessageExt]], None]


class CopyRefused(OgiveError):
    """Error of a copy that brokers refuse for its content: another try does not help."""


class Returns(Protocol):
    """Protocol of what handles failed messages."""

    def give(
        self, process_queue: ProcessQueue, message: MessageExt, delay_level: int, why: str
    ) -> None: ...
    def is_under_way(self, process_queue: ProcessQueue, offset: int) -> bool: ...
    def is_busy(self, process_queue: ProcessQueue) -> bool: ...
    async def close(self, timeout_s: float) -> None: ...


class Drop:
    """Handling of failed messages in broadcasting: logged, and counted as finished.

    From a retry topic every member would get the failures of all.
    """

    def __init__(self, group: MemberContext) -> None:
        self._group = group

    def give(
        self, process_queue: ProcessQueue, message: MessageExt, delay_level: int, why: str
    ) -> None:
        if message.queue_offset in process_queue:
            log.error(
                "dropped %s/%d (id %s), which failed: %s is broadcasting",
                message.queue,
                message.queue_offset,
                message.id,
                self._group.name,
            )
            self._group.finish_message(process_queue, message)

    def is_under_way(self, process_queue: ProcessQueue, offset: int) -> bool:
        return False

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        return False

    async def close(self, timeout_s: float) -> None:
        """Do nothing: no message is being sent back."""


class SendBack:
    """Failed messages of one listener, sent back to brokers.

    A message is finished when a broker has taken it; *redeliver* gets it a while after none would.
    """

    def __init__(
        self, group: MemberContext, max_retries: int, retry_s: float, redeliver: Redeliver
    ) -> None:
        self._group = group
        self._dead_letters = DeadLetters(group.name)
        self._max_retries = max_retries
        self._retry_s = retry_s
        self._redeliver = redeliver
        self._waiting: deque[tuple[ProcessQueue, MessageExt, int, str]] = deque()
        self._under_way: set[tuple[ProcessQueue, int]] = set()
        # Messages for the couriers, without those that wait for another try.
        self._sending: Counter[ProcessQueue] = Counter()
        self._stranded: set[asyncio.TimerHandle] = set()
        self._couriers: set[asyncio.Task[Any]] = set()
        self._closed = False

    def give(
        self, process_queue: ProcessQueue, message: MessageExt, delay_level: int, why: str
    ) -> None:
        """Send *message* back, unless it is finished or on its way already.

        *why* its try failed.
        """
        key = (process_queue, message.queue_offset)
        if self._closed or key in self._under_way or message.queue_offset not in process_queue:
            return
        self._under_way.add(key)
        self._sending[process_queue] += 1
        self._waiting.append((process_queue, message, delay_level, why))
        if len(self._couriers) < MAX_AT_A_TIME:
            courier = self._group.spawn(self._carry(), "send back")
            self._couriers.add(courier)
            courier.add_done_callback(self._couriers.discard)

    def is_under_way(self, process_queue: ProcessQueue, offset: int) -> bool:
        return (process_queue, offset) in self._under_way

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        """Return True while messages of the queue are being sent back.

        The member that gets the queue now would get them, too.
        """
        return process_queue in self._sending

    async def close(self, timeout_s: float) -> None:
        """Wait at most *timeout_s* for messages being sent back; what is left stays unfinished, and
        the group gets it again.
        """
        if self._couriers:
            await asyncio.wait(self._couriers, timeout=timeout_s)
        self._closed = True
        self._waiting.clear()
        for courier in list(self._couriers):
            courier.cancel()
        for timer in self._stranded:
            timer.cancel()
        self._stranded.clear()

    async def _carry(self) -> None:
        while self._waiting:
            process_queue, message, delay_level, why = self._waiting.popleft()
            try:
                await self._carry_one(process_queue, message, delay_level, why)
            finally:
                self._sending[process_queue] -= 1
                if not self._sending[process_queue]:
                    del self._sending[process_queue]

    async def _carry_one(
        self, process_queue: ProcessQueue, message: MessageExt, delay_level: int, why: str
    ) -> None:
        if process_queue.dropped:
            self._under_way.discard((process_queue, message.queue_offset))
            return
        is_over = delay_level < 0 or message.reconsume_times >= self._max_retries
        try:
            await self._send(process_queue, message, delay_level)
        except OgiveError as exc:
            if not is_over or not isinstance(exc, CopyRefused):
                log.warning(
                    "could not send back %s/%d, which is delivered again here in %.0f s: %s",
                    message.queue,
                    message.queue_offset,
                    self._retry_s,
                    exc,
                )
                self._strand(process_queue, message)
                return
            log_skipped(message, exc, why)
        else:
            if is_over:
                self._dead_letters.note(message, why)
        self._under_way.discard((process_queue, message.queue_offset))
        self._group.finish_message(process_queue, message)

    async def _send(
        self, process_queue: ProcessQueue, message: MessageExt, delay_level: int
    ) -> None:
        """Send one message back. Raises OgiveError if no broker has stored it; CopyRefused if none
        will.
        """
        is_refused = bool(message.sys_flag & SysFlag.INNER_BATCH)
        if not is_refused:
            try:
                await self._group.calls.send_back(
                    message, delay_level=delay_level, max_retries=self._max_retries
                )
            except OgiveError as exc:
                is_refused = isinstance(exc, MessageIllegal | BrokerInternalError)
                log.warning(
                    "could not send back %s/%d, trying the retry topic: %s",
                    message.queue,
                    message.queue_offset,
                    exc,
                )
            else:
                return
        dead = delay_level < 0
        try:
            await self._group.calls.send_retry(
                message,
                delay_level=0
                if dead
                else delay_level or FIRST_RETRY_LEVEL + message.reconsume_times,
                reconsume_times=self._max_retries + 1 if dead else message.reconsume_times + 1,
                max_retries=self._max_retries,
            )
        except MessageIllegal as exc:
            raise (CopyRefused(str(exc)) if is_refused else exc) from None

    def _strand(self, process_queue: ProcessQueue, message: MessageExt) -> None:
        def again() -> None:
            self._stranded.discard(timer)
            self._under_way.discard((process_queue, message.queue_offset))
            changed = replace(message, reconsume_times=message.reconsume_times + 1)
            if process_queue.replace(changed):
                self._redeliver(process_queue, [changed])

        timer = asyncio.get_running_loop().call_later(self._retry_s, again)
        self._stranded.add(timer)


async def send_to_dead_letters(calls: GroupClient, message: MessageExt, max_retries: int) -> None:
    """Send a message of an orderly consumer to the dead letters.

    A copy goes to the retry topic with more tries than allowed, which keeps their number. If that
    is refused, the broker that holds the message is asked to make the copy. Raises OgiveError, and
    CopyRefused if both are refused.
    """
    try:
        await calls.send_retry(
            message, delay_level=0, reconsume_times=max_retries + 1, max_retries=max_retries
        )
    except MessageIllegal as exc:
        if not message.sys_flag & SysFlag.INNER_BATCH:
            log.warning(
                "could not send %s/%d to the dead-letter topic, asking its broker to do it: %s",
                message.queue,
                message.queue_offset,
                exc,
            )
            try:
                await calls.send_back(message, delay_level=-1, max_retries=max_retries)
            except (MessageIllegal, BrokerInternalError) as error:
                exc = MessageIllegal(error.code, error.remark, error.address)
            else:
                return
        raise CopyRefused(str(exc)) from None


def log_skipped(message: MessageExt, failure: CopyRefused, why: str) -> None:
    tries = message.reconsume_times + 1
    log.error(
        "skipped %s/%d after %d %s without a dead letter: brokers refuse its copy (%s). Its "
        "offset id, %s, finds it as long as its broker keeps it. It failed with: %s",
        message.queue,
        message.queue_offset,
        tries,
        "try" if tries == 1 else "tries",
        failure,
        message.offset_id,
        why,
    )


def returns(
    group: MemberContext, listener: AnyListener, config: ConsumerConfig, redeliver: Redeliver
) -> Returns:
    """Return how this group handles the messages on which *listener* failed."""
    if group.broadcast:
        return Drop(group)
    make: type[SendBack] = group.returns or SendBack
    return make(group, listener.config.retries, config.send_back_retry_s, redeliver)
