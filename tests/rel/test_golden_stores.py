"""A store of every release opens in this one with all that it holds; one of a later release is
refused with a plain sentence.
"""

import json
import logging
import zipfile
from pathlib import Path

import pytest

from ogive.errors import StoreCorrupt
from ogive.store import MessageStore
from ogive.store.checkpoint import FORMAT, as_file
from tests import golden
from tests.stores import Driver, message, small

pytestmark = [pytest.mark.rel, pytest.mark.quick]

STORES = sorted(golden.VECTORS.glob("store-*.zip"))


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def unpacked(archive: Path, folder: Path) -> tuple[Path, dict[str, object]]:
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
    return folder / "store", json.loads((folder / "expected.json").read_text())


def test_there_is_a_store_of_a_release() -> None:
    assert STORES


@pytest.mark.parametrize("archive", STORES, ids=[path.stem for path in STORES])
def test_store_of_a_release_opens_with_all_that_it_holds(archive: Path, tmp_path: Path) -> None:
    assert archive.stat().st_size <= 100_000
    root, expected = unpacked(archive, tmp_path)
    assert golden.read(root) == expected
    with Driver(small(root)) as driver:
        end = driver.store.max_offset("T", 0)
        assert driver.put(message("one more", "T"))[0].queue_offset == end
    assert golden.read(root)["queues"]["T@0"]["messages"][-1][2] == "one more"


@pytest.mark.parametrize("archive", STORES, ids=[path.stem for path in STORES])
def test_store_of_a_later_release_is_refused(archive: Path, tmp_path: Path) -> None:
    """Before anything is changed: the format number stands in the list of queues."""
    root, _ = unpacked(archive, tmp_path)
    listed = root / "queues.json"
    listed.write_bytes(
        as_file(listed.read_bytes().partition(b',"body":')[2].rstrip()[:-1], FORMAT + 1)
    )
    before = {
        path: path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != "lock"
    }
    with pytest.raises(
        StoreCorrupt,
        match=rf"written by a later release \(format {FORMAT + 1}, this one reads up to {FORMAT}\)",
    ):
        MessageStore.open(small(root))
    assert {path: path.read_bytes() for path in before} == before
