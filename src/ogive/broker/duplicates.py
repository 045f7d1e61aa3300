"""Messages that are sent twice are stored once: by option, by unique key and topic, inside a window of time.

Behaviour
- A second send inside the window is answered SEND_OK with the place of the first, once that is safe; when the first fails, so does the
  second. In a batch only what is new is stored.
- Only messages that go straight to their topic count: not those with a delay, a time or a transaction, and none for a retry topic. A key
  must be the client's own (UNIQ_KEY).
- At most max_keys are remembered; when more come inside the window, the oldest are forgotten early.
- Keys live in memory. For what was stored before a start the index of keys on disk is asked, until the window has passed.

Java's broker has nothing like it.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from ogive.errors import OgiveError, StoreError
from ogive.store.model import NewMessage, PutDone, PutResult
from ogive.store.record import store_timestamp
from ogive.wire.message import decode_stored, raw_property

log = logging.getLogger(__name__)

Key = tuple[str, bytes]
"""topic, unique key"""


class Placed(NamedTuple):
    queue_id: int
    result: PutResult


Answer = Callable[[int, list[PutResult] | StoreError], None]
"""Called once: the queue of the first message, and where each message is, or why nothing was stored."""
Find = Callable[[str, str, int, int], Iterator[object]]
"""(topic, key, from, to) to the records that are on disk, among other things"""


@dataclass(slots=True, eq=False)
class _First:
    """The first message with a key. *placed* is None while it is on its way."""

    at_ms: int
    placed: Placed | None = None
    waiters: list[Callable[[Placed | StoreError], None]] = field(default_factory=list)


class Duplicates:
    """Owner: the event loop."""

    def __init__(self, window_s: float, max_keys: int, now_ms: Callable[[], int], find: Find) -> None:
        self._window_ms, self._max_keys, self._now_ms, self._find = round(window_s * 1000), max_keys, now_ms, find
        self._started_ms = now_ms()
        self._firsts: OrderedDict[Key, _First] = OrderedDict()
        self._warned = False

    def __len__(self) -> int:
        return len(self._firsts)

    def put(self, put: Callable[[Sequence[NewMessage], PutDone], None], messages: Sequence[NewMessage], answer: Answer) -> None:
        """Store by *put* what is new among *messages*, and answer for all of them. Raises what *put* raises, with nothing remembered."""
        now = self._now_ms()
        self._expire(now)
        sends = _Sends(len(messages), answer)
        fresh: list[NewMessage] = []
        firsts: list[_First] = []
        keys: list[Key | None] = []
        for at, message in enumerate(messages):
            unique_key = raw_property(message.properties, b"UNIQ_KEY")
            key = (message.topic, unique_key) if unique_key else None
            first = self._known(key, now) if key is not None else None
            if first is None:
                first = _First(now)
                fresh.append(message)
                firsts.append(first)
                keys.append(key)
                if key is not None:
                    self._firsts[key] = first
            if first.placed is None:
                first.waiters.append(partial(sends.resolved, at))
            else:
                sends.resolved(at, first.placed)
        if fresh:
            try:
                put(fresh, partial(self._stored, fresh, firsts, keys))
            except OgiveError:
                self._forget(keys)
                sends.refused()
                raise

    def _known(self, key: Key, now: int) -> _First | None:
        first = self._firsts.get(key)
        if first is not None or now - self._started_ms >= self._window_ms:
            return first
        placed = self._on_disk(key, now)
        if placed is None:
            return None
        first = self._firsts[key] = _First(now, placed)
        return first

    def _on_disk(self, key: Key, now: int) -> Placed | None:
        topic, unique_key = key
        try:
            text = unique_key.decode()
        except UnicodeDecodeError:
            return None
        for record in self._find(topic, text, now - self._window_ms, self._started_ms):
            if isinstance(record, bytes):
                stored = decode_stored(record)
                if raw_property(stored.properties, b"UNIQ_KEY") == unique_key:
                    return Placed(
                        stored.queue_id, PutResult(stored.queue_offset, stored.commitlog_offset, len(record), store_timestamp(record))
                    )
        return None

    def _stored(
        self, fresh: Sequence[NewMessage], firsts: Sequence[_First], keys: Sequence[Key | None], result: list[PutResult] | StoreError
    ) -> None:
        if isinstance(result, StoreError):
            self._forget(keys)
            outcomes: list[Placed | StoreError] = [result] * len(firsts)
        else:
            outcomes = [Placed(message.queue_id, one) for message, one in zip(fresh, result, strict=True)]
        for first, outcome in zip(firsts, outcomes, strict=True):
            first.placed = outcome if isinstance(outcome, Placed) else None
            waiters, first.waiters = first.waiters, []
            for waiter in waiters:
                waiter(outcome)

    def _forget(self, keys: Sequence[Key | None]) -> None:
        for key in keys:
            if key is not None:
                self._firsts.pop(key, None)

    def _expire(self, now: int) -> None:
        oldest_ms = now - self._window_ms
        while self._firsts:
            key, first = next(iter(self._firsts.items()))
            over = len(self._firsts) > self._max_keys
            if first.placed is None or (first.at_ms >= oldest_ms and not over):
                return
            if over and first.at_ms >= oldest_ms and not self._warned:
                self._warned = True
                log.warning("more than %d keys inside the window of duplicates: the oldest are forgotten early", self._max_keys)
            del self._firsts[key]


class _Sends:
    """The messages of one request; the answer leaves when each has its place."""

    def __init__(self, count: int, answer: Answer) -> None:
        self._placed: list[Placed | None] = [None] * count
        self._left, self._answer = count, answer

    def refused(self) -> None:
        """Whoever asked hears of it elsewhere: nothing is answered here, also not for what was on its way before."""
        self._left = 0

    def resolved(self, at: int, outcome: Placed | StoreError) -> None:
        if self._left == 0:
            return  # has failed, or was refused
        if isinstance(outcome, StoreError):
            self._left = 0
            self._answer(0, outcome)
            return
        self._placed[at] = outcome
        self._left -= 1
        if self._left == 0:
            placed = [one for one in self._placed if one is not None]
            self._answer(placed[0].queue_id, [one.result for one in placed])
