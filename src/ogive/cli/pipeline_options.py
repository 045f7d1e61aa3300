"""Options of ``ogive pipeline NAME``. Nothing here needs Spark, so that ``--help``
answers at once.
"""

import argparse
import math
from typing import Final

from ogive.cli.options import CLUSTER, Command, CommandGroup, Option, option

_TIME: Final = "2026-11-01T08:00 (local, or with Z for UTC)"

_DAY_S: Final = 86_400

_COLUMNS: Final = (
    "columns: topic, brokerName, queueId, queueOffset, keys, tags, body, properties, "
    "bornTimestamp, storeTimestamp"
)


_PLACE: Final = "a topic, TOPIC@HOST:PORT of another cluster, archive:DIR, or archive:DIR#TOPIC"
_SHARED: Final = (
    option("--dry-run", action="store_true", help="only say what would be done"),
    option(
        "--explain",
        action="store_true",
        help="only show which messages it would read, in how many tasks and from which brokers, "
        "and where it would write; starts no Spark",
    ),
    option("--json", action="store_true", help="the summary as one JSON object"),
    option(
        "--master",
        default="local[*]",
        metavar="URL",
        help="Spark's master (default: local[*], this machine)",
    ),
    option("--memory", default="1g", metavar="SIZE", help="heap of Spark's driver (default: 1g)"),
    *CLUSTER,
)


def _secrets_of(other: str) -> tuple[Option, ...]:
    """Return the options for the credentials of another cluster, *other* in the help.

    No cluster gets the credentials of another: those of --credentials are not for this one.
    """
    return tuple(
        option(f"--target-{name}", metavar="FILE", help=f"as --{name}, for {other}")
        for name in ("credentials", "cafile", "certfile", "keyfile")
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _DAY_S:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected seconds, above zero and at most a day"
        )
    return seconds


