import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ogive.store import OsFs
from ogive.store.fs import Data, ReadOnlyFs, reason


def test_pwrite_and_pread_beyond_the_end(tmp_path: Path) -> None:
    """A write may leave a hole, which reads as zeros; a read past the end is short."""
    fs = OsFs()
    handle = fs.open(tmp_path / "f", create=True)
    fs.pwrite(handle, b"abc", 5)
    assert fs.pread(handle, 100, 0) == bytes(5) + b"abc"
    fs.truncate(handle, 6)
    assert fs.size(handle) == 6
    fs.close(handle)


@pytest.mark.parametrize(
    ("size", "expected"), [(7, b"cdefghi"), (8, b"cdefghij"), (20, b"cdefghij")]
)
def test_a_read_that_comes_in_pieces_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, expected: bytes
) -> None:
    """As a signal, or a file system over the network, may cut it."""
    fs, pread = OsFs(), os.pread
    handle = fs.open(tmp_path / "f", create=True)
    fs.pwrite(handle, b"abcdefghij", 0)
    monkeypatch.setattr(
        os, "pread", lambda handle, size, offset: pread(handle, min(size, 3), offset)
    )
    assert fs.pread(handle, size, 2) == expected
    fs.close(handle)


@pytest.mark.parametrize("answer", [None, errno.EOPNOTSUPP, errno.EINVAL])
def test_reserved_bytes_have_room_and_read_as_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int | None
) -> None:
    """Also on a file system that cannot reserve: there zeros are written."""
    fs = OsFs()
    if answer is not None:
        monkeypatch.setattr(
            os,
            "posix_fallocate",
            lambda *_: (_ for _ in ()).throw(OSError(answer, os.strerror(answer))),
        )
    handle = fs.open(tmp_path / "f", create=True)
    fs.truncate(handle, 1 << 20)
    fs.reserve(handle, 65536, 4096)
    fs.fdatasync(handle)
    assert 512 * os.fstat(handle).st_blocks >= 65536
    assert (fs.size(handle), fs.pread(handle, 1 << 20, 0)) == (1 << 20, bytes(1 << 20))
    fs.close(handle)


def test_a_disk_without_room_to_reserve_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        os,
        "posix_fallocate",
        lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")),
    )
    fs = OsFs()
    handle = fs.open(tmp_path / "f", create=True)
    with pytest.raises(OSError, match="No space left"):
        fs.reserve(handle, 65536, 0)
    fs.close(handle)


@pytest.mark.parametrize("holes", [True, False])
@pytest.mark.parametrize("at", [0, 5, 4096, 200_000])
def test_cleared_bytes_read_as_zeros_and_the_rest_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, holes: bool
) -> None:
    """Also on a system that does not know holes."""
    if not holes:
        monkeypatch.delattr(os, "SEEK_DATA")
    fs = OsFs()
    handle = fs.open(tmp_path / "f", create=True)
    fs.truncate(handle, 1 << 20)
    for offset in (0, 4000, 70_000, 199_998, (1 << 20) - 3):
        fs.pwrite(handle, b"abc", offset)
    before = fs.pread(handle, at, 0)
    fs.clear(handle, at)
    assert fs.pread(handle, 1 << 21, 0) == before + bytes((1 << 20) - at)
    assert os.fstat(handle).st_blocks * 512 < 1 << 19, "zeros were written into holes"
    fs.clear(handle, 1 << 20)
    fs.close(handle)


def test_clearing_goes_from_the_end_to_the_beginning(tmp_path: Path) -> None:
    """So that a record that is cut in between is found at the same place by the next start."""
    begun = []

    class Watched(OsFs):
        def pwrite(self, handle: int, data: Data, offset: int) -> None:
            begun.append(offset)
            super().pwrite(handle, data, offset)

    fs = Watched()
    handle = fs.open(tmp_path / "f", create=True)
    fs.pwrite(handle, b"x" * 300_000, 0)
    begun.clear()
    fs.clear(handle, 100)
    assert begun == [262_144, 196_608, 131_072, 65_536, 100]
    fs.close(handle)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.EROFS, "its file system is read-only"),
        (errno.EACCES, "this user has no permission for /data/lock"),
        (errno.ENOSPC, "its disk is full"),
        (errno.EFBIG, "a file of it would be larger than this process may write (ulimit -f)"),
        (errno.EIO, "/data/lock: Input/output error"),
    ],
)
def test_the_reason_of_a_failure_is_said_in_words(code: int, says: str) -> None:
    assert reason(OSError(code, os.strerror(code), "/data/lock")) == says
    assert "None" not in reason(OSError(code, os.strerror(code)))


def test_list_of_a_missing_directory_is_empty(tmp_path: Path) -> None:
    assert OsFs().list(tmp_path / "nothing") == []


