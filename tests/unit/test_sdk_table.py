"""The tables of SDKs and scenarios in docs/grpc.md are those of the scenarios that there are."""

import itertools
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.interop.sdk import table
from tests.interop.sdk.sdks import SDKS

pytestmark = pytest.mark.parametrize("scenarios", table.SERVERS, ids=table.name_of)


def report(scenarios: ModuleType, outcome: str = "") -> ElementTree.Element:
    """A report of a run in which every test passed, but for the first one's *outcome*."""
    outcomes = itertools.chain([outcome], itertools.repeat(""))
    cases = [
        f'<testcase classname="{table.name_of(scenarios)}" name="{test}[{sdk}{server}]">'
        f"{next(outcomes)}</testcase>"
        for test in table.rows(scenarios)
        for sdk in SDKS
        for server in table.SERVERS[scenarios]
    ]
    return ElementTree.fromstring(f"<testsuite>{''.join(cases)}</testsuite>")


def test_the_page_has_a_row_for_each_scenario_and_a_column_for_each_sdk(
    scenarios: ModuleType,
) -> None:
    page = table.PAGE.read_text("utf-8")
    written = page.partition(table.begin(scenarios))[2].partition(table.END)[0]
    lines = [line.strip("| ").split(" | ") for line in written.strip().splitlines()]
    assert lines[0][1:] == [sdk.title for sdk in SDKS.values()]
    assert [line[0] for line in lines[2:]] == list(table.rows(scenarios).values())
    assert all(cell == "yes" or cell.startswith("no: ") for line in lines[2:] for cell in line[1:])


def test_a_limit_of_an_sdk_is_shown_with_its_reason(scenarios: ModuleType) -> None:
    cannot = '<skipped type="pytest.xfail" message="the SDK cannot"/>'
    found = table.cells(report(scenarios, cannot), scenarios)
    assert list(found.values()).count("yes") == len(found) - 1
    assert "no: the SDK cannot" in table.table(found, scenarios)


@pytest.mark.parametrize(
    "outcome", ['<failure message="x"/>', '<error message="x"/>', '<skipped type="pytest.skip"/>']
)
def test_a_run_that_did_not_pass_gives_no_table(scenarios: ModuleType, outcome: str) -> None:
    with pytest.raises(ValueError, match="did not pass"):
        table.cells(report(scenarios, outcome), scenarios)


def test_a_run_of_some_scenarios_gives_no_table(scenarios: ModuleType) -> None:
    part = report(scenarios)
    part.remove(part[0])
    with pytest.raises(ValueError, match="lacks"):
        table.cells(part, scenarios)
