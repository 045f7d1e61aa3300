"""Numbers, booleans and delay levels in text: in properties, headers, settings and tables."""

import re
from dataclasses import dataclass
from typing import Final, Self

from ogive.errors import InvalidOption
from ogive.model import MAX_DELAY_S

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


DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_DELAY: Final = re.compile(r"[0-9]{1,20}[smhd]")
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """messageDelayLevel: level n (from 1) waits delays_ms[n - 1] in queue n - 1 of
    SCHEDULE_TOPIC_XXXX.
    """

    delays_ms: tuple[int, ...]

    @classmethod
    def parse(cls, text: str = DEFAULT_DELAY_LEVELS) -> Self:
        """Parse a table of delays. Raises InvalidOption for a bad entry: a broker must not start
        with half a table, or with a delay whose end no clock can represent.
        """
        words = text.split()
        for word in words:
            if not _DELAY.fullmatch(word):
                raise InvalidOption(
                    f"delay levels {text[:200]!r}: a list of numbers with a unit is expected, for "
                    "example '1s 5s 2m 1h 1d'"
                )
        delays = tuple(int(word[:-1]) * _UNIT_MS[word[-1]] for word in words)
        if not delays:
            raise InvalidOption(
                "delay levels are empty: must be at least one, for example '1s 5s 2m 1h 1d'"
            )
        if max(delays) > MAX_DELAY_S * 1000:
            word = words[delays.index(max(delays))]
            raise InvalidOption(
                f"delay level {word[:40]} is too long: must be at most "
                f"{MAX_DELAY_S // 86_400}d (40 years)"
            )
        return cls(delays)

    def clamp(self, level: int) -> int:
        """*level*, or the last one of the table if it is higher."""
        return min(level, len(self.delays_ms))

    def delay_ms(self, level: int) -> int:
        """Return the delay of *level*. Raises InvalidOption for a level below 1."""
        if level < 1:
            raise InvalidOption(f"delay level {level} is below 1")
        return self.delays_ms[self.clamp(level) - 1]
