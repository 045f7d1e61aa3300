"""Our members and Apache's Java members of one group share a topic: no queue with two owners, none
without.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import ogive
from ogive import aio
from ogive.client.consumer import allocate
from ogive.model import MessageExt
from tests.interop import apache

WAIT_S = 90.0
STARTS = 10
STRATEGIES = {
    "AVG": allocate.average,
    "AVG_BY_CIRCLE": allocate.average_by_circle,
    "CONSISTENT_HASH": allocate.consistent_hash(),
}


@pytest.mark.feature(2)
@pytest.mark.timeout(240)
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_our_members_and_javas_share_the_queues(
    apache_broker: apache.Apache, topic: str, group: str, strategy: str
) -> None:
    """Two of ours, one of Java's.

    Until Java's has heard of the others a queue may have two owners; then each has the right one.
    Java's hears of nothing for minutes if both of ours ask it to report on itself while it has no
    progress in some queues: that blocks its callback threads, of which it has one for each core.
    """
    ours: list[MessageExt] = []
    listener = ogive.listener(topic, group=group, start="earliest")(ours.append)
    config = ogive.ConsumerConfig(rebalance_pause_s=0.1, strategy=STRATEGIES[strategy])
    server = apache_broker.name_server
    options = {
        "nameServer": server,
        "topic": topic,
        "group": group,
        "deliveries": 100_000,
        "strategy": strategy,
    }
    async with aio.Admin(server) as admin, aio.Producer(server) as producer:
        await admin.create_topic(topic, queues=16)
        async with java_member(admin, producer, options) as java:

            async def deliver(numbers: range) -> dict[int, list[tuple[str, int]]]:
                """Return who got each message from which queue, once all have come."""
                for number in numbers:
                    await producer.send(topic, b"%d" % number)
                while True:
                    got = [
                        ("java", line["queueId"], int(line["body"]))
                        for line in java.printed().lines
                        if "body" in line
                    ]
                    got += [
                        ("ogive", message.queue.queue_id, int(message.body)) for message in ours
                    ]
                    owners = {
                        number: [(who, queue_id) for who, queue_id, body in got if body == number]
                        for number in numbers
                    }
                    if all(owners.values()):
                        return owners
                    await asyncio.sleep(0.1)

            async with (
                asyncio.timeout(WAIT_S),
                aio.PushConsumer(listener, name_server=server, config=config) as first,
                aio.PushConsumer(listener, name_server=server, config=config) as second,
            ):
                queues = await producer.client.routes.subscribe_queues(topic)
                for round_ in itertools.count():
                    owners = await deliver(range(64 * round_, 64 * (round_ + 1)))
                    members = await client_ids(admin, group)
                    if len(members) < 3:
                        continue
                    expected = {
                        queue.queue_id
                        for me in (first, second)
                        for queue in config.strategy(queues, members, me.client_id)
                    }
                    places = {("ogive" if i in expected else "java", i) for i in range(16)}
                    if (
                        all(len(found) == 1 for found in owners.values())
                        and {found[0] for found in owners.values()} == places
                    ):
                        break


@asynccontextmanager
async def java_member(
    admin: aio.Admin, producer: aio.Producer, options: dict[str, object]
) -> AsyncIterator[apache.JavaClient]:
    """Start Java's member, again while the broker lists it twice.

    Under load two of its threads open a connection each. Apache's broker then lists it by each, and
    the queues at the second place are nobody's for as long as both are open.
    """
    topic, group = str(options["topic"]), str(options["group"])
    for _ in range(STARTS):
        with apache.JavaClient("Consume", system=apache.QUICK_REBALANCE, **options) as java:
            await asyncio.to_thread(java.wait_for, "ready")
            await producer.send(topic, b"-1")
            await asyncio.to_thread(java.wait_for, "body")
            connection = await admin.members(group)
            assert connection is not None
            if len(connection.connections) == 1:
                yield java
                return
    raise AssertionError(f"Java's client was listed twice at each of {STARTS} starts")


async def client_ids(admin: aio.Admin, group: str) -> list[str]:
    connection = await admin.members(group)
    return sorted({member.client_id for member in connection.connections}) if connection else []
