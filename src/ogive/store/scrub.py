"""Re-reads the log slowly, to find damage before a record is needed."""

from pathlib import Path
from typing import Final, NamedTuple

from ogive.store.fs import Fs
from ogive.store.logscan import LogScan
from ogive.store.segments import Found
from ogive.store.unreadable import Unreadable

# of one step
MAX_RECORDS: Final = 1000


class Scrubbed(NamedTuple):
    """How far a step came, and what it found: (commit-log offset, bytes)."""

    position: int
    damaged: list[tuple[int, int]]


def scrub(
    fs: Fs,
    directory: Path,
    segment_bytes: int,
    crc_from: int,
    unreadable: Unreadable,
    position: int,
    end: int,
    most_bytes: int,
) -> Scrubbed:
    """Any thread: check the records from *position* on, about *most_bytes* of them.

    Raises OSError; FileNotFoundError after retention.
    """
    scan = LogScan(
        fs,
        directory,
        Found((position - position % segment_bytes,), segment_bytes),
        crc_from,
        unreadable,
    )
    scan.limit = end
    damaged: list[tuple[int, int]] = []
    stop, count = min(end, position + most_bytes), 0
    try:
        while position < stop and count < MAX_RECORDS:
            run = scan.whole(position)
            try:
                while position < stop and count < MAX_RECORDS:
                    position, record, _, _ = next(run)
                    position += record.size
                    count += 1
            except StopIteration as finished:
                position = finished.value
                if position < end:
                    follower = scan.next_valid(position)
                    damaged.append((position, (end if follower is None else follower) - position))
                    position = end if follower is None else follower
                    # a search costs as much
                    count += MAX_RECORDS // 10
    finally:
        scan.close()
    return Scrubbed(position, damaged)
