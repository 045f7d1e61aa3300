"""Torn tails, damage in the middle of the log, and derived files that are missing or wrong."""

import logging
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ogive.store.log_scan import LogScan
from ogive.wire.message import decode_stored
from tests.chaos.recorder import MemoryFs
from tests.figures import figures
from tests.stores import Clock, Driver, message, small

pytestmark = [pytest.mark.rel, pytest.mark.computes(15), pytest.mark.quick]

ROOT = Path("/store")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def filled(count: int, *, close: bool = True) -> tuple[MemoryFs, dict[int, bytes]]:
    """A store with *count* messages in four queues of T, and its records by commit-log offset."""
    rng = random.Random(count)
    fs = MemoryFs()
    driver = Driver(small(ROOT), fs, threaded=False)
    for i in range(count):
        driver.put(
            message(b"%d " % i + rng.randbytes(rng.randint(1, 600)), queue_id=i % 4, tag="TagA")
        )
    records = dict(records_of(driver))
    if close:
        driver.close()
    return (fs if close else fs.copy()), records


def records_of(driver: Driver) -> Iterator[tuple[int, bytes]]:
    for topic, queue_id in list(driver.store.queues):
        for entry in driver.store.entries(topic, queue_id, 0, 100_000):
            record = driver.store.record_at(entry.commitlog_offset)
            if record is not None:
                yield entry.commitlog_offset, record


def read_back(fs: MemoryFs) -> tuple[set[bytes], int, int]:
    """(bodies served, where the log ends, damage counted) of a store that starts on *fs*, which
    gets one more message.
    """
    driver = Driver(small(ROOT), fs, clock=Clock(), threaded=False)
    end = driver.store.stats().commitlog_end
    bodies = {
        body
        for topic, queue_id in list(driver.store.queues)
        for body in driver.bodies(topic, queue_id)
    }
    added = driver.put(message(b"next", queue_id=9))
    assert (
        added[0].commitlog_offset == end
        or added[0].commitlog_offset % small(ROOT).segment_bytes == 0
    )
    assert driver.bodies(queue_id=9)[-1] == b"next"
    damaged = driver.store.stats().damaged
    driver.close()
    return bodies - {b"next"}, end, damaged


TAILS: dict[str, Callable[[bytearray, int, int], None]] = {
    "zeros": lambda data, cut, end: data.__setitem__(slice(cut, end), bytes(end - cut)),
    "garbage": lambda data, cut, end: data.__setitem__(
        slice(cut, end), random.Random(cut).randbytes(end - cut)
    ),
    "old page": lambda data, cut, end: data.__setitem__(slice(cut, end), data[0 : end - cut]),
    "wrong checksum": lambda data, cut, end: data.__setitem__(
        slice(cut, end), bytes(b ^ 0x55 for b in data[cut:end])
    ),
}


@pytest.mark.parametrize(
    ("tail", "step"),
    [
        ("zeros", 8),
        ("garbage", 32),
        ("old page", 32),
        ("wrong checksum", 32),
        *(pytest.param(tail, 1, marks=pytest.mark.nightly) for tail in TAILS),
    ],
)
def test_torn_tail_costs_exactly_the_torn_records(tail: str, step: int) -> None:
    """A cut at any of the last 4,096 bytes of the log; the next message lands right behind the last
    whole record.
    """
    with figures(
        "T5", nightly=step == 1, seed=30, faults=0, acknowledged=0, received=0, lost=0
    ) as line:
        for whole, served in served_behind_cuts(tail, step):
            line["faults"] += 1
            line["acknowledged"] += len(whole)
            line["received"] += len(served)
            line["lost"] += len(whole - served)
            assert served == whole


def served_behind_cuts(tail: str, step: int) -> Iterator[tuple[set[bytes], set[bytes]]]:
    """For each cut: the bodies whose records are before it, and those that a start serves."""
    fs, records = filled(30, close=False)
    end = max(offset + len(record) for offset, record in records.items())
    path = ROOT / "commitlog" / f"{0:020d}"
    assert end < small(ROOT).segment_bytes
    for cut in range(end - 1, end - 4096, -step):
        torn = fs.copy()
        TAILS[tail](torn.names[path].data, cut, end)
        whole = {
            offset: record for offset, record in records.items() if offset + len(record) <= cut
        }
        bodies, found_end, _ = read_back(torn)
        assert found_end == max(offset + len(record) for offset, record in whole.items())
        yield {decode_stored(record).body for record in whole.values()}, bodies


