"""Listeners and their results.

Returning None is success, raising means "again, later"; the values of this module are more
specific. Any other value counts as a failure and is logged: a listener that returns something by
mistake must not pass for one that succeeded.
"""

import enum
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeVar, get_args

from ogive.client.config import check_type, check_types
from ogive.client.consumer.filter import subscription, validate_filter, warn_of_tags
from ogive.client.serialize import As, reader, takes_message
from ogive.errors import InvalidOption
from ogive.keywords import explained, explains
from ogive.model import Message, MessageExt, check_delay_level, validate_group, validate_topic
from ogive.wire.bodies.clients import SubscriptionData

P = ParamSpec("P")
R = TypeVar("R", bound="ConsumeResult | Awaitable[ConsumeResult]")

# type checkers know typing_extensions; at run time it is not needed, and may not be there
if TYPE_CHECKING:
    import typing_extensions

    Arguments = typing_extensions.ParamSpec("Arguments", default=...)
    Answer = typing_extensions.TypeVar("Answer", default=Any)
else:
    Arguments, Answer = P, R

DEFAULT_MAX_RETRIES: Final = 16
UNLIMITED_RETRIES: Final = 0x7FFFFFFF
MIN_SUSPEND_S, MAX_SUSPEND_S = 0.01, 30.0

Mode = Literal["pull", "pop"]
"""Way in which the messages of a group reach its members."""
Start = Literal["latest", "earliest"] | datetime
"""Start of a group in a queue without a committed offset."""


def validate_start(start: Start, argument: str = "start") -> None:
    """Raise InvalidOption, which names the *argument*, for an invalid start."""
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidOption(f"{argument} needs a time zone: datetime(..., tzinfo=UTC)")
    elif start not in ("latest", "earliest"):
        raise InvalidOption(f'{argument} is {start!r}: must be "latest", "earliest" or a datetime')


def consume_from_where(start: Start) -> str:
    """Return Java's name for *start*."""
    return {"earliest": "CONSUME_FROM_FIRST_OFFSET", "latest": "CONSUME_FROM_LAST_OFFSET"}.get(
        str(start), "CONSUME_FROM_TIMESTAMP"
    )


def _check_done(done: int) -> None:
    """Raise TypeError or InvalidOption for an invalid *done*."""
    check_type("done", done, int, "int")
    if done < 0:
        raise InvalidOption(f"done is {done}: a batch has no fewer than 0 finished messages")


# --- results --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Later:
    """Result of a listener: deliver again later. The first *done* messages of a batch count as
    finished.

    *delay_level* 0 lets the broker choose (longer each time), n >= 1 is its n-th delay, -1 means
    the dead-letter topic at once.
    """

    delay_level: int = 0
    done: int = 0

    def __post_init__(self) -> None:
        check_delay_level(self.delay_level, least=-1)
        _check_done(self.done)


@dataclass(frozen=True, slots=True)
class Suspend:
    """Result of an orderly listener: deliver the same message again after *seconds*; the queue
    waits.

    *done* as in Later.
    """

    seconds: float | None = None
    done: int = 0

    def __post_init__(self) -> None:
        check_type("seconds", self.seconds, int | float | None, "a number of seconds")
        _check_done(self.done)
        if self.seconds is not None and not self.seconds >= 0:
            raise InvalidOption(f"a queue cannot be suspended for {self.seconds} s")


