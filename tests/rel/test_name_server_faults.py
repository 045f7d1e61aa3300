"""Name servers that are down, swallow, lie, forget or answer with an old route, while messages flow
(T18).
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import ogive
from ogive import aio
from ogive.broker import Broker, BrokerConfig
from ogive.client.config import ClientConfig, ProducerConfig
from ogive.client.consumer.config import ConsumerConfig
from ogive.errors import NoNameServer, SendFailed
from ogive.namesrv import NameServer, NameServerConfig
from ogive.testing import FakeBroker
from ogive.testing.fake_broker import ok
from ogive.wire.bodies.routes import BrokerData, QueueData, TopicRouteData
from ogive.wire.codes import RequestCode
from tests.chaos.proxy import Fault, FaultProxy
from tests.figures import figures
from tests.ledger import Ledger
from tests.processes import free_port

pytestmark = [pytest.mark.rel, pytest.mark.waits(25)]

TOPIC = "Steady"
WAIT_S = 60.0


async def until(condition: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {WAIT_S:.0f} s: {what}") from None


@dataclass(slots=True)
class Stage:
    """A broker, two name servers behind proxies, a stream of messages and a consumer of it."""

    proxies: list[FaultProxy]
    servers: list[NameServer]
    producer: aio.Producer
    ledger: Ledger

    @property
    def trouble(self) -> str:
        return self.producer.client.name_servers.trouble

    async def flows(self, what: str, count: int = 20) -> None:
        """That many more messages were sent and received."""
        sent, received = len(self.ledger.acknowledged) + count, len(self.ledger.received) + count
        await until(
            lambda: len(self.ledger.acknowledged) >= sent and len(self.ledger.received) >= received,
            what,
        )

    async def knows_new_topics(self, topic: str) -> None:
        """A topic that nobody used before: its route is asked for now.

        It is there once a try succeeds.
        """
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    await self.producer.send(topic, b"new", timeout_s=5.0)
                    return
                except (NoNameServer, SendFailed):
                    await asyncio.sleep(0.05)

    def set(self, *faults: Fault | None) -> None:
        for proxy, fault in zip(self.proxies, faults, strict=True):
            proxy.fault = fault


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    ledger = Ledger()

    @ogive.listener(TOPIC, group="steady", start="earliest")
    async def take(message: ogive.MessageExt) -> None:
        ledger.receive(message)

    async with AsyncExitStack() as stack:
        servers = [NameServer(NameServerConfig(port=0)) for _ in range(2)]
        for server in servers:
            await server.start()
            stack.push_async_callback(server.stop)
        addresses = tuple(server.address for server in servers)
        broker = Broker(
            BrokerConfig(
                data=tmp_path / "store",
                port=0,
                flush="async",
                name_servers=addresses,
                register_period_s=0.1,
            )
        )
        await broker.start()
        stack.push_async_callback(broker.stop)
        proxies = [await stack.enter_async_context(FaultProxy(address)) for address in addresses]
        client = ClientConfig(
            name_server=";".join(proxy.address for proxy in proxies),
            request_timeout_s=2.0,
            connect_timeout_s=0.5,
            route_period_s=0.05,
        )
        producer = await stack.enter_async_context(
            aio.Producer(config=ProducerConfig(send_timeout_s=20.0), client=client)
        )
        await producer.send(TOPIC, b"first")
        ledger.sent([b"first"])
        consumer = aio.PushConsumer(
            take,
            config=ConsumerConfig(rebalance_period_s=0.5, rebalance_pause_s=0.1),
            client=client,
        )
        await stack.enter_async_context(consumer)
        async with streaming(producer, ledger):
            yield Stage(proxies, servers, producer, ledger)
        await until(lambda: not ledger.lost, "every message")
        ledger.check()


@asynccontextmanager
async def streaming(producer: aio.Producer, ledger: Ledger) -> AsyncIterator[None]:
    """A number every few milliseconds; a send that fails fails the test."""
    stop = asyncio.Event()

    async def send() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            body = b"%d" % number
            ledger.attempted.add(body)
            await producer.send(TOPIC, body)
            ledger.acknowledged.add(body)
            await asyncio.sleep(0.005)

    sending = asyncio.create_task(send())
    try:
        yield
    finally:
        stop.set()
        await sending


@pytest.mark.parametrize(
    "count",
    [pytest.param(50, marks=pytest.mark.quick), pytest.param(3_000, marks=pytest.mark.nightly)],
)
async def test_messages_flow_on_while_no_name_server_answers_and_new_topics_say_so(
    stage: Stage, count: int
) -> None:
    await stage.flows("messages before")
    stage.set(Fault("refuse"), Fault("refuse"))
    await until(lambda: stage.trouble, "a question for the route that nobody answered")
    with figures("T18", nightly=count > 50, faults=2, attempts=count) as line:
        await stage.flows("messages without a name server", count)
        line.update(acknowledged=count, received=count, lost=len(stage.ledger.lost))
    # whichever notices it first: the lookup, or the end of the message's time
    with pytest.raises((NoNameServer, SendFailed), match="no name server answered at") as said:
        await stage.producer.send("Unheard", b"x", timeout_s=0.5)
    assert all(proxy.address in str(said.value) for proxy in stage.proxies)
    stage.set(None, None)
    await stage.knows_new_topics("Later")


@pytest.mark.kills("T18: the first bad name server ends the call", param="lies-the first")
@pytest.mark.quick
@pytest.mark.parametrize("bad", [0, 1], ids=["the first", "the second"])
@pytest.mark.parametrize("fault", [Fault("hole"), Fault("garbage")], ids=["swallows", "lies"])
async def test_one_bad_name_server_of_two_fails_no_call(
    stage: Stage, fault: Fault, bad: int
) -> None:
    """It costs a share of one call's time at most, after which the other one is asked first."""
    stage.set(*(fault if i == bad else None for i in range(2)))
    for topic in ("One", "Two", "Three"):
        await stage.producer.send(topic, b"new", timeout_s=20.0)
    await stage.flows("messages beside it")


