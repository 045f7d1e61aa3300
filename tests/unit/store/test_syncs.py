"""What of a store a power cut could take: derived files, which a start makes anew, and nothing
else.
"""

from pathlib import Path

import pytest

from tests.chaos.unsynced import UnsyncedFs
from tests.stores import Driver, crash, message, small

DERIVED = ("consumequeue", "index")


class Watched(UnsyncedFs):
    """Keeps what is not synced when a new file takes the place of an old one."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self.at_a_name: dict[str, set[Path]] = {}

    def left(self) -> set[Path]:
        """Return what is not synced, except for derived files."""
        found = {path.relative_to(self.root.parent) for path in self.unsynced}
        return {path for path in found if path.parts[1:2] not in [(name,) for name in DERIVED]}

    def rename(self, source: Path, target: Path) -> None:
        self.at_a_name[target.name] = self.left() - {target.parent.relative_to(self.root.parent)}
        super().rename(source, target)


@pytest.fixture
def fs(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "store")


def test_nothing_is_left_while_a_store_with_synchronous_flush_runs(fs: Watched) -> None:
    with Driver(small(fs.root), fs, threaded=False) as driver:
        # it knows that the last run did not stop
        assert fs.left() == set()
        for number in range(60):
            driver.put(message(b"%d" % number * 200))
            assert fs.left() == set()
        assert len(fs.list(fs.root / "commitlog")) > 1
    assert fs.left() == set()


def test_a_checkpoint_is_of_a_part_of_the_log_that_is_synced(fs: Watched) -> None:
    changes = {"flush": "async", "async_window_s": 3600.0, "async_window_bytes": 1 << 30}
    with Driver(small(fs.root, **changes), fs, threaded=False) as driver:
        for number in range(60):
            driver.put(message(b"%d" % number * 200))
        assert fs.at_a_name["queues.json"] == set()
        driver.put(message(b"last"))
        # it would be synced by and by
        assert fs.left() != set()
    assert fs.left() == set()


def test_a_start_syncs_what_the_run_before_may_not_have_synced(fs: Watched) -> None:
    """Another broker, or one with asynchronous flush, that was killed: the next checkpoint says
    that all of it is on the disk.
    """
    late = {"checkpoint_bytes": 1 << 20, "flush_bytes": 1 << 20}
    killed = Driver(small(fs.root, **late), threaded=False)
    for number in range(60):
        killed.put(message(b"%d" % number * 200))
    crash(killed)
    log = fs.root / "commitlog"
    fs.unsynced |= {log, *log.iterdir()}
    with Driver(small(fs.root), fs, threaded=False):
        assert fs.at_a_name["queues.json"] == set()
