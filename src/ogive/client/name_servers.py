"""Asking any one of the name servers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from ogive.errors import (
    BrokerBusy,
    BrokerInternalError,
    NoNameServer,
    NotANameServer,
    OgiveError,
    ProtocolError,
    ServiceNotAvailable,
    TransportError,
)

T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 1.0


class NameServers:
    """Stays with the server that answered last. When it does not answer, the others get their share of the call's time budget, and all of
    them are tried again until the budget is used up: a name server that is just starting is waited for."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = list(addresses)
        self._preferred = 0
        self.trouble = ""  # why the last server that was asked did not answer

    def __str__(self) -> str:
        return ";".join(self.addresses)

    async def ask(self, call: Callable[[str, float], Awaitable[T]], timeout_s: float) -> T:
        """The result of ``call(address, timeout_s)`` from the first server that answers. Raises NoNameServer, and what the answer says.

        A server that is busy, fails, answers nonsense or is none at all (NotANameServer) is believed only when no other one answers.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = started + timeout_s
        tries, pause = 0, FIRST_PAUSE_S
        while True:
            refusal: OgiveError | None = None
            for position in range(len(self.addresses)):
                left = deadline - loop.time()
                if left <= 0:
                    break
                at = (self._preferred + position) % len(self.addresses)
                tries += 1
                try:
                    result = await call(self.addresses[at], left / (len(self.addresses) - position))
                except TransportError as exc:
                    self.trouble = str(exc)
                    continue
                except (NotANameServer, BrokerBusy, BrokerInternalError, ServiceNotAvailable, ProtocolError) as exc:
                    refusal = exc
                    continue
                self._preferred, self.trouble = at, ""
                return result
            if refusal is not None:
                raise refusal
            left = deadline - loop.time()
            if left < FIRST_PAUSE_S:
                times = "once" if tries == 1 else f"{tries} times"
                waited = loop.time() - started
                raise NoNameServer(f"no name server answered at {self} within {waited:.1f} s; tried {times}, at last: {self.trouble}")
            await asyncio.sleep(min(pause, left - FIRST_PAUSE_S / 2))
            pause = min(2 * pause, MAX_PAUSE_S)
