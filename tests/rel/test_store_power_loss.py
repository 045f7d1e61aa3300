"""Power loss, by every kind of disk image that unsynced writes can leave; and proof that the
judgement can fail.
"""

import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ogive.store import Fs, JsonTable, MessageStore, tables
from ogive.store.commitlog import Chunk
from ogive.store.fs import Data
from ogive.store.writer import CommitWriter
from ogive.wire.message import decode_stored
from tests.chaos.recorder import MemoryFs, Operation, RecorderFs, images
from tests.chaos.workload import ROOT, History, Stored, judge, judge_table, run_script
from tests.figures import figures
from tests.stores import Driver, message, small

pytestmark = [
    pytest.mark.rel,
    pytest.mark.result("T11"),
    pytest.mark.computes(20),
    pytest.mark.quick,
]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def recorded(
    flush: Any = "sync",
    steps: int = 300,
    seed: int = 7,
    store_type: type[MessageStore] = MessageStore,
) -> tuple[RecorderFs, History]:
    fs = RecorderFs()
    return fs, run_script(fs, flush, seed, steps, store_type)


def loses_nothing(flush: Any, seeds: int, *, nightly: bool = False) -> None:
    """sync: 0 lost, 0 phantom, 0 damaged. async: only the newest window may be lost, and nothing
    survives behind a loss.
    """
    alarms: list[str] = []
    with figures(
        "T3", nightly=nightly, flush=flush, attempts=0, acknowledged=0, lost=0, faults=0
    ) as line:
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
                    alarms.append(
                        f"seed {seed}, {len(acked)} acknowledged: {verdict} {table}"[:600]
                    )
    assert not alarms, alarms[0]


@pytest.mark.kills(
    "ack before fdatasync",
    "no fdatasync before rename",
    "no directory fsync",
    param="sync",
)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_power_cut_loses_nothing_that_was_acknowledged(flush: Any) -> None:
    loses_nothing(flush, 4)


@pytest.mark.computes(45)
@pytest.mark.nightly
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


@pytest.mark.parametrize("count", [60, pytest.param(3_000, marks=pytest.mark.nightly)])
def test_power_cut_during_a_removal_keeps_what_stays_and_brings_nothing_back(
    tmp_path: Path, count: int
) -> None:
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
            for _ in driver.store.retention.expire(driver.store.retention.full_segments[-1]):
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


class Seen(Stored):
    """A message that a reader got."""


class WatchedFs(RecorderFs):
    """Somebody reads the store whenever it touches a file, and relies on what he saw."""

    def __init__(self) -> None:
        super().__init__()
        self.store: MessageStore | None = None
        self._known: dict[tuple[str, int], int] = {}
        self._looking = False

    def record(self, operation: Operation) -> None:
        # before the call: a sync that has not returned has made nothing durable
        self.look()
        super().record(operation)

    def look(self) -> None:
        if self.store is None or self._looking:
            return
        self._looking = True
        for key in list(self.store.queues):
            first = self._known.get(key, 0)
            for offset, entry in enumerate(self.store.entries(*key, first, 1000), first):
                found = self.store.get(*key, offset, 1, 1 << 20)
                body = decode_stored(b"".join(found.parts)).body if found.count else b""
                self.ack(
                    Seen(
                        *key,
                        offset,
                        entry.commitlog_offset,
                        entry.commitlog_offset + entry.size,
                        body,
                    )
                )
            self._known[key] = self.store.max_offset(*key)
        self._looking = False


def watched(
    seed: int, steps: int, store_type: type[MessageStore] = MessageStore
) -> tuple[WatchedFs, History]:
    fs = WatchedFs()

    class Watched(store_type):  # type: ignore[misc, valid-type]  # the base is a value here
        def start(self, *args: Any, **options: Any) -> None:
            super().start(*args, **options)
            fs.store = self

        def close(self) -> None:
            super().close()
            fs.store = None

    return fs, run_script(fs, "sync", seed, steps, Watched)


def seen_and_lost(
    line: dict[str, Any], seeds: int, cuts: int, store_type: type[MessageStore] = MessageStore
) -> int:
    """How many messages that a reader had seen, at their offsets, a power cut took or put another
    in the place of.
    """
    for seed in range(1, seeds + 1):
        fs, history = watched(seed, 250, store_type)
        for image, acked in images(fs, cuts, random.Random(seed)):
            seen = [ack for ack in acked if isinstance(ack, Seen)]
            line["faults"] += 1
            line["received"] = max(line["received"], len(seen))
            line["lost"] += len(judge(image, seen, history).lost)
    return int(line["lost"])


