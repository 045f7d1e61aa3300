"""Messages that a producer has on their way, and what a failed attempt means for them.

State and pure functions only.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from ogive.client.sending.handle import BatchOutcome, SendHandle
from ogive.errors import (
    BrokerBusy,
    BrokerError,
    ConnectError,
    NoNameServer,
    OgiveError,
    ProtocolError,
    RequestTimeout,
    SendFailed,
    SendTimeout,
    TransportError,
)
from ogive.model import Message, MessageQueue, SendResult
from ogive.transport.connection import Connection
from ogive.wire.command import RemotingCommand
from ogive.wire.sends import SendEncoder

# they own what is described here
if TYPE_CHECKING:
    from ogive.client.sending.accumulator import Accumulator, OrderedQueue

# what a message in flight holds besides its body and properties
OVERHEAD_BYTES: Final = 512
BATCH_PROPERTIES: Final = b"WAIT\x01true\x02"
# a failed try counts as this slow
FAILED_S: Final = 10.0

# From this latency on a broker is avoided for so long, seconds. Source: MQFaultStrategy.java, 5.3.
_AVOIDANCE_S: Final = ((15.0, 30.0), (5.0, 10.0), (3.0, 6.0), (1.8, 5.0), (0.55, 2.0))


def avoidance_s(latency_s: float) -> float:
    return next((pause for slow, pause in _AVOIDANCE_S if latency_s >= slow), 0.0)


class Result(Protocol):
    """Receiver of an outcome: a future of asyncio or of concurrent.futures, or the result that one
    thread waits for.
    """

    def done(self) -> bool: ...
    def set_result(self, result: SendResult, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


Answer = RemotingCommand | TransportError
"""Result of a request: the broker's answer, or an error without one."""

OnEnd = Callable[["PendingSend", SendResult | None, BaseException | None], None]
"""Callback for a message's outcome: a result, or an error. Runs on the loop; must not raise."""


class PendingSend:
    """One message, or one batch, from its acceptance to its outcome.

    *pinned* ones must keep their order on their queue. *outcome* is that of messages that were
    submitted, *count* their number.
    """

    __slots__ = (
        "alone",
        "answer",
        "batch",
        "begun",
        "body",
        "born_ms",
        "count",
        "deadline",
        "error",
        "finished",
        "flag",
        "future",
        "key",
        "messages",
        "number",
        "on_end",
        "on_way",
        "once",
        "outcome",
        "pinned",
        "properties",
        "queue",
        "result",
        "sent_at",
        "sharding_key",
        "size",
        "started",
        "sys_flag",
        "target",
        "text",
        "topic",
        "tried",
        "tries",
        "unknown",
        "unusual_level",
    )

    future: Result
    # set on acceptance
    properties: bytes
    born_ms: int
    # times of the loop's clock
    started: float
    deadline: float

    def __init__(
        self,
        topic: str,
        body: bytes,
        text: str,
        sharding_key: str | None,
        queue: MessageQueue | None,
        sys_flag: int = 0,
        flag: int = 0,
        batch: list[tuple[int, bytes, str]] | None = None,
    ) -> None:
        self.topic = topic
        self.body = body
        # the properties, without the unique key
        self.text = text
        self.sharding_key = sharding_key
        # the one that the caller chose
        self.queue = queue
        self.sys_flag = sys_flag
        self.flag = flag
        # flag, body and property text of each; the body is made of them on acceptance
        self.batch = batch
        self.pinned = sharding_key is not None or queue is not None
        self.size = len(body) + len(text) + OVERHEAD_BYTES
        self.count = 1
        self.outcome: BatchOutcome | None = None
        # set on acceptance
        self.key = ""
        # A delay level that few brokers have, to be checked before it is accepted.
        self.unusual_level = 0
        # a try that may have been carried out is the last
        self.once = False
        # must not share a request with others
        self.alone = False
        # in a request without an answer yet
        self.on_way = False
        # among those whose deadline is watched
        self.number = -1
        self.target: Target | None = None
        self.tries = 0
        # the try that is under way
        self.sent_at = 0.0
        # stored, with a weaker guarantee than wished for
        self.result: SendResult | None = None
        self.finished = False
        self.unknown = False
        self.error: OgiveError | None = None
        # brokers, from the first failure on
        self.tried: set[str] | None = None
        # called once, with the outcome
        self.on_end: OnEnd | None = None
        # what hooks saw of each message, and what the instrumentation made of it
        self.messages: Sequence[Message] = ()
        self.begun: Sequence[Any] = ()
        # the one that says that it is stored
        self.answer: Answer | None = None

    @property
    def keys(self) -> list[str]:
        """Return the unique key of each message."""
        if self.outcome is None or self.count == 1:
            return self.key.split(",")
        return [self.outcome.key_of(index) for index in range(self.count)]


