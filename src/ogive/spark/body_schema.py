"""Columns for the bodies of messages, from a dataclass or a JSON Schema."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

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

Schema = type | Mapping[str, Any] | StructType
"""A dataclass, a JSON Schema, or columns."""


def columns_of(schema: Schema) -> StructType:
    """Return the columns of *schema*.

    Fields of a dataclass may be str, int, float, bool, Decimal, date, datetime, lists, dicts with
    text keys, dataclasses, and any of these or None. Of JSON Schema, types, formats of dates,
    ``required`` and local references are used; a value has one type, or that type and null.
    Raises InvalidOption for anything else.
    """
    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, Mapping):
        kind, _ = _JsonSchema(schema).column("the schema", schema, ())
        if not isinstance(kind, StructType):
            raise InvalidOption("the JSON Schema must describe an object with properties")
        return kind
    return _of_dataclass(schema, ())


# --- dataclasses ----------------------------------------------------------------------------------

_SIMPLE: Final[dict[Any, DataType]] = {
    str: StringType(),
    int: LongType(),
    float: DoubleType(),
    bool: BooleanType(),
    Decimal: DecimalType(38, 18),
    date: DateType(),
    datetime: TimestampType(),
}


def _of_dataclass(kind: Any, within: tuple[type, ...]) -> StructType:
    """Return the columns of *kind*; *within* are the dataclasses that lead here."""
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise InvalidOption(f"{kind!r} is not a dataclass")
    if kind in within:
        raise InvalidOption(f"{kind.__name__} has itself inside, and columns have a fixed depth")
    try:
        hints = typing.get_type_hints(kind)
    except NameError as exc:
        raise InvalidOption(f"a type of {kind.__name__} cannot be resolved: {exc}") from None
    path = (*within, kind)
    return StructType(
        [_column(path, field.name, hints[field.name]) for field in dataclasses.fields(kind)]
    )


def _column(path: tuple[type, ...], name: str, hint: Any) -> StructField:
    """Return the column of a field of the last dataclass of *path*."""
    choices = (
        typing.get_args(hint)
        if typing.get_origin(hint) in (typing.Union, types.UnionType)
        else (hint,)
    )
    rest = [choice for choice in choices if choice is not type(None)]
    if len(rest) != 1:
        raise InvalidOption(f"field {name} of {path[-1].__name__} is {hint}: a column has one type")
    return StructField(name, _type(path, name, rest[0]), nullable=len(rest) < len(choices))


def _type(path: tuple[type, ...], name: str, hint: Any) -> DataType:
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _of_dataclass(hint, path)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list and arguments:
        element = _column(path, name, arguments[0])
        return ArrayType(element.dataType, element.nullable)
    if origin is dict and arguments[:1] == (str,):
        value = _column(path, name, arguments[1])
        return MapType(StringType(), value.dataType, value.nullable)
    raise InvalidOption(
        f"field {name} of {path[-1].__name__} is {hint}, which JSON columns do not have"
    )


# --- JSON Schema ----------------------------------------------------------------------------------

_BY_NAME: Final[dict[str, DataType]] = {
    "string": StringType(),
    "integer": LongType(),
    "number": DoubleType(),
    "boolean": BooleanType(),
}
_BY_FORMAT: Final[dict[str, DataType]] = {"date": DateType(), "date-time": TimestampType()}


class _JsonSchema:
    """A document of JSON Schema, and the references in it."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def column(self, path: str, part: Any, within: tuple[str, ...]) -> tuple[DataType, bool]:
        """Return the type of *part*, and True if it may be null.

        *within* are the references that lead here: a type that has itself inside is refused.
        """
        if not isinstance(part, Mapping):
            raise InvalidOption(f"{path} must be a schema with a type, got {part!r}")
        if reference := part.get("$ref"):
            if reference in within:
                raise InvalidOption(f"{path} refers to itself, and columns have a fixed depth")
            return self.column(path, self._find(path, reference), (*within, reference))
        choices = [
            one
            for group in ("anyOf", "oneOf")
            for one in part.get(group, ())
            if not (isinstance(one, Mapping) and one.get("type") == "null")
        ]
        if choices:
            if len(choices) > 1:
                raise InvalidOption(f"{path} has several types, and a column has one")
            listed = [*part.get("anyOf", ()), *part.get("oneOf", ())]
            kind, nullable = self.column(path, choices[0], within)
            return kind, nullable or len(listed) > len(choices)
        names = part.get("type", "object" if "properties" in part else None)
        names = [names] if isinstance(names, str) else list(names or ())
        rest = [name for name in names if name != "null"]
        if len(rest) != 1:
            raise InvalidOption(f"{path} must have one type, got {names or 'none'}")
        return self._type(path, rest[0], part, within), len(rest) < len(names)

    def _type(
        self, path: str, name: str, part: Mapping[str, Any], within: tuple[str, ...]
    ) -> DataType:
        if name == "array":
            element, nullable = self.column(f"{path}[]", part.get("items", {}), within)
            return ArrayType(element, nullable)
        if name == "object" and isinstance(part.get("properties"), Mapping):
            required = part.get("required", ())
            fields = []
            for field, inner in part["properties"].items():
                kind, nullable = self.column(f"{path}.{field}", inner, within)
                fields.append(StructField(field, kind, nullable or field not in required))
            return StructType(fields)
        if name == "object":
            values = part.get("additionalProperties")
            if not isinstance(values, Mapping):
                raise InvalidOption(f"{path} is an object without properties: name them")
            kind, nullable = self.column(f"{path}[]", values, within)
            return MapType(StringType(), kind, nullable)
        if name not in _BY_NAME:
            raise InvalidOption(f"{path} has the type {name}, which JSON does not have")
        if name == "string":
            return _BY_FORMAT.get(part.get("format", ""), _BY_NAME[name])
        return _BY_NAME[name]

    def _find(self, path: str, reference: str) -> Any:
        found: Any = self._document
        try:
            if not reference.startswith("#/"):
                raise KeyError(reference)
            for step in reference[2:].split("/"):
                found = found[step.replace("~1", "/").replace("~0", "~")]
        except (KeyError, TypeError):
            raise InvalidOption(
                f"{path} refers to {reference}, which is not in the document"
            ) from None
        return found
