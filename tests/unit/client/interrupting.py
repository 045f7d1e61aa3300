"""Signals at many moments of a blocking call."""

import gc
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import pytest

ROUNDS: Final = 120
_FIRST_S: Final = 1e-6
# of a step, so that the moments of one sweep lie between those of the others
_BETWEEN: Final = 0.618


def interrupting(test: Any) -> Any:
    """Mark a test that uses the timer of the system, as pytest-timeout does otherwise.

    The interpreter reports an interrupt of a finalizer, and goes on.
    """
    test = pytest.mark.usefixtures("collected")(pytest.mark.timeout(method="thread")(test))
    return pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")(test)


class Sweep:
    """Signals of which each comes *step_s* later in its call than the one before.

    When a call is over before its signal, the next signal comes at the beginning again.
    """

    def __init__(self, step_s: float) -> None:
        self.struck = 0
        self._step_s = step_s
        self._sweeps = 0
        self._delay_s = _FIRST_S

    def strike(self, call: Callable[[], object], handler: Callable[[], object]) -> None:
        """Run *call*, and *handler* once as the handler of a signal, unless the call is over.

        What the handler raises comes out of this function.
        """
        before = self.struck
        try:
            self._signalled(call, handler)
        finally:
            if self.struck > before:
                self._delay_s += self._step_s
            else:
                self._sweeps += 1
                self._delay_s = _FIRST_S + self._sweeps * _BETWEEN % 1 * self._step_s

    def _signalled(self, call: Callable[[], object], handler: Callable[[], object]) -> None:
        over = False

        def handle(number: int, frame: FrameType | None) -> None:
            if not over:
                self.struck += 1
                handler()

        former, collecting = signal.signal(signal.SIGALRM, handle), gc.isenabled()
        # finalizers that the collector calls swallow what a handler raises
        gc.disable()
        try:
            signal.setitimer(signal.ITIMER_REAL, self._delay_s)
            call()
        finally:
            over = True
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
            if collecting:
                gc.enable()
