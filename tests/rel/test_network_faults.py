"""Networks that delay, tear, end and swallow connections under many concurrent requests (T17).

What is asked names its answer: each message says which one it is, so that an answer given to
another request is seen.
"""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, get_args

import pytest

from ogive import aio
from ogive.broker import Broker, BrokerConfig
from ogive.client import rpc
from ogive.client.config import ClientConfig, ProducerConfig
from ogive.client.instance import ClientInstance
from ogive.errors import OgiveError
from ogive.model import MessageQueue, PullStatus, SendResult
from ogive.testing import FakeBroker
from ogive.testing.fake_broker import ok
from ogive.wire.bodies.routes import BrokerData, QueueData, TopicRouteData
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from tests.chaos.proxy import Fault, FaultProxy, Kind
from tests.figures import figures

pytestmark = [pytest.mark.rel, pytest.mark.apart(24)]

KINDS: Final = [kind for kind in get_args(Kind) if kind not in ("garbage", "refuse")]
CALL_S: Final = 0.4
# sends, and as many questions
AT_ONCE: Final = 25
WAIT_S: Final = 60.0


@dataclass(slots=True)
class Book:
    """What became of every call."""

    sent: dict[bytes, SendResult] = field(default_factory=dict)
    unknown: set[bytes] = field(default_factory=set)
    refused: set[bytes] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    answered: int = 0


class Lane:
    """A client whose broker lies behind a proxy of its own, and a topic of its own."""

    def __init__(
        self,
        name: str,
        proxy: FaultProxy,
        client: ClientInstance,
        producer: aio.Producer,
        book: Book,
    ) -> None:
        self.queue = MessageQueue(name, "broker-a", 0)
        self.proxy = proxy
        self._client, self._producer, self._book = client, producer, book
        # commit-log offsets of what may be asked for
        self._places: dict[bytes, int] = {}
        self._number = 0

    def _body(self) -> bytes:
        self._number += 1
        return f"{self.queue.topic}/{self._number}".encode()

    async def begin(self, count: int) -> None:
        for _ in range(count):
            await self.send(self._body(), WAIT_S)
        for queue_offset in range(count):
            (message,) = (
                await rpc.read_messages(
                    self._client.pool, self.proxy.address, self.queue, queue_offset, 1
                )
            ).messages
            self._places[message.body] = message.commitlog_offset

    async def send(self, body: bytes, timeout_s: float = CALL_S) -> bool:
        try:
            self._book.sent[body] = await self._producer.send(
                self.queue.topic, body, queue=self.queue, timeout_s=timeout_s
            )
        except OgiveError as exc:
            (self._book.unknown if exc.outcome_unknown else self._book.refused).add(body)
            return False
        return True

    async def ask(self, body: bytes) -> None:
        try:
            found = await rpc.view_message(
                self._client.pool, self.proxy.address, self._places[body], timeout_s=CALL_S
            )
        except OgiveError:
            return
        self._book.answered += 1
        if found.body != body:
            self._book.wrong.append(f"asked for {body!r}, got {found.body!r}")

    async def suffer(self, fault: Fault, chance: random.Random) -> None:
        """Many calls at once under *fault*; then, without it, the client is well again."""
        self.proxy.fault = fault
        asked = chance.choices(list(self._places), k=AT_ONCE)
        await asyncio.gather(
            *(self.send(self._body()) for _ in range(AT_ONCE)), *map(self.ask, asked)
        )
        self.proxy.fault = None
        patience_s = CALL_S
        while not await self.send(self._body(), patience_s):
            # the machine may be busy
            patience_s = min(2 * patience_s, 10.0)


def any_fault(kind: Kind, chance: random.Random) -> Fault:
    return Fault(
        kind,
        up=chance.random() < 0.5,
        after_bytes=chance.randrange(3000),
        seconds=chance.uniform(0.0, CALL_S * 1.2),
    )


