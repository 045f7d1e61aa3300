"""Stops a query cleanly on request."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Stopped(Exception):
    """Raised on a stop request, to leave a batch before any of it is written."""


class Stop:
    """Whether a job shall end. As a context, Ctrl-C and SIGTERM ask for it; a second Ctrl-C ends the process at once.

    Enter it after the Spark session was made: PySpark sets a handler of its own, which would cancel what runs.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        self._asked.set()

    def check(self) -> None:
        """Raises Stopped; called before a batch is written."""
        if self.asked:
            raise Stopped

    def wait(self, timeout_s: float) -> bool:
        """Whether a stop was asked for within *timeout_s*."""
        return self._asked.wait(timeout_s)

    def __enter__(self) -> Self:
        def handle(number: int, _: FrameType | None) -> None:
            if self.asked and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.ask()

        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
