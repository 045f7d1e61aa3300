"""Syncs files to disk, Spark's and our own, so that they survive a power cut: Spark itself syncs
nothing.
"""

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


def keep_plan(checkpoint: Path) -> None:
    """Sync what says which rows the newest batch of a streaming query has, and whose it is.

    Nothing where Spark has noted no batch there.

    To be called before anything is written of a batch or noted about it by its number: a power cut
    would take Spark's own note back, and the batch that is planned anew under that number has the
    messages that came since as well.
    """
    offsets = checkpoint / "offsets"
    newest = max(offsets.glob("[0-9]*"), key=lambda file: int(file.name), default=None)
    if newest is None:
        return
    for file in (newest, checkpoint / "metadata"):
        if file.exists():
            _sync(file, os.O_RDONLY)
    sync_dir(offsets)
    # what file sources have seen
    if (checkpoint / "sources").exists():
        keep(checkpoint / "sources", within=checkpoint)
    sync_dir(checkpoint)
    if os.access(checkpoint.parent, os.R_OK):
        sync_dir(checkpoint.parent)


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
