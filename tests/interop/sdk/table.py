"""Write the table of SDKs and scenarios into a page, from a JUnit report of the run.

.venv/bin/python -m tests.interop.sdk.table REPORT.xml [PAGE]
"""

import re
import sys
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.interop import test_sdk_scenarios as scenarios
from tests.interop.sdk.sdks import ROOT, SDKS

PAGE: Final = ROOT / "docs" / "grpc.md"
BEGIN: Final = "<!-- written by tests/interop/sdk/table.py -->\n"
END: Final = "<!-- end of what is written -->\n"


def rows() -> dict[str, str]:
    """Each scenario's test, and what the table calls it: the first line of its docstring."""
    return {
        name: (test.__doc__ or name).partition("\n")[0]
        for name, test in vars(scenarios).items()
        if name.startswith("test_")
    }


def cells(report: ElementTree.Element) -> dict[tuple[str, str], str]:
    """The outcome of each scenario with each SDK: "yes", or "no" and why.

    Raises ValueError for a test that failed or was skipped: the table shows a whole run.
    """
    found = {}
    for case in report.iter("testcase"):
        test, _, sdk = case.get("name", "").removesuffix("]").partition("[")
        if test not in rows() or not case.get("classname", "").endswith("test_sdk_scenarios"):
            continue
        problem = next(iter(case), None)
        if problem is None:
            found[test, sdk] = "yes"
        elif problem.get("type") == "pytest.xfail":
            found[test, sdk] = f"no: {problem.get('message')}"
        else:
            raise ValueError(f"{test}[{sdk}] did not pass: {problem.get('message')}")
    missing = {(test, sdk) for test in rows() for sdk in SDKS} - found.keys()
    if missing:
        raise ValueError(f"the report lacks {sorted(missing)}")
    return found


def table(found: dict[tuple[str, str], str]) -> str:
    titles = ["scenario", *(sdk.title for sdk in SDKS.values())]
    lines = [titles, ["---"] * len(titles)]
    lines += [[row, *(found[test, sdk] for sdk in SDKS)] for test, row in rows().items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> int:
    report, page = Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2:] else PAGE
    written = table(cells(ElementTree.parse(report).getroot()))
    text = page.read_text("utf-8")
    pattern = re.escape(BEGIN) + r".*?" + re.escape(END)
    new, count = re.subn(pattern, lambda _: f"{BEGIN}\n{written}\n{END}", text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{page} must have the lines {BEGIN!r} and {END!r} once")
    page.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
