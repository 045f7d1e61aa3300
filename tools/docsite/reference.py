"""The pages of reference that are made from the code: commands, settings, error codes, metrics."""

import argparse
import asyncio
import dataclasses
import enum
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import ogive
from ogive.access.user_table import AccessTable
from ogive.broker import Broker, BrokerConfig
from ogive.broker.config import PopConfig
from ogive.cli.broker_commands import explain
from ogive.cli.parser import build_parser
from ogive.client.listener import ListenerConfig
from ogive.errors import BrokerError, OgiveError, ResponseCode, broker_error
from ogive.store.retention import RetentionConfig
from ogive.wire.bodies.acls import User
from ogive.wire.signing import Credentials
from tests.raw_client import RawClient
from tests.surface import settings, spark
from tests.surface.lines import plain_environment, stored
from tools.docsite import json_schemas
from tools.docsite.api import Undocumented, field_docs

UNITS: Final = {
    "_s": "seconds",
    "_ms": "milliseconds",
    "_bytes": "bytes",
    "_bytes_per_s": "bytes per second",
}
CONFIGS: Final[Mapping[str, tuple[type, str]]] = {
    "Client": (
        ogive.ClientConfig,
        "`ogive.ClientConfig`, the address and connections of any client.",
    ),
    "Producer": (
        ogive.ProducerConfig,
        "`ogive.ProducerConfig`, passed as `config=` to `Producer`.",
    ),
    "Listener": (ListenerConfig, "The arguments of `ogive.listener`, one set for each listener."),
    "Consumer": (
        ogive.ConsumerConfig,
        "`ogive.ConsumerConfig`, for all listeners of a push consumer, or for a pull consumer.",
    ),
    "Broker": (
        BrokerConfig,
        "`ogive.broker.BrokerConfig`. [`ogive up`](command-line.md#ogive-up) has an option for "
        "most of them.",
    ),
    "POP": (PopConfig, "`BrokerConfig.pop`: consumption in which the broker hands out messages."),
    "Retention": (RetentionConfig, "`BrokerConfig.retention`: when messages are removed."),
}


def pages(root: Path) -> dict[str, tuple[str, str]]:
    """Return title and text of each page by its place. Raises Undocumented."""
    prose = {path.name: path.read_text("utf-8") for path in (root / "docs").glob("*.md")}
    return {
        "reference/command-line.md": ("Command line", command_line_page()),
        "reference/json.md": ("JSON output", json_schemas.page(json_schemas.schemas())),
        "reference/settings.md": ("Settings", settings_page(prose)),
        "reference/error-codes.md": ("Error codes", error_page()),
        "reference/metrics.md": ("Metrics", metrics_page(asyncio.run(broker_page()), spark.page())),
    }


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    cells = [[_cell(text) for text in row] for row in rows]
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


# --- command line ---------------------------------------------------------------------------------


def command_line_page() -> str:
    """Return the page of all commands with their options."""
    with plain_environment():
        parser = build_parser()
        sections = list(_commands("ogive", parser))
    return "\n".join(
        [
            "# Command line",
            "",
            "All commands of `ogive`. `ogive help COMMAND` prints the same in a terminal.",
            "",
            *sections,
        ]
    )


