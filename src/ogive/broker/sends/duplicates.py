"""Window of duplicates, an option: a message that is sent twice within a time is stored once.

Behaviour
- A second send within the window is answered SEND_OK with the place of the first, once that is
  safe; if the first fails, so does the second. In a batch only new messages are stored.
- A message is a duplicate if topic, unique key, body checksum and producer are the same. The
  producer is the user with access control, and the IP address without it. So a client that guesses
  another's next keys cannot prevent that its messages are stored.
- Messages stored before the start are compared by the IP address in any case: records have no
  users.
- This applies only to messages that are stored in their topic at once, not to delayed or
  transactional ones, nor to those for a retry topic. The key must be the client's own (UNIQ_KEY).
- At most max_keys are kept; if more arrive within the window, the oldest are dropped early.
- Keys are in memory. For messages stored before the start, the index of keys on disk is searched
  until the window has passed: in the order of the sends, and without blocking the event loop. The
  search checks the newest MAX_LOOKED_AT messages with the key: if there are more, which only
  repeated keys have, a message may be stored again.

Java's broker has nothing similar.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from ogive.broker.off_loop_reads import MAX_TRIES
from ogive.broker.replies import refusal
from ogive.errors import OgiveError, StoreBusy, StoreError
from ogive.store.file_reader import Cold
from ogive.store.record import store_timestamp
from ogive.store.types import NewMessage, PutDone, PutResult, bytes_of
from ogive.wire.checksum import crc32
from ogive.wire.message import StoredMessage, decode_stored, raw_property

log = logging.getLogger(__name__)

Key = tuple[str, bytes, str | bytes, int]
"""Topic, unique key, producer (its user, or its IP address as bytes) and body checksum."""

_LONG_KEY: Final = 128  # bytes
# of sends that wait for the disk after a start, as many as the store lets wait for itself
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
MAX_LOOKED_AT: Final = 64
"""Limit of records with the same key, for one send. Any client can store more, and all other sends
wait.
"""


class FirstPlace(NamedTuple):
    queue_id: int
    result: PutResult


StoreNew = Callable[[Sequence[NewMessage], PutDone], None]
"""Stores messages that are not in the window yet."""
OnPlaced = Callable[[int, list[PutResult] | OgiveError], None]
"""Called once: with the queue of the first message and the place of each, or the reason why nothing
was stored.
"""


class KeySearch(Protocol):
    """The part of MessageStore that finds messages stored before."""

    def now_ms(self) -> int: ...
    def find_key(
        self, topic: str, key: str, begin_ms: int, end_ms: int
    ) -> Iterator[bytes | Cold | None]: ...
    def without_waiting(self) -> AbstractContextManager[None]: ...


@dataclass(slots=True, eq=False)
class _First:
    """The first message with a key. *placed* is None until it is stored."""

    at_ms: int
    placed: FirstPlace | None = None
    waiters: list[Callable[[FirstPlace | StoreError], None]] = field(default_factory=list)


class Duplicates:
    """Owner: the event loop."""

    def __init__(
        self,
        window_s: float,
        max_keys: int,
        store: KeySearch,
        bring_in: Callable[[Cold], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        """*bring_in* reads from disk, *spawn* starts a task that is awaited at the end."""
        self._window_ms, self._max_keys, self._store = round(window_s * 1000), max_keys, store
        self._bring_in, self._spawn = bring_in, spawn
        self._started_ms = store.now_ms()
        self._firsts: OrderedDict[Key, _First] = OrderedDict()
        # Sends that wait for a look at the disk. Later ones must not pass them.
        self._held: deque[tuple[StoreNew, Sequence[NewMessage], OnPlaced, str | None]] = deque()
        self._held_bytes = 0
        self._working = False
        self._warned = False

    def __len__(self) -> int:
        return len(self._firsts)

    def put(
        self,
        put: StoreNew,
        messages: Sequence[NewMessage],
        answer: OnPlaced,
        user: str | None = None,
    ) -> None:
        """Store the new ones of *messages* with *put*, and call *answer* for all of them.

        *user* is None without access control. If *put* raises, nothing is kept: the error is raised
        here, or passed to *answer* while sends wait for a search of the disk. Raises StoreBusy.
        """
        if not self._working and self._store.now_ms() - self._started_ms >= self._window_ms:
            self._put(put, messages, answer, user)
            return
        if self._held_bytes > MAX_HELD_BYTES:
            raise StoreBusy(
                f"{self._held_bytes} bytes wait until it is known whether they are stored already"
            )
        self._held.append((put, messages, answer, user))
        self._held_bytes += bytes_of(messages)
        if not self._working:
            self._working = True
            self._spawn(self._work_off(), "look for duplicates")

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic: later messages to a topic of that name are new."""
        for key in [key for key in self._firsts if key[0] == topic]:
            del self._firsts[key]

    async def _work_off(self) -> None:
        try:
            while self._held:
                put, messages, answer, user = self._held.popleft()
                self._held_bytes -= bytes_of(messages)
                try:
                    for message in messages:
                        await self._look_up(message, user)
                    self._put(put, messages, answer, user)
                except Exception as exc:  # noqa: BLE001  whatever it is, others wait behind it
                    answer(0, refusal(exc))
        finally:
            self._working = False

    def _put(
        self, put: StoreNew, messages: Sequence[NewMessage], answer: OnPlaced, user: str | None
    ) -> None:
        now_ms = self._store.now_ms()
        self._expire(now_ms)
        sends = _Sends(len(messages), answer)
        fresh: list[NewMessage] = []
        firsts: list[_First] = []
        keys: list[Key | None] = []
        for at, message in enumerate(messages):
            key = _key(message, user)
            first = self._firsts.get(key) if key is not None else None
            if first is None:
                first = _First(now_ms)
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
            except BaseException:
                self._forget(keys, firsts)
                sends.refused()
                raise

    async def _look_up(self, message: NewMessage, user: str | None) -> None:
        """Keep the place of the same message, if it was stored before the start and within the
        window. Raises StoreError.
        """
        key, unique_key = _key(message, user), _unique_key(message)
        if key is None or unique_key is None or key in self._firsts:
            return
        try:
            text = unique_key.decode()
        except UnicodeDecodeError:
            return
        now_ms, tries, looked_at = self._store.now_ms(), 0, 0
        origin = (_address(message.born_host), key[3])
        search = self._store.find_key(
            message.topic, text, now_ms - self._window_ms, self._started_ms
        )
        while True:
            with self._store.without_waiting() if tries < MAX_TRIES else nullcontext():
                found = next(search, False)
            if isinstance(found, bytes):
                stored = decode_stored(found)
                if (
                    raw_property(stored.properties, b"UNIQ_KEY") == unique_key
                    and _origin(stored) == origin
                ):
                    result = PutResult(
                        stored.queue_offset,
                        stored.commitlog_offset,
                        len(found),
                        store_timestamp(found),
                    )
                    self._firsts[key] = _First(now_ms, FirstPlace(stored.queue_id, result))
                    return
                looked_at += 1
            if found is False or looked_at == MAX_LOOKED_AT:
                return
            if isinstance(found, Cold):
                tries += 1
                await self._bring_in(found)
            else:
                await asyncio.sleep(0)

    def _stored(
        self,
        fresh: Sequence[NewMessage],
        firsts: Sequence[_First],
        keys: Sequence[Key | None],
        result: list[PutResult] | StoreError,
    ) -> None:
        if isinstance(result, StoreError):
            self._forget(keys, firsts)
            outcomes: list[FirstPlace | StoreError] = [result] * len(firsts)
        else:
            outcomes = [
                FirstPlace(message.queue_id, one)
                for message, one in zip(fresh, result, strict=True)
            ]
        for first, outcome in zip(firsts, outcomes, strict=True):
            first.placed = outcome if isinstance(outcome, FirstPlace) else None
            waiters, first.waiters = first.waiters, []
            for waiter in waiters:
                waiter(outcome)

    def _forget(self, keys: Sequence[Key | None], firsts: Sequence[_First]) -> None:
        for key, first in zip(keys, firsts, strict=True):
            if key is not None and self._firsts.get(key) is first:
                del self._firsts[key]

    def _expire(self, now_ms: int) -> None:
        oldest_ms = now_ms - self._window_ms
        while self._firsts:
            key, first = next(iter(self._firsts.items()))
            over = len(self._firsts) > self._max_keys
            if first.placed is None or (first.at_ms >= oldest_ms and not over):
                return
            if over and first.at_ms >= oldest_ms and not self._warned:
                self._warned = True
                log.warning(
                    "more than %d keys within the duplicate window: the oldest are forgotten early",
                    self._max_keys,
                )
            del self._firsts[key]


