"""Write a table of SDKs and scenarios into a page, from a JUnit report of the run.

.venv/bin/python -m tests.interop.sdk.table REPORT.xml [PAGE]

A report of tests/interop/test_sdk_scenarios.py gives the table of ``ogive up``, one of
test_sdk_before_cluster.py that of ``ogive proxy``.
"""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Final
from xml.etree import ElementTree

from tests.interop import test_sdk_before_cluster, test_sdk_scenarios
from tests.interop.sdk.sdks import ROOT, SDKS

PAGE: Final = ROOT / "docs" / "grpc.md"
END: Final = "<!-- end of what is written -->\n"
SERVERS: Final[dict[ModuleType, tuple[str, ...]]] = {
    test_sdk_scenarios: ("",),
    test_sdk_before_cluster: ("-ogive", "-apache"),
}
"""The ends of the ids of a module's tests: one for each server that the SDKs are run against."""


def begin(scenarios: ModuleType) -> str:
    """The line above the table of a module's tests."""
    return f"<!-- written by tests/interop/sdk/table.py, from {name_of(scenarios)} -->\n"


def name_of(scenarios: ModuleType) -> str:
    return scenarios.__name__.rpartition(".")[2]


def rows(scenarios: ModuleType) -> dict[str, str]:
    """Each scenario's test, and what the table calls it: the first line of its docstring."""
    return {
        name: (test.__doc__ or name).partition("\n")[0]
        for name, test in vars(scenarios).items()
        if name.startswith("test_")
    }


def cells(report: ElementTree.Element, scenarios: ModuleType) -> dict[tuple[str, str], str]:
    """The outcome of each scenario with each SDK, on all servers: "yes", or "no" and why.

    Raises ValueError for a test that failed or was skipped: the table shows a whole run.
    """
    found: dict[tuple[str, str], dict[str, str]] = {}
    for case in report.iter("testcase"):
        test, _, given = case.get("name", "").removesuffix("]").partition("[")
        if test not in rows(scenarios) or not case.get("classname", "").endswith(
            name_of(scenarios)
        ):
            continue
        sdk, hyphen, server = given.partition("-")
        problem = next(iter(case), None)
        if problem is None:
            outcome = "yes"
        elif problem.get("type") == "pytest.xfail":
            outcome = f"no: {problem.get('message')}"
        else:
            raise ValueError(f"{test}[{given}] did not pass: {problem.get('message')}")
        found.setdefault((test, sdk), {})[hyphen + server] = outcome
    missing = {
        f"{test}[{sdk}{server}]"
        for test in rows(scenarios)
        for sdk in SDKS
        for server in SERVERS[scenarios]
        if server not in found.get((test, sdk), {})
    }
    if missing:
        raise ValueError(f"the report lacks {sorted(missing)}")
    # a "no" before "yes"
    return {key: min(outcomes.values()) for key, outcomes in found.items()}


def table(found: dict[tuple[str, str], str], scenarios: ModuleType) -> str:
    titles = ["scenario", *(sdk.title for sdk in SDKS.values())]
    lines = [titles, ["---"] * len(titles)]
    lines += [[row, *(found[test, sdk] for sdk in SDKS)] for test, row in rows(scenarios).items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> int:
    page = Path(sys.argv[2]) if sys.argv[2:] else PAGE
    report = ElementTree.parse(sys.argv[1]).getroot()
    ran = {case.get("classname", "").rpartition(".")[2] for case in report.iter("testcase")}
    [scenarios] = [module for module in SERVERS if name_of(module) in ran]
    written = table(cells(report, scenarios), scenarios)
    text, head = page.read_text("utf-8"), begin(scenarios)
    pattern = re.escape(head) + r".*?" + re.escape(END)
    new, count = re.subn(pattern, lambda _: f"{head}\n{written}\n{END}", text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{page} must have the lines {head!r} and {END!r} once")
    page.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
