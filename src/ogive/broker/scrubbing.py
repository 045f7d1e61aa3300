"""The broker's job that re-reads the whole log over and over, at about a MiB a second, see
store/scrub.py.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ogive.errors import StoreError
from ogive.store.store import MessageStore

log = logging.getLogger(__name__)

PAUSE_S: Final = 3600.0


class Scrubbing:
    """One step a second; a pause after each round."""

    def __init__(
        self, store: MessageStore, bytes_per_step: int, now_s: Callable[[], float]
    ) -> None:
        self._store, self._bytes_per_step, self._now_s = store, bytes_per_step, now_s
        self._position = 0
        self._not_before_s = 0.0

    async def run(self) -> None:
        """Check the next records, unless it is the pause after a round.

        Raises StoreError where the disk cannot be read.
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
