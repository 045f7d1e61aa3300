"""A message that a tool gives to a listener: outside of any queue, without progress, without
retries (CONSUME_MESSAGE_DIRECTLY).
"""

import asyncio
import time
from typing import Any

from ogive.client.consumer.outcome import judge
from ogive.client.hooks import await_in_fresh_context, call_in_fresh_context
from ogive.client.listener import AnyListener, OrderlyEnd
from ogive.model import MessageExt
from ogive.wire.bodies.running_info import ConsumeDirectlyResult, ConsumeResult


async def consume_directly(listener: AnyListener, message: MessageExt) -> ConsumeDirectlyResult:
    """Call the listener, a plain one in a thread beside those of its consumer, and tell what it
    made of the message.
    """
    begun = time.monotonic()
    answer, error = (
        await _try_async(listener, message)
        if listener.is_async
        else await asyncio.to_thread(_try, listener, message)
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


def _argument(listener: AnyListener, message: MessageExt) -> MessageExt | list[MessageExt]:
    return message if listener.config.batch == 1 else [message]


def _try(listener: AnyListener, message: MessageExt) -> tuple[Any, BaseException | None]:
    try:
        return call_in_fresh_context(listener.function, _argument(listener, message)), None
    except BaseException as exc:  # noqa: BLE001
        # user code: what it raised is the answer, also SystemExit
        return None, exc


async def _try_async(
    listener: AnyListener, message: MessageExt
) -> tuple[Any, BaseException | None]:
    try:
        return await await_in_fresh_context(listener.function, _argument(listener, message)), None
    except Exception as exc:  # noqa: BLE001  user code: what it raised is the answer
        return None, exc
