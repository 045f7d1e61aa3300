"""Conversion of values to message bodies and back: JSON for dataclasses, pydantic models and
msgspec structs, or any function.

Neither library is imported unless a class of it is given. A dataclass is read without help: its
annotations may hold what ``_READERS`` names, other dataclasses, enums, Literal, unions, list,
tuple[X, ...], set, frozenset and dict[str, X]. Members that it does not know are ignored: senders
may be newer.
"""

import contextlib
import dataclasses
import enum
import functools
import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, TypeVar
from uuid import UUID

from ogive.errors import BodyUnreadable, InvalidOption

T = TypeVar("T")
Read = Callable[[Any], Any]
"""From what ``json.loads`` gave to a value.

Raises ValueError or TypeError that says what is wrong.
"""

As = type[T] | Callable[[bytes], T]
"""A class that bodies are read as, or a function that reads them."""


def to_json(value: Any) -> bytes:
    """Return *value* as compact JSON: a dataclass, pydantic model, msgspec struct, or what
    ``json.dumps`` takes.

    Sets become lists, sorted if their elements can be compared. Raises TypeError for a type without
    a form in JSON, ValueError for NaN and infinity, which JSON does not have. A Decimal is written
    as text, which may be ``"NaN"``. Models of pydantic and structs of msgspec are written by their
    library, which writes ``null`` for NaN.
    """
    if hasattr(value, "model_dump_json"):
        text: str = value.model_dump_json()
        return text.encode()
    if hasattr(value, "__struct_fields__"):
        import msgspec

        raw: bytes = msgspec.json.encode(value)
        return raw
    try:
        return json.dumps(
            value, separators=(",", ":"), ensure_ascii=False, default=_plain, allow_nan=False
        ).encode()
    except UnicodeEncodeError as exc:
        raise ValueError(f"text that is not Unicode has no form in JSON: {exc.reason}") from None
    except ValueError as exc:
        way_out = ": replace NaN and infinity by None or a text" if "float" in str(exc) else ""
        raise ValueError(f"a {type(value).__name__} has no form in JSON: {exc}{way_out}") from None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, set | frozenset):
        return _sorted(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "__struct_fields__"):
        import msgspec

        return msgspec.to_builtins(value)
    text = f"a {type(value).__name__} has no form in JSON"
    if isinstance(value, bytes | bytearray | memoryview):
        text += (
            ": a body that is bytes already goes as ogive.Message(topic, body), which no "
            "serializer changes"
        )
    raise TypeError(text)


def _sorted(values: set[Any] | frozenset[Any]) -> list[Any]:
    """Return the elements in an order that does not differ between processes, as hashes do."""
    kinds = set(map(type, values))
    if kinds <= {int, float} or kinds == {str}:
        return sorted(values)
    # Sets are compared as well, by what they contain: that alone is no order.
    by_text = sorted(values, key=to_json)
    try:
        return sorted(by_text)
    except (TypeError, ArithmeticError):
        return by_text


def reader(as_: As[T]) -> Callable[[bytes], T]:
    """Return the function that reads bodies as *as_*, and raises BodyUnreadable.

    Raises InvalidOption for an unsupported *as_*.
    """
    name, read = getattr(as_, "__qualname__", repr(as_)), _reader(as_)

    def read_body(body: bytes) -> T:
        try:
            value: T = read(body)
        except Exception as exc:
            # the user's function or class: whatever it raises, the body is what it cannot read
            raise BodyUnreadable(
                f"a body of {len(body)} bytes cannot be read as {name}: {type(exc).__name__}: {exc}"
            ) from exc
        return value

    return read_body


def _reader(as_: Any) -> Callable[[bytes], Any]:
    if as_ is bytes:
        return lambda body: body
    if as_ is str:
        return bytes.decode
    if hasattr(as_, "model_validate_json"):
        validate: Callable[[bytes], Any] = as_.model_validate_json
        return validate
    if hasattr(as_, "__struct_fields__"):
        import msgspec

        return functools.partial(msgspec.json.decode, type=as_)
    if (
        dataclasses.is_dataclass(as_)
        or as_ in _READERS
        or as_ in (list, dict)
        or typing.get_origin(as_) is not None
    ):
        read = _json_reader(as_, {})
        return lambda body: read(json.loads(body, parse_constant=_refuse))
    if callable(as_) and not isinstance(as_, type):
        function: Callable[[bytes], Any] = as_
        return function
    raise InvalidOption(
        f"as_ is {as_!r}: must be a dataclass, a pydantic model, a msgspec struct, str, a type of "
        "JSON, or a function of the body"
    )


# --- dataclasses ----------------------------------------------------------------------------------


