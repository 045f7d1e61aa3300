"""``ogive run --processes N``: several processes with the same listeners, which end together."""

import argparse
import asyncio
import contextlib
import signal
from collections.abc import Sequence
from typing import Final

from ogive.cli.output import say
from ogive.cli.reload import command
from ogive.cli.worker import stop_limit_s
from ogive.errors import OgiveError
from ogive.store.fs import reason

MAX_PROCESSES: Final = 256


async def serve(options: argparse.Namespace) -> int:
    """Run the processes. Return the exit code of the first that ends.

    The others are stopped then: a service manager starts all of them again. Raises OgiveError if
    one cannot be started.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stop.set)
    children: list[asyncio.subprocess.Process] = []
    loop.add_signal_handler(signal.SIGHUP, lambda: _signal(children, signal.SIGHUP))
    try:
        for number in range(options.processes):
            words = command(_of_process(options, number))
            children.append(await asyncio.create_subprocess_exec(*words))
    except OSError as exc:
        # they would go on without this process
        _signal(children, signal.SIGTERM)
        raise OgiveError(
            f"process {len(children) + 1} of {options.processes} cannot be started: {reason(exc)}"
        ) from exc
    ends = [asyncio.ensure_future(child.wait()) for child in children]
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait((*ends, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    first = next((end.result() for end in ends if end.done()), 0)
    if not stop.is_set():
        say(f"a process ended with exit code {first}; the others are stopped")
    _signal(children, signal.SIGTERM)
    _, late = await asyncio.wait(ends, timeout=stop_limit_s(options) + 1.0)
    if late:
        # one whose event loop is blocked hears no signal
        say(f"{len(late)} processes do not end and are killed; their messages come again")
        _signal(children, signal.SIGKILL)
        await asyncio.wait(ends)
    codes = [first, *(end.result() for end in ends)]
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


def _of_process(options: argparse.Namespace, number: int) -> argparse.Namespace:
    """Return the options of one process: its port, and its name for broadcasting listeners."""
    port = options.http_port
    name = options.instance_name
    return argparse.Namespace(
        **vars(options)
        | {
            "processes": 1,
            "http_port": port + number if port else port,
            "instance_name": f"{name or 'DEFAULT'}-{number}",
        }
    )


def _signal(children: Sequence[asyncio.subprocess.Process], number: int) -> None:
    for child in children:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)
