"""Tables are written off the loop, one write at a time, many changes in one."""

import asyncio
import itertools
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from ogive.broker.state import config_table
from ogive.broker.state.config_table import ProgressSaver, TableWriter
from ogive.errors import StoreError
from ogive.store.fs import OsFs
from ogive.store.tables import JsonTable


class SlowTable(JsonTable):
    """Notes what it is asked to save; a save waits for *go*, and fails while *error* is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(OsFs(), folder / "table.json")
        self.saved: list[dict[str, Any]] = []
        self.threads: set[int] = set()
        self.go = threading.Event()
        self.go.set()
        self.error: OSError | None = None

    def save(self, value: dict[str, Any]) -> None:
        assert self.go.wait(60.0)
        if self.error is not None:
            raise self.error
        self.threads.add(threading.get_ident())
        self.saved.append(value)


def writer_of(table: SlowTable) -> tuple[TableWriter, dict[str, int]]:
    """A writer, and the state that it saves."""
    state = {"n": 0}

    def snapshot() -> Any:
        now = dict(state)
        return lambda: now

    return TableWriter("numbers", table, snapshot), state


async def test_what_was_changed_before_the_call_is_in_the_file_after_it(tmp_path: Path) -> None:
    table = SlowTable(tmp_path)
    writer, state = writer_of(table)
    await writer.saved()
    assert table.saved == []
    state["n"] = 1
    writer.mark()
    assert writer.unsaved
    await writer.saved()
    assert table.saved == [{"n": 1}]
    assert not writer.unsaved
    assert threading.get_ident() not in table.threads


async def test_changes_made_during_a_write_share_the_next_one(tmp_path: Path) -> None:
    table = SlowTable(tmp_path)
    table.go.clear()
    writer, state = writer_of(table)
    waiting = []
    for n in range(1, 51):
        state["n"] = n
        writer.start()
        waiting.append(asyncio.ensure_future(writer.saved()))
        await asyncio.sleep(0)
    table.go.set()
    await asyncio.gather(*waiting)
    assert [saved["n"] for saved in table.saved] == [1, 50]


async def test_a_change_is_written_in_the_background_without_anybody_waiting(
    tmp_path: Path,
) -> None:
    table = SlowTable(tmp_path)
    writer, state = writer_of(table)
    state["n"] = 7
    writer.start()
    async with asyncio.timeout(60):
        while writer.unsaved:
            await asyncio.sleep(0)
    assert table.saved == [{"n": 7}]


async def test_a_failed_write_is_an_error_for_everybody_who_waits_and_is_made_good_by_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = SlowTable(tmp_path)
    table.error = OSError(28, "No space left on device")
    writer, state = writer_of(table)
    state["n"] = 1
    with caplog.at_level(logging.ERROR):
        writer.start()
        results = await asyncio.gather(writer.saved(), writer.saved(), return_exceptions=True)
    assert [type(result) for result in results] == [StoreError, StoreError]
    assert "could not save numbers" in caplog.text
    assert writer.unsaved
    table.error = None
    await writer.saved()
    assert table.saved == [{"n": 1}]


async def test_who_waits_for_a_version_is_not_told_of_the_failure_of_a_later_one(
    tmp_path: Path,
) -> None:
    table = SlowTable(tmp_path)
    save = table.save

    def save_one(value: dict[str, Any]) -> None:
        save(value)
        table.error = OSError(28, "No space left on device")

    table.save = save_one  # type: ignore[method-assign]
    table.go.clear()
    writer, _ = writer_of(table)
    writer.start()
    first = asyncio.ensure_future(writer.saved(1))
    await asyncio.sleep(0)
    writer.mark()
    table.go.set()
    await first
    assert (writer.written, writer.version) == (1, 2)
    writer.check(1)
    with pytest.raises(StoreError, match="its disk is full"):
        writer.check(2)
    writer.mark()
    # not tried yet
    writer.check(3)


async def test_what_could_not_be_saved_is_tried_again_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = SlowTable(tmp_path)
    table.error = OSError(28, "No space left on device")
    writer, _ = writer_of(table)
    writer.mark()
    with pytest.raises(StoreError):
        await writer.saved()
    table.error = None
    writer.save_again()
    assert writer._writing is None
    monkeypatch.setattr(config_table, "RETRY_S", 0.0)
    with pytest.raises(StoreError, match="could not save numbers"):
        writer.check(1)
    assert writer._writing is not None
    await writer.saved()
    writer.check(1)
    writer.save_again()
    assert (writer._writing, len(table.saved)) == (None, 1)


async def test_a_cancelled_waiter_does_not_stop_the_write(tmp_path: Path) -> None:
    table = SlowTable(tmp_path)
    table.go.clear()
    writer, state = writer_of(table)
    for n in itertools.islice(itertools.count(1), 2):
        state["n"] = n
        writer.mark()
    impatient = asyncio.ensure_future(writer.saved())
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    table.go.set()
    await writer.saved()
    assert table.saved == [{"n": 2}]


class Steps:
    """A table that counts."""

    def __init__(self) -> None:
        self.version = 0

    def snapshot(self) -> Any:
        version = self.version
        return lambda: {"n": version}


async def test_progress_is_written_only_after_the_log_was_synced_and_as_it_stood_before(
    tmp_path: Path,
) -> None:
    """What comes in during the sync may not be durable yet: it is left to the next save."""
    table, steps = SlowTable(tmp_path), Steps()
    events: list[str] = []

    async def synced() -> None:
        events.append(f"sync, {len(table.saved)} saved")
        steps.version += 1

    progress = ProgressSaver("steps", steps, table, synced)
    await progress.save()
    assert events == []
    steps.version = 5
    await progress.save()
    assert (events, table.saved) == (["sync, 0 saved"], [{"n": 5}])
    await progress.save()
    assert table.saved == [{"n": 5}, {"n": 6}]


async def test_two_that_save_at_a_time_save_one_after_the_other(tmp_path: Path) -> None:
    """What the second has to save is not durable when the first has synced."""
    table, steps = SlowTable(tmp_path), Steps()
    syncs: list[asyncio.Future[None]] = []

    async def synced() -> None:
        syncs.append(asyncio.get_running_loop().create_future())
        await syncs[-1]

    progress = ProgressSaver("steps", steps, table, synced)
    steps.version = 1
    first = asyncio.ensure_future(progress.save())
    await asyncio.sleep(0)
    steps.version = 2
    second = asyncio.ensure_future(progress.save())
    await asyncio.sleep(0)
    syncs[0].set_result(None)
    await first
    assert table.saved == [{"n": 1}]
    await asyncio.sleep(0)
    syncs[1].set_result(None)
    await second
    assert table.saved == [{"n": 1}, {"n": 2}]


async def test_progress_is_not_written_when_the_log_cannot_be_synced(tmp_path: Path) -> None:
    table, steps = SlowTable(tmp_path), Steps()

    async def synced() -> None:
        raise StoreError("syncing the commit log failed")

    steps.version = 1
    with pytest.raises(StoreError):
        await ProgressSaver("steps", steps, table, synced).save()
    assert table.saved == []
