"""Shapes of JSON: keys and types of values, nested, without the values.

ogive lag queue: number
ogive topic show brokers[].perm: string
ogive tail properties.*: string         an object whose keys are data
ogive broker list trouble               null in the scene
"""

import json
from collections.abc import Iterator, Set
from typing import Any, Final

NAMES: Final = {bool: "boolean", int: "number", float: "number", str: "string"}


def keys(value: Any, maps: Set[str] = frozenset(), at: str = "") -> set[str]:
    """Return a line for each key and type in *value*. *maps*: objects whose keys are data."""
    return without_nulls(set(_keys(value, maps, at)))


def keys_of_lines(text: str, maps: Set[str] = frozenset()) -> set[str]:
    """Return the same for one JSON object a line, as commands print them."""
    records = map(json.loads, text.splitlines())
    return without_nulls({key for record in records for key in _keys(record, maps, "")})


def without_nulls(found: set[str]) -> set[str]:
    """Leave out that a key may be null. One that is always null has a line without a type."""
    typed = {line.partition(": ")[0] for line in found if ": " in line}
    return {line for line in found if ": " in line or line not in typed}


def _keys(value: Any, maps: Set[str], at: str) -> Iterator[str]:
    if isinstance(value, dict):
        if at:
            yield f"{at}: object"
        for key, inner in value.items():
            name = "*" if at.rpartition(".")[2] in maps else key
            yield from _keys(inner, maps, f"{at}.{name}" if at else name)
    elif isinstance(value, list):
        yield f"{at}: list"
        for inner in value:
            yield from _keys(inner, maps, f"{at}[]")
    else:
        yield at if value is None else f"{at}: {NAMES[type(value)]}"
