"""T13: whatever is done to the machine's clock, nothing is removed or delivered early, and no time
in the log goes back.
"""

import asyncio
import time
from pathlib import Path

import pytest

from ogive.broker import Broker, BrokerConfig, startup
from ogive.store.retention import RetentionConfig
from tests.figures import figures
from tests.raw_client import RawClient, messages, unique_key
from tests.stores import read_queue

pytestmark = pytest.mark.rel

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
JUMPS = {
    "an hour back": -HOUR_MS,
    "an hour on": HOUR_MS,
    "a millisecond back": -1,
    "ten years on": 10 * YEAR_MS,
    "to 1970": None,
    "a millisecond back in 1970": -1,
    "to 2038": None,
    "back to today": None,
}
BACKWARDS = -5 * 60_000
DEADLINE_S = 60.0
# times are whole milliseconds
CLOCK_STEP_S = 0.001


class Wall:
    """The machine's clock, and what is done to it."""

    def __init__(self) -> None:
        self.shift_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.shift_ms

    def jump(self, name: str) -> None:
        by = JUMPS[name]
        if by is not None:
            self.shift_ms += by
        else:
            target = {"to 1970": 1, "to 2038": 2**31 * 1000}.get(name, time.time_ns() // 1_000_000)
            self.shift_ms = target - time.time_ns() // 1_000_000


@pytest.mark.parametrize(
    ("waits", "delay_s"),
    [
        pytest.param({"TIMER_DELAY_MS": "50"}, 0.05, marks=pytest.mark.quick, id="timer"),
        pytest.param({"DELAY": "1"}, 1.0, marks=pytest.mark.nightly, id="delay level"),
    ],
)
async def test_jumps_of_the_clock_lose_and_shorten_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: dict[str, str], delay_s: float
) -> None:
    """After each jump messages are sent and one is delayed; while it waits the clock is set back
    once more. In 1970 the broker restarts.
    """
    wall = Wall()
    monkeypatch.setattr(startup, "now_ms", wall)
    keep = RetentionConfig(keep_s=3600.0, hours=tuple(range(24)))
    config = BrokerConfig(data=tmp_path / "store", port=0, segment_bytes=128 * 1024, retention=keep)
    server = Broker(config)
    await server.start()
    sent, early = 0, []
    with figures("T13", nightly="DELAY" in waits, faults=2 * len(JUMPS)) as line:
        for number, name in enumerate(JUMPS):
            wall.jump(name)
            async with await RawClient.open(server.address) as client:
                for _ in range(3):
                    await client.send("T", bytes(30_000))
                    sent += 1
                began = time.monotonic()
                await client.send("Later", b"%d" % number, waits | {"UNIQ_KEY": unique_key()})
                wall.shift_ms += BACKWARDS
                async with asyncio.timeout(DEADLINE_S):
                    while server.context.store.max_offset("Later", 0) == number:
                        await asyncio.sleep(0.001)
                if time.monotonic() - began < delay_s - CLOCK_STEP_S:
                    early.append(f"{name}: after {time.monotonic() - began:.3f} s")
                [message] = messages(await client.pull("G", "Later", number))
                assert message.body == b"%d" % number
                wall.shift_ms -= BACKWARDS
            await server.context.retention.run()
            assert server.context.store.stats().commitlog_start == 0
            if name == "to 1970":
                await server.stop()
                server = Broker(config)
                await server.start()
        store = server.context.store
        records = [
            record
            for topic, queue in list(store.queues)
            for record in read_queue(store, topic, queue)
        ]
        line.update(attempts=sent + len(JUMPS), acknowledged=sent + len(JUMPS), early=len(early))
        line.update(
            received=store.max_offset("T", 0) + store.max_offset("Later", 0),
            lost=sent - store.max_offset("T", 0),
        )
    assert early == []
    assert (store.max_offset("T", 0), store.max_offset("Later", 0)) == (sent, len(JUMPS))
    stamps = [
        record.store_timestamp_ms
        for record in sorted(records, key=lambda record: record.commitlog_offset)
    ]
    assert stamps == sorted(stamps)
    await server.stop()


@pytest.mark.quick
async def test_a_time_of_day_is_kept_after_the_clock_was_set_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock was an hour fast, and is set back: what is sent for a time comes when the machine's
    clock says so, also after a restart.
    """
    wall = Wall()
    monkeypatch.setattr(startup, "now_ms", wall)
    config = BrokerConfig(data=tmp_path / "store", port=0, segment_bytes=128 * 1024)
    early = []
    wall.jump("an hour on")
    for number in range(3):
        server = Broker(config)
        await server.start()
        async with await RawClient.open(server.address) as client:
            await client.send("T", b"x")
            if not number:
                wall.jump("an hour back")
            due_ms = wall() + 300
            await client.send(
                "Later", b"%d" % number, {"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": unique_key()}
            )
            if number == 1:
                # while it waits
                wall.shift_ms -= 100
            async with asyncio.timeout(DEADLINE_S):
                while server.context.store.max_offset("Later", 0) == number:
                    await asyncio.sleep(0.001)
            if wall() < due_ms:
                early.append(f"start {number}: {due_ms - wall()} ms")
        await server.stop()
    assert early == []


@pytest.mark.quick
@pytest.mark.parametrize(
    "waits", [{"TIMER_DELAY_MS": "1800000"}, {"DELAY": "16"}], ids=["timer", "delay level"]
)
async def test_what_became_due_while_the_machine_slept_comes_when_it_wakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: dict[str, str]
) -> None:
    """A suspended machine: its clock leaps by an hour, and no timer of the process has moved.

    Half an hour's delay is over then.
    """
    wall = Wall()
    monkeypatch.setattr(startup, "now_ms", wall)
    keep = RetentionConfig(keep_s=3600.0, hours=tuple(range(24)))
    server = Broker(
        BrokerConfig(data=tmp_path / "store", port=0, segment_bytes=128 * 1024, retention=keep)
    )
    await server.start()
    async with await RawClient.open(server.address) as client:
        for _ in range(10):
            await client.send("T", bytes(30_000))
        await client.send("Later", b"x", waits | {"UNIQ_KEY": unique_key()})
        await asyncio.sleep(0.1)
        assert server.context.store.max_offset("Later", 0) == 0
        wall.jump("an hour on")
        async with asyncio.timeout(DEADLINE_S):
            while not server.context.store.max_offset("Later", 0):
                await asyncio.sleep(0.001)
        [message] = messages(await client.pull("G", "Later", 0))
        assert message.body == b"x"
    await server.context.retention.run()
    # no message is an hour older for it
    assert server.context.store.stats().commitlog_start == 0
    await server.stop()
