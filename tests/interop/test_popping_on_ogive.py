"""Apache's Java push client, 5.5.0, in POP mode on our broker."""

import asyncio
from collections import Counter

import pytest

import ogive
from ogive.testing import Broker
from ogive.wire.codes import RequestCode
from tests.interop import apache
from tests.raw_client import RawClient
from tests.topics import eventually


def set_mode(broker: Broker, topic: str, group: str, mode: str) -> None:
    apache.admin(
        broker.name_server, f"updateSubGroup -c DefaultCluster -g {group}",
        f"setConsumeMode -c DefaultCluster -t {topic} -g {group} -m {mode} -q 0",
    )  # fmt: skip


def pops(broker: Broker, topic: str, group: str) -> bool | None:
    """True once a request of the group waits for the topic."""

    async def waiting() -> int:
        async with await RawClient.open(broker.address) as client:
            answer = await client.ok(
                RequestCode.POLLING_INFO, consumerGroup=group, topic=topic, queueId=-1
            )
        return int(answer.ext_fields["pollingNum"])

    return True if asyncio.run(waiting()) else None


def lag(broker: Broker, group: str) -> int:
    with ogive.Admin(broker.name_server) as admin:
        return sum(row.lag for row in admin.lag(group, members=False))


def test_a_client_pops_and_gets_what_failed_again(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    """Its failures change the invisible time: 10 s, then the message comes as another try."""
    apache.send(ogive_broker.name_server, topic, 20, tags="a,b")
    set_mode(ogive_broker, topic, group, "POP")
    received = apache.consume(
        ogive_broker.name_server, topic, group, 20, clientRebalance="false", failures=1,
        expression="b",
    )  # fmt: skip
    odd = sorted(f"message {index}" for index in range(1, 20, 2))
    assert sorted(line["body"] for line in received if line["outcome"] == "done") == odd
    assert all("POP_CK" in line["properties"] for line in received)
    assert {line["topic"] for line in received} == {topic}


def test_a_running_client_that_pulls_is_switched_to_popping(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    """PopSubCheckIT: a message comes once, with a handle, and is acknowledged."""
    with ogive.Admin(ogive_broker.name_server) as admin:
        admin.create_topic(topic, queues=4)
    with apache.JavaClient(
        "Consume", system=apache.QUICK_REBALANCE, nameServer=ogive_broker.name_server, topic=topic,
        group=group, deliveries=2, clientRebalance="false",
    ) as consumer:  # fmt: skip
        consumer.wait_for("ready")
        set_mode(ogive_broker, topic, group, "POP")
        assert eventually(lambda: pops(ogive_broker, topic, group), 60.0)
        with ogive.Producer(ogive_broker.name_server) as producer:
            producer.send(topic, b"one")
        consumer.wait_for("body")
        assert eventually(lambda: lag(ogive_broker, group) == 0 or None, 30.0)
        (line,) = [line for line in consumer.printed().lines if "body" in line]
    assert line["body"] == "one"
    assert "POP_CK" in line["properties"]


@pytest.mark.nightly
@pytest.mark.waits(100)
@pytest.mark.parametrize("mode", ["concurrent", "orderly"])
def test_each_message_comes_until_it_succeeds(
    ogive_broker: Broker, topic: str, group: str, mode: str
) -> None:
    """PopConsumerRetryIT: two failures of each of ten messages, 10 and 30 s apart; in order the
    client pulls.
    """
    with ogive.Admin(ogive_broker.name_server) as admin:
        admin.create_topic(topic, queues=1)
    set_mode(ogive_broker, topic, group, "POP")
    apache.send(ogive_broker.name_server, topic, 10)
    received = apache.consume(
        ogive_broker.name_server, topic, group, 30, clientRebalance="false", failures=2, mode=mode
    )
    tries = Counter((line["body"], line["reconsumeTimes"]) for line in received)
    assert tries == Counter((f"message {i}", tries) for i in range(10) for tries in range(3))
    assert all(("POP_CK" in line["properties"]) == (mode == "concurrent") for line in received)
    assert eventually(lambda: lag(ogive_broker, group) == 0 or None, 30.0)
