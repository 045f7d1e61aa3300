"""A run whose figures are written down (make test-slow) fails where a promise that the page of
results stands for was not looked at.
"""

import os
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    result = item.get_closest_marker("result")
    if result is not None and report.skipped and os.environ.get("OGIVE_FIGURES"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        reason = reason.removeprefix("Skipped: ")
        report.longrepr = f"{result.args[0]} was not run, and the results need it: {reason}"
    return report
