"""``python -m ogive`` is the ``ogive`` command."""

import sys

from ogive.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
