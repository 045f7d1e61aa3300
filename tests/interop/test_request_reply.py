"""Requests of one client answered by the other, Apache's Java client 5.5.0 and ours, through our
broker and through Apache's.
"""

import asyncio
from typing import Any

import pytest

import ogive
from ogive import aio
from ogive.testing import Broker
from tests.interop import apache
from tests.peers import RunningBroker

WAIT_S = 60.0
QUICK = ogive.ConsumerConfig(rebalance_pause_s=0.1)


@pytest.fixture(params=["ogive", "apache"])
def either_broker(request: pytest.FixtureRequest) -> RunningBroker:
    running: Broker | apache.Apache = request.getfixturevalue(f"{request.param}_broker")
    return running


def create(broker: RunningBroker, topic: str) -> None:
    with ogive.Admin(broker.name_server) as admin:
        admin.create_topic(topic)


def test_a_java_client_gets_replies_from_our_listener(
    either_broker: RunningBroker, topic: str, group: str
) -> None:
    @ogive.listener(topic, group=group, start="earliest")
    def answer(request: ogive.MessageExt) -> ogive.Reply:
        return ogive.Reply(b"re " + request.body, tag="ours", properties={"own": "1"})

    create(either_broker, topic)
    options: dict[str, Any] = {
        "nameServer": either_broker.name_server,
        "topic": topic,
        "group": group,
        "count": 3,
    }
    with (
        ogive.PushConsumer(answer, name_server=either_broker.name_server, config=QUICK),
        apache.JavaClient("Talk", mode="ask", **options) as client,
    ):
        run = client.wait()
    assert run.code == 0, run.other
    assert [(line["reply"], line["tags"], line["properties"]["own"]) for line in run.lines] == [
        (f"re {i}", "ours", "1") for i in range(3)
    ]
    assert {line["topic"] for line in run.lines} == {"DefaultCluster_REPLY_TOPIC"}


async def test_our_producer_gets_replies_from_a_java_listener(
    either_broker: RunningBroker, topic: str, group: str
) -> None:
    await asyncio.to_thread(create, either_broker, topic)
    options: dict[str, Any] = {
        "nameServer": either_broker.name_server,
        "topic": topic,
        "group": group,
        "count": 20,
    }
    with apache.JavaClient(
        "Talk", mode="answer", system=apache.QUICK_REBALANCE, **options
    ) as client:
        await asyncio.to_thread(client.wait_for, "ready")
        async with aio.Producer(either_broker.name_server) as producer:
            replies = await asyncio.gather(
                *(producer.request(topic, b"%d" % i, timeout_s=WAIT_S) for i in range(20))
            )
        run = await asyncio.to_thread(client.wait)
    assert [reply.body for reply in replies] == [b"re %d" % i for i in range(20)]
    assert (run.code, [line["sent"] for line in run.lines if "sent" in line]) == (
        0,
        ["SEND_OK"] * 20,
    ), run.other
