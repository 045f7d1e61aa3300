"""Codec for all headers, by the declarations of their dataclasses.

A field's name on the wire is its Python name in camelCase, unless metadata says otherwise; a field
with a default is optional.
"""

import dataclasses
import threading
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, TypeVar, dataclass_transform

from ogive.errors import ProtocolError
from ogive.wire.command import parse_bool, parse_int, parse_long

H = TypeVar("H", bound="Header")

Int32 = Annotated[int, 32]
"""An Integer in Java's header. An ``int`` field here is a Long there."""


def wire(name: str, **options: Any) -> Any:
    """Declare a field whose name on the wire does not follow from its Python name."""
    return field(metadata={"wire": name}, **options)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(wire,))
class Header:
    """Base of all headers; *code* is set on requests only.

    A subclass is a frozen dataclass with keyword-only fields. It becomes one when its first header
    is created: that takes half a millisecond, there are over a hundred classes, and a process needs
    few of them.
    """

    code: ClassVar[int]

    def __init_subclass__(cls) -> None:
        if Header not in cls.__bases__ and cls.__annotations__:
            raise TypeError(
                f"{cls.__name__}: a header that derives from another has its constructor, and so "
                "no fields of its own"
            )

    def __init__(self, **values: Any) -> None:
        """Make the class a dataclass, and call its new constructor."""
        _made(type(self))
        self.__init__(**values)  # type: ignore[misc]  # the class's own, from here on


# a class must not become a dataclass twice: the second time its fields have lost their metadata
_making: Final = threading.Lock()


def _made(cls: type[H]) -> type[H]:
    """Return *cls*, after making the class that declares its fields a dataclass."""
    declaring = next(base for base in cls.__mro__ if Header in base.__bases__)
    with _making:
        if "__dataclass_fields__" not in vars(declaring):
            dataclass(frozen=True, kw_only=True)(declaring)
    return cls


@dataclass(frozen=True, slots=True)
class WireField:
    """A field for the codec: *kind* is int, Int32, bool or str."""

    name: str
    wire: str
    kind: Any
    required: bool


def camel(name: str) -> str:
    """Return the camelCase form of a Python name."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


_declared: dict[type[Header], tuple[WireField, ...]] = {}


def fields_of(cls: type[Header]) -> tuple[WireField, ...]:
    """Return the fields of a header class, in the order of their declaration."""
    known = _declared.get(cls)
    if known is not None:
        return known
    hints = typing.get_type_hints(cls, include_extras=True)
    found: list[WireField] = []
    for f in dataclasses.fields(_made(cls)):  # type: ignore[arg-type]  # it is a dataclass now
        kind = hints[f.name]
        if typing.get_origin(kind) in (types.UnionType, typing.Union):
            kind = next(part for part in typing.get_args(kind) if part is not type(None))
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        found.append(WireField(f.name, f.metadata.get("wire") or camel(f.name), kind, required))
    return _declared.setdefault(cls, tuple(found))


def encode_header(header: Header) -> dict[str, str]:
    """Return the text of each field that is not None, as Java's toString writes it."""
    out: dict[str, str] = {}
    for f in fields_of(type(header)):
        value = getattr(header, f.name)
        if value is None:
            continue
        out[f.wire] = (
            value
            if f.kind is str
            else ("true" if value else "false")
            if f.kind is bool
            else str(value)
        )
    return out


def decode_header(cls: type[H], ext: Mapping[str, str]) -> H:
    """Return the header in *ext*.

    Raises ProtocolError, which names a field that is missing or is not a number.
    """
    values: dict[str, Any] = {}
    for f in fields_of(cls):
        text = ext.get(f.wire)
        if text is not None:
            values[f.name] = text if f.kind is str else _PARSE[f.kind](f, text)
        elif f.required:
            raise ProtocolError(f"{cls.__name__}: field {f.wire} is missing")
    return cls(**values)


def _number(parse: Callable[[str], int]) -> Callable[[WireField, str], int]:
    def read(f: WireField, text: str) -> int:
        try:
            return parse(text)
        except ValueError as exc:
            raise ProtocolError(f"field {f.wire}: {exc}") from None

    return read


def _parse_bool(_: WireField, text: str) -> bool:
    return parse_bool(text)


_PARSE: Final[dict[Any, Callable[[WireField, str], Any]]] = {
    int: _number(parse_long),
    Int32: _number(parse_int),
    bool: _parse_bool,
}