def _exactly(*kinds: type) -> Read:
    names = " or ".join(kind.__name__ for kind in kinds)

    def read(value: Any) -> Any:
        if type(value) not in kinds:
            raise TypeError(f"{names} is expected, and {value!r} came")
        return value

    return read


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _number(value: Any) -> float:
    number = float(_exactly(float, int)(value))
    if not math.isfinite(number):
        raise ValueError("a number beyond the range of float came")
    return number


def _decimal(value: Any) -> Decimal:
    return Decimal(str(_exactly(str, int, float)(value)))


_READERS: Final[Mapping[Any, Read]] = {
    bool: _exactly(bool),
    int: _exactly(int),
    float: _number,
    str: _exactly(str),
    type(None): _exactly(type(None)),
    None: _exactly(type(None)),
    datetime: lambda value: datetime.fromisoformat(_exactly(str)(value)),
    date: lambda value: date.fromisoformat(_exactly(str)(value)),
    Decimal: _decimal,
    UUID: lambda value: UUID(_exactly(str)(value)),
    Any: lambda value: value,
    list: _exactly(list),
    dict: _exactly(dict),
}


def _json_reader(kind: Any, known: dict[type, Read]) -> Read:
    """Return the function that reads JSON as *kind*. *known*: dataclasses that are being read.

    Raises InvalidOption for an annotation that it does not know.
    """
    if kind in _READERS or kind in known:
        return _READERS.get(kind) or known[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_reader(kind, known)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _member_of(kind)
    if hasattr(kind, "model_validate"):
        validate: Read = kind.model_validate
        return validate
    if hasattr(kind, "__struct_fields__"):
        import msgspec

        return functools.partial(msgspec.convert, type=kind)
    if origin is typing.Literal:
        return _one_of(arguments)
    if origin in (typing.Union, types.UnionType):
        return _first_of([_json_reader(argument, known) for argument in arguments])
    if origin is dict and arguments[0] is str:
        item = _json_reader(arguments[1], known)
        return lambda value: {key: item(one) for key, one in _exactly(dict)(value).items()}
    if origin in (list, set, frozenset) or (
        origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis
    ):
        item, collection = _json_reader(arguments[0], known), origin
        return lambda value: collection(item(one) for one in _exactly(list)(value))
    raise InvalidOption(
        f"bodies cannot be read as {kind!r}: use a pydantic model, a msgspec struct, or a function "
        "of your own"
    )


def _one_of(values: tuple[Any, ...]) -> Read:
    by_json = {to_json(value): value for value in values}

    def read(value: Any) -> Any:
        text = to_json(value)
        if text not in by_json:
            raise ValueError(
                f"one of {', '.join(map(repr, values))} is expected, and {value!r} came"
            )
        return by_json[text]

    return read


def _member_of(kind: type[enum.Enum]) -> Read:
    """Read members by the values that to_json() writes for them, else as the class itself looks
    them up.
    """
    by_json: dict[bytes, enum.Enum] = {}
    for member in kind:
        with contextlib.suppress(TypeError, ValueError):
            by_json[to_json(member)] = member

    def read(value: Any) -> Any:
        member = by_json.get(to_json(value))
        return kind(value) if member is None else member

    return read


def _first_of(readers: list[Read]) -> Read:
    def read(value: Any) -> Any:
        failures = []
        for one in readers:
            try:
                return one(value)
            except (TypeError, ValueError) as exc:
                failures.append(str(exc))
        raise ValueError("; ".join(dict.fromkeys(failures)))

    return read


def _dataclass_reader(kind: type, known: dict[type, Read]) -> Read:
    readers: dict[str, Read] = {}

    def read(value: Any) -> Any:
        members, found = _exactly(dict)(value), {}
        for name, one in readers.items():
            if name in members:
                try:
                    found[name] = one(members[name])
                except (TypeError, ValueError) as exc:
                    raise ValueError(f"{name}: {exc}") from None
        return kind(**found)

    # before its fields: it may hold itself
    known[kind] = read
    try:
        hints = typing.get_type_hints(kind)
    except NameError as exc:
        raise InvalidOption(
            f"an annotation of {kind.__qualname__} cannot be looked up: {exc}"
        ) from None
    for field in dataclasses.fields(kind):
        if field.init:
            try:
                readers[field.name] = _json_reader(hints[field.name], known)
            except InvalidOption as exc:
                raise InvalidOption(f"{kind.__qualname__}.{field.name}: {exc}") from None
    return read


def takes_message(function: Callable[..., Any]) -> bool:
    """Return True if a listener takes the message beside the value: it has a second positional
    parameter.
    """
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in places for one in inspect.signature(function).parameters.values()) > 1
