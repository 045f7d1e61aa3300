"""Numbers and booleans in text: in properties and headers, and as names in tables."""

from typing import Final

# longer numbers fit into no record
_DIGITS: Final = 9
_LONG_DIGITS: Final = 19
_INT_BITS: Final = 31
_LONG_BITS: Final = 63


def whole_number(text: str) -> int | None:
    """Return the queue id, delay level or count in *text*, or None if it is not a number."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None


def parse_long(text: str) -> int:
    """Return the number in *text* as Java's Long.parseLong reads it.

    That is an optional sign and decimal digits, also with leading zeros and of other scripts;
    unlike int(), it accepts neither blanks nor underscores. Raises ValueError if Java throws
    NumberFormatException.
    """
    if text.isascii() and text.isdecimal() and len(text) < _LONG_DIGITS:
        return int(text)
    return _parse(text, _LONG_BITS)


def parse_int(text: str) -> int:
    """Return the number in *text* as Java's Integer.parseInt reads it. Raises as parse_long()."""
    if text.isascii() and text.isdecimal() and len(text) <= _DIGITS:
        return int(text)
    return _parse(text, _INT_BITS)


def parse_bool(text: str) -> bool:
    """Return True for *true* in any case, as Java's Boolean.parseBoolean does, and for 1, which the
    C++ client writes.
    """
    return text.lower() == "true" or text == "1"


def _parse(text: str, bits: int) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    # Java reads UTF-16 units: a digit above U+FFFF is two of them, and neither is a digit.
    if not digits.isdecimal() or max(digits) > "\uffff":
        raise ValueError(f"not a number: {text[:40]!r}")
    significant = digits.lstrip("0")
    value = int(significant or "0") if len(significant) <= _LONG_DIGITS else 1 << _LONG_BITS
    value = -value if text[0] == "-" else value
    if not -(1 << bits) <= value < 1 << bits:
        raise ValueError(f"not a number of {bits + 1} bits: {text[:40]!r}")
    return value
