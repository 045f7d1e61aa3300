"""Child processes of the tests: started with their output in a file or a pipe, always stopped, never waited for without a limit."""

import contextlib
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

STOP_S = 60.0


class StartFailed(AssertionError):
    """A process did not come up; the message ends with the tail of its output."""


def stop(process: subprocess.Popen[bytes], sign: signal.Signals = signal.SIGTERM) -> int:
    """Send *sign*, wait, kill after STOP_S. Returns the exit code; harmless when the process has ended."""
    if process.poll() is None:
        process.send_signal(sign)
    try:
        return process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(STOP_S)


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, what: str, limit_s: float = 60.0) -> None:
    """Ask *ready* every 50 ms. Raises StartFailed when *process* ends first or the limit passes."""
    give_up = time.monotonic() + limit_s
    while not ready():
        if process.poll() is not None:
            raise StartFailed(f"{what} ended with code {process.returncode} at start\n{tail(log)}")
        if time.monotonic() > give_up:
            raise StartFailed(f"{what} is not ready after {limit_s:.0f} s\n{tail(log)}")
        time.sleep(0.05)


def tail(log: Path, lines: int = 30) -> str:
    """The last lines of *log*, without what Java's logging library says about itself ("... |-INFO in ...")."""
    said = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
    return "\n".join([line for line in said if " |-" not in line][-lines:])


def free_port(offsets: Iterable[int] = (0,)) -> int:
    """A port that is free now, as are port + offset for each of *offsets*; below the range that the system gives out by itself."""
    for _ in range(1000):
        port = random.randrange(20_000, 30_000)
        if all(is_free(port + offset) for offset in offsets):
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
    """A Python *program* that runs a broker and prints its address, which this gives; killed at the end. Its errors go into *folder*."""
    errors = folder / "broker.log"
    with errors.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL
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
