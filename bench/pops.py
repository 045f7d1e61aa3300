"""What popping costs: the CPU of client and broker for each message of a backlog, beside pulling 32
messages a request; and what leases cost a broker that does nothing else.

    python -m bench.pops [--messages N] [--rounds N] [--flush sync|async] [--profile FILE]
    python -m bench.pops --leases N

Messages have 1 KiB, in four queues. The clients run in this process, one after the other, each as a
group of its own; the figures are medians. --profile writes what cProfile saw of the simple
consumer, for pstats. --leases takes N leases of one message each and prints the memory and the CPU
of the broker, and how long it takes to start again.
"""

import argparse
import asyncio
import cProfile
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import ogive
import ogive.aio
from bench.processes import cpu_s, resident_mib
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.listener import Mode
from ogive.testing import Broker
from ogive.wire.codes import RequestCode
from ogive.wire.pop import MAX_POP_MESSAGES
from tests.pop import popping
from tests.raw_client import RawClient

BODY: Final = bytes(range(256)) * 4
TOPIC: Final = "Backlog"
IDLE_S: Final = 20.0
# pops that are on their way to the broker at the same time
AT_ONCE: Final = 64
Consume = Callable[[str, str, int], Awaitable[None]]
"""Gets the name server, a group and a count; returns once that many messages are finished."""


class Cost(NamedTuple):
    """Messages per second, and CPU microseconds a message."""

    per_s: float
    client_us: float
    broker_us: float


async def poll(name_server: str, group: str, count: int) -> None:
    config = ConsumerConfig(pull_batch_size=MAX_POP_MESSAGES)
    async with ogive.aio.PullConsumer(
        TOPIC, group=group, start="earliest", name_server=name_server, config=config
    ) as consumer:
        while count > 0:
            count -= len(await consumer.poll(max_messages=MAX_POP_MESSAGES))


async def receive(name_server: str, group: str, count: int) -> None:
    async with ogive.aio.SimpleConsumer(
        TOPIC, group=group, start="earliest", name_server=name_server
    ) as consumer:

        async def work() -> None:
            nonlocal count
            while count > 0:
                messages = await consumer.receive(MAX_POP_MESSAGES, wait_s=1.0)
                await consumer.ack(*messages)
                count -= len(messages)

        await asyncio.gather(*[work() for _ in range(4)])


async def listen(name_server: str, group: str, count: int, mode: Mode) -> None:
    done = asyncio.Event()

    @ogive.listener(TOPIC, group=group, start="earliest", mode=mode)
    async def take(message: ogive.MessageExt) -> None:
        nonlocal count
        count -= 1
        if not count:
            done.set()

    config = ConsumerConfig(pull_batch_size=MAX_POP_MESSAGES)
    async with ogive.aio.PushConsumer(take, name_server=name_server, config=config):
        await done.wait()


async def pull_by_listener(name_server: str, group: str, count: int) -> None:
    await listen(name_server, group, count, "pull")


async def pop_by_listener(name_server: str, group: str, count: int) -> None:
    await listen(name_server, group, count, "pop")


CONSUMERS: Final[dict[str, Consume]] = {
    "PullConsumer": poll,
    "SimpleConsumer": receive,
    "listener, pull": pull_by_listener,
    "listener, pop": pop_by_listener,
}


def cost_of(broker: Broker, consume: Consume, group: str, count: int) -> Cost:
    client, at_broker, wall = time.process_time(), cpu_s(broker.pid), time.perf_counter()
    asyncio.run(consume(broker.name_server, group, count))
    return Cost(
        count / (time.perf_counter() - wall),
        (time.process_time() - client) / count * 1e6,
        (cpu_s(broker.pid) - at_broker) / count * 1e6,
    )


def fill(broker: Broker, count: int) -> None:
    with ogive.Admin(broker.name_server) as admin:
        admin.create_topic(TOPIC, queues=4)
    with ogive.Producer(broker.name_server) as producer:
        for _ in range(count):
            producer.submit(TOPIC, BODY)
        producer.flush()


def consumers(options: argparse.Namespace) -> None:
    with Broker(flush=options.flush) as broker:
        fill(broker, options.messages)
        found: dict[str, list[Cost]] = {name: [] for name in CONSUMERS}
        for turn in range(options.rounds):
            for at, (name, consume) in enumerate(CONSUMERS.items()):
                found[name].append(cost_of(broker, consume, f"g{turn}-{at}", options.messages))
        print("| | messages/s | client (us) | broker (us) |\n|---|---|---|---|")
        for name, costs in found.items():
            per_s, client, at_broker = (
                statistics.median(column) for column in zip(*costs, strict=True)
            )
            print(f"| {name} | {per_s:,.0f} | {client:.1f} | {at_broker:.1f} |")
        if options.profile:
            with cProfile.Profile() as profile:
                cost_of(broker, receive, "profiled", options.messages)
            profile.dump_stats(options.profile)


async def take_leases(address: str, count: int) -> None:
    async with await RawClient.open(address) as client:
        fields = popping(TOPIC, "leases", maxMsgNums=1, invisibleTime=3_600_000)
        for at in range(0, count, AT_ONCE):
            await asyncio.gather(
                *[
                    client.ok(RequestCode.POP_MESSAGE, **fields)
                    for _ in range(min(AT_ONCE, count - at))
                ]
            )


def leases(options: argparse.Namespace) -> None:
    with Broker(flush=options.flush) as broker:
        fill(broker, options.leases)
        before_mib = resident_mib(broker.pid)
        asyncio.run(take_leases(broker.address, options.leases))
        used_mib = resident_mib(broker.pid) - before_mib
        before_s = cpu_s(broker.pid)
        time.sleep(IDLE_S)
        idle = (cpu_s(broker.pid) - before_s) / IDLE_S
        print(f"{options.leases} leases: {used_mib:.0f} MiB, idle {idle:.1%} of a core", end="")
        for name, end in (("clean stop", broker.stop), ("kill", broker.kill)):
            end()
            began = time.perf_counter()
            broker.start()
            took_s = time.perf_counter() - began
            print(f", start after a {name} {took_s:.2f} s, CPU {cpu_s(broker.pid):.2f} s", end="")
        print()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pops", description=__doc__)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flush", choices=("sync", "async"), default="sync")
    parser.add_argument("--profile", metavar="FILE")
    parser.add_argument("--leases", type=int, metavar="N")
    options = parser.parse_args()
    leases(options) if options.leases else consumers(options)


if __name__ == "__main__":
    main()
