"""The options of ``ogive pipeline NAME``; nothing here needs Spark, so that ``--help`` answers at once."""

import argparse

from ogive.cli.options import Commands, add_cluster, add_command, add_group


def pipeline(commands: Commands) -> None:
    names = add_group(
        commands,
        "pipeline",
        "archive, replay, redrive, mirror, trace-report, reconcile: ready jobs on Spark",
        "They need the packages of ogive[spark].",
    )
    for add in (_archive, _replay, _redrive, _mirror, _trace_report, _reconcile):
        one = add(names)
        add_cluster(one)
        one.add_argument("--master", default="local[*]", help="Spark's master (default: local[*], this machine)")
        one.add_argument("--memory", default="1g", help="heap of Spark's driver (default: 1g)")
        one.add_argument("--dry-run", action="store_true", help="only say what would be done")
        one.add_argument("--json", action="store_true", help="the summary as one JSON object")


def _archive(names: Commands) -> argparse.ArgumentParser:
    one = add_command(
        names,
        "archive",
        "pipeline:archive",
        "write topics to Parquet, by date and hour, each message once",
        "Run it again to add what came since. Ctrl-C ends it after the batch under way. Example: "
        "ogive pipeline archive --topic FLIGHTS --to ./lake",
    )
    one.add_argument("--topic", action="append", required=True, dest="topics", metavar="TOPIC", help="may be given several times")
    one.add_argument("--to", required=True, metavar="DIR", help="the archive; its progress is in it")
    one.add_argument("--group", metavar="GROUP", help="a consumer group that shows the progress (ogive lag)")
    one.add_argument("--every", type=float, metavar="SECONDS", help="go on until Ctrl-C, a round every so many seconds")
    one.add_argument("--max-rows", type=_above_zero, default=500_000, metavar="N", help="messages of one batch (default: 500000)")
    one.add_argument("--allow-loss", action="store_true", help="go on where messages were deleted before they were archived")
    return one


def _replay(names: Commands) -> argparse.ArgumentParser:
    one = add_command(
        names,
        "replay",
        "pipeline:replay",
        "send an archive, or a time range of a topic, into a topic again",
        "Keys, tags, properties and the order of each sharding key stay. Example: "
        "ogive pipeline replay --from archive:./lake --to FLIGHTS_AGAIN --state ./replay --rate 5000",
    )
    one.add_argument("--from", dest="source", required=True, metavar="SOURCE", help="a topic, archive:DIR, or archive:DIR#TOPIC")
    one.add_argument("--to", metavar="TOPIC", help="the topic to send to (default: the one each message came from)")
    one.add_argument("--target", metavar="HOST:PORT", help="the cluster to send to (default: --name-server)")
    one.add_argument("--state", required=True, metavar="DIR", help="keeps the progress, so that a restart goes on")
    one.add_argument("--since", metavar="TIME", help="only what was stored since a time such as 2026-11-01T08:00")
    one.add_argument("--until", metavar="TIME", help="only what was stored before that time (default: the start of the first run)")
    one.add_argument("--where", default="true", metavar="SQL", help="only messages for which this is true, for example \"tags = 'paid'\"")
    one.add_argument("--rate", type=_above_zero, metavar="N", help="at most N messages a second")
    return one


def _redrive(names: Commands) -> argparse.ArgumentParser:
    one = add_command(
        names,
        "redrive",
        "pipeline:redrive",
        "send dead letters back to the topics they came from",
        "Shows what it would send; with --yes it sends. A ledger remembers what was sent, so that no letter goes twice. Example: "
        'ogive pipeline redrive cancellations --state ./redrive --where "keys is not null" --yes',
    )
    one.add_argument("group", help="whose dead letters")
    one.add_argument("--state", required=True, metavar="DIR", help="keeps the ledger")
    one.add_argument("--where", default="true", metavar="SQL", help="only letters for which this is true, over the columns of a message")
    one.add_argument("--to", metavar="TOPIC", help="send to this topic instead")
    one.add_argument("-y", "--yes", action="store_true", help="send")
    return one


def _mirror(names: Commands) -> argparse.ArgumentParser:
    one = add_command(
        names,
        "mirror",
        "pipeline:mirror",
        "copy topics to another cluster, and keep the copy up to date",
        "Keys, tags, properties and order stay. Example: "
        "ogive pipeline mirror -n 10.0.0.1:9876 --target 10.0.1.1:9876 --topic FLIGHTS --state ./mirror --follow",
    )
    one.add_argument("--topic", action="append", required=True, dest="topics", metavar="TOPIC", help="may be given several times")
    one.add_argument("--target", required=True, metavar="HOST:PORT", help="name servers of the other cluster")
    one.add_argument("--prefix", default="", metavar="TEXT", help="stands before the topics' names there")
    one.add_argument("--state", required=True, metavar="DIR", help="keeps the progress, so that a restart goes on")
    one.add_argument("--group", metavar="GROUP", help="a consumer group at the source that shows the progress (ogive lag)")
    one.add_argument("--follow", action="store_true", help="go on until Ctrl-C")
    one.add_argument("--max-rows", type=_above_zero, default=100_000, metavar="N", help="messages of one batch (default: 100000)")
    one.add_argument("--allow-loss", action="store_true", help="go on where messages were deleted before they were copied")
    return one


def _trace_report(names: Commands) -> argparse.ArgumentParser:
    one = add_command(
        names,
        "trace-report",
        "pipeline:trace_report",
        "make an HTML page of latencies by group and queue from message traces",
        "Traces are written by producers and consumers that have tracing on. Example: ogive pipeline trace-report --to traces.html",
    )
    one.add_argument("--to", required=True, metavar="FILE", help="the page")
    one.add_argument("--trace-topic", default="RMQ_SYS_TRACE_TOPIC", metavar="TOPIC", help="default: RMQ_SYS_TRACE_TOPIC")
    one.add_argument("--since", metavar="TIME", help="only traces stored since a time such as 2026-11-01T08:00")
    one.add_argument("--bucket", default="1 minute", metavar="TIME", help="step of the time axis (default: 1 minute)")
    return one


def _reconcile(names: Commands) -> argparse.ArgumentParser:
    one = add_command(
        names,
        "reconcile",
        "pipeline:reconcile",
        "compare two topics, or a topic and an archive, by key",
        "Exit code 0: the same; 3: something is missing, extra or different. Example: ogive pipeline reconcile FLIGHTS archive:./lake",
    )
    place = "a topic, TOPIC@HOST:PORT of another cluster, archive:DIR, or archive:DIR#TOPIC"
    one.add_argument("left", help=f"what should be there: {place}")
    one.add_argument("right", help="what is there, in the same words")
    one.add_argument("--key", default="keys", metavar="SQL", help="what joins both sides, for example get_json_object(body, '$.flight')")
    one.add_argument("--body", default="body", metavar="SQL", help="what must be equal (default: body)")
    one.add_argument("--where", default="true", metavar="SQL", help="only messages for which this is true, on both sides")
    one.add_argument("--out", metavar="DIR", help="write every difference there, as Parquet")
    return one


def _above_zero(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number above zero")
    return int(text)
