"""The options of ``ogive pipeline NAME``; nothing here needs Spark, so that ``--help`` answers at
once.
"""

import argparse
import math
from typing import Final

from ogive.cli.options import Commands, add_cluster, add_command, add_group

_TIME: Final = "2026-11-01T08:00 (local, or with Z for UTC)"
_DAY_S: Final = 86_400
_COLUMNS: Final = (
    "columns: topic, brokerName, queueId, queueOffset, keys, tags, body, properties, "
    "bornTimestamp, storeTimestamp"
)


def pipeline(commands: Commands) -> None:
    names = add_group(
        commands,
        "pipeline",
        "ready-made jobs on Spark: archive, replay, redrive, mirror, trace-report, reconcile",
        "They need ogive[spark].",
    )
    for add in (_archive, _replay, _redrive, _mirror, _trace_report, _reconcile):
        one = add(names)
        one.add_argument("--dry-run", action="store_true", help="only say what would be done")
        one.add_argument("--json", action="store_true", help="the summary as one JSON object")
        one.add_argument(
            "--master",
            default="local[*]",
            metavar="URL",
            help="Spark's master (default: local[*], this machine)",
        )
        one.add_argument(
            "--memory", default="1g", metavar="SIZE", help="heap of Spark's driver (default: 1g)"
        )
        add_cluster(one)


def _archive(names: Commands) -> argparse.ArgumentParser:
    one = _add(
        names,
        "archive",
        "write topics to Parquet, by date and hour, each message once",
        "Run it again to add what has arrived since. Ctrl-C stops it after the current batch.",
        "--topic FLIGHTS --to ./lake",
    )
    one.add_argument(
        "--topic",
        action="append",
        required=True,
        dest="topics",
        metavar="TOPIC",
        help="may be given several times",
    )
    one.add_argument(
        "--to", required=True, metavar="DIR", help="the archive, which also holds the progress"
    )
    one.add_argument(
        "--group", metavar="GROUP", help="a consumer group that shows the progress (ogive lag)"
    )
    one.add_argument(
        "--every",
        type=_seconds,
        metavar="SECONDS",
        help="repeat every so many seconds until Ctrl-C",
    )
    one.add_argument(
        "--max-rows",
        type=_above_zero,
        default=500_000,
        metavar="N",
        help="messages of one batch (default: 500000)",
    )
    one.add_argument(
        "--allow-loss",
        action="store_true",
        help="continue if messages were deleted before they were archived",
    )
    return one


def _replay(names: Commands) -> argparse.ArgumentParser:
    one = _add(
        names,
        "replay",
        "send an archive, or a time range of a topic, into a topic again",
        "Preserves keys, tags, properties, and the order within each sharding key.",
        "--from archive:./lake --to FLIGHTS_AGAIN --state ./replay --rate 5000",
    )
    one.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="SOURCE",
        help="a topic, archive:DIR, or archive:DIR#TOPIC",
    )
    one.add_argument(
        "--to",
        metavar="TOPIC",
        help="the topic to send to (default: the one each message came from)",
    )
    one.add_argument(
        "--target", metavar="HOST:PORT", help="the cluster to send to (default: --name-server)"
    )
    _add_other(one, "--target")
    one.add_argument(
        "--state",
        required=True,
        metavar="DIR",
        help="keeps the progress, so that a restart goes on",
    )
    one.add_argument(
        "--since", metavar="TIME", help=f"only what was stored since a time such as {_TIME}"
    )
    one.add_argument(
        "--until",
        metavar="TIME",
        help="only what was stored before that time (default: the start of the first run)",
    )
    one.add_argument(
        "--where",
        default="true",
        metavar="SQL",
        help=f"only messages for which this is true, for example \"tags = 'paid'\"; {_COLUMNS}",
    )
    one.add_argument("--rate", type=_above_zero, metavar="N", help="at most N messages a second")
    return one


def _redrive(names: Commands) -> argparse.ArgumentParser:
    one = _add(
        names,
        "redrive",
        "send dead letters back to their topics",
        "Without --yes it only shows what it would send. A ledger remembers what was sent, so that "
        "no letter is sent twice.",
        'cancellations --state ./redrive --where "keys is not null" --yes',
    )
    one.add_argument("group", help="whose dead letters")
    one.add_argument("--state", required=True, metavar="DIR", help="keeps the ledger")
    one.add_argument(
        "--where",
        default="true",
        metavar="SQL",
        help=f"only letters for which this is true; {_COLUMNS}",
    )
    one.add_argument("--to", metavar="TOPIC", help="send to this topic instead")
    one.add_argument("-y", "--yes", action="store_true", help="send")
    return one


