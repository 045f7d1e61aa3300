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
from ogive.cli.output import confirm, print_json, print_table
from ogive.client.admin import AccessRule, Topic
from ogive.errors import GroupNotExist, InvalidOption, NoRoute
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
_GROUP: Final = {"retry_queues": int, "max_retries": int, "broadcast": bool, "enabled": bool}
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
    _print_tables("topics", found)
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
        "groups", {one.name: {name: getattr(one, name) for name in _GROUP} for one in groups}
    )
    return 0


async def export_rules(options: argparse.Namespace) -> int:
    async with aio.Admin(client=client_config(options)) as admin:
        rules = [rule for rule in await admin.access_rules() if not rule.default]
    for rule in rules:
        print("[[rules]]")
        _print_settings({name: getattr(rule, name) for name in _RULE})
    return 0


def _print_tables(kind: str, found: Mapping[str, Settings]) -> None:
    for name, settings in found.items():
        # a JSON string is a TOML string, too
        print(f"[{kind}.{json.dumps(name)}]")
        _print_settings(settings)


def _print_settings(settings: Settings) -> None:
    for name, value in settings.items():
        print(f"{name} = {json.dumps(value)}")
    print()


# --- apply ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the difference, and the call that removes it; None: an earlier call does."""

    what: str
    setting: str
    before: object
    after: object
    make: Callable[[], Awaitable[object]] | None = None


async def apply(options: argparse.Namespace) -> int:
    """Show how the cluster differs from a file, ask, and change it. Return 0.

    Raises InvalidOption for a file with unknown names or values of a wrong type, before anything
    is changed.
    """
    topics, groups, rules = read(options.file)
    async with aio.Admin(client=client_config(options)) as admin:
        changes: list[Change] = []
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
        for change in changes:
            if change.make is not None:
                await change.make()
    if not options.json:
        print(f"{pluralize(len(changes), 'change')} made")
    return 0


async def _topic_changes(admin: aio.Admin, name: str, wanted: Settings) -> list[Change]:
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
    if topic.whole_batches != whole:
        raise InvalidOption(
            f"topic {name}: whole_batches cannot be changed; delete the topic, or set it to "
            f"{json.dumps(topic.whole_batches)} in the file"
        )
    if not settings:
        return []
    rows = await admin.update_topic(name, **settings, dry_run=True)
    changes = [
        Change(f"topic {name} on {row.broker}", row.setting, row.before, row.after) for row in rows
    ]
    return _with_call(changes, lambda: admin.update_topic(name, **settings))


async def _group_changes(admin: aio.Admin, name: str, wanted: Settings) -> list[Change]:
    try:
        rows = await admin.update_group(name, **wanted, dry_run=True) if wanted else []
    except GroupNotExist:
        return _created(f"group {name}", wanted, lambda: admin.create_group(name, **wanted))
    changes = [
        Change(f"group {name} on {row.broker}", row.setting, row.before, row.after) for row in rows
    ]
    return _with_call(changes, lambda: admin.update_group(name, **wanted))


def _rule_changes(
    admin: aio.Admin, known: list[AccessRule], rules: list[AccessRule]
) -> list[Change]:
    there = {(rule.user, rule.resource): rule for rule in known if not rule.default}
    changes = []
    for rule in rules:
        before = there.get((rule.user, rule.resource))
        if before is None or _words(before) != _words(rule):

            def make(rule: AccessRule = rule) -> Awaitable[object]:
                say = admin.allow if rule.allowed else admin.deny
                return say(rule.user, rule.resource, rule.actions, source_ips=rule.source_ips)

            changes.append(
                Change(
                    f"rule of {rule.user} on {rule.resource}",
                    "allows" if rule.allowed else "forbids",
                    None if before is None else _words(before),
                    _words(rule),
                    make,
                )
            )
    return changes


def _words(rule: AccessRule) -> str:
    start = "may" if rule.allowed else "may not"
    where = f" from {', '.join(sorted(rule.source_ips))}" if rule.source_ips else ""
    return f"{start} {', '.join(sorted(rule.actions))}{where}"


def _created(what: str, settings: Settings, make: Callable[[], Awaitable[object]]) -> list[Change]:
    rows = [Change(what, name, None, value) for name, value in settings.items()]
    return _with_call(rows or [Change(what, "exists", False, True)], make)


def _with_call(changes: list[Change], make: Callable[[], Awaitable[object]]) -> list[Change]:
    """Return the changes of one thing, of which the first makes all."""
    if not changes:
        return []
    first = changes[0]
    return [Change(first.what, first.setting, first.before, first.after, make), *changes[1:]]


def _show(options: argparse.Namespace, changes: list[Change]) -> None:
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
            name: _checked(f"{path}: {kind}.{name}", settings, types)
            for name, settings in _table(f"{path}: {kind}", found.get(kind, {})).items()
        }
        for kind, types in (("topics", _TOPIC), ("groups", _GROUP))
    )
    rules = found.get("rules", [])
    if not isinstance(rules, list):
        raise InvalidOption(f"{path}: rules begin with [[rules]]")
    return topics, groups, [_rule(f"{path}: rules, number {i}", one) for i, one in enumerate(rules)]


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
    return AccessRule(
        user=settings["user"],
        resource=settings["resource"],
        actions=tuple(map(str, settings["actions"])),
        allowed=settings["allowed"],
        source_ips=tuple(map(str, settings["source_ips"])),
    )
