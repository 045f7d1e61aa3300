"""``ogive run --reload``: run the listeners in a separate process, and restart it whenever a file
of the application is saved.

It is a new process, not a new import, so that no old module, thread or connection survives.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ogive.cli.connect import is_there
from ogive.cli.output import say
from ogive.cli.worker import stop_limit_s
from ogive.errors import InvalidOption
from ogive.text import pluralize

POLL_S: Final = 0.5
# files that are checked every POLL_S
MAX_FILES: Final = 10_000
_NOT_OURS: Final = frozenset({"__pycache__", "node_modules"})

Snapshot = dict[str, tuple[int, int]]
"""The time of change (ns) and the size of each Python file."""


async def serve(options: argparse.Namespace) -> int:
    """Run and restart the listeners. Return 0 after SIGTERM or Ctrl-C."""
    stop, loop, folder = asyncio.Event(), asyncio.get_running_loop(), Path.cwd()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    seen = await asyncio.to_thread(snapshot, folder)
    say(
        f"watching {pluralize(len(seen), 'Python file')} in {folder}; a save starts the listeners "
        "again, Ctrl-C ends this"
    )
    while True:
        process = await asyncio.create_subprocess_exec(*command(options))
        change = asyncio.ensure_future(changed(folder, seen))
        ended = asyncio.ensure_future(process.wait())
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait((change, ended, stopped), return_when=asyncio.FIRST_COMPLETED)
        # the reason, such as a syntax error, is on the screen
        if ended.done() and not stop.is_set():
            say(
                f"the listeners ended with exit code {process.returncode}; waiting for the next "
                "save"
            )
            await asyncio.wait((change, stopped), return_when=asyncio.FIRST_COMPLETED)
        await _end(process, stop_limit_s(options))
        stopped.cancel()
        if stop.is_set():
            change.cancel()
            return 0
        seen, names = change.result()
        say(f"{', '.join(names)} changed, starting again")


async def _end(process: asyncio.subprocess.Process, limit_s: float) -> None:
    """End the process as SIGTERM ends ``ogive run``: wait for running calls and commit, before
    anything new starts.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    try:
        async with asyncio.timeout(limit_s):
            await process.wait()
    except TimeoutError:
        say(
            "the listeners do not end, perhaps a call hangs: they are killed, and their messages "
            "come again"
        )
        process.kill()
        await process.wait()


def command(options: argparse.Namespace) -> list[str]:
    """Return the same command without --reload.

    No bytecode is written, because it could not distinguish two saves within one second.
    """
    words = [
        sys.executable,
        "-B",
        "-P",
        "-m",
        "ogive",
        "run",
        *options.targets,
        "--wait",
        str(options.wait),
        *["-v"] * options.verbose,
    ]
    if options.insecure_http:
        words.append("--insecure-http")
    for name in (
        "instance_name",
        "offsets_dir",
        "stop_timeout",
        "http_port",
        "http_host",
        "drain_delay",
        "name_server",
        "credentials",
        "cafile",
        "certfile",
        "keyfile",
    ):
        if (value := getattr(options, name)) not in (None, ""):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words


async def changed(folder: Path, before: Snapshot) -> tuple[Snapshot, list[str]]:
    """Wait until files of *folder* differ from *before* and have stopped changing. Return the new
    snapshot, and the names of the files that changed.
    """
    now, last = before, before
    while now == before or now != last:
        await asyncio.sleep(POLL_S)
        last, now = now, await asyncio.to_thread(snapshot, folder)
    names = [
        name for name in sorted(now.keys() | before.keys()) if now.get(name) != before.get(name)
    ]
    return now, names[:3] + ([f"{len(names) - 3} more"] if len(names) > 3 else [])


def snapshot(folder: Path) -> Snapshot:
    """Return the times and sizes of the Python files below *folder*. Raises InvalidOption for a
    folder with more files than an application has.
    """
    found: Snapshot = {}
    for path in _python_files(folder):
        # the file is gone for a moment: editors replace files
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(path)  # noqa: PTH116  thousands of times a minute
            found[os.path.relpath(path, folder)] = (status.st_mtime_ns, status.st_size)
        if len(found) > MAX_FILES:
            raise InvalidOption(
                f"more than {MAX_FILES:,} Python files in {folder}: run --reload in the "
                "application's own folder"
            )
    return found


def _python_files(folder: Path) -> Iterator[str]:
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if _is_ours(where, name)]
        for name in names:
            if name.endswith(".py"):
                yield os.path.join(where, name)  # noqa: PTH118


def _is_ours(where: str, name: str) -> bool:
    """Return True for a folder that is not hidden, not made by a tool, and not a virtual
    environment.
    """
    return (
        not name.startswith(".")
        and name not in _NOT_OURS
        and not is_there(Path(where, name, "pyvenv.cfg"))
    )
