"""Files that are replaced as a whole: durable, and nothing else is left beside them."""

import errno
import os
import stat
from pathlib import Path

import pytest

from ogive.files import replace_file, sync


def full_disk(handle: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_is_replaced_and_has_the_bits_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        for name, mode in (("plain", 0o666), ("secret", 0o600)):
            for data in (b"old", b"new"):
                replace_file(tmp_path / name, data, mode=mode)
    finally:
        os.umask(before)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "plain": b"new",
        "secret": b"new",
    }
    bits = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert bits == {"plain": 0o640, "secret": 0o600}


def test_contents_are_on_disk_before_the_name_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "offsets.json"
    file.write_bytes(b"old")
    seen: list[tuple[bool, bytes]] = []

    def noted(handle: int) -> None:
        seen.append((stat.S_ISDIR(os.fstat(handle).st_mode), file.read_bytes()))

    monkeypatch.setattr(os, "fsync", noted)
    replace_file(file, b"new")
    assert seen == [(False, b"old"), (True, b"new")]


def test_a_failure_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "offsets.json"
    replace_file(file, b"old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        replace_file(file, b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {file.name: b"old"}


def test_a_folder_that_is_missing_is_the_error_that_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "none" / "offsets.json", b"new")
    with pytest.raises(FileNotFoundError):
        sync(tmp_path / "none")
