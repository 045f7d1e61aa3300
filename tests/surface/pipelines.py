"""What ``ogive pipeline NAME --json`` prints: the summaries of the pipelines.

ogive pipeline reconcile keys.missing: number
"""

import time
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

import ogive
from ogive import pipelines
from tests.surface.json_output import keys

COUNTS: Final = frozenset({"skipped"})
"""Objects whose keys are data."""
WAIT_S: Final = 60.0


def lines(spark: SparkSession, server: str, topic: str, folder: Path) -> set[str]:
    """Return the lines of the summaries. *topic* is a new one, *folder* is empty."""
    group, lake, stop = f"{topic}_G", folder / "lake", pipelines.Stop()
    _fill(server, topic, group)
    summaries = [
        pipelines.archive(
            spark,
            name_server=server,
            topics=[topic],
            to=lake,
            stop=stop,
            say=_silent,
        ),
        pipelines.reconcile(
            spark,
            name_server=server,
            left=topic,
            right=f"archive:{lake}",
            key="keys",
            say=_silent,
        ),
        pipelines.mirror(
            spark,
            source=server,
            target=server,
            topics=[topic],
            prefix="M_",
            state=folder / "mirror",
            stop=stop,
            say=_silent,
        ),
        pipelines.replay(
            spark,
            source=f"archive:{lake}",
            name_server=server,
            target=server,
            to=f"{topic}_R",
            state=folder / "replay",
            stop=stop,
            say=_silent,
        ),
        pipelines.redrive(
            spark,
            name_server=server,
            group=group,
            state=folder / "redrive",
            stop=stop,
            say=_silent,
        ),
        pipelines.trace_report(spark, name_server=server, to=folder / "traces.html", say=_silent),
    ]
    shapes = {summary.pipeline: keys(summary.as_json(), COUNTS) for summary in summaries}
    return {f"ogive pipeline {name} {key}" for name, found in shapes.items() for key in found}


def _fill(server: str, topic: str, group: str) -> None:
    """Send messages, of which one becomes a dead letter; all of that is traced."""
    bodies: list[bytes] = []

    @ogive.listener(topic, group=group, start="earliest")
    def consume(message: ogive.MessageExt) -> ogive.ConsumeResult:
        bodies.append(message.body)
        return ogive.DEAD_LETTER if message.body == b"0" else None

    with ogive.Producer(server, config=ogive.ProducerConfig(trace=True)) as producer:
        for number in range(5):
            producer.send(topic, b"%d" % number, keys=f"key-{number}")
    traced = ogive.ConsumerConfig(trace=True)
    with ogive.PushConsumer(consume, name_server=server, config=traced), ogive.Admin(server) as it:
        give_up = time.monotonic() + WAIT_S
        while len(bodies) < 5 or not it.dead_letters(group):
            assert time.monotonic() < give_up, f"consumed {bodies}"
            time.sleep(0.05)


def _silent(text: str) -> None:
    """Do not show the progress."""
