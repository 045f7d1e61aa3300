"""Page of reference about ``--json``: a JSON schema for each command.

The keys and types are those of tests/surface/lists, which a test compares with what the commands
print.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from tests.surface.command_line import names_with
from tests.surface.lines import stored

INTRODUCTION: Final = """\
# JSON output

With `--json` a command prints one JSON object a line, and nothing else, on standard output.
Each has the schema below (JSON Schema 2020-12).
A key whose type is not listed may have any value; every value may be null.
Keys stay in later releases, and new ones may come: ignore keys that you do not know.
"""
JSON_TYPES: Final = {"list": "array"}


def schemas() -> dict[str, dict[str, Any]]:
    """Return the schema of what each command prints, by ``ogive COMMAND``."""
    commands = sorted(names_with("--json"), key=len, reverse=True)
    found: dict[str, dict[str, Any]] = {}
    for line in [*stored("json"), *stored("pipelines")]:
        place, _, kind = line.partition(": ")
        command = next(name for name in commands if place.startswith(f"{name} "))
        path = place.removeprefix(f"{command} ")
        whole = found.setdefault(command, {"type": "object"})
        node = whole
        for name in path.replace("[]", ".[]").split("."):
            node = _inner(node, name)
        if kind:
            types = node.setdefault("type", ["null"])
            types.insert(-1, JSON_TYPES.get(kind, kind))
    return found


def _inner(node: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the schema of the value *name* in *node*: an item, any value, or that of a key."""
    inner: dict[str, Any]
    if name == "[]":
        inner = node.setdefault("items", {})
    elif name == "*":
        inner = node.setdefault("additionalProperties", {})
    else:
        inner = node.setdefault("properties", {}).setdefault(name, {})
    return inner


def page(found: Mapping[str, dict[str, Any]]) -> str:
    """Return the page in Markdown."""
    sections = [
        f"## {command}\n\n```json\n{json.dumps(schema, indent=2)}\n```\n"
        for command, schema in sorted(found.items())
    ]
    return "\n".join([INTRODUCTION, *sections])
