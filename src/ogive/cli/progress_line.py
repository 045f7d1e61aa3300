"""Progress on standard error: in a terminal one line that changes, with a sparkline of the lag;
elsewhere one line a minute.
"""

import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, Self, TextIO

from ogive.cli.output import sparkline

REPORT_S: Final = 60.0
"""Time between two lines where no terminal shows them."""
TREND: Final = 40
"""Lags in the sparkline."""
_CLEAR: Final = "\r\x1b[K"


class Progress(Protocol):
    """Figures whose text is a line for people."""

    @property
    def lag(self) -> int | None: ...


class ProgressLine:
    """Context manager that shows the progress of a job on *out*, and lines of text between."""

    def __init__(
        self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._terminal = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._lags: deque[int] = deque(maxlen=TREND)
        # what is on the line of the terminal, or waits until REPORT_S have passed
        self._pending = ""
        self._next = clock()

    def say(self, text: str) -> None:
        """Print a line for people."""
        if self._terminal and self._pending:
            self._out.write(_CLEAR)
        print(f"ogive: {text}", file=self._out, flush=True)
        if self._terminal and self._pending:
            self._draw()

    def show(self, progress: Progress) -> None:
        """Show *progress* instead of what was shown before."""
        if progress.lag is not None:
            self._lags.append(progress.lag)
        self._pending = str(progress)
        if self._terminal:
            self._draw()
        elif self._clock() >= self._next:
            self._print_pending()
            self._next = self._clock() + REPORT_S

    def _draw(self) -> None:
        width = shutil.get_terminal_size().columns - 1
        line = f"ogive: {self._pending}"[:width]
        room = width - len(line) - 2
        # other encodings have no bars
        utf8 = (self._out.encoding or "").lower().startswith("utf")
        if len(self._lags) > 1 and room > 0 and utf8:
            line += f"  {sparkline(list(self._lags)[-room:])}"
        self._out.write(_CLEAR + line)
        self._out.flush()

    def _print_pending(self) -> None:
        print(f"ogive: {self._pending}", file=self._out, flush=True)
        self._pending = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the line; print progress that was not shown yet."""
        if self._terminal and self._pending:
            print(file=self._out, flush=True)
        elif self._pending:
            self._print_pending()
