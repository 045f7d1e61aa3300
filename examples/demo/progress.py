"""Progress on the terminal: bars with rates (rich, on a terminal), else a plain line every few
seconds.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self, TextIO

_PLAIN_PERIOD_S: Final = 5.0


class Progress(Protocol):
    """Named running totals. ``say`` prints a line above them.

    A total that is not expected is not shown.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def say(self, text: str) -> None: ...

    def expect(self, name: str, total: int) -> None:
        """Begin a bar, or correct its total."""

    def update(self, name: str, count: int) -> None: ...

    def doing(self, name: str, what: str) -> None:
        """Say what the work on a total is busy with, until the next call; empty
        when it has ended.
        """

    def tick(self) -> None:
        """To be called while nothing may move: what is being done is shown again from time to
        time.
        """


def progress(out: TextIO = sys.stdout) -> Progress:
    """Return the best progress that *out* and the environment allow."""
    if out.isatty():
        try:
            return RichProgress()
        except ImportError:
            pass
    return PlainProgress(out)


@dataclass(slots=True)
class _Count:
    total: int
    count: int = 0
    shown: int = 0
    doing: str = ""


class PlainProgress:
    """One line for all bars, every five seconds, with what moved or is busy; a change of that is
    shown at once.
    """

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._counts: dict[str, _Count] = {}
        self._shown_at = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._show()

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def expect(self, name: str, total: int) -> None:
        self._counts.setdefault(name, _Count(total)).total = total

    def update(self, name: str, count: int) -> None:
        if name in self._counts:
            self._counts[name].count = count
        self.tick()

    def doing(self, name: str, what: str) -> None:
        state = self._counts.get(name)
        if state is not None and state.doing != what:
            state.doing = what
            if what:
                self._show()

    def tick(self) -> None:
        if self._clock() - self._shown_at >= _PLAIN_PERIOD_S:
            self._show()

    def _show(self) -> None:
        now = self._clock()
        elapsed, self._shown_at = max(now - self._shown_at, 1e-9), now
        moved = {
            name: state
            for name, state in self._counts.items()
            if state.count != state.shown or state.doing
        }
        if moved:
            self.say(
                "  " + "   ".join(_plain(name, state, elapsed) for name, state in moved.items())
            )
        for state in moved.values():
            state.shown = state.count


def _plain(name: str, state: _Count, elapsed_s: float) -> str:
    rate = (
        f" ({(state.count - state.shown) / elapsed_s:,.0f}/s)" if state.count != state.shown else ""
    )
    return (
        f"{name} {state.count:,} of "
        f"{state.total:,}{rate}{f': {state.doing}' if state.doing else ''}"
    )


class RichProgress:
    """Bars. Raises ImportError if rich is not installed."""

    def __init__(self) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        class Rate(TextColumn):
            def render(self, task: Any) -> Any:
                speed = task.finished_speed or task.speed
                return super().render(task) if speed is None else f"{speed:,.0f}/s"

        self._bars = Progress(
            TextColumn("{task.description:<17}"),
            BarColumn(),
            TaskProgressColumn(),
            MofNCompleteColumn(),
            Rate(""),
            TimeElapsedColumn(),
        )
        self._tasks: dict[str, Any] = {}
        self._doing: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        self._bars.console.print(text, highlight=False, markup=False)

    def expect(self, name: str, total: int) -> None:
        if name in self._tasks:
            self._bars.update(self._tasks[name], total=total)
        else:
            self._tasks[name] = self._bars.add_task(name, total=total)

    def update(self, name: str, count: int) -> None:
        if name in self._tasks:
            self._bars.update(self._tasks[name], completed=count)

    def doing(self, name: str, what: str) -> None:
        if name in self._tasks and what and self._doing.get(name) != what:
            self.say(f"  {name}: {what}")
        self._doing[name] = what

    def tick(self) -> None:
        """The bar shows the time that has passed by itself."""