class Lane:
    """One broker's connection, and what waits for it: messages, and queues whose messages must keep
    their order.
    """

    __slots__ = (
        "accumulator",
        "address",
        "avoid_until",
        "backlog",
        "broker_name",
        "connection",
        "down",
        "opening",
        "stalled",
    )

    # takes the messages that may go to any queue
    accumulator: "Accumulator"

    def __init__(self, broker_name: str) -> None:
        self.broker_name = broker_name
        self.address = ""
        self.connection: Connection | None = None
        self.backlog: deque[PendingSend] = deque()
        # a set that keeps its order
        self.stalled: dict[OrderedQueue, None] = {}
        self.opening = False
        # why the last attempt to connect failed
        self.down: OgiveError | None = None
        # it was slow, or failed; only where that is watched
        self.avoid_until = 0.0

    def note(self, latency_s: float, now: float) -> None:
        """Record the time of an answer. A longer avoidance that was recorded before stays."""
        pause = avoidance_s(latency_s)
        if pause:
            self.avoid_until = max(self.avoid_until, now + pause)

    def ready(self) -> Connection | None:
        """Return the connection, if it is open and nothing waits to be sent first."""
        connection = self.connection
        return (
            None
            if connection is None or connection.closed or connection.leaving or self.backlog
            else connection
        )

    @property
    def wanted(self) -> bool:
        return bool(self.backlog or self.stalled)


class Inbox(ABC):
    """Submitted messages that wait for the loop.

    Any thread appends to *inbox*. While *busy* the loop looks there by itself; otherwise who
    appends wakes it.
    """

    __slots__ = ("busy", "expiry", "inbox", "linger", "name")

    def __init__(self, name: str) -> None:
        # the topic's
        self.name = name
        self.inbox: list[SendHandle] = []
        self.busy = False
        # of what waits in the inbox
        self.expiry: asyncio.TimerHandle | None = None
        # while what is in the inbox of a topic waits for more
        self.linger: asyncio.TimerHandle | None = None

    @property
    @abstractmethod
    def queues(self) -> "Sequence[Target]":
        """Return the queues that share the inbox; none if they are not known yet."""


class Target:
    """One queue to send to; *ordered* takes the messages that must keep their order."""

    __slots__ = ("encoder", "lane", "ordered", "queue", "sent")

    def __init__(
        self, queue: MessageQueue, lane: Lane, encoder: SendEncoder, sent: int = 0
    ) -> None:
        self.queue = queue
        self.lane = lane
        self.encoder = encoder
        self.ordered: OrderedQueue | None = None
        # messages that might have gone elsewhere: batches go where the fewest went
        self.sent = sent

    @property
    def idle(self) -> bool:
        """Return True if nothing that must keep its order waits here or is in flight."""
        return self.ordered is None or self.ordered.idle


