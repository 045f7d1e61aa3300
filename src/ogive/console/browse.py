"""Messages of a topic by queue, offset, time, tag, SQL92 and text, in pages both ways.

A page is a range of offsets in each queue, so that neighbours neither share messages nor leave some
out. A page reads a bounded number of messages; if too few match, it is short, and the next one goes
on where it stopped.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, Protocol, TypeVar

from ogive.client import rpc
from ogive.client.admin.base import master_of
from ogive.client.admin.message_admin import FOR_EVER_MS, check_period
from ogive.console.cluster_pages import ClusterQueries
from ogive.console.queries import Queries, gather_answers, reason
from ogive.console.topic_pages import TopicQueries
from ogive.errors import InvalidOption, OgiveError
from ogive.model import MessageExt, MessageQueue, check_offset, parse_tags
from ogive.sql92.expression import Expression
from ogive.wire.bodies.stats import TopicOffset

# limit for the queues that are read for a page: those with the newest messages
MAX_QUEUES: Final = 64
PULL: Final = 32
# messages that are read for a page
SCAN: Final = 4_000

Direction = Literal["older", "newer"]


class Placed(Protocol):
    """Row made of a message, with the message's time and place."""

    @property
    def stored_ms(self) -> int: ...
    @property
    def queue(self) -> MessageQueue: ...
    @property
    def queue_offset(self) -> int: ...


