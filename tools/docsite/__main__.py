"""Build the documentation in .cache/docs/html, and open each of its pages in Chromium.

python -m tools.docsite                       build, and check in Chromium
python -m tools.docsite --pictures DIR PAGE   as well write pictures of pages, narrow and wide

It fails on a broken link, on a public name without a docstring, on a setting, metric or variable
that nothing explains, and on a page that asks for anything beyond this machine.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sphinx.cmd.build import build_main

from tools.docsite import api, browser, pages, reference

ROOT: Final = Path(__file__).parents[2]
OUT: Final = ROOT / ".cache" / "docs"
SEARCHES: Final = (
    ("max_retries", "retries.html"),
    ("SendTimeout", "errors.html"),
    ("fileReservedTime", "settings.html"),
    ("rocketmq_consumer_lag_messages", "metrics.html"),
    ("TOPIC_NOT_EXIST", "error-codes.html"),
)
"""What a reader looks for, and a page that has it."""


def build(root: Path, out: Path) -> bool:
    """Write the site to *out*/html. Return False on a warning, which Sphinx has then printed.

    Raises BadPages, Undocumented.
    """
    generated = {**api.pages(), **reference.pages(root)}
    source = out / "source"
    pages.stage(root, source, generated, published=pages.is_published(root))
    return sphinx(source, out)


def sphinx(source: Path, out: Path) -> bool:
    """Write the site from staged pages. Return False on a warning, which is then printed."""
    conf = str(Path(__file__).parent)
    options = ["-q", "-E", "-W", "--keep-going", "-c", conf, "-d", str(out / "trees")]
    return build_main([*options, str(source), str(out / "html")]) == 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if the site is not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tools.docsite")
    parser.add_argument("--pictures", type=Path, metavar="DIR")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="such as index.html")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        # known before the minute of the build
        browser.find()
        if not build(ROOT, OUT):
            print("docs: each warning above is a fault", file=sys.stderr)
            return 1
        built = time.monotonic()
        count, faults = browser.check(OUT / "html", SEARCHES)
        if options.pictures:
            browser.pictures(OUT / "html", options.pages, options.pictures)
    except (api.Undocumented, pages.BadPages, browser.BrowserError) as exc:
        print(f"docs: {exc}", file=sys.stderr)
        return 1
    if faults:
        print("\n".join(f"docs: {fault}" for fault in faults), file=sys.stderr)
        return 1
    checked = time.monotonic()
    print(
        f"docs: {count} pages in .cache/docs/html, built in {built - began:.0f} s, "
        f"opened in Chromium in {checked - built:.0f} s; begin with index.html"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
