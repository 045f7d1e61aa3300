"""Background jobs of a broker: remove old messages, see store/retention.py; re-read the whole log
repeatedly, at about a MiB a second, see store/log_scan.py.
"""

import asyncio
import functools
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from ogive.errors import StoreError
from ogive.store import JsonTable, MessageStore, OsFs
from ogive.store.file_reader import Cold
from ogive.store.retention import MAX_PER_RUN, Ages, RetentionConfig, due

log = logging.getLogger(__name__)

PAUSE_S: Final = 3600.0


class Scrubbing:
    """Re-reads the log: one step a second; a pause after each round."""

    def __init__(
        self, store: MessageStore, bytes_per_step: int, now_s: Callable[[], float]
    ) -> None:
        self._store, self._bytes_per_step, self._now_s = store, bytes_per_step, now_s
        self._position = 0
        self._not_before_s = 0.0

    async def run(self) -> None:
        """Check the next records, unless it is the pause after a round.

        Raises StoreError if the disk cannot be read.
        """
        if self._now_s() < self._not_before_s or self._store.failed is not None:
            return
        position = max(self._position, self._store.stats().commitlog_start)
        step = self._store.scrub_step(position, self._bytes_per_step)
        try:
            scrubbed = await asyncio.to_thread(step)
        except FileNotFoundError:
            # retention removed the segment meanwhile
            return
        except OSError as exc:
            self._position = (
                position + self._store.segment_bytes - position % self._store.segment_bytes
            )
            raise StoreError(f"the commit log cannot be read at {position}: {exc}") from exc
        for offset, size in scrubbed.damaged:
            self._store.report_damage(offset, size)
        self._position = scrubbed.position
        if self._position >= self._store.stats().commitlog_end:
            self._position, self._not_before_s = 0, self._now_s() + PAUSE_S


SAVE_S: Final = 300.0
# between two steps of a removal, the first of which waits for the disk
_STEP_S: Final = 0.001


def machine_time_s() -> float:
    """Return the seconds since the machine started, including sleep; this clock cannot be set."""
    return (
        time.clock_gettime(time.CLOCK_BOOTTIME)
        if hasattr(time, "CLOCK_BOOTTIME")
        else time.monotonic()
    )


def local_hour() -> int:
    return datetime.now().astimezone().hour


def disk_used(directory: Path) -> float:
    """Return the used share of the disk space for files, as df shows it; 0 if unknown."""
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return 0.0
    return usage.used / max(1, usage.used + usage.free)


class Retention:
    """*needed* are offsets of the log that must stay at any age, such as that of the oldest message
    with a timer.
    """

    def __init__(
        self,
        store: MessageStore,
        file: JsonTable,
        config: RetentionConfig,
        bring_in: Callable[[Cold], Awaitable[None]],
        *,
        boot: str = "",
        now_s: Callable[[], float] = machine_time_s,
        hour: Callable[[], int] = local_hour,
        used: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """*bring_in* reads data from the disk off the loop; it raises StoreError."""
        self._store = store
        self._file = file
        self._config = config
        self._bring_in = bring_in
        self._now_s, self._hour, self._used = now_s, hour, used
        self._ages = Ages(boot or OsFs().boot_id(), now_s())
        self._saved_at_s = now_s()
        self.needed: list[Callable[[], int]] = []
        self.at_once = False
        """Set by an operator: the next runs remove segments that are old enough at any hour."""

    def load(self, ages: Mapping[str, Any]) -> None:
        """Take over the content of the file."""
        self._ages.load(ages)

    def full_for_s(self, commitlog_offset: int) -> float:
        """Return for how long the segment with that offset has been full, by the machine's uptime;
        0 if it is not.
        """
        return self._ages.of(commitlog_offset - commitlog_offset % self._store.segment_bytes)

    async def run(self) -> None:
        """Remove the segments that are due now.

        Raises StoreError if a queue cannot be read, or the ages of segments cannot be saved.
        """
        self._store.retention.remove_left()
        self._ages.see(self._store.retention.full_segments, self._now_s())
        full = self._store.retention.full_segments
        asked = self.at_once
        count = due(
            full, self._ages, self._config, hour=self._hour(), disk_used=self._used(), at_once=asked
        )
        # the rest goes with the next run
        self.at_once = asked and count == MAX_PER_RUN
        until = self._until(full, count)
        if until > self._store.stats().commitlog_start and self._store.failed is None:
            oldest_s = self._ages.of(full[0])
            try:
                for cold in self._store.retention.expire(until):
                    await (asyncio.sleep(_STEP_S) if cold is None else self._bring_in(cold))
            except StoreError:
                self.at_once |= asked
                raise
            removed = self._store.stats().commitlog_start
            log.info(
                "removed messages before commit-log offset %d, the oldest segment was full for "
                "%.1f h",
                removed,
                oldest_s / 3600,
            )
            await self.save()
        elif self._now_s() - self._saved_at_s >= SAVE_S:
            await self.save()

    async def save(self) -> None:
        """Save the ages. Raises StoreError."""
        self._ages.see(self._store.retention.full_segments, self._now_s())
        self._saved_at_s = self._now_s()
        try:
            await asyncio.to_thread(functools.partial(self._file.save, self._ages.save()))
        except OSError as exc:
            raise StoreError(f"the ages of segments cannot be saved: {exc}") from exc

    def _until(self, full: list[int], count: int) -> int:
        """Return the segment border before which everything is removed."""
        if not count:
            return 0
        end = full[count - 1] + self._store.segment_bytes
        needed = min([needed() for needed in self.needed], default=end)
        return min(end, needed - needed % self._store.segment_bytes)
