"""What bench.spark does around its measurements: it ends whatever happens, and writes nothing but its table."""

import threading

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
    assert not book.row("sink", lambda: 1 / 0)
    assert book.row("batch", lambda: 7000.0)
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
        bench.Book(minutes=0).row("sink", lambda: bench.Book(minutes=0).timed("sink", threading.Event().wait))


@pytest.mark.parametrize("broken", ["ogive", "Spark"])
def test_what_is_measured_is_printed_and_written_whatever_happens(
    broken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(book: bench.Book, *_: object) -> None:
        for peer in bench.PEERS:
            book.begin(peer)
            if peer == broken:
                book.fail("everything else", RuntimeError("no broker\nat all\n\tat java.lang.Thread"))
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
        "- ogive, everything else: no broker at all" if broken == "ogive" else "- apache, the rest: Spark does not answer any more"
    )
    assert text in capsys.readouterr().out


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