class PendingTopic(Inbox):
    """Queues of one topic; None until the route is known, and messages wait in *backlog*. The inbox
    is for messages that may go to any queue.

    *left* are queues that the route does not show any more, but whose messages have no outcome yet:
    should one come back, what is sent then must not overtake them.
    """

    __slots__ = (
        "backlog",
        "by_queue",
        "left",
        "next",
        "resolving",
        "shares_batches",
        "targets",
    )

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.targets: list[Target] | None = None
        self.by_queue: dict[MessageQueue, Target] = {}
        self.left: dict[MessageQueue, Target] = {}
        self.backlog: deque[PendingSend] = deque()
        # brokers take none of a retry topic's
        self.shares_batches = not name.startswith("%")
        # round robin begins anywhere: many producers must not begin with the same queue
        self.next = time.monotonic_ns() & 0xFFFF
        self.resolving = False

    def take_turn(self) -> int:
        """Return the next number, whose remainder chooses the target: round robin."""
        turn = self.next
        self.next = turn + 1
        return turn

    @property
    def queues(self) -> "Sequence[Target]":
        return self.targets or ()

    @property
    def ordered(self) -> "list[OrderedQueue]":
        """Return the ordered queues of the topic, those that left included."""
        return [target.ordered for target in self.all_targets if target.ordered is not None]

    @property
    def all_targets(self) -> list[Target]:
        """Return all targets, those that left included."""
        return [*self.by_queue.values(), *self.left.values()]

    @property
    def idle(self) -> bool:
        """Return True if nothing waits here and nothing in flight must keep its order, so the topic
        can be forgotten and created again.
        """
        return not (self.backlog or self.inbox or self.busy) and all(
            target.idle for target in self.all_targets
        )


def is_refusal(error: OgiveError) -> bool:
    """Return True if the broker refuses what the request carries, as any other one would."""
    return isinstance(error, BrokerError) and not error.retry_other_broker


def is_final(error: OgiveError) -> bool:
    """Return True if another try would fail, too."""
    return isinstance(error, ProtocolError) or is_refusal(error)


def may_try_again(pending: PendingSend, error: OgiveError, retries: int, now: float) -> bool:
    """Return True if the message, whose last try ended with *error*, has another try.

    A busy broker is asked as long as the budget lasts.
    """
    allowed = retries > 0 if isinstance(error, BrokerBusy) else pending.tries <= retries
    return allowed and now < pending.deadline


def outcome_of(pending: PendingSend, now: float, name_servers: object) -> OgiveError:
    """Return the error of a message that is not stored, or perhaps not; it reports all its
    tries together.
    """
    error = pending.error
    if isinstance(error, ProtocolError) or (pending.tries == 0 and isinstance(error, NoNameServer)):
        return error
    waited = f"within {now - pending.started:.1f} s"
    tried = sorted(pending.tried or ())
    tries = (
        f"{_counted(pending.tries, 'try', 'tries')} on {_counted(len(tried), 'broker', 'brokers')}"
    )
    if pending.unknown:
        return SendTimeout(
            f"no answer from {', '.join(tried)} {waited} after {tries}: {error}. "
            f"{unknown_outcome(pending)}"
        )
    if pending.tries == 0:
        return SendFailed(
            f"message for {pending.topic} was not sent {waited}: "
            f"{error or f'no name server answered at {name_servers}'}"
        )
    if isinstance(error, BrokerError) and (pending.tries == 1 or is_refusal(error)):
        return error
    failed = SendFailed(
        f"message for {pending.topic} was not stored after {tries} {waited}; at last: {error}"
    )
    failed.__cause__ = error
    return failed


def held_up(target: Target) -> OgiveError:
    """Return the reason why a message for *target* was not sent yet."""
    if target.lane.ready() is None:
        return ConnectError(f"no connection to {target.lane.address} yet", target.lane.address)
    return RequestTimeout(
        f"earlier messages for {target.queue} were still being sent, or the event loop was blocked"
    )


UNKNOWN: Final = "The message may or may not be stored."


def unknown_outcome(pending: PendingSend) -> str:
    """Return the sentence for an unknown outcome, with the message's id. Of a batch of
    ``send_batch`` it is the first, of messages that were submitted the first and the last.
    """
    key = pending.key.partition(",")[0]
    if pending.outcome is not None and pending.count > 1:
        last = pending.outcome.key_of(pending.count - 1)
        return (
            f"The {pending.count} messages that went together may or may not be stored: their ids "
            f"are {key} to {last}."
        )
    return f"{UNKNOWN[:-1]}: its id is {key}." if key else UNKNOWN


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
