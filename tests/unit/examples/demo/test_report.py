"""The report: self-contained, complete, and loud about a difference."""

import dataclasses
from html.parser import HTMLParser

from examples.demo import names, report, truth
from examples.demo.dataset import Dataset
from examples.demo.figures import Check
from examples.demo.report import Fact, Run
from examples.demo.timeline import Timeline
from ogive.console.charts import Band


def run_of(dataset: Dataset, checks: list[Check]) -> Run:
    timeline = Timeline()
    for second in range(4):
        for name in (
            names.SENT,
            names.SENT_CANCELLATIONS,
            names.IN_ORDER,
            names.CANCELLATIONS,
            names.SPARK,
        ):
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
        self.fetched += [
            str(value)
            for name, value in attrs
            if name in ("src", "href", "xlink:href", "data", "action")
        ]
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
    assert "2 figures compared with the files: every figure is right" in report.render(
        run_of(dataset, [good, good])
    )
    page = report.render(run_of(dataset, [good, bad]))
    assert "1 of 2 figures differ" in page
    assert (
        '<tr class="differs"><td>rows</td><td>2,512</td><td>none</td><td>DIFFERS</td></tr>' in page
    )


def test_hours_are_shown_on_new_yorks_clocks(dataset: Dataset) -> None:
    """Flight 1545 left at 10:17 UTC, which is 05:17 in New York."""
    page = report.render(run_of(dataset, []))
    assert "EWR, 05:00 to 05:59: 1 departures, 2.0 min late on average, 100.0% on time" in page


def test_the_page_says_what_was_read_not_what_could_have_been(dataset: Dataset) -> None:
    whole = report.render(run_of(dataset, []))
    assert "from 1 January to 5 July 2013" in whole
    first = report.render(
        dataclasses.replace(run_of(dataset, []), hours=truth.compute(dataset, 3).hours)
    )
    assert "on 1 January 2013" in first
    assert "July" not in first


def test_text_is_escaped(dataset: Dataset) -> None:
    assert "send &lt;and&gt; consume" in report.render(run_of(dataset, []))
