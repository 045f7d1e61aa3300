"""Pages of messages: a topic by time or key, and one message with its consumers.

In lists bodies are truncated on arrival; a single body is text, JSON or hex of a bounded size.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from ogive.client import rpc
from ogive.client.admin.base import master_of
from ogive.client.admin.message_admin import FOR_EVER_MS, check_place
from ogive.console.browse import BrowseQueries, MessageFilter, by_time, troubles_by_broker
from ogive.console.cluster_pages import ClusterQueries
from ogive.console.queries import gather_answers, reason
from ogive.console.topic_pages import TopicQueries
from ogive.errors import (
    InvalidOption,
    NoRoute,
    NotSupported,
    OgiveError,
    QueryNotFound,
    ResponseCode,
    TopicNotExist,
)
from ogive.model import DLQ_PREFIX, TRACE_TOPIC, MessageExt, MessageQueue, PropertyName, dlq_topic
from ogive.text import escape_lines
from ogive.wire.trace import TraceRecord

# messages in a list
LIMIT: Final = 50
# messages that one broker is asked for by key: Apache's brokers give no more at once
KEY_LIMIT: Final = 64
# time for which the traces of a dead letter are reused: they hardly change
WHY_S: Final = 10.0
# what clients that write no error tell, such as Java's
_RESULTS: Final = {
    "timeout": "its call took longer than the consume timeout",
    "exception": "its listener raised an exception, of which its client tells no text",
    "invalid": "its listener returned nothing that is a result",
    "later": "its listener asked for another try",
}


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message in a list."""

    queue: MessageQueue
    queue_offset: int
    id: str
    stored_ms: int
    tag: str | None
    keys: tuple[str, ...]
    reconsume_times: int
    origin: str | None
    removed: str | None
    """Names of the properties that did not fit into a retry or dead letter."""
    original: str | None
    """Offset id of the original message, which has them."""
    size: int
    preview: str


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """Messages on one page of a list. *after*: where the next page begins, in the form that its
    address needs; empty on the last page. *troubles*: queues that could not be read, and the
    reasons.
    """

    rows: tuple[MessageRow, ...]
    after: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reader:
    """A group that reads the message's topic.

    *position* is None if the group has none in this queue, or its broker does not report it.
    """

    group: str
    position: int | None
    consumed: bool


