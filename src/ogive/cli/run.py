"""``ogive run``: find the listeners of ``app:bill``, and run them in this process or on Spark until
a signal arrives.
"""

import argparse
import asyncio
import contextlib
import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ogive.cli import reload, worker
from ogive.cli.connect import client_config, place, spark_options
from ogive.cli.logs import LEVELS
from ogive.cli.output import say
from ogive.cli.reload import command
from ogive.cli.run_options import NOT_ON_SPARK, ON_SPARK
from ogive.cli.worker import stop_limit_s
from ogive.client.consumer.push_consumer import found_in
from ogive.client.listener import AnyListener, Listener
from ogive.errors import InvalidOption, OgiveError
from ogive.store.fs import reason
from ogive.text import pluralize


def run(options: argparse.Namespace) -> int | Coroutine[Any, Any, int]:
    """Find the listeners, print their names, and run them. Return 0 after SIGTERM or Ctrl-C.

    Raises KeyboardInterrupt if a second signal arrives, or one while Spark starts.
    """
    only = [
        f"--{name.replace('_', '-')}"
        for name, default in ON_SPARK.items()
        if getattr(options, name) != default
    ]
    if only and options.engine != "spark":
        raise InvalidOption(f"{', '.join(only)}: only with --engine spark")
    only = [
        f"--{name.replace('_', '-')}"
        for name, default in NOT_ON_SPARK.items()
        if getattr(options, name) != default
    ]
    if only and options.engine == "spark":
        raise InvalidOption(f"{', '.join(only)}: only with --engine local")
    if not 1 <= options.processes <= MAX_PROCESSES:
        raise InvalidOption(
            f"--processes {options.processes}: must be between 1 and {MAX_PROCESSES}"
        )
    worker.check(options)
    if options.reload:
        if options.engine == "spark":
            raise InvalidOption(
                "--reload: only with --engine local; a Spark job is started again with its "
                "checkpoint"
            )
        if options.processes > 1:
            raise InvalidOption("--reload restarts one process: leave --processes out")
        return reload.serve(options)
    if options.processes > 1:
        # reports a wrong target once, before any process starts
        load_listeners(options.targets)
        return serve(options)
    listeners = load_listeners(options.targets)
    # after the import: an application that sets up its own logging keeps it
    logging.basicConfig(
        level=LEVELS[min(options.verbose, 2)],
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if options.engine == "spark":
        run_on_spark(listeners, options)
    else:
        run_here(listeners, options)
    return 0


def run_here(listeners: Sequence[AnyListener], options: argparse.Namespace) -> None:
    """Run the listeners as members of their groups, on threads and the loop of this process."""
    for one in listeners:
        print(f"{one.name}: {one.config.topic} for group {one.config.group}", flush=True)
    worker.run(listeners, options)


def run_on_spark(listeners: Sequence[AnyListener], options: argparse.Namespace) -> None:
    """Run the listeners as a Spark job whose executors are the members of their groups."""
    try:
        from ogive.spark.jobs import serve as serve_on_spark
        from ogive.spark.options import access_of
    except ModuleNotFoundError as exc:
        raise InvalidOption(
            f"--engine spark needs Spark, and {exc.name} is not installed: pip install "
            "'ogive[spark]'"
        ) from None
    # report unreadable files before Spark starts, which takes seconds
    client_config(options)
    for one in listeners:
        print(
            f"{one.name}: {one.config.topic} for group {one.config.group}, on Spark "
            f"({options.master})",
            flush=True,
        )
    totals = serve_on_spark(
        listeners,
        client=access_of(spark_options(place(options))),
        master=options.master,
        memory=options.memory,
        checkpoint=Path(options.checkpoint),
        py_files=options.py_files,
        once=options.once,
        wait_s=options.wait,
        say=say,
    )
    for group, total in totals.items():
        batches = f"{total.batches:,} {'batch' if total.batches == 1 else 'batches'}"
        print(
            f"{group}: {pluralize(total.messages, 'message')} consumed in {batches}, "
            f"{total.failed:,} failed",
            flush=True,
        )


def load_listeners(targets: Iterable[str]) -> list[AnyListener]:
    """Return the listeners that *targets* name, each once, in their order. Modules are found as by
    ``python -m``, also in the working directory.

    A target is ``module:name``, with dots for attributes of attributes, or a module alone: all its
    listeners. Raises InvalidOption; if a module fails during its import, its traceback is on
    standard error before that.
    """
    import_from_here()
    found: dict[int, AnyListener] = {}
    for target in targets:
        for one in _of_target(target):
            found.setdefault(id(one), one)
    return list(found.values())


def import_from_here() -> None:
    """Let imports also find modules in the working directory."""
    # as text, because sys.path holds text
    if os.getcwd() not in sys.path and "" not in sys.path:  # noqa: PTH109
        sys.path.insert(0, os.getcwd())  # noqa: PTH109


def _of_target(target: str) -> list[AnyListener]:
    name, _, path = target.partition(":")
    module = _import(target, name)
    if ":" not in target:
        listeners = list(listeners_in(module).values())
        if not listeners:
            raise InvalidOption(
                f"{target}: {name} has no listener; a function becomes one with "
                "@ogive.listener(topic, group=...)"
            )
        return listeners
    value: Any = module
    for word in path.split("."):
        value = getattr(value, word, None)
    if not isinstance(value, Listener):
        what = (
            f"{name} has no {path!r}"
            if value is None
            else f"{path!r} is a {type(value).__name__}, not a listener"
        )
        raise InvalidOption(f"{target}: {what}. {_advice(name, module)}")
    return [value]


def listeners_in(module: ModuleType) -> dict[str, AnyListener]:
    """Return the listeners of a module by their names in it, in the order of their definition."""
    return {name: value for name, value in vars(module).items() if isinstance(value, Listener)}


def _advice(name: str, module: ModuleType) -> str:
    names = ", ".join(f"{name}:{one}" for one in listeners_in(module))
    return (
        f"Its listeners are: {names}"
        if names
        else "It has none; a function becomes one with @ogive.listener(topic, group=...)"
    )


def _import(target: str, name: str) -> ModuleType:
    if name.endswith(".py") or "/" in name:
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        _, colon, listener = target.partition(":")
        raise InvalidOption(
            f"{target}: expected a module as in an import, not a file: {module}{colon}{listener}"
        )
    if not all(word.isidentifier() for word in name.split(".")):
        raise InvalidOption(f"{target}: expected module:listener, for example app:bill")
    try:
        with found_in(name):
            return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
            parent, _, last = name.rpartition(".")
            hint = (
                f"; the listener comes after a colon: {parent}:{last}"
                if exc.name == name and parent in sys.modules
                else ""
            )
            where = f"neither here ({os.getcwd()}) nor installed"  # noqa: PTH109
            raise InvalidOption(
                f"{target}: there is no module {exc.name!r}, {where}{hint}"
            ) from None
        raise _broken(target, name, exc) from None
    except Exception as exc:  # noqa: BLE001
        # the user's module may raise anything at import; show it with its place
        raise _broken(target, name, exc) from None


def _broken(target: str, name: str, error: Exception) -> InvalidOption:
    frames = traceback.extract_tb(error.__traceback__)
    first = next(
        (
            i
            for i, frame in enumerate(frames)
            if "importlib" not in frame.filename and frame.filename != __file__
        ),
        # a SyntaxError names its place by itself
        len(frames),
    )
    if frames[first:]:
        sys.stderr.write("Traceback (most recent call last):\n")
        sys.stderr.write("".join(traceback.format_list(frames[first:])))
    sys.stderr.write("".join(traceback.format_exception_only(error)))
    return InvalidOption(f"{target}: {name} cannot be imported: {type(error).__name__}: {error}")


# ``ogive run --processes N``: several processes with the same listeners, which end together.

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
