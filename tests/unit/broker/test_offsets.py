"""How far groups are: a table of offsets, its limits and its file."""

import json
from typing import Any

import pytest

from ogive.broker.offsets import ALL, OffsetTable
from ogive.broker.replies import Rejected


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


def test_whom_a_member_has_to_be_told_is_in_the_file_until_it_is() -> None:
    table = OffsetTable(10)
    table.commit("G", "T", 1, 5)
    table.reset("G", "T", 1, 5, tell=[ALL])
    table.remove_topic("U", [("G", ALL), ("H", ALL), ("H", "10.0.0.1@7#8")], [0, 3])
    content, version = table.snapshot()(), table.version
    again = OffsetTable(10)
    again.load(json.loads(json.dumps(content)))
    assert [again.is_untold(group, "U", 3) for group in "GHI"] == [True, True, False]
    assert [again.is_untold("H", "U", 3, member) for member in ("10.0.0.1@7#8", "10.0.0.1@7#9")] == [True, False]
    assert [again.redirected(*place, ALL, "", 9) for place in (("G", "T", 1), ("H", "U", 0))] == [5, 0]
    for place in (("G", "T", 1), ("G", "T", 1), ("H", "U", 0)):
        again.tell(*place)
    assert (again.is_untold("G", "T", 1), again.is_untold("H", "U", 0), again.version) == (False, False, 2)
    for topic, queue in (("T", 1), ("U", 0), ("U", 3)):
        table.tell("G", topic, queue)
    table.remove_group("H")
    assert table.version > version
    assert "untoldTable" not in table.snapshot()()


def test_a_deletion_that_is_repeated_leaves_nobody_untold() -> None:
    table = OffsetTable(10)
    table.remove_topic("T", [("G", ALL)], [0])
    table.remove_topic("T", [], [])
    assert table.is_untold("G", "T", 0)


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


def test_what_members_have_to_be_told_is_bounded_however_topics_come_and_go() -> None:
    table = OffsetTable(2)
    for number in range(10):
        table.reset("G", f"T{number}", 0, 5, tell=[ALL])
        table.remove_topic(f"T{number}")
    assert sum(table.is_untold("G", f"T{number}", 0) for number in range(10)) == 2


def test_every_member_is_told_of_a_reset_for_a_while_after_the_first_one_was() -> None:
    now = 1000.0
    table = OffsetTable(10, spread_s=120, now=lambda: now)
    table.reset("G", "T", 0, 5, tell=[ALL])
    table.tell("G", "T", 0, ALL, "one")
    assert [table.redirected("G", "T", 0, ALL, client, 9) for client in ("one", "two", "")] == [None, 5, None]
    assert [table.is_untold("G", "T", 0, ALL, client) for client in ("one", "two", "")] == [True, True, False]  # "one" has not pulled yet
    table.tell("G", "T", 0, ALL, "one", pulled=True)
    table.tell("G", "T", 0, ALL, "one")
    assert [table.is_untold("G", "T", 0, ALL, client) for client in ("one", "two")] == [False, True]
    assert "untoldTable" not in table.snapshot()()
    now += 119
    assert table.is_untold("G", "T", 0, ALL, "two")
    now += 1
    assert not table.is_untold("G", "T", 0, ALL, "two")
    assert (table.has_untold, table._told_count) == (False, 0)


def test_after_another_reset_everybody_has_to_be_told_again() -> None:
    table = OffsetTable(10)
    for offset in (5, 7):
        table.reset("G", "T", 0, offset, tell=[ALL])
        assert [table.redirected("G", "T", 0, ALL, client, 9) for client in ("one", "")] == [offset] * 2
        table.tell("G", "T", 0, ALL, "one", pulled=True)
    table.remove_group("G")
    assert (table.has_untold, table._told_count) == (False, 0)


def test_who_has_been_told_is_bounded_however_members_come_and_go() -> None:
    table = OffsetTable(10)
    for queue in range(2):
        table.reset("G", "T", queue, 5, tell=[ALL])
    for number in range(1000):
        table.tell("G", "T", number % 2, ALL, f"c{number}", pulled=True)
    assert table._told_count <= 10
    for number in range(1000):
        table.reset("G", f"T{number}", 0, 5, tell=[ALL])
        table.tell("G", f"T{number}", 0)
        table.remove_topic(f"T{number}")
    assert len(table._spreading) <= 10


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
