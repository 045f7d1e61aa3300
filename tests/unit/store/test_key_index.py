"""The index of keys: Apache's bytes, what is found, and that it is made again from the log."""

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from ogive.native import native
from ogive.store.file_reader import Cold, Disk
from ogive.store.index_file import HEADER, ITEM, IndexFiles, Sizes, restored
from ogive.store.key_index import (
    Keyed,
    KeyIndex,
    PackedKeys,
    as_index_hash,
    java_hashes,
    java_prefix,
)
from ogive.store.types import NewMessage
from tests.chaos.recorder import MemoryFs
from tests.stores import Clock, Driver, message, small

FOR_EVER = 2**63 - 1
DIRECTORY = Path("/index")
STORED_MS = 1_700_000_000_123


def found(
    driver: Driver, key: str, topic: str = "T", begin: int = 0, end: int = FOR_EVER
) -> list[int]:
    """Queue offsets of the records that have *key*, as they are found."""
    records = driver.store.find_key(topic, key, begin, end)
    return [int.from_bytes(record[20:28]) for record in records if isinstance(record, bytes)]


def keyed(unique: str, keys: str = "", topic: str = "T") -> NewMessage:
    properties = f"UNIQ_KEY\x01{unique}\x02" + (f"KEYS\x01{keys}\x02" if keys else "")
    return message(topic=topic, properties=properties.encode())


def test_files_are_apaches() -> None:
    """The worked example of the protocol text: 5,000,000 slots, one item."""
    index = KeyIndex(DIRECTORY, Sizes(5_000_000, 20_000_000))
    index.add(
        [(b"TopicTest", b"UNIQ_KEY\x017F00000100002A139A55AB9C3C3C0000\x02", 1048576, STORED_MS)]
    )
    items, head = index.collect(checkpoint=True)
    assert (items.path.name, items.size) == ("20231114221320123", 420_000_040)
    assert (items.at, items.data.hex()) == (20_000_060, "146a08ea00000000001000000000000000000000")
    assert (
        head.data[:40].hex()
        == "0000018bcfe5687b0000018bcfe5687b000000000010000000000000001000000000000100000002"
    )
    assert head.data[9_973_712 : 9_973_712 + 4].hex() == "00000001"
    assert sum(head.data[40:]) == 1


def test_hash_is_javas_absolute_value() -> None:
    assert [as_index_hash(h) for h in (0, 5, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)] == [
        0,
        5,
        0x7FFFFFFF,
        0,
        1,
    ]


def test_a_search_keeps_nothing_of_the_messages_that_only_share_the_hash(tmp_path: Path) -> None:
    """Java's hash is easily met: "Aa" and "BB" have the same one."""
    with Driver(small(tmp_path), threaded=False) as driver:
        for _ in range(1_500):
            driver.put(keyed("BBBB"))
        driver.put(keyed("AaAa"))
        tracemalloc.start()
        try:
            assert len(found(driver, "AaAa")) == 1
            assert tracemalloc.get_traced_memory()[1] < 60_000
        finally:
            tracemalloc.stop()


def test_messages_are_found_by_unique_key_and_by_each_of_their_keys(tmp_path: Path) -> None:
    with Driver(small(tmp_path)) as driver:
        # several files of 64 items
        for n in range(300):
            driver.put(keyed(f"ID{n}", f"order-{n % 10} all", topic="T" if n % 3 else "U"))
        for again in (False, True):
            assert found(driver, "ID4") == [2]
            assert found(driver, "ID3") == []
            assert found(driver, "ID3", "U") == [1]
            assert found(driver, "order-4") == sorted(found(driver, "order-4"), reverse=True)
            assert len(found(driver, "order-4")) == len([n for n in range(4, 300, 10) if n % 3])
            assert len(found(driver, "all")) == 200
            assert found(driver, "order-4 all") == found(driver, "order") == []
            if not again:
                driver.close()
                driver = Driver(small(tmp_path))
    assert len(list((tmp_path / "index").iterdir())) > 10


