"""Wrappers around listener calls. Source: ConsumeMessageHook.java, ConsumeReturnType.java, 5.3.

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

import enum
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ogive.client.consumer.outcome import read
from ogive.client.listener import COMMIT, AnyListener
from ogive.model import MessageExt, MessageQueue


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
    topic: str
    queue: MessageQueue
    messages: Sequence[MessageExt]
    listener: str
    orderly: bool
    properties: dict[str, Any] = field(default_factory=dict)
    outcome: Outcome | None = None


Interceptor = Callable[[ListenerCall], AbstractContextManager[Any]]


def intercepted(listener: AnyListener, interceptors: Sequence[Interceptor]) -> AnyListener:
    """The same listener with *interceptors* around its function."""
    if not interceptors:
        return listener

    @contextmanager
    def around(argument: Any) -> Iterator[list[Any]]:
        """Enter them all; the block appends the listener's answer."""
        call = _call_of(listener, argument)
        with ExitStack() as stack:
            for interceptor in interceptors:
                stack.enter_context(interceptor(call))
            answers: list[Any] = []
            begun = time.monotonic()
            try:
                yield answers
            except BaseException:
                call.outcome = Outcome.RAISED
                raise
            call.outcome = _outcome(
                listener, len(call.messages), answers[0], time.monotonic() - begun
            )

    def plain(argument: Any) -> Any:
        answer = None
        with around(argument) as answers:
            answer = listener.function(argument)
            answers.append(answer)
        return answer

    async def on_the_loop(argument: Any) -> Any:
        answer = None
        with around(argument) as answers:
            answer = await listener.function(argument)
            answers.append(answer)
        return answer

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
