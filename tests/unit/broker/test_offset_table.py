"""How far groups are: a table of offsets, its limits and its file."""

from typing import Any

import pytest

from ogive.broker.replies import Rejected
from ogive.broker.state.offset_table import OffsetTable


def test_offsets_are_kept_by_group_topic_and_queue() -> None:
    table = OffsetTable(10)
    table.commit("G", "T", 0, 5)
    table.commit("H", "T", 0, 6)
    table.commit("G", "U", 3, 7)
    assert (table.get("G", "T", 0), table.get("H", "T", 0), table.get("G", "U", 3)) == (5, 6, 7)
    assert table.get("G", "T", 1) is None
    assert (table.topics_of("G"), table.groups_of("T")) == (["T", "U"], ["G", "H"])


def test_the_version_moves_with_changes_only() -> None:
    table = OffsetTable(10)
    table.commit("G", "T", 0, 5)
    version = table.version
    table.commit("G", "T", 0, 5)
    assert table.version == version
    table.commit("G", "T", 0, 4)
    assert table.version > version


def test_a_full_table_takes_changes_and_nothing_new() -> None:
    table = OffsetTable(2)
    table.commit("G", "T", 0, 1)
    table.commit("G", "T", 1, 1)
    table.commit("G", "T", 1, 2)
    with pytest.raises(Rejected, match="2 offsets"):
        table.commit("G", "T", 2, 1)
    with pytest.raises(Rejected, match="2 offsets"):
        table.commit("H", "T", 0, 1)
    table.remove_group("G")
    assert len(table) == 0
    table.commit("H", "T", 0, 1)
    table.remove_topic("T")
    assert len(table) == 0


def test_the_brokers_own_progress_needs_no_room() -> None:
    table = OffsetTable(1)
    table.commit("G", "T", 0, 1)
    table.note("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0, 7)
    assert (table.get("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0), len(table)) == (7, 2)


def test_the_file_is_apaches_and_a_snapshot_is_of_its_moment() -> None:
    table = OffsetTable(10)
    table.commit("G", "%RETRY%G", 0, 5)
    render = table.snapshot()
    table.commit("G", "%RETRY%G", 0, 6)
    content = render()
    assert content["offsetTable"] == {"%RETRY%G@G": {"0": 5}}
    again = OffsetTable(10)
    again.load(content)
    assert again.get("G", "%RETRY%G", 0) == 5
    assert again.version == 0


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"untoldTable": None},
        {"untoldTable": {"T": [0], "T@G": 5, "T@H": ["0", -1, None, 1.5, True]}},
        {"offsetTable": None},
        {"offsetTable": []},
        {"offsetTable": {"T": {"0": 1}}},
        {"offsetTable": {"T@G": {"x": 1}}},
        {"offsetTable": {"T@G": {"0": "1"}}},
        {"offsetTable": {"T@G": {"0": -1}}},
        {"offsetTable": {"T@G": 5}},
    ],
)
def test_entries_of_a_file_that_are_no_progress_are_left_out(content: dict[str, Any]) -> None:
    table = OffsetTable(10)
    table.load(content)
    assert len(table) == 0
    assert "untoldTable" not in table.snapshot()()


def test_what_is_removed_and_is_not_there_costs_no_look_at_all_offsets() -> None:
    class Queues(dict[tuple[str, str], dict[int, int]]):
        def __iter__(self) -> Any:
            raise AssertionError("all offsets were looked at")

    table = OffsetTable(10)
    for topic, group in (("T", "G"), ("T", "H"), ("U", "G")):
        table.commit(group, topic, 0, 1)
    kept = table._queues
    table._queues = Queues(kept)
    table.remove_group("nobody")
    table.remove_topic("nothing")
    table._queues = kept
    assert (table.has_topic("T"), table.has_topic("nothing")) == (True, False)
    table.remove_topic("T")
    table.remove_group("G")
    assert (len(table), table._topics, table._groups) == (0, {}, {})
