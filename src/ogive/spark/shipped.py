"""Warns of an installation that works, but slowly."""

import functools
import logging
import zipimport

import ogive
from ogive.native import native

log = logging.getLogger(__name__)


@functools.cache
def warn_if_zipped() -> None:
    """Log once per process if ogive runs out of a zip file, as with ``--py-files ogive.zip``.

    Python loads no compiled code from there.
    """
    loader = ogive.__spec__.loader
    if native is None and isinstance(loader, zipimport.zipimporter):
        log.warning(
            "ogive runs out of %s, where its compiled part cannot be loaded: each row takes about "
            "four times the CPU. Install ogive on the "
            "executors, or ship its wheel with --archives (docs/spark.md, On a cluster)",
            loader.archive,
        )
