from pathlib import Path

import pytest

from ogive.errors import StoreCorrupt
from ogive.store.file_reader import Handles
from ogive.store.segments import find_segments, segment_path
from tests.chaos.recorder import MemoryFs

LOG = Path("/log")


def files(*sizes_by_start: tuple[int, int]) -> MemoryFs:
    return MemoryFs(
        {segment_path(LOG, start): bytearray(size) for start, size in sizes_by_start},
        {Path("/"), LOG},
    )


def test_size_is_read_from_what_is_there() -> None:
    found = find_segments(files((2048, 1024), (3072, 1024)), LOG, 4096)
    assert (found.starts, found.segment_bytes, found.end) == ((2048, 3072), 1024, 4096)
    assert find_segments(files((0, 512)), LOG, 4096).segment_bytes == 512
    assert find_segments(files(), LOG, 4096).segment_bytes == 4096


def test_short_or_empty_last_file_is_what_a_crash_leaves() -> None:
    assert find_segments(files((0, 1024), (1024, 0)), LOG, 4096).end == 2048
    assert find_segments(files((0, 0)), LOG, 4096).segment_bytes == 4096


@pytest.mark.parametrize(
    "wrong", [((0, 1024), (1024, 1024), (3072, 1024)), ((0, 1024), (1024, 2048)), ((100, 1024),)]
)
def test_gap_or_odd_size_is_refused(wrong: tuple[tuple[int, int], ...]) -> None:
    """Rather than guessing which bytes are whose."""
    with pytest.raises(StoreCorrupt, match="/log"):
        find_segments(files(*wrong), LOG, 4096)


def test_other_names_are_ignored() -> None:
    fs = files((0, 1024))
    fs.names[LOG / "notes.txt"] = fs.names[segment_path(LOG, 0)]
    assert find_segments(fs, LOG, 4096).starts == (0,)


def test_handles_are_bounded() -> None:
    fs = files(*[(start, 16) for start in range(0, 160, 16)])
    handles = Handles(fs, 3)
    for _ in range(2):
        for start in range(0, 160, 16):
            handles.get(segment_path(LOG, start))
            assert len(fs._handles) <= 3
    handles.close()
    assert not fs._handles
