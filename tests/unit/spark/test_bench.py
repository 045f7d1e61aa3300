"""What bench.spark does around its measurements: it ends whatever happens, and writes nothing but its table."""

import threading

import pytest

pytest.importorskip("pyspark")

from bench import spark as bench


def test_a_measurement_that_hangs_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MOST_S", 0.01)
    with pytest.raises(bench.Stuck, match="sink: not done after 0 s"):
        bench.Book(minutes=14).timed("sink", threading.Event().wait)


def test_the_whole_run_has_an_end() -> None:
    with pytest.raises(bench.Stuck, match="the time of the run is over"):
        bench.Book(minutes=0).timed("sink", threading.Event().wait)


def test_what_a_measurement_raises_is_not_lost() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bench.Book(minutes=14).timed("sink", fail)


def test_a_table_of_rates_and_times() -> None:
    figures = {
        "ogive": {"100 B: sink": 90_000.0, "100 B: batch, all columns": 500_000.0, bench.LATENCY: 90.0},
        "kafka": {"100 B: sink": 60_000.0, "100 B: batch, same columns": 1_000_000.0, bench.LATENCY: 60.0},
    }
    assert bench.table(figures).split("\n") == [
        "| thousand rows/s | ogive | kafka | ogive to kafka |",
        "|---|---|---|---|",
        "| 100 B: sink | 90 | 60 | 1.50 |",
        "| 100 B: batch, all columns | 500 |  | 0.50 |",
        f"| {bench.LATENCY} | 90 | 60 | 1.50 |",
        "| 100 B: batch, same columns |  | 1,000 |  |",
    ]


def test_the_table_has_a_place_in_the_docs(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    page = tmp_path_factory.mktemp("docs") / "performance.md"
    page.write_bytes(bench.DOCS.read_bytes())
    monkeypatch.setattr(bench, "DOCS", page)
    bench.write("| first |")
    bench.write("| second |")
    text = page.read_text("utf-8")
    assert ("| first |" in text, text.count("| second |"), text.count(bench.BEGIN), text.count(bench.END)) == (False, 1, 1, 1)
