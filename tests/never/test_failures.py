"""Failures that pass for success, and members that do not agree: cases 7 to 11."""

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import ogive
from ogive import aio
from ogive.client.consumer.allocate import (
    average,
    average_by_circle,
    consistent_hash,
    machine_room,
    machine_room_nearby,
)
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.listener import AnyListener, later
from ogive.model import MessageExt, MessageQueue, dlq_topic
from ogive.testing import Broker
from tests.ledger import Ledger
from tests.never.scene import GROUP, HEARTBEAT, TOPIC, WAIT_S, Scene, until

QUICK = ConsumerConfig(rebalance_pause_s=0.1, persist_period_s=0.1, pull_retry_s=0.1)


def consumer(broker: Broker, *listeners: AnyListener) -> aio.PushConsumer:
    return aio.PushConsumer(*listeners, name_server=broker.name_server, config=QUICK)


# --- 7 and 8: failures and retries ----------------------------------------------------------------


def boom(_: MessageExt) -> Any:
    raise ValueError("boom")


@pytest.mark.kills("case 7: an unknown result is a success", param="True-plain")
@pytest.mark.kills("case 7: an exception is a success", param="raise-async")
@pytest.mark.parametrize("thread", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize(
    "answer",
    [boom, lambda _: "done", lambda _: True, lambda _: 0, lambda _: []],
    ids=["raise", "text", "True", "0", "[]"],
)
async def test_case_7_what_is_no_clear_success_comes_again(
    real: Broker, topic: str, group: str, answer: Callable[[MessageExt], Any], thread: bool
) -> None:
    """Returning None is success, by the API's own word; an exception and every other value that
    says nothing are failures.
    """
    deliveries: list[MessageExt] = []

    def plain(message: MessageExt) -> Any:
        deliveries.append(message)
        return answer(message) if message.reconsume_times == 0 else None

    async def on_loop(message: MessageExt) -> Any:
        return plain(message)

    listener = ogive.listener(topic=topic, group=group, start="earliest")(
        plain if thread else on_loop
    )
    async with aio.Producer(real.name_server) as producer, consumer(real, listener):
        await producer.send(topic, b"4711")
        await until(lambda: len(deliveries) == 2, "the message comes again")
    assert [(m.body, m.reconsume_times, m.topic) for m in deliveries] == [
        (b"4711", 0, topic),
        (b"4711", 1, topic),
    ]


@pytest.mark.kills("case 8: one retry too many")
async def test_case_8_retries_go_on_to_the_limit_and_end_in_the_dead_letters_at_once(
    real: Broker, topic: str, group: str
) -> None:
    """A fixed level, three retries: four deliveries, then the dead-letter topic, whose copy waits
    for no level.
    """
    deliveries: list[MessageExt] = []

    async def fail(message: MessageExt) -> Any:
        deliveries.append(message)
        return later(delay_level=2)

    dead: list[MessageExt] = []

    async def bury(message: MessageExt) -> None:
        dead.append(message)

    listener = ogive.listener(topic=topic, group=group, start="earliest", max_retries=3)(fail)
    letters = ogive.listener(topic=dlq_topic(group), group=f"{group}-dead", start="earliest")(bury)
    async with aio.Producer(real.name_server) as producer, consumer(real, listener):
        await producer.send(topic, b"4711")
        await until(lambda: len(deliveries) == 4, "four deliveries")
        async with consumer(real, letters):
            await until(lambda: dead, "a dead letter")
    assert [m.reconsume_times for m in deliveries] == [0, 1, 2, 3]
    assert [(m.body, m.properties["RETRY_TOPIC"]) for m in dead] == [(b"4711", topic)]


# --- 9: assignments -------------------------------------------------------------------------------

ROOMS = {"room1", "room2", "room3"}


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.partition("@")[0]


def room_of_client(client_id: str) -> str:
    return f"room{1 + int(client_id.rpartition('#')[2]) % 2}"


STRATEGIES: dict[str, Any] = {
    "average": average,
    "by circle": average_by_circle,
    "consistent hash": consistent_hash(),
    "machine room": machine_room(ROOMS),
    "nearby": machine_room_nearby(average, room_of_queue, room_of_client),
}


@pytest.mark.kills("case 9: shares overlap", param="average")
@pytest.mark.parametrize("name", STRATEGIES)
def test_case_9_members_that_see_the_same_share_every_queue_without_overlap(name: str) -> None:
    """1 to 9 members, 1 to 33 queues on three brokers, each in a room of its own."""
    share = STRATEGIES[name]
    for members, count in itertools.product(range(1, 10), range(1, 34)):
        queues = sorted(
            MessageQueue(TOPIC, f"room{1 + i % 3}@broker", i // 3) for i in range(count)
        )
        ids = [f"10.0.0.{i}@1#{i}" for i in range(members)]
        shares: list[Sequence[MessageQueue]] = [share(queues, ids, one) for one in ids]
        assert sorted(queue for mine in shares for queue in mine) == queues, (members, count)


@pytest.mark.kills("case 9: the ring places brokers, not queues")
def test_case_9_the_vectors_of_javas_strategies() -> None:
    """From the Java sources, so that members on other SDKs agree."""

    def shares(strategy: Any, count: int, members: int) -> list[list[int]]:
        queues = [MessageQueue(TOPIC, "broker-a", i) for i in range(count)]
        ids = [f"c{i}" for i in range(members)]
        return [[queue.queue_id for queue in strategy(queues, ids, one)] for one in ids]

    assert shares(average, 4, 3) == [[0, 1], [2], [3]]
    assert shares(average, 8, 3) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert shares(average, 2, 3) == [[0], [1], []]
    assert shares(average_by_circle, 8, 3) == [[0, 3, 6], [1, 4, 7], [2, 5]]
    a, b, c = ids = ["10.0.0.1@1001#11", "10.0.0.1@1002#12", "10.0.0.2@1003#13"]
    queues = [MessageQueue("TopicTest", f"broker-{name}", i) for name in "ab" for i in range(4)]
    owners = {queue: one for one in ids for queue in consistent_hash()(queues, ids, one)}
    assert [owners[queue] for queue in queues] == [b, c, a, a, a, c, b, c]


# --- 10: identities -------------------------------------------------------------------------------

CONTAINER = """
import os
os.getpid = lambda: 1
from ogive.client import ids
ids.local_ip = lambda: "172.17.0.2"
print(ids.make_client_id())
"""


@pytest.mark.kills("case 10: client ids without a random part")
def test_case_10_two_containers_with_one_address_and_pid_1_have_different_ids() -> None:
    said = [
        subprocess.run(
            [sys.executable, "-c", CONTAINER], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert all(text.startswith("172.17.0.2@1#") for text in said)
    assert said[0] != said[1]


async def test_case_10_two_consumers_of_one_process_are_two_members_and_share_the_queues(
    scene: Scene,
) -> None:
    scene.broker.topics[TOPIC] = 4
    async with scene.consumer() as one, scene.consumer() as two:
        assert one.client_id != two.client_id

        def halves() -> bool:
            return all(
                sum(queue.topic == TOPIC for queue in member.assignment[GROUP]) == 2
                for member in (one, two)
            )

        await until(halves, "two queues for each")
        assert set(scene.broker.members[GROUP]) == {one.client_id, two.client_id}
        scene.put(40, queues=4)
        await until(lambda: scene.received == 40, "all messages")
    scene.check()


async def test_case_10_a_broadcasting_member_keeps_its_place_over_a_restart(
    scene: Scene, tmp_path: Path
) -> None:
    scene.put(5)

    def member() -> aio.PushConsumer:
        return scene.consumer(scene.listener(broadcast=True), offsets_dir=tmp_path)

    async with member() as first:
        await until(lambda: scene.received == 5, "the first messages")
        scene.put(5)
    async with member() as second:
        # for connections; its place goes by a stable name
        assert first.client_id != second.client_id
        await until(lambda: scene.received == 10, "the others")
    assert scene.ledger.duplicates == 0


# --- 11: subscriptions that differ ----------------------------------------------------------------


@pytest.mark.kills("case 11: messages of another subscription are passed over in silence")
async def test_case_11_members_that_subscribe_differently_are_told(
    real: Broker, topic: str, group: str, caplog: Any
) -> None:
    """The broker goes by the heartbeat that came last, so a member gets what it did not ask for: it
    says so, and what that means.
    """
    ledger = Ledger()

    def member(tag: str) -> aio.PushConsumer:
        async def take(message: MessageExt) -> None:
            ledger.receive(message, tag)

        return consumer(
            real, ogive.listener(topic=topic, group=group, tags=tag, start="earliest")(take)
        )

    async with aio.Admin(real.name_server) as admin, aio.Producer(real.name_server) as producer:
        await admin.create_topic(topic, queues=2)
        async with member("paid") as paid, member("refunded") as refunded:
            await until(
                lambda: all(len(m.assignment[group]) in (1, 2) for m in (paid, refunded)),
                "both have queues",
            )

            def told() -> bool:
                return "must have the same subscriptions" in caplog.text

            async with asyncio.timeout(WAIT_S):
                while not told():
                    for tag, queue_id in itertools.product(("paid", "refunded"), range(2)):
                        await producer.send(
                            topic,
                            tag.encode(),
                            tag=tag,
                            queue=MessageQueue(topic, "broker-a", queue_id),
                        )
                    await asyncio.sleep(0.05)
    assert all(delivery.body.decode() == delivery.member for delivery in ledger.deliveries)


async def test_case_11_heartbeats_say_what_each_member_wants(scene: Scene) -> None:
    """So that operators can compare: both members' subscriptions reach the broker."""
    async with (
        scene.consumer(scene.listener(tags="paid")),
        scene.consumer(scene.listener(tags="refunded")),
    ):
        await until(lambda: len(scene.broker.members[GROUP]) == 2, "both members")
        said = b"".join(request.body for request in scene.broker.of(HEARTBEAT))
    assert b'"subString":"paid"' in said.replace(b" ", b"")
    assert b'"subString":"refunded"' in said.replace(b" ", b"")
