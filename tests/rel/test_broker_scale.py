"""T32 at its full size in a real process: `ogive up` with 10,000 topics and 5,000 groups, after a
clean stop and after a kill.

Descriptors and memory have limits, which are asserted; how long things take depends on the machine,
and stands in the figures.
"""

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest

from ogive import aio
from ogive.testing import Broker
from ogive.wire import java_json
from ogive.wire.bodies.routes import TopicRouteData
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from tests.figures import figures, p99_ms
from tests.raw_client import RawClient, messages

pytestmark = [
    pytest.mark.rel,
    pytest.mark.waits(50),
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not Path("/proc/self/fd").exists(),
        reason="descriptors and memory of a process are read from /proc",
    ),
]

TOPICS, QUEUES, GROUPS = 10_000, 4, 5_000
MAX_DESCRIPTORS, MAX_RESIDENT_MIB = 1_500, 600
AT_ONCE = 500


def topic_name(number: int) -> str:
    return f"Topic{number:05}"


def group_name(number: int) -> str:
    return f"Group{number:05}"


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident_mib(pid: int) -> int:
    """The most that it ever was."""
    [line] = [
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    ]
    return math.ceil(int(line.split()[1]) / 1024)


async def some_at_a_time(
    calls: Iterable[Callable[[], Awaitable[RemotingCommand]]],
) -> list[RemotingCommand]:
    """The answers, in order; each must be SUCCESS."""
    answers: list[RemotingCommand] = []
    waiting = list(calls)
    for first in range(0, len(waiting), AT_ONCE):
        answers += await asyncio.gather(*(call() for call in waiting[first : first + AT_ONCE]))
    return answers


async def fill(broker: Broker) -> None:
    """All topics and groups, a message in every queue, and the progress of each group in a
    topic.
    """
    async with await RawClient.open(broker.address) as client:
        for first in range(0, TOPICS, AT_ONCE):
            topics = [
                {
                    "topicName": topic_name(number),
                    "readQueueNums": QUEUES,
                    "writeQueueNums": QUEUES,
                    "perm": 6,
                }
                for number in range(first, first + AT_ONCE)
            ]
            await client.ok(
                RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
                json.dumps({"topicConfigList": topics}).encode(),
            )
        for first in range(0, GROUPS, AT_ONCE):
            groups = [{"groupName": group_name(number)} for number in range(first, first + AT_ONCE)]
            await client.ok(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
                json.dumps({"groupConfigList": groups}).encode(),
            )
        await some_at_a_time(
            lambda number=number, queue=queue: client.send(
                topic_name(number), b"%d %d" % (number, queue), queue=queue
            )  # type: ignore[misc]
            for number in range(TOPICS)
            for queue in range(QUEUES)
        )
        await some_at_a_time(
            lambda number=number: client.ok(  # type: ignore[misc]
                RequestCode.UPDATE_CONSUMER_OFFSET,
                consumerGroup=group_name(number),
                topic=topic_name(number),
                queueId=0,
                commitOffset=1,
            )
            for number in range(GROUPS)
        )


async def until_registered(broker: Broker, topic: str) -> None:
    async with asyncio.timeout(60), await RawClient.open(broker.name_server) as client:
        while (await client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)).code:
            await asyncio.sleep(0.05)


async def look(broker: Broker) -> float:
    """All of it is there: at the name server, and at the broker.

    Milliseconds that 99 of 100 look-ups of a route took at most.
    """
    look_ups_s: list[float] = []
    async with await RawClient.open(broker.name_server) as client:
        for number in range(0, TOPICS, 10):
            began = time.perf_counter()
            answer = await client.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic_name(number))
            look_ups_s.append(time.perf_counter() - began)
            [queues] = TopicRouteData.from_json(java_json.loads(answer.body)).queues
            assert (queues.read_queues, queues.write_queues) == (QUEUES, QUEUES)
    async with aio.Admin(broker.name_server) as admin:
        assert {topic_name(number) for number in range(TOPICS)} <= {
            topic.name for topic in await admin.topics()
        }
        assert {group_name(number) for number in range(GROUPS)} <= {
            group.name for group in await admin.groups()
        }
    async with await RawClient.open(broker.address) as client:
        pulled = await some_at_a_time(
            lambda number=number, queue=queue: client.pull(
                "Looker", topic_name(number), 0, queue=queue
            )  # type: ignore[misc]
            for number in range(TOPICS)
            for queue in range(QUEUES)
        )
        bodies = [[message.body for message in messages(answer)] for answer in pulled]
        assert bodies == [
            [b"%d %d" % (number, queue)] for number in range(TOPICS) for queue in range(QUEUES)
        ]
        told = await some_at_a_time(
            lambda number=number: client.ok(  # type: ignore[misc]
                RequestCode.QUERY_CONSUMER_OFFSET,
                consumerGroup=group_name(number),
                topic=topic_name(number),
                queueId=0,
            )
            for number in range(GROUPS)
        )
        assert {answer.ext_fields["offset"] for answer in told} == {"1"}
    return p99_ms(look_ups_s)


async def longest_wait_while_saving(broker: Broker) -> float:
    """Milliseconds that another client waits at most while ten more topics are made, each of which
    saves the table of all of them.
    """
    longest_s = 0.0
    async with (
        await RawClient.open(broker.address) as client,
        await RawClient.open(broker.address) as another,
    ):

        async def make() -> None:
            for number in range(10):
                fields = {
                    "readQueueNums": 1,
                    "writeQueueNums": 1,
                    "perm": 6,
                    "topicFilterType": "SINGLE_TAG",
                    "order": False,
                }
                await client.ok(
                    RequestCode.UPDATE_AND_CREATE_TOPIC,
                    topic=f"More{number}",
                    defaultTopic="TBW102",
                    **fields,
                )

        making = asyncio.create_task(make())
        while not making.done():
            began = time.perf_counter()
            await another.ok(RequestCode.GET_MAX_OFFSET, topic=topic_name(0), queueId=0)
            longest_s = max(longest_s, time.perf_counter() - began)
        await making
    return round(longest_s * 1000, 1)


def test_ten_thousand_topics_and_five_thousand_groups(tmp_path: Path) -> None:
    sent = TOPICS * QUEUES
    with (
        figures("T32", nightly=True, attempts=sent, acknowledged=sent, faults=1) as line,
        Broker(data=tmp_path / "store") as broker,
    ):
        asyncio.run(fill(broker))
        line["filled_descriptors"], line["filled_resident_mib"] = (
            descriptors(broker.pid),
            resident_mib(broker.pid),
        )
        for end in (broker.stop, broker.kill):
            how = end.__name__
            # what is saved every five seconds
            asyncio.run(asyncio.sleep(6))
            end()
            began = time.monotonic()
            broker.start()
            asyncio.run(until_registered(broker, topic_name(TOPICS - 1)))
            line[f"registered_after_{how}_s"] = round(time.monotonic() - began, 1)
            line[f"route_p99_after_{how}_ms"] = asyncio.run(look(broker))
            line[f"longest_wait_while_saving_after_{how}_ms"] = asyncio.run(
                longest_wait_while_saving(broker)
            )
            line[f"descriptors_after_{how}"], line[f"resident_after_{how}_mib"] = (
                descriptors(broker.pid),
                resident_mib(broker.pid),
            )
        line["received"], line["lost"] = sent, 0
    assert max(value for name, value in line.items() if "descriptors" in name) <= MAX_DESCRIPTORS
    assert max(value for name, value in line.items() if "resident" in name) <= MAX_RESIDENT_MIB
