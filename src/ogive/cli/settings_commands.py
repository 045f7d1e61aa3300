"""``ogive topic export``, ``ogive group export``, ``ogive acl export``: settings as TOML, and
``ogive apply FILE``, which makes a cluster like them.

What a file does not name stays as it is. Users are not part of it, because their passwords are not.
"""

import argparse
import json
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.output import confirm, print_json, print_table, say
from ogive.client.admin import AccessRule, Topic
from ogive.client.admin.group_admin import check_retries
from ogive.client.admin.topic_admin import check_topic_settings
from ogive.client.admin.user_admin import access_rule
from ogive.errors import GroupNotExist, InvalidOption, NoRoute
from ogive.model import validate_group, validate_topic
from ogive.store.fs import reason
from ogive.text import pluralize

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
_TOPIC: Final = {
    "read_queues": int,
    "write_queues": int,
    "perm": str,
    "order": bool,
    "message_type": str,
    "whole_batches": bool,
}
_GROUP: Final = {
    "retry_queues": int,
    "max_retries": int,
    "broadcast": bool,
    "enabled": bool,
    "orderly": bool,
}
_RULE: Final = {
    "user": str,
    "resource": str,
    "actions": list,
    "allowed": bool,
    "source_ips": list,
}

Settings = Mapping[str, Any]


# --- export ---------------------------------------------------------------------------------------


async def export_topics(options: argparse.Namespace) -> int:
    async with aio.Admin(client=client_config(options)) as admin:
        names = options.topics or [
            row.name for row in await admin.topics() if row.kind == "application"
        ]
        found = {name: _of_topic(await admin.topic(name)) for name in sorted(names)}
    _print_tables(options, "topic", found)
    return 0


def _of_topic(topic: Topic) -> Settings:
    """Return the settings of a topic. Raises InvalidOption if its brokers differ."""
    rows = [
        {
            "read_queues": row.read_queues,
            "write_queues": row.write_queues,
            "perm": row.perm,
            "order": row.order,
        }
        for row in topic.brokers
    ]
    if any(row != rows[0] for row in rows):
        raise InvalidOption(
            f"topic {topic.name} has other settings on each broker, which a file cannot hold: "
            f"`ogive topic show {topic.name}` shows them, `ogive topic update` makes them equal"
        )
    more: dict[str, Any] = {"whole_batches": True} if topic.whole_batches else {}
    if topic.message_type is not None:
        more["message_type"] = topic.message_type
    return rows[0] | more


async def export_groups(options: argparse.Namespace) -> int:
    async with aio.Admin(client=client_config(options)) as admin:
        names = options.groups or [row.name for row in await admin.groups()]
        groups = [await admin.group(name) for name in sorted(names)]
    _print_tables(
        options,
        "group",
        {one.name: {name: getattr(one, name) for name in _GROUP} for one in groups},
    )
    return 0


async def export_rules(options: argparse.Namespace) -> int:
    async with aio.Admin(client=client_config(options)) as admin:
        rules = [rule for rule in await admin.access_rules() if not rule.default]
    for rule in rules:
        settings = {name: getattr(rule, name) for name in _RULE}
        _print_settings(options, "[[rules]]", settings)
    return 0


def _print_tables(options: argparse.Namespace, kind: str, found: Mapping[str, Settings]) -> None:
    for name, settings in found.items():
        # a JSON string is a TOML string, too
        _print_settings(options, f"[{kind}s.{json.dumps(name)}]", settings, **{kind: name})


def _print_settings(
    options: argparse.Namespace, heading: str, settings: Settings, **named: str
) -> None:
    """Print a table of TOML, or with --json its settings beside the name of what has them."""
    if options.json:
        print_json({**named, **settings})
        return
    print(heading)
    for name, value in settings.items():
        print(f"{name} = {json.dumps(value)}")
    print()


# --- apply ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """One line of the difference, and the call that removes it; None: an earlier call does."""

    what: str
    setting: str
    before: object
    after: object
    make: Callable[[], Awaitable[object]] | None = None


