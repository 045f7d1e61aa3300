"""Files that were damaged, or made by somebody else, cost their entries and not the start."""

import json
from pathlib import Path

import pytest

from ogive.broker.config import BrokerConfig
from ogive.broker.startup import Machine, Opened, open_all
from ogive.errors import StoreCorrupt
from ogive.store.retention import Ages
from tests.chaos.recorder import MemoryFs
from tests.stores import InlineWriter, message, run_now

ROOT = Path("/store")
# Python refuses to make a number of so many digits
LONG = "9" * 5000
DAMAGED = {
    "consumerOffset.json": [
        '{"offsetTable":{"T@G":{"LONG":1,"0":5}}}',
        '{"offsetTable":{{"a":1}:{"0":1},"T@G":{"0":5,"1":999999999999999999999999999999}}}',
    ],
    "delayOffset.json": [
        '{"offsetTable":{"LONG":5}}',
        '{"offsetTable":{{"a":1}:5}}',
        '{"offsetTable":{"3":999999999999999999999999999999}}',
    ],
    "remoteSettings.json": [
        '{"settings":{"maxMessageSize":{"value":LONG,"insteadOf":LONG}}}',
        '{"settings":{{"a":1}:{"value":"1","insteadOf":"1"},"maxMessageSize":{"value":"LONG",'
        '"insteadOf":"4194304"}}}',
    ],
    "retention.json": [
        '{"boot":"b","at":1,"elapsed":1,"fullAt":{"LONG":1}}',
        '{"boot":"b","at":1,"elapsed":1,"fullAt":{{"a":1}:1}}',
        '{"boot":"b","at":1,"elapsed":1,"fullAt":{"0":LONG}}'.replace("LONG", "9" * 400),
        '{"boot":"b","at":NaN,"elapsed":NaN,"fullAt":{"0":Infinity}}',
    ],
}


def opened(fs: MemoryFs, *, empty_log: bool = False) -> Opened:
    config = BrokerConfig(data=ROOT, segment_bytes=4096, empty_log=empty_log)
    return open_all(config, Machine(fs=fs, writer=InlineWriter, store={"index_slots": 16}))


@pytest.fixture
def disk() -> MemoryFs:
    """Five messages."""
    fs = MemoryFs(None, {Path("/")})
    store = opened(fs).store
    store.start(run_now, writer=InlineWriter)
    for _ in range(5):
        store.put([message()], lambda _: None)
    store.close()
    return fs


@pytest.mark.parametrize(
    ("name", "text"),
    [(name, text) for name, texts in DAMAGED.items() for text in texts],
    ids=range(11),
)
def test_a_broker_starts_with_a_damaged_table(disk: MemoryFs, name: str, text: str) -> None:
    handle = disk.open(ROOT / "config" / name, create=True)
    disk.pwrite(handle, text.replace("LONG", LONG).encode(), 0)
    disk.close(handle)
    found = opened(disk)
    assert found.store.max_offset("T", 0) == 5
    assert (found.offsets.get("G", "T", 0) == 5) == (name == "consumerOffset.json")
    assert json.dumps(found.offsets.snapshot()())
    ages = Ages("boot", 0.0)
    ages.load(found.ages)
    assert json.dumps(ages.save(), allow_nan=False)


def test_a_list_of_queues_that_is_nested_too_deep_is_made_again(disk: MemoryFs) -> None:
    disk.names[ROOT / "queues.json"].data[:] = b"[" * 100_000
    assert opened(disk).store.max_offset("T", 0) == 5


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        (
            "commitlog",
            r"/store/commitlog holds no messages, but the last checkpoint had seen a log of \d+ "
            r"bytes: is its disk mounted\?",
        ),
        ("commitlog queues.json", "but queue 0 of T has offsets up to 4: is its disk mounted"),
    ],
)
def test_a_log_whose_disk_is_not_mounted_is_not_begun_anew(
    disk: MemoryFs, gone: str, told: str
) -> None:
    for path in [path for path in disk.names if any(word in path.parts for word in gone.split())]:
        del disk.names[path]
    before = dict(disk.names)
    with pytest.raises(StoreCorrupt, match=told):
        opened(disk)
    assert disk.names == before
    # offsets that were given out are not given out again
    assert opened(disk, empty_log=True).store.max_offset("T", 0) == 5


def test_an_empty_store_is_opened_again() -> None:
    fs = MemoryFs(None, {Path("/")})
    for _ in range(2):
        opened(fs).store.close()
