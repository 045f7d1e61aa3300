"""``python -m tests.surface [--write]``: see the package."""

import argparse
import sys

from tests.surface import lines, parts


def main() -> int:
    """Return 1 if a stored line is not kept. Such a list is not written."""
    parser = argparse.ArgumentParser(prog="python -m tests.surface")
    parser.add_argument("--write", action="store_true", help="add new lines to the stored lists")
    write = parser.parse_args().write
    changes, broken = lines.load_changes(), False
    for part, today in parts.everything().items():
        before = lines.stored(part)
        if found := lines.faults(before, today, changes):
            broken = True
            print(lines.sentence(part, found), file=sys.stderr)
        new = lines.write(part, today) if write and not found else today - set(before)
        for line in sorted(new):
            print(f"{part}.txt + {line}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
