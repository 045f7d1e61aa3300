"""What pipelines read out of checkpoints and of the progress of their queries, and how long they
are.
"""

import json
from collections import Counter
from pathlib import Path
from unittest.mock import MagicMock

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from ogive.pipelines import job
from ogive.pipelines.job import last_batch, positions, stream_progress, watch
from ogive.spark.compat import ADMISSION_CONTROL
from ogive.spark.stopping import Stop, Stopped

JOBS = ("archive", "mirror", "reconcile", "redrive", "replay", "trace_report")


def test_a_checkpoint_says_where_its_query_goes_on(tmp_path: Path) -> None:
    """By the last batch that is committed, not the last that was begun."""
    assert (last_batch(tmp_path), positions(tmp_path)) == (-1, {})
    for name in ("commits", "offsets"):
        (tmp_path / name).mkdir()
    for batch in (0, 1, 2):
        offset = {"f": "x", "q": {"T": {"broker-a": {"0": 10 * batch}}}, "v": 1}
        (tmp_path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
    for batch in (0, 1):
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
    assert last_batch(tmp_path) == 1
    assert positions(tmp_path) == {"T": {"broker-a": {"0": 10}}}


@pytest.mark.skipif(not ADMISSION_CONTROL, reason="this Spark does not report ends")
def test_lag_is_what_lies_behind_the_last_batch() -> None:
    def offset(*queues: int) -> str:
        return json.dumps({"q": {"T": {"broker-a": {str(i): at for i, at in enumerate(queues)}}}})

    def text(latest: str | None, end: str) -> str:
        source = {"latestOffset": latest, "endOffset": end}
        progress = {"sources": [source], "processedRowsPerSecond": 1234.5}
        return str(stream_progress(10, "messages read", progress))

    known = "10 messages read, 1,234 a second"
    assert text(offset(10, 5, 3000), offset(4, 5)) == f"{known}, 3,006 behind"
    assert text(offset(4), offset(4)) == f"{known}, 0 behind"
    # not known, which is not none
    assert text(None, offset(4)) == known


def test_a_pipeline_is_short_enough_to_be_copied() -> None:
    folder = Path(job.__file__).parent
    lines = {name: len((folder / f"{name}.py").read_text("utf-8").splitlines()) for name in JOBS}
    assert {name: count for name, count in lines.items() if count > 210} == {}


@pytest.mark.parametrize(("ends_session", "levels"), [(False, ["OFF", "WARN"]), (True, ["OFF"])])
def test_the_log_of_spark_comes_back_after_a_stop_unless_the_session_ends_with_the_job(
    ends_session: bool, levels: list[str]
) -> None:
    """What the stop has cut off may fail, and be logged with stacks, after the query has ended."""
    spark, query = MagicMock(), MagicMock(recentProgress=[], status={"isTriggerActive": False})
    log4j = spark.sparkContext._jvm.org.apache.logging.log4j
    log4j.LogManager.getRootLogger().getLevel().name.return_value = "WARN"
    query.awaitTermination.return_value = False
    stop = Stop(ends_session=ends_session)
    stop.ask()
    watch(spark, query, stop, lambda rows, progress: None)
    assert [call.args[0] for call in spark.sparkContext.setLogLevel.call_args_list] == levels


def test_a_query_that_fails_by_itself_after_a_stop_request_is_a_failure() -> None:
    query = MagicMock(recentProgress=[], status={"isTriggerActive": True})
    query.awaitTermination.side_effect = StreamingQueryException("disk full")
    stop = Stop()
    stop.ask()
    with pytest.raises(StreamingQueryException, match="disk full"):
        watch(MagicMock(), query, stop, lambda rows, progress: None)
    # what the batch function raises ends the query as a stop
    with pytest.raises(Stopped):
        stop.check()
    assert watch(MagicMock(), query, stop, lambda rows, progress: None) == (0, Counter())
