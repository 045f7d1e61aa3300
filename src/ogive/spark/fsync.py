"""Sync files that Spark wrote: Spark itself does not, and a power cut could lose them."""

import os
from pathlib import Path

from ogive.files import sync


def sync_tree(folder: Path, *, within: Path) -> None:
    """Sync everything in *folder*, and the directories that lead to it from *within* on."""
    for path in folder.rglob("*"):
        sync(path)
    for directory in (folder, *folder.parents):
        sync(directory)
        if directory == within:
            break


def sync_plan(checkpoint: Path) -> None:
    """Sync the newest offsets of a streaming query, and its metadata.

    Do nothing if Spark has planned no batch there. Call it before writing any row of a batch, and
    before recording anything under its number. Otherwise a power cut could lose Spark's plan, and
    the next batch of that number would also have newer messages.
    """
    offsets = checkpoint / "offsets"
    newest = max(offsets.glob("[0-9]*"), key=lambda file: int(file.name), default=None)
    if newest is None:
        return
    for file in (newest, checkpoint / "metadata"):
        if file.exists():
            sync(file)
    sync(offsets)
    # what file sources have seen
    if (checkpoint / "sources").exists():
        sync_tree(checkpoint / "sources", within=checkpoint)
    sync(checkpoint)
    if os.access(checkpoint.parent, os.R_OK):
        sync(checkpoint.parent)
