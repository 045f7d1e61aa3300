"""Whose turn it is to have a listing made, and what a listing does whose bytes are on the disk
only.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ogive.broker import Broker, large_replies
from ogive.broker.routes import ROUTES, Route
from ogive.errors import StoreError
from ogive.store import file_reader
from ogive.store.file_reader import Cold, Place, each_or_cold
from ogive.transport.connection import Connection
from ogive.wire.bodies.stats import consume_stats_loads
from ogive.wire.codes import RequestCode
from tests.raw_client import RawClient
from tests.unit.broker.cold_disk import ColdDisk

QUEUES = 8


@pytest.fixture
async def topic(server: Broker, client: RawClient) -> str:
    """Eight queues with a message each."""
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic="T",
        readQueueNums=QUEUES,
        writeQueueNums=QUEUES,
        order=False,
    )
    for queue in range(QUEUES):
        await client.send("T", queue=queue)
    return "T"


def forgets_at_once(server: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Memory is so short that nothing that is read stays in it.

    The sizes of what was looked for there.
    """
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
        async with asyncio.timeout(60):
            while not self.disk.waiting:
                await asyncio.sleep(0)

    async def read_until(self, *answers: "asyncio.Future[Any]") -> None:
        async with asyncio.timeout(60):
            while not all(answer.done() for answer in answers):
                self.disk.bring_in()
                await asyncio.sleep(0)


# --- turns ----------------------------------------------------------------------------------------


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

    monkeypatch.setitem(
        ROUTES, RequestCode.GET_ALL_TOPIC_CONFIG, dataclasses.replace(route, handle=handle)
    )
    async with server.context.large_replies.turn:
        many = [client.start(RequestCode.GET_ALL_TOPIC_CONFIG, bytes(n)) for n in range(20)]
        while len(server.context._tasks) < 20:
            await asyncio.sleep(0)
        few = [another.start(RequestCode.GET_ALL_TOPIC_CONFIG, bytes(100 + n)) for n in range(2)]
        while len(server.context._tasks) < 22:
            await asyncio.sleep(0)
    await asyncio.gather(*many, *few)
    assert made[:5] == [(False, 0), (True, 0), (False, 1), (True, 1), (False, 2)]
    assert made[5:] == [(False, n) for n in range(3, 20)]


async def test_hosts_take_turns_however_many_connections_they_have(server: Broker) -> None:
    made, replies = list[int](), server.context.large_replies

    async def make(number: int, host: str) -> None:
        connection = Connection()
        connection.remote_address = f"{host}:{number}"
        async with (
            server.context.large_replies.of_host(connection),
            server.context.large_replies.turn,
        ):
            made.append(number)

    async with replies.turn:
        waiting = [
            asyncio.create_task(make(number, "10.0.0.1" if number < 10 else "10.0.0.2"))
            for number in range(12)
        ]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert made[:5] == [0, 10, 1, 11, 2]
    assert not replies._by_host


async def test_a_connection_that_is_gone_is_forgotten(server: Broker, client: RawClient) -> None:
    async with await RawClient.open(server.address) as another:
        await another.ok(RequestCode.GET_ALL_TOPIC_CONFIG)
        await client.ok(RequestCode.GET_ALL_TOPIC_CONFIG)
        assert len(server.context.large_replies) == 2
    while len(server.context.large_replies) > 1:
        await client.ok(RequestCode.GET_ALL_TOPIC_CONFIG)


# --- in pieces ------------------------------------------------------------------------------------

TOPICS = [f"T{number}" for number in range(6)]
STATS: list[tuple[RequestCode, dict[str, object]]] = [
    (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"}),
    (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False}),
]


