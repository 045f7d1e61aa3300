"""``python -m examples.demo``, in a clone of the repository: read the options and run the demo."""

import argparse
import sys


def main() -> int:
    """Return the exit code: 0 all figures agree, 1 one differs or the run failed, 130 Ctrl-C.

    Raises SystemExit with 2 for wrong usage.
    """
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Run a year of flights through broker, consumers and Spark, "
        "and check every figure.",
    )
    parser.add_argument(
        "--events", type=int, metavar="N", help="only the first N of 1,001,615 events"
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        default="report.html",
        help="where the report goes (default: report.html)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the broker's data and the Parquet files"
    )
    options = parser.parse_args()
    try:
        # loaded here, so that Ctrl-C meanwhile shows no traceback either
        from examples.demo.run import run
        from ogive.errors import OgiveError

        try:
            return run(options)
        except OgiveError as exc:
            print(f"demo: {exc}", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
