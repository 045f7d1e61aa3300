"""The process that plans a stream ends with its driver.

Spark runs a stream's Python source in a process of its own, and a driver that is killed tells it nothing. One that waits for a broker just
then would go on waiting for as long as its patience lasts.
"""

import os
import sys
import threading
import time
from typing import Final

CHECK_S: Final = 1.0
_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"


def end_with_driver() -> bool:
    """Watch the parent, if this is a process that Spark made for a stream's source; whether it is one."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or spec.name != _RUNNER:
        return False
    threading.Thread(target=_watch, args=(os.getppid(),), name="ogive-driver-watch", daemon=True).start()
    return True


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(CHECK_S)
    os._exit(1)  # nobody is left who would hear of an exception
