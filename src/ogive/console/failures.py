"""HTTP statuses of errors, and the titles of their pages."""

from typing import Final

from ogive.errors import (
    BrokerError,
    ConsumerNotOnline,
    GroupNotExist,
    InvalidOption,
    NoPermission,
    NoRoute,
    OgiveError,
    QueryNotFound,
    ResponseCode,
    TopicNotExist,
)


class UnknownToken(InvalidOption):
    """A confirmation that was used, is too old, or was never given to this person."""


_STATUS: Final[tuple[tuple[tuple[type[OgiveError], ...], int, str], ...]] = (
    ((UnknownToken,), 409, "Nothing was done"),
    ((InvalidOption,), 400, "That cannot be looked up"),
    ((NoRoute, TopicNotExist, GroupNotExist, QueryNotFound, ConsumerNotOnline), 404, "Not found"),
    ((NoPermission,), 403, "Not permitted"),
)


def status_of(error: OgiveError) -> tuple[int, str]:
    """Return the HTTP status for *error*, and the title of its page."""
    for kinds, status, title in _STATUS:
        if isinstance(error, kinds):
            return status, title
    if isinstance(error, BrokerError):
        invalid = error.code == ResponseCode.INVALID_PARAMETER
        return (
            (400, "That cannot be looked up")
            if invalid
            else (502, "The broker answered with an error")
        )
    return 502, "The cluster does not answer"
