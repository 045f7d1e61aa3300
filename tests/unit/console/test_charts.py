"""Plots: readable numbers, round ticks, one curve in pieces."""

import re

import pytest

from ogive.console import charts
from ogive.console.charts import Curve


@pytest.mark.parametrize(
    ("highest", "expected"),
    [
        (0, [0, 1]),
        (9, [0, 2, 4, 6, 8, 10]),
        (25_000, [0, 5_000, 10_000, 15_000, 20_000, 25_000]),
        (1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    ],
)
def test_ticks_are_round_and_reach_the_highest_value(highest: float, expected: list[float]) -> None:
    assert charts.ticks(highest, 5) == pytest.approx(expected)


def test_a_chart_without_points_is_still_a_chart() -> None:
    assert "</svg>" in charts.line_chart("nothing yet", [Curve("empty", "c0", [])])


def test_pieces_of_a_curve_have_one_entry_in_the_legend_and_a_point_is_a_dot() -> None:
    pieces = [
        Curve("lag", "c0", [(0, 1), (1, 2)]),
        Curve("lag", "c0", [(3, 1)]),
        Curve("in", "c1", []),
    ]
    drawn = charts.line_chart("t", pieces, end=4, place=lambda at: f"{at:g} min")
    assert drawn.count("<polyline") == 3
    assert drawn.count("</span>") == 2
    assert "4 min</text>" in drawn
    (dot,) = re.findall(r'points="(\S+) \1"', drawn)
    assert dot


def test_a_curve_alone_needs_no_legend() -> None:
    assert "legend" not in charts.line_chart(
        "t", [Curve("lag", "c0", [(0, 1)]), Curve("lag", "c0", [(3, 1)])]
    )
