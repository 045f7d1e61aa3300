"""T6: single bits flipped, sectors garbled and swapped, anywhere in a store: never a wrong byte,
and never more than what was hit.
"""

import logging
import random
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.recorder import SECTOR, MemoryFs
from tests.figures import figures
from tests.stores import Clock, Driver, message, small

pytestmark = [pytest.mark.rel, pytest.mark.computes(30)]

ROOT = Path("/store")

Stored = tuple[Any, ...]
"""Every field of a message"""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def filled(count: int) -> tuple[MemoryFs, MemoryFs, dict[int, tuple[Stored, int]]]:
    """A store as a crash left it and as a clean stop did, and by commit-log offset each message and
    the size of its record.
    """
    rng = random.Random(count)
    fs = MemoryFs()
    driver = Driver(small(ROOT), fs, threaded=False)
    for n in range(count):
        body = b"%d " % n + rng.randbytes(rng.randint(1, 400))
        driver.put(message(body, f"T{n % 3}", n % 2, properties=f"UNIQ_KEY\x01ID{n}\x02".encode()))
    places = {
        one.commitlog_offset: (astuple(one), one.size)
        for key in list(driver.store.queues)
        for one in driver.read_all(*key)
    }
    crashed = fs.copy()
    driver.close()
    return crashed, fs, places


def served(fs: MemoryFs, keys: range) -> tuple[set[Stored], int, int]:
    """(every message that a start on *fs* serves, how many of *keys* are found, damage counted)"""
    driver = Driver(small(ROOT), fs, clock=Clock(), threaded=False)
    messages = {astuple(one) for key in list(driver.store.queues) for one in driver.read_all(*key)}
    found = sum(len(list(driver.store.find_key(f"T{n % 3}", f"ID{n}", 0, 2**62))) for n in keys)
    damaged = driver.store.stats().damaged
    driver.close()
    return messages, found, damaged


def spoil(fs: MemoryFs, rng: random.Random, how: str) -> tuple[Path, int, int]:
    """(file, first byte, last byte) that may be another now.

    Files are chosen by their size, as damage does.
    """
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


@pytest.mark.kills(
    "recovery stops at the first bad record in a middle segment",
    "record checksum covers the body only",
    param="quick",
)
@pytest.mark.parametrize(
    ("count", "trials"),
    [
        pytest.param(
            150,
            {"bit": 100, "garbage": 25, "another sector": 25},
            marks=pytest.mark.quick,
            id="quick",
        ),
        pytest.param(
            400,
            {"bit": 2000, "garbage": 200, "another sector": 100},
            marks=pytest.mark.nightly,
            id="nightly",
        ),
        # a trial reads the whole store, in a second: 2,000 of them would take half an hour
        pytest.param(
            20_000,
            {"bit": 40, "garbage": 10, "another sector": 10},
            marks=pytest.mark.nightly,
            id="nightly, a large store",
        ),
    ],
)
def test_damage_anywhere_costs_at_most_the_records_that_were_hit(
    count: int, trials: dict[str, int]
) -> None:
    crashed, stopped, places = filled(count)
    everything = {one for one, _ in places.values()}
    assert len(everything) == count
    keys = range(0, count, max(7, count // 60))
    rng = random.Random(count)
    lost_in_all = 0
    with figures("T6", nightly=count > 150, seed=count, acknowledged=count) as line:
        for how, times in trials.items():
            for trial in range(times):
                fs = (crashed, stopped)[trial % 2].copy()
                path, first, last = spoil(fs, rng, how)
                hit: set[Stored] = set()
                if path.parent.name == "commitlog":
                    start = int(path.name)
                    hit = {
                        one
                        for at, (one, size) in places.items()
                        if at <= start + last and start + first < at + size
                    }
                messages, found, damaged = served(fs, keys)
                where = f"{how} {trial}: {path} {first}..{last}"
                missing = everything - messages
                assert messages <= everything, where
                assert missing <= hit, where
                assert len(keys) - found <= len(hit), where
                # the newest record may count as a torn end
                if places[max(places)][0] not in missing:
                    assert damaged >= bool(missing), where
                    assert how != "bit" or damaged == len(missing), where
                lost_in_all += len(missing)
        line["faults"] = sum(trials.values())
        line["records_lost"] = lost_in_all
        # beyond what was hit
        line["lost"] = 0
    assert lost_in_all > 0


def test_damage_that_is_served_is_seen() -> None:
    """The test above can fail: it is given a store whose log has another, sound record where one
    was.
    """
    _, fs, places = filled(20)
    _, other, _ = filled(21)
    for path, inode in other.names.items():
        if path.parent.name == "commitlog":
            fs.names[path].data[:] = inode.data
    messages, _, _ = served(fs, range(0))
    assert not messages <= {one for one, _ in places.values()}