class MessageQueries:
    def __init__(self, cluster: ClusterQueries, topics: TopicQueries) -> None:
        self._cluster, self._topics = cluster, topics
        self._browse = BrowseQueries(cluster, topics)

    async def newest(
        self, topic: str, limit: int = LIMIT, ends: Mapping[MessageQueue, int] | None = None
    ) -> FoundMessages:
        """Return the newest messages of a topic, the newest first. *ends*: only those before these
        offsets, in these queues. Raises TopicNotExist, NoNameServer.
        """
        found = await self._browse.page(
            topic, MessageFilter(), message_row, limit=limit, direction="older", places=ends
        )
        return FoundMessages(tuple(found.rows[::-1]), places_of(found.older), found.troubles)

    async def with_key(
        self, topic: str, key: str, before: tuple[int, MessageQueue, int] | None = None
    ) -> FoundMessages:
        """Return the newest messages with a key, by the brokers' index, the oldest first. *before*:
        only those before this time and place. Raises TopicNotExist, NoNameServer.
        """
        masters = await self._cluster.topic_masters(topic)

        async def ask(broker: str) -> list[MessageRow]:
            found = await self._cluster.queries.server(
                masters[broker],
                rpc.query_messages,
                topic,
                key,
                begin_ms=0,
                end_ms=FOR_EVER_MS if before is None else before[0],
                limit=KEY_LIMIT,
                broker_name=broker,
            )
            return [message_row(message) for message in found]

        told, troubles = await gather_answers(masters, ask)
        # an answer that is full may lack older messages
        full = {broker: rows for broker, rows in told.items() if len(rows) >= KEY_LIMIT}
        since = max((min(map(by_time, rows)) for rows in full.values()), default=None)
        rows = sorted(
            (
                row
                for found in told.values()
                for row in found
                if (key in row.keys or row.id == key)
                and (since is None or by_time(row) >= since)
                and (before is None or by_time(row) < before)
            ),
            key=by_time,
        )
        shown = rows[-LIMIT:]
        left = (
            f"a key of more than {KEY_LIMIT} messages within a second: look for the others by time"
        )
        return FoundMessages(
            tuple(shown),
            (_moment_and_place(shown[0]),) if shown and (full or len(rows) > LIMIT) else (),
            troubles_by_broker(troubles) + (() if shown or not full else (left,)),
        )

    async def dead_letters(
        self, group: str, ends: Mapping[MessageQueue, int] | None = None
    ) -> FoundMessages:
        try:
            return await self.newest(dlq_topic(group), ends=ends)
        except TopicNotExist:
            return FoundMessages(())

    async def failures(self, group: str, ids: Sequence[str]) -> tuple[dict[str, str], str | None]:
        """Return the last failure of each of these messages at *group*, as its traces tell it, and
        the reason if traces cannot be read. Messages without a trace are missing.
        """
        if TRACE_TOPIC not in await self._cluster.topics():
            return {}, None
        queries = self._cluster.queries

        async def last(message_id: str) -> str | None:
            records = await queries.once(
                ("trace", message_id),
                lambda: queries.bounded(lambda: queries.admin.trace(message_id)),
                WHY_S,
            )
            return last_failure(records, group)

        told, troubles = await gather_answers(dict.fromkeys(ids), last)
        trouble = next((f"traces: {reason(error)}" for error in troubles.values()), None)
        return {message: text for message, text in told.items() if text is not None}, trouble

    async def by_id(self, message_id: str, topic: str | None) -> MessageExt:
        """Return the message with an id. Raises QueryNotFound, NoRoute,
        NotSupported, BrokerError.
        """
        return await self._cluster.queries.admin.message(message_id, topic=topic)

    async def at(self, queue: MessageQueue, offset: int) -> MessageExt:
        """Return the message at an offset. Raises QueryNotFound, TopicNotExist, NoRoute,
        InvalidOption.
        """
        check_place(queue, offset)
        address = master_of(queue, await self._cluster.topic_masters(queue.topic))
        result = await self._cluster.queries.server(address, rpc.read_messages, queue, offset, 1)
        if not result.messages or result.messages[0].queue_offset != offset:
            held = f"it has {result.min_offset} up to, not including, {result.max_offset}"
            raise QueryNotFound(
                ResponseCode.QUERY_NOT_FOUND, f"{queue} holds no message at {offset}; {held}"
            )
        return result.messages[0]

    async def trace(self, message_id: str) -> tuple[list[TraceRecord], tuple[str, ...]]:
        """Return the traces of a message, and the reason if they could not be read."""
        try:
            return await self._cluster.queries.admin.trace(message_id), ()
        except (NoRoute, NotSupported):
            # tracing is off, or the broker has no index
            return [], ()
        except OgiveError as exc:
            return [], (f"trace: {reason(exc)}",)

    async def groups(self, queue: MessageQueue) -> tuple[Sequence[str], tuple[str, ...]]:
        """Return the groups that consume messages of the queue, and the reasons why some may be
        missing.
        """
        # no group consumes a dead-letter topic in order
        if queue.topic.startswith(DLQ_PREFIX):
            return (), ()
        groups, silent = await self._topics.groups(queue.topic)
        return groups, troubles_by_broker({}, silent)

    async def readers(
        self, queue: MessageQueue, offset: int, groups: Sequence[str]
    ) -> tuple[tuple[Reader, ...], tuple[str, ...]]:
        """Return where each of the groups is, and the reasons for those that are missing."""
        if not groups:
            return (), ()
        address = master_of(queue, await self._cluster.topic_masters(queue.topic))

        async def position(group: str) -> int | None:
            return await self._cluster.queries.server(
                address, rpc.query_consumer_offset, group, queue, zero_if_young=False
            )

        told, troubles = await gather_answers(groups, position)
        readers = tuple(
            Reader(group, at, at is not None and at > offset) for group, at in told.items()
        )
        return readers, tuple(f"{group}: {reason(error)}" for group, error in troubles.items())


