"""Archive of topics in Parquet, by topic, date and hour of storage (UTC), each message once.

Layout: ``TO/topic=T/date=D/hour=H/part=P/*.parquet``. A batch writes parts with its own name, so
that a batch which Spark repeats replaces the parts of its first attempt. When the stream has ended,
the parts of an hour are merged into one file, sorted by queue and offset; a journal makes that step
repeatable.

Files are synced before anything relies on them: first Spark's file with the offsets of a batch,
then the parts, then Spark's commit of the batch; the file of an hour before its parts are removed.
The checkpoint is in ``TO/_checkpoint``: move both together.
"""

import json
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ogive.errors import InvalidOption
from ogive.files import replace_file, sync
from ogive.pipelines.job import (
    OPEN,
    Say,
    Security,
    Show,
    Summary,
    last_batch,
    read_in_batches,
    shown_by,
    source_options,
    with_remaining,
    writable,
)
from ogive.spark.fsync import sync_plan, sync_tree
from ogive.spark.stopping import Stop
from ogive.text import pluralize

STORED: Final = (
    "brokerName STRING, queueId INT, queueOffset BIGINT, keys STRING, tags STRING, body BINARY, "
    "properties MAP<STRING,STRING>, bornTimestamp TIMESTAMP, storeTimestamp TIMESTAMP"
)
SCHEMA: Final = f"{STORED}, topic STRING, date STRING, hour STRING, part STRING"
"""Schema for reading: without it Spark would read the topic "2013" as a number."""

# an hour with so many parts is compacted before its end
MANY_FILES: Final = 16


def archive(
    spark: SparkSession,
    *,
    name_server: str,
    topics: Sequence[str],
    to: Path,
    stop: Stop,
    say: Say,
    show: Show | None = None,
    group: str | None = None,
    security: Security = OPEN,
    every_s: float | None = None,
    max_rows: int = 500_000,
    allow_loss: bool = False,
    dry_run: bool = False,
) -> Summary:
    """Bring the archive up to date; with *every_s* again and again until stopped.

    *group* shows the progress at the brokers.

    If messages were deleted before they were archived, the run fails, unless *allow_loss* is True.
    """
    summary = Summary("archive", dry_run=dry_run)
    to = writable("to", to)
    options = source_options(name_server, topics, group, security, max_rows, allow_loss)
    checkpoint = to / "_checkpoint"
    if not checkpoint.exists() and any(to.glob("topic=*")):
        raise InvalidOption(
            f"{to} holds an archive without its _checkpoint: a new run would double it; take "
            "another folder"
        )
    if dry_run:
        return with_remaining(summary, name_server, security, topics, checkpoint)
    recover(to)
    while True:
        through = _state(to)

        def write(rows: DataFrame, batch: int, through: int = through) -> None:
            stop.check()
            # Spark lost its note that the batch is done; we have not
            if batch <= through:
                summary.notes.append(f"batch {batch} is in the archive already")
                return
            sync_plan(checkpoint)
            dated = rows.withColumn(
                "date",
                f.expr("string(date_from_unix_date(int(unix_seconds(storeTimestamp) div 86400)))"),
            )
            parts = dated.withColumn(
                "hour", f.expr("lpad(string(unix_seconds(storeTimestamp) div 3600 % 24), 2, '0')")
            )
            parts = parts.withColumn("part", f.lit(f"b{batch:09d}"))
            by = (
                parts.write.mode("overwrite")
                .option("partitionOverwriteMode", "dynamic")
                .partitionBy("topic", "date", "hour", "part")
            )
            by.parquet(str(to))
            for part in to.glob(f"topic=*/date=*/hour=*/part=b{batch:09d}"):
                sync_tree(part, within=to)

        read_in_batches(spark, options, write, checkpoint, stop, shown_by(say, show), summary)
        # a batch may be open: only after a stream that ended by itself all parts are complete
        if stop.asked:
            summary.stopped = every_s is None
            break
        _note(to, last_batch(checkpoint))
        compacted = compact(spark, to, datetime.now(UTC))
        summary.figures["compacted_hours"] = summary.figures.get("compacted_hours", 0) + compacted
        if every_s is None or stop.wait(every_s):
            break
    files, hours = sum(1 for _ in to.rglob("*.parquet")), summary.figures.get("compacted_hours", 0)
    summary.notes.append(f"{pluralize(files, 'file')}, {pluralize(hours, 'hour')} compacted")
    return summary


def compact(spark: SparkSession, to: Path, now: datetime) -> int:
    """Merge the files of each hour that is over or has many files. Return the number of hours
    changed.
    """
    # a batch may still bring messages of the last minute
    count, current = 0, now - timedelta(minutes=1)
    for hour in sorted(to.glob("topic=*/date=*/hour=*")):
        over = f"{hour.parent.name[5:]}T{hour.name[5:]}" < current.strftime("%Y-%m-%dT%H")
        parts = sorted(hour.glob("part=*"))
        files = sum(1 for part in parts for _ in part.glob("*.parquet"))
        if files < 2 or not (over or files >= MANY_FILES):
            continue
        rows = spark.read.schema(STORED).parquet(*map(str, parts))
        place = hour.relative_to(to)
        whole = rows.coalesce(1).sortWithinPartitions("brokerName", "queueId", "queueOffset")
        whole.write.mode("overwrite").parquet(str(to / "_new" / place))
        sync_tree(to / "_new" / place, within=to)
        work = {
            "hour": str(place),
            "parts": [part.name for part in parts],
            "into": f"part=c{_state(to):09d}-{time.time_ns()}",
        }
        replace_file(to / "_compacting.json", json.dumps(work).encode())
        recover(to)
        count += 1
    return count


def recover(to: Path) -> None:
    """Finish a compaction that was interrupted, and remove the files of a killed writer.

    May be repeated.
    """
    journal = to / "_compacting.json"
    if journal.exists():
        work = json.loads(journal.read_text("utf-8"))
        hour, new = to / work["hour"], to / "_new" / work["hour"]
        for part in work["parts"] if new.exists() or (hour / work["into"]).exists() else ():
            shutil.rmtree(hour / part, ignore_errors=True)
        if new.exists():
            new.rename(hour / work["into"])
            # its new name first: the old one may stay, and nothing else leads to the rows
            sync(hour)
            sync(new.parent)
        journal.unlink()
    for left in [to / "_new", *to.glob(".spark-staging-*")]:
        shutil.rmtree(left, ignore_errors=True)


def _state(to: Path) -> int:
    """Return the last batch whose parts were all complete when a run ended."""
    file = to / "_archive.json"
    return int(json.loads(file.read_text("utf-8"))["through"]) if file.exists() else -1


def _note(to: Path, through: int) -> None:
    if through >= 0:
        replace_file(to / "_archive.json", json.dumps({"through": through}).encode())
