"""A sender puts a whole record into a body, in the name of a topic to which he has no right: no damage makes it a message."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ogive.store.record import build_record, claimed_size, topic_field
from ogive.store.verify import verify
from tests.stores import Driver, crash, message, small

PAGE = 4096
SIZES = {"segment_bytes": 64 * 1024, "checkpoint_bytes": 2**30, "flush_bytes": 2**30}
PROPERTIES = b"UNIQ_KEY\x01FORGED\x02"


def planted(commitlog_offset: int) -> bytes:
    """A record of topic Secret for this place in the log."""
    field, forged = topic_field(b"Secret"), message(b"forged", "Secret", properties=PROPERTIES)
    size = 88 + len(forged.body) + len(field) + 2 + len(PROPERTIES) + 20
    return build_record(forged, field, PROPERTIES, size, 1, commitlog_offset, 1_700_000_000_000, True)


def bodies_after(root: Path, damage: Callable[[bytearray, int, int], None], *, crc: bool = True) -> dict[str, list[bytes]]:
    """What is served of each topic after *damage* to the log, told where the record with the planted one stands and the one behind it."""
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
        *(pytest.param(flip(3 - bit // 8, bit % 8), id=f"size, bit {bit}") for bit in (0, 2, 3, 5, 7, 8, 11, 12, 13, 14, 15, 16, 31)),
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
def test_one_bit_costs_the_record_that_it_is_of(tmp_path: Path, damage: Callable[[bytearray, int, int], None], crc: bool) -> None:
    found = bodies_after(tmp_path, damage, crc=crc)
    assert found == {"A": [b"first", b"before", b"after"], "Secret": [b"honest", b"honest too"]}


def test_damage_to_the_next_one_too(tmp_path: Path) -> None:
    def damage(data: bytearray, start: int, end: int) -> None:
        data[start + 1000] ^= 1
        data[end + 90] ^= 1

    assert bodies_after(tmp_path, damage) == {"A": [b"first", b"before"], "Secret": [b"honest", b"honest too"]}


def test_damage_to_all_that_follows(tmp_path: Path) -> None:
    def damage(data: bytearray, start: int, end: int) -> None:
        data[start + 1000] ^= 1
        data[end:] = bytes(len(data) - end)

    assert bodies_after(tmp_path, damage) == {"A": [b"first", b"before"], "Secret": [b"honest"]}


def test_a_head_that_is_gone_tells_nothing() -> None:
    field, sent = topic_field(b"T"), message(b"body")
    size = 88 + len(sent.body) + len(field) + 2 + len(sent.properties) + 20
    record = build_record(sent, field, sent.properties, size, 1, 1000, 1_700_000_000_000, True)

    def told(data: bytes) -> int | None:
        return claimed_size(lambda at, count: data[at : at + count], size, 1000, 0)

    assert told(record) == size
    assert told(bytes(size)) is None
    assert told(bytes(40) + record[40:]) is None
    assert told(record[:4] + bytes(size - 4)) is None
    assert told(record[:40] + bytes(size - 40)) == size
    assert told(record[:80]) == size
