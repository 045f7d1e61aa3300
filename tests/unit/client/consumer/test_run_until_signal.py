"""A signal while listeners run, also one that the event loop is too busy to hear."""

import asyncio
import os
import signal
from typing import cast

from ogive.client.consumer.push_consumer import PushConsumer, run_until_signal


class Consumer:
    """A consumer whose start blocks the event loop, and gets a signal meanwhile."""

    def __init__(self, asked: list[int]) -> None:
        self._asked = asked
        self.heard = 0
        self.closed = 0

    async def start(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        # the loop has not turned since
        self.heard = len(self._asked)

    async def wait(self) -> None:
        # until the signal
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed += 1


async def test_a_signal_is_told_at_once_and_handled_when_the_loop_turns() -> None:
    before = signal.getsignal(signal.SIGTERM)
    asked: list[int] = []
    consumer = Consumer(asked)
    await run_until_signal(cast("PushConsumer", consumer), at_once=lambda: asked.append(1))
    assert (consumer.heard, asked, consumer.closed) == (1, [1], 1)
    assert signal.getsignal(signal.SIGTERM) is before
