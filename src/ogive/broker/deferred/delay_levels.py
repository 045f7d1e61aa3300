"""Delay levels: messages wait in SCHEDULE_TOPIC_XXXX, queue level - 1, and are stored again under
their real topic when due.

Source: ScheduleMessageService.java, HookUtils.java, 5.3.

Behaviour
- The messages of a level are due in the order of its queue, so one timer per level waits for the
  first of them.
- Never early: each message waits for the delay that its level had when it was sent, even if the
  levels have changed since or the level does not exist any more. If a level has become shorter, new
  messages wait behind the old ones.
- Progress is saved from time to time: after a crash, messages delivered since then are delivered
  again.
- The stored properties stay: delivered messages still have DELAY, REAL_TOPIC and REAL_QID.

Differs from Java
- Nothing polls: a timer or an arrival wakes a level. While it waits, it checks the clock once a
  minute, in case the clock was set.
- A message that would fit into no record of its own topic is refused when it is sent; Java notices
  when it is due.
- Java delivers messages at once that are due later than their level's delay from now, and never
  delivers those of a level that does not exist any more.
- A message without REAL_TOPIC or with an invalid REAL_QID is skipped with a warning; Java's task
  ends there.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ogive.broker.deferred.waiting import MAX_WAIT_S, Put, stored_again
from ogive.broker.off_loop_reads import Fetch, JobReads
from ogive.errors import InvalidOption, ProtocolError, StoreError
from ogive.model import HALF_TOPIC, SCHEDULE_TOPIC, PropertyName
from ogive.store.consumequeue import FILLER_SIZE
from ogive.store.file_reader import Cold
from ogive.store.message_store import MessageStore
from ogive.store.types import Entry, NewMessage, PutResult
from ogive.wire.bodies.configs import DataVersion, DelayLevels
from ogive.wire.command import parse_int, whole_number
from ogive.wire.message import decode_properties, decode_stored, real_place

log = logging.getLogger(__name__)

# messages of one level in flight
BATCH: Final = 64
RETRY_S: Final = 0.1
_MAX_OFFSET: Final = 0x7FFFFFFFFFFFFFFF


def delayed(
    levels: DelayLevels, topic: str, queue_id: int, properties: dict[str, str]
) -> tuple[str, int]:
    """Return the topic and queue in which a message with these properties is stored.

    A delay level adds REAL_TOPIC and REAL_QID, and wins over timers. Raises ProtocolError for a
    level that is not a number.
    """
    text = properties.get(PropertyName.DELAY)
    if text is None:
        return topic, queue_id
    try:
        level = levels.clamp(parse_int(text))
    except ValueError:
        raise ProtocolError(f"property DELAY is not a number: {text[:40]!r}") from None
    if level <= 0:
        return topic, queue_id
    for name in [name for name in properties if name.startswith("TIMER_")]:
        del properties[name]
    properties |= {
        PropertyName.DELAY: str(level),
        PropertyName.REAL_TOPIC: topic,
        PropertyName.REAL_QUEUE_ID: str(queue_id),
    }
    return SCHEDULE_TOPIC, level - 1


def check_delivery(
    store: MessageStore, message: NewMessage, topic: str, spare_bytes: int = 0
) -> None:
    """Check that a waiting message will fit into a record of *topic*, its own, with *spare_bytes*
    more: that name may be longer than the one of the topic in which it waits, and a segment may be
    small. Raises InvalidOption.
    """
    if len(topic) > len(message.topic) or spare_bytes:
        store.check_fits(message, spare_bytes, topic)


class Schedule:
    """Delivers due messages.

    *put* stores one message, *fetch* reads data that is only on disk; everything runs on the event
    loop.
    """

    def __init__(
        self,
        store: MessageStore,
        put: Put,
        fetch: Fetch,
        levels: DelayLevels,
        store_host: bytes,
        now_ms: Callable[[], int],
    ) -> None:
        self._known = len(levels.delays_ms)
        gone = {
            queue_id
            for topic, queue_id in store.queues
            if topic == SCHEDULE_TOPIC and queue_id >= self._known
        }
        self._levels = {
            (SCHEDULE_TOPIC, queue_id): _Level(queue_id + 1, store, put, fetch, store_host, now_ms)
            for queue_id in (*range(self._known), *sorted(gone))
        }
        store.on_growth.update({key: level.grown for key, level in self._levels.items()})
        # progress of levels that have no queue here: another broker may have them, with the same
        # store
        self._others: dict[str, int] = {}

    def start(self) -> None:
        for level in self._levels.values():
            if level.level > self._known and level.waits:
                log.info(
                    "delay level %d is no longer in the table: the messages waiting in it are "
                    "delivered at their time",
                    level.level,
                )
            level.wake()

    async def stop(self) -> None:
        """Begin no more deliveries, and wait for those in progress."""
        for level in self._levels.values():
            await level.stop()

    def delivered(self, level: int) -> int:
        """Return the queue offset up to which the level is delivered."""
        found = self._levels.get((SCHEDULE_TOPIC, level - 1))
        return found.offset if found is not None else 0

    def needed_from(self) -> int:
        """Return the commit-log offset from which on the log must be kept: that of the oldest
        waiting message, or an earlier one while it is not known yet. Raises StoreError.
        """
        return min([level.needed_from() for level in self._levels.values()])

    @property
    def version(self) -> int:
        """Grows with every step of progress."""
        return sum(level.steps for level in self._levels.values())

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Return a function that builds delayOffset.json: level -> next queue offset."""
        table = self._others | {
            str(level.level): level.offset for level in self._levels.values() if level.offset
        }
        version = self.version
        return lambda: {"dataVersion": DataVersion(version).to_json(), "offsetTable": table}

    def load(self, value: Mapping[str, Any]) -> None:
        """Load the contents of the file; invalid entries are ignored."""
        table = value.get("offsetTable")
        for text, offset in table.items() if isinstance(table, dict) else ():
            if not is_level(text) or not isinstance(offset, int) or not 0 < offset <= _MAX_OFFSET:
                continue
            level = self._levels.get((SCHEDULE_TOPIC, int(text) - 1))
            if level is not None:
                level.offset = offset
            else:
                self._others[text] = offset


