"""Every command has --json, and a JSON schema in the documentation."""

import argparse
from collections.abc import Iterator
from typing import Final

from ogive.cli.parser import build_parser
from tools.docsite import json_schemas

WITHOUT: Final = {
    "ogive up": "it serves until it is stopped; --log-format json",
    "ogive console": "it serves until it is stopped",
    "ogive proxy": "it serves until it is stopped; --log-format json",
    "ogive run": "it serves until it is stopped; what it prints is the application's",
    "ogive completion": "it prints a script",
    "ogive spark warm": "it prints one path",
}
"""Commands that need no --json, and why."""


def commands(
    parser: argparse.ArgumentParser, name: str = "ogive"
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each command that has no commands of its own."""
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not groups:
        yield name, parser
    for group in groups:
        for word, below in group.choices.items():
            yield from commands(below, f"{name} {word}")


def test_every_command_has_json_and_a_schema_of_it() -> None:
    found = dict(commands(build_parser()))
    having = {name for name, parser in found.items() if "--json" in parser._option_string_actions}
    assert found.keys() - having == WITHOUT.keys()
    assert json_schemas.schemas().keys() == having


def test_a_schema_nests_objects_lists_and_objects_whose_keys_are_data() -> None:
    found = json_schemas.schemas()
    groups = found["ogive group show"]["properties"]["members"]
    assert groups["type"] == ["array", "null"]
    assert groups["items"]["properties"]["address"] == {"type": ["string", "null"]}
    figures = found["ogive broker show"]["properties"]["figures"]
    assert figures["type"] == ["object", "null"]
    assert figures["additionalProperties"] == {"type": ["string", "null"]}
    # null in the scene that the lists are made from
    assert found["ogive broker list"]["properties"]["trouble"] == {}
    assert "## ogive lag\n" in json_schemas.page(found)
