"""native/keys.c beside ogive.store.key_index and ogive.store.key_index."""

from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ogive.native import Native
from ogive.store.index_file import Sizes
from ogive.store.key_index import Keyed, KeyIndex, PackedKeys, pack_keys

SIZES = Sizes(5, 64)
BEGIN_MS = 1_700_000_000_123
# the twin's: an empty file begins with its first record
FIRST: Keyed = (b"T", b"UNIQ_KEY\x01first\x02", 0, BEGIN_MS)

names = st.sampled_from([b"UNIQ_KEY", b"KEYS", b"MYKEYS", b"XUNIQ_KEY", b"KEYS2", b"", b"WAIT"])
keys = st.one_of(
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=70), st.text(max_size=3)
).map(str.encode)
whole = st.lists(st.tuples(names, keys), max_size=4).map(
    lambda pairs: b"".join(b"%b\x01%b\x02" % pair for pair in pairs)
)
spoiled = st.builds(
    lambda text, cut: text[:cut] if cut % 2 else text[cut:], whole, st.integers(0, 40)
)
offsets = st.one_of(st.integers(0, 2**31), st.integers(0, 2**63 - 1))
# far ones in seconds are over 2**31
times = st.one_of(st.integers(BEGIN_MS - 5000, BEGIN_MS + 10**7), st.integers(0, 10**14))
topics = st.sampled_from([b"T", b"%RETRY%a_group", b"", b"T" * 127, "ü".encode()])
records = st.tuples(topics, whole | spoiled, offsets, times)
packed = st.tuples(st.lists(records, max_size=12).map(pack_keys), times)


def by_twin(keyed: list[Keyed | PackedKeys], before: list[Keyed | PackedKeys]) -> KeyIndex:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ogive.store.key_index.native", None)
        return built(keyed, before)


def built(keyed: list[Keyed | PackedKeys], before: list[Keyed | PackedKeys]) -> KeyIndex:
    index = KeyIndex(Path("/index"), SIZES)
    for part in (before, keyed):
        index.add(part)
        index.build()
    return index


def contents(index: KeyIndex) -> list[object]:
    """All that a file holds and that is told of it."""
    return [
        {name: getattr(file, name) for name in file.__slots__ if not name.endswith("crc")}
        | {"head": file.slots and file.take_head()}
        for file in index.files
    ]


@given(st.lists(records, max_size=6), st.lists(records | packed, max_size=40))
# a batch with more keys than the file has room for, and one with more than any file
@example([], [(pack_keys([(b"T", b"UNIQ_KEY\x01k\x02", n, 0) for n in range(70)]), BEGIN_MS)] * 2)
@example([], [(pack_keys([]), BEGIN_MS)])
@example([], [(b"T", b"KEYS\x01 a  b \x02UNIQ_KEY\x01u", 7, BEGIN_MS)])
# the last of a name counts
@example([], [(b"T", b"UNIQ_KEY\x01\x02UNIQ_KEY\x01second\x02KEYS\x01k\x02", 7, BEGIN_MS)])
@example([], [("订单".encode(), "KEYS\x01ü 订单 😀x \u07ff\u0800\uffff\x02".encode(), 7, BEGIN_MS)])
# as many as there is room for
@example([], [(b"T", b"UNIQ_KEY\x01k\x02", n, BEGIN_MS) for n in range(62)])
@example([], [(b"T", b"UNIQ_KEY\x01k\x02", n, BEGIN_MS) for n in range(63)])
@example([], [(b"", b"KEYS\x01\x15\x06G$`{\x02", 1, BEGIN_MS)])
@example([], [(b"T", b"UNIQ_KEY\x01k\x02", 1, 2**63 - 1)])
@example([(b"T", b"UNIQ_KEY\x01k\x02", 1, 0)], [(b"T", b"UNIQ_KEY\x01k\x02", 1, 2**63 - 1)])
def test_files_are_those_that_python_makes(
    compiled: Native, before: list[Keyed | PackedKeys], keyed: list[Keyed | PackedKeys]
) -> None:
    assert contents(built(keyed, [FIRST, *before])) == contents(by_twin(keyed, [FIRST, *before]))


def slots(count: int = 5) -> "array[int]":
    return array("i", bytes(4 * count))


def test_the_usual_is_compiled(compiled: Native) -> None:
    """Apache's own example: the slot is far behind, the chain is that of the key before."""
    table = slots(5_000_000)
    record = (b"TopicTest", b"UNIQ_KEY\x017F00000100002A139A55AB9C3C3C0000\x02", 1048576, BEGIN_MS)
    items = bytes.fromhex(
        "146a08ea00000000001000000000000000000000" + "146a08ea00000000001000000000000000000001"
    )
    assert compiled.index_items([record, record], table, BEGIN_MS, 1, 9) == (
        items,
        1,
        1048576,
        BEGIN_MS,
    )
    assert table[0x146A08EA % 5_000_000] == 2


