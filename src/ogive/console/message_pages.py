"""Pages of messages: a topic by time or key, and one message with its consumers.

In lists bodies are truncated on arrival; a single body is text, JSON or hex of a bounded size.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from ogive.client import rpc
from ogive.client.admin.base import master_of
from ogive.client.admin.message_admin import FOR_EVER_MS, check_period, check_place
from ogive.client.routes import subscribe_queues
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
from ogive.model import DLQ_PREFIX, MessageExt, MessageQueue, PropertyName, dlq_topic
from ogive.text import escape_lines
from ogive.wire.trace import TraceRecord

# messages in a list
LIMIT: Final = 50
# limit for the queues that are read for a list: those with the newest messages
MAX_QUEUES: Final = 64
PULL: Final = 32
# limit for groups whose position is queried
MAX_READERS: Final = 50


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
    """Messages of a list. *more*: there are others beyond LIMIT; *troubles*: queues that could not
    be read, and the reasons.
    """

    rows: tuple[MessageRow, ...]
    more: bool = False
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reader:
    """A group that reads the message's topic.

    *position* is None if the group has none in this queue, or its broker does not report it.
    """

    group: str
    position: int | None
    consumed: bool


@dataclass(frozen=True, slots=True)
class MessageHistory:
    """Consumers and traces of a message."""

    readers: tuple[Reader, ...]
    trace: tuple[TraceRecord, ...]
    troubles: tuple[str, ...] = ()


class MessageQueries:
    def __init__(self, cluster: ClusterQueries, topics: TopicQueries) -> None:
        self._cluster, self._topics = cluster, topics

    async def newest(self, topic: str, limit: int = LIMIT) -> FoundMessages:
        """Return the newest messages of a topic, the newest first. Raises TopicNotExist,
        NoNameServer.
        """
        masters = await self._cluster.topic_masters(topic)
        offsets, silent = await self._topics.offsets(topic)
        filled = [(queue, row) for queue, row in offsets.items() if row.max_offset > row.min_offset]
        filled.sort(key=lambda pair: -pair[1].last_update_timestamp)
        chosen = dict(filled[:MAX_QUEUES])
        each = min(limit, PULL)

        async def read(queue: MessageQueue) -> list[MessageRow]:
            end = chosen[queue].max_offset
            offset, address = max(chosen[queue].min_offset, end - each), master_of(queue, masters)
            rows: list[MessageRow] = []
            # usually one pass: a batch that is kept whole is returned whole, and may use up the
            # whole count
            while offset < end:
                result = await self._cluster.queries.server(
                    address, rpc.read_messages, queue, offset, each
                )
                rows += [_row(message) for message in result.messages]
                if result.next_offset <= offset:
                    break
                offset = result.next_offset
            return rows

        told, troubles = await gather_answers(chosen, read)
        rows = sorted((row for rows in told.values() for row in rows), key=_by_time, reverse=True)
        held = sum(row.max_offset - row.min_offset for row in offsets.values())
        return FoundMessages(tuple(rows[:limit]), held > limit, _troubles(troubles, silent))

    async def between(self, topic: str, begin_ms: int | None, end_ms: int | None) -> FoundMessages:
        """Return messages that were stored between two times, the oldest first. Raises
        TopicNotExist, NoNameServer, InvalidOption.
        """
        queries, begin, end = (
            self._cluster.queries,
            begin_ms or 0,
            FOR_EVER_MS if end_ms is None else end_ms,
        )
        check_period(begin, end)
        route, masters = await self._cluster.route(topic), await self._cluster.topic_masters(topic)
        queues = subscribe_queues(topic, route)

        async def read(queue: MessageQueue) -> list[MessageRow]:
            address = master_of(queue, masters)
            offset = await queries.server(address, rpc.search_offset, queue, begin)
            rows: list[MessageRow] = []
            # one more than is shown tells whether there are others
            while len(rows) <= LIMIT:
                result = await queries.server(address, rpc.read_messages, queue, offset, PULL)
                rows += [
                    _row(message)
                    for message in result.messages
                    if begin <= message.store_timestamp_ms < end
                ]
                past = bool(result.messages) and result.messages[-1].store_timestamp_ms >= end
                if past or result.next_offset <= offset or result.next_offset >= result.max_offset:
                    break
                offset = result.next_offset
            return rows

        told, troubles = await gather_answers(queues[:MAX_QUEUES], read)
        left = (
            (f"only {MAX_QUEUES} of {len(queues)} queues were read",)
            if len(queues) > MAX_QUEUES
            else ()
        )
        rows = sorted((row for rows in told.values() for row in rows), key=_by_time)
        return FoundMessages(tuple(rows[:LIMIT]), len(rows) > LIMIT, _troubles(troubles) + left)

    async def with_key(self, topic: str, key: str) -> FoundMessages:
        """Return messages with a key, by the brokers' index. Raises TopicNotExist, NoNameServer."""
        masters = await self._cluster.topic_masters(topic)

        async def ask(broker: str) -> list[MessageRow]:
            found = await self._cluster.queries.server(
                masters[broker],
                rpc.query_messages,
                topic,
                key,
                begin_ms=0,
                end_ms=FOR_EVER_MS,
                limit=LIMIT + 1,
                broker_name=broker,
            )
            return [_row(message) for message in found if key in message.keys or message.id == key]

        told, troubles = await gather_answers(masters, ask)
        rows = sorted((row for rows in told.values() for row in rows), key=_by_time)
        return FoundMessages(tuple(rows[:LIMIT]), len(rows) > LIMIT, _troubles(troubles))

    async def dead_letters(self, group: str) -> FoundMessages:
        try:
            return await self.newest(dlq_topic(group))
        except TopicNotExist:
            return FoundMessages(())

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

    async def life(self, message: MessageExt) -> MessageHistory:
        readers, troubles = await self._readers(message.queue, message.queue_offset)
        try:
            trace = await self._cluster.queries.admin.trace(message.id)
        except (NoRoute, NotSupported):
            # tracing is off, or the broker has no index
            trace = []
        except OgiveError as exc:
            trace = []
            troubles += (f"trace: {reason(exc)}",)
        return MessageHistory(readers, tuple(trace[:LIMIT]), troubles)

    async def _readers(
        self, queue: MessageQueue, offset: int
    ) -> tuple[tuple[Reader, ...], tuple[str, ...]]:
        if queue.topic.startswith(DLQ_PREFIX):
            # no group consumes a dead-letter topic in order
            return (), ()
        address = master_of(queue, await self._cluster.topic_masters(queue.topic))
        groups = (await self._topics.groups(queue.topic))[:MAX_READERS]

        async def position(group: str) -> int | None:
            return await self._cluster.queries.server(
                address, rpc.query_consumer_offset, group, queue, zero_if_young=False
            )

        told, troubles = await gather_answers(groups, position)
        readers = tuple(
            Reader(group, at, at is not None and at > offset) for group, at in told.items()
        )
        return readers, tuple(f"{group}: {reason(error)}" for group, error in troubles.items())


def _row(message: MessageExt) -> MessageRow:
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


def _by_time(row: MessageRow) -> tuple[int, MessageQueue, int]:
    return row.stored_ms, row.queue, row.queue_offset


def _troubles(
    by_place: Mapping[MessageQueue, OgiveError] | Mapping[str, OgiveError],
    silent: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Return one line per broker, as an unreachable one may have many queues."""
    found = dict(silent or {})
    for place, error in by_place.items():
        found[place.broker_name if isinstance(place, MessageQueue) else place] = reason(error)
    return tuple(f"{broker}: {text}" for broker, text in sorted(found.items()))


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
