"""Ready pipelines: each is one short module of ordinary PySpark, to run as ``ogive pipeline NAME``
or to copy and change.

Each takes a Spark session and keyword arguments, reports progress through *say*, ends cleanly on
*stop*, and returns a Summary.
"""

from ogive.pipelines.archive import archive
from ogive.pipelines.archive_table import archive_table
from ogive.pipelines.explain import Explanation, PlannedRead, explain_stream, explain_table
from ogive.pipelines.job import Job, PipelineProgress, Summary, run
from ogive.pipelines.mirror import mirror
from ogive.pipelines.reconcile import reconcile
from ogive.pipelines.redrive import redrive
from ogive.pipelines.replay import replay
from ogive.pipelines.trace_report import trace_report
from ogive.spark.stopping import Stop

__all__ = [
    "Explanation",
    "Job",
    "PipelineProgress",
    "PlannedRead",
    "Stop",
    "Summary",
    "archive",
    "archive_table",
    "explain_stream",
    "explain_table",
    "mirror",
    "reconcile",
    "redrive",
    "replay",
    "run",
    "trace_report",
]
