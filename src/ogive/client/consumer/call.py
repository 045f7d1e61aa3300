"""One call of user code: the boundary where any exception becomes a result."""

from collections.abc import Sequence
from contextvars import copy_context
from typing import Any

from ogive.client.consumer.outcome import Failure, Verdict, failed, judge
from ogive.client.hooks import await_in_fresh_context, must_pass, running_task
from ogive.client.listener import ROLLBACK, AnyListener, Later, Suspend
from ogive.client.trace import ConsumeObserver
from ogive.client.trace_record import CallEnd
from ogive.model import MessageExt


def call(
    listener: AnyListener, messages: Sequence[MessageExt], observer: ConsumeObserver | None = None
) -> Verdict:
    """Call a plain listener with the message, or with the list if it takes batches.

    None, or a Reply, for success.
    """
    seen = None if observer is None else observer.begun(messages)
    verdict: Verdict
    try:
        # call_in_fresh_context without its frame: this is for each message.
        answer = copy_context().run(
            listener.function, messages[0] if listener.config.batch == 1 else list(messages)
        )
    except BaseException as exc:  # noqa: BLE001
        # user code in our thread: even SystemExit must not end the thread
        verdict, end = failed(listener, messages, exc), CallEnd.EXCEPTION
    else:
        verdict, end = _judged(listener, messages, answer)
    if observer is not None:
        observer.ended(seen, messages, end, _done(messages, verdict))
    return verdict


async def call_async(
    listener: AnyListener, messages: Sequence[MessageExt], observer: ConsumeObserver | None = None
) -> Verdict:
    """The same for an async listener.

    Our own cancellation passes through; a CancelledError of the listener's own making is a failure.
    """
    seen, task = None if observer is None else observer.begun(messages), running_task()
    verdict: Verdict
    try:
        answer: Any = await await_in_fresh_context(
            listener.function, messages[0] if listener.config.batch == 1 else list(messages)
        )
    except BaseException as exc:
        # user code: any exception means "later", and must not end a worker
        if must_pass(exc, task):
            raise
        verdict, end = failed(listener, messages, exc), CallEnd.EXCEPTION
    else:
        verdict, end = _judged(listener, messages, answer)
    if observer is not None:
        observer.ended(seen, messages, end, _done(messages, verdict))
    return verdict


def _judged(
    listener: AnyListener, messages: Sequence[MessageExt], answer: Any
) -> tuple[Verdict, CallEnd]:
    if answer is None:
        return None, CallEnd.SUCCESS
    verdict = judge(listener, messages, answer)
    if not isinstance(verdict, Failure):
        return verdict, CallEnd.LATER if verdict is ROLLBACK else CallEnd.SUCCESS
    return verdict, CallEnd.LATER if isinstance(answer, Later | Suspend) else CallEnd.NONSENSE


def _done(messages: Sequence[MessageExt], verdict: Verdict) -> int:
    if isinstance(verdict, Failure):
        return verdict.done
    return 0 if verdict is ROLLBACK else len(messages)
