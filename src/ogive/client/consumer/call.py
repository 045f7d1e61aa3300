"""One call of user code: the boundary where any exception becomes a result."""

import asyncio
from collections.abc import Sequence
from typing import Any

from ogive.client.consumer.outcome import Failure, failed, judge
from ogive.client.listener import AnyListener, Reply
from ogive.model import MessageExt


def call(listener: AnyListener, messages: Sequence[MessageExt]) -> Failure | Reply | None:
    """Call a plain listener with the message, or with the list if it takes batches. None, or a Reply, for success."""
    try:
        answer = listener.function(messages[0] if listener.config.batch == 1 else list(messages))
    except BaseException as exc:  # noqa: BLE001  user code in our thread: even SystemExit must not end the thread
        return failed(listener, messages, exc)
    return None if answer is None else judge(listener, messages, answer)


async def call_async(listener: AnyListener, messages: Sequence[MessageExt]) -> Failure | Reply | None:
    """The same for an async listener. Our own cancellation passes through; a CancelledError of the listener's own making is a failure."""
    try:
        answer: Any = await listener.function(messages[0] if listener.config.batch == 1 else list(messages))
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return failed(listener, messages, exc)
    except Exception as exc:  # noqa: BLE001  user code: any exception means "later"
        return failed(listener, messages, exc)
    return None if answer is None else judge(listener, messages, answer)
