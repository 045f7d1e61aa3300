"""Columns from dataclasses and JSON Schemas."""

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, List  # noqa: UP035  without its element

import pytest

from ogive.errors import InvalidOption

pytest.importorskip("pyspark")

from ogive.spark.body_schema import columns_of


@dataclass
class Line:
    item: str
    count: int


@dataclass
class Order:
    number: int
    price: Decimal
    at: datetime | None
    lines: list[Line]
    notes: dict[str, str | None] = field(default_factory=dict)


@dataclass
class Odd:
    either: int | str


@dataclass
class Odder:
    items: set[int]


@dataclass
class Node:
    children: "list[Node] | None"


@dataclass
class Unknown:
    other: "NotHere"  # type: ignore[name-defined]  # noqa: F821


@dataclass
class Bare:
    items: List  # type: ignore[type-arg]  # noqa: UP006


def test_a_dataclass_becomes_columns() -> None:
    schema = columns_of(Order)
    assert schema.simpleString() == (
        "struct<number:bigint,price:decimal(38,18),at:timestamp,lines:array<struct<item:string,"
        "count:bigint>>,notes:map<string,string>>"
    )
    assert [one.nullable for one in schema] == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (int, "not a dataclass"),
        (Line("pen", 1), "not a dataclass"),
        (Odd, "field either of Odd"),
        (Odder, "field items of Odder"),
        (Bare, "field items of Bare"),
        (Node, "Node has itself inside"),
        (Unknown, "a type of Unknown cannot be resolved: name 'NotHere'"),
    ],
)
def test_what_has_no_column_is_named(kind: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        columns_of(kind)


def test_a_json_schema_becomes_columns() -> None:
    schema = columns_of(
        {
            "type": "object",
            "required": ["number", "lines", "note"],
            "properties": {
                "number": {"type": "integer"},
                "price": {"type": ["number", "null"]},
                "paid": {"type": "boolean"},
                "at": {"type": "string", "format": "date-time"},
                "day": {"type": "string", "format": "date"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
                "tags": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            "$defs": {
                "line": {"properties": {"item": {"type": "string"}}, "required": ["item"]},
            },
        }
    )
    assert schema.simpleString() == (
        "struct<number:bigint,price:double,paid:boolean,at:timestamp,day:date,note:string,"
        "lines:array<struct<item:string>>,tags:map<string,string>>"
    )
    assert [one.name for one in schema if not one.nullable] == ["number", "lines"]
    lines: Any = schema["lines"].dataType
    assert not lines.containsNull
    assert not lines.elementType["item"].nullable


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"a": {}}, r"the schema\.a must have one type, got none"),
        ({"a": {"type": ["string", "integer"]}}, r"the schema\.a must have one type"),
        ({"a": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}, "a has several types"),
        ({"a": {"type": "object"}}, "a is an object without properties"),
        ({"a": {"type": "text"}}, "a has the type text"),
        ({"a": {"$ref": "#/$defs/b"}}, r"refers to #/\$defs/b, which is not in the document"),
        ({"a": {"$ref": "http://x/y"}}, "which is not in the document"),
        ({"a": {"type": "array", "items": {"$ref": "#"}}}, "which is not in the document"),
        (
            {"a": {"type": "array", "items": {"$ref": "#/properties/a"}}},
            r"the schema\.a\[\]\[\] refers to itself",
        ),
        ({"a": True}, r"the schema\.a must be a schema with a type, got True"),
        ({"a": {"anyOf": [True, {"type": "null"}]}}, "a must be a schema with a type"),
        ({"a": {"type": "array", "items": [{"type": "string"}]}}, r"a\[\] must be a schema"),
        ({"a": {"$ref": "#/properties/b/type"}, "b": {"type": "string"}}, "got 'string'"),
        ({"a": {"properties": ["b"]}}, "a is an object without properties"),
    ],
)
def test_what_a_json_schema_cannot_say_in_columns_is_named(
    properties: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        columns_of({"type": "object", "properties": properties})


def test_a_json_schema_must_describe_an_object() -> None:
    with pytest.raises(InvalidOption, match="must describe an object"):
        columns_of({"type": "string"})