@asynccontextmanager
async def lanes(folder: Path, count: int, book: Book) -> AsyncIterator[list[Lane]]:
    """One broker, and *count* ways to it."""
    async with AsyncExitStack() as stack:
        broker = Broker(BrokerConfig(data=folder / "store", port=0, flush="async"))
        await broker.start()
        stack.push_async_callback(broker.stop)
        names = await stack.enter_async_context(FakeBroker())
        proxies = {
            f"Lane{i}": await stack.enter_async_context(FaultProxy(broker.address))
            for i in range(count)
        }

        def route(request: RemotingCommand) -> RemotingCommand:
            address = proxies[request.ext_fields["topic"]].address
            rows = (QueueData(broker_name="broker-a", read_queues=1, write_queues=1, perm=6),)
            where = (BrokerData(cluster="c", broker_name="broker-a", addresses={0: address}),)
            return ok(body=TopicRouteData(queues=rows, brokers=where).encode(standard=True))

        names.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
        found = []
        for name, proxy in proxies.items():
            config = ClientConfig(
                name_server=names.address, request_timeout_s=CALL_S, connect_timeout_s=CALL_S
            )
            client = await stack.enter_async_context(ClientInstance(config))
            producing = ProducerConfig(send_timeout_s=CALL_S, retries=0, max_requests=AT_ONCE)
            producer = await stack.enter_async_context(
                aio.Producer(config=producing, client=client)
            )
            lane = Lane(name, proxy, client, producer, book)
            await lane.begin(10)
            found.append(lane)
        yield found


async def stored(broker_address: str, lane: Lane) -> list[bytes]:
    """All that the lane's queue holds, by offset."""
    bodies: list[bytes] = []
    async with ClientInstance(ClientConfig()) as client:
        while True:
            result = await rpc.read_messages(
                client.pool, broker_address, lane.queue, len(bodies), 32
            )
            if result.status is not PullStatus.FOUND:
                return bodies
            bodies += [message.body for message in result.messages]


def left() -> tuple[int, int, int]:
    threads = [one for one in threading.enumerate() if not one.name.startswith("asyncio_")]
    return len(threads), len(asyncio.all_tasks()), len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.kills(
    "responses matched by order, T17",
    "T17: a broken connection counts as not sent",
    param="60",
)
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("ways", "rounds"),
    [pytest.param(10, 6, marks=pytest.mark.quick), pytest.param(20, 25, marks=pytest.mark.nightly)],
    ids=["60", "500"],
)
async def test_faults_of_the_network_mix_up_lose_and_invent_nothing(
    tmp_path: Path, ways: int, rounds: int
) -> None:
    """T17: every call ends, no answer goes to another request, an unknown outcome is said to be
    unknown, and nothing is left over.
    """
    seed = 17
    chance, book = random.Random(seed), Book()
    kinds = [KINDS[i % len(KINDS)] for i in range(ways * rounds)]
    chance.shuffle(kinds)
    faults = [any_fault(kind, chance) for kind in kinds]
    before = left()
    with figures("T17", nightly=rounds > 6, seed=seed, faults=len(faults)) as line:
        async with lanes(tmp_path, ways, book) as all_lanes:

            async def suffer(lane: Lane, own: list[Fault], dice: random.Random) -> None:
                for fault in own:
                    # calls have 0.4 s each
                    async with asyncio.timeout(WAIT_S):
                        await lane.suffer(fault, dice)

            await asyncio.gather(
                *(
                    suffer(lane, faults[i::ways], random.Random(i))
                    for i, lane in enumerate(all_lanes)
                )
            )
            bodies = {lane.queue: await stored(lane.proxy.target, lane) for lane in all_lanes}
        everything = [body for held in bodies.values() for body in held]
        line.update(
            attempts=len(book.sent) + len(book.unknown) + len(book.refused),
            acknowledged=len(book.sent),
            unknown=len(book.unknown),
            answered=book.answered,
            lost=len(book.sent.keys() - set(everything)),
            duplicates=len(everything) - len(set(everything)),
            wrong=len(book.wrong),
        )
    assert book.wrong == []
    assert [
        body
        for body, result in book.sent.items()
        if bodies[result.queue][result.queue_offset] != body
    ] == []
    assert [body for body, count in Counter(everything).items() if count > 1] == []
    assert book.refused.isdisjoint(everything), "said not to be sent, and stored"
    assert set(everything) <= book.sent.keys() | book.unknown
    assert book.unknown, "no fault hit a send on its way"
    async with asyncio.timeout(WAIT_S):
        while any(now > then for now, then in zip(left(), before, strict=True)):
            await asyncio.sleep(0.01)
