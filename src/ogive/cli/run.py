"""``ogive run``: listeners in this process, until a signal comes."""

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import Final

from ogive.cli.connect import client_config
from ogive.cli.targets import load_listeners
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.push import run as serve
from ogive.client.listener import AnyListener

_LEVELS: Final = (logging.WARNING, logging.INFO, logging.DEBUG)


def run(options: argparse.Namespace) -> int:
    """Find the listeners, say which, and run them. 0 after SIGTERM or Ctrl-C."""
    listeners = load_listeners(options.targets)
    logging.basicConfig(  # behind the import: an application that sets up logging of its own keeps it
        level=_LEVELS[min(options.verbose, 2)], format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    run_here(listeners, options)
    return 0


def run_here(listeners: Sequence[AnyListener], options: argparse.Namespace) -> None:
    """As members of their groups, on threads and the loop of this process."""
    for one in listeners:
        print(f"{one.name}: {one.config.topic} for group {one.config.group}", flush=True)
    config = ConsumerConfig(await_termination_s=options.wait)
    serve(*listeners, config=config, client=client_config(options))
