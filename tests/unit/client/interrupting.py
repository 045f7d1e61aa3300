"""Signals at many moments of a blocking call.

They come from a timer of the system, which pytest-timeout uses, too: tests that import this are
marked with ``timeout(method="thread")``.
"""

import gc
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

ROUNDS: Final = 120
# the call is not always as fast as the one that was measured
MARGIN: Final = 1.3
AGAIN_S: Final = 1e-6


def delays(call: Callable[[], object], rounds: int = ROUNDS) -> Iterator[float]:
    """Yield delays that cover the time of *call*, which is run once to measure it."""
    began = time.perf_counter()
    call()
    took_s = time.perf_counter() - began
    for number in range(rounds):
        yield 1e-6 + MARGIN * took_s * number / rounds


def signalled_after(
    delay_s: float, call: Callable[[], object], handler: Callable[[], object]
) -> bool:
    """Run *call*, and *handler* as the handler of a signal that comes *delay_s* after its begin.

    Return False if the call was over before. What the handler raises comes out of this function.
    """
    over = struck = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal struck
        if over:
            return
        if frame is not None and frame.f_code.co_filename.endswith("_weakrefset.py"):
            # the interpreter itself calls code of this file, reports its errors and goes on
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
            return
        struck = True
        handler()

    before, collecting = signal.signal(signal.SIGALRM, handle), gc.isenabled()
    # finalizers that the collector calls swallow what a handler raises
    gc.disable()
    try:
        signal.setitimer(signal.ITIMER_REAL, delay_s)
        call()
        over = True
    finally:
        over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if collecting:
            gc.enable()
    return struck
