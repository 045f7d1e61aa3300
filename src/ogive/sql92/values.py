"""Java's values: what its classes read from a string, and how they compare across types.

Source: ComparisonExpression.__compare, Integer.valueOf, Double.valueOf and Double.compareTo.
"""

import enum
import math
import re
from collections.abc import Callable
from typing import Any, Final

from ogive.sql92.expression import EvaluationError


class Type(enum.Enum):
    """The type of an operand that is not null."""

    STRING = enum.auto()
    INTEGER = enum.auto()
    LONG = enum.auto()
    DOUBLE = enum.auto()
    BOOLEAN = enum.auto()


MAX_INT: Final = 0x7FFFFFFF
MAX_LONG: Final = 0x7FFFFFFFFFFFFFFF

Comparison = Callable[[Any, Any], int]
"""Two values that are not null to a number below, at or above zero. Raises EvaluationError."""

_INTEGER: Final = re.compile(r"[+-]?\d+")
_DECIMAL: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
)
_HEXADECIMAL: Final = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)
_BLANKS: Final = "".join(map(chr, range(33)))
# what int() reads at once; Java has no number with more that is not null in front
_MAX_DIGITS: Final = 4000


def _parse_integer(text: str, limit: int) -> int:
    if _INTEGER.fullmatch(text) is None or (not text.isascii() and max(text) > "\uffff"):
        raise EvaluationError(f"{text[:40]!r} is not an integer")
    digits = text.lstrip("+-")
    if len(digits) > _MAX_DIGITS:
        digits = digits.lstrip("0")[:_MAX_DIGITS] or "0"
    value = -int(digits) if text[0] == "-" else int(digits)
    if not ~limit <= value <= limit:
        raise EvaluationError(f"{text[:40]!r} has more than {limit.bit_length() + 1} bits")
    return value


def parse_int(text: str) -> int:
    return _parse_integer(text, MAX_INT)


def parse_long(text: str) -> int:
    return _parse_integer(text, MAX_LONG)


def parse_double(text: str) -> float:
    word = text.strip(_BLANKS)
    if _DECIMAL.fullmatch(word) is not None:
        return float(word if word[-1] in "Ny" else word.rstrip("fFdD"))
    found = _HEXADECIMAL.fullmatch(word)
    if found is None:
        raise EvaluationError(f"{text[:40]!r} is not a number")
    try:
        return float.fromhex(found[1])
    except OverflowError:
        return -math.inf if word[0] == "-" else math.inf


def parse_boolean(text: str) -> bool:
    return text.lower() == "true"


def compare_doubles(left: float, right: float) -> int:
    """Compare as Java does: NaN equals itself and is above all else, and -0.0 is below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return 0 if left else int(math.copysign(1, left) - math.copysign(1, right))
    return int(math.isnan(left)) - int(math.isnan(right))


def _compare(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _unequal(_left: Any, _right: Any) -> int:
    """Return Java's result for two types that it cannot convert to each other."""
    return -1


def _boolean_with_text(_left: bool, right: str) -> int:
    # Java casts the wrong side, and throws
    raise EvaluationError(f"TRUE and FALSE stand on the right of a property: {right[:40]!r}")


def compare_as_doubles(left: str, right: str) -> int:
    """Compare two strings with <, <=, > or >=."""
    return compare_doubles(parse_double(left), parse_double(right))


_PARSE: Final[dict[Type, Callable[[str], Any]]] = {
    Type.INTEGER: parse_int,
    Type.LONG: parse_long,
    Type.DOUBLE: parse_double,
    Type.BOOLEAN: parse_boolean,
}
_NUMBERS: Final = (Type.INTEGER, Type.LONG, Type.DOUBLE)


def comparison(left: Type, right: Type) -> Comparison:
    """Return the comparison of values of these types; two strings compare as strings."""
    if left is Type.BOOLEAN and right is Type.STRING:
        return _boolean_with_text
    if left is right:
        return compare_doubles if left is Type.DOUBLE else _compare
    if left is Type.STRING:
        parse, inner = _PARSE[right], compare_doubles if right is Type.DOUBLE else _compare
        return lambda text, value: inner(parse(text), value)
    if right is Type.STRING:
        parse, inner = _PARSE[left], compare_doubles if left is Type.DOUBLE else _compare
        return lambda value, text: inner(value, parse(text))
    if left in _NUMBERS and right in _NUMBERS:
        return (
            (lambda one, two: compare_doubles(float(one), float(two)))
            if Type.DOUBLE in (left, right)
            else _compare
        )
    return _unequal
