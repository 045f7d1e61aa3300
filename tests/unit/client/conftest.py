"""A cluster of two brokers with a queue of one topic each, and an admin that asks it; and the
collection of what a test leaves.
"""

import gc
from collections.abc import AsyncIterator, Iterator

import pytest

from ogive.aio import Admin
from ogive.testing.fake_broker import FakeBroker


@pytest.fixture
async def brokers() -> AsyncIterator[tuple[FakeBroker, FakeBroker]]:
    async with (
        FakeBroker({"Orders": 1}) as first,
        FakeBroker({"Orders": 1}, name="broker-b") as second,
    ):
        first.peers.append(second)
        yield first, second


@pytest.fixture
async def admin(brokers: tuple[FakeBroker, FakeBroker]) -> AsyncIterator[Admin]:
    async with Admin(brokers[0].address) as made:
        yield made


@pytest.fixture
def collected() -> Iterator[None]:
    """Collect garbage while the test's own filters of warnings hold.

    A coroutine that an interrupt left unawaited, in a cycle with its error, would otherwise fail
    the test that runs when it is collected.
    """
    yield
    gc.collect()
