"""Two consumer groups, in a process of their own: ``python -m examples.demo.groups
HOST:PORT``.

Reports its totals as a line of JSON four times a second, and a last time after the end of its
standard input, which asks it to leave.
"""

import asyncio
import dataclasses
import json
import sys
import time

import ogive
from examples.demo import names
from examples.demo.listening import CancellationDesk, OrderCheck
from ogive import aio
from ogive.client.listener import AnyListener, ConsumeResult
from ogive.transport.event_loop import new_event_loop

_REPORT_PERIOD_S = 0.25


def listeners(order: OrderCheck, desk: CancellationDesk) -> tuple[AnyListener, AnyListener]:
    """Return the listener of each group."""

    @ogive.listener(
        names.FLIGHTS, group=names.ORDER_GROUP, orderly=True, batch=256, start="earliest"
    )
    async def check_order(messages: list[ogive.MessageExt]) -> None:
        for message in messages:
            order.see(message.json())

    @ogive.listener(
        names.FLIGHTS,
        group=names.CANCELLATION_GROUP,
        tags="cancelled",
        max_retries=names.MAX_RETRIES,
        start="earliest",
    )
    async def take_cancellation(message: ogive.MessageExt) -> ConsumeResult:
        return None if desk.take(message.json(), message.reconsume_times) else ogive.LATER

    return check_order, take_cancellation


async def run(name_server: str) -> None:
    """Consume until the end of standard input."""
    order, desk = OrderCheck(), CancellationDesk()

    def report() -> None:
        totals = {
            "at": time.time(),
            "in_order": dataclasses.asdict(order.seen),
            "cancellations": dataclasses.asdict(desk.seen),
        }
        print(json.dumps(totals), flush=True)

    async with aio.PushConsumer(*listeners(order, desk), name_server=name_server):
        end = asyncio.create_task(_end_of_input())
        while not end.done():
            report()
            await asyncio.wait((end,), timeout=_REPORT_PERIOD_S)
    report()


async def _end_of_input() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    await reader.read()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run(sys.argv[1]))