def test_time_bounds_what_is_found(tmp_path: Path) -> None:
    clock = Clock()
    start = clock.now_ms
    with Driver(small(tmp_path), clock=clock) as driver:
        for n in range(200):
            driver.put(keyed(f"ID{n}", "key"))
            clock.now_ms += 500
        assert found(driver, "key", begin=start + 10_000, end=start + 10_999) == [21, 20]
        assert found(driver, "key", begin=start + 10_001, end=start + 10_999) == [21]
        assert found(driver, "key", end=start - 1) == []


def test_hash_of_another_key_is_not_taken_for_it(tmp_path: Path) -> None:
    """ "Aa" and "BB" have the same hash in Java."""
    with Driver(small(tmp_path)) as driver:
        driver.put(keyed("ID", "Aa"))
        assert found(driver, "BB") == []
        assert found(driver, "Aa") == [0]


def test_nothing_of_a_deleted_topic_is_found(tmp_path: Path) -> None:
    with Driver(small(tmp_path)) as driver:
        driver.put(keyed("ID", "key"))
        driver.store.topics.delete("T")
        assert found(driver, "key") == []
        driver.put(keyed("ID2", "key"))
        assert found(driver, "key") == [0]


@pytest.mark.parametrize(
    "spoil", ["removed", "flipped item", "flipped slot", "cut", "another file beside"]
)
def test_damaged_files_are_made_again_from_the_log(tmp_path: Path, spoil: str) -> None:
    """Byte for byte, whichever of them it is; the log is read from there on only."""
    with Driver(small(tmp_path)) as driver:
        for n in range(200):
            driver.put(keyed(f"ID{n}", topic="T"))
    files = sorted((tmp_path / "index").iterdir())
    before = [file.read_bytes() for file in files]
    assert len(files) == 4
    data = bytearray(before[1])
    match spoil:
        case "removed":
            files[1].unlink()
        case "another file beside":
            files[1].with_name("20990101000000000").write_bytes(before[1])
        case "cut":
            files[1].write_bytes(data[:-1])
        case _:
            data[
                Sizes(16, 64).items_at + 30 * ITEM.size
                if spoil == "flipped item"
                else HEADER.size + 4
            ] ^= 4
            files[1].write_bytes(data)
    with Driver(small(tmp_path)) as driver:
        assert [found(driver, f"ID{n}") for n in range(200)] == [[n] for n in range(200)]
    assert [file.read_bytes() for file in sorted((tmp_path / "index").iterdir())] == before


def test_search_reads_what_the_disk_has_in_steps() -> None:
    """While reads do not wait, the search gives what is to be brought in, and goes on after it."""
    fs = ColdFs({}, {Path("/")})
    index = KeyIndex(DIRECTORY, Sizes(4, 16))
    for n in range(40):
        index.add([(b"T", b"UNIQ_KEY\x01same\x02", n * 100, STORED_MS)])
    writes = index.collect(checkpoint=True)
    IndexFiles(fs).write(writes)
    index.written(writes)
    disk = Disk(fs, 8)
    disk.waits = False
    offsets, cold = [], 0
    for step in index.find(disk, "T", "same", 0, FOR_EVER):
        if isinstance(step, Cold):
            cold += 1
            fs.known.add(step.place.path)
        elif step is not None:
            offsets.append(step)
    assert offsets == [n * 100 for n in range(39, -1, -1)]
    assert cold == 3


def test_reads_wait_after_a_search_as_they_did_before_it_whoever_changed_that_in_between() -> None:
    fs = ColdFs({}, {Path("/")})
    index = KeyIndex(DIRECTORY, Sizes(4, 16))
    index.add([(b"T", b"UNIQ_KEY\x01same\x02", n, STORED_MS) for n in range(20)])
    writes = index.collect(checkpoint=True)
    IndexFiles(fs).write(writes)
    index.written(writes)
    disk = Disk(fs, 8)
    search = index.find(disk, "T", "same", 0, FOR_EVER)
    disk.waits = False
    # what is brought in is forgotten at once
    for _ in range(3):
        assert isinstance(next(search), Cold)
    disk.waits = True
    assert list(search) == list(range(19, -1, -1))
    assert disk.waits


