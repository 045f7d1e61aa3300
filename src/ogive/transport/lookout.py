"""Looking for the next request on an event loop. See expectation.py."""

import asyncio

from ogive.transport.expectation import Expectation


class Lookout:
    """Has an event loop look for the next request.

    Everything else has its turn meanwhile: the loop only does not sleep.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expectation: Expectation) -> None:
        self._loop, self._expectation = loop, expectation
        self._looking = False

    def answered(self) -> None:
        """A request has been answered, and its client has no other under way."""
        if self._expectation.begin() and not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def asked(self, *, again: bool) -> None:
        """Something has arrived; *again*: from the client that was answered last."""
        if again:
            self._expectation.came()
        else:
            self._expectation.disturb()

    def _look(self) -> None:
        if self._expectation.goes_on():
            self._loop.call_soon(self._look)
        else:
            self._looking = False
