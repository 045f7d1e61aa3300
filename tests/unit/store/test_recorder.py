"""The recorder of tests/chaos itself: what it keeps, loses and tears."""

import random
from pathlib import Path

from tests.chaos.recorder import RecorderFs, images

F = Path("/d/f")


def recorded() -> RecorderFs:
    fs = RecorderFs()
    fs.make_dirs(Path("/d"))
    fs.fsync_dir(Path("/"))
    return fs


def states(fs: RecorderFs) -> set[bytes | None]:
    found: set[bytes | None] = set()
    for image, _ in images(fs, 400, random.Random(1)):
        found.add(bytes(image.names[F].data) if F in image.names else None)
    return found


def test_synced_file_with_a_synced_name_always_survives() -> None:
    fs = recorded()
    handle = fs.open(F, create=True)
    fs.pwrite(handle, b"x", 0)
    fs.fdatasync(handle)
    fs.fsync_dir(Path("/d"))
    fs.operations.append(fs.operations[0])
    done = len(fs.operations)
    fs.ack("done")
    for image, acked in images(fs, 400, random.Random(1)):
        if acked:
            assert bytes(image.names[F].data) == b"x"
    assert done == len(fs.operations) - 1


def test_unsynced_name_or_content_may_be_lost() -> None:
    fs = recorded()
    handle = fs.open(F, create=True)
    fs.pwrite(handle, b"x", 0)
    assert {None, b"", b"x"} <= states(fs)


def test_sectors_land_one_by_one() -> None:
    fs = recorded()
    handle = fs.open(F, create=True)
    fs.fsync_dir(Path("/d"))
    fs.pwrite(handle, bytes(1024), 0)
    fs.fdatasync(handle)
    fs.pwrite(handle, b"a" * 512 + b"b" * 512, 0)
    found = states(fs)
    assert {
        b"a" * 512 + bytes(512),
        bytes(512) + b"b" * 512,
        b"a" * 512 + b"b" * 512,
        bytes(1024),
    } <= found


def test_renames_land_in_order() -> None:
    fs = recorded()
    for name in (b"1", b"2"):
        handle = fs.open(Path("/d/t"), create=True)
        fs.pwrite(handle, name, 0)
        fs.fdatasync(handle)
        fs.close(handle)
        fs.rename(Path("/d/t"), F)
    assert states(fs) == {None, b"1", b"2"}
