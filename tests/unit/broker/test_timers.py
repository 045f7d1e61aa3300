"""Timer messages: never early, nothing lost over failures and restarts, taken back.

The clock of the store and the timers is the test's.
"""

import asyncio
import errno
import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ogive.broker.deferred.timer_properties import RecallHandle, read_handle, recall_handle, timed
from ogive.broker.deferred.timers import (
    BATCH,
    IN_FLIGHT,
    PASSED,
    TimerProgress,
    TimerProgressFile,
    Timers,
)
from ogive.broker.deferred.waiting import MAX_WAIT_S
from ogive.broker.replies import Rejected
from ogive.errors import ResponseCode, StoreBusy, StoreError
from ogive.model import TIMER_TOPIC
from ogive.store.fs import Fs, OsFs
from ogive.store.message_store import MessageStore
from ogive.store.types import NewMessage, PutDone, StoreConfig
from ogive.wire.message import MAX_PROPERTIES_BYTES, decode_messages, encode_properties
from tests.chaos.unsynced import UnsyncedFs
from tests.stores import InlineWriter
from tests.unit.broker.cold_disk import ColdDisk

NOW = 1_700_000_000_500
WEEK_S = 7 * 86_400.0


class Bench:
    """A store without a writer thread, its timers, and their file."""

    def __init__(
        self, root: Path, now_ms: int = NOW, *, max_waiting: int = 10_000, fs: Fs | None = None
    ) -> None:
        self.now_ms = now_ms
        self.passed_s = 0.0
        self.refuse = False
        config = StoreConfig(root=root, segment_bytes=4 * 1024 * 1024)
        self.store = MessageStore.open(
            config, fs=fs, clock_ms=lambda: self.now_ms, monotonic=lambda: self.passed_s
        )
        self.file = TimerProgressFile(OsFs(), root)
        self.timers = Timers(self.store, lambda: self.now_ms, max_waiting)
        self.timers.recover(self.file.progress())
        self.file.take_over(self.timers.snapshot()())
        self.store.start(lambda report: report(), writer=InlineWriter)
        self.disk = ColdDisk(self.store)
        self.timers.start(self.put, self.disk.fetch, bytes(8))

    def put(self, messages: tuple[NewMessage], done: PutDone) -> None:
        if self.refuse:
            raise StoreBusy("too much waits")
        self.store.put(messages, done)
        asyncio.get_running_loop().call_soon(self.store.submit)

    def send(self, body: bytes, delay_ms: int, topic: str = "T", **extra: str) -> dict[str, str]:
        """The properties as stored."""
        properties = {
            "TIMER_DELIVER_MS": str(self.now_ms + delay_ms),
            "UNIQ_KEY": body[:100].decode(),
        } | extra
        return self.send_asked(body, properties, topic)

    def send_delayed(self, body: bytes, delay_ms: int) -> dict[str, str]:
        """The same with a delay, which counts on the store's clock."""
        return self.send_asked(
            body, {"TIMER_DELAY_MS": str(delay_ms), "UNIQ_KEY": body.decode()}, "T"
        )

    def send_asked(self, body: bytes, properties: dict[str, str], topic: str) -> dict[str, str]:
        topic, queue = timed(
            properties,
            topic,
            0,
            wall_ms=self.now_ms,
            store_ms=self.store.now_ms(),
            max_delay_s=WEEK_S,
        )
        self.store.put(
            [NewMessage(topic, queue, body, encode_properties(properties))], lambda _: None
        )
        self.store.submit()
        return properties

    async def after(self, ms: int) -> list[bytes]:
        """What has been delivered when so much time has passed, on all clocks."""
        self.passed_s += ms / 1000
        return await self.at(self.now_ms + ms)

    async def at(self, now_ms: int) -> list[bytes]:
        """What has been delivered when it is *now_ms*: the timers are woken as their own timer
        would.
        """
        self.now_ms = now_ms
        self.timers._wake()
        for _ in range(200):
            await asyncio.sleep(0)
            lines = (self.timers._times, self.timers._delays)
            if (
                not any(line.heap and line.heap[0][0] <= line.now_ms() for line in lines)
                and not self.timers._on_the_way
            ):
                break
        found = self.store.get("T", 0, 0, 100_000, 1 << 30)
        return [message.body for message in decode_messages(b"".join(found.parts))]

    def save(self) -> None:
        self.file.save(self.timers.snapshot()())

    async def close(self) -> None:
        await self.timers.stop()
        self.store.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    await bench.close()


