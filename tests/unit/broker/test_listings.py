"""Whose turn it is to have a listing made, and what a listing does whose bytes are on the disk only."""

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ogive.broker import Broker, listings
from ogive.broker.routes import ROUTES, Route
from ogive.errors import StoreError
from ogive.store import disk
from ogive.store.disk import Cold, Place, each_or_cold
from ogive.wire.codes import RequestCode
from tests.raw_client import RawClient
from tests.unit.broker.cold_disk import ColdDisk

QUEUES = 8


@pytest.fixture
async def topic(server: Broker, client: RawClient) -> str:
    """Eight queues with a message each."""
    await client.ok(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T", readQueueNums=QUEUES, writeQueueNums=QUEUES, order=False)
    for queue in range(QUEUES):
        await client.send("T", queue=queue)
    return "T"


def forgets_at_once(server: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Memory is so short that nothing that is read stays in it. The sizes of what was looked for there."""
    looked_for: list[int] = []

    def pread_now(handle: int, size: int, offset: int) -> None:
        looked_for.append(size)

    hot = server.context.store._log.hot
    hot._chunks.clear()
    hot._starts.clear()
    monkeypatch.setattr(server.context.store._fs, "pread_now", pread_now)
    return looked_for


class Slow:
    """A disk that reads when it is told to. *brought_in*: how often something was."""

    def __init__(self, server: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk = ColdDisk(server.context.store)
        monkeypatch.setattr(server.context.cold_reads, "fetch", self.disk.fetch)
        self.disk.forget()

    async def until_asked(self) -> None:
        async with asyncio.timeout(20):
            while not self.disk.waiting:
                await asyncio.sleep(0)

    async def read_until(self, *answers: "asyncio.Future[Any]") -> None:
        async with asyncio.timeout(20):
            while not all(answer.done() for answer in answers):
                self.disk.bring_in()
                await asyncio.sleep(0)


# --- turns -----------------------------------------------------------------------------------------------------------


async def test_connections_take_turns_and_each_has_its_listings_in_order(
    server: Broker, client: RawClient, another: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four thousand listings of one client would else come before one of everybody else."""
    route = ROUTES[RequestCode.GET_ALL_TOPIC_CONFIG]
    assert isinstance(route, Route)
    made: list[tuple[bool, int]] = []

    def handle(ctx: Any, connection: Any, header: Any, body: bytes) -> Any:
        made.append((len(body) >= 100, len(body) % 100))
        return route.handle(ctx, connection, header, body)

    monkeypatch.setitem(ROUTES, RequestCode.GET_ALL_TOPIC_CONFIG, dataclasses.replace(route, handle=handle))
    async with server.context.listings.turn:
        many = [client.start(RequestCode.GET_ALL_TOPIC_CONFIG, bytes(n)) for n in range(20)]
        while len(server.context._tasks) < 20:
            await asyncio.sleep(0)
        few = [another.start(RequestCode.GET_ALL_TOPIC_CONFIG, bytes(100 + n)) for n in range(2)]
        while len(server.context._tasks) < 22:
            await asyncio.sleep(0)
    await asyncio.gather(*many, *few)
    assert made[:5] == [(False, 0), (True, 0), (False, 1), (True, 1), (False, 2)]
    assert made[5:] == [(False, n) for n in range(3, 20)]


async def test_a_connection_that_is_gone_is_forgotten(server: Broker, client: RawClient) -> None:
    async with await RawClient.open(server.address) as another:
        await another.ok(RequestCode.GET_ALL_TOPIC_CONFIG)
        await client.ok(RequestCode.GET_ALL_TOPIC_CONFIG)
        assert len(server.context.listings._of) == 2
    while len(server.context.listings._of) > 1:
        await client.ok(RequestCode.GET_ALL_TOPIC_CONFIG)


# --- from the disk ---------------------------------------------------------------------------------------------------


async def test_a_listing_ends_where_memory_holds_nothing_that_was_read(
    server: Broker, client: RawClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the loop waits for nothing: after a few tries, what was read is kept until the answer."""
    in_memory = await client.ok(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
    forgets_at_once(server, monkeypatch)
    monkeypatch.setattr(server.context.store, "waiting", None)
    async with asyncio.timeout(20):
        answer = await client.ok(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
    assert answer.body == in_memory.body
    while server.context._tasks:
        await asyncio.sleep(0)
    assert not server.context.store._disk._kept


async def test_a_listing_that_needs_more_than_is_kept_waits_for_the_disk_at_last(
    server: Broker, client: RawClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = await client.ok(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
    monkeypatch.setattr(disk, "MAX_KEPT_BYTES", 0)
    monkeypatch.setattr(listings, "MAX_TRIES", 6)
    looked_for = forgets_at_once(server, monkeypatch)
    async with asyncio.timeout(20):
        answer = await client.ok(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
    assert answer.body == in_memory.body
    assert len(looked_for) == 6 * QUEUES


async def test_one_listing_at_a_time_is_brought_in_and_others_are_made_meanwhile(
    server: Broker, client: RawClient, another: RawClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(server, monkeypatch)
    first = client.start(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
    await slow.until_asked()
    second = another.start(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
    async with await RawClient.open(server.address) as third:
        for _ in range(10):
            await third.ok(RequestCode.GET_ALL_TOPIC_CONFIG)
    assert len(slow.disk.waiting) == 1
    await slow.read_until(first, second)
    assert [answer.result().code for answer in (first, second)] == [0, 0]


async def test_nothing_more_is_read_for_a_client_that_is_gone(
    server: Broker, client: RawClient, another: RawClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(server, monkeypatch)
    another.start(RequestCode.GET_TOPIC_STATS_INFO, topic=topic).add_done_callback(lambda answer: answer.exception())
    await slow.until_asked()
    another.connection.close()
    while len(server.context.born_hosts) > 1:
        await asyncio.sleep(0)
    slow.disk.bring_in()
    while server.context._tasks:
        await asyncio.sleep(0)
    assert not slow.disk.waiting


async def test_a_disk_that_cannot_be_read_is_the_answer_to_a_listing(
    server: Broker, client: RawClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(server, monkeypatch)
    refused = client.start(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
    await slow.until_asked()
    slow.disk.bring_in(StoreError("the disk is gone"))
    assert "the disk is gone" in str((await refused).remark)
    again = client.start(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
    await slow.read_until(again)
    assert again.result().code == 0


def missing(path: Path, count: int) -> Callable[[], object]:
    def read() -> object:
        return each_or_cold([lambda at=at: raised(Cold(path, at, 100)) for at in range(count)])  # type: ignore[misc]

    return read


def raised(cold: Cold) -> object:
    raise cold


def test_what_many_reads_miss_is_held_as_places_only() -> None:
    """Exceptions with their words and frames took twenty times as much."""
    path = Path("/store/commitlog/0")
    with pytest.raises(Cold) as cold:
        each_or_cold([missing(path, 3), missing(path, 2)])
    assert cold.value.place == Place(path, 0, 100)
    assert cold.value.others == [Place(path, at, 100) for at in (1, 2, 0, 1)]
    assert {type(place) for place in cold.value.others} == {Place}
