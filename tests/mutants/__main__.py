"""Puts faults into a copy of the source and shows which of them the tests notice.

    python -m tests.mutants --seed 7 --count 60               # random changes of the source
    python -m tests.mutants --seed 7 --paths store spark      # below src/ogive/store and spark only
    python -m tests.mutants --named                           # the faults of tests/mutants/named.py
    python -m tests.mutants --named "case 16" "no directory"  # those whose names begin like that

A random mutant runs the tests that call the changed function, for at most a minute, first in pure
Python; those that it survives run again with the compiled part. It is killed when a test fails.
Each survivor is printed as a diff: write a test, or list it with its reason in
tests/mutants/equivalent.py if no test can tell it from the original. A seed always picks the same
mutants of the same source. The first run traces what each test calls, which takes some minutes;
later ones do so only for test files that changed.
"""

import argparse
import ast
import difflib
import random
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.named import NAMED
from tests.mutants.nearest import SOURCE, calls
from tests.mutants.sites import Mutant, compiles, mutants
from tests.mutants.trial import Copy, copied, marked_tests, try_named, try_random

PATHS: Final = ("broker", "store", "client/consumer", "spark", "access")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if a named mutant survives, else 0. A human judges the share of random ones."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1, help="which random mutants; default 1")
    parser.add_argument("--count", type=int, default=60, help="how many; default 60")
    parser.add_argument(
        "--paths",
        nargs="+",
        default=PATHS,
        metavar="PATH",
        help=f"below src/ogive; default {' '.join(PATHS)}",
    )
    parser.add_argument(
        "--named",
        nargs="*",
        metavar="FAULT",
        help="named mutants instead, all or those whose names begin like that",
    )
    options = parser.parse_args(arguments)
    try:
        if options.named is not None:
            return run_named(options.named)
        return run_random(options.seed, options.count, options.paths)
    except FileNotFoundError as exc:
        parser.error(str(exc))
    except KeyboardInterrupt:
        return 130


def run_named(wanted: Sequence[str]) -> int:
    tests = marked_tests()
    survived = 0
    print("| fault | verdict | test | s |\n|---|---|---|---|")
    with copied() as copy:
        for name in NAMED:
            for test in tests[name] if name.startswith(tuple(wanted or [""])) else ():
                began = time.monotonic()
                outcome = try_named(copy, name, test)
                survived += not outcome.killed
                verdict = "killed" if outcome.killed else "SURVIVED"
                seconds = time.monotonic() - began
                print(f"| {name} | {verdict} | `{test}` | {seconds:.0f} |", flush=True)
                if not outcome.killed:
                    print(outcome.said, file=sys.stderr)
    return 1 if survived else 0


def run_random(seed: int, count: int, paths: Sequence[str]) -> int:
    chosen = list(picked(seed, count, paths))
    found = calls()
    killed = 0
    with copied() as copy:
        for number, mutant in enumerate(chosen, 1):
            began = time.monotonic()
            outcome = try_random(copy, mutant, found.of(mutant.file, mutant.function))
            killed += outcome.killed
            verdict = f"killed by {outcome.by}" if outcome.killed else "SURVIVED"
            place = f"{mutant.file}:{mutant.line} {mutant.what}"
            print(
                f"{number:3} of {len(chosen)}  {time.monotonic() - began:4.0f} s  {place}: "
                f"{verdict}",
                flush=True,
            )
            if not outcome.killed:
                print(diff(mutant, copy.text(mutant.file)), flush=True)
    print(
        f"\nseed {seed}: {killed} of {len(chosen)} killed "
        f"({100 * killed / max(len(chosen), 1):.0f} %)"
    )
    return 0


def picked(seed: int, count: int, paths: Sequence[str]) -> Iterator[Mutant]:
    """The mutants of a seed, without those that equal the original."""
    candidates = mutants(SOURCE, paths)
    random.Random(seed).shuffle(candidates)
    known = {fault.plant() for fault in EQUIVALENT.values()}
    copy = Copy(SOURCE.parent)
    left = count
    for mutant in candidates:
        if not left:
            return
        changed = mutant.apply(copy.text(mutant.file))
        if compiles(changed) and (SOURCE / mutant.file, normalised(changed)) not in known:
            left -= 1
            yield mutant


def normalised(source: bytes) -> str:
    """Return the source as a planted fault has it, without comments and layout."""
    return ast.unparse(ast.parse(source))


def diff(mutant: Mutant, source: bytes) -> str:
    old, new = source.decode().splitlines(), mutant.apply(source).decode().splitlines()
    name = f"src/ogive/{mutant.file}"
    return "\n".join(difflib.unified_diff(old, new, name, name, lineterm="", n=3))


if __name__ == "__main__":
    sys.exit(main())
