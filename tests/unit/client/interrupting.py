"""Signals at chosen moments of a blocking call."""

import dis
import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

RETURN = dis.opmap["RETURN_VALUE"]


def signalled_at(moment: int, call: Callable[[], object], handler: Callable[[], object]) -> bool:
    """Run *call*, and *handler* as a signal handler would run before its instruction number
    *moment*.

    Return False if the call was over before. What the handler raises comes out of this function.
    """
    left = moment

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        # The interpreter itself calls code of this file, reports its errors and goes on.
        if frame.f_code.co_filename.endswith("_weakrefset.py"):
            return None
        # In this order: 3.13 looks for the function when it is switched on.
        frame.f_trace, frame.f_trace_opcodes = trace, True
        # The interpreter does not look for signals before it returns from a function.
        left -= event == "opcode" and frame.f_code.co_code[frame.f_lasti] != RETURN
        if left == 0:
            left = -1
            sys.settrace(None)
            handler()
        return trace

    before, collecting = sys.gettrace(), gc.isenabled()
    # Finalizers that the collector calls swallow what a handler raises.
    gc.disable()
    # 3.12: what settrace() goes by.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        if collecting:
            gc.enable()
    return left < 0
