"""The table of SDKs and scenarios in docs/grpc.md is that of the scenarios that there are."""

import itertools
from xml.etree import ElementTree

import pytest

from tests.interop.sdk import table
from tests.interop.sdk.sdks import SDKS


def report(outcome: str = "") -> ElementTree.Element:
    """A report of a run in which every test passed, but for the first one's *outcome*."""
    outcomes = itertools.chain([outcome], itertools.repeat(""))
    cases = [
        f'<testcase classname="test_sdk_scenarios" name="{test}[{sdk}]">{next(outcomes)}</testcase>'
        for test in table.rows()
        for sdk in SDKS
    ]
    return ElementTree.fromstring(f"<testsuite>{''.join(cases)}</testsuite>")


def test_the_page_has_a_row_for_each_scenario_and_a_column_for_each_sdk() -> None:
    written = table.PAGE.read_text("utf-8").partition(table.BEGIN)[2].partition(table.END)[0]
    lines = [line.strip("| ").split(" | ") for line in written.strip().splitlines()]
    assert lines[0][1:] == [sdk.title for sdk in SDKS.values()]
    assert [line[0] for line in lines[2:]] == list(table.rows().values())
    assert all(cell == "yes" or cell.startswith("no: ") for line in lines[2:] for cell in line[1:])


def test_a_limit_of_an_sdk_is_shown_with_its_reason() -> None:
    found = table.cells(report('<skipped type="pytest.xfail" message="the SDK cannot"/>'))
    assert list(found.values()).count("yes") == len(found) - 1
    assert "no: the SDK cannot" in table.table(found)


@pytest.mark.parametrize(
    "outcome", ['<failure message="x"/>', '<error message="x"/>', '<skipped type="pytest.skip"/>']
)
def test_a_run_that_did_not_pass_gives_no_table(outcome: str) -> None:
    with pytest.raises(ValueError, match="did not pass"):
        table.cells(report(outcome))


def test_a_run_of_some_scenarios_gives_no_table() -> None:
    part = report()
    part.remove(part[0])
    with pytest.raises(ValueError, match="lacks"):
        table.cells(part)
