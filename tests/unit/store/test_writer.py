from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ogive.errors import StoreFailed
from ogive.store.commitlog import LogWriter
from ogive.store.writer import Group, GroupWriter, Outcome, join_extents
from tests.chaos.recorder import RecorderFs, Sync, Write

LOG = Path("/log")


class Recorded:
    """A GroupWriter over a recorder, and what it reported."""

    def __init__(self, flush: Any, **changes: Any) -> None:
        self.fs = RecorderFs()
        self.fs.make_dirs(LOG)
        self.now = 0.0
        self.outcomes: list[Outcome] = []
        self.log = LogWriter(self.fs, LOG, 4096, 0)
        settings: dict[str, Any] = {"window_bytes": 1000, "window_s": 0.5, "ahead_bytes": 0} | changes
        self.work = GroupWriter(self.log, self._complete, flush=flush, monotonic=lambda: self.now, **settings)
        self.end = 0

    def _complete(self, groups: Sequence[Group], outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.fs.ack(len(self.outcomes))

    def commit(self, size: int) -> None:
        data = bytes([1]) * size
        group = Group(self.end, self.end + size, [(self.end, [data])], [data])
        self.end += size
        self.work.commit([group])

    @property
    def unsynced(self) -> int:
        """Bytes of records written since the last sync."""
        total = 0
        for operation in self.fs.operations:
            if isinstance(operation, Sync):
                total = 0
            elif isinstance(operation, Write) and any(operation.data):
                total += len(operation.data)
        return total


def test_sync_mode_answers_after_the_sync() -> None:
    recorded = Recorded("sync")
    for _ in range(3):
        recorded.commit(100)
        assert recorded.unsynced == 0
    kinds = [type(operation).__name__ for operation in recorded.fs.operations if not isinstance(operation, Write) or any(operation.data)]
    assert kinds[-3:] == ["Write", "Sync", "Ack"]
    assert len(recorded.outcomes) == 3


def test_async_mode_never_has_more_than_the_window_unsynced() -> None:
    recorded = Recorded("async")
    for _ in range(50):
        recorded.commit(300)
        assert recorded.unsynced <= 1000
    assert len(recorded.outcomes) == 50


def test_async_mode_answers_a_write_larger_than_the_window_after_its_sync() -> None:
    recorded = Recorded("async")
    recorded.commit(300)
    recorded.commit(2500)
    assert recorded.unsynced == 0
    assert len(recorded.outcomes) == 2


def test_async_mode_syncs_half_a_second_after_the_first_unsynced_byte() -> None:
    """Also on a topic that goes quiet."""
    recorded = Recorded("async")
    assert recorded.work.sync_in() > 1000
    recorded.commit(100)
    assert recorded.work.sync_in() == 0.5
    recorded.now = 0.4
    recorded.commit(100)
    assert recorded.work.sync_in() == pytest.approx(0.1)
    recorded.now = 0.6
    assert recorded.work.sync_in() == 0.0
    recorded.work.sync_now()
    assert recorded.unsynced == 0
    assert recorded.work.sync_in() > 1000


def test_segment_is_synced_before_the_next_one_is_written() -> None:
    recorded = Recorded("async", window_bytes=100_000)
    recorded.commit(4000)
    pieces = [bytes([1]) * 100]
    recorded.work.commit([Group(4000, 4196, [(4000, [b"blank..."]), (4096, pieces)], pieces)])
    assert recorded.unsynced == 100


def test_zeros_are_written_ahead_so_that_a_record_extends_nothing() -> None:
    recorded = Recorded("sync", ahead_bytes=2048)
    recorded.work.idle()
    assert recorded.log.prepared >= 2048
    before = len(recorded.fs.operations)
    recorded.commit(500)
    assert [type(operation).__name__ for operation in recorded.fs.operations[before:]] == ["Write", "Sync", "Ack"]


def test_failed_sync_is_never_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next sync would succeed, and lie."""
    recorded = Recorded("sync")
    recorded.commit(100)
    calls: list[int] = []

    def fail_once(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 1:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(recorded.fs, "fdatasync", fail_once)
    for _ in range(3):
        recorded.commit(100)
        recorded.work.sync_now()
        recorded.work.idle()
    assert len(calls) == 1
    assert [isinstance(outcome, StoreFailed) for outcome in recorded.outcomes] == [False, True, True, True]


def test_groups_that_wait_together_become_one_write() -> None:
    first = Group(0, 5, [(0, [b"ab", b"c"])], [])
    second = Group(5, 30, [(5, [b"blank"]), (20, [b"de"])], [])
    third = Group(30, 31, [(30, [b"f"])], [])
    assert join_extents([first, second]) == [(0, b"abcblank"), (20, b"de")]
    assert join_extents([second, third])[-1] == (20, b"def")
