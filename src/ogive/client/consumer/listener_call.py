"""Calls of listeners: decoding, interceptors, namespaces, and the outcome for them.

Source: ConsumeMessageHook.java, ConsumeReturnType.java, 5.3.

A concurrent or orderly service, a task of Spark and a tool call a listener alike: in a copy of the
context, with names and messages as the application knows them, and with interceptors around. Any
exception of user code becomes a result here.

An interceptor is a function that makes a context manager for one call, most simply with
``contextlib.contextmanager``:

    @contextmanager
    def timed(call):
        begun = time.monotonic()
        yield
        log.info("%s: %s after %.3f s", call.queue, call.outcome, time.monotonic() - begun)

The first of several is the outermost. What the listener raises passes through them; one that
suppresses it makes the messages finished, and what one raises itself counts as raised by the
listener.
"""

import asyncio
import enum
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Any

from ogive.client.consumer.outcome import Failure, Verdict, failed, judge, read
from ogive.client.instrumentation import (
    await_in_fresh_context,
    instrumentation,
    must_pass,
    running_task,
)
from ogive.client.listener import (
    COMMIT,
    ROLLBACK,
    AnyListener,
    Later,
    OrderlyEnd,
    Suspend,
    adapted,
    decoded,
)
from ogive.client.namespace import Namespace
from ogive.client.trace import CallEnd, ConsumeObserver
from ogive.errors import IllegalStateError
from ogive.model import MessageExt, MessageQueue
from ogive.wire.bodies.clients import ConsumeDirectlyResult, ConsumeResult

# --- wrapping -------------------------------------------------------------------------------------


class Outcome(enum.Enum):
    """Outcome of a call.

    FAILED: it returned a failure. TIMED_OUT: it took longer than consume_timeout_s, whatever it
    returned.
    """

    SUCCESS = enum.auto()
    FAILED = enum.auto()
    RAISED = enum.auto()
    TIMED_OUT = enum.auto()


@dataclass(slots=True, eq=False)
class ListenerCall:
    """One call of a listener, as interceptors see it.

    *properties* are for their own use; *outcome* is None until the call has ended.
    """

    group: str
    """Consumer group."""
    topic: str
    """Topic of the subscription."""
    queue: MessageQueue
    """Queue that the messages are from."""
    messages: Sequence[MessageExt]
    """Messages of this call; one, unless the listener takes batches."""
    listener: str
    """Name of the listener."""
    orderly: bool
    """True for an orderly listener."""
    properties: dict[str, Any] = field(default_factory=dict)
    """For the interceptors' own use."""
    outcome: Outcome | None = None
    """Outcome of the call; None until it has ended."""


Interceptor = Callable[[ListenerCall], AbstractContextManager[Any]]


def bound(
    listener: AnyListener, namespace: Namespace, interceptors: Sequence[Interceptor] = ()
) -> AnyListener:
    """Return *listener* as a member calls it: its settings have the names on the wire, and its
    function takes messages that were pulled.
    """
    own = None
    if listener.function is not no_function:
        own = _instrumenting(listener, namespace, inherits=False)
    if own is not None:
        interceptors = (own, *interceptors)
    return _in_namespace(intercepted(decoded(listener), interceptors), namespace)


def around_message(
    listener: AnyListener, namespace: Namespace
) -> Callable[[MessageExt], AbstractContextManager[object]]:
    """Return a function that makes the context manager in which an application processes one
    message of an iterated consumer.
    """
    own = _instrumenting(listener, namespace, inherits=True)
    if own is None:
        return nullcontext
    group = namespace.strip(listener.config.group)

    @contextmanager
    def around(message: MessageExt) -> Iterator[None]:
        call = ListenerCall(group, message.topic, message.queue, (message,), listener.name, False)
        with own(call):
            try:
                yield
            except BaseException:
                call.outcome = Outcome.RAISED
                raise
            call.outcome = Outcome.SUCCESS

    return around


def _instrumenting(
    listener: AnyListener, namespace: Namespace, *, inherits: bool
) -> Interceptor | None:
    """Return the instrumentation's interceptor of *listener*, or None."""
    observer = instrumentation()
    if observer is None:
        return None
    return observer.interceptor(
        in_batches=listener.config.batch > 1,
        broadcast=listener.config.broadcast,
        namespace=namespace.name,
        inherits=inherits,
    )


def no_function(*_: Any) -> None:
    """Take the place of a listener that an iterated consumer does not have."""
    raise IllegalStateError("an iterated consumer has no listener")


def _in_namespace(listener: AnyListener, namespace: Namespace) -> AnyListener:
    """Return the same listener if there is no namespace."""
    if not namespace:
        return listener
    config = replace(
        listener.config,
        topic=namespace.wrap(listener.config.topic),
        group=namespace.wrap(listener.config.group),
    )
    if listener.function is no_function:
        return replace(listener, config=config)

    def bare(argument: MessageExt | Sequence[MessageExt]) -> tuple[Any]:
        if isinstance(argument, MessageExt):
            return (namespace.strip_message(argument),)
        return ([namespace.strip_message(message) for message in argument],)

    return replace(listener, config=config, function=adapted(listener.function, bare))