@pytest.fixture
async def progress(server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six topics of two queues with a message each, which a group has consumed.

    A slice of the loop has room for one topic.
    """
    monkeypatch.setattr(large_replies, "SLICE_S", 0.0)
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"G"}')
    for topic in TOPICS:
        await client.ok(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            topic=topic,
            readQueueNums=2,
            writeQueueNums=2,
            order=False,
        )
        for queue in range(2):
            await client.send(topic, queue=queue)
            server.context.offsets.commit("G", topic, queue, 1)


def looks_at(server: Broker, monkeypatch: pytest.MonkeyPatch, look: Callable[[str], None]) -> None:
    """Have *look* called with the topic of each queue that a listing looks at."""
    max_offset = server.context.store.max_offset

    def looking(topic: str, queue_id: int) -> int:
        look(topic)
        return max_offset(topic, queue_id)

    monkeypatch.setattr(server.context.store, "max_offset", looking)


@pytest.mark.usefixtures("progress")
@pytest.mark.parametrize(("code", "fields"), STATS)
async def test_others_have_their_turn_between_the_topics_of_a_listing(
    server: Broker,
    client: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    code: RequestCode,
    fields: dict[str, object],
) -> None:
    """A group on ten thousand topics stopped everybody for half a second."""
    looks = [0]

    def look(topic: str) -> None:
        looks[-1] += 1

    async def turns() -> None:
        while True:
            looks.append(0)
            await asyncio.sleep(0)

    looks_at(server, monkeypatch, look)
    beside = asyncio.create_task(turns())
    await client.ok(code, **fields)
    beside.cancel()
    assert sum(looks) == 2 * len(TOPICS)
    assert max(looks) == 2


@pytest.mark.usefixtures("progress")
@pytest.mark.parametrize(("code", "fields"), STATS)
async def test_a_topic_that_is_deleted_while_a_listing_is_made_is_left_out(
    server: Broker,
    client: RawClient,
    another: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    code: RequestCode,
    fields: dict[str, object],
) -> None:
    slow = Slow(server, monkeypatch)
    listing = client.start(code, **fields)
    await slow.until_asked()
    await another.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T3")
    await slow.read_until(listing)
    assert listing.result().body == (await client.ok(code, **fields)).body
    shown = [topic for topic in TOPICS if f'"topic":"{topic}"'.encode() in listing.result().body]
    assert shown == [topic for topic in TOPICS if topic != "T3"]


@pytest.mark.usefixtures("progress")
async def test_a_group_that_is_deleted_while_its_listing_is_made_stands_where_it_stood(
    server: Broker, client: RawClient, another: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 0, it would seem to be far behind."""
    slow = Slow(server, monkeypatch)
    listing = client.start(RequestCode.GET_CONSUME_STATS, consumerGroup="G")
    await slow.until_asked()
    await another.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G", cleanOffset=True)
    await slow.read_until(listing)
    assert [row.consumer_offset for row in consume_stats_loads(listing.result().body).values()] == [
        1
    ] * 2 * len(TOPICS)


@pytest.mark.usefixtures("progress")
async def test_a_listing_goes_on_with_what_was_on_the_disk(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue in range(2):
        # no message of this topic has to be read
        server.context.offsets.commit("G", "T2", queue, 0)
    in_memory = await client.ok(RequestCode.GET_CONSUME_STATS, consumerGroup="G")
    looks: list[str] = []
    looks_at(server, monkeypatch, looks.append)
    slow = Slow(server, monkeypatch)
    answer = client.start(RequestCode.GET_CONSUME_STATS, consumerGroup="G")
    await slow.read_until(answer)
    assert answer.result().body == in_memory.body
    assert Counter(looks) == dict.fromkeys(TOPICS, 2)


@pytest.mark.usefixtures("progress")
async def test_a_listing_ends_with_the_connection_of_its_client(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    (connection,) = server.context.origins
    looks: list[str] = []

    def look(topic: str) -> None:
        looks.append(topic)
        connection.abort("the client is gone")

    looks_at(server, monkeypatch, look)
    client.start(RequestCode.GET_CONSUME_STATS, consumerGroup="G").add_done_callback(
        lambda answer: answer.exception()
    )
    while not looks or server.context._tasks:
        await asyncio.sleep(0)
    assert looks == ["T0", "T0"]


async def test_of_many_reads_only_those_that_need_the_disk_are_done_again(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []
    brought_in: list[int] = []

    def read(number: int) -> int:
        tries.append(number)
        if number % 2 and tries.count(number) == 1:
            raise Cold(Path("log"), number, 1)
        return number

    def fetch(place: Place, then: Callable[[StoreError | None], None]) -> None:
        brought_in.append(place.offset)
        then(None)

    async def work(large: large_replies.LargeReply) -> None:
        found.extend(await large.each([partial(read, number) for number in range(4)]))

    found: list[int] = []
    monkeypatch.setattr(server.context.cold_reads, "fetch", fetch)
    (connection,) = server.context.origins
    await server.context.large_replies.make(connection, work)
    assert (found, brought_in) == ([0, 1, 2, 3], [1, 3])
    assert tries == [0, 1, 2, 3, 1, 3]


# --- from the disk --------------------------------------------------------------------------------


async def test_a_listing_ends_where_memory_holds_nothing_that_was_read(
    server: Broker, client: RawClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the loop waits for nothing: after a few tries, what was read is kept until the answer."""
    in_memory = await client.ok(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
    forgets_at_once(server, monkeypatch)
    monkeypatch.setattr(server.context.store, "waiting", None)
    async with asyncio.timeout(60):
        answer = await client.ok(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
    assert answer.body == in_memory.body
    while server.context._tasks:
        await asyncio.sleep(0)
    assert not server.context.store._disk._kept


async def test_a_listing_that_needs_more_than_is_kept_waits_for_the_disk_at_last(
    server: Broker, client: RawClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = await client.ok(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
    monkeypatch.setattr(file_reader, "MAX_KEPT_BYTES", 0)
    monkeypatch.setattr(large_replies, "MAX_TRIES", 6)
    looked_for = forgets_at_once(server, monkeypatch)
    async with asyncio.timeout(60):
        answer = await client.ok(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
    assert answer.body == in_memory.body
    assert len(looked_for) == 6 * QUEUES


async def test_one_listing_at_a_time_is_brought_in_and_others_are_made_meanwhile(
    server: Broker,
    client: RawClient,
    another: RawClient,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
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


async def test_nobody_waits_for_the_listing_of_a_client_that_takes_no_answers(
    server: Broker,
    client: RawClient,
    another: RawClient,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It asks for much else while its listing is brought in, and reads nothing."""
    # in the order in which they came
    stalled, _ = server.context.origins
    slow = Slow(server, monkeypatch)
    first = client.start(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
    await slow.until_asked()
    stalled.pause_writing()
    await slow.read_until(another.start(RequestCode.GET_TOPIC_STATS_INFO, topic=topic))
    assert not first.done()
    stalled.resume_writing()
    await slow.read_until(first)
    assert first.result().code == 0


async def test_nothing_more_is_read_for_a_client_that_is_gone(
    server: Broker,
    client: RawClient,
    another: RawClient,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Slow(server, monkeypatch)
    another.start(RequestCode.GET_TOPIC_STATS_INFO, topic=topic).add_done_callback(
        lambda answer: answer.exception()
    )
    await slow.until_asked()
    another.connection.close()
    while len(server.context.origins) > 1:
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
        return each_or_cold([partial(raised, Cold(path, at, 100)) for at in range(count)])

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
