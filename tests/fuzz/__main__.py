"""python -m tests.fuzz DECODER SECONDS: look for an input that a decoder does not stand; without
arguments, the names of the decoders.

With atheris (``tools/setup fuzz``) the search is led by what the inputs reach in ogive's code,
which is then Python's alone; else it is blind, and goes through the compiled part where there is
one (OGIVE_NATIVE=0: without). An input at which it fails is printed and kept under .cache/fuzz;
added to the corpus, it is replayed by every run of the tests.
"""

import logging
import os
import sys

from tests.fuzz import search


def main() -> int:
    logging.disable(logging.CRITICAL)
    if len(sys.argv) != 3:
        print(
            f"usage: python -m tests.fuzz DECODER SECONDS\ndecoders: {' '.join(search.names())}",
            file=sys.stderr,
        )
        return 2
    # Linux hands the peak memory of whoever starts a program down to it, and libFuzzer holds that
    # against its limit. A fork begins at zero.
    child = os.fork()
    if child:
        return abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return search.run(sys.argv[1], float(sys.argv[2]))


if __name__ == "__main__":
    sys.exit(main())
