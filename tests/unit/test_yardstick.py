"""Judgements of the yardstick, on sides that only say figures."""

from collections.abc import Iterable, Iterator
from typing import Any, cast

import pytest

from bench.side import LOADS, Load
from bench.yardstick import MOST_TURNS, TURNS, Process, Row, Unmeasured, measure, opened, table


class Says:
    """A side that gives these figures, one a turn."""

    def __init__(self, figures: Iterable[float]) -> None:
        self.figures: Iterator[float] = iter(figures)
        self.asked: list[str] = []

    def ask(self, command: str, *_: Any) -> dict[str, float]:
        self.asked.append(command)
        return {"sends": next(self.figures)} if command == "turn" else {}


def measured(base: Iterable[float], other: Iterable[float], *, itself: bool) -> Row:
    row = Row("sends", "messages/s")
    sides = [cast(Process, Says(figures)) for figures in (base, other)]
    measure(sides, Load(("sends",), lambda _: None, warm_up=0), None, [row], TURNS, itself=itself)
    return row


def test_a_row_that_differs_from_itself_gets_more_turns_until_it_does_not() -> None:
    row = measured([100.0] * 99, [90.0] * TURNS + [100.0] * 99, itself=True)
    assert (len(row.base), row.ratio) == (15, 1.0)


def test_a_row_that_never_settles_ends_and_is_marked() -> None:
    row = measured([100.0] * 99, [90.0] * 99, itself=True)
    assert len(row.base) == len(row.today) == MOST_TURNS
    assert "unsettled" in table([row], itself=True)


def test_a_comparison_takes_the_turns_it_was_given() -> None:
    assert len(measured([100.0] * 99, [90.0] * 99, itself=False).base) == TURNS


@pytest.mark.parametrize(
    ("unit", "today", "slower"),
    [("messages/s", 94.0, True), ("messages/s", 96.0, False), ("", 106.0, True), ("", 94.0, False)],
)
def test_a_rate_that_is_lower_and_a_cost_that_is_higher_are_marked(
    unit: str, today: float, slower: bool
) -> None:
    row = Row("what", unit, base=[99.0, 100.0, 101.0], today=[today] * 3)
    assert row.is_slower is slower
    assert ("SLOWER" in table([row], itself=False)) is slower
    assert row.spread == pytest.approx(0.01)


def test_what_could_not_be_measured_is_named_in_the_table() -> None:
    assert "NOT MEASURED: today: no Java" in table(
        [Row("what", "", error="today: no Java")], itself=False
    )


def test_both_sides_are_closed_when_one_cannot_begin() -> None:
    class Broken(Says):
        def ask(self, command: str, *values: Any) -> dict[str, float]:
            super().ask(command, *values)
            if command == "open":
                raise Unmeasured("no")
            return {}

    sides = [Says([]), Broken([])]
    with pytest.raises(Unmeasured), opened([cast(Process, side) for side in sides], 0):
        raise AssertionError("the load is not open")
    assert [side.asked for side in sides] == [["open", "close"]] * 2


def test_every_row_has_a_name_of_its_own() -> None:
    names = [row for load in LOADS for row in load.rows]
    assert len(set(names)) == len(names)
