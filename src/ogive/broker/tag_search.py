"""The messages of a topic that have a tag, for QUERY_MESSAGE (12) with indexType=T.

Differs from Java: 5.5 keeps tags in the index of keys; here the consume queues are read, whose
entries hold each message's tag as a hash. So what a broker of 4.9 stored is found as well, and a
topic with very many messages in the asked time takes longer.
"""

import heapq
from collections.abc import Iterator
from functools import partial
from typing import Final

from ogive.model import PropertyName
from ogive.store.disk import Cold, in_memory
from ogive.store.store import MessageStore
from ogive.wire.message import decode_stored, java_hash, raw_property

# entries between two stops
CHUNK: Final = 512
_LATEST_MS: Final = 1 << 62


def find_tag(
    store: MessageStore, topic: str, tag: str, begin_ms: int, end_ms: int
) -> Iterator[bytes | Cold | None]:
    """The visible records of *topic* with *tag*, stored from *begin_ms* to *end_ms*, newest first.

    Yields as find_key() does.
    """
    wanted = tag.encode("utf-8", "replace")
    queues = [
        _newest_first(store, key, java_hash(tag), begin_ms, end_ms)
        for key in store.queues
        if key[0] == topic
    ]
    # commit-log offset, negative, and which of the queues it is the newest of
    heads: list[tuple[int, int]] = []
    waiting = list(range(len(queues)))
    while True:
        for index in waiting:
            found = None
            for found in queues[index]:
                if isinstance(found, int):
                    heapq.heappush(heads, (-found, index))
                    break
                yield found
        if not heads:
            return
        offset, index = heapq.heappop(heads)
        record = yield from in_memory(partial(store.record_at, -offset))
        if record is not None:
            stored = decode_stored(record)
            if (
                raw_property(stored.properties, PropertyName.TAGS.encode()) == wanted
                and begin_ms <= stored.store_timestamp_ms <= end_ms
            ):
                yield record
        waiting = [index]


def _newest_first(
    store: MessageStore, key: tuple[str, int], code: int, begin_ms: int, end_ms: int
) -> Iterator[int | Cold | None]:
    """Commit-log offsets of the entries with that code."""
    first = yield from in_memory(partial(store.offset_by_time, *key, begin_ms))
    end = yield from in_memory(partial(store.offset_by_time, *key, min(end_ms, _LATEST_MS) + 1))
    while end > first:
        start = max(first, end - CHUNK)
        entries = yield from in_memory(partial(store.entries, *key, start, end - start))
        yield from (
            entry.commitlog_offset for entry in reversed(entries) if entry.tags_code == code
        )
        yield None
        end = start