@explains
@dataclass(frozen=True, slots=True)
class Reply:
    """Result of a listener that answers a request (``Producer.request``): *body* goes back to the
    sender, and the message is finished.

    For concurrent listeners without batches. Raises MessageIllegal for a reply that no broker would
    store.
    """

    body: bytes
    """Content of the reply."""
    tag: str | None = field(default=None, kw_only=True)
    """Label of the reply, or None."""
    keys: tuple[str, ...] = field(default=(), kw_only=True)
    """Keys of the reply."""
    properties: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Properties of the reply."""

    def __post_init__(self) -> None:
        self.message("Reply")

    def message(self, topic: str) -> Message:
        """Return the reply as a message to *topic*."""
        return Message(topic, self.body, tag=self.tag, keys=self.keys, properties=self.properties)


class OrderlyEnd(enum.Enum):
    """Result of an orderly listener without auto_commit: commit or roll back the queue's messages
    since its last commit, this one included.

    Source: ConsumeOrderlyStatus.java, 5.3.
    """

    COMMIT = enum.auto()
    ROLLBACK = enum.auto()


ConsumeResult = Later | Suspend | Reply | OrderlyEnd | None
"""Result of a listener."""

LATER: Final = Later()
"""Result of a listener: deliver the message again later."""
DEAD_LETTER: Final = Later(-1)
"""Result of a listener: move the message to the group's dead-letter topic."""
COMMIT: Final = OrderlyEnd.COMMIT
"""Result of an orderly listener without auto_commit: everything since the last commit is done."""
ROLLBACK: Final = OrderlyEnd.ROLLBACK
"""Result of an orderly listener without auto_commit: deliver everything since the last commit
again.
"""


@explained
def later(delay_level: int = 0, *, done: int = 0) -> Later:
    """Return a result that has the message delivered again after the broker's *delay_level*-th
    delay.

    0 is the usual delay for the number of tries so far. A level above the broker's last one is its
    last, so no message is lost. The first *done* messages of a batch are finished.
    """
    return Later(delay_level, done)


@explained
def suspend(seconds: float | None = None, *, done: int = 0) -> Suspend:
    """Return a result of an orderly listener: this message again after *seconds* (0.01 to 30; None:
    the listener's suspend_s).
    """
    return Suspend(seconds, done)