def _unique_key(message: NewMessage) -> bytes | None:
    return raw_property(message.properties, b"UNIQ_KEY")


def _address(host: bytes) -> bytes:
    """Return the IP address of a host in stored form; a new connection has another port."""
    return host[:-4]


def _origin(stored: StoredMessage) -> tuple[bytes, int]:
    return _address(stored.born_host), stored.body_crc


def _key(message: NewMessage, user: str | None) -> Key | None:
    """Return the key of *message* in the window, or None if it has no unique key.

    A long unique key is replaced by its digest.
    """
    unique_key = _unique_key(message)
    if not unique_key:
        return None
    if len(unique_key) > _LONG_KEY:
        # No key holds \x02.
        unique_key = b"\x02" + hashlib.blake2b(unique_key, digest_size=16).digest()
    producer = _address(message.born_host) if user is None else user
    return message.topic, unique_key, producer, crc32(message.body) & 0x7FFFFFFF


class _Sends:
    """The messages of one request; the answer is sent when each has its place."""

    def __init__(self, count: int, answer: OnPlaced) -> None:
        self._placed: list[FirstPlace | None] = [None] * count
        self._left, self._answer = count, answer

    def refused(self) -> None:
        """Send no answer, not even for messages in progress: the caller gets the error in another
        way.
        """
        self._left = 0

    def resolved(self, at: int, outcome: FirstPlace | StoreError) -> None:
        if self._left == 0:
            # has failed, or was refused
            return
        if isinstance(outcome, StoreError):
            self._left = 0
            self._answer(0, outcome)
            return
        self._placed[at] = outcome
        self._left -= 1
        if self._left == 0:
            placed = [one for one in self._placed if one is not None]
            self._answer(placed[0].queue_id, [one.result for one in placed])