def intercepted(listener: AnyListener, interceptors: Sequence[Interceptor]) -> AnyListener:
    """Return the same listener with *interceptors* around its function."""
    if not interceptors:
        return listener

    @contextmanager
    def around(argument: Any) -> Iterator[Callable[[Any], Any]]:
        """Enter all interceptors, and yield a function through which the block passes the
        answer.
        """
        call = _call_of(listener, argument)

        def end(answer: Any) -> Any:
            call.outcome = _outcome(listener, len(call.messages), answer, time.monotonic() - begun)
            return answer

        with ExitStack() as stack:
            for interceptor in interceptors:
                stack.enter_context(interceptor(call))
            begun = time.monotonic()
            try:
                yield end
            except BaseException:
                call.outcome = Outcome.RAISED
                raise

    def plain(argument: Any) -> Any:
        with around(argument) as end:
            return end(listener.function(argument))
        return None

    async def on_the_loop(argument: Any) -> Any:
        with around(argument) as end:
            return end(await listener.function(argument))
        return None

    return replace(listener, function=on_the_loop if listener.is_async else plain)


def _call_of(listener: AnyListener, argument: Any) -> ListenerCall:
    messages: Sequence[MessageExt] = (argument,) if listener.config.batch == 1 else tuple(argument)
    first = messages[0]
    return ListenerCall(
        listener.config.group,
        first.topic,
        first.queue,
        messages,
        listener.name,
        listener.config.orderly,
    )


def _outcome(listener: AnyListener, count: int, answer: Any, seconds: float) -> Outcome:
    if seconds >= listener.config.consume_timeout_s:
        return Outcome.TIMED_OUT
    failure, _ = read(listener, count, answer)
    return Outcome.SUCCESS if failure is None or failure is COMMIT else Outcome.FAILED


# --- calling --------------------------------------------------------------------------------------


def call(
    listener: AnyListener, messages: Sequence[MessageExt], observer: ConsumeObserver | None = None
) -> Verdict:
    """Call a plain listener with the message, or with the list if it takes batches.

    Return None, or a Reply, for success.
    """
    seen = None if observer is None else observer.begun(messages)
    argument = messages[0] if listener.config.batch == 1 else list(messages)
    answer: Any = None
    error: BaseException | None = None
    try:
        # call_in_fresh_context and _try without their frames: this is for each message
        answer = copy_context().run(listener.function, argument)
    except BaseException as exc:  # noqa: BLE001
        # user code in our thread: even SystemExit must not end the thread
        error = exc
    if answer is None and error is None and observer is None:
        # the usual case
        return None
    return _verdict(listener, messages, answer, error, observer, seen)


async def call_async(
    listener: AnyListener, messages: Sequence[MessageExt], observer: ConsumeObserver | None = None
) -> Verdict:
    """Call an async listener. Our own cancellation passes through."""
    seen = None if observer is None else observer.begun(messages)
    answer, error = await _try_async(listener, messages)
    return _verdict(listener, messages, answer, error, observer, seen)


def _try(listener: AnyListener, messages: Sequence[MessageExt]) -> tuple[Any, BaseException | None]:
    """Return the listener's answer, and what it raised."""
    argument = messages[0] if listener.config.batch == 1 else list(messages)
    try:
        return copy_context().run(listener.function, argument), None
    except BaseException as exc:  # noqa: BLE001
        # user code: even SystemExit must not end the thread
        return None, exc


async def _try_async(
    listener: AnyListener, messages: Sequence[MessageExt]
) -> tuple[Any, BaseException | None]:
    """Return the listener's answer, and what it raised: also a CancelledError of its own making."""
    argument = messages[0] if listener.config.batch == 1 else list(messages)
    task = running_task()
    try:
        return await await_in_fresh_context(listener.function, argument), None
    except BaseException as exc:
        # user code: any exception means "later", and must not end a worker
        if must_pass(exc, task):
            raise
        return None, exc


def _verdict(
    listener: AnyListener,
    messages: Sequence[MessageExt],
    answer: Any,
    error: BaseException | None,
    observer: ConsumeObserver | None,
    seen: Any,
) -> Verdict:
    verdict: Verdict = None
    end, done, why = CallEnd.SUCCESS, len(messages), ""
    if error is not None:
        verdict, end = failed(listener, messages, error), CallEnd.EXCEPTION
    elif answer is not None:
        verdict = judge(listener, messages, answer)
    if isinstance(verdict, Failure):
        done, why = verdict.done, verdict.why
        if error is None:
            end = CallEnd.LATER if isinstance(answer, Later | Suspend) else CallEnd.NONSENSE
    elif verdict is ROLLBACK:
        end, done, why = CallEnd.LATER, 0, "its listener rolled it back"
    if observer is not None:
        observer.ended(seen, messages, end, done, why)
    return verdict


async def consume_directly(listener: AnyListener, message: MessageExt) -> ConsumeDirectlyResult:
    """Call a listener with a message that a tool brings (CONSUME_MESSAGE_DIRECTLY), and report the
    result: outside of any queue, without progress and without retries.

    A plain listener runs in a thread beside those of its consumer.
    """
    begun = time.monotonic()
    answer, error = (
        await _try_async(listener, [message])
        if listener.is_async
        else await asyncio.to_thread(_try, listener, [message])
    )
    result, remark = ConsumeResult.SUCCESS, ""
    if error is not None:
        result, remark = ConsumeResult.THROW_EXCEPTION, repr(error)
    elif isinstance(verdict := judge(listener, [message], answer), OrderlyEnd):
        result = ConsumeResult[verdict.name]
    elif verdict is not None:
        result, remark = ConsumeResult.LATER, repr(answer)
    spent_ms = int((time.monotonic() - begun) * 1000)
    return ConsumeDirectlyResult(
        result=result, orderly=listener.config.orderly, spent_ms=spent_ms, remark=remark
    )