class ColdFs(MemoryFs):
    """Nothing is in memory but the files in *known*."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]  # passed on
        self.known: set[Path] = set()

    def pread_now(self, handle: int, size: int, offset: int) -> bytes | None:
        known = any(self.names[path] is self._handles[handle] for path in self.known)
        return self.pread(handle, size, offset) if known else None


def test_a_file_that_fills_up_during_a_checkpoint_stays_in_memory_until_its_head_is_written() -> (
    None
):
    fs = MemoryFs({}, {Path("/")})
    index, files = KeyIndex(DIRECTORY, Sizes(4, 16)), IndexFiles(fs)
    index.add([(b"T", b"UNIQ_KEY\x01same\x02", n, STORED_MS) for n in range(10)])
    checkpoint = index.collect(checkpoint=True)
    files.write(checkpoint)
    index.add([(b"T", b"UNIQ_KEY\x01same\x02", n, STORED_MS) for n in range(10, 20)])
    index.build()
    # told late: the file is full by now
    index.written(checkpoint)
    disk = Disk(fs, 8)
    assert list(index.find(disk, "T", "same", 0, FOR_EVER)) == list(range(19, -1, -1))
    writes = index.collect(checkpoint=False)
    files.write(writes)
    index.written(writes)
    assert index.files[0].slots is None
    assert list(index.find(disk, "T", "same", 0, FOR_EVER)) == list(range(19, -1, -1))


def test_a_chain_that_damage_bent_does_not_go_round_in_circles() -> None:
    fs = MemoryFs({}, {Path("/")})
    index = KeyIndex(DIRECTORY, Sizes(1, 8))
    for n in range(5):
        index.add([(b"T", b"UNIQ_KEY\x01same\x02", n, STORED_MS)])
    writes = index.collect(checkpoint=True)
    IndexFiles(fs).write(writes)
    index.written(writes)
    (state,) = index.states()
    (file,) = restored(fs, DIRECTORY, [state])
    sizes = Sizes(1, 8)
    again = KeyIndex(DIRECTORY, sizes, [file])
    data = fs.names[DIRECTORY / state.name].data
    data[sizes.items_at + 2 * ITEM.size + 16 : sizes.items_at + 3 * ITEM.size] = (5).to_bytes(4)
    assert list(again.find(Disk(fs, 8), "T", "same", 0, FOR_EVER)) == [4, 3, 2, 1]


def test_prefix_of_the_key_is_the_topic() -> None:
    assert java_hashes([java_prefix(b"TopicTest#")], [b"7F00000100002A139A55AB9C3C3C0000"]) == [
        -342493418 & 0xFFFFFFFF
    ]


def test_one_batch_of_keys_beyond_counting_is_added_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a file ends Python adds what the compiled part does not: a million keys of one batch
    took it seconds in one go.
    """
    added: list[int] = []
    add = KeyIndex._add

    def noted(self: KeyIndex, piece: Sequence[Keyed | PackedKeys]) -> None:
        added.append(len(piece))
        add(self, piece)

    monkeypatch.setattr(KeyIndex, "_add", noted)
    index = KeyIndex(DIRECTORY, Sizes(100, 5_000))
    words = b" ".join(b"k%d" % number for number in range(20))
    index.add([(b"T", b"KEYS\x01" + words + b"\x02", offset, STORED_MS) for offset in range(1_000)])
    assert sum(file.next_item - 1 for file in index.files) == 20_000
    assert max(added) <= 64
    assert sum(added) < (1_000 if native is not None else 1_001)
