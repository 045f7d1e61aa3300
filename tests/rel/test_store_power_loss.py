"""Power loss, by every kind of disk image that unsynced writes can leave; and proof that the judgement can fail."""

import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ogive.store import Fs, MessageStore, tables
from ogive.store.commitlog import Chunk
from ogive.store.fs import Data
from ogive.store.writer import GroupWriter
from tests.chaos.recorder import RecorderFs, images
from tests.chaos.workload import History, judge, judge_table, run_script
from tests.figures import figures
from tests.stores import Driver, message, small

pytestmark = [pytest.mark.rel, pytest.mark.quick]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def recorded(
    flush: Any = "sync", steps: int = 300, seed: int = 7, store_type: type[MessageStore] = MessageStore
) -> tuple[RecorderFs, History]:
    fs = RecorderFs()
    return fs, run_script(fs, flush, seed, steps, store_type)


def loses_nothing(flush: Any, seeds: int, *, nightly: bool = False) -> None:
    """sync: 0 lost, 0 phantom, 0 damaged. async: only the newest window may be lost, and nothing survives behind a loss."""
    alarms: list[str] = []
    with figures("T3", nightly=nightly, flush=flush, attempts=0, acknowledged=0, lost=0, faults=0) as line:
        for seed in range(1, seeds + 1):
            fs, history = recorded(flush, 250, seed)
            line["attempts"] += history.operations
            for image, acked in images(fs, 250, random.Random(seed)):
                line["faults"] += 1
                line["acknowledged"] = max(line["acknowledged"], len(acked))
                table = judge_table(image, acked, history)
                verdict = judge(image, acked, history, flush)
                line["lost"] += len(verdict.lost)
                if verdict.alarms or table:
                    alarms.append(f"seed {seed}, {len(acked)} acknowledged: {verdict} {table}"[:600])
    assert not alarms, alarms[0]


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_power_cut_loses_nothing_that_was_acknowledged(flush: Any) -> None:
    loses_nothing(flush, 4)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_ten_thousand_power_cuts_lose_nothing_that_was_acknowledged(flush: Any) -> None:
    loses_nothing(flush, 40, nightly=True)


def test_power_cut_during_recovery_loses_nothing() -> None:
    """Recovery itself writes: what it leaves half done is as good a start as any."""
    rng = random.Random(3)
    fs, history = recorded()
    for image, acked in images(fs, 20, rng):
        recovering = RecorderFs(image)
        assert judge(recovering, acked, history).alarms == 0
        for second, _ in images(recovering, 5, rng):
            assert judge(second, acked, history).alarms == 0


@pytest.mark.parametrize("count", [60, pytest.param(3_000, marks=[pytest.mark.nightly, pytest.mark.timeout(600)])])
def test_power_cut_during_a_removal_keeps_what_stays_and_brings_nothing_back(tmp_path: Path, count: int) -> None:
    """What readers were told is gone stays gone; everything behind it is there."""
    fs, seed = RecorderFs(), 14
    with Driver(small(tmp_path), fs, threaded=False) as driver:
        bodies: dict[int, bytes] = {}
        for round_ in range(5):
            for n in range(60):
                body = b"%d/%d " % (round_, n) + bytes(200)
                stored = driver.put(message(body))[0]
                bodies[stored.queue_offset] = body
                fs.ack(("stored", stored.queue_offset))
            told = 0
            for _ in driver.store.expire(driver.store.full_segments[-1]):
                if driver.store.min_offset("T", 0) > told:
                    told = driver.store.min_offset("T", 0)
                    fs.ack(("gone before", told))
            fs.ack(("gone before", driver.store.min_offset("T", 0)))
    with figures("T14 power cuts", nightly=count > 60, seed=seed, faults=count, lost=0) as line:
        for image, acked in images(fs, count, random.Random(seed)):
            gone = max([offset for what, offset in acked if what == "gone before"], default=0)
            end = max([offset + 1 for what, offset in acked if what == "stored"], default=0)
            with Driver(small(tmp_path), image, threaded=False) as again:
                low = again.store.min_offset("T", 0)
                assert low >= gone
                assert again.store.max_offset("T", 0) >= end
                found = {record.queue_offset: record.body for record in again.read_all()}
                assert again.store.stats().damaged == 0
            wrong = [offset for offset in range(low, end) if found.get(offset) != bodies[offset]]
            line["lost"] += len(wrong)
            assert wrong == []


class EarlyAck(MessageStore):
    """Planted fault: answers after the write, and syncs then."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._work.__class__ = _SyncsLate


class _SyncsLate(GroupWriter):
    def _write(self, chunks: Sequence[Chunk], size: int) -> None:
        self._log.write(chunks)

    def idle(self) -> None:
        self._log.sync()
        super().idle()


def test_ack_before_fdatasync_is_caught() -> None:
    fs, history = recorded(store_type=EarlyAck)
    assert any(judge(image, acked, history).lost for image, acked in images(fs, 200, random.Random(1)))


def table_alarms() -> int:
    fs, history = recorded(steps=200)
    return sum(bool(judge_table(image, acked, history)) for image, acked in images(fs, 300, random.Random(2)))


def test_table_is_old_or_new_after_a_power_cut() -> None:
    """Never a mixture, never empty, never older than what was saved."""
    assert table_alarms() == 0


def test_missing_fdatasync_before_rename_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_sync(fs: Fs, path: Path, data: Data) -> None:
        handle = fs.open(path, create=True)
        fs.truncate(handle, 0)
        fs.pwrite(handle, data, 0)
        fs.close(handle)

    monkeypatch.setattr(tables, "write_synced", without_sync)
    assert table_alarms() > 0


def test_missing_directory_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_directory_sync(fs: Fs, path: Path, data: Data) -> None:
        temporary = path.with_name(path.name + ".tmp")
        tables.write_synced(fs, temporary, data)
        fs.rename(temporary, path)

    monkeypatch.setattr(tables, "replace_file", without_directory_sync)
    assert table_alarms() > 0
