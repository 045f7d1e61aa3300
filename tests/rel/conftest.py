"""A run whose figures are written down (make test-slow) fails where a promise that the page of results stands for was not looked at."""

import os
from collections.abc import Generator
from typing import Final

import pytest

NEVER_SKIPPED: Final = {
    "test_death_at_calls.py": "T2",
    "test_power_cut.py": "T4",
    "test_failed_sync.py": "T9",
    "test_full_disk.py": "T10",
    "test_store_faults.py": "T9, T10 or T11",
    "test_store_power_loss.py": "T11",
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    name = NEVER_SKIPPED.get(item.path.name)
    if name is not None and report.skipped and os.environ.get("OGIVE_FIGURES"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{name} was not run, and the results need it: {reason.removeprefix('Skipped: ')}"
    return report
