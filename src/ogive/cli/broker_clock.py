"""The clocks of brokers, by the figures that they report."""

import argparse
import re
import time
from collections.abc import Collection
from datetime import timedelta
from typing import Final

from ogive import aio
from ogive.cli.connect import client_config
from ogive.client.admin.records import BrokerStatus
from ogive.errors import BrokerError, TransportError

_RUNTIME: Final = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")


def skew_s(broker: BrokerStatus, before: float, after: float) -> float | None:
    """Return how many seconds at least the broker's clock is ahead of ours (negative: behind); None
    if the broker does not report its time.

    It answered between *before* and *after*, with the time of its start and the whole seconds since
    then.
    """
    started = broker.figures.get("bootTimestamp", "")
    runtime = _RUNTIME.search(broker.figures.get("runtime", ""))
    if not started.isdecimal() or runtime is None:
        return None
    days, hours, minutes, seconds = map(int, runtime.groups())
    now = int(started) / 1000 + ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return max(now - after, 0.0) + min(now + 1 - before, 0.0)


async def behind(options: argparse.Namespace, names: Collection[str]) -> timedelta:
    """Return how far the slowest clock of the brokers is behind ours at least; 0 if they are right,
    or do not tell this user.
    """
    before = time.time()
    try:
        async with aio.Admin(client=client_config(options)) as admin:
            brokers = await admin.brokers()
    except (BrokerError, TransportError):
        return timedelta()
    after = time.time()
    skews = [skew_s(broker, before, after) for broker in brokers if broker.name in names]
    return timedelta(seconds=max((-skew for skew in skews if skew is not None), default=0.0))
