"""Child processes of the tests: started with their output in a file or a pipe, always stopped,
never waited for without a limit.
"""

import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

STOP_S = 60.0
QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options for a Java that does little: half of its time on a processor."""
BLOCK = 8  # ports


class StartFailed(AssertionError):
    """A process did not come up; the message ends with the tail of its output."""


def stop(process: subprocess.Popen[bytes], sign: signal.Signals = signal.SIGTERM) -> int:
    """Send *sign*, wait, kill after STOP_S.

    Returns the exit code; harmless when the process has ended.
    """
    if process.poll() is None:
        process.send_signal(sign)
    try:
        return process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(STOP_S)


def wait_until(
    ready: Callable[[], bool],
    process: subprocess.Popen[bytes],
    log: Path,
    what: str,
    limit_s: float = 60.0,
) -> None:
    """Ask *ready* every 50 ms. Raises StartFailed when *process* ends first or the limit passes."""
    give_up = time.monotonic() + limit_s
    while not ready():
        if process.poll() is not None:
            raise StartFailed(f"{what} ended with code {process.returncode} at start\n{tail(log)}")
        if time.monotonic() > give_up:
            raise StartFailed(f"{what} is not ready after {limit_s:.0f} s\n{tail(log)}")
        time.sleep(0.05)


def tail(log: Path, lines: int = 30) -> str:
    """The last lines of *log*, without what Java's logging library says about itself ("... |-INFO
    in ...").
    """
    said = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
    return "\n".join([line for line in said if " |-" not in line][-lines:])


def _blocks() -> Iterator[int]:
    """The first ports of blocks of BLOCK, again and again, in an order of this process's own.

    Between the choice of a port and its use lie seconds of a JVM's start. So no process is given a
    block twice before it has had them all, and of pytest's workers each has blocks of its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = list(range(20_000, 30_000, BLOCK))[worker::workers]
    random.SystemRandom().shuffle(mine)
    return itertools.cycle(mine)


_next_blocks = _blocks()


def free_port(offsets: Iterable[int] = (0,)) -> int:
    """A port that is free now, as are port + offset for each of *offsets*, which lie within BLOCK
    ports; no soon caller gets one of them.

    Below the range that the system gives out by itself.
    """
    wanted = sorted(offsets)
    assert wanted[-1] - wanted[0] < BLOCK, wanted
    for _ in range(1000):
        port = next(_next_blocks) - wanted[0]
        if all(is_free(port + offset) for offset in wanted):
            return port
    raise StartFailed("no free port between 20000 and 30000")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
        return True


@contextlib.contextmanager
def broker_process(folder: Path, program: str, *arguments: str) -> Iterator[str]:
    """A Python *program* that runs a broker and prints its address, which this gives; killed at the
    end. Its errors go into *folder*.
    """
    errors = folder / "broker.log"
    with errors.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().decode().strip()
        assert address, errors.read_text()[-2000:]
        yield address
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