# --- settings -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """Settings of one listener, see ``listener``. Times are in seconds."""

    topic: str
    """Topic to subscribe to."""
    group: str
    """Consumer group. Java: consumerGroup."""
    tags: str = "*"
    """Tags to select, as in "paid || refunded"; "*" selects all."""
    sql: str | None = None
    """Filter over the properties, as in "amount > 100 AND region = 'eu'"; not beside tags. Java:
    MessageSelector.bySql."""
    orderly: bool = False
    """Deliver the messages of a queue one at a time, in order. Java: MessageListenerOrderly."""
    broadcast: bool = False
    """Deliver every message to every member. Java: MessageModel.BROADCASTING."""
    batch: int = 1
    """Limit of messages in one call; above 1 the listener gets a list. Java:
    consumeMessageBatchMaxSize."""
    threads: int = 20
    """Limit of concurrent calls, of async listeners too. Java: consumeThreadMax."""
    consume_timeout_s: float = 900.0
    """A call that takes longer has failed; concurrent only. Java: consumeTimeout, 15 minutes."""
    max_retries: int | None = None
    """Retries before the dead-letter topic; None: 16, unlimited for an orderly listener. Java:
    maxReconsumeTimes."""
    start: Start = "latest"
    """Start of a new group: "latest", "earliest" or a datetime. Java: consumeFromWhere,
    consumeTimestamp."""
    suspend_s: float = 1.0
    """Pause of a queue after a failed message, orderly only. Java: suspendCurrentQueueTimeMillis.
    """
    as_: As[Any] | None = None
    """Type of the body; the listener gets that instead of the message."""
    auto_commit: bool = True
    """False, orderly only: progress moves when the listener returns COMMIT. Java:
    ConsumeOrderlyContext.autoCommit."""
    mode: Mode = "pull"
    """Pull queues that the member holds, or pop messages on a lease."""

    def __post_init__(self) -> None:
        validate_filter(self.tags, self.sql)
        check_types(self)
        validate_topic(self.topic)
        validate_group(self.group)
        if self.broadcast and not self.orderly and self.max_retries is not None:
            raise InvalidOption(
                "max_retries has no meaning with broadcast: a failed message is logged and dropped"
            )
        if not 1 <= self.batch <= 1024:
            raise InvalidOption(f"batch is {self.batch}: must be between 1 and 1024")
        if not 1 <= self.threads <= 1000:
            raise InvalidOption(f"threads is {self.threads}: must be between 1 and 1000")
        if self.consume_timeout_s <= 0:
            raise InvalidOption("consume_timeout_s must be above zero")
        if self.max_retries is not None and self.max_retries < 0:
            raise InvalidOption("max_retries must not be negative; None is the default")
        if not MIN_SUSPEND_S <= self.suspend_s <= MAX_SUSPEND_S:
            raise InvalidOption(
                f"suspend_s is {self.suspend_s}: must be between {MIN_SUSPEND_S} and "
                f"{MAX_SUSPEND_S}"
            )
        if not self.orderly and self.suspend_s != 1.0:
            raise InvalidOption(
                "suspend_s is for orderly listeners: a failed message of a concurrent one goes "
                "back to the broker"
            )
        self._check_mode()
        if self.as_ is not None:
            if self.batch > 1:
                raise InvalidOption(
                    "as_ is for listeners that get one message at a time: one body that cannot be "
                    "read would fail the batch"
                )
            reader(self.as_)
        if not self.auto_commit and not self.orderly:
            raise InvalidOption(
                "auto_commit=False is for orderly listeners: a concurrent one finishes each "
                "message by itself"
            )
        validate_start(self.start)

    def _check_mode(self) -> None:
        """Raise InvalidOption for an unknown mode, and for what a popping listener cannot have."""
        if self.mode not in get_args(Mode):
            raise InvalidOption(f'mode is {self.mode!r}: must be "pull" or "pop"')
        if self.mode == "pull":
            return
        if self.broadcast:
            raise InvalidOption(
                'broadcast has no meaning with mode="pop": a popped message is one member\'s'
            )
        if not self.auto_commit:
            raise InvalidOption(
                'auto_commit=False is for mode="pull": a popped message is acknowledged by itself'
            )
        if isinstance(self.start, datetime):
            raise InvalidOption(
                'start is a time, and a group that pops begins at "latest" or "earliest": `ogive '
                "group reset` moves it to a time"
            )

    @property
    def retries(self) -> int:
        """Return the number of further deliveries before the dead-letter topic."""
        if self.max_retries is not None:
            return self.max_retries
        return UNLIMITED_RETRIES if self.orderly else DEFAULT_MAX_RETRIES

    def subscription(self, version: int) -> SubscriptionData:
        return subscription(self.topic, self.tags, self.sql, version)