async def apply(options: argparse.Namespace) -> int:
    """Show how the cluster differs from a file, ask, and change it. Return 0.

    Raises InvalidOption for a file with unknown names or impossible values, before anything is
    changed. If a later change fails, standard error says how many were made before.
    """
    topics, groups, rules = read(options.file)
    async with aio.Admin(client=client_config(options)) as admin:
        changes: list[Difference] = []
        for name, wanted in topics.items():
            changes += await _topic_changes(admin, name, wanted)
        for name, wanted in groups.items():
            changes += await _group_changes(admin, name, wanted)
        if rules:
            changes += _rule_changes(admin, await admin.access_rules(), rules)
        _show(options, changes)
        if options.dry_run or not changes:
            return 0
        confirm(f"make {pluralize(len(changes), 'change')}?", yes=options.yes)
        await _make(changes)
    if not options.json:
        print(f"{pluralize(len(changes), 'change')} made")
    return 0


async def _make(changes: list[Difference]) -> None:
    done, what = 0, ""
    try:
        for change in changes:
            if change.make is not None:
                what = change.what
                await change.make()
            done += 1
    except BaseException:
        say(
            f"stopped at {what}, which may be changed in part; {done} of "
            f"{pluralize(len(changes), 'change')} are made, and the same command makes the others"
        )
        raise


async def _topic_changes(admin: aio.Admin, name: str, wanted: Settings) -> list[Difference]:
    whole = wanted.get("whole_batches", False)
    settings = {key: value for key, value in wanted.items() if key != "whole_batches"}
    try:
        topic = await admin.topic(name)
    except NoRoute:
        create = dict(settings)
        reads = create.pop("read_queues", 8)
        writes = create.pop("write_queues", reads)

        async def make() -> None:
            await admin.create_topic(name, queues=reads, whole_batches=whole, **create)
            if writes != reads:
                await admin.update_topic(name, write_queues=writes)

        shown = {"read_queues": reads, "write_queues": writes} | dict(wanted)
        return _created(f"topic {name}", shown, make)
    if "whole_batches" in wanted and topic.whole_batches != whole:
        raise InvalidOption(
            f"topic {name}: whole_batches cannot be changed; delete the topic, or set it to "
            f"{json.dumps(topic.whole_batches)} in the file"
        )
    if not settings:
        return []
    rows = await admin.update_topic(name, **settings, dry_run=True)
    changes = [
        Difference(f"topic {name} on {row.broker}", row.setting, row.before, row.after)
        for row in rows
    ]
    return _with_call(changes, lambda: admin.update_topic(name, **settings))


async def _group_changes(admin: aio.Admin, name: str, wanted: Settings) -> list[Difference]:
    try:
        rows = await admin.update_group(name, **wanted, dry_run=True) if wanted else []
    except GroupNotExist:
        create = dict(wanted)
        orderly = create.pop("orderly", False)

        async def make() -> None:
            await admin.create_group(name, **create)
            if orderly:
                await admin.update_group(name, orderly=True)

        return _created(f"group {name}", wanted, make)
    changes = [
        Difference(f"group {name} on {row.broker}", row.setting, row.before, row.after)
        for row in rows
    ]
    return _with_call(changes, lambda: admin.update_group(name, **wanted))


def _rule_changes(
    admin: aio.Admin, known: list[AccessRule], rules: list[AccessRule]
) -> list[Difference]:
    changes = []
    for rule in rules:
        # brokers may differ
        there = [
            _words(one)
            for one in known
            if not one.default and (one.user, one.resource) == (rule.user, rule.resource)
        ]
        if there != [_words(rule)]:

            def make(rule: AccessRule = rule) -> Awaitable[object]:
                change = admin.allow if rule.allowed else admin.deny
                return change(rule.user, rule.resource, rule.actions, source_ips=rule.source_ips)

            changes.append(
                Difference(
                    f"rule of {rule.user} on {rule.resource}",
                    "allows" if rule.allowed else "forbids",
                    " / ".join(there) or None,
                    _words(rule),
                    make,
                )
            )
    return changes


def _words(rule: AccessRule) -> str:
    start = "may" if rule.allowed else "may not"
    where = f" from {', '.join(sorted(rule.source_ips))}" if rule.source_ips else ""
    return f"{start} {', '.join(sorted(rule.actions))}{where}"


def _created(
    what: str, settings: Settings, make: Callable[[], Awaitable[object]]
) -> list[Difference]:
    rows = [Difference(what, name, None, value) for name, value in settings.items()]
    return _with_call(rows or [Difference(what, "exists", False, True)], make)


