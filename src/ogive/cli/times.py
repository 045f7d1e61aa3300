"""Times on the command line."""

from datetime import UTC, datetime

from ogive.errors import InvalidOption


def instant(
    option: str, text: str, expected: str = "a time such as 2026-11-01T08:00 is expected"
) -> datetime:
    """A time; one without a zone is local. Raises InvalidOption."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidOption(f"{option} {text}: {expected}") from None
