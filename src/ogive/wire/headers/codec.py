"""One codec for all headers: it reads their declarations.

A field's name on the wire is its Python name in camelCase, unless metadata says otherwise; a field with a default is optional.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from ogive.errors import ProtocolError

H = TypeVar("H", bound="Header")


class Header:
    """Base of all headers; *code* is set on requests only."""

    __slots__ = ()
    code: ClassVar[int]


def wire(name: str, **options: Any) -> Any:
    """A field whose name on the wire does not follow from its Python name."""
    return field(metadata={"wire": name}, **options)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    wire: str
    kind: type
    required: bool


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


_declared: dict[type[Header], tuple[_Field, ...]] = {}


def _fields(cls: type[Header]) -> tuple[_Field, ...]:
    known = _declared.get(cls)
    if known is not None:
        return known
    hints = typing.get_type_hints(cls)
    found: list[_Field] = []
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]  # every header is a dataclass
        kind = hints[f.name]
        if isinstance(kind, types.UnionType):
            kind = next(part for part in typing.get_args(kind) if part is not type(None))
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        found.append(_Field(f.name, f.metadata.get("wire") or _camel(f.name), kind, required))
    return _declared.setdefault(cls, tuple(found))


def encode_header(header: Header) -> dict[str, str]:
    """The extension fields: text for every field that is not None, as Java's toString writes it."""
    out: dict[str, str] = {}
    for f in _fields(type(header)):
        value = getattr(header, f.name)
        if value is None:
            continue
        out[f.wire] = value if f.kind is str else ("true" if value else "false") if f.kind is bool else str(value)
    return out


def decode_header(cls: type[H], ext: Mapping[str, str]) -> H:
    """The header in *ext*. Raises ProtocolError that names the field which is missing or no number."""
    values: dict[str, Any] = {}
    for f in _fields(cls):
        text = ext.get(f.wire)
        if text is not None:
            values[f.name] = text if f.kind is str else _PARSE[f.kind](f, text)
        elif f.required:
            raise ProtocolError(f"{cls.__name__}: field {f.wire} is missing")
    return cls(**values)


def _parse_int(f: _Field, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ProtocolError(f"field {f.wire} is no integer: {text[:40]!r}") from None
    if not -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
        raise ProtocolError(f"field {f.wire} is outside 64 bits: {text[:40]!r}")
    return value


def _parse_bool(_: _Field, text: str) -> bool:
    """Boolean.parseBoolean; the C++ client writes 1 and 0."""
    return text.lower() == "true" or text == "1"


_PARSE: dict[type, Callable[[_Field, str], Any]] = {int: _parse_int, bool: _parse_bool}
