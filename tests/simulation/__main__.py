"""``python -m tests.simulation SEED [OPERATIONS] [--members | --pops]``: one story.

``--seeds N``: N of them from SEED on, until one goes wrong.
"""

import argparse
import gc
import json
import os
import sys
import time
from collections import Counter

from tests.simulation.pops import tell_of_pops
from tests.simulation.story import tell


def main() -> int:
    """0 when every story ended well. The last line is JSON: what was done, and the traces."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("operations", type=int, nargs="?", default=500)
    parser.add_argument("--seeds", type=int, default=1)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--members", action="store_true", help="stories about members that come and go"
    )
    kind.add_argument("--pops", action="store_true", help="stories about members that pop")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every event")
    options = parser.parse_args()
    # the order of sets of names is part of the story
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0"},
        )
    # a story is short, and its end frees nearly all of it: a sixth of the time
    gc.disable()
    began, virtual_s, traces, counts = time.perf_counter(), 0.0, [], Counter[str]()
    for seed in range(options.seed, options.seed + options.seeds):
        if options.pops:
            outcome = tell_of_pops(seed, options.operations, verbose=options.verbose)
        else:
            outcome = tell(
                seed, options.operations, members=options.members, verbose=options.verbose
            )
        gc.collect()
        virtual_s += outcome.virtual_s
        traces.append(outcome.trace)
        counts.update(outcome.counts)
        print(
            f"seed {seed}: {outcome.virtual_s:.0f} s, trace {outcome.trace}, {outcome.counts}",
            flush=True,
        )
        if outcome.faults:
            print("\n".join(outcome.faults[:20]))
            print(
                f"again: python -m tests.simulation {seed} "
                f"{options.operations}{' --members' * options.members}{' --pops' * options.pops}"
            )
            return 1
    took_s = time.perf_counter() - began
    done = {
        "stories": len(traces),
        "operations": options.operations,
        "virtual_s": round(virtual_s),
        "seconds": round(took_s, 1),
    }
    print(json.dumps(done | {"counts": counts, "traces": traces}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
