"""Syncs files to disk, Spark's and our own, so that they survive a power cut: Spark itself syncs nothing."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def keep(folder: Path, *, within: Path) -> None:
    """Sync everything in *folder*, and the names that lead to it from *within* on."""
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_dir(path)
        else:
            _sync(path, os.O_RDONLY)
    for directory in (folder, *folder.parents):
        sync_dir(directory)
        if directory == within:
            break


def sync_dir(directory: Path) -> None:
    """The names in it, as they are now."""
    _sync(directory, os.O_RDONLY | os.O_DIRECTORY)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Whole or not at all, also over a power cut; lasting once this returns."""
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_dir(path.parent)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
