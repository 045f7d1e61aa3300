"""Ready pipelines: each is one short module of ordinary PySpark, to run as ``ogive pipeline NAME``
or to copy and change.

Each takes a Spark session and keyword arguments, reports progress through *say*, ends cleanly on
*stop*, and returns a Summary.
"""

from ogive.pipelines.archive import archive
from ogive.pipelines.archive_table import archive_table
from ogive.pipelines.job import Job, Summary, run
from ogive.pipelines.mirror import mirror
from ogive.pipelines.reconcile import reconcile
from ogive.pipelines.redrive import redrive
from ogive.pipelines.replay import replay
from ogive.pipelines.trace_report import trace_report
from ogive.spark.stopping import Stop

__all__ = [
    "Job",
    "Stop",
    "Summary",
    "archive",
    "archive_table",
    "mirror",
    "reconcile",
    "redrive",
    "replay",
    "run",
    "trace_report",
]
