"""Compares the queues of topics of batches with what the log says, for ``ogive store verify``."""

from collections.abc import Iterator

from ogive.store.batchqueue import UNIT, UNIT_BYTES
from ogive.store.consumequeue import FILLER_SIZE
from ogive.store.fs import Fs
from ogive.store.model import QueueKey
from ogive.store.queuekinds import QueueKind
from ogive.store.segments import Handles, segment_names, segment_path
from ogive.store.unreadable import read_or_nothing

_COMPARED: int = 38
"""bytes of an entry; what follows is for compaction"""


class ExpectedUnits:
    """What the log says that a queue holds, from offset *first* on; see verify.py.

    Entries have no index that the log knows: what the files hold for records that are not in the
    log any more is passed over.
    """

    __slots__ = ("_found", "_waiting", "end", "mismatch", "missing")

    def __init__(self, first: int, found: Iterator[bytes]) -> None:
        """*found* is what the files hold."""
        self._found = found
        # offset and entry
        self._waiting: list[tuple[int, bytes]] = []
        self.end = first
        self.mismatch: int | None = None
        self.missing: int | None = None

    def add(self, unit: bytes, count: int) -> None:
        """*unit* stands for the next *count* messages."""
        self._waiting.append((self.end, unit))
        self.end += count

    def compare(self) -> None:
        """What was added since the last time."""
        for offset, unit in self._waiting:
            # commit-log offsets, never below 0
            held = next((held for held in self._found if held[:8] >= unit[:8]), None)
            if held is None and self.missing is None:
                self.missing = offset
            elif (
                held is not None and held[:_COMPARED] != unit[:_COMPARED] and self.mismatch is None
            ):
                self.mismatch = offset
        self._waiting.clear()


def units_in_files(fs: Fs, handles: Handles, kind: QueueKind, key: QueueKey) -> Iterator[bytes]:
    """All entries of a queue that stand for a record, in order. Raises OSError."""
    directory = kind.directory(key)
    for name in segment_names(fs, directory):
        path = segment_path(directory, int(name))
        raw = read_or_nothing(fs, handles.get(path), path, kind.file_bytes, 0)
        for at in range(0, len(raw) - UNIT_BYTES + 1, UNIT_BYTES):
            unit = raw[at : at + UNIT_BYTES]
            if not any(unit):
                break
            if UNIT.unpack(unit)[1] != FILLER_SIZE:
                yield unit