@pytest.mark.kills(
    "recovery stops at the first bad record in a middle segment",
    "record checksum covers the body only",
    param="False",
)
@pytest.mark.parametrize("clean", [True, False])
def test_one_flipped_bit_costs_at_most_its_record(clean: bool) -> None:
    """Never a wrong byte, never more than the record that was hit, in whatever segment it
    stands.
    """
    fs, records = filled(150, close=clean)
    bodies = {offset: decode_stored(record).body for offset, record in records.items()}
    rng = random.Random(5)
    for _ in range(60):
        flipped = fs.copy()
        offset = rng.choice(sorted(records)[:-1])
        at = offset + rng.randrange(len(records[offset]))
        start = at - at % small(ROOT).segment_bytes
        flipped.names[ROOT / "commitlog" / f"{start:020d}"].data[at - start] ^= 1 << rng.randrange(
            8
        )
        served, _, damaged = read_back(flipped)
        assert served == set(bodies.values()) - {bodies[offset]}
        assert damaged >= 1


def test_truncation_in_a_middle_segment_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: a recovery that takes the first bad record for the end loses what the test
    above wants to see.
    """
    monkeypatch.setattr(LogScan, "next_valid", lambda self, position: None)
    with pytest.raises(AssertionError):
        test_one_flipped_bit_costs_at_most_its_record(clean=False)


def derived_files(root: Path) -> list[Path]:
    names = ("queues.json", "checkpoint", "lock", "abort")
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return [
        path for path in files if {"consumequeue", "index"} & {*path.parts} or path.name in names
    ]


def spoil(path: Path, other: Path, how: str, rng: random.Random) -> None:
    match how:
        case "delete":
            path.unlink(missing_ok=True)
        case "cut":
            path.write_bytes(path.read_bytes()[: rng.randrange(1 + path.stat().st_size)])
        case "garble":
            path.write_bytes(rng.randbytes(path.stat().st_size))
        case "swap":
            path.write_bytes(other.read_bytes())


def spoil_some(files: list[Path], rng: random.Random) -> None:
    """At least one of *files*, each in a way of its own."""
    for path in rng.sample(files, rng.randint(1, len(files))):
        other = rng.choice([other for other in files if other.exists()] or [path])
        spoil(path, other, rng.choice(["delete", "cut", "garble", "swap"]), rng)


def made_ahead(path: Path, data: bytes) -> bool:
    """A segment without records: recovery may remove it."""
    return "commitlog" in path.parts and not any(data)


@pytest.mark.kills("consume queue not rebuilt", param="30-stopped")
@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "crashed"])
@pytest.mark.parametrize("trials", [30, pytest.param(200, marks=pytest.mark.nightly)])
def test_derived_files_are_made_again_from_the_log(
    tmp_path: Path, trials: int, crashed: bool
) -> None:
    """Any subset of queues, index, checkpoint, list of queues, lock and marker may be gone or
    wrong: afterwards all is as it was, or as a start after the crash makes it of files that are
    whole.
    """
    root, rng = tmp_path / "original", random.Random(11)
    with Driver(small(root)) as driver:
        for i in range(200):
            properties = b"UNIQ_KEY\x01%d\x02TAGS\x01%b\x02" % (i, rng.choice([b"TagA", b"TagB"]))
            driver.put(
                message(
                    b"%d " % i + rng.randbytes(rng.randint(1, 300)),
                    f"T{i % 2}",
                    i % 3,
                    properties=properties,
                )
            )
        bodies = {key: driver.bodies(*key) for key in driver.store.queues}
        if crashed:
            shutil.copytree(root, tmp_path / "crashed")
    base = root
    if crashed:
        base, root = tmp_path / "crashed", tmp_path / "started again"
        assert (base / "abort").exists()
        shutil.copytree(base, root)
        Driver(small(root)).close()
    original = {
        path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
    assert sum("consumequeue" in path.parts for path in original) > 12
    with figures(
        "T7", nightly=trials > 30, seed=11, faults=trials, acknowledged=200 * trials, received=0
    ) as line:
        for trial in range(trials):
            spoiled = tmp_path / f"trial-{trial}"
            shutil.copytree(base, spoiled)
            files = derived_files(spoiled)
            spoil_some(files, rng)
            with Driver(small(spoiled)) as driver:
                found = {key: driver.bodies(*key) for key in driver.store.queues}
            line["received"] += sum(map(len, found.values()))
            assert found == bodies
            rebuilt = {
                path.relative_to(spoiled): path.read_bytes()
                for path in spoiled.rglob("*")
                if path.is_file()
            }
            differing = [
                path
                for path in original
                if rebuilt.get(path) != original[path] and not made_ahead(path, original[path])
            ]
            assert not differing, (trial, differing)
            shutil.rmtree(spoiled)
        line["lost"] = line["acknowledged"] - line["received"]
