"""The page of promises names tests that there are, and its table of results is written by the tool."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text("utf-8")
_spec = importlib.util.spec_from_file_location("reliability", ROOT / "tools" / "reliability.py")
assert _spec is not None
assert _spec.loader is not None
tool = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tool)


def test_every_test_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(tests/[\w/.]+)`", PAGE))
    assert len(named) > 30
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_results_are_summed_by_test_and_size_and_stand_in_order() -> None:
    lines = [
        {"test": "T10", "size": "nightly", "seconds": 1.0, "peak_rss_kib": 2048, "lost": 0, "faults": 10},
        {"test": "T4", "size": "nightly", "seconds": 2.0, "peak_rss_kib": 1024, "lost": 0, "acknowledged": 1000},
        {"test": "T4", "size": "nightly", "seconds": 3.0, "peak_rss_kib": 4096, "lost": 1, "acknowledged": 500},
    ]
    text = tool.table(lines, "2026-11-22")
    assert [row.split("|")[1:] for row in text.splitlines()[4:]] == [
        [" T4 ", " nightly ", " 2 ", "  ", "  ", " 1,500 ", "  ", " 1 ", "  ", " 4 ", " 5 ", ""],
        [" T10 ", " nightly ", " 1 ", " 10 ", "  ", "  ", "  ", " 0 ", "  ", " 2 ", " 1 ", ""],
    ]


def test_the_page_has_a_place_for_the_results() -> None:
    page = tool.replaced(PAGE, "NEW TABLE")
    assert page.count("NEW TABLE") == 1
    assert page.replace("NEW TABLE", "") != page
    assert tool.replaced(page, "NEW TABLE") == page
    with pytest.raises(ValueError, match="marks"):
        tool.replaced("no marks", "x")
