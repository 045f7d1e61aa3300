"""Heat maps: every number can be read."""

import re

import pytest

from examples.demo import heat_map
from examples.demo.heat_map import HeatRow


@pytest.mark.parametrize(("hue", "low", "high"), [(18, 0, 60), (205, 20, 100)])
def test_every_number_of_a_heat_map_can_be_read(hue: int, low: float, high: float) -> None:
    """The contrast that WCAG 2 asks of text, AA, whatever the value."""
    values = [low + (high - low) * step / 100 for step in range(101)]
    drawn = heat_map.heat_map(
        "t", [HeatRow("EWR", values, [""] * 101)], [""] * 101, hue=hue, low=low, high=high, digits=0
    )
    cells = re.findall(r'fill="#(\w\w)(\w\w)(\w\w)"/><text class="(cell|cell pale)"', drawn)
    assert len(cells) == 101
    for red, green, blue, ink in cells:
        ground = heat_map.luminance((int(red, 16) / 255, int(green, 16) / 255, int(blue, 16) / 255))
        assert (1.05 / (ground + 0.05) if ink == "cell pale" else (ground + 0.05) / 0.05) >= 4.5


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert ">0</text>" in heat_map.heat_map(
        "t", [HeatRow("EWR", [-0.3], [""])], ["00"], hue=1, low=0, high=2, digits=0
    )


def test_luminance_is_that_of_the_standard() -> None:
    assert [
        heat_map.luminance(colour) for colour in ((0, 0, 0), (1, 1, 1), (1, 0, 0))
    ] == pytest.approx([0, 1, 0.2126])
    assert heat_map.luminance((0.5, 0.5, 0.5)) == pytest.approx(0.2140, abs=1e-4)


def test_a_heat_map_leaves_out_cells_without_a_value() -> None:
    drawn = heat_map.heat_map(
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
