"""Delay levels: never early, in order, nothing lost over failures and restarts.

The clock of the store and the schedule is the test's.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ogive.broker.deferred.delay_levels import BATCH, Schedule, delayed
from ogive.broker.deferred.waiting import MAX_WAIT_S
from ogive.broker.off_loop_reads import MAX_TRIES
from ogive.errors import ProtocolError, StoreBusy, StoreError, StoreFull
from ogive.model import SCHEDULE_TOPIC
from ogive.store.fs import Fs
from ogive.store.message_store import MessageStore
from ogive.store.types import NewMessage, PutDone, StoreConfig
from ogive.wire.bodies.configs import DelayLevels
from ogive.wire.java_json import FrozenObject
from ogive.wire.message import decode_messages, encode_properties
from tests.stores import InlineWriter
from tests.unit.broker.cold_disk import ColdDisk

LEVELS = DelayLevels.parse("10s 20s 1h")


class Bench:
    """A store without a writer thread, and a schedule on it."""

    def __init__(
        self,
        root: Path,
        now_ms: int = 1_000_000,
        levels: DelayLevels = LEVELS,
        *,
        fs: Fs | None = None,
    ) -> None:
        self.now_ms, self.levels = now_ms, levels
        self.refuse = False
        config = StoreConfig(root=root, segment_bytes=1024 * 1024, delay_levels=levels)
        self.store = MessageStore.open(config, fs=fs, clock_ms=lambda: self.now_ms)
        self.disk = ColdDisk(self.store)
        self.schedule = Schedule(
            self.store, self.put, self.disk.fetch, levels, bytes(8), lambda: self.now_ms
        )
        self.store.start(lambda report: report(), writer=InlineWriter)

    def put(self, messages: tuple[NewMessage], done: PutDone) -> None:
        if self.refuse:
            raise StoreBusy("too much waits")
        self.store.put(messages, done)
        asyncio.get_running_loop().call_soon(self.store.submit)

    def send(self, body: bytes, level: int, topic: str = "T") -> None:
        properties = {"DELAY": str(level), "UNIQ_KEY": body.decode()}
        topic, queue = delayed(self.levels, topic, 0, properties)
        self.store.put(
            [NewMessage(topic, queue, body, encode_properties(properties))], lambda _: None
        )
        self.store.submit()

    async def at(self, now_ms: int) -> list[bytes]:
        """What has been delivered when it is *now_ms*: levels are woken as their timers would."""
        self.now_ms = now_ms
        for level in self.schedule._levels.values():
            level.wake()
        for _ in range(20):
            await asyncio.sleep(0)
        end = self.store.max_offset("T", 0)
        found = self.store.get("T", 0, 0, 10_000, 1 << 30)
        assert found.count == end
        return [message.body for message in decode_messages(b"".join(found.parts))]

    async def close(self) -> None:
        await self.schedule.stop()
        self.store.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    bench.schedule.start()
    yield bench
    await bench.close()


async def test_a_message_is_delivered_when_it_is_due_and_not_before(bench: Bench) -> None:
    bench.send(b"a", 1)
    assert await bench.at(1_009_999) == []
    assert await bench.at(1_010_000) == [b"a"]


async def test_a_long_wait_looks_at_the_clock_now_and_then(bench: Bench) -> None:
    """It may be set on, and the time that timers of the loop count stands still while the machine
    sleeps.
    """
    bench.send(b"in an hour", 3)
    timer = bench.schedule._levels[SCHEDULE_TOPIC, 2]._timer
    assert timer is not None
    assert timer.when() - asyncio.get_running_loop().time() <= MAX_WAIT_S


async def test_each_level_waits_for_itself(bench: Bench) -> None:
    bench.send(b"slow", 2)
    bench.send(b"quick", 1)
    assert await bench.at(1_010_000) == [b"quick"]
    assert await bench.at(1_020_000) == [b"quick", b"slow"]


async def test_more_than_a_batch_is_delivered_in_order(bench: Bench) -> None:
    bodies = [b"%d" % number for number in range(2 * BATCH + 3)]
    for body in bodies:
        bench.send(body, 1)
    assert await bench.at(1_010_000) == bodies


async def test_what_is_delivered_keeps_what_it_went_through(bench: Bench) -> None:
    bench.send(b"a", 99)
    await bench.at(1_000_000 + 3_600_000)
    (message,) = decode_messages(b"".join(bench.store.get("T", 0, 0, 1, 1 << 20).parts))
    assert {name: message.properties[name] for name in ("DELAY", "REAL_TOPIC", "REAL_QID")} == {
        "DELAY": "3",
        "REAL_TOPIC": "T",
        "REAL_QID": "0",
    }


async def test_a_level_goes_on_as_far_as_it_can_while_the_disk_is_read(bench: Bench) -> None:
    for body in (b"a", b"b"):
        bench.send(body, 1)
    bench.disk.forget()
    bench.send(b"hot", 1)
    bench.send(b"also hot", 2)
    assert await bench.at(1_020_000) == [b"also hot"]
    assert len(bench.disk.waiting) == 1
    assert await bench.at(1_020_001) == [b"also hot"]
    # however often it is woken
    assert len(bench.disk.waiting) == 1
    bench.disk.bring_in()
    assert await bench.at(1_020_001) == [b"also hot", b"a"]
    bench.disk.bring_in()
    assert await bench.at(1_020_001) == [b"also hot", b"a", b"b", b"hot"]


async def test_memory_that_keeps_nothing_is_not_asked_for_ever(bench: Bench) -> None:
    bench.send(b"a", 1)
    bench.disk.forget()
    for _ in range(MAX_TRIES):
        assert await bench.at(1_010_000) == []
        bench.disk.lose()
    assert await bench.at(1_010_000) == [b"a"]


async def test_what_must_be_kept_is_told_without_waiting_for_the_disk(
    bench: Bench, tmp_path: Path
) -> None:
    """Too much rather than too little, until memory says more."""
    bench.send(b"slow", 3)
    for body in (b"a", b"b", b"c"):
        bench.send(body, 1)
    await bench.close()
    # whose queues are on disk only
    again = Bench(tmp_path)
    waiting = [entry.commitlog_offset for entry in again.store.entries(SCHEDULE_TOPIC, 0, 0, 3)]
    again.schedule.load({"offsetTable": {"1": 1, "3": 1}})
    again.disk.forget()
    assert again.schedule.needed_from() == 0
    assert len(again.disk.waiting) == 1
    again.disk.bring_in(StoreError("Input/output error"))
    assert again.schedule.needed_from() == 0
    again.disk.bring_in()
    assert again.schedule.needed_from() == waiting[1]
    again.schedule.load({"offsetTable": {"1": 2}})
    again.disk.forget()
    assert again.schedule.needed_from() == waiting[1]
    again.disk.bring_in()
    assert again.schedule.needed_from() == waiting[2]
    await again.close()


async def test_a_stopped_level_is_not_woken_by_the_disk(bench: Bench) -> None:
    bench.send(b"a", 1)
    bench.disk.forget()
    assert await bench.at(1_010_000) == []
    await bench.schedule.stop()
    bench.disk.bring_in()
    assert await bench.at(1_010_000) == []


async def test_a_disk_that_cannot_be_read_is_tried_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.send(b"a", 1)
    bench.disk.forget()
    assert await bench.at(1_010_000) == []
    bench.disk.bring_in(StoreError("Input/output error"))
    assert (
        "delay level 1: could not read messages, next try in 0.1 s: Input/output error"
        in caplog.text
    )
    assert await bench.at(1_010_000) == []
    bench.disk.bring_in()
    assert await bench.at(1_010_000) == [b"a"]


async def test_a_timer_delivers_by_itself(tmp_path: Path) -> None:
    """With the real clock: the message is there soon after it is due, and the timer did not wait
    for a poll.
    """
    bench = Bench(tmp_path)
    loop = asyncio.get_running_loop()
    started = loop.time()
    bench.schedule._levels[SCHEDULE_TOPIC, 0]._now_ms = lambda: (
        1_009_980 + round((loop.time() - started) * 1000)
    )
    bench.schedule.start()
    bench.send(b"a", 1)
    async with asyncio.timeout(60):
        while not bench.store.max_offset("T", 0):
            await asyncio.sleep(0.001)
    assert loop.time() - started >= 0.019
    await bench.close()


async def test_a_refused_message_is_tried_again_and_none_is_passed_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ogive.broker.deferred.delay_levels.RETRY_S", 0.0)
    bench.send(b"a", 1)
    bench.send(b"b", 1)
    bench.refuse = True
    assert await bench.at(1_010_000) == []
    assert bench.schedule._levels[SCHEDULE_TOPIC, 0].offset == 0
    bench.refuse = False
    assert await bench.at(1_010_000) == [b"a", b"b"]


async def test_a_message_that_fails_after_a_later_one_was_refused_is_not_passed_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ogive.broker.deferred.delay_levels.RETRY_S", 0.0)
    for body in (b"a", b"b", b"c"):
        bench.send(body, 1)
    taken: list[PutDone] = []

    def nearly_full(_messages: tuple[NewMessage], done: PutDone) -> None:
        if len(taken) == 2:
            raise StoreBusy("too much waits")
        taken.append(done)

    level = bench.schedule._levels[SCHEDULE_TOPIC, 0]
    monkeypatch.setattr(level, "_put", nearly_full)
    assert await bench.at(1_010_000) == []
    monkeypatch.setattr(level, "_put", bench.put)
    # those before the refused one; now the disk is full
    for done in taken:
        done(StoreFull("no room"))
    assert level.offset == 0
    assert await bench.at(1_010_000) == [b"a", b"b", b"c"]


async def test_a_message_that_fits_no_record_of_its_topic_keeps_nobody_waiting(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    # longer than the name of the topic it waits in
    topic = "L" * 120
    properties = encode_properties({"DELAY": "1", "REAL_TOPIC": topic, "REAL_QID": "0"})
    body = bytes(bench.store.segment_bytes - 91 - 8 - len(SCHEDULE_TOPIC) - len(properties) - 50)
    bench.store.put([NewMessage(SCHEDULE_TOPIC, 0, body, properties)], lambda _: None)
    bench.send(b"b", 1)
    assert await bench.at(1_010_000) == [b"b"]
    assert (
        "delay level 1: skipped message 0, which does not fit into a record of its topic"
        in caplog.text
    )


async def test_progress_outlives_a_restart(bench: Bench, tmp_path: Path) -> None:
    bench.send(b"a", 1)
    bench.now_ms += 5_000
    bench.send(b"b", 1)
    assert await bench.at(1_010_000) == [b"a"]
    content = json.loads(json.dumps(bench.schedule.snapshot()()))
    assert content["offsetTable"] == {"1": 1}
    await bench.close()
    again = Bench(tmp_path, bench.now_ms)
    again.schedule.load(content)
    again.schedule.start()
    assert await again.at(1_014_999) == [b"a"]
    assert await again.at(1_015_000) == [b"a", b"b"]
    await again.close()


async def test_without_saved_progress_messages_come_again_rather_than_never(
    bench: Bench, tmp_path: Path
) -> None:
    bench.send(b"a", 1)
    assert await bench.at(1_010_000) == [b"a"]
    await bench.close()
    again = Bench(tmp_path, bench.now_ms)
    again.schedule.start()
    assert await again.at(1_010_000) == [b"a", b"a"]
    await again.close()


async def test_levels_that_were_made_shorter_bring_nothing_early(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each message comes when its level said so when it was sent, also that of a level which is
    gone; until then the log is kept for it.
    """
    bench.send(b"hour", 3)
    bench.send(b"first", 1)
    await bench.close()
    with caplog.at_level("INFO", "ogive.broker.deferred.delay_levels"):
        again = Bench(tmp_path, levels=DelayLevels.parse("1s 2s"))
        again.schedule.start()
    assert (
        "delay level 3 is no longer in the table: the messages waiting in it are delivered at "
        "their time" in caplog.text
    )
    (hour,) = again.store.entries(SCHEDULE_TOPIC, 2, 0, 9)
    assert await again.at(1_009_999) == []
    assert await again.at(1_010_000) == [b"first"]
    assert again.schedule.needed_from() == hour.commitlog_offset
    again.send(b"level 2 now", 3)
    assert await again.at(1_012_000) == [b"first", b"level 2 now"]
    assert await again.at(4_599_999) == [b"first", b"level 2 now"]
    assert again.schedule.needed_from() == hour.commitlog_offset
    assert await again.at(4_600_000) == [b"first", b"level 2 now", b"hour"]
    assert again.schedule.needed_from() == again.store.stats().commitlog_end
    content = again.schedule.snapshot()()
    assert (content["offsetTable"], again.schedule.delivered(3)) == ({"1": 1, "2": 1, "3": 1}, 1)
    await again.close()
    third = Bench(tmp_path, 4_600_000, levels=DelayLevels.parse("1s 2s"))
    third.schedule.load(content)
    third.schedule.start()
    assert await third.at(4_700_000) == [b"first", b"level 2 now", b"hour"]
    await third.close()


