"""``ogive run``: listeners in this process or on Spark, until a signal comes."""

import argparse
import logging
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ogive.cli import reload
from ogive.cli.connect import client_config, place, spark_options
from ogive.cli.run_options import NOT_ON_SPARK, ON_SPARK
from ogive.cli.targets import load_listeners
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.push_consumer import run as serve
from ogive.client.listener import AnyListener
from ogive.errors import InvalidOption
from ogive.text import pluralize

_LEVELS: Final = (logging.WARNING, logging.INFO, logging.DEBUG)


def run(options: argparse.Namespace) -> int | Coroutine[Any, Any, int]:
    """Find the listeners, say which, and run them. 0 after SIGTERM or Ctrl-C.

    Raises KeyboardInterrupt if it comes again, or while Spark starts.
    """
    only = [
        f"--{name.replace('_', '-')}"
        for name, default in ON_SPARK.items()
        if getattr(options, name) != default
    ]
    if only and options.engine != "spark":
        raise InvalidOption(f"{', '.join(only)}: only with --engine spark")
    only = [
        f"--{name.replace('_', '-')}" for name in NOT_ON_SPARK if getattr(options, name) is not None
    ]
    if only and options.engine == "spark":
        raise InvalidOption(f"{', '.join(only)}: only with --engine local")
    if options.wait < 0:
        raise InvalidOption(f"--wait {options.wait:g}: 0 or more seconds are possible")
    if options.reload:
        if options.engine == "spark":
            raise InvalidOption(
                "--reload: only with --engine local; a Spark job is started again with its "
                "checkpoint"
            )
        return reload.serve(options)
    listeners = load_listeners(options.targets)
    # behind the import: an application that sets up logging of its own keeps it
    logging.basicConfig(
        level=_LEVELS[min(options.verbose, 2)],
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if options.engine == "spark":
        run_on_spark(listeners, options)
    else:
        run_here(listeners, options)
    return 0


def run_here(listeners: Sequence[AnyListener], options: argparse.Namespace) -> None:
    """As members of their groups, on threads and the loop of this process."""
    for one in listeners:
        print(f"{one.name}: {one.config.topic} for group {one.config.group}", flush=True)
    folder = None if options.offsets_dir is None else Path(options.offsets_dir)
    config = ConsumerConfig(await_termination_s=options.wait, offsets_dir=folder)
    serve(
        *listeners,
        config=config,
        client=replace(client_config(options), instance_name=options.instance_name),
    )


def run_on_spark(listeners: Sequence[AnyListener], options: argparse.Namespace) -> None:
    """As a Spark job whose executors are the members of their groups."""
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
        say=_say,
    )
    for group, total in totals.items():
        batches = f"{total.batches:,} {'batch' if total.batches == 1 else 'batches'}"
        print(
            f"{group}: {pluralize(total.messages, 'message')} consumed in {batches}, "
            f"{total.failed:,} failed",
            flush=True,
        )


def _say(text: str) -> None:
    print(f"ogive: {text}", file=sys.stderr, flush=True)