@dataclass(frozen=True, slots=True, eq=False)
class Listener(Generic[Arguments, Answer]):
    """Function, and the settings of what it listens to.

    Calling it calls the function. As an annotation, plain ``Listener`` means any of them.
    """

    function: Callable[Arguments, Answer]
    """The function that was made a listener."""
    config: ListenerConfig
    """Topic, group, filter and other settings."""
    name: str = field(default="listener")
    """Name in log lines and traces."""

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        return self.function(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """Return True if the function gives a coroutine."""
        return is_async(self.function)


AnyListener = Listener[..., Any]


def decoded(listener: AnyListener) -> AnyListener:
    """Return the same listener as a function of the message: with *as_* it reads the body first,
    and raises BodyUnreadable if it cannot.
    """
    as_, function = listener.config.as_, listener.function
    if as_ is None:
        return listener
    read, both = reader(as_), takes_message(function)

    def arguments(message: MessageExt) -> tuple[Any, ...]:
        return (read(message.body), message) if both else (read(message.body),)

    return replace(listener, function=adapted(function, arguments))


def adapted(
    function: Callable[..., Any], arguments: Callable[..., tuple[Any, ...]]
) -> Callable[..., Any]:
    """Return a function that calls *function* with what *arguments* makes of its own arguments,
    async if *function* is.
    """

    def plain(*given: Any) -> Any:
        return function(*arguments(*given))

    async def on_the_loop(*given: Any) -> Any:
        return await function(*arguments(*given))

    return on_the_loop if is_async(function) else plain


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if a call returns a coroutine."""
    while isinstance(function, functools.partial):
        function = function.func
    # the method, not whether there is one
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


@explained
def listener(
    topic: str,
    *,
    group: str,
    tags: str = "*",
    sql: str | None = None,
    orderly: bool = False,
    broadcast: bool = False,
    batch: int = 1,
    threads: int = 20,
    consume_timeout_s: float = 900.0,
    max_retries: int | None = None,
    start: Start = "latest",
    suspend_s: float = 1.0,
    auto_commit: bool = True,
    as_: As[Any] | None = None,
    mode: Mode = "pull",
) -> Callable[[Callable[P, R]], Listener[P, R]]:
    """Make a function a listener: it is called with the messages of *topic*, as a member of the
    consumer group *group*.

    Returning None finishes a message; raising has it delivered again later. A plain function runs
    in a thread, an ``async def`` on the event loop; up to *threads* calls run at a time.

    - *tags* (``"paid || refunded"``) or *sql*, over the properties, choose messages.
    - *orderly*: the messages of a queue come one at a time, in order.
    - *batch* above 1: the function gets a list of up to that many messages.
    - *max_retries*: after so many retries a message goes to the dead-letter topic. Default: 16,
      unlimited for orderly listeners.
    - *consume_timeout_s*: a call that takes longer has failed (not if *orderly*).
    - *start*: where the group begins if it has no offset: "latest", "earliest" or a datetime.
    - *broadcast*: every member gets every message, keeps its progress in a local file, and drops
      what fails.
    - *as_*: the function gets the body as this dataclass, pydantic model, msgspec struct, or result
      of a function, and the message as well if it takes a second argument. A body that cannot be
      read counts as a failure.
    - *auto_commit* False: an orderly listener's progress moves only when it returns COMMIT, for all
      messages of the queue since the last time; after ROLLBACK they are delivered again.
    - *mode* "pop": the broker gives each message to one member on a lease, which is renewed while
      the function works; no member holds a queue. All members of a group pop, or all pull.

    Raises InvalidOption, also for a function that cannot be called this way, and InvalidExpression
    for bad SQL.
    """
    config = ListenerConfig(
        topic=topic,
        group=group,
        tags=tags,
        sql=sql,
        orderly=orderly,
        broadcast=broadcast,
        batch=batch,
        threads=threads,
        consume_timeout_s=consume_timeout_s,
        max_retries=max_retries,
        start=start,
        suspend_s=suspend_s,
        auto_commit=auto_commit,
        as_=as_,
        mode=mode,
    )
    warn_of_tags(tags)

    def decorate(function: Callable[P, R]) -> Listener[P, R]:
        name = getattr(function, "__qualname__", repr(function))
        _check_function(function, name, 1 if as_ is None else 2)
        return Listener(function, config, name)

    return decorate


def _check_function(function: Callable[..., Any], name: str, most: int) -> None:
    """Raise InvalidOption for a function that cannot be called with one argument, or up to *most*:
    the first message would show it too late.
    """
    if not callable(function):
        raise InvalidOption(f"a listener is a function, and {name} is none")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidOption(f"{name} yields: calling it would do nothing. A listener returns")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # some functions written in C do not tell
        return
    refusals = []
    for count in range(1, most + 1):
        try:
            signature.bind(*(None,) * count)
        except TypeError as exc:
            refusals.append(str(exc))
        else:
            return
    takes = (
        "the message" if most == 1 else "the value, and the message if it has a second parameter"
    )
    raise InvalidOption(
        f"{name}{signature} cannot be a listener ({refusals[-1]}): it is called with {takes}. "
        "A method needs its object first: ogive.listener(topic, group=...)(service.method)"
    )