def last_failure(records: Sequence[TraceRecord], group: str) -> str | None:
    """Return why the group's last call with a message failed; None if no trace tells of one."""
    ended = [
        record
        for record in records
        if record.step == "consumed"
        and record.group == group
        and (record.success is False or record.result not in (None, "success"))
    ]
    if not ended:
        return None
    last = ended[-1]
    return last.error or _RESULTS.get(last.result or "", "its listener failed")


def places_of(offsets: Mapping[MessageQueue, int]) -> tuple[str, ...]:
    return tuple(f"{queue.queue_id}/{at}/{queue.broker_name}" for queue, at in offsets.items())


def _moment_and_place(row: MessageRow) -> str:
    return f"{row.stored_ms}/{places_of({row.queue: row.queue_offset})[0]}"


def message_row(message: MessageExt) -> MessageRow:
    return MessageRow(
        queue=message.queue,
        queue_offset=message.queue_offset,
        id=message.id,
        stored_ms=message.store_timestamp_ms,
        tag=message.tag,
        keys=message.keys,
        reconsume_times=message.reconsume_times,
        origin=message.properties.get(PropertyName.RETRY_TOPIC),
        removed=message.properties.get(PropertyName.REMOVED_PROPERTIES),
        original=message.properties.get(PropertyName.ORIGIN_MESSAGE_ID),
        size=len(message.body),
        preview=preview(message.body),
    )


Form = Literal["text", "json", "hex"]

MAX_SHOWN_BYTES: Final = 64 * 1024
# indents can make a short text long
MAX_PRETTY_CHARS: Final = 4 * MAX_SHOWN_BYTES
PREVIEW_BYTES: Final = 160
_HEX_ROW: Final = 16


@dataclass(frozen=True, slots=True)
class Body:
    """A body as *form*. *cut*: not all of its *size* bytes are shown.

    *forms*: the other forms in which it can be shown.
    """

    form: Form
    shown: str
    size: int
    cut: bool
    forms: tuple[Form, ...]


def body_of(raw: bytes, wanted: str = "") -> Body:
    """Return the body in the *wanted* form, or else in the first of JSON, text, hex that fits.

    Raises InvalidOption.
    """
    if wanted and wanted not in get_args(Form):
        raise InvalidOption(
            f"a body cannot be shown as {wanted[:80]!r}: {', '.join(get_args(Form))} are the forms"
        )
    head = raw[:MAX_SHOWN_BYTES]
    texts: dict[Form, str] = {}
    pretty = _pretty(raw) if len(raw) <= MAX_SHOWN_BYTES else None
    if pretty is not None:
        texts["json"] = pretty
    text = _text(head, whole=len(head) == len(raw))
    if text is not None:
        texts["text"] = escape_lines(text)
    texts["hex"] = hex_rows(head) if wanted == "hex" or not texts else ""
    form = next((form for form in texts if form == wanted), next(iter(texts)))
    return Body(form, texts[form], len(raw), len(head) < len(raw), tuple(texts))


def preview(raw: bytes) -> str:
    """Return the beginning of the body on one line."""
    head = raw[:PREVIEW_BYTES]
    text = _text(head, whole=len(head) == len(raw))
    line = (
        head[: PREVIEW_BYTES // 3].hex(" ")
        if text is None
        else escape_lines(" ".join(text.split()))
    )
    return f"{line} …" if len(raw) > len(head) else line


def hex_rows(raw: bytes) -> str:
    """Return lines such as ``00000010  7b 22 6e ...  {"n...``."""
    rows = []
    for at in range(0, len(raw), _HEX_ROW):
        row = raw[at : at + _HEX_ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{at:08x}  {row.hex(' '):<{3 * _HEX_ROW}} {letters}")
    return "\n".join(rows)


def _text(head: bytes, *, whole: bool) -> str | None:
    """Return the text; None if it is not UTF-8. A character that was cut in two is left out."""
    try:
        return head.decode()
    except UnicodeDecodeError as exc:
        if whole or len(head) - exc.start > 3:
            return None
        return head[: exc.start].decode()


def _pretty(raw: bytes) -> str | None:
    """Return indented JSON; None for anything but an object or list."""
    if raw.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        pretty = json.dumps(json.loads(raw), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return escape_lines(pretty) if len(pretty) <= MAX_PRETTY_CHARS else None
