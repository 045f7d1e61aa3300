"""python -m tests.fuzz DECODER SECONDS: look for an input that a decoder does not stand; without arguments, the names of the decoders.

With atheris (``tools/setup fuzz``) the search is led by what the inputs reach in ogive's code, else it is blind. An input at which it fails
is printed and kept under .cache/fuzz; added to the corpus, it is replayed by every run of the tests.
"""

import logging
import sys

from tests.fuzz import search


def main() -> int:
    logging.disable(logging.CRITICAL)
    if len(sys.argv) != 3:
        print(f"usage: python -m tests.fuzz DECODER SECONDS\ndecoders: {' '.join(search.names())}", file=sys.stderr)
        return 2
    return search.run(sys.argv[1], float(sys.argv[2]))


if __name__ == "__main__":
    sys.exit(main())