def _above_zero(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number above zero")
    return int(text)


PIPELINE: Final = CommandGroup(
    "pipeline",
    "ready-made jobs on Spark: archive, replay, redrive, mirror, trace-report, reconcile",
    "They need ogive[spark].",
    commands=(
        Command(
            "archive",
            "pipeline_commands:archive",
            "write topics to Parquet files, or a table of Delta or Iceberg, each message once",
            "Run it again to add what has arrived since. Ctrl-C stops it after the current batch.",
            parts=(
                option(
                    "--topic",
                    action="append",
                    required=True,
                    dest="topics",
                    metavar="TOPIC",
                    help="may be given several times",
                ),
                option(
                    "--to",
                    required=True,
                    metavar="PLACE",
                    help="parquet: a folder of this machine, which also holds the progress; delta: "
                    "a path or URL, such as s3a://lake/orders; iceberg: a name in a catalog, such "
                    "as lake.shop.orders",
                ),
                option(
                    "--format",
                    choices=("parquet", "delta", "iceberg"),
                    default="parquet",
                    help="(default: parquet)",
                ),
                option(
                    "--state",
                    metavar="DIR",
                    help="delta and iceberg: a folder of this machine for the progress",
                ),
                option(
                    "--schema",
                    metavar="SCHEMA",
                    help="delta and iceberg: parse the bodies into a column value, by a dataclass "
                    "(module:Class), a JSON Schema (FILE.json) or Avro (FILE.avsc)",
                ),
                option(
                    "--conf",
                    action="append",
                    default=[],
                    metavar="NAME=VALUE",
                    help="a setting of Spark, such as spark.jars.packages; may be given several "
                    "times",
                ),
                option(
                    "--group",
                    metavar="GROUP",
                    help="a consumer group that shows the progress (ogive lag)",
                ),
                option(
                    "--every",
                    type=_seconds,
                    metavar="SECONDS",
                    help="repeat every so many seconds until Ctrl-C",
                ),
                option(
                    "--max-rows",
                    type=_above_zero,
                    default=500_000,
                    metavar="N",
                    help="messages of one batch (default: 500000)",
                ),
                option(
                    "--allow-loss",
                    action="store_true",
                    help="continue if messages were deleted before they were archived",
                ),
                *_SHARED,
            ),
            example="pipeline archive --topic FLIGHTS --to ./lake",
        ),
        Command(
            "replay",
            "pipeline_commands:replay",
            "send an archive, or a time range of a topic, into a topic again",
            "Preserves keys, tags, properties, and the order within each sharding key.",
            parts=(
                option(
                    "--from",
                    dest="source",
                    required=True,
                    metavar="SOURCE",
                    help="a topic, archive:DIR, or archive:DIR#TOPIC",
                ),
                option(
                    "--to",
                    metavar="TOPIC",
                    help="the topic to send to (default: the one each message came from)",
                ),
                option(
                    "--target",
                    metavar="HOST:PORT",
                    help="the cluster to send to (default: --name-server)",
                ),
                *_secrets_of("--target"),
                option(
                    "--state",
                    required=True,
                    metavar="DIR",
                    help="keeps the progress, so that a restart goes on",
                ),
                option(
                    "--since",
                    metavar="TIME",
                    help=f"only what was stored since a time such as {_TIME}",
                ),
                option(
                    "--until",
                    metavar="TIME",
                    help="only what was stored before that time (default: the start of the first "
                    "run)",
                ),
                option(
                    "--where",
                    default="true",
                    metavar="SQL",
                    help="only messages for which this is true, for example \"tags = 'paid'\"; "
                    f"{_COLUMNS}",
                ),
                option("--rate", type=_above_zero, metavar="N", help="at most N messages a second"),
                *_SHARED,
            ),
            example="pipeline replay --from archive:./lake --to FLIGHTS_AGAIN --state ./replay "
            "--rate 5000",
        ),
        Command(
            "redrive",
            "pipeline_commands:redrive",
            "send dead letters back to their topics",
            "This starts Spark, for many letters. `ogive dead-letter redrive` needs no Spark, and "
            "sends at most ten thousand to the one group that failed. Without --yes this only "
            "shows what it would send. A ledger records the sent letters, so that no letter is "
            "sent twice.",
            parts=(
                option("group", help="the group of the dead letters"),
                option("--state", required=True, metavar="DIR", help="keeps the ledger"),
                option(
                    "--where",
                    default="true",
                    metavar="SQL",
                    help=f"only letters for which this is true; {_COLUMNS}",
                ),
                option("--to", metavar="TOPIC", help="send to this topic instead"),
                option("-y", "--yes", action="store_true", help="send"),
                *_SHARED,
            ),
            example='pipeline redrive cancellations --state ./redrive --where "keys is not null" '
            "--yes",
        ),
        Command(
            "mirror",
            "pipeline_commands:mirror",
            "copy topics to another cluster, and keep the copy up to date",
            "Preserves keys, tags, properties and order.",
            parts=(
                option(
                    "--topic",
                    action="append",
                    required=True,
                    dest="topics",
                    metavar="TOPIC",
                    help="may be given several times",
                ),
                option(
                    "--target",
                    required=True,
                    metavar="HOST:PORT",
                    help="name servers of the other cluster",
                ),
                *_secrets_of("--target"),
                option(
                    "--prefix",
                    default="",
                    metavar="TEXT",
                    help="prefix of the topics' names in the other cluster",
                ),
                option(
                    "--state",
                    required=True,
                    metavar="DIR",
                    help="keeps the progress, so that a restart goes on",
                ),
                option(
                    "--group",
                    metavar="GROUP",
                    help="a consumer group at the source that shows the progress (ogive lag)",
                ),
                option("--follow", action="store_true", help="keep copying until Ctrl-C"),
                option(
                    "--idempotent",
                    action="store_true",
                    help="never copy twice, even after a crash; the target keeps the progress, in "
                    "the topic "
                    "SPARK_SINK_BATCHES",
                ),
                option(
                    "--max-rows",
                    type=_above_zero,
                    default=100_000,
                    metavar="N",
                    help="messages of one batch (default: 100000)",
                ),
                option(
                    "--allow-loss",
                    action="store_true",
                    help="continue if messages were deleted before they were copied",
                ),
                *_SHARED,
            ),
            example="pipeline mirror -n 10.0.0.1:9876 --target 10.0.1.1:9876 --topic FLIGHTS "
            "--state ./mirror --follow",
        ),
        Command(
            "trace-report",
            "pipeline_commands:trace_report",
            "make an HTML page of latencies by group and queue from message traces",
            "Traces are written by producers and consumers with tracing switched on.",
            parts=(
                option("--to", required=True, metavar="FILE", help="the page"),
                option(
                    "--trace-topic",
                    default="RMQ_SYS_TRACE_TOPIC",
                    metavar="TOPIC",
                    help="default: RMQ_SYS_TRACE_TOPIC",
                ),
                option(
                    "--since",
                    metavar="TIME",
                    help=f"only traces stored since a time such as {_TIME}, or 7d",
                ),
                option(
                    "--bucket",
                    default="1 minute",
                    metavar="TIME",
                    help="step of the time axis (default: 1 minute)",
                ),
                *_SHARED,
            ),
            example="pipeline trace-report --to traces.html",
        ),
        Command(
            "reconcile",
            "pipeline_commands:reconcile",
            "compare two topics, or a topic and an archive, by key",
            "Exit code 0: the same; 3: something is missing, extra or different.",
            parts=(
                option("left", help=f"the expected messages: {_PLACE}"),
                option("right", help="the actual messages, in the same form"),
                option(
                    "--key",
                    default="keys",
                    metavar="SQL",
                    help="key that joins both sides, for example get_json_object(body, '$.flight')",
                ),
                option(
                    "--body",
                    default="body",
                    metavar="SQL",
                    help="expression that must be equal (default: body)",
                ),
                option(
                    "--where",
                    default="true",
                    metavar="SQL",
                    help="only messages for which this is true, on both sides",
                ),
                *_secrets_of("TOPIC@HOST:PORT"),
                option("--out", metavar="DIR", help="write every difference there, as Parquet"),
                *_SHARED,
            ),
            example="pipeline reconcile FLIGHTS archive:./lake --key \"concat(keys, '/', tags)\"",
        ),
    ),
)


SPARK: Final = CommandGroup(
    "spark",
    "make Spark start sooner on this machine",
    commands=(
        Command(
            "warm",
            "spark_commands:warm",
            "write an archive of the Java classes that Spark loads, for the next starts",
            "It is for this Java and this environment, and takes a minute and about 170 MB in "
            "~/.cache/ogive.",
        ),
    ),
)
