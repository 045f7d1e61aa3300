"""A group on a scripted broker, and a real broker for what a script does not show."""

from collections.abc import AsyncIterator, Iterator

import pytest

from ogive.testing import Broker, FakeBroker
from tests.never.scene import RETRY, TOPIC, Scene


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """One topic with one queue."""
    async with FakeBroker({TOPIC: 1, RETRY: 1}) as broker:
        yield Scene(broker)


@pytest.fixture(scope="module")
def real() -> Iterator[Broker]:
    """A first retry comes after a second, and so do levels 1 and 2; whatever takes a higher level
    does not come within a test.
    """
    with Broker(
        flush="async", options=("--delay-levels", "1s 1s 1s " + " ".join(["1h"] * 15))
    ) as broker:
        yield broker
