"""T30: a group comes back to a long backlog, most of it not in memory, while others send and
consume what is new.
"""

import asyncio
import os
import re
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import ogive
from bench.store_scale import in_a_process
from ogive import aio
from ogive.model import MessageExt
from ogive.testing import Broker
from tests.figures import figures, p99_ms

pytestmark = [pytest.mark.rel, pytest.mark.apart(60), pytest.mark.nightly, pytest.mark.timeout(900)]

BACKLOG, GROUP, HOT, LONE = "Topic0", "returning", "Hot", "Lone"
COUNT, ALONE, LEAST_TURNS, MEMORY_MIB = 1_000_000, 200, 50, 300
ALONE_S = 3.0
# new messages whose rate is measured, and how many of them are on their way
LIVE, AT_A_TIME = 20_000, 200


# Sends one message after the other, in a process of its own: beside members that catch up, its
# waits would be for their work.
SENDER = """
import sys, time
import ogive

with ogive.Producer(sys.argv[1]) as producer:
    while True:
        began = time.monotonic()
        producer.send(sys.argv[2], b"x" * 256)
        print(began, time.monotonic() - began, flush=True)
        time.sleep(0.005)
"""


def forget(folder: Path) -> None:
    """The operating system keeps nothing of these files in memory."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def live_body(number: int) -> bytes:
    return b"%0256d" % number


def peak_mib(pid: int) -> int:
    [kib] = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kib) // 1024


class Reader:
    """A member of the group that came back, and the others of its kind: which of the messages
    came.
    """

    def __init__(self, count: int) -> None:
        self.came = bytearray(count)
        self.left = count
        self.again = 0
        self.gone_on, self.done = asyncio.Event(), asyncio.Event()

    async def take(self, message: MessageExt) -> None:
        number = int(message.keys[0].removeprefix("key-"))
        self.again += self.came[number]
        self.left -= not self.came[number]
        self.came[number] = 1
        self.gone_on.set()
        if not self.left:
            self.done.set()

    def member(self, server: str) -> aio.PushConsumer:
        return aio.PushConsumer(
            ogive.listener(BACKLOG, group=GROUP, start="earliest", threads=8)(self.take),
            name_server=server,
        )


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="the peak of a process's memory is read from /proc",
)
async def test_a_group_that_comes_back_to_a_backlog_gets_all_of_it_and_holds_up_nobody(
    tmp_path: Path,
) -> None:
    """Beside four members that catch up a message is sent, and the next one when a consumer has it:
    who reads old messages must not make that wait for the end of them. Every message of both kinds
    comes, and progress stands at the end.
    """
    await asyncio.to_thread(in_a_process, "fill", tmp_path, COUNT, 1, 256)
    forget(tmp_path)
    reader, got = Reader(COUNT), asyncio.Event()
    hot: list[bytes] = []

    async def take_hot(message: MessageExt) -> None:
        hot.append(message.body)
        got.set()

    async with AsyncExitStack() as stack:
        line = stack.enter_context(figures("T30 catch-up", nightly=True, attempts=COUNT))
        broker = stack.enter_context(Broker(data=tmp_path))
        admin = await stack.enter_async_context(aio.Admin(broker.name_server))
        for topic in (BACKLOG, HOT, LONE):
            await admin.create_topic(topic, queues=4)
        # it was here once
        async with reader.member(broker.name_server):
            await reader.gone_on.wait()
        producer = await stack.enter_async_context(aio.Producer(broker.name_server))
        live = aio.PushConsumer(
            ogive.listener(HOT, group="live", start="earliest")(take_hot),
            name_server=broker.name_server,
        )
        await stack.enter_async_context(live)

        async def turn(body: bytes) -> None:
            """Returns when a new message has come."""
            got.clear()
            # raises what the broker refuses
            await producer.send(HOT, body)
            await got.wait()

        async def live_s() -> float:
            """Seconds from the first send of many new messages, of the old ones' size, until all
            have come.
            """
            began = time.monotonic()
            for first in range(0, LIVE, AT_A_TIME):
                await asyncio.gather(
                    *(
                        producer.send(HOT, live_body(number))
                        for number in range(first, first + AT_A_TIME)
                    )
                )
            async with asyncio.timeout(60.0):
                while len(hot) < LIVE:
                    await asyncio.sleep(0.01)
            return time.monotonic() - began

        line["live_a_second"] = round(LIVE / await live_s())
        sent = stack.enter_context((tmp_path / "sent").open("wb"))
        sender = subprocess.Popen(
            [sys.executable, "-c", SENDER, broker.name_server, LONE], stdout=sent
        )
        stack.callback(sender.wait)
        stack.callback(sender.kill)
        for number in range(ALONE):
            await turn(b"alone %d" % number)
        await asyncio.sleep(ALONE_S)
        began = time.monotonic()
        for _ in range(4):
            await stack.enter_async_context(reader.member(broker.name_server))
        turns = 0
        while not reader.done.is_set():
            await turn(b"%d" % turns)
            turns += 1
        ended = time.monotonic()
        line.update(
            received=sum(reader.came), acknowledged=COUNT, lost=reader.left, duplicates=reader.again
        )
        line.update(messages_a_second=round(COUNT / (ended - began)), new_messages_beside=turns)
        sends = [
            tuple(map(float, row.split()))
            for row in (tmp_path / "sent").read_bytes().split(b"\n")[:-1]
        ]
        line["send_p99_alone_ms"] = p99_ms([took for at, took in sends if at < began])
        line["send_p99_beside_ms"] = p99_ms([took for at, took in sends if began <= at < ended])
        line["broker_resident_mib"] = peak_mib(broker.pid)
        async with asyncio.timeout(60.0):
            while sum(row.lag for row in await admin.lag(GROUP, BACKLOG, members=False)):
                await asyncio.sleep(0.2)
    assert reader.came == b"\x01" * COUNT
    assert set(hot[:LIVE]) == {live_body(number) for number in range(LIVE)}
    assert set(hot[LIVE:]) == {
        *(b"alone %d" % number for number in range(ALONE)),
        *(b"%d" % number for number in range(turns)),
    }
    assert turns > LEAST_TURNS
    assert line["broker_resident_mib"] <= MEMORY_MIB
