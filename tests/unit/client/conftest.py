"""A cluster of two brokers with a queue of one topic each, and an admin that asks it."""

from collections.abc import AsyncIterator

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
