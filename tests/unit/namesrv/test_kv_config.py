"""Operators' settings at the name server, in memory and in kvConfig.json."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ogive.errors import InvalidOption, StoreError
from ogive.namesrv.kv_config import MAX_TEXT_LENGTH, KvConfig
from ogive.store.fs import OsFs


async def test_settings_are_found_by_namespace_and_key() -> None:
    kv = KvConfig()
    await kv.put("space", "a", "1")
    await kv.put("space", "b", "2")
    await kv.put("other", "a", "3")
    await kv.delete("space", "b")
    await kv.delete("space", "never there")
    assert kv.get("space", "a") == "1"
    assert kv.get("space", "b") is None
    assert kv.namespace("other") == {"a": "3"}
    assert kv.namespace("nowhere") == {}


async def test_settings_outlive_the_process_in_apache_s_form(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    kv = KvConfig(path)
    await asyncio.gather(*(kv.put("space", f"key{i}", str(i)) for i in range(20)))
    await kv.delete("space", "key0")
    assert json.loads(path.read_text()) == {
        "configTable": {"space": {f"key{i}": str(i) for i in range(1, 20)}}
    }
    assert KvConfig(path).namespace("space") == kv.namespace("space")


async def test_settings_are_bounded_in_number_and_size() -> None:
    kv = KvConfig(max_entries=2)
    await kv.put("space", "a", "1")
    await kv.put("space", "b", "1")
    await kv.put("space", "b", "2")
    with pytest.raises(InvalidOption, match="limit of 2"):
        await kv.put("space", "c", "1")
    with pytest.raises(InvalidOption, match="characters"):
        await kv.put("space", "b", "x" * MAX_TEXT_LENGTH)
    with pytest.raises(InvalidOption, match="needs a namespace"):
        await kv.put("", "b", "x")


async def test_all_settings_together_fit_an_answer() -> None:
    """A broker that registers gets a whole namespace at once."""
    kv = KvConfig(max_characters=100)
    await kv.put("space", "a", "x" * 80)
    with pytest.raises(InvalidOption, match="limit of 100 characters"):
        await kv.put("other", "b", "x" * 20)
    await kv.put("space", "a", "x" * 90)
    await kv.put("space", "a", "x")
    await kv.put("other", "b", "x" * 20)


async def test_a_setting_that_cannot_be_saved_is_an_error(tmp_path: Path) -> None:
    class FullDisk(OsFs):
        def fdatasync(self, handle: int) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match="its disk is full"):
        await KvConfig(tmp_path / "kvConfig.json", fs=FullDisk()).put("space", "a", "1")


@pytest.mark.parametrize("content", ['{"configTable":[]}', '{"configTable":{"space":7}}', "{", ""])
def test_a_file_that_is_none_of_ours_is_set_aside(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text(content)
    assert KvConfig(path).namespace("space") == {}
    assert [file.name.partition("-")[0] for file in tmp_path.iterdir()] == ["kvConfig.json.corrupt"]


async def test_a_setting_is_put_without_a_look_at_all_others(tmp_path: Path) -> None:
    class Spaces(dict[str, dict[str, str]]):
        def values(self) -> Any:
            raise AssertionError("all settings were looked at")

        items = values

    path = tmp_path / "kvConfig.json"
    await KvConfig(path).put("space", "a", "x" * 30)
    kv = KvConfig(path, max_characters=100, max_entries=3)
    assert (kv._entries, kv._characters) == (1, 36)
    kv._table, kv._spaces = None, Spaces(kv._spaces)
    await kv.put("space", "b", "y" * 30)
    await kv.put("space", "b", "y")
    with pytest.raises(InvalidOption):
        await kv.put("other", "c", "z" * 90)
    await kv.delete("space", "a")
    await kv.delete("space", "a")
    assert (kv._entries, kv._characters) == (1, 7)
    await kv.delete("space", "b")
    assert (kv._entries, kv._characters) == (0, 0)
