"""What pipelines say in the end."""

from collections import Counter

import pytest

pytest.importorskip("pyspark")

from ogive.pipelines.job import Summary


def test_a_summary_says_what_was_skipped_and_why() -> None:
    summary = Summary(
        "redrive",
        read=12,
        written=9,
        skipped=Counter({"not chosen": 2, "sent by an earlier run": 1}),
        notes=["9 to Orders"],
    )
    assert summary.lines() == [
        "redrive: 12 read, 9 written, 3 skipped",
        "  skipped 2: not chosen",
        "  skipped 1: sent by an earlier run",
        "  9 to Orders",
    ]
    assert summary.as_json()["skipped"] == {"not chosen": 2, "sent by an earlier run": 1}


def test_a_dry_run_and_a_stop_show() -> None:
    assert Summary("archive", read=3, written=3, dry_run=True).lines() == [
        "archive: 3 read, 3 would be written"
    ]
    assert (
        Summary("archive", read=3, written=3, stopped=True)
        .lines()[0]
        .endswith("(stopped; run it again to go on)")
    )
