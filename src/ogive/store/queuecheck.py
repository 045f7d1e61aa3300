"""Checks the files of consume queues at the start, before the log is read."""

from ogive.store.checkpoint import QueueState
from ogive.store.consumequeue import ConsumeQueue
from ogive.store.fs import Fs
from ogive.store.model import QueueKey
from ogive.store.queuekinds import QueueKind
from ogive.store.segments import Handles, segment_names, segment_path
from ogive.store.unreadable import read_or_nothing
from ogive.wire.checksum import crc32


def end_of_files(fs: Fs, kind: QueueKind, key: QueueKey) -> int:
    """One past the last offset that the files of a queue tell of."""
    directory = kind.directory(key)
    for name in reversed(segment_names(fs, directory)):
        handle = fs.open(directory / name)
        try:
            raw = read_or_nothing(fs, handle, directory / name, kind.file_bytes, 0)
            end = kind.queue.end_in_file(int(name) // kind.queue.entry_bytes, raw)
        finally:
            fs.close(handle)
        if end:
            return end
    return 0


def check_queue(fs: Fs, handles: Handles, kind: QueueKind, state: QueueState) -> bool:
    """Whether the files hold exactly the entries that the checkpoint counted."""
    file_entries, entry_bytes, directory = (
        kind.file_entries,
        kind.queue.entry_bytes,
        kind.directory(state.key),
    )
    index = state.first_file * file_entries
    for crc in state.crcs:
        count = min(file_entries, state.end - index)
        path = segment_path(directory, index * entry_bytes)
        try:
            handle = handles.get(path)
        except FileNotFoundError:
            return False
        if fs.size(handle) != file_entries * entry_bytes:
            return False
        if crc32(read_or_nothing(fs, handle, path, count * entry_bytes, 0)) != crc:
            return False
        index += count
    return index == state.end


def restored(state: QueueState, kind: QueueKind) -> ConsumeQueue:
    """The queue as the checkpoint left it, all entries in its files."""
    queue = kind.new(state.key)
    queue.begin_at(state.first_index, state.min_offset)
    queue.max_offset = queue.next_offset = state.max_offset
    queue.written = queue.handed = queue.tail_start = state.end
    queue.first_file = state.first_file
    queue.crcs = list(state.crcs)
    return queue
