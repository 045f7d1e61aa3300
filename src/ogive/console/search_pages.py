"""Page that finds messages in a topic, and the download of what it finds as JSON lines."""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from starlette.requests import Request
from starlette.responses import Response

from ogive.client.admin.records import message_record
from ogive.console.browse import BrowseQueries, Direction, FoundPage, MessageFilter, P
from ogive.console.failures import status_of
from ogive.console.forms import (
    before_in,
    moment,
    moment_ms,
    places_in,
    sql_filter,
    whole_number,
)
from ogive.console.message_pages import LIMIT, MessageQueries, message_row, places_of
from ogive.console.queries import reason
from ogive.errors import InvalidOption, OgiveError
from ogive.model import MessageExt, MessageQueue
from ogive.text import escape_json

# messages and bytes of a download, and the messages that are read for it
DOWNLOAD_ROWS: Final = 1_000
DOWNLOAD_BYTES: Final = 8 * 1024 * 1024
DOWNLOAD_SCAN: Final = 20_000
# downloads at once: each is held in memory
DOWNLOADS: Final = 2
_FIELDS: Final = ("id", "topic", "from", "to", "queue", "offset", "tag", "sql", "text", "live")


@dataclass(frozen=True, slots=True)
class _Line:
    """A message in a download."""

    stored_ms: int
    queue: MessageQueue
    queue_offset: int
    text: bytes


class SearchPages:
    """Views. *command* returns a command line for this cluster, *path* the address of a page."""

    def __init__(
        self,
        messages: MessageQueries,
        browse: BrowseQueries,
        command: Callable[..., str],
        path: Callable[..., str],
    ) -> None:
        self._messages, self._browse, self._command = messages, browse, command
        self._path = path
        self._turns = asyncio.Semaphore(DOWNLOADS)

    async def page(self, request: Request) -> dict[str, Any]:
        given = _given(request)
        values: dict[str, Any] = {
            "given": given,
            "found": None,
            "trouble": None,
            "live": bool(given["live"]),
            "oldest_first": _oldest_first(given),
            "tail": None,
        }
        if not given["topic"]:
            return values
        try:
            if given["key"]:
                found = await self._messages.with_key(
                    given["topic"], given["key"], before_in(request, given["topic"])
                )
                rows, newer, scanned = found.rows, "", 0
                older = self._address(given, at=found.after) if found.after else ""
                troubles = found.troubles
            else:
                page = await self._find(request, given, message_row, LIMIT)
                rows = tuple(page.rows if _oldest_first(given) else page.rows[::-1])
                older, newer = (
                    self._address(given, at=places_of(places), go=go) if places else ""
                    for places, go in ((page.older, "older"), (page.newer, "newer"))
                )
                scanned, troubles = page.scanned, page.troubles
            values["found"] = {
                "rows": rows,
                "older": older,
                "newer": newer,
                "scanned": scanned,
                "troubles": troubles,
                "download": "" if given["key"] else self._download(request),
                "first": self._address(given | {"live": ""}),
                "live": ""
                if given["key"] or _oldest_first(given)
                else self._address(given, live="1"),
            }
            values["tail"] = self._command(*_tail(given))
        except OgiveError as exc:
            # shown beside the form, so that the input can be corrected
            values |= {"trouble": reason(exc), "status": status_of(exc)[0]}
        return values

    async def download(self, request: Request) -> Response:
        """Answer with the messages from the page's place on, as JSON lines."""
        given, held = _given(request), 0
        if not given["topic"] or given["key"]:
            raise InvalidOption("a download needs a topic, and no key")

        def line(message: MessageExt) -> _Line:
            nonlocal held
            record = json.dumps(message_record(message), ensure_ascii=False)
            text = f"{escape_json(record)}\n".encode("utf-8", "replace")
            held += len(text)
            return _Line(message.store_timestamp_ms, message.queue, message.queue_offset, text)

        async with self._turns:
            found = await self._find(
                *(request, given, line, DOWNLOAD_ROWS),
                scan=DOWNLOAD_SCAN,
                is_full=lambda: held >= DOWNLOAD_BYTES,
            )
        oldest_first = _oldest_first(given)
        rest = found.newer if oldest_first else found.older
        whole = not rest and not found.troubles
        lines = [row.text for row in (found.rows if oldest_first else found.rows[::-1])]
        name = "messages.jsonl" if whole else "messages-incomplete.jsonl"
        return Response(
            b"".join(lines),
            media_type="application/x-ndjson",
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )

    async def _find(
        self,
        request: Request,
        given: dict[str, str],
        make: Callable[[MessageExt], P],
        limit: int,
        **options: Any,
    ) -> FoundPage[P]:
        go = request.query_params.get("go") or ("newer" if _oldest_first(given) else "older")
        if go not in get_args(Direction):
            raise InvalidOption(f"{go[:80]!r}: a page is older or newer")
        wanted = MessageFilter(
            queue_id=whole_number("queue", given["queue"]) if given["queue"] else None,
            offset=whole_number("offset", given["offset"]) if given["offset"] else None,
            begin_ms=moment_ms(given["from"]),
            end_ms=moment_ms(given["to"]),
            tag=given["tag"],
            where=sql_filter(given["sql"]),
            text=given["text"],
        )
        return await self._browse.page(
            given["topic"],
            wanted,
            make,
            limit=limit,
            direction=cast("Direction", go),
            places=places_in(request, given["topic"]),
            **options,
        )

    def _address(self, given: dict[str, str], **more: object) -> str:
        return self._path("messages", **{**given, **more})

    def _download(self, request: Request) -> str:
        query = request.url.query
        return f"{self._path('messages.jsonl')}?{query}" if query else ""


def _given(request: Request) -> dict[str, str]:
    given = {name: request.query_params.get(name, "").strip() for name in _FIELDS}
    # white space may be part of a text, and other than U+0020 of a key
    given["text"] = request.query_params.get("text", "")
    given["key"] = request.query_params.get("key", "").strip(" ")
    return given


def _oldest_first(given: dict[str, str]) -> bool:
    return any(given[name] for name in ("from", "to", "offset", "key"))


def _tail(given: dict[str, str]) -> list[str]:
    """Return the command that shows the same messages."""
    words = ["tail", given["topic"]]
    for option, text in (
        ("--since", given["from"] and f"{moment(given['from']):%Y-%m-%dT%H:%M:%SZ}"),
        ("--until", given["to"] and f"{moment(given['to']):%Y-%m-%dT%H:%M:%SZ}"),
        ("--queue", given["queue"]),
        ("--tag", given["tag"]),
        ("--sql", given["sql"]),
        ("--grep", re.escape(given["text"])),
    ):
        if text:
            words += [f"{option}={text}"] if text.startswith("-") else [option, text]
    return words if given["live"] or not _oldest_first(given) else [*words, "--no-follow"]
