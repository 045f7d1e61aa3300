"""SIGHUP at ``ogive up`` and ``ogive proxy`` without certificates to reload."""

import asyncio
import io
import logging
import sys

import pytest

from ogive.cli import up


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """The root logger at WARNING, which has its level back afterwards."""
    logger = logging.getLogger()
    monkeypatch.setattr(logger, "level", logger.level)
    logger.setLevel(logging.WARNING)
    return logger


def test_a_hang_up_changes_the_log_level_of_a_service(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    stop = asyncio.Event()
    levels = []
    for _ in range(3):
        up.hang_up(stop)
        levels.append(root.level)
    assert levels == [logging.INFO, logging.DEBUG, logging.WARNING]
    assert caplog.messages[0] == "SIGHUP: the log level is INFO now"
    assert not stop.is_set()


def test_a_hang_up_of_the_terminal_stops(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    stop = asyncio.Event()
    up.hang_up(stop)
    assert stop.is_set()
    assert root.level == logging.WARNING
