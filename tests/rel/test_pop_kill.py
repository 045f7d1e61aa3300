"""A broker killed again and again while messages are popped loses none, and gives none too early.

A message may come twice where the broker was killed while it stored a copy.
"""

import asyncio
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ogive.errors import OgiveError
from ogive.testing import Broker
from ogive.wire.codes import RequestCode
from tests.figures import figures
from tests.peers import our_broker
from tests.pop import acknowledging, leased, popping
from tests.raw_client import RawClient

pytestmark = pytest.mark.waits(60)

KILLS = 5
CLIENTS = 3
INVISIBLE_MS = (300, 3_000)


@dataclass(slots=True)
class Seen:
    """What was stored, given out and acknowledged; kept in the process that is never killed."""

    chance: random.Random
    stored: set[bytes] = field(default_factory=set)
    # an answer may be lost with the broker
    asked: set[bytes] = field(default_factory=set)
    given: dict[bytes, int] = field(default_factory=dict)
    # not to be given out again as the same copy before; by place
    until: dict[tuple[int, int, int], float] = field(default_factory=dict)
    early: list[bytes] = field(default_factory=list)
    number: int = 0

    async def pop(self, client: RawClient, invisible_ms: int, poll_ms: int, share: float) -> int:
        """Take messages, and acknowledge a share of them. Return how many came."""
        before = time.monotonic()
        fields = popping(invisibleTime=invisible_ms, pollTime=poll_ms, maxMsgNums=8)
        answer = await client.call(RequestCode.POP_MESSAGE, **fields)
        after = time.monotonic()
        if answer.code:
            return 0
        found = leased(answer)
        for message, handle in found:
            place = (handle.flag, handle.queue_id, handle.offset)
            if after < self.until.get(place, 0.0):
                self.early.append(message.body)
            self.until[place] = before + invisible_ms / 1000
            self.given[message.body] = self.given.get(message.body, 0) + 1
            if self.chance.random() < share:
                self.asked.add(message.body)
                topic = "%RETRY%G_T" if handle.flag else "T"
                await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(handle, topic))
        return len(found)

    async def work(self, address: str) -> None:
        """Send and pop until the broker is gone."""
        try:
            async with await RawClient.open(address) as client:
                while True:
                    for _ in range(5):
                        self.number += 1
                        body = b"%d" % self.number
                        await client.send("T", body, queue=self.chance.randrange(4))
                        self.stored.add(body)
                    await self.pop(client, self.chance.choice(INVISIBLE_MS), 0, 0.6)
        except OgiveError:
            pass


@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_no_popped_message_is_lost_or_comes_too_early(tmp_path: Path, flush: str) -> None:
    chance = random.Random(7)
    seen, broker = Seen(chance), our_broker(tmp_path, flush=flush)  # type: ignore[arg-type]
    await asyncio.to_thread(broker.start)
    try:
        await kill_again_and_again(broker, seen)
        async with await RawClient.open(broker.address) as client:
            async with asyncio.timeout(60):
                while seen.stored - seen.asked:
                    await seen.pop(client, 60_000, 1_000, 1.0)
    finally:
        broker.stop()
    with figures("popped under kills", flush=flush) as line:
        line["stored"], line["given"] = len(seen.stored), sum(seen.given.values())
    assert seen.early == []


async def kill_again_and_again(broker: Broker, seen: Seen) -> None:
    for _ in range(KILLS):
        tasks = [asyncio.create_task(seen.work(broker.address)) for _ in range(CLIENTS)]
        await asyncio.sleep(seen.chance.uniform(0.3, 1.0))
        broker.kill()
        await asyncio.gather(*tasks)
        await asyncio.to_thread(broker.start)
