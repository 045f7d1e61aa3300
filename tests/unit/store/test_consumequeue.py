from pathlib import Path

from ogive.store.consumequeue import ENTRY, FILLER, ConsumeQueue, QueueFiles, read_entries
from ogive.store.file_reader import Disk
from tests.chaos.recorder import MemoryFs

DIRECTORY = Path("/consumequeue/T/0")


def entry(n: int) -> bytes:
    return ENTRY.pack(n * 100, 100, n)


def flush(queue: ConsumeQueue, files: QueueFiles) -> None:
    write = queue.take_write()
    if write is not None:
        files.write([write])
        queue.written = queue.handed


def test_entry_is_apaches() -> None:
    """Worked example of the protocol text: 8 bytes offset, 4 bytes size, 8 bytes tags code."""
    assert ENTRY.pack(1048576, 189, 2598919).hex() == "0000000000100000000000bd000000000027a807"


def test_files_have_full_size_and_entries_at_their_index() -> None:
    fs = MemoryFs({}, {Path("/")})
    queue, files = ConsumeQueue(("T", 0), DIRECTORY, 4), QueueFiles(fs, 8)
    for n in range(6):
        queue.append(entry(n))
        if n % 2:
            flush(queue, files)
    assert fs.list(DIRECTORY) == [f"{0:020d}", f"{80:020d}"]
    assert fs.names[DIRECTORY / f"{0:020d}"].data == b"".join(entry(n) for n in range(4))
    assert fs.names[DIRECTORY / f"{80:020d}"].data == entry(4) + entry(5) + bytes(40)
    assert read_entries(Disk(fs, 8), queue, 1, 100) == b"".join(entry(n) for n in range(1, 4))
    files.close()


def test_queue_that_starts_late_has_fillers_before_it() -> None:
    """Apache fills the rest of the first file the same way."""
    fs = MemoryFs({}, {Path("/")})
    queue, files = ConsumeQueue(("T", 0), DIRECTORY, 4, 6), QueueFiles(fs, 8)
    assert (queue.min_offset, queue.max_offset) == (6, 6)
    queue.append(entry(6))
    flush(queue, files)
    assert fs.list(DIRECTORY) == [f"{80:020d}"]
    assert fs.names[DIRECTORY / f"{80:020d}"].data == FILLER * 2 + entry(6) + bytes(20)
    files.close()


def test_memory_forgets_only_what_the_files_hold() -> None:
    queue = ConsumeQueue(("T", 0), DIRECTORY, 100)
    for n in range(10):
        queue.append(entry(n))
    assert queue.drop_written(5) == 0
    queue.take_write()
    queue.written = 8
    assert queue.drop_written(5) == 5
    assert queue.in_memory(4, 1) is None
    assert queue.in_memory(5, 2) == entry(5) + entry(6)
    assert queue.in_memory(9, 10) == entry(9)
    assert queue.drop_written(100) == 3


def test_cut_clears_what_an_unclean_stop_left() -> None:
    fs = MemoryFs({}, {Path("/")})
    queue, files = ConsumeQueue(("T", 0), DIRECTORY, 4), QueueFiles(fs, 8)
    queue.append(entry(0))
    flush(queue, files)
    path = DIRECTORY / f"{0:020d}"
    fs.names[path].data[40:60] = entry(2)
    files.cut(queue)
    assert fs.names[path].data == entry(0) + bytes(60)
    files.close()


def test_files_that_are_written_over_end_with_what_was_written() -> None:
    """A new queue leaves nothing of the one whose files it took over: in no file, and no file of
    it.
    """
    fs = MemoryFs({}, {Path("/")})
    old, files = ConsumeQueue(("T", 0), DIRECTORY, 4), QueueFiles(fs, 8, keep=True)
    for n in range(15):
        old.append(entry(n))
    flush(old, files)
    names = fs.list(DIRECTORY)
    new = ConsumeQueue(("T", 0), DIRECTORY, 4, 5)
    for n in range(5, 10):
        new.append(entry(100 + n))
    flush(new, files)
    assert fs.names[DIRECTORY / f"{160:020d}"].data == entry(108) + entry(109) + entry(10) + entry(
        11
    )
    files.leave_only(new, names)
    assert fs.list(DIRECTORY) == [f"{80:020d}", f"{160:020d}"]
    assert fs.names[DIRECTORY / f"{80:020d}"].data == FILLER + entry(105) + entry(106) + entry(107)
    assert fs.names[DIRECTORY / f"{160:020d}"].data == entry(108) + entry(109) + bytes(40)
    files.close()