# --- what a send asks for -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "deliver_ms", "out_ms"),
    [
        ({"TIMER_DELIVER_MS": str(NOW + 2000)}, NOW + 2000, NOW + 1500),
        # an exact second: one second earlier
        ({"TIMER_DELIVER_MS": str(NOW + 1500)}, NOW + 1500, NOW + 500),
        ({"TIMER_DELAY_MS": "700"}, NOW + 700, NOW + 500),
        ({"TIMER_DELAY_SEC": "3"}, NOW + 3000, NOW + 2500),
        (
            {"TIMER_DELAY_SEC": "3", "TIMER_DELAY_MS": "9", "TIMER_DELIVER_MS": "x"},
            NOW + 3000,
            NOW + 2500,
        ),
    ],
)
def test_a_time_is_written_as_java_writes_it_and_kept_exactly(
    asked: dict[str, str], deliver_ms: int, out_ms: int
) -> None:
    properties = dict(asked)
    assert timed(properties, "T", 3, wall_ms=NOW, store_ms=NOW, max_delay_s=WEEK_S) == (
        TIMER_TOPIC,
        0,
    )
    wanted = {
        "TIMER_DELIVER_MS": str(deliver_ms),
        "TIMER_OUT_MS": str(out_ms),
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }
    assert properties == asked | wanted


@pytest.mark.parametrize(
    "asked", [{}, {"TIMER_DELIVER_MS": str(NOW)}, {"TIMER_DELAY_MS": "9", "TIMER_OUT_MS": "1"}]
)
def test_what_need_not_wait_goes_its_way(asked: dict[str, str]) -> None:
    properties = dict(asked)
    assert timed(properties, "T", 3, wall_ms=NOW, store_ms=NOW, max_delay_s=WEEK_S) == ("T", 3)
    assert properties == asked


@pytest.mark.parametrize(
    "asked",
    [
        {"TIMER_DELAY_SEC": "soon"},
        {"TIMER_DELAY_SEC": "604801"},
        {"TIMER_DELAY_MS": "-1", "TIMER_DEL_UNIQKEY": "K"},
    ],
)
def test_an_impossible_time_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(Rejected) as caught:
        timed(dict(asked), "T", 0, wall_ms=NOW, store_ms=NOW, max_delay_s=WEEK_S)
    assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL


def test_a_handle_is_javas() -> None:
    """The text was made by RecallMessageHandle.HandleV1 5.5.0 from these words."""
    text = "djEgVCBicm9rZXItYSAxNzAwMDAwMDAxMDAxIEs="
    assert (
        recall_handle(
            {"TIMER_OUT_MS": "1700000001000", "REAL_TOPIC": "T", "UNIQ_KEY": "K"}, "broker-a"
        )
        == text
    )
    assert read_handle(text) == RecallHandle("T", "broker-a", 1_700_000_001_001, "K")
    assert (
        recall_handle({"TIMER_OUT_MS": "1", "REAL_TOPIC": "%RETRY%G", "UNIQ_KEY": "K"}, "b") is None
    )
    assert recall_handle({"UNIQ_KEY": "K"}, "b") is None


@pytest.mark.parametrize(
    "text", ["", "!", "djEgVA==", "djIgVCBiIDEgSw==", "djEgVCBiIHggSw==", "dj", "漢"]
)
def test_a_text_that_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="recall handle is invalid"):
        read_handle(text)


# --- delivery -------------------------------------------------------------------------------------