P = TypeVar("P", bound=Placed)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """Conditions for messages. *offset*: only those from it on; it needs *queue_id*."""

    queue_id: int | None = None
    offset: int | None = None
    begin_ms: int | None = None
    end_ms: int | None = None
    tag: str = ""
    where: Expression | None = None
    text: str = ""
    tags: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        if self.offset is not None:
            if self.queue_id is None:
                raise InvalidOption("an offset needs the number of a queue")
            check_offset(self.offset)
        check_period(self.begin_ms or 0, FOR_EVER_MS if self.end_ms is None else self.end_ms)
        object.__setattr__(self, "tags", parse_tags(self.tag) if self.tag else ())

    def matches(self, message: MessageExt) -> bool:
        return (
            (self.begin_ms or 0)
            <= message.store_timestamp_ms
            < (FOR_EVER_MS if self.end_ms is None else self.end_ms)
            and (not self.tags or message.tag in self.tags)
            and (self.where is None or self.where.matches(message.properties))
            and (not self.text or self.text.encode() in message.body)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPage(Generic[P]):
    """One page, the oldest message first. *older* and *newer*: where its neighbours end and begin;
    empty if there is none. *scanned*: the number of messages that were read.
    """

    rows: list[P]
    older: Mapping[MessageQueue, int]
    newer: Mapping[MessageQueue, int]
    scanned: int
    troubles: tuple[str, ...]


@dataclass(slots=True)
class _Range(Generic[P]):
    """Matching messages of one queue between two offsets, the oldest first."""

    start: int
    end: int
    rows: list[P] = field(default_factory=list)
    scanned: int = 0


@dataclass(frozen=True, slots=True)
class _QueueReader(Generic[P]):
    """Reads one queue for a page: at most *limit* matches, and about *share* messages."""

    queries: Queries
    address: str
    queue: MessageQueue
    wanted: MessageFilter
    make: Callable[[MessageExt], P]
    limit: int
    share: int
    is_full: Callable[[], bool]

    async def bounds(self, held: TopicOffset) -> tuple[int, int]:
        """Return the offsets between which messages may match."""

        async def search(at_ms: int) -> int:
            # a broker's answer for a time after its last message depends on its release
            if at_ms > held.last_update_timestamp:
                return held.max_offset
            return await self.queries.server(self.address, rpc.search_offset, self.queue, at_ms)

        wanted, low, high = self.wanted, held.min_offset, held.max_offset
        if wanted.begin_ms:
            low = max(low, await search(wanted.begin_ms))
        if wanted.end_ms is not None:
            high = min(high, await search(wanted.end_ms))
        if wanted.offset is not None:
            low = max(low, wanted.offset)
        return low, max(low, high)

    async def forward(self, start: int, high: int) -> _Range[P]:
        found = _Range[P](start, start)
        while found.end < high and self._wants_more(found):
            await self._extend(found, high)
        return found

    async def backward(self, low: int, end: int) -> _Range[P]:
        found = _Range[P](end, end)
        while found.start > low and self._wants_more(found):
            first = max(low, found.start - PULL)
            piece = _Range[P](first, first)
            # an answer may end early, by its size
            while piece.end < found.start:
                await self._extend(piece, found.start)
            found.rows[:0] = piece.rows
            found.scanned += piece.scanned
            found.start = first
        return found

    def _wants_more(self, found: _Range[P]) -> bool:
        return len(found.rows) < self.limit and found.scanned < self.share and not self.is_full()

    async def _extend(self, found: _Range[P], high: int) -> None:
        """Read the next messages of a range, those before *high*."""
        result = await self.queries.server(
            self.address, rpc.read_messages, self.queue, found.end, min(PULL, high - found.end)
        )
        # a batch that is kept whole is returned whole
        messages = [row for row in result.messages if found.end <= row.queue_offset < high]
        found.rows += [self.make(row) for row in messages if self.wanted.matches(row)]
        found.scanned += len(messages)
        # without progress there is nothing there, such as after a deletion meanwhile
        found.end = min(high, result.next_offset) if result.next_offset > found.end else high


class BrowseQueries:
    def __init__(self, cluster: ClusterQueries, topics: TopicQueries) -> None:
        self._cluster, self._topics = cluster, topics

    async def page(
        self,
        topic: str,
        wanted: MessageFilter,
        make: Callable[[MessageExt], P],
        *,
        limit: int,
        direction: Direction,
        places: Mapping[MessageQueue, int] | None = None,
        scan: int = SCAN,
        is_full: Callable[[], bool] = lambda: False,
    ) -> FoundPage[P]:
        """Return the next *limit* messages from *places* on, or the last ones before them, by the
        *direction*; without *places*, those at that end of the topic.

        About *scan* messages are read at most, and hardly any once *is_full* returns True.

        Raises TopicNotExist, NoNameServer, InvalidOption.
        """
        masters = await self._cluster.topic_masters(topic)
        offsets, silent = await self._topics.offsets(topic)
        known = sorted({queue.queue_id for queue in offsets})
        if wanted.queue_id is not None and known and wanted.queue_id not in known:
            raise InvalidOption(
                f"queue {wanted.queue_id}: {topic} has the queues {known[0]} to {known[-1]}"
            )
        filled = [
            queue
            for queue, held in offsets.items()
            if held.max_offset > held.min_offset and wanted.queue_id in (None, queue.queue_id)
        ]
        filled.sort(key=lambda queue: -offsets[queue].last_update_timestamp)
        chosen = [q for q in filled if places is None or q in places][:MAX_QUEUES]
        share = max(PULL, scan // max(1, len(chosen)))

        async def read(queue: MessageQueue) -> tuple[_Range[P], int, int]:
            reader = _QueueReader(
                *(self._cluster.queries, master_of(queue, masters), queue, wanted, make),
                *(limit, share, is_full),
            )
            low, high = await reader.bounds(offsets[queue])
            if direction == "newer":
                start = low if places is None else min(max(low, places[queue]), high)
                return await reader.forward(start, high), low, high
            end = high if places is None else max(low, min(places[queue], high))
            return await reader.backward(low, end), low, high

        told, troubles = await gather_answers(chosen, read)
        ranges = {queue: found for queue, (found, _, _) in told.items()}
        every = sorted((row for found in ranges.values() for row in found.rows), key=by_time)
        rows = every[:limit] if direction == "newer" else every[-limit:]
        _shrink(ranges, rows, direction)
        older = {queue: found.start for queue, found in ranges.items()}
        newer = {queue: found.end for queue, found in ranges.items()}
        left = len(filled) > MAX_QUEUES
        return FoundPage(
            rows=rows,
            older=older if any(older[queue] > low for queue, (_, low, _) in told.items()) else {},
            newer=newer if any(newer[queue] < high for queue, (_, _, high) in told.items()) else {},
            scanned=sum(found.scanned for found in ranges.values()),
            troubles=troubles_by_broker(troubles, silent)
            + ((f"only {len(chosen)} of {len(filled)} queues were read",) if left else ()),
        )


def by_time(row: Placed) -> tuple[int, MessageQueue, int]:
    return row.stored_ms, row.queue, row.queue_offset


def _shrink(
    ranges: Mapping[MessageQueue, _Range[P]], shown: Sequence[P], direction: Direction
) -> None:
    """Leave the messages that are not *shown* to the next page."""
    kept = set(map(id, shown))
    for found in ranges.values():
        left = [row.queue_offset for row in found.rows if id(row) not in kept]
        if left and direction == "newer":
            found.end = min(left)
        elif left:
            found.start = max(left) + 1


def troubles_by_broker(
    by_place: Mapping[MessageQueue, OgiveError] | Mapping[str, OgiveError],
    silent: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Return one line per broker, as an unreachable one may have many queues."""
    found = dict(silent or {})
    for place, error in by_place.items():
        found[place.broker_name if isinstance(place, MessageQueue) else place] = reason(error)
    return tuple(f"{broker}: {text}" for broker, text in sorted(found.items()))