@pytest.mark.parametrize(
    "record",
    [
        (b"T", b"UNIQ_KEY\x01k", 2**63, BEGIN_MS),
        (b"T", b"UNIQ_KEY\x01k", 0, -(2**63) - 1),
        (b"T", b"UNIQ_KEY\x01\xff", 0, BEGIN_MS),
        (b"\xc3(", b"UNIQ_KEY\x01k", 0, BEGIN_MS),
        (b"T", b"WAIT\x01true\x02", 0, BEGIN_MS),
        ("T", b"UNIQ_KEY\x01k", 0, BEGIN_MS),
        (b"T", "UNIQ_KEY\x01k", 0, BEGIN_MS),
        [b"T", b"UNIQ_KEY\x01k", 0, BEGIN_MS],
        (b"T", b"UNIQ_KEY\x01k", 0),
        (b"T", b"UNIQ_KEY\x01k", 0, 0.5),
        [],
        (bytes(11), BEGIN_MS),
        (b"\x80" + bytes(11), BEGIN_MS),
        (bytes(12), 2**63),
        (bytearray(12), BEGIN_MS),
        (b"", BEGIN_MS),
    ],
)
def test_what_is_unusual_changes_nothing(compiled: Native, record: Any) -> None:
    table = slots()
    before = [] if b"WAIT\x01true\x02" in record or b"" in record else [FIRST]
    assert compiled.index_items([*before, record], table, BEGIN_MS, 1, 9) is None
    assert table == slots()


@pytest.mark.parametrize(
    ("begin_ms", "item", "limit"),
    [
        (0, 8, 9),
        (0, 0, 9),
        (0, 10, 9),
        (0, -1, 9),
        (0, 1, 2**31),
        (2**63, 1, 9),
        (0, 2**70, 9),
        (0, 1, 2**70),
        (0, 1, -(2**70)),
    ],
)
def test_numbers_that_do_not_fit_are_left_to_python(
    compiled: Native, begin_ms: int, item: int, limit: int
) -> None:
    table = slots()
    assert compiled.index_items([FIRST, FIRST], table, begin_ms, item, limit) is None
    assert table == slots()


def test_as_many_keys_as_there_is_room_for_are_compiled(compiled: Native) -> None:
    for items, limit in ((1, 2), (7, 8), (7, 2**31 - 1)):
        records: list[Keyed | PackedKeys] = [FIRST] * items
        found = compiled.index_items(records, slots(), BEGIN_MS, 1, limit)
        assert found is not None
        assert len(found[0]) == 20 * items


@pytest.mark.parametrize("table", [array("q", [0, 0]), array("I", [0, 0]), array("i")])
def test_slots_of_another_kind_are_left_to_python(compiled: Native, table: "array[int]") -> None:
    assert compiled.index_items([FIRST], table, BEGIN_MS, 1, 9) is None


def test_no_memory_for_so_many_keys_is_an_error(compiled: Native) -> None:
    """At whichever allocation."""
    testcapi = pytest.importorskip("_testcapi")
    records: list[Keyed | PackedKeys] = [
        (
            b"T",
            b"UNIQ_KEY\x01u\x02KEYS\x01" + b" ".join([b"%d" % n for n in range(200)]),
            7,
            BEGIN_MS,
        )
    ] * 6
    place, done = 0, None
    while done is None:
        table = slots()
        testcapi.set_nomemory(place, place + 1)
        try:
            done = compiled.index_items(records, table, 0, 1, 5000)
        except MemoryError:
            place += 1
        finally:
            testcapi.remove_mem_hooks()
    assert len(done[0]) == 20 * 6 * 201
    assert place > 3


def test_only_a_list_and_slots_that_can_change_are_taken(compiled: Native) -> None:
    with pytest.raises(TypeError, match="keyed: list"):
        compiled.index_items((FIRST,), slots(), 0, 1, 9)  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        compiled.index_items([FIRST], bytes(8), 0, 1, 9)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="keyed: list"):
        compiled.index_items([FIRST], slots(), 0, 1)  # type: ignore[call-arg]


@pytest.mark.parametrize("items", [20_000, 100_000])
def test_all_keys_are_indexed_as_many_as_properties_can_hold(compiled: Native, items: int) -> None:
    """In one file, and where files end in the middle of a message."""
    words = b" ".join(b"%x" % n for n in range(5_500))
    keyed = [(b"T", b"KEYS\x01" + words + b"\x02UNIQ_KEY\x01u\x02", n, BEGIN_MS) for n in range(15)]
    indexes = []
    for module in (compiled, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ogive.store.key_index.native", module)
            index = KeyIndex(Path("/index"), Sizes(5_000, items))
            index.add([FIRST, *keyed])
            index.build()
            indexes.append(index)
    assert contents(indexes[0]) == contents(indexes[1])
    assert sum(file.next_item - 1 for file in indexes[0].files) == 1 + 15 * 5_501
