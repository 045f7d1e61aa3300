"""Apache's C++ client (PyPI: rocketmq 0.4.4) sends to and consumes from our broker."""

from collections import defaultdict

import pytest

from ogive.testing import Broker
from tests.interop import cpp


@pytest.mark.parametrize("mode", ["concurrent", "orderly"])
def test_what_it_sends_it_receives(ogive_broker: Broker, topic: str, group: str, mode: str) -> None:
    sent = cpp.send(ogive_broker.name_server, topic, 20)
    received = cpp.consume(ogive_broker.name_server, topic, group, 20, mode)
    assert {result["status"] for result in sent} == {"OK"}
    assert {(result["id"], result["index"], result["queueOffset"]) for result in sent} == {
        (line["id"], line["index"], line["queueOffset"]) for line in received
    }
    assert {(line["body"], line["keys"], line["tags"]) for line in received} == {
        (f"message {index}", f"key-{index}", "odd" if index % 2 else "even") for index in range(20)
    }


def test_one_way_messages_arrive(ogive_broker: Broker, topic: str, group: str) -> None:
    cpp.send(ogive_broker.name_server, topic, 1)  # creates the topic: a one-way request cannot tell that it had to wait for that
    cpp.send(ogive_broker.name_server, topic, 20, "oneway")
    assert len(cpp.consume(ogive_broker.name_server, topic, group, 21)) == 21


def test_an_orderly_consumer_gets_each_queue_in_order(ogive_broker: Broker, topic: str, group: str) -> None:
    cpp.send(ogive_broker.name_server, topic, 40, "orderly")
    queues = defaultdict(list)
    for line in cpp.consume(ogive_broker.name_server, topic, group, 40, "orderly"):
        queues[line["queueId"]].append(line["index"])
    assert dict(queues) == {queue: list(range(queue, 40, 4)) for queue in range(4)}
