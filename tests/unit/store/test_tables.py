import logging
import random
from pathlib import Path

import pytest

from ogive.store import JsonTable, OsFs
from tests.chaos.recorder import RecorderFs


def table(tmp_path: Path) -> JsonTable:
    return JsonTable(
        OsFs(),
        tmp_path / "config" / "topics.json",
        valid=lambda value: "topics" in value,
        now=lambda: 1234.0,
    )


def test_saved_value_is_loaded_and_the_one_before_is_the_backup(tmp_path: Path) -> None:
    table(tmp_path).save({"topics": [1]})
    table(tmp_path).save({"topics": [1, 2]})
    assert table(tmp_path).load() == {"topics": [1, 2]}
    assert (tmp_path / "config" / "topics.json.bak").read_text() == '{"topics":[1]}'
    assert sorted(path.name for path in (tmp_path / "config").iterdir()) == [
        "topics.json",
        "topics.json.bak",
    ]


def test_a_damaged_file_without_a_backup_is_kept_aside_and_nobody_is_told_of_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table(tmp_path).save({"topics": [1]})
    (tmp_path / "config" / "topics.json").write_text("{")
    assert table(tmp_path).load() is None
    assert [message.rpartition("topics.json.corrupt-1234, ")[2] for message in caplog.messages] == [
        "it has no backup: what it held is lost"
    ]


def test_empty_object_is_a_value(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    JsonTable(OsFs(), path).save({})
    assert JsonTable(OsFs(), path).load() == {}


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert table(tmp_path).load() is None


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"null", b"[]", b'{"other":1}', b"\xff\x00", b'{"topics":' + b"[" * 10_000],
)
def test_damaged_file_is_kept_aside_and_the_backup_counts(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Empty, half, null, somebody else's JSON: one warning, nothing deleted, and the next save goes
    on from the backup.
    """
    table(tmp_path).save({"topics": [1]})
    table(tmp_path).save({"topics": [2]})
    live = tmp_path / "config" / "topics.json"
    live.write_bytes(damage)
    caplog.set_level(logging.WARNING)
    again = table(tmp_path)
    assert again.load() == {"topics": [1]}
    assert len(caplog.records) == 1
    assert caplog.messages[0].endswith("reading topics.json.bak instead")
    assert live.with_name("topics.json.corrupt-1234").read_bytes() == damage
    again.save({"topics": [3]})
    assert table(tmp_path).load() == {"topics": [3]}


def test_what_was_set_aside_is_still_aside_after_a_power_cut() -> None:
    """Not damaged in its old place once more, after the warning was read and the backup was
    taken.
    """
    fs = RecorderFs()
    path = Path("/config/topics.json")
    before = JsonTable(fs, path)
    before.save({"topics": [1]})
    before.save({"topics": [2]})
    handle = fs.open(path)
    fs.truncate(handle, 3)
    fs.fdatasync(handle)
    fs.close(handle)
    assert JsonTable(fs, path, now=lambda: 1234.0).load() == {"topics": [1]}
    disk = fs.disk()
    for operation in fs.operations:
        disk.apply(operation)
    for seed in range(20):
        after = disk.after_power_cut(random.Random(seed))
        assert after.list(path.parent) == ["topics.json.bak", "topics.json.corrupt-1234"]


def test_file_of_apaches_broker_loads(tmp_path: Path) -> None:
    """fastjson leaves integer keys unquoted."""
    path = tmp_path / "delayOffset.json"
    path.write_text('{\n\t"offsetTable":{1:120,3:17}\n}')
    assert JsonTable(OsFs(), path).load() == {"offsetTable": {"1": 120, "3": 17}}


def test_damaged_file_without_a_backup_is_none_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    path.parent.mkdir()
    path.write_text("{")
    assert table(tmp_path).load() is None
    assert path.with_name("topics.json.corrupt-1234").exists()


def test_where_the_backup_is_damaged_too_the_loss_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2):
        table(tmp_path).save({"topics": [number]})
    for name in ("topics.json", "topics.json.bak"):
        (tmp_path / "config" / name).write_text("{")
    assert table(tmp_path).load() is None
    assert [message.rpartition("topics.json.corrupt-1234, ")[2] for message in caplog.messages] == [
        "its backup topics.json.bak is damaged, too: what it held is lost"
    ]
