"""T6: single bits flipped, sectors garbled and swapped, anywhere in a store: never a wrong byte, and never more than what was hit."""

import logging
import random
from pathlib import Path

import pytest

from tests.chaos.recorder import SECTOR, MemoryFs
from tests.figures import figures
from tests.stores import Clock, Driver, message, small

pytestmark = pytest.mark.rel

ROOT = Path("/store")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def filled(count: int) -> tuple[MemoryFs, dict[int, tuple[bytes, int]]]:
    """A store that was closed, and by commit-log offset the body and size of each record."""
    rng = random.Random(count)
    fs = MemoryFs()
    places: dict[int, tuple[bytes, int]] = {}
    driver = Driver(small(ROOT), fs, threaded=False)
    for n in range(count):
        body = b"%d " % n + rng.randbytes(rng.randint(1, 400))
        result = driver.put(message(body, f"T{n % 3}", n % 2, properties=f"UNIQ_KEY\x01ID{n}\x02".encode()))[0]
        places[result.commitlog_offset] = body, result.size
    driver.close()
    return fs, places


def served(fs: MemoryFs, keys: range) -> tuple[set[bytes], int, int]:
    """(every body that a start on *fs* serves, how many of *keys* are found, damage counted)"""
    driver = Driver(small(ROOT), fs, clock=Clock(), threaded=False)
    bodies = {body for key in list(driver.store.queues) for body in driver.bodies(*key)}
    found = sum(len(list(driver.store.find_key(f"T{n % 3}", f"ID{n}", 0, 2**62))) for n in keys)
    damaged = driver.store.stats().damaged
    driver.close()
    return bodies, found, damaged


def spoil(fs: MemoryFs, rng: random.Random, how: str) -> tuple[Path, int, int]:
    """(file, first byte, last byte) that may be another now. Files are chosen by their size, as damage does."""
    files = [path for path, inode in fs.names.items() if inode.data]
    path = rng.choices(files, [len(fs.names[file].data) for file in files])[0]
    data = fs.names[path].data
    at = rng.randrange(len(data))
    if how == "bit":
        data[at] ^= 1 << rng.randrange(8)
        return path, at, at
    start = at - at % SECTOR
    end = min(len(data), start + SECTOR)
    if how == "garbage":
        data[start:end] = rng.randbytes(end - start)
    else:
        other = rng.randrange(len(data)) // SECTOR * SECTOR
        data[start:end] = data[other : other + end - start].ljust(end - start, b"\0")
    return path, start, end - 1


@pytest.mark.parametrize(
    ("count", "trials"),
    [
        pytest.param(150, {"bit": 100, "garbage": 25, "another sector": 25}, marks=pytest.mark.quick, id="quick"),
        pytest.param(
            400, {"bit": 2000, "garbage": 200, "another sector": 100}, marks=[pytest.mark.nightly, pytest.mark.timeout(900)], id="nightly"
        ),
    ],
)
def test_damage_anywhere_costs_at_most_the_records_that_were_hit(count: int, trials: dict[str, int]) -> None:
    whole, places = filled(count)
    everything = {body for body, _ in places.values()}
    keys = range(0, count, 7)
    rng = random.Random(count)
    lost_in_all = 0
    with figures("T6", nightly=count > 150, seed=count, acknowledged=count) as line:
        for how, times in trials.items():
            for trial in range(times):
                fs = whole.copy()
                path, first, last = spoil(fs, rng, how)
                hit: set[bytes] = set()
                if path.parent.name == "commitlog":
                    start = int(path.name)
                    hit = {body for at, (body, size) in places.items() if at <= start + last and start + first < at + size}
                bodies, found, damaged = served(fs, keys)
                where = f"{how} {trial}: {path} {first}..{last}"
                assert bodies <= everything, where
                assert everything - bodies <= hit, where
                assert len(keys) - found <= len(hit), where
                if everything - bodies and (everything - bodies).isdisjoint({places[max(places)][0]}):
                    assert damaged >= 1, where  # the newest record may count as a torn end
                lost_in_all += len(everything - bodies)
        line["faults"] = sum(trials.values())
        line["records_lost"] = lost_in_all
        line["lost"] = 0  # beyond what was hit
    assert lost_in_all > 0


def test_damage_that_is_served_is_seen() -> None:
    """The test above can fail: it is given a store whose log has another, sound record where one was."""
    fs, places = filled(20)
    other, _ = filled(21)
    for path, inode in other.names.items():
        if path.parent.name == "commitlog":
            fs.names[path].data[:] = inode.data
    bodies, _, _ = served(fs, range(0))
    assert not bodies <= {body for body, _ in places.values()}
