"""Checks the files of consume queues at the start, before the log is read."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Final

from ogive.store.checkpoint import QueueState
from ogive.store.consumequeue import ENTRY, ENTRY_BYTES, ConsumeQueue
from ogive.store.fs import Fs
from ogive.store.segments import Handles, found_sizes, segment_names, segment_path
from ogive.wire.checksum import crc32

_QUEUES_LOOKED_AT: Final = 16


def end_of_files(fs: Fs, directory: Path, file_entries: int) -> int:
    """One past the last entry that the files of a queue hold."""
    names = segment_names(fs, directory)
    if not names:
        return 0
    handle = fs.open(directory / names[-1])
    try:
        raw = fs.pread(handle, file_entries * ENTRY_BYTES, 0)
    finally:
        fs.close(handle)
    used = 0
    for offset, size, _ in ENTRY.iter_unpack(raw[: len(raw) - len(raw) % ENTRY_BYTES]):
        if size <= 0 or offset < 0:
            break
        used += 1
    return int(names[-1]) // ENTRY_BYTES + used


def check_queue(fs: Fs, handles: Handles, directory: Path, file_entries: int, state: QueueState) -> bool:
    """Whether the files hold exactly the entries that the checkpoint counted."""
    index = state.first_file * file_entries
    for crc in state.crcs:
        count = min(file_entries, state.max_offset - index)
        try:
            handle = handles.get(segment_path(directory, index * ENTRY_BYTES))
        except FileNotFoundError:
            return False
        if fs.size(handle) != file_entries * ENTRY_BYTES:
            return False
        if crc32(fs.pread(handle, count * ENTRY_BYTES, 0)) != crc:
            return False
        index += count
    return index == state.max_offset


def restored(state: QueueState, directory: Path, file_entries: int) -> ConsumeQueue:
    """The queue as the checkpoint left it, all entries in its files."""
    queue = ConsumeQueue(state.key, directory, file_entries)
    queue.min_offset = state.min_offset
    queue.max_offset = queue.next_offset = queue.written = queue.handed = queue.tail_start = state.max_offset
    queue.first_file = state.first_file
    queue.crcs = list(state.crcs)
    return queue


def queue_file_bytes(fs: Fs, root: Path, default: int) -> int:
    """The size that most of the first queue files have: one of them may be damaged."""
    sizes: Counter[int] = Counter()
    directories = ((root / topic / queue_id) for topic in fs.list(root) for queue_id in fs.list(root / topic))
    for directory in itertools.islice(directories, _QUEUES_LOOKED_AT):
        sizes.update(size for size in found_sizes(fs, directory) if size and size % ENTRY_BYTES == 0)
    return sizes.most_common(1)[0][0] if sizes else default
