"""T10: a real file system of 16 MiB that fills up and gets room again, ten times, under a broker's store."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ogive.errors import StoreFull
from ogive.store import StoreConfig
from tests.figures import figures
from tests.stores import Driver, message

pytestmark = [pytest.mark.rel, pytest.mark.nightly]

MIB = 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root may mount a file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode()[:200]}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk_refuses_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    """Refused sends lose nothing, reads go on, no record is torn, and nothing has to be started again."""
    now = [0.0]
    config = StoreConfig(root=small_disk / "store", segment_bytes=MIB, ahead_bytes=0, hot_log_bytes=MIB, index_slots=1000)
    driver = Driver(config)
    driver.store._monotonic = lambda: now[0]
    acked: list[bytes] = []
    ballast = small_disk / "ballast"
    with figures("T10", nightly=True, faults=10) as line:
        for round_ in range(10):
            ballast.write_bytes(bytes(MIB * (10 - round_)))
            refused = 0
            while not refused:
                body = b"%d/%d " % (round_, len(acked)) + bytes(4000)
                try:
                    driver.put(message(body))
                    acked.append(body)
                except StoreFull:
                    refused += 1
                assert len(acked) < 5000, "the disk was never full"
            assert driver.store.failed is None
            assert driver.bodies() == acked
            ballast.unlink()
            now[0] += 2.0
        line["attempts"], line["acknowledged"] = len(acked) + 10, len(acked)
        driver.put(message(b"last"))
        driver.close()
        with Driver(config) as again:
            assert again.bodies() == [*acked, b"last"]
            line["received"], line["lost"] = len(acked), 0
