"""A sender puts a whole record into a body, in the name of a topic to which he has no right: no
damage makes it a message.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from ogive.store.log_scan import LogScan
from ogive.store.record import SizeClaim, build_record, claim_of, topic_field
from ogive.store.verify import verify
from ogive.wire.checksum import crc32
from ogive.wire.message import MAGIC_V1, RECORD_V4
from tests.stores import Driver, crash, message, small

PAGE = 4096
SIZES = {"segment_bytes": 64 * 1024, "checkpoint_bytes": 2**30, "flush_bytes": 2**30}
PROPERTIES = b"UNIQ_KEY\x01FORGED\x02"


def planted(commitlog_offset: int) -> bytes:
    """A record of topic Secret for this place in the log."""
    field, forged = topic_field(b"Secret"), message(b"forged", "Secret", properties=PROPERTIES)
    size = 88 + len(forged.body) + len(field) + 2 + len(PROPERTIES) + 20
    return build_record(
        forged, field, PROPERTIES, size, 1, commitlog_offset, 1_700_000_000_000, True
    )


def bodies_after(
    root: Path, damage: Callable[[bytearray, int, int], None], *, crc: bool = True
) -> dict[str, list[bytes]]:
    """What is served of each topic after *damage* to the log, told where the record with the
    planted one stands and the one behind it.
    """
    config = small(root, record_crc=crc, **SIZES)
    driver = Driver(config)
    driver.put(message(b"first", "A"), message(b"honest", "Secret"))
    before = driver.put(message(b"before", "A"))[0]
    at = before.commitlog_offset + before.size
    carrier = driver.put(message(planted(at + 88) + b"z" * 20_000, "A"))[0]
    assert carrier.commitlog_offset == at
    driver.put(message(b"after", "A"), message(b"honest too", "Secret"))
    crash(driver)
    path = root / "commitlog" / f"{0:020}"
    data = bytearray(path.read_bytes())
    damage(data, at, at + carrier.size)
    path.write_bytes(data)
    report = verify(root)
    with Driver(config) as driver:
        found = {topic: [body[:10] for body in driver.bodies(topic)] for topic in ("A", "Secret")}
        assert report.records == sum(map(len, found.values()))
        return found


def flip(at: int, bit: int = 0) -> Callable[[bytearray, int, int], None]:
    """This bit of the record with the planted one, counted from its end if negative."""

    def damage(data: bytearray, start: int, end: int) -> None:
        data[start + at if at >= 0 else end + at] ^= 1 << bit

    return damage


def test_a_write_that_was_cut_short(tmp_path: Path) -> None:
    """As when the process is killed, or the power cut, within it: the first pages are there."""

    def cut(data: bytearray, start: int, _: int) -> None:
        data[start + 2 * PAGE :] = bytes(len(data) - start - 2 * PAGE)

    assert bodies_after(tmp_path, cut) == {"A": [b"first", b"before"], "Secret": [b"honest"]}


@pytest.mark.parametrize("crc", [True, False])
def test_pages_that_are_missing_before_others(tmp_path: Path, crc: bool) -> None:
    def lose(data: bytearray, start: int, end: int) -> None:
        data[start + 2 * PAGE : end] = bytes(end - start - 2 * PAGE)

    found = bodies_after(tmp_path, lose, crc=crc)
    assert found == {"A": [b"first", b"before", b"after"], "Secret": [b"honest", b"honest too"]}


@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize(
    "damage",
    [
        *(
            pytest.param(flip(3 - bit // 8, bit % 8), id=f"size, bit {bit}")
            for bit in (0, 2, 3, 5, 7, 8, 11, 12, 13, 14, 15, 16, 31)
        ),
        pytest.param(flip(5), id="magic"),
        pytest.param(flip(35, 6), id="offset"),
        pytest.param(flip(10), id="checksum of the body"),
        pytest.param(flip(87, 3), id="shorter body"),
        pytest.param(flip(86), id="longer body"),
        pytest.param(flip(84, 7), id="sign of the body's length"),
        pytest.param(flip(39, 4), id="born host"),
        pytest.param(flip(1000), id="body"),
    ],
)
def test_one_bit_costs_the_record_that_it_is_of(
    tmp_path: Path, damage: Callable[[bytearray, int, int], None], crc: bool
) -> None:
    found = bodies_after(tmp_path, damage, crc=crc)
    assert found == {"A": [b"first", b"before", b"after"], "Secret": [b"honest", b"honest too"]}


def test_damage_to_the_next_one_too(tmp_path: Path) -> None:
    def damage(data: bytearray, start: int, end: int) -> None:
        data[start + 1000] ^= 1
        data[end + 90] ^= 1

    assert bodies_after(tmp_path, damage) == {
        "A": [b"first", b"before"],
        "Secret": [b"honest", b"honest too"],
    }


def test_damage_to_all_that_follows(tmp_path: Path) -> None:
    def damage(data: bytearray, start: int, end: int) -> None:
        data[start + 1000] ^= 1
        data[end:] = bytes(len(data) - end)

    assert bodies_after(tmp_path, damage) == {"A": [b"first", b"before"], "Secret": [b"honest"]}


@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize(
    "lost", [[(0, 8)], [(0, 4), (28, 36)]], ids=["size and magic", "size and place"]
)
def test_fields_of_the_head_that_are_zeros(
    tmp_path: Path, lost: list[tuple[int, int]], crc: bool
) -> None:
    def lose(data: bytearray, start: int, _: int) -> None:
        for begin, end in lost:
            data[start + begin : start + end] = bytes(end - begin)

    found = bodies_after(tmp_path, lose, crc=crc)
    assert found == {"A": [b"first", b"before", b"after"], "Secret": [b"honest", b"honest too"]}


@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize("length", ["body", "topic", "properties"])
@pytest.mark.parametrize("followed", [True, False])
def test_a_damaged_length_and_a_bit_of_the_body(
    tmp_path: Path, length: str, followed: bool, crc: bool
) -> None:
    def damage(data: bytearray, start: int, end: int) -> None:
        data[start + 1000] ^= 1
        tail = end - len(b"UNIQ_KEY\x01ABC\x02") - 20 * crc
        data[{"body": start + 87, "topic": tail - 4, "properties": tail - 1}[length]] ^= 8
        if not followed:
            data[end:] = bytes(len(data) - end)

    found = bodies_after(tmp_path, damage, crc=crc)
    assert found == {
        "A": [b"first", b"before", *[b"after"] * followed],
        "Secret": [b"honest", *[b"honest too"] * followed],
    }


def test_damage_to_both_sides_of_a_border(tmp_path: Path) -> None:
    """As a sector in which one record ends and the next begins."""

    def damage(data: bytearray, _: int, end: int) -> None:
        data[end - 10 : end + 60] = b"\xee" * 70

    assert bodies_after(tmp_path, damage) == {
        "A": [b"first", b"before"],
        "Secret": [b"honest", b"honest too"],
    }


def test_a_head_that_is_gone_tells_nothing() -> None:
    field, sent = topic_field(b"T"), message(b"body")
    size = 88 + len(sent.body) + len(field) + 2 + len(sent.properties) + 20
    record = build_record(sent, field, sent.properties, size, 1, 1000, 1_700_000_000_000, True)

    def told(data: bytes) -> SizeClaim:
        return claim_of(lambda at, count: data[at : at + count], size, 1000, 0)

    assert told(record) == SizeClaim((size,), is_proven=True, inside=size)
    assert told(bytes(8) + record[8:28] + bytes(8) + record[36:]) == told(record)
    for gone in (bytes(size), bytes(40) + record[40:], record[:4] + bytes(size - 4)):
        assert told(gone) == SizeClaim((), is_proven=False, inside=0)
    for cut in (40, 80):
        claim = told(record[:cut] + bytes(size - cut))
        assert size in claim.sizes
        assert not claim.is_proven
    assert told(record[:90] + bytes(size - 90)).inside == 92


@pytest.mark.parametrize("placed", [False, True])
def test_a_body_full_of_heads_is_searched_in_one_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placed: bool
) -> None:
    """That are no records, whether they say that they stand where they do or not.

    Each can claim to be as long as the segment.
    """
    seen = list[int]()
    offsets = [88 + 36 * number if placed else 0 for number in range(500)]
    heads = b"".join(
        [
            (50_000).to_bytes(4) + MAGIC_V1.to_bytes(4) + bytes(20) + offset.to_bytes(8)
            for offset in offsets
        ]
    )
    driver = Driver(small(tmp_path, **SIZES))
    driver.put(message(heads), message(b"after"))
    crash(driver)
    path = tmp_path / "commitlog" / f"{0:020}"
    data = bytearray(path.read_bytes())
    data[:60] = bytes(60)
    path.write_bytes(data)
    load = LogScan._load

    def seeing(self: LogScan, position: int) -> bytes:
        seen.append(position)
        return load(self, position)

    monkeypatch.setattr(LogScan, "_load", seeing)
    assert verify(tmp_path).records == 1
    assert len(seen) < 10


@pytest.mark.parametrize("queue_offset", [0, 1, 40])
def test_one_whose_properties_are_all_that_follows_to_the_end(
    tmp_path: Path, queue_offset: int
) -> None:
    """They are so long that there is no room for a checksum; one bit of the body's length leads
    right to it.
    """
    config = small(tmp_path, **SIZES | {"segment_bytes": 1024 * 1024})
    driver = Driver(config)
    honest = driver.put(message(b"honest", "Secret"))[0]
    at = honest.commitlog_offset + honest.size
    lead, tail, topic, text = (
        100,
        4 + 20 + len(message().properties),
        b"Secret",
        b"forged".ljust(1000),
    )
    body_bytes = 2**16 + lead
    size = body_bytes - lead - 3 + tail
    head = RECORD_V4.pack(
        size,
        MAGIC_V1,
        crc32(text) & 0x7FFFFFFF,
        0,
        0,
        queue_offset,
        at + 88 + lead + 3,
        0,
        1,
        bytes(8),
        1,
        bytes(8),
        0,
        0,
        len(text),
    )
    properties_bytes = size - 88 - len(text) - 1 - len(topic) - 2
    forged = head + text + bytes([len(topic)]) + topic + properties_bytes.to_bytes(2)
    carrier = driver.put(message((b"a" * lead + bytes(3) + forged).ljust(body_bytes, b"z"), "A"))[0]
    driver.put(message(b"after", "A"), message(b"honest too", "Secret"))
    crash(driver)
    path = tmp_path / "commitlog" / f"{0:020}"
    data = bytearray(path.read_bytes())
    data[at + 85] ^= 1
    path.write_bytes(data)
    assert verify(tmp_path).damaged_bytes == carrier.size
    with Driver(config) as driver:
        assert {topic: driver.bodies(topic) for topic in ("A", "Secret")} == {
            "A": [b"after"],
            "Secret": [b"honest", b"honest too"],
        }
