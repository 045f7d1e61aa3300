"""What every unit test has: no stretch of work ends early because the machine is slow."""

import logging
import math

import pytest

from ogive.broker import filters
from ogive.broker.pulls import long_polling, lookup
from ogive.transport import connection, event_loop
from tests.unit.audit import LOGGER


@pytest.fixture(autouse=True)
def endless_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of what ends them make them short themselves."""
    for module, name in (
        (connection, "SLICE_S"),
        (event_loop, "SLICE_S"),
        (long_polling, "SLICE_S"),
        (filters, "SCAN_S"),
        (lookup, "LOOK_S"),
    ):
        monkeypatch.setattr(module, name, math.inf)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log of administration."""
    caplog.set_level(logging.INFO, LOGGER)
    return caplog