def _with_call(
    changes: list[Difference], make: Callable[[], Awaitable[object]]
) -> list[Difference]:
    """Return the changes of one thing, of which the first makes all."""
    if not changes:
        return []
    first = changes[0]
    return [Difference(first.what, first.setting, first.before, first.after, make), *changes[1:]]


def _show(options: argparse.Namespace, changes: list[Difference]) -> None:
    if options.json:
        for one in changes:
            print_json(
                {
                    "object": one.what,
                    "setting": one.setting,
                    "before": one.before,
                    "after": one.after,
                    "dry_run": options.dry_run,
                }
            )
    elif changes:
        rows = [
            (one.what, one.setting, "" if one.before is None else one.before, one.after)
            for one in changes
        ]
        print_table(("", "setting", "now", "then"), rows)
    else:
        print("the cluster is like that already")


# --- the file -------------------------------------------------------------------------------------


def read(path: str) -> tuple[dict[str, Settings], dict[str, Settings], list[AccessRule]]:
    """Return the topics, groups and rules of a file. Raises InvalidOption."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise InvalidOption(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB")
        found = tomllib.loads(raw.decode())
    except OSError as exc:
        raise InvalidOption(f"{path} cannot be read: {reason(exc)}") from None
    except ValueError as exc:
        raise InvalidOption(f"{path} is not TOML: {exc}") from None
    if unknown := found.keys() - {"topics", "groups", "rules"}:
        raise InvalidOption(
            f"{path}: there is no {', '.join(sorted(unknown))}; a file has topics, groups and rules"
        )
    topics, groups = (
        {
            name: _valid(f"{path}: {kind}.{name}", name, settings, types, check)
            for name, settings in _table(f"{path}: {kind}", found.get(kind, {})).items()
        }
        for kind, types, check in (
            ("topics", _TOPIC, _check_topic),
            ("groups", _GROUP, _check_group),
        )
    )
    rules = found.get("rules", [])
    if not isinstance(rules, list):
        raise InvalidOption(f"{path}: rules begin with [[rules]]")
    wanted: dict[tuple[str, str], AccessRule] = {}
    for i, one in enumerate(rules):
        rule = _rule(f"{path}: rules, number {i}", one)
        if wanted.setdefault((rule.user, rule.resource), rule) is not rule:
            raise InvalidOption(
                f"{path}: rules, number {i}: {rule.user} has another rule on {rule.resource}, "
                "which it would replace"
            )
    return topics, groups, list(wanted.values())


def _valid(
    where: str,
    name: str,
    value: Any,
    types: Mapping[str, type],
    check: Callable[[str, Settings], None],
) -> Settings:
    settings = _checked(where, value, types)
    try:
        check(name, settings)
    except InvalidOption as exc:
        raise InvalidOption(f"{where}: {exc}") from None
    return settings


def _check_topic(name: str, settings: Settings) -> None:
    validate_topic(name)
    for count in ("read_queues", "write_queues"):
        check_topic_settings(
            settings.get(count), settings.get("perm"), settings.get("message_type")
        )


def _check_group(name: str, settings: Settings) -> None:
    validate_group(name)
    check_retries(settings.get("retry_queues"), settings.get("max_retries"))


def _table(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidOption(f"{where}: a table is expected, for example [topics.Orders]")
    return value


def _checked(where: str, value: Any, types: Mapping[str, type]) -> Settings:
    settings = _table(where, value)
    for name, one in settings.items():
        if name not in types:
            raise InvalidOption(f"{where}: there is no {name}; there are: {', '.join(types)}")
        # bool is an int, too
        if type(one) is not types[name]:
            raise InvalidOption(f"{where}: {name} must be of type {types[name].__name__}")
    return settings


def _rule(where: str, value: Any) -> AccessRule:
    settings = {"source_ips": []} | dict(_checked(where, value, _RULE))
    if missing := _RULE.keys() - settings.keys():
        raise InvalidOption(f"{where}: {', '.join(sorted(missing))} is missing")
    try:
        return access_rule(
            settings["user"],
            settings["resource"],
            [str(one) for one in settings["actions"]],
            allowed=settings["allowed"],
            source_ips=[str(one) for one in settings["source_ips"]],
        )
    except InvalidOption as exc:
        raise InvalidOption(f"{where}: {exc}") from None
