"""The consumer group's copy of a stream's progress, for lag in dashboards and tools.

Spark's checkpoint is authoritative.

Behaviour
- Positions are stored when the batch that ends there is durable in Spark's checkpoint: never ahead
  of it.
- One request is in flight at a time; meanwhile only the newest position waits.
- Nothing here raises or blocks the query: a failure is logged, and the next position repairs it.
- Positions are stored no more often than the given interval; positions in between wait.
- When Spark ends the process (it only sends SIGTERM), the waiting position is stored first, for at
  most FLUSH_S.
"""

import concurrent.futures
import logging
import math
import os
import signal
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import FrameType
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader

from ogive.errors import OgiveError
from ogive.model import MessageQueue
from ogive.spark.cluster import Cluster, cluster
from ogive.spark.cluster_options import Access
from ogive.spark.compat import SupportsTriggerAvailableNow
from ogive.spark.offsets import Positions, from_offset, to_offset
from ogive.spark.remade import Ends, look_at

log = logging.getLogger(__name__)

FLUSH_S: Final = 2.0
_SHORTEST_IDLE_S: Final = 0.01


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
        """Store *positions*, now or after the request in flight."""
        if positions != self._stored:
            self._stored = self._waiting = positions
        self._go_on()

    def flush(self, timeout_s: float = FLUSH_S) -> None:
        """Wait until the waiting positions are stored."""
        # the one being stored, then the one that waits
        for _ in range(2):
            if self._running is not None:
                concurrent.futures.wait((self._running,), timeout_s)
            self._go_on(at_once=True)

    def flush_on_sigterm(self) -> None:
        """Let SIGTERM flush, and then end the process as before.

        This works only in the main thread; in another thread nothing is changed.
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
            self._running = self._cluster.start_copy(self._group, self._waiting)
            self._waiting = None

    def _report(self, ended: "Future[None]") -> None:
        failure = ended.exception()
        if isinstance(failure, OgiveError):
            log.warning("progress of group %s was not stored: %s", self._group, failure)
        elif failure is not None:
            log.error("progress of group %s was not stored", self._group, exc_info=failure)


class MirroredStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Base of streams whose progress a consumer group shows.

    *owner* is what a checkpoint must be of. *group* reads; without *interval_s* it shows nothing.
    """

    def __init__(
        self,
        access: Access,
        owner: str,
        group: str,
        interval_s: float | None,
        longest_idle_s: float,
    ) -> None:
        self._access = access
        self._owner = owner
        self._group = group
        self._interval_s = interval_s
        self._longest_idle_s = longest_idle_s
        self._initial: dict[str, Any] | None = None
        # where trigger(availableNow=True) ends
        self._target: Positions | None = None
        self._ends = Ends()
        # queues that their topic does not have any more, or whose broker is away
        self._missing: set[MessageQueue] = set()
        self._looked_at = 0.0
        self._idle_s = 0.0
        self._progress: GroupProgress | None = None

    @property
    def _cluster(self) -> Cluster:
        return cluster(self._access)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query begins.

        Spark asks twice. The second answer must be the first, or the messages between them are
        lost.
        """
        if self._initial is None:
            self._initial = to_offset(self._first_positions(), self._owner)
        return self._initial

    @abstractmethod
    def _first_positions(self) -> Positions: ...

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the queues' ends for the lag that Spark shows in a query's progress."""
        return to_offset(self._ends.latest, self._owner) if self._ends.latest else None

    def commit(self, end: dict[str, Any]) -> None:
        self._store(from_offset(end, self._owner))

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.flush()

    def _look_at(self, offsets: Positions) -> Mapping[MessageQueue, int]:
        return look_at(self._cluster, offsets, self._group)

    def _pause(self) -> None:
        """Sleep before the next look at the queues: Spark asks 75 times a second while nothing
        comes.
        """
        time.sleep(max(0.0, self._looked_at + self._idle_s - time.monotonic()))

    def _adapt_pause(self, *, news: bool) -> None:
        """Have the pauses grow up to *longest_idle_s* while there is no news."""
        self._idle_s = (
            0.0 if news else min(max(2 * self._idle_s, _SHORTEST_IDLE_S), self._longest_idle_s)
        )

    def _store(self, positions: Positions, *, now: bool = False) -> None:
        """Mirror *positions* to the consumer group; with *now* wait for that.

        A broker takes no position of a queue that it does not have any more.
        """
        if self._interval_s is None:
            return
        if self._progress is None:
            self._progress = GroupProgress(self._cluster, self._group, self._interval_s)
            self._progress.flush_on_sigterm()
        self._progress.advance(
            {queue: at for queue, at in positions.items() if queue not in self._missing}
        )
        if now:
            self._progress.flush()