async def test_a_message_is_delivered_at_its_millisecond_and_not_before(bench: Bench) -> None:
    bench.send(b"late", 90_000)
    bench.send(b"soon", 1_234)
    assert await bench.at(NOW + 1_233) == []
    assert await bench.at(NOW + 1_234) == [b"soon"]
    assert await bench.at(NOW + 90_000) == [b"soon", b"late"]
    assert len(bench.timers) == 0


HOUR_MS = 3_600_000


async def test_a_time_of_day_is_not_early_after_the_clock_was_set_back(tmp_path: Path) -> None:
    """It was an hour fast, and a message was stored: the store's clock is an hour ahead from then
    on. A delay goes by that one.
    """
    bench = Bench(tmp_path, NOW + HOUR_MS)
    before = bench.send(b"before", HOUR_MS)
    bench.now_ms = NOW
    assert bench.send(b"timed", 1_800_000)["REAL_TOPIC"] == "T"
    bench.send_delayed(b"delayed", 1_000)
    assert await bench.after(999) == []
    bench.save()
    assert struct.unpack(">q", (tmp_path / "config" / "timercheck").read_bytes()[:8]) == (
        NOW + 999,
    )
    await bench.close()
    bench = Bench(tmp_path, NOW + 2_000)
    assert bench.store.now_ms() == NOW + HOUR_MS
    assert await bench.after(999) == []
    assert await bench.after(100) == [b"delayed"]
    bench.save()
    await bench.close()
    bench = Bench(tmp_path, NOW + 4_000)
    assert await bench.at(NOW + 1_799_999) == [b"delayed"]
    assert await bench.at(NOW + 1_800_000) == [b"delayed", b"timed"]
    assert await bench.at(int(before["TIMER_DELIVER_MS"]) - 1) == [b"delayed", b"timed"]
    assert await bench.at(int(before["TIMER_DELIVER_MS"])) == [b"delayed", b"timed", b"before"]
    await bench.close()


async def test_the_limit_of_a_time_is_that_of_the_machines_clock(tmp_path: Path) -> None:
    bench = Bench(tmp_path, NOW + HOUR_MS)
    bench.send(b"before", 1_000)
    bench.now_ms = NOW
    with pytest.raises(Rejected):
        bench.send(b"far", round(WEEK_S * 1000) + 1)
    bench.send_delayed(b"a week", round(WEEK_S * 1000))
    await bench.close()


async def test_progress_of_a_release_with_one_clock_is_read(tmp_path: Path) -> None:
    """Its settledMs counts for both kinds."""
    first = Bench(tmp_path)
    first.send(b"waits", 600_000_000)
    first.send_delayed(b"done", 1_000)
    first.save()
    await first.close()
    file = tmp_path / "config" / "timerProgress.json"
    old = json.loads(file.read_text())
    del old["settledDelaysMs"], old["readMs"]
    file.write_text(json.dumps(old | {"settledMs": NOW + 1_000}))
    second = Bench(tmp_path, NOW + 5_000)
    assert await second.at(NOW + 5_000) == []
    await second.close()


async def test_its_own_timer_wakes_it(tmp_path: Path) -> None:
    bench, loop = Bench(tmp_path), asyncio.get_running_loop()
    started = loop.time()
    bench.timers._times.now_ms = lambda: NOW + round((loop.time() - started) * 1000)
    bench.send(b"a", 20)
    async with asyncio.timeout(60):
        while not bench.store.max_offset("T", 0):
            await asyncio.sleep(0.001)
    assert loop.time() - started >= 0.019
    await bench.close()


async def test_thousands_that_are_due_at_once_are_all_delivered(bench: Bench) -> None:
    count = IN_FLIGHT + 2 * BATCH + 3
    for number in range(count):
        bench.send(b"%d" % number, 1_000 + number % 7)
    assert sorted(map(int, await bench.at(NOW + 2_000))) == list(range(count))
    assert bench.timers.progress() == TimerProgress(count, count, NOW + 2_000, NOW + 2_000)


