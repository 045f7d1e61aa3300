"""A broker in the test's own event loop, looked at through its socket."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ogive.access.user_table import AccessTable
from ogive.broker import Broker, BrokerConfig
from ogive.broker.startup import Machine
from tests.raw_client import RawClient

StartBroker = Callable[..., Awaitable[Broker]]


@pytest.fixture
async def start_broker(tmp_path: Path) -> AsyncIterator[StartBroker]:
    """Starts a broker with settings of the test's choice; all of them are stopped at the end.

    They share one directory.
    """
    started: list[Broker] = []

    async def start(
        access: AccessTable | None = None, machine: Machine | None = None, **settings: Any
    ) -> Broker:
        defaults: dict[str, Any] = {
            "data": tmp_path / "store",
            "port": 0,
            "segment_bytes": 1024 * 1024,
        }
        broker = Broker(BrokerConfig(**(defaults | settings)), machine, access=access)
        await broker.start()
        started.append(broker)
        return broker

    yield start
    for broker in started:
        await broker.stop()


def crash_image(broker: Broker, folder: Path) -> Path:
    """What a broker that is killed now leaves behind: its directory as it stands, in *folder*."""

    def copy(source: str, target: str) -> str:
        # a new table, which took the place of the old one since it was listed
        with suppress(FileNotFoundError):
            shutil.copy2(source, target)
        return target

    return Path(shutil.copytree(broker.config.data, folder / "crashed", copy_function=copy))


@pytest.fixture
async def server(start_broker: StartBroker) -> Broker:
    return await start_broker()


@pytest.fixture
async def client(server: Broker) -> AsyncIterator[RawClient]:
    async with await RawClient.open(server.address) as client:
        yield client


@pytest.fixture
async def another(server: Broker) -> AsyncIterator[RawClient]:
    """A second connection."""
    async with await RawClient.open(server.address) as client:
        yield client


@pytest.fixture
async def cleanup() -> AsyncIterator[AsyncExitStack]:
    """Closes at the end what a test pushes on it."""
    async with AsyncExitStack() as stack:
        yield stack


@asynccontextmanager
async def not_reading(client: RawClient, server: Broker, limit: int) -> AsyncIterator[None]:
    """The only client reads nothing, until what it asked for in here has made the broker hold back
    with little more than *limit* bytes.
    """
    transport = client.connection._transport
    assert transport is not None
    transport.pause_reading()
    yield
    (connection,) = server.context.origins
    async with asyncio.timeout(60):
        while not server.context.slow_readers.must_wait(connection):
            await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert connection.unsent_bytes < limit + 4 * 1024 * 1024
    transport.resume_reading()