def test_make_dirs_names_what_it_made(tmp_path: Path) -> None:
    """So that the caller can sync their parents."""
    fs = OsFs()
    assert set(fs.make_dirs(tmp_path / "a" / "b")) == {tmp_path / "a", tmp_path / "a" / "b"}
    assert fs.make_dirs(tmp_path / "a" / "b") == []


def test_lock_is_exclusive_and_ends_with_its_handle(tmp_path: Path) -> None:
    fs = OsFs()
    first = fs.lock(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        fs.lock(tmp_path / "lock")
    fs.close(first)
    fs.close(fs.lock(tmp_path / "lock"))


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        OsFs().open(tmp_path / "link", create=True)


def test_handles_are_not_inherited(tmp_path: Path) -> None:
    fs = OsFs()
    handle = fs.open(tmp_path / "f", create=True)
    assert not os.get_inheritable(handle)
    fs.close(handle)


def test_what_is_made_is_for_its_user_alone(tmp_path: Path) -> None:
    """Bodies of messages are in there, and umasks usually let everybody read."""
    before = os.umask(0)
    try:
        OsFs().make_dirs(tmp_path / "data" / "commitlog")
        OsFs().close(OsFs().open(tmp_path / "data" / "commitlog" / "0", create=True))
    finally:
        os.umask(before)
    made = [
        tmp_path / "data",
        tmp_path / "data" / "commitlog",
        tmp_path / "data" / "commitlog" / "0",
    ]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700, 0o700, 0o600]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(errno.EAGAIN, None), (errno.EOPNOTSUPP, b"abc"), (errno.EIO, OSError), (0, b"abc")],
)
def test_a_read_that_would_wait_for_the_disk_is_left_to_a_thread(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: int,
    expected: bytes | type[OSError] | None,
) -> None:
    """None says so; a file system that cannot say so is read at once."""
    fs, preadv = OsFs(), os.preadv
    handle = fs.open(tmp_path / "f", create=True)
    fs.pwrite(handle, b"abc", 0)

    def answered(handle: int, rooms: list[memoryview], offset: int, flags: int) -> int:
        if answer:
            raise OSError(answer, os.strerror(answer))
        return preadv(handle, [rooms[0][:2]], offset)

    monkeypatch.setattr(os, "preadv", answered)
    for _ in range(2):
        if expected is OSError:
            with pytest.raises(OSError, match="Input/output"):
                fs.pread_now(handle, 3, 0)
        else:
            assert fs.pread_now(handle, 10, 0) == expected
    fs.close(handle)


def test_a_write_that_comes_in_pieces_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, pwrite = OsFs(), os.pwrite
    handle = fs.open(tmp_path / "f", create=True)
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: pwrite(handle, data[:3], at))
    fs.pwrite(handle, b"abcdefgh", 1)
    assert fs.pread(handle, 20, 0) == b"\0abcdefgh"
    fs.close(handle)


def test_files_that_are_only_read_refuse_every_change(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    fs = ReadOnlyFs()
    handle = fs.open(tmp_path / "f")
    changes: list[Callable[[], object]] = [
        lambda: fs.pwrite(handle, b"x", 0),
        lambda: fs.reserve(handle, 8, 0),
        lambda: fs.truncate(handle, 1),
        lambda: fs.clear(handle, 0),
        lambda: fs.make_dirs(tmp_path / "d"),
        lambda: fs.rename(tmp_path / "f", tmp_path / "g"),
        lambda: fs.unlink(tmp_path / "f"),
        lambda: fs.remove_dir(tmp_path),
    ]
    for change in changes:
        with pytest.raises(OSError, match="Read-only") as caught:
            change()
        assert caught.value.errno == errno.EROFS
    fs.close(handle)
    assert (tmp_path / "f").read_bytes() == b"abc"
    assert fs.lock(tmp_path / "lock") == -1
    with pytest.raises(IsADirectoryError):
        fs.open(tmp_path)


def test_a_lock_that_another_holds_is_seen_without_writing(tmp_path: Path) -> None:
    holder = OsFs()
    held = holder.lock(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        ReadOnlyFs().lock(tmp_path / "lock")
    holder.close(held)
    fs = ReadOnlyFs()
    fs.close(fs.lock(tmp_path / "lock"))


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "store").symlink_to(tmp_path / "gone")
    with pytest.raises(FileExistsError) as caught:
        OsFs().make_dirs(tmp_path / "store")
    assert reason(caught.value) == f"{tmp_path / 'store'} is a link that leads to no directory"


def test_a_sync_reaches_the_file_and_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, synced = OsFs(), list[str]()
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(
            os, name, lambda handle: synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        )
    handle = fs.open(tmp_path / "f", create=True)
    fs.fdatasync(handle)
    fs.fsync_dir(tmp_path)
    assert synced == [str(tmp_path / "f"), str(tmp_path)]
    fs.close(handle)