def _commands(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    inner = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    depth = len(name.split())
    if depth > 1:
        yield f"{'#' * min(depth, 3)} {name}\n"
        yield f"{_prose(parser.description or '')}\n"
    if inner:
        helps = {one.dest: one.help or "" for one in inner[0]._choices_actions}
        rows = [
            (f"[`{name} {word}`](#{_slug(f'{name} {word}')})", text) for word, text in helps.items()
        ]
        yield table(("command", ""), rows)
        for word in helps:
            yield from _commands(f"{name} {word}", inner[0].choices[word])
        return
    usage = parser.format_usage().removeprefix("usage: ").rstrip()
    yield "```text\n" + usage.replace("\n       ", "\n") + "\n```\n"
    for group in parser._action_groups:
        actions = [one for one in group._group_actions if one.help != argparse.SUPPRESS]
        if actions:
            yield f"{_title(group.title)}\n"
            yield table(("", "default", ""), map(_option, actions))
    if parser.epilog:
        example = parser.epilog.removeprefix("example:\n").strip()
        yield f"Example:\n\n```sh\n{example}\n```\n"


def _title(title: str | None) -> str:
    shown = {"positional arguments": "Arguments", "options": "Options"}
    text = shown.get(title or "", title or "")
    return f"**{text[:1].upper()}{text[1:]}**"


def _option(action: argparse.Action) -> tuple[str, str, str]:
    value = _metavar(action)
    if not action.option_strings:
        return f"`{value}`", "", _help(action)
    names = ", ".join(f"`{name}`" for name in action.option_strings)
    shown = names if action.nargs == 0 else f"{names} `{value}`"
    no_default = action.nargs == 0 or action.default in (None, argparse.SUPPRESS, [], ())
    return shown, "" if no_default else f"`{action.default}`", _help(action)


def _metavar(action: argparse.Action) -> str:
    if action.metavar is None and action.choices:
        return "\\|".join(map(str, action.choices)).replace("\\", "")
    return str(action.metavar or action.dest.upper())


def _help(action: argparse.Action) -> str:
    return _prose((action.help or "") % {"default": action.default, "prog": "ogive"})


def _prose(text: str) -> str:
    """Return a help text as Markdown: its signs mean themselves."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(
        one if one.startswith("`") else re.sub(r"([\\*_<>\[\]])", r"\\\1", one) for one in pieces
    )


def _slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


# --- settings -------------------------------------------------------------------------------------


def settings_page(prose: Mapping[str, str]) -> str:
    """Return the page of all settings. *prose*: text by name of the pages of docs.

    Raises Undocumented for a setting that says nothing of itself, and for an option of Spark or a
    variable that no page explains.
    """
    parts = ["# Settings", "", "Each setting with its default and its unit.", ""]
    missing: list[str] = []
    for title, (config, text) in CONFIGS.items():
        docs = field_docs(config)
        fields = dataclasses.fields(config)
        missing += [f"{config.__name__}.{one.name}" for one in fields if not docs.get(one.name)]
        rows = [setting(one, docs.get(one.name)) for one in fields]
        parts += [f"## {title}", "", text, "", table(("setting", "default", "unit", ""), rows)]
    lines = [line for line in sorted(settings.lines()) if " " in line]
    parts += list(_broker_conf(lines))
    parts += list(_spark_options(prose, missing))
    parts += list(_variables(lines, prose, missing))
    if missing:
        raise Undocumented("\n".join(f"{name} is not documented" for name in missing))
    return "\n".join(parts)


def setting(field: "dataclasses.Field[Any]", doc: str | None) -> tuple[str, str, str, str]:
    """Return the cells of a setting."""
    unit = next(
        (UNITS[end] for end in sorted(UNITS, key=len, reverse=True) if field.name.endswith(end)), ""
    )
    return f"`{field.name}`", _default(field), unit, doc or ""


def _default(field: "dataclasses.Field[Any]") -> str:
    value = field.default
    if value is dataclasses.MISSING:
        return "required" if field.default_factory is dataclasses.MISSING else ""
    if isinstance(value, enum.Enum):
        return f"`{value.name}`"
    if callable(value):
        return f"`{getattr(value, '__name__', '')}`"
    if isinstance(value, float):
        return f"`{value:g}`" if value < 1e6 else f"`{value:,.0f}`"
    if isinstance(value, int) and not isinstance(value, bool) and value and value % 1024 == 0:
        return f"`{value}` ({_binary(value)})"
    return f"`{value!r}`"


def _binary(value: int) -> str:
    size = value // 1024
    return f"{size // 1024} MiB" if size % 1024 == 0 else f"{size} KiB"


def _values(lines: Iterable[str], kind: str) -> list[str]:
    return [line.removeprefix(f"{kind} ") for line in lines if line.startswith(f"{kind} ")]


def _broker_conf(lines: Sequence[str]) -> Iterator[str]:
    changeable = set(_values(lines, "updateBrokerConfig"))
    yield "## Keys of Apache's broker.conf\n"
    yield (
        "`ogive up --config FILE.conf` reads these, and names every other key in a warning. "
        "[`mqadmin updateBrokerConfig`](../docs/admin.md#settings-at-run-time) changes those that "
        "say so while the broker runs.\n"
    )
    keys = sorted({*_values(lines, "broker.conf"), *changeable}, key=str.lower)
    yield table(
        ("key", "changeable"), [(f"`{key}`", "yes" if key in changeable else "") for key in keys]
    )


def _spark_options(prose: Mapping[str, str], missing: list[str]) -> Iterator[str]:
    lines = sorted(stored("spark"))
    yield '## Options of `format("rocketmq")`\n'
    yield "[Topics in Spark](../docs/spark.md) explains them.\n"
    for use in ("read", "write"):
        options = _values(lines, f"{use} option")
        defaults = dict(one.split(" = ", 1) for one in options if " = " in one)
        names = [one for one in options if " = " not in one and ": " not in one]
        missing += [f"option {name} of Spark" for name in names if name not in prose["spark.md"]]
        yield f"**Options of {'reading' if use == 'read' else 'writing'}**\n"
        rows = [(f"`{name}`", f"`{defaults[name]}`" if name in defaults else "") for name in names]
        yield table(("option", "default"), rows)


def _variables(lines: Sequence[str], prose: Mapping[str, str], missing: list[str]) -> Iterator[str]:
    yield "## Environment variables\n"
    rows = []
    for name in _values(lines, "environment"):
        found = [page for page, text in sorted(prose.items()) if name in text]
        if not found:
            missing.append(f"environment variable {name}")
        links = ", ".join(f"[{_first_heading(prose[page])}](../docs/{page})" for page in found)
        rows.append((f"`{name}`", links))
    yield table(("variable", "explained in"), rows)


def _first_heading(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1] if found else ""


# --- error codes ----------------------------------------------------------------------------------


def error_page() -> str:
    """Return the page of answer codes and exceptions."""
    codes = [
        (str(code.value), f"`{code.name}`", _raised(code), explain(code)) for code in ResponseCode
    ]
    return "\n".join(
        [
            "# Error codes",
            "",
            "What a broker or name server answers, and what ogive raises for it. "
            "`ogive errors CODE` prints a line of the first table.",
            "",
            "## Answer codes",
            "",
            table(("code", "name", "raised as", "meaning"), codes),
            "## Exceptions",
            "",
            "All are in [`ogive.errors`](api/ogive.errors.rst), the common ones also in `ogive`. "
            "An exception says what may be done next:",
            "",
            "- *other broker*: the same call may succeed at another broker (`retry_other_broker`).",
            "- *route*: the route may be out of date (`refresh_route`).",
            "- *unknown*: the request may or may not have been carried out (`outcome_unknown`).",
            "",
            table(
                ("exception", "other broker", "route", "unknown", "meaning"),
                map(_exception, _tree(OgiveError)),
            ),
        ]
    )


def _raised(code: ResponseCode) -> str:
    if code is ResponseCode.SUCCESS:
        return ""
    return f"`{type(broker_error(code, None)).__name__}`"


def _tree(cls: type[OgiveError]) -> Iterator[type[OgiveError]]:
    """Yield a class and its subclasses, each behind its base."""
    yield cls
    for inner in sorted(cls.__subclasses__(), key=lambda one: one.__name__):
        if inner.__module__ == cls.__module__:
            yield from _tree(inner)


def _exception(cls: type[OgiveError]) -> tuple[str, ...]:
    flags = (cls.retry_other_broker, cls.refresh_route, cls.outcome_unknown)
    text = (cls.__doc__ or "").split("\n\n")[0]
    codes = cls.codes if issubclass(cls, BrokerError) else ()
    numbers = f" ({', '.join(str(int(code)) for code in codes)})" if codes else ""
    return (f"`{cls.__name__}`{numbers}", *("yes" if flag else "" for flag in flags), text)


# --- metrics --------------------------------------------------------------------------------------


async def broker_page() -> str:
    """Return the metrics of a broker with access control and one message."""
    with tempfile.TemporaryDirectory() as name:
        config = BrokerConfig(data=Path(name), port=0, segment_bytes=1024 * 1024)
        users = AccessTable()
        await users.create_user(User(username="docs", password="docs", user_type="Super"))
        broker = Broker(config, access=users)
        await broker.start()
        try:
            user = Credentials(access_key="docs", secret_key="docs")
            async with await RawClient.open(broker.address, credentials=user) as client:
                await client.send("Orders", b"one message")
            return (await broker.metrics_page()).text
        finally:
            await broker.stop()


def metrics_page(broker: str, on_spark: str) -> str:
    """Return the page of metrics from what Prometheus would read, and from the stored lists."""
    return "\n".join(
        [
            "# Metrics",
            "",
            "[Watching a broker](../docs/operating.md#watching-it) says where they are served. "
            "Every line of a broker has the labels `cluster`, `node_type` and `node_id`.",
            "",
            "## Broker",
            "",
            metrics("metrics", "", broker),
            "## Spark",
            "",
            metrics("spark", "metric ", on_spark),
        ]
    )


def metrics(part: str, before: str, page: str) -> str:
    """Return the table of a stored list. Raises Undocumented for a metric without a text."""
    lines = [line.removeprefix(before) for line in stored(part) if line.startswith(before)]
    kinds = dict(line.split(": ") for line in lines if re.fullmatch(r"\w+: \w+", line))
    texts = dict(re.findall(r"^# HELP (\S+) (.+)$", page, re.MULTILINE))
    if missing := sorted(kinds.keys() - texts.keys()):
        raise Undocumented("\n".join(f"metric {name} has no text" for name in missing))
    rows = []
    for name, kind in sorted(kinds.items()):
        found = (re.fullmatch(rf"{name}\{{(\w+)\}}", line) for line in lines)
        labels = sorted({one[1] for one in found if one} - {"cluster", "node_type", "node_id"})
        rows.append(
            (f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), texts.get(name, ""))
        )
    return table(("metric", "kind", "labels", ""), rows)
