"""Fields of forms and addresses, read strictly: an invalid one is answered with the reason."""

from datetime import UTC, datetime

from ogive.errors import InvalidExpression, InvalidOption
from ogive.sql92.expression import Expression, compile_expression


def whole_number(name: str, text: str) -> int:
    """Return the number in the field *name*. Raises InvalidOption."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        raise InvalidOption(f"{name} {text[:80]!r} is not a whole number")
    return int(text)


def moment(text: str) -> datetime | None:
    """Return a time, None for an empty field; without a zone it is UTC, as all times of the
    console.

    Raises InvalidOption.
    """
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidOption(f"{text[:80]!r} is not a time such as 2026-11-01T08:00") from None


def moment_ms(text: str) -> int | None:
    """Return a time in milliseconds, see ``moment``."""
    at = moment(text)
    return None if at is None else int(at.timestamp() * 1000)


def sql_filter(text: str) -> Expression | None:
    """Return the SQL92 filter, None for an empty field. Raises InvalidOption."""
    if not text:
        return None
    try:
        return compile_expression(text)
    except InvalidExpression as exc:
        raise InvalidOption(f"SQL92: {exc}") from None
