"""Heat map as inline SVG: rows of coloured cells with their numbers."""

import colorsys
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ogive.console.charts import svg_open, svg_text

_CELL_WIDTH, _CELL_HEIGHT, _HEAT_LEFT, _HEAT_TOP = 36, 40, 56, 22


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One row of cells, None where there is nothing to show; *details* are the cells' tooltips."""

    label: str
    cells: Sequence[float | None]
    details: Sequence[str]


def heat_map(
    title: str,
    rows: Sequence[HeatRow],
    columns: Sequence[str],
    *,
    hue: int,
    low: float,
    high: float,
    digits: int,
) -> str:
    """Draw rows of coloured cells with their numbers; *low* and *high* are the ends of the scale,
    pale and strong.

    In two halves, which the page puts side by side where it is wide enough.
    """
    cuts = (0, (len(columns) + 1) // 2, len(columns))
    halves = (
        _heat_map(title, rows, columns, range(first, last), hue, low, high, digits)
        for first, last in itertools.pairwise(cuts)
    )
    return f'<div class="halves">{"".join(halves)}</div>'


def _heat_map(
    title: str,
    rows: Sequence[HeatRow],
    columns: Sequence[str],
    shown: range,
    hue: int,
    low: float,
    high: float,
    digits: int,
) -> str:
    parts = [
        svg_open(
            _HEAT_LEFT + _CELL_WIDTH * len(shown) + 2,
            _HEAT_TOP + _CELL_HEIGHT * len(rows) + 2,
            title,
        )
    ]
    parts += [
        svg_text(_HEAT_LEFT + _CELL_WIDTH * (at + 0.5), 14, columns[index], "hour")
        for at, index in enumerate(shown)
    ]
    for row_index, row in enumerate(rows):
        top = _HEAT_TOP + row_index * _CELL_HEIGHT
        parts.append(svg_text(0, top + _CELL_HEIGHT / 2 + 5, row.label, "row", "start"))
        for at, index in enumerate(shown):
            value = row.cells[index]
            if value is not None:
                strength = min(1.0, max(0.0, (value - low) / (high - low)))
                cell = _cell(
                    _HEAT_LEFT + at * _CELL_WIDTH, top, f"{value:z.{digits}f}", hue, strength
                )
                parts.append(f"<g><title>{escape(row.details[index])}</title>{cell}</g>")
    return "".join((*parts, "</svg>"))


def _cell(left: float, top: float, text: str, hue: int, strength: float) -> str:
    """Draw a box with a number, pale at *strength* 0 and strong at 1."""
    size = f'width="{_CELL_WIDTH - 2}" height="{_CELL_HEIGHT - 2}" rx="4"'
    colour = colorsys.hls_to_rgb(hue / 360, 0.95 - 0.58 * strength, 0.62)
    fill = "#" + "".join(f"{round(255 * part):02x}" for part in colour)
    box = f'<rect x="{left + 1:g}" y="{top + 1:g}" {size} fill="{fill}"/>'
    ink = "cell pale" if luminance(colour) < _MIDDLE else "cell"
    return box + svg_text(left + _CELL_WIDTH / 2, top + _CELL_HEIGHT / 2 + 5, text, ink)


_MIDDLE = math.sqrt(1.05 * 0.05) - 0.05
"""The luminance on which black and white can be read equally well: 4.6 : 1, where 4.5 : 1 is asked
for (WCAG 2, AA).
"""


def luminance(colour: tuple[float, float, float]) -> float:
    """Return the relative luminance of an sRGB colour whose parts are 0 to 1 (WCAG 2)."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
