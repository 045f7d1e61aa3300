"""T21: delayed and timed messages over kills of the broker: none early, none lost, stored twice
only across a kill.
"""

import asyncio
import random
import time
from collections import defaultdict
from pathlib import Path

import pytest

import ogive
from ogive import aio
from ogive.errors import ResponseCode, TransportError
from tests.figures import figures
from tests.peers import DELAY_LEVELS, our_broker
from tests.raw_client import RawClient, unique_key

pytestmark = pytest.mark.waits(54)

TOPIC = "Alarms"
LEVELS_MS = [int(level.removesuffix("s")) * 1000 for level in DELAY_LEVELS.split()]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Sender:
    """Sends one message after another, each with the time before which it must not come; one that
    was not acknowledged is not counted.
    """

    def __init__(self, address: str, seed: int) -> None:
        self._address, self._chance = address, random.Random(seed)
        self._client: RawClient | None = None
        self.acknowledged: set[str] = set()
        self.kills = 0  # so far
        # key -> kills before it was sent
        self.kills_before: dict[str, int] = {}

    async def send(self, longest_ms: int) -> None:
        key, delay_ms = unique_key(), self._chance.randint(50, longest_ms)
        kind = self._chance.choice(("TIMER_DELIVER_MS", "TIMER_DELAY_MS", "DELAY"))
        now = now_ms()
        level = self._chance.randint(1, len(LEVELS_MS))
        due_ms = now + (LEVELS_MS[level - 1] if kind == "DELAY" else delay_ms)
        self.kills_before[key] = self.kills
        value = {"TIMER_DELIVER_MS": due_ms, "TIMER_DELAY_MS": delay_ms, "DELAY": level}[kind]
        try:
            self._client = self._client or await RawClient.open(self._address)
            answer = await self._client.start_send(
                TOPIC, str(due_ms).encode(), {kind: str(value), "UNIQ_KEY": key}
            )
        except (TransportError, OSError):
            await self.close()
            # the broker is away: leave the processor to its restart
            await asyncio.sleep(0.02)
        else:
            assert answer.code == ResponseCode.SUCCESS, answer
            self.acknowledged.add(key)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.__aexit__(None, None, None)
            self._client = None


@pytest.mark.rel
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("messages", "kills", "longest_ms"),
    [
        pytest.param(500, 0, 1_000, marks=pytest.mark.quick, id="no kill"),
        pytest.param(500, 5, 3_000, marks=pytest.mark.quick, id="quick"),
        pytest.param(5_000, 30, 10_000, marks=pytest.mark.nightly, id="long"),
    ],
)
async def test_kill_loses_no_timed_message_and_brings_none_early(
    tmp_path: Path, messages: int, kills: int, longest_ms: int
) -> None:
    """Each kill may store a message once more, and deliver again what the group had not told yet;
    without one, each comes once.
    """
    early: list[int] = []
    restarted_ms = late_ms = late_up_ms = 0
    # key -> the queue offsets at which it came
    received: defaultdict[str, list[int]] = defaultdict(list)

    async def take(message: ogive.MessageExt) -> None:
        nonlocal late_ms, late_up_ms
        now, due_ms, places = now_ms(), int(message.body), received[message.properties["UNIQ_KEY"]]
        if now < due_ms:
            early.append(due_ms - now)
        if not places:
            late_ms, late_up_ms = (
                max(late_ms, now - due_ms),
                max(late_up_ms, now - max(due_ms, restarted_ms)),
            )
        places.append(message.queue_offset)

    seed = 20130101
    chance = random.Random(seed)
    listener = ogive.listener(TOPIC, group="alarm-clock", start="earliest")(take)
    with (
        figures("T21", nightly=kills > 5, seed=seed, faults=kills) as line,
        our_broker(tmp_path) as broker,
    ):
        sender = Sender(broker.address, seed)
        async with aio.Admin(broker.name_server) as admin:
            # before the consumer, which is not late with the first ones then
            await admin.create_topic(TOPIC, queues=1)
        async with (
            aio.Admin(broker.name_server) as admin,
            aio.PushConsumer(listener, name_server=broker.name_server),
        ):

            async def produce() -> None:
                while len(sender.acknowledged) < messages:
                    await sender.send(longest_ms)

            producing = asyncio.create_task(produce())
            for _ in range(kills):
                await asyncio.sleep(chance.uniform(0.1, 0.8))
                await asyncio.to_thread(broker.kill)
                sender.kills += 1
                await asyncio.to_thread(broker.start)
                restarted_ms = now_ms()
            await producing
            await sender.close()
            async with asyncio.timeout(60):
                while not sender.acknowledged <= received.keys():
                    await asyncio.sleep(0.05)
                [queue] = await admin.offsets(TOPIC)
                # all that was stored, also a second time
                while len(set().union(*received.values())) < queue.max_offset:
                    await asyncio.sleep(0.05)
        line.update(
            attempts=messages,
            acknowledged=len(sender.acknowledged),
            received=len(received),
            early=len(early),
        )
        line.update(
            lost=len(sender.acknowledged - received.keys()),
            duplicates=sum(len(places) - 1 for places in received.values()),
        )
        line.update(stored_again=sum(len(set(places)) - 1 for places in received.values()))
        line.update(
            latest_after_due_s=late_ms / 1000, latest_after_due_or_last_restart_s=late_up_ms / 1000
        )
    assert early == []
    assert [
        key
        for key, places in received.items()
        if len(set(places)) - 1 > kills - sender.kills_before[key]
    ] == []
    assert kills or line["duplicates"] == 0