@pytest.mark.quick
async def test_name_servers_that_restarted_and_know_nothing_take_no_route_away(
    stage: Stage,
) -> None:
    empty = NameServer(NameServerConfig(port=0))
    await empty.start()
    targets = [proxy.target for proxy in stage.proxies]
    stage.set(Fault("refuse"), Fault("refuse"))
    for proxy in stage.proxies:
        proxy.target = empty.address
    stage.set(None, None)
    before = [proxy.connections for proxy in stage.proxies]
    await until(
        lambda: sum(proxy.connections for proxy in stage.proxies) > sum(before),
        "a question to the empty one",
    )
    await stage.flows("messages while no name server knows the topic", 50)
    stage.set(Fault("refuse"), Fault("refuse"))
    for proxy, target in zip(stage.proxies, targets, strict=True):
        proxy.target = target
    stage.set(None, None)
    await stage.knows_new_topics("Later")
    await empty.stop()


@pytest.mark.kills("T18: a doubted name server is asked again")
@pytest.mark.quick
async def test_an_old_route_at_one_name_server_is_left_for_the_others(stage: Stage) -> None:
    """The one that is asked first says where the broker was before it moved: nobody is there, so
    the other one is asked.
    """
    rows = (QueueData(broker_name="broker-a", read_queues=4, write_queues=4, perm=6),)
    gone = (
        BrokerData(
            cluster="DefaultCluster",
            broker_name="broker-a",
            addresses={0: f"127.0.0.1:{free_port()}"},
        ),
    )
    async with FakeBroker() as stale:
        stale.on(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            ok(body=TopicRouteData(queues=rows, brokers=gone).encode(standard=True)),
        )
        client = ClientConfig(
            name_server=f"{stale.address};{stage.proxies[1].address}",
            request_timeout_s=2.0,
            connect_timeout_s=0.5,
            route_period_s=0.05,
        )
        async with aio.Producer(
            config=ProducerConfig(send_timeout_s=20.0), client=client
        ) as producer:
            stage.ledger.attempted.add(b"by the other way")
            await producer.send(TOPIC, b"by the other way")
            stage.ledger.acknowledged.add(b"by the other way")
            assert stale.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)
