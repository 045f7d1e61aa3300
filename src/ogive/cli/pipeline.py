"""``ogive pipeline NAME``: the jobs of ogive.pipelines. Progress on standard error, the summary on standard output."""

import argparse
import sys
from pathlib import Path
from typing import Final

from ogive.cli.connect import client_config
from ogive.cli.groups import instant
from ogive.cli.output import print_json
from ogive.errors import InvalidOption

EXIT_DIFFERENT: Final = 3

try:
    from ogive import pipelines
except ModuleNotFoundError as exc:
    raise InvalidOption(f"pipelines need Spark, and {exc.name} is not installed: pip install 'ogive[spark]'") from None


def archive(options: argparse.Namespace) -> int:
    return _run(
        options,
        lambda spark, stop: pipelines.archive(
            spark, name_server=_server(options), topics=options.topics, to=Path(options.to), group=options.group, every_s=options.every,
            max_rows=options.max_rows, allow_loss=options.allow_loss, dry_run=options.dry_run, stop=stop, say=_say,
        ),
    )  # fmt: skip


def replay(options: argparse.Namespace) -> int:
    since, until = (
        None if text is None else instant(name, text) for name, text in (("--since", options.since), ("--until", options.until))
    )
    return _run(
        options,
        lambda spark, stop: pipelines.replay(
            spark, source=options.source, name_server=_server(options), target=options.target or _server(options), to=options.to,
            state=Path(options.state), since=since, until=until, where=options.where, rate=options.rate, dry_run=options.dry_run, stop=stop,
            say=_say,
        ),
    )  # fmt: skip


def redrive(options: argparse.Namespace) -> int:
    return _run(
        options,
        lambda spark, stop: pipelines.redrive(
            spark, name_server=_server(options), group=options.group, state=Path(options.state), where=options.where, to=options.to,
            dry_run=options.dry_run or not options.yes, stop=stop, say=_say,
        ),
    )  # fmt: skip


def mirror(options: argparse.Namespace) -> int:
    return _run(
        options,
        lambda spark, stop: pipelines.mirror(
            spark, source=_server(options), target=options.target, topics=options.topics, state=Path(options.state),
            prefix=options.prefix, group=options.group, follow=options.follow, max_rows=options.max_rows,
            allow_loss=options.allow_loss, dry_run=options.dry_run, stop=stop, say=_say,
        ),
    )  # fmt: skip


def trace_report(options: argparse.Namespace) -> int:
    since = None if options.since is None else instant("--since", options.since)
    return _run(
        options,
        lambda spark, _: pipelines.trace_report(
            spark, name_server=_server(options), to=Path(options.to), trace_topic=options.trace_topic, since=since,
            bucket=options.bucket, dry_run=options.dry_run, say=_say,
        ),
    )  # fmt: skip


def reconcile(options: argparse.Namespace) -> int:
    """3 when the sides differ."""
    return _run(
        options,
        lambda spark, _: pipelines.reconcile(
            spark, left=options.left, right=options.right, name_server=_server(options), key=options.key, body=options.body,
            where=options.where, out=Path(options.out) if options.out else None, dry_run=options.dry_run, say=_say,
        ),
    )  # fmt: skip


def _server(options: argparse.Namespace) -> str:
    """The name servers. Raises InvalidOption for what the pipelines cannot do."""
    client = client_config(options)
    if client.credentials is not None or client.ssl is not False:
        raise InvalidOption("pipelines know no credentials and no TLS; copy the module and give its source and sink these options")
    return client.name_server


def _run(options: argparse.Namespace, job: pipelines.Job) -> int:
    _server(options)  # before Spark starts, which takes seconds
    summary = pipelines.run(job, master=options.master, memory=options.memory, say=_say)
    if options.json:
        print_json(summary.as_json())
    else:
        print("\n".join(summary.lines()), flush=True)
    return EXIT_DIFFERENT if summary.figures.get("same") is False else 0


def _say(text: str) -> None:
    print(f"ogive: {text}", file=sys.stderr, flush=True)