async def test_what_is_on_disk_only_is_read_elsewhere(bench: Bench) -> None:
    """Messages may wait for a week: by then memory holds other things."""
    for body in (b"a", b"b"):
        bench.send(body, 1_000)
    bench.send(b"c", 3_000)
    bench.disk.forget()
    assert await bench.at(NOW + 1_000) == []
    assert len(bench.disk.waiting) == 1
    bench.send(b"hot", 500)
    assert await bench.at(NOW + 1_500) == []
    assert (len(bench.disk.waiting), len(bench.timers), bench.timers.progress()) == (
        1,
        4,
        TimerProgress(0, 4, NOW + 999, NOW + 1_500),
    )
    bench.disk.bring_in()
    assert await bench.at(NOW + 1_500) == [b"a"]
    bench.disk.bring_in()
    assert await bench.at(NOW + 1_500) == [b"a", b"b", b"hot"]
    assert await bench.at(NOW + 3_000) == [b"a", b"b", b"hot"]
    bench.disk.bring_in(StoreError("Input/output error"))
    assert await bench.at(NOW + 3_000) == [b"a", b"b", b"hot"]
    bench.disk.bring_in()
    assert await bench.at(NOW + 3_000) == [b"a", b"b", b"hot", b"c"]


async def test_a_stop_does_not_wait_for_the_disk(bench: Bench) -> None:
    bench.send(b"a", 1_000)
    bench.disk.forget()
    assert await bench.at(NOW + 1_000) == []
    await bench.timers.stop()
    bench.disk.bring_in()
    assert (len(bench.timers), bench.store.max_offset("T", 0)) == (1, 0)


async def test_a_delivered_message_says_what_it_went_through(bench: Bench) -> None:
    stored = bench.send(b"a", 1_000, colour="red")
    await bench.at(NOW + 1_001)
    (message,) = decode_messages(b"".join(bench.store.get("T", 0, 0, 1, 1 << 20).parts))
    times = {"TIMER_ENQUEUE_MS": str(NOW), "TIMER_DEQUEUE_MS": str(NOW + 1_001)}
    found = {name: message.properties[name] for name in (*stored, *times)}
    assert found == stored | times


async def test_a_message_that_cannot_be_stored_now_is_tried_again(bench: Bench) -> None:
    bench.send(b"a", 1_000)
    bench.send(b"b", 1_000)
    bench.refuse = True
    assert await bench.at(NOW + 1_000) == []
    assert len(bench.timers) == 2
    assert bench.timers.progress() == TimerProgress(0, 2, NOW + 999, NOW + 1_000)
    bench.refuse = False
    assert await bench.at(NOW + 1_000) == [b"a", b"b"]


