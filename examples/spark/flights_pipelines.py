"""The six ready pipelines on flights of the demo: archive, compare, replay, redrive, mirror, and a
report of the traces.

Run it in a clone of the repository: ``python -m examples.spark.flights_pipelines``.
"""

import argparse
import itertools
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

import ogive
import ogive.spark
from examples.demo.dataset import Dataset
from examples.demo.flights import EventStream
from ogive.errors import NoRoute
from ogive.pipelines import Stop, Summary, archive, mirror, reconcile, redrive, replay, trace_report
from ogive.spark.session import NO_BAR, quiet

EVENTS = 2_000
# a flight is scheduled, departs and arrives: three messages with its key
KEY = "concat(keys, '/', tags)"
GROUP = "cancellations"


@ogive.listener("FLIGHTS", group=GROUP, tags="cancelled", start="earliest")
def rebook(message: ogive.MessageExt) -> ogive.ConsumeResult:
    """The desk is closed."""
    return ogive.DEAD_LETTER


def fly(name_server: str) -> None:
    """The first events of 2013, and what the group makes of them."""
    producing, consuming = ogive.ProducerConfig(trace=True), ogive.ConsumerConfig(trace=True)
    with (
        ogive.Admin(name_server) as admin,
        ogive.Producer(name_server, config=producing) as producer,
    ):
        for topic in ("FLIGHTS", "FLIGHTS_AGAIN"):
            admin.create_topic(topic, queues=4)
        events = list(itertools.islice(EventStream(Dataset.installed(), EVENTS), EVENTS))
        sent = [
            producer.submit(
                "FLIGHTS", event.body, tag=event.kind, keys=event.flight, sharding_key=event.tail
            )
            for event in events
        ]
        for one in sent:
            one.result()
        cancelled = sum(event.kind == "cancelled" for event in events)
        with ogive.PushConsumer(rebook, name_server=name_server, config=consuming):
            while count(admin, f"%DLQ%{GROUP}") < cancelled:
                time.sleep(0.1)


def count(admin: ogive.Admin, topic: str) -> int:
    try:
        return sum(row.max_offset for row in admin.offsets(topic))
    except NoRoute:
        return 0


def main(spark: SparkSession, name_server: str, folder: Path) -> None:
    fly(name_server)
    lake, moved = f"archive:{folder / 'lake'}", "tags <> 'scheduled'"
    # Ctrl-C ends the pipeline that runs
    with Stop() as stop:

        def show(summary: Summary) -> None:
            print(summary.lines()[0])

        def say(progress: str) -> None:
            """Where progress could be shown."""

        show(
            archive(
                spark,
                name_server=name_server,
                topics=["FLIGHTS"],
                to=folder / "lake",
                stop=stop,
                say=say,
            )
        )
        show(
            reconcile(spark, left="FLIGHTS", right=lake, name_server=name_server, key=KEY, say=say)
        )
        sent = replay(
            spark,
            source=lake,
            name_server=name_server,
            target=name_server,
            to="FLIGHTS_AGAIN",
            state=folder / "replay",
            where=moved,
            rate=10_000,
            stop=stop,
            say=say,
        )
        show(sent)
        same = reconcile(
            spark,
            left="FLIGHTS",
            right="FLIGHTS_AGAIN",
            where=moved,
            name_server=name_server,
            key=KEY,
            say=say,
        )
        print(same.lines()[-1].strip())
        for dry_run in (True, False):
            show(
                redrive(
                    spark,
                    name_server=name_server,
                    group=GROUP,
                    state=folder / "redrive",
                    dry_run=dry_run,
                    stop=stop,
                    say=say,
                )
            )
        copied = mirror(
            spark,
            source=name_server,
            target=name_server,
            topics=["FLIGHTS"],
            prefix="COPY_",
            state=folder / "mirror",
            idempotent=True,
            stop=stop,
            say=say,
        )
        show(copied)
        report = trace_report(spark, name_server=name_server, to=folder / "traces.html", say=say)
        for row in report.figures["report"]["Listener by group and topic"]:
            print(f"{row['name']}: {row['count']} calls, {row['failed']} failed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    name_server = parser.parse_args().name_server
    quiet()
    with (
        tempfile.TemporaryDirectory() as temporary,
        ogive.spark.session("example", config=NO_BAR) as spark,
    ):
        main(spark, name_server, Path(temporary))
