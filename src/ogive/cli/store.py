"""``ogive store``: check and repair the directory of a stopped broker."""

import argparse
import dataclasses
from pathlib import Path
from typing import Final

from ogive.cli.logs import say_once
from ogive.cli.output import print_json
from ogive.store.verify import Report
from ogive.store.verify import repair as repair_store
from ogive.store.verify import verify as verify_store
from ogive.words import counted

EXIT_DAMAGED: Final = 3


def verify(options: argparse.Namespace) -> int:
    """0 where nothing is wrong, 3 where something is.

    Raises StoreLocked, StoreUnusable, StoreCorrupt.
    """
    say_once(again=False)
    report = verify_store(Path(options.directory))
    if options.json:
        print_json(_record(report))
    else:
        _show(report)
    return 0 if report.is_sound else EXIT_DAMAGED


def repair(options: argparse.Namespace) -> int:
    """0 if all is well now, 3 if something is left.

    Raises StoreLocked, StoreUnusable, StoreCorrupt.
    """
    say_once(again=False)
    before, after = repair_store(Path(options.directory))
    if options.json:
        print_json({"before": _record(before), "after": _record(after)})
    else:
        print("found:")
        _show(before)
        print("after the repair:")
        _show(after)
    return 0 if after.is_sound else EXIT_DAMAGED


def _record(report: Report) -> dict[str, object]:
    return {"sound": report.is_sound, **dataclasses.asdict(report)}


def _show(report: Report) -> None:
    held = f"{counted(report.records, 'record')} in {counted(report.queues, 'queue')}"
    print(f"{report.directory}: {held}, log {report.log_start:,} to {report.log_end:,}")
    if not report.clean:
        behind = (
            f"; {counted(report.queues_behind, 'queue')} behind the log"
            if report.queues_behind
            else ""
        )
        print(
            f"  the last broker here did not stop cleanly{behind}: the next start takes care of "
            "that"
        )
    for sentence in (*report.notes, *report.problems):
        print(f"  {sentence}")
    print(
        "  nothing is wrong" if report.is_sound else f"  {counted(len(report.problems), 'problem')}"
    )