async def test_how_late_delivery_is_and_how_much_came_and_went(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.send(b"late", 1_000)
    bench.send_delayed(b"too", 2_000)
    bench.send(b"waits", 600_000)
    bench.refuse = True
    await bench.at(NOW + 1_000)
    assert (bench.timers.behind_s, bench.timers.overdue) == (0, 1)
    await bench.at(NOW + 9_500)
    assert (bench.timers.behind_s, bench.timers.unread, bench.timers.overdue) == (8.5, 0, 2)
    bench.refuse = False
    await bench.at(NOW + 9_500)
    assert (bench.timers.behind_s, bench.timers.taken_up, bench.timers.delivered) == (0, 3, 2)
    assert bench.timers.overdue == 0
    assert sum(bench.timers.waiting_of.values()) == len(bench.timers) == 1
    assert [(of.taken_up, of.delivered) for _, of in bench.timers.by_topic.items()] == [(3, 2)]
    await bench.close()
    again = Bench(tmp_path, NOW + 9_500)
    assert (len(again.timers), again.timers.taken_up) == (3, 0)
    assert (sum(again.timers.waiting_of.values()), list(again.timers.by_topic.items())) == (3, [])
    await again.close()


async def test_only_so_many_may_wait(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_waiting=1)
    bench.timers.check_room()
    bench.send(b"a", 1_000)
    with pytest.raises(Rejected) as caught:
        bench.timers.check_room()
    assert caught.value.code == ResponseCode.SYSTEM_BUSY
    await bench.close()


# --- taking back ----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a", "T+a"])
async def test_a_message_is_taken_back_by_its_key_and_second(bench: Bench, key: str) -> None:
    stored = bench.send(b"a", 5_000)
    bench.send(b"b", 5_000)
    bench.send(b"0", int(stored["TIMER_OUT_MS"]) + 1 - NOW, TIMER_DEL_UNIQKEY=key)
    assert await bench.at(NOW + 6_000) == [b"b"]


async def test_a_read_error_in_the_middle_takes_nothing_up_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken back, a message that was there twice ended the reading of all behind it."""
    monkeypatch.setattr(bench.store, "on_growth", {})
    stored = bench.send(b"a", 5_000)
    second = bench.send(b"b", 5_000)
    bench.send(b"0", int(stored["TIMER_OUT_MS"]) + 1 - NOW, TIMER_DEL_UNIQKEY="a")
    monkeypatch.undo()
    read, fails = bench.store.record_at, [2]

    def failing(commitlog_offset: int) -> bytes | None:
        found = read(commitlog_offset)
        if found is not None and b"UNIQ_KEY\x01b" in found and fails:
            fails.pop()
            raise StoreError("cannot be read")
        return found

    monkeypatch.setattr(bench.store, "record_at", failing)
    bench.timers._wake()
    assert (fails, bench.timers.taken_up) == ([], 1)
    bench.timers._wake()
    assert bench.timers.taken_up == 2
    assert await bench.at(int(second["TIMER_OUT_MS"]) + 1_000) == [b"b"]


async def test_a_message_that_is_being_taken_back_is_not_delivered_meanwhile(bench: Bench) -> None:
    stored = bench.send(b"a", 5_000)
    handle = RecallHandle("T", "broker-a", int(stored["TIMER_OUT_MS"]) + 1, "a")
    hold = bench.timers.hold(handle)
    assert hold is not None
    assert await bench.at(NOW + 5_000) == []
    assert bench.timers.progress() == TimerProgress(0, 1, NOW + 4_999, NOW + 5_000)
    bench.timers.release(handle, hold)
    assert await bench.at(NOW + 5_000) == [b"a"]
    assert not bench.timers.hold(handle)


async def test_a_message_that_two_take_back_is_let_go_by_none_of_them_alone(bench: Bench) -> None:
    """The one whose record cannot be stored must not have it delivered while the other is answered
    with success.
    """
    stored = bench.send(b"a", 5_000)
    handle = RecallHandle("T", "broker-a", int(stored["TIMER_OUT_MS"]) + 1, "a")
    assert bench.timers.held(handle) is None
    first = bench.timers.hold(handle)
    assert first is not None
    assert bench.timers.held(handle) is first
    bench.send(b"0", handle.time_ms - bench.now_ms, TIMER_DEL_UNIQKEY="a")
    assert await bench.at(NOW + 60_000) == []
    assert (len(bench.timers), bench.timers.held(handle)) == (0, None)


async def test_who_lets_messages_go_lets_go_none_that_another_takes_back(bench: Bench) -> None:
    stored = bench.send(b"a", 5_000)
    handle = RecallHandle("T", "broker-a", int(stored["TIMER_OUT_MS"]) + 1, "a")
    first = bench.timers.hold(handle)
    assert first is not None
    bench.send(b"0", handle.time_ms - bench.now_ms, TIMER_DEL_UNIQKEY="a")
    bench.send(b"a", 5_000)
    assert bench.timers.hold(handle)
    bench.timers.release(handle, first)
    assert await bench.at(NOW + 60_000) == []


async def test_many_messages_of_one_name_are_held_in_one_step(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is the client's choice, and so is how many recalls it sends."""
    handle = RecallHandle("T", "broker-a", 0, "same")
    for n in range(300):
        out_ms = bench.send(b"%d" % n, 5_000, UNIQ_KEY="same")["TIMER_OUT_MS"]
        handle = handle._replace(time_ms=int(out_ms) + 1)
    with monkeypatch.context() as patch:
        patch.setattr(bench.timers._names, "of", None)
        hold = bench.timers.hold(handle)
        assert hold is not None
        assert await bench.at(NOW + 5_000) == []
        assert len(hold.passed_over) == 300
        assert bench.timers.overdue == 0
        bench.timers.release(handle, hold)
    assert len(await bench.at(NOW + 5_000)) == 300


async def test_a_message_that_is_not_taken_back_after_all_is_delivered_once(bench: Bench) -> None:
    stored = bench.send(b"a", 5_000)
    handle = RecallHandle("T", "broker-a", int(stored["TIMER_OUT_MS"]) + 1, "a")
    hold = bench.timers.hold(handle)
    assert hold is not None
    bench.timers.release(handle, hold)
    assert await bench.at(NOW + 5_000) == [b"a"]


async def test_a_message_that_is_held_again_and_again_waits_once(bench: Bench) -> None:
    stored = bench.send(b"a", 5_000)
    handle = RecallHandle("T", "broker-a", int(stored["TIMER_OUT_MS"]) + 1, "a")
    for _ in range(3):
        hold = bench.timers.hold(handle)
        assert hold is not None
        bench.timers.release(handle, hold)
        assert len(bench.timers._times.heap) == 1
    assert await bench.at(NOW + 5_000) == [b"a"]


async def test_messages_of_one_name_are_delivered_each_and_taken_back_together(
    bench: Bench,
) -> None:
    """The name is the client's choice."""
    bodies = [b"%d" % n for n in range(2_000)]
    for body in bodies[:1_000]:
        bench.send(body, 2_000, UNIQ_KEY="same")
    for body in bodies[1_000:]:
        bench.send(body, 7_000, UNIQ_KEY="same")
    later = int(bench.send(b"last", 7_000, UNIQ_KEY="same")["TIMER_OUT_MS"])
    assert sorted(await bench.at(NOW + 2_000)) == sorted(bodies[:1_000])
    assert len(bench.timers) == 1_001
    bench.send(b"0", later + 1 - bench.now_ms, TIMER_DEL_UNIQKEY="same")
    assert len(await bench.at(NOW + 60_000)) == 1_000
    assert len(bench.timers) == 0
    names = bench.timers._names
    assert not names._first
    assert not names._others


async def test_messages_that_were_taken_back_leave_memory(bench: Bench) -> None:
    """Long before their time; those that wait beside them stay."""
    for n in range(20):
        bench.send(b"kept %d" % n, 600_000, UNIQ_KEY=f"kept {n}")
    for n in range(2_500):
        out_ms = int(bench.send(b"x", 500_000, UNIQ_KEY=f"{n}")["TIMER_OUT_MS"])
        bench.send(b"0", out_ms + 1 - bench.now_ms, TIMER_DEL_UNIQKEY=f"{n}")
        assert len(bench.timers._times.heap) <= 1_024 + 2 * len(bench.timers) + 1
    assert len(bench.timers) == 20
    assert await bench.at(NOW + 600_000) == [b"kept %d" % n for n in range(20)]


async def test_those_that_were_taken_back_are_passed_over_in_several_turns(bench: Bench) -> None:
    for n in range(1_100):
        bench.send(b"later %d" % n, 600_000, UNIQ_KEY=f"later {n}")
    for n in range(2_100):
        out_ms = int(bench.send(b"x", 5_000, UNIQ_KEY=f"{n}")["TIMER_OUT_MS"])
        bench.send(b"0", out_ms + 1 - bench.now_ms, TIMER_DEL_UNIQKEY=f"{n}")
    line, reads = bench.timers._times, bench.timers._reads
    assert len(line.heap) == 3_200
    assert reads is not None
    bench.now_ms += 5_000
    lengths = []
    while bench.timers._deliver(reads):
        lengths.append(len(line.heap))
    assert (lengths, len(line.heap)) == ([3_200 - PASSED, 3_200 - 2 * PASSED], 1_100)


async def test_nobody_takes_back_a_message_of_another_topic(bench: Bench) -> None:
    """Who may write to one topic would else reach into all."""
    stored = bench.send(b"a", 5_000)
    out_ms = int(stored["TIMER_OUT_MS"])
    assert not bench.timers.hold(RecallHandle("Other", "broker-a", out_ms + 1, "a"))
    bench.send(b"0", out_ms + 1 - NOW, "Other", TIMER_DEL_UNIQKEY="a")
    assert await bench.at(NOW + 5_000) == [b"a"]


async def test_properties_without_room_for_more_are_delivered_as_they_are(bench: Bench) -> None:
    size = len(encode_properties(bench.send(b"first", 1_000, K="v")))
    bench.send(b"a", 1_000, K="v" * (MAX_PROPERTIES_BYTES - size))
    bench.send(b"b", 1_000)
    assert await bench.at(NOW + 1_000) == [b"first", b"a", b"b"]


async def test_a_message_that_fits_no_record_of_its_topic_keeps_nobody_waiting(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    # longer than the name of the topic it waits in, by more than the times that are added
    topic = "L" * 120
    size = len(encode_properties(bench.send(b"a", 1_000)))
    room = bench.store.segment_bytes - 91 - len(TIMER_TOPIC) - 2 * len(topic) - size
    bench.send(bytes(room), 1_000, topic, UNIQ_KEY="a")
    bench.send(b"b", 1_000)
    assert await bench.at(NOW + 1_000) == [b"a", b"b"]
    assert "skipped timer message 1, which does not fit into a record of its topic" in caplog.text
    assert len(bench.timers) == 0


# --- restarts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("saved", [True, False])
async def test_a_restart_finds_what_waits(tmp_path: Path, saved: bool) -> None:
    """With the progress of the stop, nothing comes twice; without any (killed before the first
    save) only what was delivered already.
    """
    first = Bench(tmp_path)
    first.send(b"week", 600_000_000)
    first.send(b"done", 1_000)
    first.send(b"missed", 3_000)
    taken = first.send(b"taken", 4_000)
    first.send(b"0", int(taken["TIMER_OUT_MS"]) + 1 - NOW, TIMER_DEL_UNIQKEY="taken")
    assert await first.at(NOW + 2_000) == [b"done"]
    if saved:
        first.save()
    await first.close()
    second = Bench(tmp_path, NOW + 10_000)
    delivered = [b"done", b"missed"] if saved else [b"done", b"done", b"missed"]
    assert await second.at(NOW + 10_000) == delivered
    assert await second.at(NOW + 600_000_000) == [*delivered, b"week"]
    await second.close()


@pytest.mark.parametrize("saves", [1, 3])
async def test_a_death_between_the_two_files_of_progress_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: int
) -> None:
    first = Bench(tmp_path)
    first.send(b"week", 600_000_000)
    first.send(b"done", 1_000)
    for _ in range(saves - 1):
        first.save()
    assert await first.at(NOW + 2_000) == [b"done"]

    def killed(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "killed")

    with monkeypatch.context() as death:
        death.setattr("ogive.broker.deferred.timers.write_synced", killed)
        with pytest.raises(OSError, match="killed"):
            first.save()
    await first.close()
    second = Bench(tmp_path, NOW + 10_000)
    assert await second.at(NOW + 10_000) == [b"done"]
    assert await second.at(NOW + 600_000_000) == [b"done", b"week"]
    await second.close()


async def test_progress_beyond_the_queue_hides_nothing(tmp_path: Path) -> None:
    """A power cut took messages that the progress speaks of; new ones get their offsets."""
    TimerProgressFile(OsFs(), tmp_path).save(
        {"low": 7, "end": 9, "settledMs": NOW - 1, "readMs": NOW - 1}
    )
    bench = Bench(tmp_path)
    bench.send(b"a", 1_000)
    assert await bench.at(NOW + 1_000) == [b"a"]
    await bench.close()


async def test_apaches_word_counts_where_it_ran_since(tmp_path: Path) -> None:
    """Its timercheck: slots before lastReadTimeMs are delivered, messages from the queue offset on
    not taken up. Rolled ones come once.
    """
    first = Bench(tmp_path)
    first.send(b"theirs", 1_000)
    waiting = first.send(b"rolled", 600_000_000)
    first.store.put(
        [
            NewMessage(
                TIMER_TOPIC, 0, b"rolled", encode_properties(waiting | {"TIMER_ROLL_TIMES": "1"})
            )
        ],
        lambda _: None,
    )
    first.send(b"unread", 1_000)
    first.save()
    await first.close()
    check = tmp_path / "config" / "timercheck"
    check.write_bytes(struct.pack(">qqqq", NOW + 5_000, 52 * 3, 3, 3).ljust(4096, b"\0"))
    for name in ("timerwheel", "timerlog/00000000000000000000"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"wheel")
    second = Bench(tmp_path, NOW + 6_000)
    assert not (tmp_path / "timerwheel").exists()
    assert list((tmp_path / "timerlog").iterdir()) == []
    assert await second.at(NOW + 6_000) == [b"unread"]
    assert await second.at(NOW + 600_000_000) == [b"unread", b"rolled"]
    await second.close()


@pytest.mark.parametrize("spoiled", [None, b"", bytes(4096), b"?" * 4096])
async def test_a_lost_page_of_apache_s_form_makes_nothing_come_twice(
    tmp_path: Path, spoiled: bytes | None
) -> None:
    """Without a wheel or a log beside it Apache's broker was not here: our own file counts."""
    bench = Bench(tmp_path)
    bench.send(b"done", 1_000)
    bench.send(b"waits", 9_000)
    assert await bench.at(NOW + 2_000) == [b"done"]
    bench.save()
    await bench.close()
    check = tmp_path / "config" / "timercheck"
    if spoiled is None:
        check.unlink()
    else:
        check.write_bytes(spoiled)
    again = Bench(tmp_path, NOW + 3_000)
    assert await again.at(NOW + 3_000) == [b"done"]
    assert await again.at(NOW + 9_000) == [b"done", b"waits"]
    await again.close()


async def test_a_time_that_is_no_number_makes_the_file_damaged_and_no_start_fail(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.send(b"waits", 9_000)
    bench.save()
    await bench.close()
    for path in (tmp_path / "config").glob("timerProgress.json*"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"settledDelaysMs": "noon"}))
    again = Bench(tmp_path)
    assert await again.at(NOW + 9_000) == [b"waits"]
    await again.close()


