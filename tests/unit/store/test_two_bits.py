"""Two damaged bits in one record cost that record, and no other: not at a start, not in a repair,
not in the eyes of the scrub.
"""

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from ogive.store.bad_sectors import Unreadable
from ogive.store.log_scan import LogEnd, LogScan, scrub
from ogive.store.segments import find_segments
from ogive.store.verify import repair, verify
from tests.chaos.recorder import MemoryFs
from tests.stores import Clock, Driver, crash, message, small

ROOT = Path("/store")
SEGMENT = 16 * 1024
LARGE = 4 * 1024 * 1024
COUNT = 22
SIZES = {"checkpoint_bytes": 2**30, "flush_bytes": 2**30, "record_crc": True}
TOPICS = {"v1": "T", "v2": "T" * 200}

Bit = tuple[int, int]
"""Which byte of a record, and the bit in it"""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def filled(
    root: Path,
    topic: str,
    crc: bool,
    fs: MemoryFs | None = None,
    *,
    alike: bool = False,
    segment: int = SEGMENT,
) -> list[tuple[int, int]]:
    """A log that was left by a kill; offset and size of each record.

    *alike*: of one size, a power of two.
    """
    driver = Driver(
        small(root, **SIZES | {"record_crc": crc, "segment_bytes": segment}),
        fs,
        clock=Clock(),
        threaded=False,
    )
    fixed = (
        88 + len(topic) + (1 if len(topic) < 128 else 2) + 2 + len(message().properties) + 20 * crc
    )
    for number in range(COUNT):
        size = 1024 - fixed if alike else 600 + 37 * (number % 7)
        driver.put(message((b"%04d" % number).ljust(size, b"x"), topic))
    stood = [(one.commitlog_offset, one.size) for one in driver.read_all(topic)]
    if fs is None:
        crash(driver)
    return stood


