"""Columns from dataclasses."""

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

import pytest

from ogive.errors import InvalidOption

pytest.importorskip("pyspark")

from ogive.spark.parse import json_schema


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


def test_a_dataclass_becomes_columns() -> None:
    schema = json_schema(Order)
    assert schema.simpleString() == (
        "struct<number:bigint,price:decimal(38,18),at:timestamp,lines:array<struct<item:string,"
        "count:bigint>>,notes:map<string,string>>"
    )
    assert [one.nullable for one in schema] == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("kind", "message"),
    [(int, "not a dataclass"), (Odd, "field either of Odd"), (Odder, "field items of Odder")],
)
def test_what_has_no_column_is_named(kind: type, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        json_schema(kind)
