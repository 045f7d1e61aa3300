"""Requests to any one of the name servers, and their discovery by HTTP."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from ogive.client.config import parse_name_servers
from ogive.errors import (
    BrokerBusy,
    BrokerInternalError,
    InvalidOption,
    NoNameServer,
    NoRoute,
    NotANameServer,
    OgiveError,
    ProtocolError,
    ServiceNotAvailable,
    TopicNotExist,
    TransportError,
)

T = TypeVar("T")

log = logging.getLogger(__name__)

FETCH_TIMEOUT_S: Final = 3.0
MAX_LIST_BYTES: Final = 64 * 1024
_LIST: Final = re.compile(r"[A-Za-z0-9._:;\[\] -]*")
FIRST_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 1.0
LEAST_TRY_S: Final = 0.02
"""A try that fails in less time says nothing about the server."""
# others may do better
_PASSING: Final = (
    NotANameServer,
    BrokerBusy,
    BrokerInternalError,
    ServiceNotAvailable,
    ProtocolError,
)


class NameServers:
    """Name servers of one cluster. Requests stay with the one that answered last.

    When it does not answer, the others get their share of the call's time budget, and all of them
    are tried again until the budget is used up: a name server that is just starting is waited for.

    With *source*, the URL of a list, the addresses come from there. Source: TopAddressing.java,
    5.3.

    With *each_once* nothing is waited for: a question goes to each server once, and a topic counts
    as missing only if none knows it. For callers that repeat their questions themselves.
    """

    def __init__(self, addresses: Sequence[str], source: str | None = None) -> None:
        self.addresses = list(addresses)
        self.each_once = False
        self._source = source
        self._preferred = 0
        # why the last server that was asked did not answer
        self.trouble = ""

    def __str__(self) -> str:
        return ";".join(self.addresses) or str(self._source)

    async def find(self, timeout_s: float = FETCH_TIMEOUT_S) -> None:
        """Fetch the list, if there is a URL to fetch it from.

        Raises NoNameServer; the addresses that are known stay then.
        """
        if self._source is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                addresses = parse_name_servers(
                    await asyncio.to_thread(_fetch, self._source, timeout_s)
                )
        except (OSError, ValueError, InvalidOption) as exc:
            reason = (
                f"no answer within {timeout_s:.1f} s" if isinstance(exc, TimeoutError) else str(exc)
            )
            raise NoNameServer(f"{self._source} gives no list of name servers: {reason}") from None
        if set(addresses) != set(self.addresses):
            log.info("name servers of %s: %s", self._source, ";".join(addresses))
            self.addresses, self._preferred = list(addresses), 0

    async def ask(
        self, call: Callable[[str, float], Awaitable[T]], timeout_s: float, *, doubted: bool = False
    ) -> T:
        """Return the result of ``call(address, timeout_s)`` from the first server that answers.

        Raises NoNameServer, and what the answer says.

        An error of a server that is busy, fails, answers nonsense or is not a name server counts
        only if no other one answers. *doubted*: the last answer of the preferred server turned out
        to be wrong or old. This question goes to another one first, and a topic counts as missing
        only if no other server knows it. Other questions still go to the preferred server, as the
        other one may be dead; if it answers, it becomes the preferred one.
        """
        passing = (*_PASSING, NoRoute, TopicNotExist) if doubted or self.each_once else _PASSING
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = started + timeout_s
        if not self.addresses:
            await self.find(timeout_s)
        tries, pause = 0, FIRST_PAUSE_S
        while True:
            refusal: OgiveError | None = None
            # other questions may change both while this one waits
            addresses, first = self.addresses, self._preferred + doubted
            for position in range(len(addresses)):
                left = deadline - loop.time()
                if left < LEAST_TRY_S and tries:
                    break
                at = (first + position) % len(addresses)
                tries += 1
                try:
                    result = await call(addresses[at], left / (len(addresses) - position))
                except TransportError as exc:
                    self.trouble = str(exc)
                    continue
                except passing as exc:
                    refusal = exc
                    continue
                if addresses is self.addresses:
                    self._preferred = at
                self.trouble = ""
                return result
            if refusal is not None:
                raise refusal
            left = deadline - loop.time()
            if left < FIRST_PAUSE_S or self.each_once:
                times = "once" if tries == 1 else f"{tries} times"
                waited = loop.time() - started
                raise NoNameServer(
                    f"no name server answered at {self} within {waited:.1f} s; tried {times}, at "
                    f"last: {self.trouble}"
                )
            await asyncio.sleep(min(pause, left - FIRST_PAUSE_S / 2))
            pause = min(2 * pause, MAX_PAUSE_S)


def _fetch(url: str, timeout_s: float) -> str:
    """Return the text behind the URL. Raises OSError, ValueError."""
    # here, because they cost more to import than all the rest of the client
    from urllib.error import HTTPError
    from urllib.request import urlopen

    try:
        # it begins with http:// or https://
        with urlopen(url, timeout=timeout_s) as answer:  # noqa: S310
            text: str = answer.read(MAX_LIST_BYTES).decode("ascii", "replace").strip()
    except HTTPError as exc:
        exc.close()
        raise
    if not _LIST.fullmatch(text):
        raise ValueError(f"host:port;host:port is expected, and {text[:60]!r} came")
    return text
