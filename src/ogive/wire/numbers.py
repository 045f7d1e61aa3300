"""Numbers that came as text: in properties, and as names in tables."""

from typing import Final

_DIGITS: Final = 9  # more fit no record


def whole_number(text: str) -> int | None:
    """The queue id, delay level or count that *text* is; None where it is none."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None