async def test_levels_that_were_made_longer_keep_nothing_back(bench: Bench, tmp_path: Path) -> None:
    bench.send(b"a", 1)
    await bench.close()
    again = Bench(tmp_path, levels=DelayLevels.parse("1h"))
    again.schedule.start()
    assert await again.at(1_009_999) == []
    assert await again.at(1_010_000) == [b"a"]
    await again.close()


async def test_a_message_that_does_not_say_where_it_belongs_is_passed_over(bench: Bench) -> None:
    for real in (
        {},
        {"REAL_TOPIC": "T", "REAL_QID": "x"},
        {"REAL_TOPIC": "T", "REAL_QID": "99999999999"},
        {"REAL_TOPIC": "T" * 300, "REAL_QID": "0"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"},
    ):
        properties = {"DELAY": "1"} | real
        bench.store.put(
            [NewMessage(SCHEDULE_TOPIC, 0, b"lost", encode_properties(properties))], lambda _: None
        )
    bench.send(b"a", 1)
    assert await bench.at(1_010_000) == [b"a"]


async def test_progress_of_levels_that_only_another_broker_has_is_kept(bench: Bench) -> None:
    bench.schedule.load({"offsetTable": {"1": 4, "19": 7}})
    assert bench.schedule.snapshot()()["offsetTable"] == {"1": 4, "19": 7}


@pytest.mark.parametrize(
    "table",
    [
        {},
        None,
        {"1": "x", "9": "x"},
        {"1": -5, "9": -5},
        {"x": 5},
        {"1": 10**30, "9" * 5000: 5},
        {FrozenObject({"a": 1}): 5},
    ],
)
async def test_entries_of_a_file_that_are_no_progress_are_left_out(
    bench: Bench, table: object
) -> None:
    bench.schedule.load({} if table == {} else {"offsetTable": table})
    assert bench.schedule.snapshot()()["offsetTable"] == {}


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, ("T", 5, {})),
        ({"DELAY": "0"}, ("T", 5, {"DELAY": "0"})),
        ({"DELAY": "-1"}, ("T", 5, {"DELAY": "-1"})),
        ({"DELAY": "2"}, (SCHEDULE_TOPIC, 1, {"DELAY": "2", "REAL_TOPIC": "T", "REAL_QID": "5"})),
        (
            {"DELAY": "7", "TIMER_DELAY_MS": "5"},
            (SCHEDULE_TOPIC, 2, {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "5"}),
        ),
    ],
)
def test_where_a_message_waits(
    properties: dict[str, str], expected: tuple[str, int, dict[str, str]]
) -> None:
    assert (*delayed(LEVELS, "T", 5, properties), properties) == expected


def test_a_level_that_is_no_number_is_refused() -> None:
    with pytest.raises(ProtocolError, match="soon"):
        delayed(LEVELS, "T", 0, {"DELAY": "soon"})


async def test_a_level_that_cannot_be_read_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.send(b"a", 1)
    bench.send(b"b", 1)

    def unreadable(*_: object) -> None:
        raise StoreError("the commit log cannot be read at 0: Input/output error")

    for method in ("entries", "record_at"):
        with monkeypatch.context() as patched:
            patched.setattr(bench.store, method, unreadable)
            assert await bench.at(1_010_000) == []
    assert await bench.at(1_010_000) == [b"a", b"b"]
