"""Plots: readable numbers, round ticks, one curve in pieces."""

import re

import pytest

from ogive.console import charts
from ogive.console.charts import Curve, HeatRow


@pytest.mark.parametrize(("hue", "low", "high"), [(18, 0, 60), (205, 20, 100)])
def test_every_number_of_a_heat_map_can_be_read(hue: int, low: float, high: float) -> None:
    """The contrast that WCAG 2 asks of text, AA, whatever the value."""
    values = [low + (high - low) * step / 100 for step in range(101)]
    drawn = charts.heat_map(
        "t", [HeatRow("EWR", values, [""] * 101)], [""] * 101, hue=hue, low=low, high=high, digits=0
    )
    cells = re.findall(r'fill="#(\w\w)(\w\w)(\w\w)"/><text class="(cell|cell pale)"', drawn)
    assert len(cells) == 101
    for red, green, blue, ink in cells:
        ground = charts.luminance((int(red, 16) / 255, int(green, 16) / 255, int(blue, 16) / 255))
        assert (1.05 / (ground + 0.05) if ink == "cell pale" else (ground + 0.05) / 0.05) >= 4.5


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert ">0</text>" in charts.heat_map(
        "t", [HeatRow("EWR", [-0.3], [""])], ["00"], hue=1, low=0, high=2, digits=0
    )


def test_luminance_is_that_of_the_standard() -> None:
    assert [
        charts.luminance(colour) for colour in ((0, 0, 0), (1, 1, 1), (1, 0, 0))
    ] == pytest.approx([0, 1, 0.2126])
    assert charts.luminance((0.5, 0.5, 0.5)) == pytest.approx(0.2140, abs=1e-4)


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


def test_a_heat_map_leaves_out_cells_without_a_value() -> None:
    drawn = charts.heat_map(
        "t",
        [HeatRow("EWR", [1.0, None], ["one", "none"])],
        ["00", "01"],
        hue=1,
        low=0,
        high=2,
        digits=1,
    )
    assert drawn.count("<rect") == 1
    assert ">1.0</text>" in drawn


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
