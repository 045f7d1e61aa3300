"""Deleted topics with many queues: their files go in pieces, and other messages come in between."""

import errno
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ogive.errors import StoreFull
from ogive.store import Fs, MessageStore
from ogive.store.writer import CommitWriter
from tests.chaos.faults import FailFrom, FaultyFs
from tests.chaos.recorder import MemoryFs, Operation, RecorderFs
from tests.stores import Clock, Driver, OneByOne, message, read_queue, run_now, small

ROOT = Path("/store")
QUEUES = 8
WIDE = ROOT / "consumequeue" / "Wide"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue is two or three paths: a file, its directory, and that there is no more."""
    monkeypatch.setattr("ogive.store.deletions.PATHS_AT_ONCE", 4)


class Run:
    """A store with the queues of *topics* in files."""

    def __init__(
        self, fs: Fs, root: Path = ROOT, topics: tuple[str, ...] = ("Wide",), **changes: Any
    ) -> None:
        self.store = MessageStore.open(small(root, **changes), fs=fs, clock_ms=Clock())
        self.writers: list[OneByOne] = []
        self.store.start(run_now, writer=self._make)
        self.writer = self.writers[0]
        self.answered: list[object] = []
        for topic in topics:
            for queue_id in range(QUEUES):
                self.put(topic, b"old", queue_id)
        self.put("Other", b"before")
        self.writer.run()
        self.store._flushes.flush()
        self.writer.run()
        self.answered.clear()

    def _make(self, work: CommitWriter, most: int) -> OneByOne:
        self.writers.append(OneByOne(work, most))
        return self.writers[0]

    def put(self, topic: str, body: bytes, queue_id: int = 0) -> None:
        self.store.put([message(body, topic, queue_id)], self.answered.append)
        self.store.submit()

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        return [record.body for record in read_queue(self.store, topic, queue_id)]


class CountingFs(MemoryFs):
    def __init__(self) -> None:
        super().__init__()
        self.listed: Counter[Path] = Counter()

    def list(self, directory: Path) -> list[str]:
        self.listed[directory] += 1
        return super().list(directory)

    def remove_dir(self, directory: Path) -> None:
        before = self.listed.copy()
        # which looks whether it is empty
        super().remove_dir(directory)
        self.listed = before


def test_each_directory_is_read_once() -> None:
    """That of the topic was read again after each queue: half a million names for a thousand of
    them.
    """
    fs = CountingFs()
    run = Run(fs)
    fs.listed.clear()
    run.store.topics.delete("Wide")
    run.writer.run()
    assert run.store.topics.is_deletion_saved("Wide")
    assert fs.listed == {WIDE: 1} | {WIDE / str(queue_id): 1 for queue_id in range(QUEUES)}
    assert WIDE not in fs.directories
    run.store.close()


def test_messages_that_are_put_meanwhile_are_answered_before_everything_is_removed() -> None:
    fs = MemoryFs()
    run = Run(fs)
    run.store.topics.delete("Wide")
    run.put("Other", b"meanwhile")
    while not run.answered:
        run.writer.step()
    assert len(fs.list(WIDE)) > QUEUES // 2
    assert not run.store.topics.is_deletion_saved("Wide")
    assert run.bodies("Other") == [b"before", b"meanwhile"]
    run.writer.run()
    assert run.store.topics.is_deletion_saved("Wide")
    assert WIDE not in fs.directories
    run.store.close()


def test_messages_that_were_put_before_do_not_wait_for_its_checkpoint_and_files() -> None:
    """In the same turn of the owner, which hands them over at its end."""
    fs = MemoryFs()
    run = Run(fs)
    run.store.put([message(b"before", "Other")], run.answered.append)
    run.store.topics.delete("Wide")
    run.writer.step()
    assert len(run.answered) == 1
    assert len(fs.list(WIDE)) == QUEUES
    run.writer.run()
    run.store.close()


def test_the_files_of_several_topics_go_one_after_the_other() -> None:
    fs = MemoryFs()
    topics = tuple(f"T{n}" for n in range(5))
    run = Run(fs, topics=topics)
    for topic in topics:
        run.store.topics.delete(topic)
    assert len(run.writer.posted) == 1
    run.put("Other", b"meanwhile")
    while not run.answered:
        run.writer.step()
    assert fs.list(ROOT / "consumequeue") == ["Other", *topics]
    run.writer.run()
    assert all(run.store.topics.is_deletion_saved(topic) for topic in topics)
    assert fs.list(ROOT / "consumequeue") == ["Other"]
    run.store.close()


def test_a_topic_that_is_made_again_meanwhile_keeps_its_files() -> None:
    """What comes for it goes to files when the old ones are gone: they have the same names."""
    fs = MemoryFs()
    run = Run(fs, hot_entries=1)
    run.store.topics.delete("Wide")
    for n in range(40):
        for queue_id in range(QUEUES):
            run.put("Wide", b"new %d" % n, queue_id)
        if run.writer.posted:
            run.writer.step()
    run.writer.run()
    new = [b"new %d" % n for n in range(40)]
    assert [run.bodies("Wide", queue_id) for queue_id in range(QUEUES)] == [new] * QUEUES
    run.store.close()
    with Driver(small(ROOT), fs, threaded=False) as again:
        assert [again.bodies("Wide", queue_id) for queue_id in range(QUEUES)] == [new] * QUEUES


@pytest.mark.parametrize("steps", range(5))
def test_a_stop_meanwhile_removes_the_rest(steps: int) -> None:
    fs = MemoryFs()
    run = Run(fs)
    run.store.topics.delete("Wide")
    for _ in range(steps):
        run.writer.step()
    assert WIDE in fs.directories
    run.store.close()
    assert WIDE not in fs.directories
    with Driver(small(ROOT), fs, threaded=False) as again:
        assert again.store.topics.was_deleted("Wide")
        assert not again.store.topics.has("Wide")


class EveryChange(RecorderFs):
    """Keeps what a process that dies leaves behind at each change."""

    armed = False

    def __init__(self) -> None:
        super().__init__()
        self.left: list[MemoryFs] = []

    def record(self, operation: Operation) -> None:
        super().record(operation)
        if self.armed:
            self.left.append(self.copy())


def test_a_death_meanwhile_leaves_a_topic_that_can_be_deleted_again_or_nothing_of_it() -> None:
    """Also where so much is put between two pieces that queue files and a checkpoint would be
    due.
    """
    fs = EveryChange()
    run = Run(fs, flush_bytes=256, checkpoint_bytes=512)
    fs.armed = True
    run.store.topics.delete("Wide")
    while not run.store.topics.is_deletion_saved("Wide"):
        run.put("Other", bytes(600))
        run.writer.step()
    run.store.close()
    whole = 0
    for image in fs.left:
        with Driver(small(ROOT), image, threaded=False) as again:
            assert again.bodies("Other")[0] == b"before"
            if again.store.topics.has("Wide"):
                whole += 1
                assert [again.bodies("Wide", queue_id) for queue_id in range(QUEUES)] == [
                    [b"old"]
                ] * QUEUES
                again.store.topics.delete("Wide")
            else:
                assert again.store.topics.was_deleted("Wide")
            assert again.store.topics.is_deletion_saved("Wide")
            assert WIDE not in image.directories
    assert 2 * QUEUES < whole < len(fs.left)


def test_files_that_cannot_be_removed_stay_and_the_next_topic_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing = FailFrom("unlink", "Wide", 5, 1)
    run = Run(FaultyFs(failing), tmp_path, ("Wide", "Next"))
    failing.armed = True
    for topic in ("Wide", "Next"):
        run.store.topics.delete(topic)
    run.writer.run()
    assert all(run.store.topics.is_deletion_saved(topic) for topic in ("Wide", "Next"))
    assert caplog.text.count("could not remove the files of a deleted topic") == 1
    assert len(list((tmp_path / "consumequeue" / "Wide").iterdir())) == QUEUES - 5
    assert not (tmp_path / "consumequeue" / "Next").exists()
    run.store.close()
    with Driver(small(tmp_path)) as again:
        assert not again.store.topics.has("Wide")
        assert again.put(message(b"new", "Wide"))[0].queue_offset == 0


def test_a_store_that_fails_meanwhile_removes_no_more(tmp_path: Path) -> None:
    """As after a crash: the next start has the topic, and it can be deleted again."""
    failing = FailFrom("fdatasync", "commitlog", 0, 1)
    run = Run(FaultyFs(failing), tmp_path)
    run.store.topics.delete("Wide")
    run.writer.step()
    failing.armed = True
    run.put("Other", b"meanwhile")
    run.writer.run()
    assert run.store.failed is not None
    left = len(list((tmp_path / "consumequeue" / "Wide").iterdir()))
    run.store.close()
    assert 0 < left == len(list((tmp_path / "consumequeue" / "Wide").iterdir())) < QUEUES
    with Driver(small(tmp_path), threaded=False) as again:
        assert [again.bodies("Wide", queue_id) for queue_id in range(QUEUES)] == [[b"old"]] * QUEUES
        again.store.topics.delete("Wide")
        assert again.store.topics.is_deletion_saved("Wide")
        assert not (tmp_path / "consumequeue" / "Wide").exists()


def test_a_full_disk_is_asked_again_once_everything_is_removed(tmp_path: Path) -> None:
    """Until then the deletion is under way: it is not answered that there is no room."""
    wide = tmp_path / "consumequeue" / "Wide"

    def fault(call: str, path: Path) -> None:
        if full and wide.exists() and call in ("create", "pwrite") and "consumequeue" in path.parts:
            raise OSError(errno.ENOSPC, "no space")

    full = False
    run = Run(FaultyFs(fault), tmp_path)
    full = True
    run.put("New", b"needs a file")
    run.writer.run()
    run.store._flushes.flush()
    run.writer.run()
    with pytest.raises(StoreFull):
        run.put("New", b"refused")
    run.store.topics.delete("Wide")
    while run.writer.posted:
        run.store.topics.is_deletion_saved("Wide")
        run.writer.step()
    assert run.store.topics.is_deletion_saved("Wide")
    assert not wide.exists()
    run.store.close()
    with Driver(small(tmp_path)) as again:
        assert (again.bodies("New"), again.store.topics.has("Wide")) == ([b"needs a file"], False)
