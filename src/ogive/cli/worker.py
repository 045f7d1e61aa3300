"""Process of ``ogive run``: listeners on threads and the loop, until a signal, with pages over HTTP
for probes and Prometheus.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from ogive.cli import probes
from ogive.cli.connect import client_config
from ogive.cli.exits import EXIT_STOP_TIMEOUT
from ogive.cli.logs import step_log_level
from ogive.cli.up_checks import check_probes
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.push_consumer import PushConsumer, run_until_signal
from ogive.client.instance import ClientInstance
from ogive.client.listener import AnyListener
from ogive.client.metrics import metrics
from ogive.errors import InvalidOption
from ogive.transport.monitoring import Response

log = logging.getLogger(__name__)

# time for closing connections and the interpreter, after the wait for running calls
GRACE_S: Final = 10.0
# for the log line that says why the process is ended
LAST_WORDS_S: Final = 0.5


def check(options: argparse.Namespace) -> None:
    """Raise InvalidOption for values that contradict each other or are out of range."""
    for name in ("wait", "stop_timeout"):
        value = getattr(options, name)
        if value is not None and not 0 <= value < float("inf"):
            raise InvalidOption(f"--{name.replace('_', '-')} {value:g}: must be 0 or more seconds")
    check_probes(options)
    if options.http_port is not None and not 0 <= options.http_port <= 65_536 - options.processes:
        raise InvalidOption(
            f"--http-port {options.http_port}: must be between 0 and {65_536 - options.processes}"
        )


def stop_limit_s(options: argparse.Namespace) -> float:
    """Return the seconds from a signal to the end of the process, at most."""
    if options.stop_timeout is not None:
        return float(options.stop_timeout)
    return float((options.drain_delay or 0) + options.wait + GRACE_S)


def run(listeners: Sequence[AnyListener], options: argparse.Namespace) -> None:
    """Run the listeners until a signal arrives.

    Raises TryLater if the port is in use, KeyboardInterrupt after a second signal.
    """
    try:
        asyncio.run(_work(listeners, options))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _work(listeners: Sequence[AnyListener], options: argparse.Namespace) -> None:
    folder = None if options.offsets_dir is None else Path(options.offsets_dir)
    config = ConsumerConfig(await_termination_s=options.wait, offsets_dir=folder)
    settings = replace(client_config(options), instance_name=options.instance_name)
    state = "starting"

    def ready() -> Response:
        if state:
            return Response(503, f"not ready: {state}\n")
        if not client.is_connected:
            return Response(503, "not ready: no broker answers\n")
        return Response(200, "ready\n")

    async def started() -> None:
        nonlocal state
        state = ""

    async def drain() -> None:
        nonlocal state
        state = "stopping"
        if options.drain_delay:
            log.warning("stops in %g s; a second signal stops it at once", options.drain_delay)
            await asyncio.sleep(options.drain_delay)

    async with AsyncExitStack() as running:
        step_log_level_at_hang_up()
        client = await running.enter_async_context(ClientInstance(settings))
        if (address := await probes.serve(options, ready, metrics, running)) is not None:
            print(f"metrics {address}", flush=True)
        consumer = PushConsumer(*listeners, config=config, client=client)
        await run_until_signal(
            consumer, started=started, drain=drain, at_once=_limited(stop_limit_s(options))
        )


def _limited(limit_s: float) -> Callable[[], object]:
    """Return a function for signal handlers: after its first call the process ends in *limit_s*."""
    asked, ask = os.pipe()

    def end() -> None:
        os.read(asked, 1)
        time.sleep(limit_s)
        _give_up(limit_s)

    # before any signal: a handler must not start a thread
    threading.Thread(target=end, name="stop limit", daemon=True).start()
    return lambda: os.write(ask, b"\0")


def _give_up(limit_s: float) -> None:
    """End the process, whatever still runs."""
    said = threading.Thread(target=_say_why, args=(limit_s,), daemon=True)
    said.start()
    # a log that nobody reads must not hold up the end
    said.join(LAST_WORDS_S)
    os._exit(EXIT_STOP_TIMEOUT)


def _say_why(limit_s: float) -> None:
    log.error(
        "not stopped %g s after the signal: the process ends, and the messages of running calls "
        "come again",
        limit_s,
    )
    sys.stdout.flush()
    sys.stderr.flush()


def step_log_level_at_hang_up() -> None:
    """Let SIGHUP change the log level: from WARNING to INFO, to DEBUG, and back.

    In a terminal SIGHUP ends the process as before, and after ``nohup`` it stays ignored.
    """
    in_terminal = sys.stdin is not None and sys.stdin.isatty()
    if not in_terminal and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, step_log_level)
