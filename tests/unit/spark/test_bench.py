"""What bench.spark does around its measurements: it ends whatever happens, and writes nothing but
its table.
"""

import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from bench import spark as bench


def test_a_measurement_that_hangs_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MOST_S", 0.01)
    with pytest.raises(bench.Stuck, match="sink: not done after 0 s"):
        bench.Book(minutes=14).timed("sink", threading.Event().wait)


def test_the_whole_run_has_an_end() -> None:
    with pytest.raises(bench.Over, match="the time of the run is over"):
        bench.Book(minutes=0).timed("sink", threading.Event().wait)


def test_what_a_measurement_raises_is_not_lost() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bench.Book(minutes=14).timed("sink", fail)


def test_each_measurement_begins_with_what_its_thread_needs() -> None:
    """Spark's active session is one of the thread."""
    book = bench.Book(minutes=14)
    book.begin("ogive")
    done: list[tuple[str, threading.Thread]] = []
    book.enter = lambda: done.append(("enter", threading.current_thread()))
    book.timed("sink", lambda: done.append(("work", threading.current_thread())))
    assert [what for what, _ in done] == ["enter", "work"]
    assert done[0][1] is done[1][1]


def test_a_figure_that_fails_costs_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    """But where it is the time of the whole run that is over."""
    book = bench.Book(minutes=14)
    book.begin("ogive")
    assert not book.tried("sink", lambda: 1 / 0)
    assert book.tried("batch", lambda: book.note("batch", 7000.0))
    assert bench.report(book) == "\n".join(
        [
            "| thousand rows/s | ogive | ogive to kafka |",
            "|---|---|---|",
            "| batch | 7 |  |",
            "",
            "Not measured:",
            "",
            "- ogive, sink: division by zero",
        ]
    )
    assert "ZeroDivisionError" in capsys.readouterr().err
    with pytest.raises(bench.Over):
        bench.Book(minutes=0).tried(
            "sink", lambda: bench.Book(minutes=0).timed("sink", threading.Event().wait)
        )


@pytest.mark.parametrize("broken", ["ogive", "Spark"])
def test_what_is_measured_is_printed_and_written_whatever_happens(
    broken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(book: bench.Book, *_: object) -> None:
        for peer in bench.PEERS:
            book.begin(peer)
            if peer == broken:
                book.fail(
                    "everything else", RuntimeError("no broker\nat all\n\tat java.lang.Thread")
                )
            else:
                book.note("sink", 5000.0)
        if broken == "Spark":
            raise bench.Over("Spark does not answer any more")

    written: list[str] = []
    monkeypatch.setattr(bench, "run", run)
    monkeypatch.setattr(bench, "write", written.append)
    monkeypatch.setattr("sys.argv", ["bench.spark", "--write"])
    assert bench.main() == 1
    (text,) = written
    assert "| sink | " in text
    assert text.endswith(
        "- ogive, everything else: no broker at all"
        if broken == "ogive"
        else "- apache, the rest: Spark does not answer any more"
    )
    assert text in capsys.readouterr().out


IDLE: Any = SimpleNamespace(
    streams=SimpleNamespace(active=[]), sparkContext=SimpleNamespace(cancelAllJobs=lambda: None)
)
"""A Spark session that has nothing to do."""


def in_rounds(
    book: bench.Book, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, list[float]]
) -> list[str]:
    """Measure 100 rows of each peer in so many seconds, one after the other; whose turns it
    were.
    """
    turns: list[str] = []

    def timed(_: str, work: Callable[[], object]) -> float:
        peer = str(work())
        if peer not in seconds:
            # ending what failed
            return 0.0
        turns.append(peer)
        return seconds[peer].pop(0)

    monkeypatch.setattr(book, "timed", timed)
    for peer in seconds:
        book.begin(peer)
    bench.in_rounds(
        book,
        IDLE,
        "batch",
        dict.fromkeys(seconds, 100),
        {peer: partial(str, peer) for peer in seconds},
    )
    return turns


def test_peers_are_measured_in_turns_and_the_first_round_is_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peer that meets Spark cold would else have the worst figure."""
    book = bench.Book(minutes=14)
    turns = in_rounds(
        book, monkeypatch, {"ogive": [9.0, 1.0, 4.0, 2.0], "kafka": [5.0, 4.0, 4.0, 1.0]}
    )
    assert turns == ["ogive", "kafka"] * 4
    assert book.figures == {"ogive": {"batch": 50.0}, "kafka": {"batch": 25.0}}


def test_a_slow_peer_has_fewer_rounds_and_one_that_fails_has_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book = bench.Book(minutes=14)
    turns = in_rounds(
        book, monkeypatch, {"ogive": [15.0, 10.0], "kafka": [1.0], "apache": [1.0, 2.0, 2.0, 2.0]}
    )
    assert turns == ["ogive", "kafka", "apache", "ogive", "kafka", "apache", "apache", "apache"]
    assert book.figures == {"ogive": {"batch": 10.0}, "kafka": {}, "apache": {"batch": 50.0}}
    assert book.faults == ["kafka, batch: pop from empty list"]
    assert "IndexError" in capsys.readouterr().err


def test_a_table_of_rates_and_times() -> None:
    figures = {
        "ogive": {
            "100 B: sink": 90_000.0,
            "100 B: batch, all columns": 500_000.0,
            bench.LATENCY: 90.0,
        },
        "kafka": {
            "100 B: sink": 60_000.0,
            "100 B: batch, same columns": 1_000_000.0,
            bench.LATENCY: 60.0,
        },
    }
    assert bench.table(figures).split("\n") == [
        "| thousand rows/s | ogive | kafka | ogive to kafka |",
        "|---|---|---|---|",
        "| 100 B: sink | 90 | 60 | 1.50 |",
        "| 100 B: batch, all columns | 500 |  | 0.50 |",
        f"| {bench.LATENCY} | 90 | 60 | 1.50 |",
        "| 100 B: batch, same columns |  | 1,000 |  |",
    ]


def test_the_table_has_a_place_in_the_docs(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    page = tmp_path_factory.mktemp("docs") / "performance.md"
    page.write_bytes(bench.DOCS.read_bytes())
    monkeypatch.setattr(bench, "DOCS", page)
    bench.write("| first |")
    bench.write("| second |")
    text = page.read_text("utf-8")
    assert (
        "| first |" in text,
        text.count("| second |"),
        text.count(bench.BEGIN),
        text.count(bench.END),
    ) == (False, 1, 1, 1)
