"""The report: self-contained, complete, and loud about a difference."""

import dataclasses
import re
from html.parser import HTMLParser

import pytest

from ogive.demo import charts, names, report, truth
from ogive.demo.charts import Band, HeatRow, Line
from ogive.demo.dataset import Dataset
from ogive.demo.figures import Check
from ogive.demo.report import Fact, Run
from ogive.demo.timeline import Timeline


def run_of(dataset: Dataset, checks: list[Check]) -> Run:
    timeline = Timeline()
    for second in range(4):
        for name in (names.SENT, names.SENT_CANCELLATIONS, names.IN_ORDER, names.CANCELLATIONS, names.SPARK):
            timeline.record(name, second, 100 * second)
    return Run(
        facts=[Fact("events", "21")],
        phases=[Band("send <and> consume", 0, 3)],
        timeline=timeline,
        hours=truth.compute(dataset).hours,
        checks=checks,
    )


class Outside(HTMLParser):
    """Collects whatever would make a browser fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href", "xlink:href", "data", "action")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)


def test_the_page_is_well_formed_and_fetches_nothing(dataset: Dataset) -> None:
    page = report.render(run_of(dataset, [Check("sent", "scheduled", 8, 8)]))
    parser = Outside()
    parser.feed(page)
    assert parser.fetched == []
    assert parser.open == []
    assert "http" not in page
    assert "url(" not in page


def test_the_page_says_that_all_is_right_or_which_figure_is_not(dataset: Dataset) -> None:
    good, bad = Check("sent", "scheduled", 8, 8), Check("dead letters", "rows", 2512, None)
    assert "2 figures compared with the files: every figure is right" in report.render(run_of(dataset, [good, good]))
    page = report.render(run_of(dataset, [good, bad]))
    assert "1 of 2 figures differ" in page
    assert '<tr class="differs"><td>rows</td><td>2,512</td><td>none</td><td>DIFFERS</td></tr>' in page


def test_hours_are_shown_on_new_yorks_clocks(dataset: Dataset) -> None:
    """Flight 1545 left at 10:17 UTC, which is 05:17 in New York."""
    page = report.render(run_of(dataset, []))
    assert "EWR, 05:00 to 05:59: 1 departures, 2.0 min late on average, 100.0% on time" in page


def test_the_page_says_what_was_read_not_what_could_have_been(dataset: Dataset) -> None:
    whole = report.render(run_of(dataset, []))
    assert "from 1 January to 5 July 2013" in whole
    first = report.render(dataclasses.replace(run_of(dataset, []), hours=truth.compute(dataset, 3).hours))
    assert "on 1 January 2013" in first
    assert "July" not in first


@pytest.mark.parametrize(("hue", "low", "high"), [(18, 0, 60), (205, 20, 100)])
def test_every_number_of_a_heat_map_can_be_read(hue: int, low: float, high: float) -> None:
    """The contrast that WCAG 2 asks of text, AA, whatever the value."""
    values = [low + (high - low) * step / 100 for step in range(101)]
    drawn = charts.heat_map("t", [HeatRow("EWR", values, [""] * 101)], [""] * 101, hue=hue, low=low, high=high, digits=0)
    cells = re.findall(r'fill="#(\w\w)(\w\w)(\w\w)"/><text class="(cell|cell pale)"', drawn)
    assert len(cells) == 101
    for red, green, blue, ink in cells:
        ground = charts.luminance((int(red, 16) / 255, int(green, 16) / 255, int(blue, 16) / 255))
        assert (1.05 / (ground + 0.05) if ink == "cell pale" else (ground + 0.05) / 0.05) >= 4.5


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert ">0</text>" in charts.heat_map("t", [HeatRow("EWR", [-0.3], [""])], ["00"], hue=1, low=0, high=2, digits=0)


def test_luminance_is_that_of_the_standard() -> None:
    assert [charts.luminance(colour) for colour in ((0, 0, 0), (1, 1, 1), (1, 0, 0))] == pytest.approx([0, 1, 0.2126])
    assert charts.luminance((0.5, 0.5, 0.5)) == pytest.approx(0.2140, abs=1e-4)


def test_text_is_escaped(dataset: Dataset) -> None:
    assert "send &lt;and&gt; consume" in report.render(run_of(dataset, []))


@pytest.mark.parametrize(
    ("highest", "expected"),
    [(0, [0, 1]), (9, [0, 2, 4, 6, 8, 10]), (25_000, [0, 5_000, 10_000, 15_000, 20_000, 25_000]), (1, [0, 0.2, 0.4, 0.6, 0.8, 1])],
)
def test_ticks_are_round_and_reach_the_highest_value(highest: float, expected: list[float]) -> None:
    assert charts.ticks(highest, 5) == pytest.approx(expected)


def test_a_chart_without_points_is_still_a_chart() -> None:
    assert "</svg>" in charts.line_chart("nothing yet", [Line("empty", "c0", [])])


def test_a_heat_map_leaves_out_cells_without_a_value() -> None:
    drawn = charts.heat_map("t", [HeatRow("EWR", [1.0, None], ["one", "none"])], ["00", "01"], hue=1, low=0, high=2, digits=1)
    assert drawn.count("<rect") == 1
    assert ">1.0</text>" in drawn