def is_level(text: object) -> bool:
    """Return True if this can be the key of a level in delayOffset.json."""
    return isinstance(text, str) and whole_number(text) is not None


class _Level:
    """One queue of SCHEDULE_TOPIC_XXXX and its timer.

    At most one batch of its messages is being stored.
    """

    def __init__(
        self,
        level: int,
        store: MessageStore,
        put: Put,
        fetch: Fetch,
        store_host: bytes,
        now_ms: Callable[[], int],
    ) -> None:
        self.level = level
        self.key = (SCHEDULE_TOPIC, level - 1)
        # everything before is delivered
        self.offset = 0
        self.steps = 0
        self._store = store
        self._put = put
        self._store_host = store_host
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._fetch, self._reads = fetch, JobReads(store, fetch, self._brought_in)
        # as it was when memory held it
        self._needed_from = 0
        # what the message at _batch_end needs
        self._cold: Cold | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._on_the_way = 0
        self._batch_end = 0
        # the first message of the batch that could not be stored
        self._redo_from: int | None = None
        self._stopped: asyncio.Future[None] | None = None

    @property
    def waits(self) -> bool:
        """Return True if anything is not delivered yet."""
        return self.offset < self._store.max_offset(*self.key)

    def grown(self) -> None:
        """Begin to wait for the first message, if nothing waits yet: others are due after it."""
        if self._timer is None:
            self.wake()

    def wake(self) -> None:
        """Deliver due messages, or set the timer for the next one.

        When a batch is stored, or data was read from disk, this is called again.
        """
        self._cancel_timer()
        if self._stopped is not None or self._on_the_way or self._reads.pending:
            return
        self.offset = max(self.offset, self._store.min_offset(*self.key))
        try:
            due, wait_ms = self._due()
        except StoreError as exc:
            self._brought_in(exc)
        except Cold as cold:
            self._reads.bring_in(cold)
        else:
            if due:
                self._deliver(due)
            elif wait_ms:
                self._timer = self._loop.call_later(min(wait_ms / 1000, MAX_WAIT_S), self.wake)

    def _brought_in(self, error: StoreError | None) -> None:
        """Continue after a read of the disk, or stop with its error."""
        if error is None:
            self.wake()
        elif self._stopped is None:
            log.warning(
                "delay level %d: could not read messages, next try in %.1f s: %s",
                self.level,
                RETRY_S,
                error,
            )
            self._cancel_timer()
            self._timer = self._loop.call_later(RETRY_S, self.wake)

    def needed_from(self) -> int:
        """See Schedule.

        If the first entry is not known, everything is needed until it is skipped.
        """
        offset, stats = max(self.offset, self._store.min_offset(*self.key)), self._store.stats()
        if offset >= self._store.max_offset(*self.key):
            return stats.commitlog_end
        try:
            with self._store.without_waiting():
                first = self._store.entries(*self.key, offset, 1)
        except Cold as cold:
            self._fetch(cold.place, _looked_at_later)
            return max(self._needed_from, stats.commitlog_start)
        if first and first[0].size != FILLER_SIZE:
            # what follows it in the queue follows it in the log, too
            self._needed_from = first[0].commitlog_offset
            return self._needed_from
        return stats.commitlog_start

    async def stop(self) -> None:
        self._stopped = self._loop.create_future()
        self._cancel_timer()
        if self._on_the_way:
            await self._stopped

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> tuple[list[Entry], int]:
        """Return the entries to deliver now, and the time until the next one is due, if there is
        one.
        """
        now_ms = self._now_ms()
        entries = self._reads.entries(*self.key, self.offset, BATCH)
        for at, entry in enumerate(entries):
            # this queue holds the time of delivery where others hold the tag
            wait_ms = entry.tags_code - now_ms
            if wait_ms > 0:
                return entries[:at], wait_ms
        return entries, 0

    def _deliver(self, due: list[Entry]) -> None:
        self._batch_end, self._redo_from = self.offset + len(due), None
        # this loop itself
        self._on_the_way = 1
        for offset, entry in enumerate(due, self.offset):
            self._on_the_way += 1
            try:
                message = self._message(entry)
                if message is None:
                    self._on_the_way -= 1
                else:
                    self._put((message,), partial(self._stored, offset))
            except InvalidOption as exc:
                log.error(
                    "delay level %d: skipped message %d, which does not fit into a record of its "
                    "topic: %s",
                    self.level,
                    offset,
                    exc,
                )
                self._on_the_way -= 1
            except StoreError as exc:
                self._stored(offset, exc)
                break
            except Cold as cold:
                # the batch ends before it
                self._on_the_way -= 1
                self._batch_end, self._cold = offset, cold
                break
        self._one_less()

    def _stored(self, offset: int, result: list[PutResult] | StoreError) -> None:
        if isinstance(result, StoreError) and (self._redo_from is None or offset < self._redo_from):
            # a later one may have been refused at once, and then this one, which was on its way
            self._redo_from = offset
            log.warning(
                "delay level %d: could not deliver message %d, next try in %.1f s: %s",
                self.level,
                offset,
                RETRY_S,
                result,
            )
        self._one_less()

    def _one_less(self) -> None:
        self._on_the_way -= 1
        if self._on_the_way:
            return
        self.offset = self._batch_end if self._redo_from is None else self._redo_from
        self.steps += 1
        cold, self._cold = self._cold, None
        if self._stopped is not None:
            self._stopped.set_result(None)
        elif self._redo_from is None and cold is not None:
            self._reads.bring_in(cold)
        elif self._redo_from is None:
            self._loop.call_soon(self.wake)
        elif self._store.failed is None:
            self._timer = self._loop.call_later(RETRY_S, self.wake)

    def _message(self, entry: Entry) -> NewMessage | None:
        """Return the message to store again, or None if the log no longer has it. Raises
        StoreError, Cold.
        """
        record = (
            self._reads.record_at(entry.commitlog_offset) if entry.size != FILLER_SIZE else None
        )
        if record is None:
            log.warning(
                "delay level %d: the log no longer has a message at offset %d",
                self.level,
                entry.commitlog_offset,
            )
            return None
        stored = decode_stored(record)
        place = real_place(decode_properties(stored.properties))
        if place is None:
            log.warning(
                "delay level %d: skipped the message at offset %d, which names no topic and queue",
                self.level,
                entry.commitlog_offset,
            )
            return None
        if place[0] == HALF_TOPIC:
            # a half message is never delayed: this is what Java does with one that is
            return None
        return stored_again(stored, place, stored.properties, self._store_host)


def _looked_at_later(_error: StoreError | None) -> None:
    """Do nothing: the next call finds the data in memory, or requests it again."""
