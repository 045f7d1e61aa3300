"""Who still has to be told that a group was put elsewhere."""

import json

import pytest

from ogive.broker.state.offset_table import Asker, Audience, OffsetTable


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


def test_each_member_is_sent_to_the_new_place_once_and_its_commits_count_when_it_has_pulled_since(
    table: OffsetTable,
) -> None:
    table.reset("G", "T", 0, 5, BOTH)
    for asker in (member("a"), member("b")):
        assert table.resets.redirect("G", "T", 0, asker, 9) == 5
        assert table.resets.is_untold("G", "T", 0, asker)
        assert table.resets.redirect("G", "T", 0, asker, 5) is None
        assert not table.resets.is_untold("G", "T", 0, asker)


def test_a_member_that_stands_at_the_new_place_is_told_too(table: OffsetTable) -> None:
    """It may have everything before it, which is to be skipped."""
    table.reset("G", "T", 0, 5, BOTH)
    assert table.resets.redirect("G", "T", 0, member("a"), 5) == 5


def test_a_member_goes_its_own_way_after_it_was_told(table: OffsetTable) -> None:
    table.reset("G", "T", 0, 5, BOTH)
    asker = member("a")
    assert [table.resets.redirect("G", "T", 0, asker, at) for at in (9, 7, 8)] == [5, None, None]


def test_an_answer_that_was_lost_with_its_connection_is_given_again(table: OffsetTable) -> None:
    table.reset("G", "T", 0, 5, BOTH)
    assert table.resets.redirect("G", "T", 0, member("a"), 9) == 5
    assert table.resets.redirect("G", "T", 0, member("a"), 9) == 5


def test_who_was_told_before_its_heartbeat_is_not_told_again(table: OffsetTable) -> None:
    table.reset("G", "T", 0, 5, BOTH)
    unknown = member()
    assert [table.resets.redirect("G", "T", 0, unknown, at) for at in (9, 5)] == [5, None]
    assert table.resets.redirect("G", "T", 0, unknown._replace(client_id="a"), 6) is None


def test_who_asks_and_goes_on_from_there_is_left_alone_though_another_one_commits(
    table: OffsetTable,
) -> None:
    table.reset("G", "T", 0, 5, BOTH)
    new, stale = member("c"), member("b")
    for asker in (new, stale):
        table.resets.give("G", "T", 0, asker, 5)
    table.commit("G", "T", 0, 7)
    assert table.resets.redirect("G", "T", 0, new, 5) is None
    assert table.resets.redirect("G", "T", 0, stale, 9) == 7


def test_a_pull_that_was_held_may_have_been_of_a_place_that_was_left(table: OffsetTable) -> None:
    table.reset("G", "T", 0, 5, BOTH)
    asker = member("a")
    table.resets.give("G", "T", 0, asker, 5)
    assert table.resets.redirect("G", "T", 0, asker, 9) == 5


def test_for_a_while_whoever_comes_may_have_been_away(table: OffsetTable, clock: Clock) -> None:
    table.reset("G", "T", 0, 5, BOTH)
    clock.now = AWAY_S - 1
    assert table.resets.redirect("G", "T", 0, member("c"), 9) == 5
    clock.now = AWAY_S
    assert table.resets.redirect("G", "T", 0, member("c"), 9) is None
    assert not table.resets.is_untold("G", "T", 0, member())
    assert table.resets.redirect("G", "T", 0, member("a"), 9) == 5


def test_who_broadcasts_is_told_by_name_only(table: OffsetTable) -> None:
    table.reset("G", "T", 0, 5, Audience({"a"}))
    assert table.resets.redirect("G", "T", 0, member("c"), 9) is None
    assert table.resets.redirect("G", "T", 0, member("a"), 9) == 5


def test_notes_go_when_all_know_or_their_time_is_over(table: OffsetTable, clock: Clock) -> None:
    table.reset("G", "T", 0, 5, Audience({"a"}))
    table.reset("G", "T", 1, 5, Audience(others=True))
    table.reset("G", "T", 2, 5, Audience())
    version = table.version
    asker = member("a")
    for at in (9, 5):
        table.resets.redirect("G", "T", 0, asker, at)
    assert (table.resets.is_untold("G", "T", 1, asker), table.version) == (True, version + 2)
    table.resets.forget_old()
    assert table.resets
    clock.now = AWAY_S
    table.resets.forget_old()
    assert (bool(table.resets), table.resets._noted, table.version) == (False, 0, version + 3)


def test_another_reset_is_told_anew(table: OffsetTable) -> None:
    asker = member("a")
    for offset in (5, 3):
        table.reset("G", "T", 0, offset, BOTH)
        assert [table.resets.redirect("G", "T", 0, asker, at) for at in (9, offset)] == [
            offset,
            None,
        ]
    assert table.resets._noted == 2


def test_who_has_to_be_told_is_in_the_file_until_it_is() -> None:
    table = OffsetTable(20)
    table.reset("G", "T", 1, 5, Audience(others=True))
    table.remove_topic(
        "U",
        {
            "G": Audience(others=True),
            "H": Audience({"10.0.0.1@7#8"}, others=True),
            "I": Audience({"10.0.0.1@7#9"}),
        },
        [0, 3],
    )
    content = table.snapshot()()
    assert content["untoldTable"] == {
        "T@G": [1],
        "U@G": [0, 3],
        "U@H@10.0.0.1@7#8": [0, 3],
        "U@H": [0, 3],
        "U@I@10.0.0.1@7#9": [0, 3],
    }
    again = OffsetTable(20)
    again.load(json.loads(json.dumps(content)))
    assert (again.snapshot()()["untoldTable"], again.version) == (content["untoldTable"], 0)
    assert [
        again.resets.redirect(group, "U", 3, member("10.0.0.1@7#9"), 9) for group in "GHIJ"
    ] == [0, 0, 0, None]
    for group in "GHI":
        table.remove_group(group)
    assert "untoldTable" not in table.snapshot()()


def test_a_deletion_that_is_repeated_leaves_nobody_untold() -> None:
    table = OffsetTable(10)
    table.remove_topic("T", {"G": BOTH}, [0])
    table.remove_topic("T")
    assert table.resets.is_untold("G", "T", 0, member("a"))


def test_what_members_have_to_be_told_is_bounded_however_topics_come_and_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = OffsetTable(2)
    for number in range(10):
        table.reset("G", f"T{number}", 0, 5, Audience({"a", "b", "c"}))
        table.remove_topic(f"T{number}")
    assert [table.resets.is_untold("G", f"T{number}", 0, member("z")) for number in range(10)] == [
        True,
        True,
    ] + [False] * 8
    assert table.resets._noted == 2
    assert "members of G are not notified of the reset on T2/0" in caplog.text


def test_a_group_that_nobody_is_of_takes_no_room(caplog: pytest.LogCaptureFixture) -> None:
    table = OffsetTable(1)
    table.reset("G", "T", 0, 5, Audience({"a"}))
    table.reset("G", "T", 0, 5, Audience())
    assert not table.resets
    assert not caplog.text
