"""What pipelines say in the end, and what they read out of checkpoints."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from ogive.pipelines.page import page
from ogive.pipelines.running import lag, last_batch, positions
from ogive.pipelines.summary import Summary


def test_a_summary_says_what_was_skipped_and_why() -> None:
    summary = Summary("redrive", read=12, written=9, skipped=Counter({"not chosen": 2, "sent by an earlier run": 1}), notes=["9 to Orders"])
    assert summary.lines() == [
        "redrive: 12 read, 9 written, 3 skipped",
        "  skipped 2: not chosen",
        "  skipped 1: sent by an earlier run",
        "  9 to Orders",
    ]
    assert summary.as_json()["skipped"] == {"not chosen": 2, "sent by an earlier run": 1}


def test_a_dry_run_and_a_stop_show() -> None:
    assert Summary("archive", read=3, written=3, dry_run=True).lines() == ["archive: 3 read, 3 would be written"]
    assert Summary("archive", read=3, written=3, stopped=True).lines()[0].endswith("(stopped; run it again to go on)")


def test_a_checkpoint_says_where_its_query_goes_on(tmp_path: Path) -> None:
    """By the last batch that is committed, not the last that was begun."""
    assert (last_batch(tmp_path), positions(tmp_path)) == (-1, {})
    for name in ("commits", "offsets"):
        (tmp_path / name).mkdir()
    for batch in (0, 1, 2):
        offset = {"f": "x", "q": {"T": {"broker-a": {"0": 10 * batch}}}, "v": 1}
        (tmp_path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
    for batch in (0, 1):
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
    assert last_batch(tmp_path) == 1
    assert positions(tmp_path) == {"T": {"broker-a": {"0": 10}}}


def test_lag_is_what_lies_behind_the_last_batch() -> None:
    def offset(*queues: int) -> str:
        return json.dumps({"q": {"T": {"broker-a": {str(i): at for i, at in enumerate(queues)}}}})

    def progress(**source: Any) -> dict[str, Any]:
        return {"sources": [source]}

    assert lag(progress(latestOffset=offset(10, 5, 3), endOffset=offset(4, 5))) == 9
    assert lag(progress(latestOffset=None, endOffset=offset(4))) is None


def test_a_page_is_whole_and_escapes_names() -> None:
    row = {"name": "<b>group</b>", "count": 3, "failed": 1, "quantiles": [1, 20, 300], "most": 301}
    html = page({"Delivery": [row], "Nothing": []}, {"<b>group</b>": [(1_700_000_000_000, 20.0)]}, read=6, bucket="1 minute")
    assert "<b>group" not in html
    assert "&lt;b&gt;group&lt;/b&gt;" in html
    assert "Nothing was traced" in html
    assert "<script" not in html
    assert html.count("<table>") == 1
