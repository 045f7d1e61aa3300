"""JSON bodies as columns: a schema from a dataclass, and the handling of bodies that do not match
it.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ogive.errors import InvalidOption

_SIMPLE: Final[dict[Any, DataType]] = {
    str: StringType(),
    int: LongType(),
    float: DoubleType(),
    bool: BooleanType(),
    Decimal: DecimalType(38, 18),
    date: DateType(),
    datetime: TimestampType(),
}
_BROKEN: Final = "_broken"

OnError = Literal["dead-letter", "null", "fail"]


def json_schema(kind: type) -> StructType:
    """Return the columns of a dataclass.

    Fields may be str, int, float, bool, Decimal, date, datetime, lists, dicts with text keys,
    dataclasses, and any of these or None. Raises InvalidOption for another.
    """
    if not dataclasses.is_dataclass(kind):
        raise InvalidOption(f"{kind!r} is not a dataclass")
    hints = typing.get_type_hints(kind)
    return StructType(
        [_column(kind, field.name, hints[field.name]) for field in dataclasses.fields(kind)]
    )


def _column(owner: type, name: str, hint: Any) -> StructField:
    choices = (
        typing.get_args(hint)
        if typing.get_origin(hint) in (typing.Union, types.UnionType)
        else (hint,)
    )
    rest = [choice for choice in choices if choice is not type(None)]
    if len(rest) != 1:
        raise InvalidOption(f"field {name} of {owner.__name__} is {hint}: a column has one type")
    return StructField(name, _type(owner, name, rest[0]), nullable=len(rest) < len(choices))


def _type(owner: type, name: str, hint: Any) -> DataType:
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return json_schema(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        element = _column(owner, name, arguments[0])
        return ArrayType(element.dataType, element.nullable)
    if origin is dict and arguments[0] is str:
        value = _column(owner, name, arguments[1])
        return MapType(StringType(), value.dataType, value.nullable)
    raise InvalidOption(
        f"field {name} of {owner.__name__} is {hint}, which JSON columns do not have"
    )


def parse_json(
    messages: DataFrame, schema: type | StructType, *, on_error: OnError = "dead-letter"
) -> tuple[DataFrame, DataFrame]:
    """Parse bodies into a struct column ``value``.

    Returns (good, bad): the messages whose body matches *schema*, and the others.

    A body matches if it is a JSON object whose fields have the right types, and has all fields, at
    any depth, that may not be None. With "dead-letter" *bad* has the columns of the sink (body,
    keys, tags, properties with reason and origin), ready to be written to a topic. With "null"
    *good* has all rows, the bad ones with a null value. With "fail" a bad row ends the query.
    """
    wanted = json_schema(schema) if isinstance(schema, type) else schema
    loose = StructType(
        [
            *(StructField(field.name, field.dataType) for field in wanted),
            StructField(_BROKEN, StringType()),
        ]
    )
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN}
    text = f.col("body").cast("string")
    parsed = messages.withColumn("value", f.from_json(text, loose, options))
    value = f.col("value")
    reason = f.when(
        f.col("body").isNull() | value.isNull() | value[_BROKEN].isNotNull(),
        f.lit("the body is not JSON of the schema"),
    )
    for path, missing in _gaps(wanted):
        reason = reason.when(missing(value), f.lit(f"{path.removeprefix('.')} is missing"))
    judged = parsed.withColumn("_reason", reason)
    whole = f.when(
        f.col("_reason").isNull(), f.struct(*(value[name].alias(name) for name in wanted.names))
    )
    if on_error == "fail":
        place = f.concat_ws(
            "/", f.lit("body"), *(f.col(name).cast("string") for name in _present(messages))
        )
        checked = f.when(f.col("_reason").isNull(), whole).otherwise(
            f.raise_error(f.concat(f.lit("bad "), place, f.lit(": "), "_reason"))
        )
        good = judged.withColumn("value", checked)
    else:
        good = judged.withColumn("value", whole)
        good = good if on_error == "null" else good.where(f.col("_reason").isNull())
    return good.drop("_reason"), _letters(judged.where(f.col("_reason").isNotNull()))


def _gaps(
    kind: DataType, nullable: bool = True
) -> Iterator[tuple[str, Callable[[Column], Column]]]:
    """Yield the required parts of a value of *kind*: their path, and a test for each."""
    if not nullable:
        yield "", lambda value: value.isNull()
    if isinstance(kind, StructType):
        for field in kind:
            for path, missing in _gaps(field.dataType, field.nullable):
                yield f".{field.name}{path}", _in_field(field.name, missing)
    elif isinstance(kind, ArrayType):
        for path, missing in _gaps(kind.elementType, kind.containsNull):
            yield f"[]{path}", _in_elements(missing)
    elif isinstance(kind, MapType):
        for path, missing in _gaps(kind.valueType, kind.valueContainsNull):
            yield f"[]{path}", _in_values(missing)


def _in_field(name: str, missing: Callable[[Column], Column]) -> Callable[[Column], Column]:
    return lambda value: value.isNotNull() & missing(value[name])


def _in_elements(missing: Callable[[Column], Column]) -> Callable[[Column], Column]:
    return lambda value: f.exists(value, missing)


def _in_values(missing: Callable[[Column], Column]) -> Callable[[Column], Column]:
    return lambda value: f.exists(f.map_values(value), missing)


def _present(messages: DataFrame) -> list[str]:
    return [
        name
        for name in ("topic", "brokerName", "queueId", "queueOffset")
        if name in messages.columns
    ]


def _letters(bad: DataFrame) -> DataFrame:
    """Return bad messages as rows for the sink. Their properties include the reason and the
    origin.
    """
    marks = [f.lit("reason"), f.col("_reason")]
    for name in _present(bad):
        marks += [f.lit(f"from_{name}"), f.col(name).cast("string")]
    note = f.create_map(*marks)
    if "properties" in bad.columns:
        own = f.map_filter(
            f.coalesce("properties", f.create_map().cast("map<string,string>")),
            lambda name, _: ~name.isin(*_names(bad)),
        )
        note = f.map_concat(own, note)
    columns = [name for name in ("body", "keys", "tags") if name in bad.columns]
    return bad.select(*columns, note.alias("properties"))


def _names(bad: DataFrame) -> list[str]:
    """Return the names of our properties, which a letter that failed before already has."""
    return ["reason", *(f"from_{name}" for name in _present(bad))]
