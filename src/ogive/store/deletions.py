"""``config/deletedTopics.json``: of each deleted topic, the commit-log offset before which its
records are gone.

queues.json says the same, and counts where it is usable. It can be made again from the log, but
what was deleted is in no record: so this table, which has a backup, outlives it. Apache's broker
passes over the file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ogive.store.checkpoint import Checkpoint
from ogive.store.fs import Fs
from ogive.store.tables import JsonTable, peek

_NAME: Final = "deletedTopics.json"
_DELETED: Final = "deleted"


def deletions(fs: Fs, root: Path, checkpoint: Checkpoint | None, log_end: int) -> dict[str, int]:
    """Those that count for a log that goes up to *log_end*. Changes nothing. Raises OSError."""
    if checkpoint is not None:
        return dict(checkpoint.deleted)
    # else of another log
    return {
        topic: offset for topic, offset in (_tabled(fs, root) or {}).items() if offset <= log_end
    }


class DeletionTable:
    """Keeps the file up to date; one writer."""

    def __init__(self, fs: Fs, root: Path) -> None:
        """Raises OSError."""
        self._table = JsonTable(
            fs, root / "config" / _NAME, valid=lambda value: isinstance(value.get(_DELETED), dict)
        )
        self._saved: Mapping[str, int] = _read(fs, root / "config" / _NAME) or {}

    def save(self, deleted: Mapping[str, int]) -> None:
        """Only where it says something else. Raises OSError."""
        if deleted != self._saved:
            self._table.save({_DELETED: dict(deleted)})
            self._saved = dict(deleted)


def _tabled(fs: Fs, root: Path) -> dict[str, int] | None:
    found = _read(fs, root / "config" / _NAME)
    return found if found is not None else _read(fs, root / "config" / f"{_NAME}.bak")


def _read(fs: Fs, path: Path) -> dict[str, int] | None:
    """None where it says nothing."""
    table = (peek(fs, path) or {}).get(_DELETED)
    if not isinstance(table, dict):
        return None
    return {
        str(topic): offset
        for topic, offset in table.items()
        if isinstance(offset, int) and offset >= 0
    }
