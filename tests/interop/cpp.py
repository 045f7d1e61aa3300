"""Apache's C++ client as a child process: cpp_client.py says what it can do."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.interop.apache import split_json_lines

PROGRAM = Path(__file__).with_name("cpp_client.py")


def send(name_server: str, topic: str, count: int, mode: str = "sync") -> list[dict[str, Any]]:
    """One result per send; none for "oneway", after which one more message has left, with the
    number *count*.
    """
    return _run("send", name_server, topic, count, mode)


def consume(
    name_server: str,
    topic: str,
    group: str,
    deliveries: int,
    mode: str = "concurrent",
    tags: str = "*",
    *,
    timeout_s: float = 100.0,
    later: int = 0,
) -> list[dict[str, Any]]:
    """One line per delivery, in order of arrival.

    Raises AssertionError when fewer than *deliveries* come in time.

    *later*: how many of them, the first ones, it asks to get again.
    """
    return _run("consume", name_server, topic, group, deliveries, mode, tags, timeout_s, later)


def pull(
    name_server: str,
    topic: str,
    group: str,
    deliveries: int,
    tags: str = "*",
    timeout_s: float = 60.0,
) -> list[dict[str, Any]]:
    """The same by its pull consumer, each queue from its first message."""
    return _run("pull", name_server, topic, group, deliveries, tags, timeout_s)


def _run(*arguments: object) -> list[dict[str, Any]]:
    # the library logs into the home folder
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, str(PROGRAM), *map(str, arguments)]
        done = subprocess.run(
            command,
            env={**os.environ, "HOME": home},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
    lines, other = split_json_lines(done.stdout)
    reason = signal.Signals(-done.returncode).name if done.returncode < 0 else done.returncode
    assert done.returncode == 0, (
        f"{command[2:]} ended with {reason} after {len(lines)} "
        f"lines\n{other}\n{done.stderr[-3000:]}"
    )
    return list(lines)