@pytest.mark.parametrize(
    ("seeds", "cuts"),
    [(1, 200), pytest.param(10, 200, marks=pytest.mark.nightly)],
)
def test_what_a_reader_has_seen_outlives_a_power_cut(seeds: int, cuts: int) -> None:
    with figures("T11 power cuts", nightly=seeds > 1, faults=0, received=0, lost=0) as line:
        assert seen_and_lost(line, seeds, cuts) == 0
        assert line["received"] > 200


class EarlyAck(MessageStore):
    """Planted fault: answers after the write, and syncs then."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._work.__class__ = _SyncsLate


class _SyncsLate(CommitWriter):
    def _write(self, chunks: Sequence[Chunk], size: int) -> None:
        self._log.write(chunks)

    def idle(self) -> None:
        self._log.sync()
        super().idle()


def test_a_reader_that_sees_too_early_is_caught() -> None:
    assert seen_and_lost({"faults": 0, "received": 0, "lost": 0}, 1, 200, EarlyAck) > 0


def test_ack_before_fdatasync_is_caught() -> None:
    fs, history = recorded(store_type=EarlyAck)
    assert any(
        judge(image, acked, history).lost for image, acked in images(fs, 200, random.Random(1))
    )


def table_alarms() -> int:
    fs, history = recorded(steps=200)
    return sum(
        bool(judge_table(image, acked, history))
        for image, acked in images(fs, 300, random.Random(2))
    )


@pytest.mark.kills("no fdatasync before rename", "no directory fsync")
def test_table_is_old_or_new_after_a_power_cut() -> None:
    """Never a mixture, never empty, never older than what was saved."""
    assert table_alarms() == 0


TABLES = ("topics", "subscriptionGroup", "consumerOffset", "delayOffset", "access/access")
SPOILED = {"empty": b"", "null": b"null", "half": None, "another's": b'{"some":"other program"}'}


def a_table(fs: MemoryFs, name: str) -> JsonTable:
    return JsonTable(fs, ROOT / "config" / f"{name}.json", valid=lambda value: "version" in value)


def a_version(name: str, version: int) -> dict[str, Any]:
    return {
        "version": version,
        "table": name,
        "filler": f"{version} " * random.Random(f"{name} {version}").randrange(300),
    }


@pytest.mark.parametrize(
    ("saves", "cuts"),
    [(30, 100), pytest.param(1_000, 5_000, marks=pytest.mark.nightly)],
)
def test_every_table_is_a_saved_version_after_a_power_cut_and_when_it_is_spoiled(
    saves: int, cuts: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is rewritten *saves* times.

    After a cut it is what was saved last, or was being saved. One that is spoiled then is kept
    aside with one warning, and the version before counts.
    """
    caplog.set_level(logging.WARNING, "ogive.store.tables")
    fs, rng = RecorderFs(), random.Random(8)
    tables_ = {name: a_table(fs, name) for name in TABLES}
    for version in range(1, saves + 1):
        for name, table in tables_.items():
            table.save(a_version(name, version))
            fs.ack((name, version))
    with figures(
        "T8", nightly=saves > 30, seed=8, attempts=saves * len(TABLES), faults=0, lost=0
    ) as line:
        for image, acked in images(fs, cuts, rng):
            # the last one of each name
            saved = dict(acked)
            for name in TABLES:
                line["faults"] += 1
                line["lost"] += wrong_after_cut(image, name, saved.get(name, 0))
            name = rng.choice([name for name in TABLES if saved.get(name, 0) > 1] or [""])
            if name:
                line["lost"] += wrong_when_spoiled(image, name, saved[name], rng, caplog)
        assert line["lost"] == 0


def wrong_after_cut(image: MemoryFs, name: str, saved: int) -> bool:
    value = a_table(image, name).load()
    if value is None:
        return saved > 0
    return value["version"] not in (saved, saved + 1) or value != a_version(name, value["version"])


def wrong_when_spoiled(
    image: MemoryFs, name: str, saved: int, rng: random.Random, caplog: pytest.LogCaptureFixture
) -> bool:
    caplog.clear()
    path = ROOT / "config" / f"{name}.json"
    text = SPOILED[rng.choice(list(SPOILED))]
    spoiled = (
        bytes(image.names[path].data[: len(image.names[path].data) // 2]) if text is None else text
    )
    image.names[path].data[:] = spoiled
    value = a_table(image, name).load()
    aside = [other for other in image.names if other.name.startswith(f"{path.name}.corrupt-")]
    kept = len(aside) == 1 and bytes(image.names[aside[0]].data) == spoiled
    before = (
        value is not None
        and value["version"] in (saved - 1, saved, saved + 1)
        and value == a_version(name, value["version"])
    )
    return not (before and kept and len(caplog.messages) == 1)


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