async def test_what_apache_reads_makes_it_take_up_everything_that_waits(tmp_path: Path) -> None:
    """timercheck: read time, log position, and twice the offset from which it enqueues again.

    A read time in the future would pass over what is sent to Apache's broker for a time before
    that.
    """
    bench = Bench(tmp_path)
    bench.send(b"done", 1_000)
    bench.send(b"waits", 9_000)
    await bench.at(NOW + 2_000)
    bench.save()
    page = (tmp_path / "config" / "timercheck").read_bytes()
    assert (len(page), struct.unpack(">qqqq", page[:32])) == (4096, (NOW + 2_000, 0, 1, 1))
    await bench.close()


async def test_a_long_wait_looks_at_the_clock_within_a_minute(bench: Bench) -> None:
    bench.send(b"in an hour", 3_600_000)
    timer = bench.timers._timer
    assert timer is not None
    assert timer.when() - asyncio.get_running_loop().time() <= MAX_WAIT_S <= 60.0


async def test_a_power_cut_takes_nothing_of_the_progress_and_brings_no_file_of_apaches_back(
    tmp_path: Path,
) -> None:
    bench, fs = Bench(tmp_path), UnsyncedFs()
    file = TimerProgressFile(fs, tmp_path)
    (tmp_path / "config" / "timercheck").unlink(missing_ok=True)
    file.save(bench.timers.snapshot()())
    assert fs.unsynced == set()
    (tmp_path / "timerlog").mkdir()
    for name in ("timerlog/0", "timerwheel"):
        (tmp_path / name).write_bytes(b"theirs")
    file.take_over(bench.timers.snapshot()())
    assert fs.unsynced == set()
    assert not (tmp_path / "timerwheel").exists()
    bench.store.close()
