"""How far groups are: a table of offsets, its limits and its file."""

import json
from typing import Any

import pytest

from ogive.broker.offsets import Asker, Audience, OffsetTable
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


class Connection:
    """One that a table can know without keeping it."""


def member(client_id: str = "") -> Asker:
    return Asker(Connection(), client_id)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


AWAY_S = 120.0
BOTH = Audience({"a", "b"}, others=True)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> OffsetTable:
    return OffsetTable(10, away_s=AWAY_S, now=clock)


def test_each_member_is_sent_to_the_new_place_once_and_its_commits_count_when_it_has_pulled_since(table: OffsetTable) -> None:
    table.reset("G", "T", 0, 5, BOTH)
    for asker in (member("a"), member("b")):
        assert table.redirect("G", "T", 0, asker, 9) == 5
        assert table.is_untold("G", "T", 0, asker)
        assert table.redirect("G", "T", 0, asker, 5) is None
        assert not table.is_untold("G", "T", 0, asker)


def test_a_member_that_stands_at_the_new_place_is_told_too(table: OffsetTable) -> None:
    """It may have everything before it, which is to be skipped."""
    table.reset("G", "T", 0, 5, BOTH)
    assert table.redirect("G", "T", 0, member("a"), 5) == 5


def test_a_member_goes_its_own_way_after_it_was_told(table: OffsetTable) -> None:
    table.reset("G", "T", 0, 5, BOTH)
    asker = member("a")
    assert [table.redirect("G", "T", 0, asker, at) for at in (9, 7, 8)] == [5, None, None]


def test_an_answer_that_was_lost_with_its_connection_is_given_again(table: OffsetTable) -> None:
    table.reset("G", "T", 0, 5, BOTH)
    assert table.redirect("G", "T", 0, member("a"), 9) == 5
    assert table.redirect("G", "T", 0, member("a"), 9) == 5


def test_who_was_told_before_its_heartbeat_is_not_told_again(table: OffsetTable) -> None:
    table.reset("G", "T", 0, 5, BOTH)
    unknown = member()
    assert [table.redirect("G", "T", 0, unknown, at) for at in (9, 5)] == [5, None]
    assert table.redirect("G", "T", 0, unknown._replace(client_id="a"), 6) is None


def test_who_asks_and_goes_on_from_there_is_left_alone_though_another_one_commits(table: OffsetTable) -> None:
    table.reset("G", "T", 0, 5, BOTH)
    new, stale = member("c"), member("b")
    for asker in (new, stale):
        table.give("G", "T", 0, asker, 5)
    table.commit("G", "T", 0, 7)
    assert table.redirect("G", "T", 0, new, 5) is None
    assert table.redirect("G", "T", 0, stale, 9) == 7


def test_a_pull_that_was_held_may_have_been_of_a_place_that_was_left(table: OffsetTable) -> None:
    table.reset("G", "T", 0, 5, BOTH)
    asker = member("a")
    table.give("G", "T", 0, asker, 5)
    assert table.redirect("G", "T", 0, asker, 9) == 5


def test_for_a_while_whoever_comes_may_have_been_away(table: OffsetTable, clock: Clock) -> None:
    table.reset("G", "T", 0, 5, BOTH)
    clock.now = AWAY_S - 1
    assert table.redirect("G", "T", 0, member("c"), 9) == 5
    clock.now = AWAY_S
    assert table.redirect("G", "T", 0, member("c"), 9) is None
    assert not table.is_untold("G", "T", 0, member())
    assert table.redirect("G", "T", 0, member("a"), 9) == 5


def test_who_broadcasts_is_told_by_name_only(table: OffsetTable) -> None:
    table.reset("G", "T", 0, 5, Audience({"a"}))
    assert table.redirect("G", "T", 0, member("c"), 9) is None
    assert table.redirect("G", "T", 0, member("a"), 9) == 5


def test_notes_go_when_all_know_or_their_time_is_over(table: OffsetTable, clock: Clock) -> None:
    table.reset("G", "T", 0, 5, Audience({"a"}))
    table.reset("G", "T", 1, 5, Audience(others=True))
    table.reset("G", "T", 2, 5, Audience())
    version = table.version
    asker = member("a")
    for at in (9, 5):
        table.redirect("G", "T", 0, asker, at)
    assert (table.is_untold("G", "T", 1, asker), table.version) == (True, version + 2)
    table.forget_old_notes()
    assert table.has_notes
    clock.now = AWAY_S
    table.forget_old_notes()
    assert (table.has_notes, table._noted, table.version) == (False, 0, version + 3)


def test_another_reset_is_told_anew(table: OffsetTable) -> None:
    asker = member("a")
    for offset in (5, 3):
        table.reset("G", "T", 0, offset, BOTH)
        assert [table.redirect("G", "T", 0, asker, at) for at in (9, offset)] == [offset, None]
    assert table._noted == 2


def test_who_has_to_be_told_is_in_the_file_until_it_is() -> None:
    table = OffsetTable(20)
    table.reset("G", "T", 1, 5, Audience(others=True))
    table.remove_topic(
        "U", {"G": Audience(others=True), "H": Audience({"10.0.0.1@7#8"}, others=True), "I": Audience({"10.0.0.1@7#9"})}, [0, 3]
    )
    content = table.snapshot()()
    assert content["untoldTable"] == {
        "T@G": [1], "U@G": [0, 3], "U@H@10.0.0.1@7#8": [0, 3], "U@H": [0, 3], "U@I@10.0.0.1@7#9": [0, 3],
    }  # fmt: skip
    again = OffsetTable(20)
    again.load(json.loads(json.dumps(content)))
    assert (again.snapshot()()["untoldTable"], again.version) == (content["untoldTable"], 0)
    assert [again.redirect(group, "U", 3, member("10.0.0.1@7#9"), 9) for group in "GHIJ"] == [0, 0, 0, None]
    for group in "GHI":
        table.remove_group(group)
    assert "untoldTable" not in table.snapshot()()


def test_a_deletion_that_is_repeated_leaves_nobody_untold() -> None:
    table = OffsetTable(10)
    table.remove_topic("T", {"G": BOTH}, [0])
    table.remove_topic("T")
    assert table.is_untold("G", "T", 0, member("a"))


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


def test_what_members_have_to_be_told_is_bounded_however_topics_come_and_go(caplog: pytest.LogCaptureFixture) -> None:
    table = OffsetTable(2)
    for number in range(10):
        table.reset("G", f"T{number}", 0, 5, Audience({"a", "b", "c"}))
        table.remove_topic(f"T{number}")
    assert [table.is_untold("G", f"T{number}", 0, member("z")) for number in range(10)] == [True, True] + [False] * 8
    assert table._noted == 2
    assert "the reset of G on T2/0 is told to nobody" in caplog.text


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
