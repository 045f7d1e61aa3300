"""Drive the pipeline, compare the figures, and write the report."""

import argparse
import asyncio
import importlib.util
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from examples.demo import figures, truth
from examples.demo.children import Child, members
from examples.demo.dataset import Dataset
from examples.demo.figures import Check
from examples.demo.flights import EventStream
from examples.demo.pipeline import Pipeline, pipeline
from examples.demo.progress import progress
from examples.demo.report import Fact, Run, number, render
from ogive.errors import InvalidOption, OgiveError
from ogive.spark.java import check_java
from ogive.transport.event_loop import new_event_loop

EXIT_DIFFERENT: Final = 1
EXIT_INTERRUPTED: Final = 130
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DISK_BYTES: Final = 2 << 30


def run(options: argparse.Namespace) -> int:
    """Return the exit code: 0 all figures agree, 1 one differs, 130 after Ctrl-C.

    *options*: ``events`` (number of events, None: all), ``report`` (path of the page), ``keep``
    (leave the data). Raises OgiveError if the run is not possible.
    """
    if options.events is not None and options.events < 1:
        raise InvalidOption(f"--events {options.events}: at least 1 is needed")
    what = (
        "the flights of a year"
        if options.events is None
        else f"the first {options.events:,} events of a year of flights"
    )
    print(
        f"demo: {what} through broker, consumer groups and Spark; every figure checked "
        "against the files",
        flush=True,
    )
    dataset = Dataset.installed()
    folder = Path(tempfile.mkdtemp(prefix="ogive-demo-"))
    try:
        _check_prerequisites(folder, Path(options.report))
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_until_stopped(dataset, options.events, folder, Path(options.report)))
    finally:
        if options.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _check_prerequisites(folder: Path, report: Path) -> None:
    """Raise OgiveError that says what is missing and how to get it, before anything is started."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        raise OgiveError("Spark is missing: install it with `pip install 'ogive[spark]'`")
    check_java()
    check_report(report)
    if (free := shutil.disk_usage(folder).free) < _DISK_BYTES:
        raise OgiveError(
            f"{folder.parent} has {free >> 20} MiB free, the demo needs up to {_DISK_BYTES >> 20}; "
            "TMPDIR names another place"
        )


def check_report(report: Path) -> None:
    """Raise InvalidOption if *report* cannot be written: better now than after
    minutes of work.

    Leaves no new file, changes none.
    """
    try:
        is_new = not report.exists()
        report.open("a").close()
        if is_new:
            # a link to what was not there stays one
            report.resolve().unlink()
    except OSError as exc:
        raise InvalidOption(
            f"--report {report}: it cannot be written there: {exc.strerror}"
        ) from None


async def _until_stopped(dataset: Dataset, limit: int | None, folder: Path, report: Path) -> int:
    """Run to the end; Ctrl-C and other signals end it in order, and once is enough."""
    work = asyncio.ensure_future(_run(dataset, limit, folder, report))
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            print("\nstopping ...", flush=True)
            work.cancel()

    loop = asyncio.get_running_loop()
    for sign in _STOP_SIGNALS:
        loop.add_signal_handler(sign, interrupt)
    await asyncio.wait((work,))
    return EXIT_INTERRUPTED if work.cancelled() else work.result()


async def _run(dataset: Dataset, limit: int | None, folder: Path, report: Path) -> int:
    started = time.monotonic()
    children: list[Child] = []
    try:
        with progress() as show:
            async with pipeline(folder, show) as run:
                children = run.children
                await _send(run, dataset, limit)
                await run.consume()
                expecting = asyncio.create_task(asyncio.to_thread(truth.compute, dataset, limit))
                await run.compute()
                expected = await expecting
    finally:
        left = [pid for child in children for pid in members(child.session)]
        print(
            f"processes left running: {', '.join(map(str, left))}"
            if left
            else "all processes have ended, none is left",
            flush=True,
        )
    checks = figures.compare(expected, run.observed)
    return conclude(checks, run, time.monotonic() - started, report)


async def _send(run: Pipeline, dataset: Dataset, limit: int | None) -> None:
    """Read the flights while the processes start, and let go of them after sending: Spark needs the
    memory.
    """
    loading = asyncio.create_task(asyncio.to_thread(EventStream, dataset, limit))
    await run.send(await run.start(loading))


def conclude(checks: Sequence[Check], run: Pipeline, elapsed_s: float, report: Path) -> int:
    """Print the comparison and write the page. Return the exit code."""
    print_checks(checks)
    facts = _facts(run, elapsed_s)
    page = Run(
        facts=facts,
        phases=run.phases,
        timeline=run.timeline,
        hours=run.observed.parquet,
        checks=checks,
    )
    report.write_text(render(page), encoding="utf-8")
    print("\n" + ", ".join(f"{fact.value} {fact.label}" for fact in facts))
    print(f"report: {report.resolve()}")
    failed = sum(not check.ok for check in checks)
    print(
        f"{failed} of {len(checks)} figures differ"
        if failed
        else f"all {len(checks)} figures agree with the files"
    )
    return EXIT_DIFFERENT if failed else 0


def _facts(run: Pipeline, elapsed_s: float) -> list[Fact]:
    observed, took = run.observed, {phase.label: phase.end - phase.start for phase in run.phases}
    sent = sum(observed.sent.values())
    in_order = observed.in_order
    deliveries = in_order.received + in_order.repeated + observed.cancellations.deliveries
    return [
        Fact("events", f"{sent:,}"),
        Fact("seconds in all", f"{elapsed_s:,.0f}"),
        Fact("events sent per second", f"{sent / took['send and consume']:,.0f}"),
        Fact("seconds of Spark", f"{took['Spark']:,.0f}"),
        Fact(
            "deliveries to listeners",
            f"{deliveries:,}",
        ),
        Fact("MB at most, all processes", f"{run.peak_bytes / 1e6:,.0f}"),
    ]


def print_checks(checks: Sequence[Check]) -> None:
    """Print the comparison as a table, a block per section."""
    width = max(len(check.name) for check in checks)
    print(f"\n{'':{width + 2}}{'from the files':>16}{'from the run':>16}")
    for section, rows in groupby(checks, key=lambda check: check.section):
        print(section)
        for check in rows:
            verdict = "equal" if check.ok else "DIFFERS"
            print(
                f"  {check.name:{width}}{number(check.expected):>16}{number(check.actual):>16}  "
                f"{verdict}"
            )
