"""Ends the process that plans a stream when its driver is gone.

Spark runs a stream's Python source in a separate process, which is not told when the driver is
killed. Without this, one that is waiting for a broker would stay until its time is over.
"""

import os
import sys
import threading
import time
from typing import Final

CHECK_S: Final = 1.0
_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"


def end_with_driver() -> bool:
    """Watch the parent, if this is a process that Spark made for a stream's source; whether it is
    one.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or spec.name != _RUNNER:
        return False
    threading.Thread(
        target=_watch, args=(os.getppid(),), name="ogive-driver-watch", daemon=True
    ).start()
    return True


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(CHECK_S)
    # there is nobody left to see an exception
    os._exit(1)
