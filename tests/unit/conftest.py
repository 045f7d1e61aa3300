"""What every unit test has: no stretch of work ends early because the machine is slow."""

import logging
import math

import pytest

from ogive.broker import filtering, pull_hold
from ogive.broker.handlers import queue_entries
from ogive.transport import connection, turn
from tests.unit.audit import LOGGER


@pytest.fixture(autouse=True)
def endless_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of what ends them make them short themselves."""
    for module, name in (
        (connection, "SLICE_S"),
        (turn, "SLICE_S"),
        (pull_hold, "SLICE_S"),
        (filtering, "SCAN_S"),
        (queue_entries, "LOOK_S"),
    ):
        monkeypatch.setattr(module, name, math.inf)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log of administration."""
    caplog.set_level(logging.INFO, LOGGER)
    return caplog
