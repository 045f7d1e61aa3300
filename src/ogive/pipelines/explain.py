"""Input and target of a run of a pipeline, found without a Spark session.

Offsets, batches and tasks come from the readers that Spark would call, with the options that the
pipeline would give them; they send the same requests, and store nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ogive
from ogive.pipelines.job import last_batch
from ogive.spark.cluster_options import Access
from ogive.spark.compat import ReadAllAvailable
from ogive.spark.offsets import entering
from ogive.spark.options import SourceOptions
from ogive.spark.ranges import QueueRange
from ogive.spark.reader import TaskPartition
from ogive.spark.source import batch_reader, schema, stream_reader
from ogive.text import pluralize


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """A read of one cluster."""

    name_server: str
    """Name servers of the cluster."""
    ranges: tuple[QueueRange, ...]
    """Messages to read, in order of the queues. Queues without any are left out."""
    brokers: Mapping[str, str]
    """Addresses of the brokers with these messages, by name."""
    batches: int
    """Batches, as far as this is known before the first one."""
    tasks: int
    """Tasks of the first batch."""

    @property
    def rows(self) -> int:
        """Messages to read."""
        return sum(map(len, self.ranges))


@dataclass(slots=True)
class Explanation:
    """Input and target of a run that began now."""

    pipeline: str
    """Name of the pipeline."""
    reads: list[PlannedRead] = field(default_factory=list)
    """Reads of topics."""
    writes: str = ""
    """Target, and the form of what is written there."""
    notes: list[str] = field(default_factory=list)
    """Further information."""

    def records(self) -> list[dict[str, Any]]:
        """Return an object for each queue to read."""
        return [
            {
                "topic": item.queue.topic,
                "broker": item.queue.broker_name,
                "address": read.brokers.get(item.queue.broker_name),
                "queue": item.queue.queue_id,
                "start": item.start,
                "end": item.end,
                "messages": len(item),
            }
            for read in self.reads
            for item in read.ranges
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the explanation as ``--json`` prints it."""
        return {
            "pipeline": self.pipeline,
            "explain": True,
            "reads": self.records(),
            "batches": sum(read.batches for read in self.reads),
            "tasks": sum(read.tasks for read in self.reads),
            "writes": self.writes,
            "notes": self.notes,
        }

    def lines(self) -> list[str]:
        """Return all but the queues as lines for people."""
        lines = []
        for read in self.reads:
            queues = pluralize(len(read.ranges), "queue")
            what = f"{pluralize(read.rows, 'message')} in {queues} at {read.name_server}"
            how = f", in {read.batches:,} batches; the first" if read.batches > 1 else ""
            tasks = f"{how} in {pluralize(read.tasks, 'task')}" if read.rows else ""
            lines.append(f"  reads {what}{tasks}")
        lines += [f"  {note}" for note in self.notes]
        return [f"{self.pipeline} would do this:", *lines, f"  writes {self.writes}"]


def explain_stream(
    options: Mapping[str, str], checkpoint: Path, cores: int | None
) -> tuple[PlannedRead, list[str]]:
    """Return what a query with *checkpoint* would read until now, and notes.

    *options* are those of the source; *cores* are those of the cluster, if they are known. Raises
    OgiveError as the query would, for example DataLoss.
    """
    options = {**options, "commitOffsets": "false"}
    reader = stream_reader(options, schema(options), cores)
    reader.prepareForTriggerAvailableNow()
    done = last_batch(checkpoint)
    start = _planned(checkpoint, done) if done >= 0 else reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    if entering(end):
        # messages of before were deleted: the first batch is empty, and the next one begins here
        start, end = end, reader.latestOffset(end, ReadAllAvailable())
    all_tasks = reader.partitions(start, end)
    limited = any(name.lower() == "maxoffsetspertrigger" for name in options)
    limit = reader.getDefaultReadLimit() if limited else ReadAllAvailable()
    first = reader.partitions(start, reader.latestOffset(start, limit))
    rows, rows_of_first = _rows(all_tasks), _rows(first)
    batches = -(-rows // rows_of_first) if rows_of_first else 0
    notes = []
    if (checkpoint / "offsets" / str(done + 1)).exists():
        notes.append(f"batch {done + 1} was begun by an earlier run, and comes first")
    return _read(options, all_tasks, batches, len(first)), notes


def explain_table(options: Mapping[str, str], cores: int | None) -> PlannedRead:
    """Return what a batch read with the *options* of the source would read."""
    tasks = batch_reader(options, schema(options), cores).partitions()
    return _read(options, tasks, min(1, len(tasks)), len(tasks))


def _planned(checkpoint: Path, batch: int) -> dict[str, Any]:
    text = (checkpoint / "offsets" / str(batch)).read_text("utf-8")
    offset: dict[str, Any] = json.loads(text.splitlines()[-1])
    return offset


def _rows(tasks: Sequence[TaskPartition]) -> int:
    return sum(len(item) for task in tasks for item in task.value)


def _read(
    options: Mapping[str, str], tasks: Sequence[TaskPartition], batches: int, first: int
) -> PlannedRead:
    access = SourceOptions.parse(options).access
    strip = access.namespace.strip_queue
    ranges = sorted(replace(item, queue=strip(item.queue)) for task in tasks for item in task.value)
    topics = {item.queue.topic for item in ranges}
    return PlannedRead(
        options["nameServer"], tuple(ranges), _addresses(access, topics), batches, first
    )


def _addresses(access: Access, topics: set[str]) -> dict[str, str]:
    """Return the address of each broker of *topics*: its master's, or a slave's without one."""
    found: dict[str, str] = {}
    with ogive.Admin(client=access.client()) as admin:
        for topic in sorted(topics):
            for broker in admin.route(topic).brokers:
                found[broker.broker_name] = broker.addresses[min(broker.addresses)]
    return found