def number_of_bit(at: int, size: int, bits: tuple[int, ...]) -> Iterator[Bit]:
    """Bits of a number of *size* bytes at byte *at*."""
    return ((at + size - 1 - bit // 8, bit % 8) for bit in bits)


def bits_of(topic: str, size: int, crc: bool) -> list[Bit]:
    """One or several of every field that a scan looks at, and of what the checksums cover."""
    properties = len(message().properties) + 20 * crc
    width = 1 if len(topic) < 128 else 2
    topic_at = size - properties - 2 - len(topic)
    return [
        *number_of_bit(0, 4, (0, 4, 10, 13, 14, 20, 31)),  # size
        *number_of_bit(4, 4, (0, 30)),  # magic
        # checksum of the body
        *number_of_bit(8, 4, (3,)),
        *number_of_bit(20, 8, (1, 40)),  # queue offset
        # its own offset
        *number_of_bit(28, 8, (2, 12, 60)),
        # which hosts are of IPv6
        *number_of_bit(36, 4, (4, 5)),
        # length of the body
        *number_of_bit(84, 4, (1, 5, 9, 12, 21, 31)),
        (100, 0),
        *number_of_bit(topic_at - width, width, (0, 6)),
        (topic_at, 1),
        *number_of_bit(size - properties - 2, 2, (0, 5, 10, 15)),
        (size - 25, 2),
        (size - 1, 3),
    ]


@pytest.mark.parametrize("which", [10, "the last of a segment", "the first of a segment"])
@pytest.mark.parametrize("crc", [True, False], ids=["crc", "plain"])
@pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)
def test_any_two_bits_cost_no_other_record(topic: str, crc: bool, which: int | str) -> None:
    fs = MemoryFs()
    stood = filled(ROOT, topic, crc, fs)
    assert stood[-1][0] > SEGMENT
    last = max(n for n, (offset, _) in enumerate(stood) if offset < SEGMENT)
    hit = which if isinstance(which, int) else last + (which == "the first of a segment")
    offset, size = stood[hit]
    data = fs.names[ROOT / "commitlog" / f"{offset - offset % SEGMENT:020d}"].data
    found = find_segments(fs, ROOT / "commitlog", SEGMENT)
    crc_from = 0 if crc else 2**63 - 1
    wanted = [at for at, _ in stood if at != offset]
    after = stood[hit + 1][0] if hit != last else SEGMENT
    for pair in itertools.combinations(bits_of(topic, size, crc), 2):
        for byte, bit in pair:
            data[offset % SEGMENT + byte] ^= 1 << bit
        scan, result = LogScan(fs, ROOT / "commitlog", found, crc_from), LogEnd(0)
        kept = [at for at, _, _, _ in scan.records(0, result)]
        scan.close()
        # a plain record has fields that nothing protects
        if offset not in kept:
            assert kept == wanted, pair
            assert (result.damaged, result.offset) == (1, sum(stood[-1])), pair
            scrubbed = scrub(
                fs, ROOT / "commitlog", SEGMENT, crc_from, Unreadable(), 0, sum(stood[-1]), 2**30
            )
            assert (scrubbed.position, scrubbed.damaged) == (
                sum(stood[-1]),
                [(offset, size if hit != last else after - offset)],
            ), pair
        else:
            assert not crc, pair
        for byte, bit in pair:
            data[offset % SEGMENT + byte] ^= 1 << bit


SOME = {
    "size, far, and body": [(1, 4), (95, 0)],
    "size, near, and body": [(2, 6), (95, 0)],
    "size twice, and body": [(1, 4), (2, 3), (95, 0)],
    "size and length of the body": [(1, 4), (86, 1)],
    "size, magic and body": [(1, 4), (5, 0), (95, 0)],
    "size, place and body": [(1, 4), (33, 0), (95, 0)],
}


def spoil(root: Path, start: int, bits: list[Bit]) -> None:
    """In the first segment."""
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    for byte, bit in bits:
        data[start + byte] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("bits", SOME.values(), ids=SOME)
@pytest.mark.parametrize("neighbour", [False, True], ids=["alone", "the next one too"])
@pytest.mark.parametrize("repaired", [False, True], ids=["started", "repaired"])
def test_a_start_and_a_repair_keep_all_others(
    tmp_path: Path, bits: list[Bit], neighbour: bool, repaired: bool
) -> None:
    stood = filled(tmp_path, "T", crc=True, segment=LARGE)
    spoil(tmp_path, stood[5][0], bits)
    if neighbour:
        spoil(tmp_path, stood[6][0], bits)
    kept = [b"%04d" % number for number in range(COUNT) if number not in (5, 6 if neighbour else 5)]
    report = verify(tmp_path)
    assert (report.records, report.damaged_places) == (len(kept), 1)
    if repaired:
        repair(tmp_path)
    with Driver(small(tmp_path, **SIZES), clock=Clock()) as driver:
        assert [body[:4] for body in driver.bodies()] == kept
        assert driver.put(message(b"new"))[0].queue_offset == COUNT


@pytest.mark.parametrize("crc", [True, False], ids=["crc", "plain"])
@pytest.mark.parametrize("bit", [(2, 2), (2, 5), (1, 4)], ids=["the next", "eight on", "far"])
def test_a_size_that_leads_to_another_record(tmp_path: Path, bit: Bit, crc: bool) -> None:
    """All are of one size, and a bit of the body is damaged, too."""
    stood = filled(tmp_path, "T", crc, alike=True, segment=LARGE)
    spoil(tmp_path, stood[3][0], [bit, (95, 0)])
    assert verify(tmp_path).records == COUNT - 1
    with Driver(small(tmp_path, **SIZES | {"record_crc": crc}), clock=Clock()) as driver:
        assert [body[:4] for body in driver.bodies()] == [
            b"%04d" % number for number in range(COUNT) if number != 3
        ]
        assert driver.store.stats().damaged == 1
