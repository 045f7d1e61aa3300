"""A scripted broker for code that blocks."""

import asyncio
import ssl as tls
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ogive.testing.fake_broker import WAIT_S, FakeBroker


class ThreadedBroker(FakeBroker):
    """A scripted broker that other threads may tell to release what it holds."""

    loop: asyncio.AbstractEventLoop

    def release(self, code: int) -> None:
        self.loop.call_soon_threadsafe(super().release, code)


@contextmanager
def on_a_thread(ssl: tls.SSLContext | None = None) -> Iterator[FakeBroker]:
    """A scripted broker on a loop and thread of its own; *Orders* has one queue."""
    ready, done = threading.Event(), threading.Event()
    made: list[FakeBroker] = []

    async def serve() -> None:
        async with ThreadedBroker({"Orders": 1}, ssl=ssl) as fake:
            fake.loop = asyncio.get_running_loop()
            made.append(fake)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(WAIT_S)
        yield made[0]
    finally:
        done.set()
        thread.join(WAIT_S)
