"""``ogive pipeline NAME``: the jobs of ogive.pipelines.

Progress on standard error, the summary on standard output.
"""

import argparse
import contextlib
import importlib
import json
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Protocol, Self, TextIO

import ogive
from ogive.cli.connect import ClusterContext, client_config, is_there, place, spark_options
from ogive.cli.output import instant, instant_or_age, print_json, print_table, sparkline
from ogive.cli.run import import_from_here
from ogive.client.config import read_credentials, trusting
from ogive.errors import InvalidOption, NoNameServer, NoRoute
from ogive.model import AUTO_CREATE_TOPIC, dlq_topic, validate_group

# Progress on standard error: in a terminal one line that changes, with a sparkline of the lag;
# elsewhere one line a minute.


REPORT_S: Final = 60.0
"""Time between two lines where no terminal shows them."""
TREND: Final = 40
"""Lags in the sparkline."""
_CLEAR: Final = "\r\x1b[K"


class Progress(Protocol):
    """Figures whose text is a line for people."""

    @property
    def lag(self) -> int | None: ...


class ProgressLine:
    """Context manager that shows the progress of a job on *out*, and lines of text between."""

    def __init__(
        self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._terminal = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._lags: deque[int] = deque(maxlen=TREND)
        # what is on the line of the terminal, or waits until REPORT_S have passed
        self._pending = ""
        self._next = clock()

    def say(self, text: str) -> None:
        """Print a line for people."""
        if self._terminal and self._pending:
            self._out.write(_CLEAR)
        print(f"ogive: {text}", file=self._out, flush=True)
        if self._terminal and self._pending:
            self._draw()

    def show(self, progress: Progress) -> None:
        """Show *progress* instead of what was shown before."""
        if progress.lag is not None:
            self._lags.append(progress.lag)
        self._pending = str(progress)
        if self._terminal:
            self._draw()
        elif self._clock() >= self._next:
            self._print_pending()
            self._next = self._clock() + REPORT_S

    def _draw(self) -> None:
        width = shutil.get_terminal_size().columns - 1
        line = f"ogive: {self._pending}"[:width]
        room = width - len(line) - 2
        # other encodings have no bars
        utf8 = (self._out.encoding or "").lower().startswith("utf")
        if len(self._lags) > 1 and room > 0 and utf8:
            line += f"  {sparkline(list(self._lags)[-room:])}"
        self._out.write(_CLEAR + line)
        self._out.flush()

    def _print_pending(self) -> None:
        print(f"ogive: {self._pending}", file=self._out, flush=True)
        self._pending = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the line; print progress that was not shown yet."""
        if self._terminal and self._pending:
            print(file=self._out, flush=True)
        elif self._pending:
            self._print_pending()


EXIT_DIFFERENT: Final = 3

try:
    from ogive import pipelines
    from ogive.pipelines.archive_table import SETTINGS, TABLES, Parse
    from ogive.pipelines.job import OPEN, local, positions, source_options, writable
    from ogive.pipelines.mirror import refuse_itself as refuse_mirror
    from ogive.pipelines.reconcile import ARCHIVE, archived, is_archive, topic_options
    from ogive.pipelines.redrive import no_letters
    from ogive.pipelines.replay import refuse_itself as refuse_replay
    from ogive.spark.body_schema import columns_of
    from ogive.spark.options import access_of
    from ogive.spark.parse import parse_avro, parse_json
    from ogive.spark.session import cores_by_settings
except ModuleNotFoundError as exc:
    raise InvalidOption(
        f"pipelines need Spark, and {exc.name} is not installed: pip install 'ogive[spark]'"
    ) from None


def archive(options: argparse.Namespace) -> int:
    config = _settings(options.conf)
    if options.format != "parquet":
        return _archive_table(options, {**SETTINGS[options.format], **config})
    if options.state or options.schema:
        raise InvalidOption("--state and --schema are for --format delta and --format iceberg")
    to = writable("--to", options.to)
    _refuse_others("--to", to / "_checkpoint", options.topics)
    _ask(options, options.topics)
    if options.explain:
        return _explain_stream(
            options, "archive", to / "_checkpoint", f"Parquet files in {to}", config
        )
    return _run(
        options,
        lambda spark, stop, line: pipelines.archive(
            spark,
            **_archiving(options),
            to=to,
            stop=stop,
            say=line.say,
            show=line.show,
        ),
        config=config,
    )


def _archive_table(options: argparse.Namespace, config: Mapping[str, str]) -> int:
    TABLES[options.format](options.to)
    if not options.state:
        raise InvalidOption(
            f"--format {options.format} needs --state DIR, a folder of this machine for the "
            "progress, which all runs share"
        )
    state = writable("--state", options.state)
    parse = None if options.schema is None else _parser(options.schema)
    _refuse_others("--state", state / "_checkpoint", options.topics)
    _ask(options, options.topics)
    if options.explain:
        writes = f"the {options.format} table {options.to}"
        return _explain_stream(options, "archive", state / "_checkpoint", writes, config)
    return _run(
        options,
        lambda spark, stop, line: pipelines.archive_table(
            spark,
            **_archiving(options),
            format=options.format,
            to=options.to,
            state=state,
            parse=parse,
            stop=stop,
            say=line.say,
            show=line.show,
        ),
        config=config,
    )


def _archiving(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that both forms of an archive take."""
    return {
        **_source(options),
        "topics": options.topics,
        "group": options.group,
        "every_s": options.every,
        "max_rows": options.max_rows,
        "allow_loss": options.allow_loss,
        "dry_run": options.dry_run,
    }


def _settings(texts: Sequence[str]) -> dict[str, str]:
    """Return Spark's settings of --conf. Raises InvalidOption."""
    settings = {}
    for text in texts:
        name, given, value = text.partition("=")
        if not given or not name.startswith("spark."):
            raise InvalidOption(f"--conf {text}: expected NAME=VALUE with a name of Spark's")
        settings[name] = value
    return settings


def _parser(schema: str) -> Parse:
    """Return what parses bodies by --schema. Raises InvalidOption."""
    if schema.endswith((".json", ".avsc")):
        try:
            text = Path(schema).read_text("utf-8")
            document = json.loads(text)
        except (OSError, ValueError) as exc:
            raise InvalidOption(f"--schema {schema}: {exc}") from None
        if schema.endswith(".avsc"):
            return partial(parse_avro, schema=text, on_error="null")
        return partial(parse_json, schema=columns_of(document), on_error="null")
    name, _, attribute = schema.partition(":")
    import_from_here()
    try:
        kind = getattr(importlib.import_module(name), attribute)
    except (ImportError, AttributeError, ValueError) as exc:
        raise InvalidOption(
            f"--schema {schema}: {exc}; expected module:Class, FILE.json or FILE.avsc"
        ) from None
    return partial(parse_json, schema=columns_of(kind), on_error="null")


def replay(options: argparse.Namespace) -> int:
    since, until = (
        None if text is None else instant(name, text)
        for name, text in (("--since", options.since), ("--until", options.until))
    )
    here = _source(options)
    target, target_security = _other(options, options.target) if options.target else here.values()
    refuse_replay(options.source, options.to, here["name_server"], target)
    state = writable("--state", options.state)
    _ask(options, _topics_of(options.source))
    if options.target:
        _ask_target(target, target_security, options.to or AUTO_CREATE_TOPIC)
    if options.explain:
        writes = f"{_topic_or_origin(options.to)} at {target}"
        return _explain_tables(options, "replay", [options.source], writes)
    return _run(
        options,
        lambda spark, stop, line: pipelines.replay(
            spark,
            source=options.source,
            **here,
            target=target,
            target_security=target_security,
            to=options.to,
            state=state,
            since=since,
            until=until,
            where=options.where,
            rate=options.rate,
            dry_run=options.dry_run,
            stop=stop,
            say=line.say,
            show=line.show,
        ),
    )


def redrive(options: argparse.Namespace) -> int:
    dry_run, state = options.dry_run or not options.yes, writable("--state", options.state)
    try:
        _ask(options, [dlq_topic(validate_group(options.group))])
    except NoRoute:
        return _show(options, no_letters(options.group, dry_run=dry_run))
    if options.explain:
        writes = f"{_topic_or_origin(options.to)} at {_source(options)['name_server']}"
        return _explain_tables(options, "redrive", [dlq_topic(options.group)], writes)
    return _run(
        options,
        lambda spark, stop, line: pipelines.redrive(
            spark,
            **_source(options),
            group=options.group,
            state=state,
            where=options.where,
            to=options.to,
            dry_run=dry_run,
            stop=stop,
            say=line.say,
            show=line.show,
        ),
    )


def mirror(options: argparse.Namespace) -> int:
    here = _source(options)
    target, target_security = _other(options, options.target)
    refuse_mirror(here["name_server"], target, options.prefix)
    state = writable("--state", options.state)
    _refuse_others("--state", state, options.topics)
    _ask(options, options.topics)
    _ask_target(target, target_security, options.prefix + options.topics[0])
    if options.explain:
        names = ", ".join(f"{options.prefix}{topic}" for topic in options.topics)
        return _explain_stream(
            options, "mirror", state, f"{names} at {target}", follow=options.follow
        )
    return _run(
        options,
        lambda spark, stop, line: pipelines.mirror(
            spark,
            source=here["name_server"],
            security=here["security"],
            target=target,
            target_security=target_security,
            topics=options.topics,
            state=state,
            prefix=options.prefix,
            group=options.group,
            follow=options.follow,
            idempotent=options.idempotent,
            max_rows=options.max_rows,
            allow_loss=options.allow_loss,
            dry_run=options.dry_run,
            stop=stop,
            say=line.say,
            show=line.show,
        ),
    )


def trace_report(options: argparse.Namespace) -> int:
    since = None if options.since is None else instant_or_age("--since", options.since)
    page = local("--to", options.to)
    if is_there(page) and page.is_dir():
        raise InvalidOption(
            f"--to {page}: that is a folder, and a file is expected, such as {page / 'traces.html'}"
        )
    writable("--to", page.parent)
    try:
        _ask(options, [options.trace_topic])
    except NoRoute:
        raise InvalidOption(
            f"there are no traces: the topic {options.trace_topic} does not exist. Switch tracing "
            "on in producers and consumers "
            "(trace=True in their settings), or name another topic with --trace-topic"
        ) from None
    if options.explain:
        notes = ["reads the topics that the traces name, too, for the queues of the messages"]
        return _explain_tables(
            options, "trace-report", [options.trace_topic], f"the page {page}", notes
        )
    return _run(
        options,
        lambda spark, _, line: pipelines.trace_report(
            spark,
            **_source(options),
            to=page,
            trace_topic=options.trace_topic,
            since=since,
            bucket=options.bucket,
            dry_run=options.dry_run,
            say=line.say,
        ),
        reads_only=True,
    )


def reconcile(options: argparse.Namespace) -> int:
    """Compare two sides. Return 3 if they differ."""
    _, other_security = _other(options, "")
    out = None if options.out is None else writable("--out", options.out)
    for side in (options.left, options.right):
        topic, _, server = side.partition("@")
        if server and not side.startswith(ARCHIVE):
            _ask_other(side, server, other_security, topic)
    _ask(
        options,
        [
            topic
            for side in (options.left, options.right)
            for topic in _topics_of(side)
            if "@" not in topic
        ],
    )
    if options.explain:
        writes = "nothing" if out is None else f"the differences, as Parquet files in {out}"
        return _explain_tables(options, "reconcile", [options.left, options.right], writes)
    return _run(
        options,
        lambda spark, _, line: pipelines.reconcile(
            spark,
            left=options.left,
            right=options.right,
            **_source(options),
            other_security=other_security,
            key=options.key,
            body=options.body,
            where=options.where,
            out=out,
            dry_run=options.dry_run,
            say=line.say,
        ),
        reads_only=True,
    )


def _source(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keywords name_server and security.

    Raises InvalidOption, also for files that cannot be used.
    """
    client_config(options)
    security = spark_options(place(options))
    return {"name_server": security.pop("nameServer"), "security": security}


def _other(options: argparse.Namespace, name_server: str) -> tuple[str, dict[str, str]]:
    """Return the name servers and the security of another cluster.

    Raises InvalidOption, also for files that cannot be used.
    """
    if options.target_credentials:
        read_credentials(options.target_credentials)
    tls = (options.target_cafile, options.target_certfile, options.target_keyfile)
    if any(tls):
        trusting(*tls)
    security = spark_options(ClusterContext(name_server, options.target_credentials, *tls))
    return security.pop("nameServer"), security


def _refuse_others(option: str, checkpoint: Path, topics: Sequence[str]) -> None:
    """Raise InvalidOption if *checkpoint* has the progress of topics that are not among
    *topics*.
    """
    others = positions(checkpoint).keys() - set(topics)
    if others:
        raise InvalidOption(
            f"{option}: {checkpoint} holds the progress of {', '.join(sorted(others))}: name the "
            "topics of the first run, or another folder"
        )


def _topics_of(place: str) -> list[str]:
    """Return the topics that *place* reads. Raises InvalidOption if its archive does not exist."""
    if place.startswith(ARCHIVE):
        archived(place)
        return []
    return [place]


def _ask(options: argparse.Namespace, topics: Sequence[str]) -> None:
    """Check that the cluster answers and has *topics*, so that the user gets an error at once, not
    when Spark has started.

    Raises NoNameServer and NoRoute.
    """
    with ogive.Admin(client=client_config(options)) as admin:
        for topic in topics:
            try:
                admin.route(topic)
            except (InvalidOption, NoRoute):
                if is_archive(topic):
                    raise InvalidOption(
                        f"{topic} is not a topic, but a folder with an archive: {ARCHIVE}{topic} "
                        "reads it"
                    ) from None
                raise


def _ask_target(name_server: str, security: dict[str, str], topic: str) -> None:
    """Check that the cluster to send to answers; *topic* need not exist there yet.

    Raises InvalidOption.
    """
    with contextlib.suppress(NoRoute):
        _ask_other("--target", name_server, security, topic)


def _ask_other(option: str, name_server: str, security: dict[str, str], topic: str) -> None:
    """Check as `_ask` does, for the other cluster of *option*.

    Raises InvalidOption if it does not answer, and NoRoute.
    """
    with ogive.Admin(client=access_of({**security, "nameServer": name_server}).client()) as admin:
        try:
            admin.route(topic)
        except NoNameServer as exc:
            raise InvalidOption(f"{option}: {exc}") from None


def _topic_or_origin(topic: str | None) -> str:
    return "the topic that each message came from" if topic is None else topic


def _explain_stream(
    options: argparse.Namespace,
    name: str,
    checkpoint: Path,
    writes: str,
    config: Mapping[str, str] = MappingProxyType({}),
    *,
    follow: bool = False,
) -> int:
    """Show what a pipeline that runs a stream would do."""
    here = _source(options)
    reading = source_options(
        here["name_server"],
        options.topics,
        options.group,
        here["security"],
        options.max_rows,
        options.allow_loss,
        follow=follow,
    )
    cores = cores_by_settings(options.master, config)
    read, notes = pipelines.explain_stream(reading, checkpoint, cores)
    return _show_explanation(options, pipelines.Explanation(name, [read], writes, notes))


def _explain_tables(
    options: argparse.Namespace,
    name: str,
    places: Sequence[str],
    writes: str,
    notes: Sequence[str] = (),
) -> int:
    """Show what a pipeline that reads topics or archives once would do."""
    explanation = pipelines.Explanation(name, writes=writes, notes=list(notes))
    cores = cores_by_settings(options.master, {})
    _, other_security = _other(options, "") if "target_credentials" in options else ("", OPEN)
    for side in places:
        if side.startswith(ARCHIVE):
            explanation.notes.append(f"reads all files of {side}")
            continue
        reading = topic_options(side, **_source(options), other_security=other_security)
        explanation.reads.append(pipelines.explain_table(reading, cores))
    filters = [
        f"--{one}"
        for one in ("since", "until", "where")
        if getattr(options, one, None) not in (None, "true")
    ]
    if filters:
        explanation.notes.append(f"{', '.join(filters)}: applied by Spark after reading")
    return _show_explanation(options, explanation)


def _show_explanation(options: argparse.Namespace, explanation: pipelines.Explanation) -> int:
    if options.json:
        print_json(explanation.as_json())
        return 0
    records = explanation.records()
    if records:
        print_table(list(records[0]), [list(record.values()) for record in records])
    print("\n".join(explanation.lines()), flush=True)
    return 0


def _run(
    options: argparse.Namespace,
    job: Callable[[Any, pipelines.Stop, ProgressLine], pipelines.Summary],
    *,
    reads_only: bool = False,
    config: Mapping[str, str] = MappingProxyType({}),
) -> int:
    with ProgressLine() as line:
        summary = pipelines.run(
            lambda spark, stop: job(spark, stop, line),
            master=options.master,
            memory=options.memory,
            say=line.say,
            reads_only=reads_only,
            config=config,
        )
    return _show(options, summary)


def _show(options: argparse.Namespace, summary: pipelines.Summary) -> int:
    """Print the summary. Return the exit code."""
    if options.json:
        print_json(summary.as_json())
    else:
        print("\n".join(summary.lines()), flush=True)
    return EXIT_DIFFERENT if summary.figures.get("same") is False else 0
