"""Fields of forms and addresses, read strictly: an invalid one is answered with the reason."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request

from ogive.client.admin.message_admin import check_place
from ogive.console.browse import MAX_QUEUES
from ogive.errors import InvalidExpression, InvalidOption
from ogive.model import MessageQueue, check_offset
from ogive.sql92.expression import Expression, compile_expression

# rows on a page of a list
ROWS: Final = 50
# rows on a page of a list of queues
QUEUE_ROWS: Final = 512


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


def place_of(text: str, topic: str) -> tuple[MessageQueue, int]:
    """Read ``queue/offset/broker``. Raises InvalidOption."""
    number, _, rest = text.partition("/")
    offset, _, broker = rest.partition("/")
    queue = MessageQueue(topic, broker, whole_number("queue", number))
    at = whole_number("offset", offset)
    check_place(queue, at)
    if not broker:
        raise InvalidOption(f"place {text[:80]!r}: queue/offset/broker is expected")
    return queue, at


def places_in(request: Request, topic: str) -> dict[MessageQueue, int] | None:
    """Return where a page of messages begins in each queue; None for the first page.

    Raises InvalidOption.
    """
    texts = request.query_params.getlist("at")
    if len(texts) > MAX_QUEUES:
        raise InvalidOption(f"{len(texts)} places: a page reads at most {MAX_QUEUES} queues")
    return dict(place_of(text, topic) for text in texts) or None


def before_in(request: Request, topic: str) -> tuple[int, MessageQueue, int] | None:
    """Return the time and place before which a page of messages with a key ends.

    Raises InvalidOption.
    """
    text = request.query_params.get("at", "")
    if not text:
        return None
    moment, _, place = text.partition("/")
    queue, offset = place_of(place, topic)
    check_offset(whole_number("time", moment))
    return int(moment), queue, offset


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list: the rows from *start* up to, not including, *end*; the addresses of its
    neighbours.
    """

    number: int
    last: int
    start: int
    end: int
    previous: str
    next: str


def page_of(request: Request, count: int, field: str = "page", *, rows: int = ROWS) -> Page:
    """Return the requested page of a list, or the last one if the number is too high.

    Raises InvalidOption.
    """
    last = max(1, -(-count // rows))
    number = min(whole_number(field, request.query_params.get(field, "1")), last)
    if number < 1:
        raise InvalidOption(f"{field} {number}: the first page is 1")
    others = [(name, value) for name, value in request.query_params.multi_items() if name != field]

    def address(neighbour: int) -> str:
        return f"?{urlencode([*others, (field, neighbour)], errors='replace')}"

    start = (number - 1) * rows
    return Page(
        number, last, start, min(start + rows, count), address(number - 1), address(number + 1)
    )
