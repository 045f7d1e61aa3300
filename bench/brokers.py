"""The brokers under test, with a heap and a collector as one would run Apache's in production on a
machine of this size.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from tests.interop.apache import Apache
from tests.peers import RunningBroker, our_broker

Flush = Literal["sync", "async"]
PEERS: Final = ("apache", "ogive")
JVM: Final = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=1g", "-XX:+UseG1GC")


@contextmanager
def running(peer: str, directory: Path, flush: Flush) -> Iterator[tuple[RunningBroker, float]]:
    """The broker, and how many seconds it took from its start until it was in the routes."""
    settings = {"flushDiskType": f"{flush.upper()}_FLUSH"}
    broker: RunningBroker = (
        Apache(directory, settings, jvm=JVM)
        if peer == "apache"
        else our_broker(directory, flush=flush)
    )
    started = time.perf_counter()
    with broker:
        yield broker, time.perf_counter() - started
