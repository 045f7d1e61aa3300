"""The consumer group's copy of a stream's progress, for lag in dashboards and tools.

Spark's checkpoint is the truth.

Behaviour
- Positions are stored when the batch that ends there is durable in Spark's checkpoint: never ahead
  of it.
- One store is on its way at a time; while it is, only the newest position waits.
- Nothing here raises or blocks the query: a failure is logged, the next position repairs it.
- No more often than the interval that is asked for; what comes in between waits.
- When Spark ends the process (SIGTERM is all it ever says) what waits is stored first, for at most
  FLUSH_S.
"""

import concurrent.futures
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import Final

from ogive.errors import OgiveError
from ogive.spark.cluster import Cluster
from ogive.spark.offsets import Positions

log = logging.getLogger(__name__)

FLUSH_S: Final = 2.0


class GroupProgress:
    """Positions of one consumer group at the brokers. Used by one thread."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        interval_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._interval_s = interval_s
        self._clock = clock
        self._told_at = -math.inf
        self._stored: Positions = {}
        self._waiting: Positions | None = None
        self._running: Future[None] | None = None

    def advance(self, positions: Positions) -> None:
        """Store *positions*, now or after the one being stored."""
        if positions != self._stored:
            self._stored = self._waiting = positions
        self._go_on()

    def flush(self, timeout_s: float = FLUSH_S) -> None:
        """Wait until what was to be stored is stored."""
        # the one being stored, then the one that waits
        for _ in range(2):
            if self._running is not None:
                concurrent.futures.wait((self._running,), timeout_s)
            self._go_on(at_once=True)

    def flush_on_sigterm(self) -> None:
        """Make SIGTERM flush, then end the process as before.

        Only the main thread can; elsewhere nothing is changed.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        before = signal.getsignal(signal.SIGTERM)

        def flush_and_end(number: int, _: FrameType | None) -> None:
            self.flush()
            signal.signal(number, before)
            os.kill(os.getpid(), number)

        signal.signal(signal.SIGTERM, flush_and_end)

    def _go_on(self, *, at_once: bool = False) -> None:
        if self._running is not None:
            if not self._running.done():
                return
            self._report(self._running)
            self._running = None
        if self._waiting is not None and (
            at_once or self._clock() - self._told_at >= self._interval_s
        ):
            self._told_at = self._clock()
            self._running = self._cluster.start_commit(self._group, self._waiting)
            self._waiting = None

    def _report(self, ended: "Future[None]") -> None:
        failure = ended.exception()
        if isinstance(failure, OgiveError):
            log.warning("progress of group %s was not stored: %s", self._group, failure)
        elif failure is not None:
            log.error("progress of group %s was not stored", self._group, exc_info=failure)
