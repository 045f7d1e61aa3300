"""Lines on standard error: bounded, and as JSON where that is asked for."""

import json
import logging
import math

import pytest

from ogive.cli import logs
from ogive.cli.logs import (
    LINES_A_SECOND,
    MAX_LINES_KNOWN,
    SAME_AFTER_S,
    JsonFormatter,
    RateFilter,
    RepeatFilter,
    TextFormatter,
    filter_repeated_warnings,
    set_up_logging,
)


def record(message: str, line: int = 1, exc: BaseException | None = None) -> logging.LogRecord:
    info = (type(exc), exc, exc.__traceback__) if exc is not None else None
    return logging.LogRecord("ogive.x", logging.WARNING, "x.py", line, message, ("y",), info)


def test_a_line_of_json_holds_everything() -> None:
    line = json.loads(JsonFormatter().format(record("from %s\n", exc=ValueError("no"))))
    assert line["time"].endswith("+00:00")
    assert (line["level"], line["logger"], line["message"]) == ("WARNING", "ogive.x", "from y\n")
    assert "ValueError: no" in line["exception"]


def test_a_line_of_text_is_one_line_whoever_wrote_into_it() -> None:
    """But for the traceback, which is ours."""
    told = logging.LogRecord(
        "ogive.x",
        logging.WARNING,
        "x.py",
        1,
        "%s joins",
        ("c1\n2026 ERROR broker: \x1b[2Jall is lost\u202e",),
        None,
    )
    assert (
        TextFormatter("%(message)s").format(told)
        == "c1\\x0a2026 ERROR broker: \\x1b[2Jall is lost\\u202e joins"
    )
    assert TextFormatter("%(message)s").format(
        record("from %s", exc=ValueError("no"))
    ).splitlines()[:2] == ["from y", "ValueError: no"]


def test_of_one_kind_so_many_lines_a_second_pass_and_the_others_are_counted() -> None:
    clock = [0.0]
    bounded = RateFilter(lambda: clock[0])
    assert sum(bounded.filter(record("a %s")) for _ in range(1000)) == LINES_A_SECOND
    assert bounded.filter(record("b %s", line=2))
    clock[0] = 1.5
    last = record("a %s")
    assert bounded.filter(last)
    assert last.getMessage() == f"a y (and {1000 - LINES_A_SECOND} more of this kind)"
    again = record("a %s")
    assert bounded.filter(again)
    assert again.getMessage() == "a y"


@pytest.mark.parametrize("logger", logs.CHANGES)
def test_no_administrative_change_is_held_back(logger: str) -> None:
    bounded = RateFilter(lambda: 0.0)
    changed = logging.LogRecord(
        logger, logging.INFO, "audit.py", 1, "root deletes topic %s", ("T",), None
    )
    assert all(bounded.filter(changed) for _ in range(10 * LINES_A_SECOND))


def test_a_line_that_was_just_shown_is_not_shown_again() -> None:
    clock = [0.0]
    once = RepeatFilter(lambda: clock[0])
    assert [once.filter(record(text)) for text in ("a %s", "a %s", "b %s", "a %s")] == [
        True,
        False,
        True,
        False,
    ]
    clock[0] = SAME_AFTER_S
    assert once.filter(record("a %s"))
    never_again = RepeatFilter(lambda: clock[0], math.inf)
    assert never_again.filter(record("a %s"))
    clock[0] += 1e6
    assert not never_again.filter(record("a %s"))
    for number in range(2 * MAX_LINES_KNOWN):
        once.filter(record(f"{number} %s"))
    assert len(once._shown) <= MAX_LINES_KNOWN


def test_what_a_connection_says_of_its_end_is_left_to_the_command() -> None:
    """The error that the command ends with says it again."""
    ended = record("it speaks %s")
    ended.name = "ogive.transport.connection"
    assert not RepeatFilter().filter(ended)


def test_a_command_without_a_log_says_things_once() -> None:
    assert logging.lastResort is not None
    before = list(logging.lastResort.filters)
    logging.lastResort.filters.clear()
    try:
        for _ in range(2):
            filter_repeated_warnings()
        assert (
            len([one for one in logging.lastResort.filters if isinstance(one, RepeatFilter)]) == 1
        )
    finally:
        logging.lastResort.filters[:] = before


@pytest.mark.parametrize(
    ("verbose", "level"), [(0, logging.INFO), (1, logging.INFO), (2, logging.DEBUG)]
)
def test_what_a_start_found_after_a_crash_is_always_said(verbose: int, level: int) -> None:
    logger = logging.getLogger("ogive.store.recovery")
    before = logger.level
    try:
        set_up_logging(verbose, "text")
        assert logger.getEffectiveLevel() == level
    finally:
        logger.setLevel(before)
