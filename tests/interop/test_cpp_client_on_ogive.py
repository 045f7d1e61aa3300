"""Apache's C++ client (PyPI: rocketmq 0.4.4) sends to and consumes from our broker."""

from collections import defaultdict

import pytest

from ogive.testing import Broker
from tests.interop import cpp


@pytest.mark.parametrize(("sends", "mode"), [("sync", "concurrent"), ("sync", "orderly"), ("async", "concurrent")])
def test_what_it_sends_it_receives(ogive_broker: Broker, topic: str, group: str, sends: str, mode: str) -> None:
    sent = cpp.send(ogive_broker.name_server, topic, 20, sends)
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


def test_a_consumer_gets_the_tags_that_it_subscribes_to(ogive_broker: Broker, topic: str, group: str) -> None:
    cpp.send(ogive_broker.name_server, topic, 20)
    assert {line["index"] for line in cpp.consume(ogive_broker.name_server, topic, group, 10, tags="odd || none")} == set(range(1, 20, 2))


def test_a_delayed_message_comes_when_its_level_is_over(ogive_broker: Broker, topic: str, group: str) -> None:
    cpp.send(ogive_broker.name_server, topic, 3, "delayed")
    received = cpp.consume(ogive_broker.name_server, topic, group, 3)
    assert {line["body"] for line in received} == {f"message {index}" for index in range(3)}
    assert all(line["storeTimestamp"] - line["bornTimestamp"] >= 1000 for line in received)  # of one machine's clock


@pytest.mark.parametrize(("tags", "wanted"), [("*", range(40)), ("even", range(0, 40, 2))])
def test_its_pull_consumer_reads_each_queue_from_its_start(ogive_broker: Broker, topic: str, group: str, tags: str, wanted: range) -> None:
    cpp.send(ogive_broker.name_server, topic, 40, "orderly")
    received = cpp.pull(ogive_broker.name_server, topic, group, len(wanted), tags)
    assert sorted(line["index"] for line in received) == list(wanted)
    for queue in range(4):
        offsets = [line["queueOffset"] for line in received if line["queueId"] == queue]
        assert offsets == sorted(offsets)
