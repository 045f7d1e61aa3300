"""The results on the page of promises are written by the tool."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text("utf-8")
_spec = importlib.util.spec_from_file_location("reliability", ROOT / "tools" / "reliability.py")
assert _spec is not None
assert _spec.loader is not None
tool = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tool)


def test_results_are_summed_by_test_and_size_and_stand_in_order() -> None:
    lines = [
        {"test": "T10", "size": "nightly", "seconds": 1.0, "lost": 0, "faults": 10},
        {"test": "T4", "size": "nightly", "seconds": 2.0, "lost": 0, "acknowledged": 1000},
        {"test": "T4", "size": "nightly", "seconds": 3.0, "lost": 1, "acknowledged": 500},
    ]
    text = tool.table(lines, "2026-11-22")
    assert [row.split("|")[1:] for row in text.splitlines()[4:]] == [
        [" T4 ", " nightly ", " 2 ", "  ", "  ", " 1,500 ", "  ", " 1 ", "  ", " 5 ", ""],
        [" T10 ", " nightly ", " 1 ", " 10 ", "  ", "  ", "  ", " 0 ", "  ", " 1 ", ""],
    ]


def test_what_long_sizes_measure_stands_with_its_unit_and_from_the_least_to_the_most() -> None:
    lines = [
        {
            "test": "T32",
            "size": "nightly",
            "seconds": 1.0,
            "lost": 0,
            "opened_after_stop_s": 2.0,
            "descriptors": 1276,
        },
        {
            "test": "T26",
            "size": "nightly",
            "seed": 7,
            "slope_kib_a_minute": -3,
            "messages_a_second": 17_000,
            "deaths": {"write": 3},
        },
        {"test": "T32", "size": "nightly", "opened_after_stop_s": 1.5},
        {"test": "T31", "size": "quick", "stored_of_usual_percent": 99},
    ]
    assert tool.measures(lines).splitlines()[2:] == [
        "| T26 | slope -3 KiB a minute; messages 17,000 a second |",
        "| T32 | opened after stop 1.5 to 2.0 s; descriptors 1,276 |",
    ]


def test_the_page_has_a_place_for_the_results() -> None:
    page = tool.replaced(PAGE, "NEW TABLE")
    assert page.count("NEW TABLE") == 1
    assert page.replace("NEW TABLE", "") != page
    assert tool.replaced(page, "NEW TABLE") == page
    with pytest.raises(ValueError, match="marks"):
        tool.replaced("no marks", "x")


def test_a_part_of_the_tests_writes_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures, page = tmp_path / "figures.jsonl", tmp_path / "page.md"
    page.write_text(PAGE, "utf-8")
    monkeypatch.setattr(tool, "DOCS", page)
    monkeypatch.setattr(sys, "argv", ["reliability.py", str(figures)])
    lines = [
        {"test": name, "size": "nightly"} for name in ("T2", "T4", "T9 under load", "T11", "T15")
    ]
    figures.write_text(
        "\n".join(map(json.dumps, [*lines, {"test": "T10", "size": "quick"}])), "utf-8"
    )
    with pytest.raises(SystemExit, match="no figures of T10"):
        tool.main()
    assert page.read_text("utf-8") == PAGE
    figures.write_text(
        "\n".join(map(json.dumps, [*lines, {"test": "T10", "size": "nightly", "lost": 1}])), "utf-8"
    )
    with pytest.raises(SystemExit, match="lost in T10"):
        tool.main()
    assert page.read_text("utf-8") == PAGE
    figures.write_text(
        "\n".join(map(json.dumps, [*lines, {"test": "T10", "size": "nightly"}])), "utf-8"
    )
    tool.main()
    assert page.read_text("utf-8") != PAGE


@pytest.mark.parametrize("counted", [True, False], ids=["make test-slow", "a run by hand"])
def test_what_the_results_need_is_not_skipped(counted: bool, tmp_path: Path) -> None:
    """On a machine without the program that mounts, such as this PATH makes of any."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "OGIVE_"))
    } | {"PATH": str(tmp_path)}
    if counted:
        env["OGIVE_FIGURES"] = str(tmp_path / "figures.jsonl")
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "--nightly",
            "-rs",
            "tests/rel/test_full_disk.py",
        ],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    reason = "only root may mount a file system"
    if counted:
        assert run.returncode == 1, run.stdout
        assert f"T10 was not run, and the results need it: {reason}" in run.stdout
    else:
        assert run.returncode == 0, run.stdout
        assert "2 skipped" in run.stdout
        assert reason in run.stdout
