"""Time for leases on queue locks, which brokers count on while this machine sleeps: a loop's clock
stands still then.
"""

import time

_KNOWS = hasattr(time, "CLOCK_BOOTTIME")


def _slept_s() -> float:
    """Since the machine started; 0 where the system does not tell."""
    return (
        time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
        if _KNOWS
        else 0.0
    )


_BEFORE_S = _slept_s()


def lease_time(now: float) -> float:
    """*now*, a time of the loop's clock, plus what the machine has slept since this process began.

    In whole seconds: that is the difference of two clocks, which are read one after the other.
    """
    return now + round(_slept_s() - _BEFORE_S)