def _mirror(names: Commands) -> argparse.ArgumentParser:
    one = _add(
        names,
        "mirror",
        "copy topics to another cluster, and keep the copy up to date",
        "Preserves keys, tags, properties and order.",
        "-n 10.0.0.1:9876 --target 10.0.1.1:9876 --topic FLIGHTS --state ./mirror --follow",
    )
    one.add_argument(
        "--topic",
        action="append",
        required=True,
        dest="topics",
        metavar="TOPIC",
        help="may be given several times",
    )
    one.add_argument(
        "--target", required=True, metavar="HOST:PORT", help="name servers of the other cluster"
    )
    _add_other(one, "--target")
    one.add_argument(
        "--prefix",
        default="",
        metavar="TEXT",
        help="prefix of the topics' names in the other cluster",
    )
    one.add_argument(
        "--state",
        required=True,
        metavar="DIR",
        help="keeps the progress, so that a restart goes on",
    )
    one.add_argument(
        "--group",
        metavar="GROUP",
        help="a consumer group at the source that shows the progress (ogive lag)",
    )
    one.add_argument("--follow", action="store_true", help="keep copying until Ctrl-C")
    one.add_argument(
        "--idempotent",
        action="store_true",
        help="never copy twice, even after a crash; the target keeps the progress, in the topic "
        "SPARK_SINK_BATCHES",
    )
    one.add_argument(
        "--max-rows",
        type=_above_zero,
        default=100_000,
        metavar="N",
        help="messages of one batch (default: 100000)",
    )
    one.add_argument(
        "--allow-loss",
        action="store_true",
        help="continue if messages were deleted before they were copied",
    )
    return one


def _trace_report(names: Commands) -> argparse.ArgumentParser:
    one = _add(
        names,
        "trace-report",
        "make an HTML page of latencies by group and queue from message traces",
        "Traces are written by producers and consumers with tracing switched on.",
        "--to traces.html",
    )
    one.add_argument("--to", required=True, metavar="FILE", help="the page")
    one.add_argument(
        "--trace-topic",
        default="RMQ_SYS_TRACE_TOPIC",
        metavar="TOPIC",
        help="default: RMQ_SYS_TRACE_TOPIC",
    )
    one.add_argument(
        "--since", metavar="TIME", help=f"only traces stored since a time such as {_TIME}"
    )
    one.add_argument(
        "--bucket",
        default="1 minute",
        metavar="TIME",
        help="step of the time axis (default: 1 minute)",
    )
    return one


def _reconcile(names: Commands) -> argparse.ArgumentParser:
    one = _add(
        names,
        "reconcile",
        "compare two topics, or a topic and an archive, by key",
        "Exit code 0: the same; 3: something is missing, extra or different.",
        "FLIGHTS archive:./lake --key \"concat(keys, '/', tags)\"",
    )
    place = "a topic, TOPIC@HOST:PORT of another cluster, archive:DIR, or archive:DIR#TOPIC"
    one.add_argument("left", help=f"what should be there: {place}")
    one.add_argument("right", help="what is there, in the same form")
    one.add_argument(
        "--key",
        default="keys",
        metavar="SQL",
        help="what joins both sides, for example get_json_object(body, '$.flight')",
    )
    one.add_argument(
        "--body", default="body", metavar="SQL", help="what must be equal (default: body)"
    )
    one.add_argument(
        "--where",
        default="true",
        metavar="SQL",
        help="only messages for which this is true, on both sides",
    )
    _add_other(one, "TOPIC@HOST:PORT")
    one.add_argument("--out", metavar="DIR", help="write every difference there, as Parquet")
    return one


class _Help(argparse.HelpFormatter):
    """Leaves texts of several lines as they are: an example that is wrapped cannot be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def _add(names: Commands, name: str, text: str, more: str, example: str) -> argparse.ArgumentParser:
    one = add_command(names, name, f"pipeline_commands:{name.replace('-', '_')}", text, more)
    one.epilog, one.formatter_class = f"example:\n  ogive pipeline {name} {example}", _Help
    return one


def _add_other(one: argparse.ArgumentParser, other: str) -> None:
    """No cluster is shown the credentials of another: those of --credentials are not for this
    one.
    """
    one.add_argument("--target-credentials", metavar="FILE", help=f"as --credentials, for {other}")
    one.add_argument("--target-cafile", metavar="FILE", help=f"as --cafile, for {other}")
    one.add_argument("--target-certfile", metavar="FILE", help=f"as --certfile, for {other}")
    one.add_argument("--target-keyfile", metavar="FILE", help=f"as --keyfile, for {other}")


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
