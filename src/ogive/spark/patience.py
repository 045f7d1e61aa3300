"""Repeat calls while a broker or name server is away."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from ogive.errors import (
    BrokerBusy,
    BrokerInternalError,
    NoNameServer,
    NoRoute,
    NotANameServer,
    OgiveError,
    ServiceNotAvailable,
    TopicNotExist,
    TransportError,
)
from ogive.spark.options import DEFAULT_POLL_TIMEOUT_S

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_WINDOW_S: Final = DEFAULT_POLL_TIMEOUT_S
"""Time within which one call is tried again while its broker is away.

Longer outages end the task; Spark then tries the task again.
"""

CALL_TIMEOUT_S: Final = 5.0
"""Time within which a broker or name server answers one try of a call."""

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0


async def repeat(
    call: Callable[[], Awaitable[T]],
    passes: Callable[[OgiveError], bool],
    window_s: float,
    *,
    retries: int | None = None,
    pause_s: float | None = None,
    forget: Callable[[], None] = lambda: None,
    what: str = "",
) -> T:
    """Return the result of *call*, which is repeated after each failure that *passes*.

    Its attempts begin within *window_s* from now, and at most *retries* follow the first. The
    pauses between them grow from FIRST_PAUSE_S to LONGEST_PAUSE_S, or are all of *pause_s*.
    *forget* is called after each pause; *what* names the call in the log.
    """
    clock = asyncio.get_running_loop()
    deadline = clock.time() + window_s
    left = -1 if retries is None else retries
    pause, longest = (FIRST_PAUSE_S, LONGEST_PAUSE_S) if pause_s is None else (pause_s, pause_s)
    while True:
        try:
            return await call()
        except OgiveError as exc:
            if left == 0 or clock.time() + pause > deadline or not passes(exc):
                raise
            log.warning("%strying again in %.2f s: %s", what and f"{what}: ", pause, exc)
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)
        left -= 1
        forget()


@dataclass(frozen=True, slots=True)
class Patience:
    """Rule for repeating a call while its broker is away: for *window_s*, or at most *retries*
    times, with pauses of *pause_s* or growing ones.

    *settled*: the name servers have answered before, perhaps to another process, so that their
    silence is temporary; otherwise the address is probably wrong, which is reported at once. For
    all calls of a process: `Cluster.settle`. *doubtful*: the broker of a topic without a route may
    be away, although the name servers know others. *known*: the topic existed before, so a broker
    that does not have it is behind.
    """

    window_s: float = RETRY_WINDOW_S
    retries: int | None = None
    pause_s: float | None = None
    settled: bool = False
    doubtful: bool = False
    known: bool = False

    async def insist(
        self,
        call: Callable[[], Awaitable[T]],
        forget: Callable[[], None],
        settled: Callable[[], bool] = lambda: False,
    ) -> T:
        """Repeat *call* as long as its failure may be temporary, each time after *forget*, which
        puts the route in doubt.
        """
        return await repeat(
            call,
            lambda failure: self.waits_for(failure, settled=settled()),
            self.window_s,
            retries=self.retries,
            pause_s=self.pause_s,
            forget=forget,
        )

    def waits_for(self, failure: OgiveError, *, settled: bool = False) -> bool:
        if isinstance(failure, NoNameServer):
            return (self.settled or settled) and not isinstance(failure, NotANameServer)
        return (
            isinstance(failure, PASSING)
            or (self.doubtful and isinstance(failure, NoRoute))
            or (self.known and isinstance(failure, TopicNotExist))
        )


USUAL: Final = Patience()
DOUBTFUL: Final = Patience(doubtful=True)


class BrokerAway(NoRoute):
    """Error for something that may come back with its broker: a route without the broker of a
    queue, or name servers that know no broker at all.
    """


PASSING: Final = (TransportError, BrokerBusy, BrokerInternalError, ServiceNotAvailable, BrokerAway)
