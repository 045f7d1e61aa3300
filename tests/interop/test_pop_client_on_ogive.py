"""RMQPopClient of rocketmq-test 5.5.0 on our broker: what Apache's own tests of POP check.

The names of Apache's tests are in the docstrings. Those of its push consumer, PopSubCheckIT and
PopConsumerRetryIT, are in test_popping_on_ogive.py.
"""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import ogive
from ogive.testing import Broker
from tests.interop import apache

QUEUES = 4
COMPRESSED = 1
"""Bit of the sysFlag of a message whose body is compressed."""


class PopClient:
    """One group on one topic."""

    def __init__(
        self, broker: Broker, topic: str, group: str, broker_name: str = "broker-a"
    ) -> None:
        self.name_server, self.topic, self.group = broker.name_server, topic, group
        self._options: dict[str, Any] = {
            "address": broker.address, "brokerName": broker_name, "topic": topic, "group": group,
        }  # fmt: skip

    def call(self, request: str, **options: Any) -> list[dict[str, Any]]:
        run = apache.run_client("Pop", request=request, **self._options, **options)
        assert run.code == 0, f"{run.lines}\n{run.other}"
        return list(run.lines)

    def pop(self, **options: Any) -> list[dict[str, Any]]:
        """The messages; none if the answer says so."""
        head, *messages = self.call("pop", **options)
        assert head["status"] == ("FOUND" if messages else "POLLING_NOT_FOUND"), head
        return messages

    def ack(self, message: dict[str, Any]) -> None:
        (line,) = self.call("ack", handle=message["handle"])
        assert line["status"] == "OK"

    def has_message(self, **options: Any) -> bool:
        (line,) = self.call("notify", **options)
        return bool(line["hasMessage"])

    def send(self, count: int, **options: Any) -> list[dict[str, Any]]:
        return apache.send(self.name_server, self.topic, count, **options)


@pytest.fixture
def client(ogive_broker: Broker, topic: str, group: str) -> PopClient:
    with ogive.Admin(ogive_broker.name_server) as admin:
        admin.create_topic(topic, queues=QUEUES)
    return PopClient(ogive_broker, topic, group)


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["text"] for message in messages]


def test_a_batch_is_acknowledged_by_one_request(client: PopClient) -> None:
    """BatchAckIT: what it names is done, in topic and retry topic; the rest comes again."""
    sent = [f"message {i}" for i in range(20)]
    client.send(20)
    found: list[dict[str, Any]] = []
    while len(found) < 20:
        found += client.pop(invisible=12_000)
    assert sorted(texts(found)) == sorted(sent)
    done, left = found[::2], found[1::2]
    client.call("batchAck", handles=",".join(message["handle"] for message in done))
    again: list[dict[str, Any]] = []
    while len(again) < 10:
        again += client.pop()
    assert sorted(texts(again)) == sorted(texts(left))
    assert {message["reconsumeTimes"] for message in again} == {1}
    client.call("batchAck", handles=",".join(message["handle"] for message in again))
    assert client.pop(poll=0) == []


def test_a_queue_in_order_waits_for_its_batch(client: PopClient) -> None:
    """PopOrderlyIT: after an acknowledgement of all, or the time, it goes on at the first that is
    not acknowledged; the same attempt gets the same batch.
    """
    client.send(6, mode="orderly", shards=1)
    first = client.pop(order="true", max=3, attempt="a", invisible=60_000)
    assert texts(first) == ["message 0", "message 1", "message 2"]
    assert client.pop(order="true", poll=0, attempt="b") == []
    assert texts(client.pop(order="true", max=3, attempt="a", invisible=4_000)) == texts(first)
    again = client.pop(order="true", max=3, attempt="c", invisible=60_000)
    assert texts(again) == texts(first)
    assert [message["reconsumeTimes"] for message in again] == [1, 1, 1]
    client.ack(again[0])
    client.ack(again[2])
    (line,) = client.call("change", handle=again[1]["handle"], invisible=1_000)
    assert line["status"] == "OK"
    rest = client.pop(order="true", max=3, attempt="d")
    assert texts(rest) == ["message 1", "message 2", "message 3"]
    for message in rest:
        client.ack(message)
    assert texts(client.pop(order="true", poll=0, attempt="e")) == ["message 4", "message 5"]


def test_large_messages_come_whole_and_come_again_whole(client: PopClient) -> None:
    """PopBigMessageIT: of 3 MiB, more than an answer has otherwise."""
    size = 3 * 1024 * 1024
    client.send(3, size=size)
    found: list[dict[str, Any]] = []
    while len(found) < 3:
        found += client.pop(invisible=20_000)
    for message in found[:2]:
        client.ack(message)
    (again,) = client.pop(poll=60_000)
    assert (again["size"], again["text"], again["reconsumeTimes"]) == (size, found[2]["text"], 1)
    assert {message["size"] for message in found} == {size}
    client.ack(again)
    assert client.pop(poll=0) == []


def test_a_compressed_body_comes_again_as_it_was_sent(client: PopClient) -> None:
    """PopBigMessageIT: a client that does not decompress gets the same bytes at each delivery."""
    client.send(1, size=1024 * 1024)
    (first,) = client.pop(invisible=1_000, decompress="false")
    (again,) = client.pop(decompress="false")
    assert again["reconsumeTimes"] == 1
    assert first["sysFlag"] & again["sysFlag"] & COMPRESSED
    assert (again["size"], again["text"]) == (first["size"], first["text"])
    assert first["size"] < 1024 * 1024


def test_a_notification_says_whether_there_is_a_message(client: PopClient) -> None:
    """NotificationIT, in order as well: a queue whose batch is out has none."""
    assert not client.has_message(poll=100)
    client.send(1)
    assert client.has_message()
    (message,) = client.pop(order="true", attempt="a")
    assert not client.has_message(poll=100, order="true")
    client.ack(message)
    assert not client.has_message(poll=100)
    client.send(1, first=1)
    assert client.has_message(order="true")


def test_notifications_in_order_know_the_attempt(client: PopClient) -> None:
    """NotificationIT: of two that wait, both say yes to one message, as the second is of the
    attempt that holds the batch; another attempt is told no.
    """
    with ThreadPoolExecutor(1) as threads, ogive.Producer(client.name_server) as producer:
        waiting = threads.submit(client.call, "notify", order="true", attempt="a", count=2)
        producer.send(client.topic, b"one")
        assert [line["hasMessage"] for line in waiting.result()] == [True, True]
    assert texts(client.pop(order="true", attempt="a", max=1)) == ["one"]
    assert client.has_message(order="true", attempt="a")
    assert not client.has_message(order="true", attempt="b", poll=500)


def test_a_change_gives_a_handle_that_can_be_acknowledged(client: PopClient) -> None:
    client.send(1)
    (message,) = client.pop()
    (changed,) = client.call("change", handle=message["handle"], invisible=1_000)
    (again,) = client.pop(poll=30_000)
    assert again["reconsumeTimes"] == 1
    assert again["id"] == message["id"]
    assert changed["handle"] != message["handle"]
    (longer,) = client.call("change", handle=again["handle"], invisible=60_000)
    client.ack({"handle": longer["handle"]})
    assert client.pop(poll=0) == []


def test_a_forwarded_message_gets_a_handle_of_its_new_broker(
    ogive_broker: Broker, topic: str, group: str, tmp_path: Path
) -> None:
    """PopMessageAndForwardingIT: the handle that it has from the first broker does not stay."""
    options = ("--broker-name", "broker-b", "--name-servers", ogive_broker.name_server)
    with Broker(data=tmp_path, options=options) as other:
        with ogive.Admin(ogive_broker.name_server) as admin:
            admin.create_topic(topic, queues=QUEUES)
        first = PopClient(ogive_broker, topic, group)
        second = PopClient(other, topic, group, "broker-b")
        with ogive.Producer(ogive_broker.name_server) as producer:
            producer.send(
                ogive.Message(topic, b"one"), queue=ogive.MessageQueue(topic, "broker-a", 0)
            )
        (message,) = first.pop(forwardTo="broker-b", nameServer=ogive_broker.name_server)
        (forwarded,) = second.pop()
        assert forwarded["id"] == message["id"]
        assert message["handle"].split()[5] == "broker-a"
        assert forwarded["handle"].split()[5] == "broker-b"
        for client, each in ((first, message), (second, forwarded)):
            client.ack(each)
            assert client.pop(poll=0) == []


@pytest.mark.parametrize("order", ["false", "true"])
def test_a_reset_gives_messages_again(client: PopClient, order: str) -> None:
    """OffsetResetForPopIT, in order as well, and while a batch is out."""
    client.send(4, mode="orderly", shards=1)
    begin = client.pop(order=order, attempt="a")
    assert len(begin) == 4
    if order == "false":
        for message in begin:
            client.ack(message)
    assert client.pop(order=order, poll=0, attempt="b") == []
    apache.admin(
        client.name_server, f"resetOffsetByTime -g {client.group} -t {client.topic} -s 1000"
    )
    again = client.pop(order=order, attempt="c")
    assert texts(again) == texts(begin)
    for message in again:
        client.ack(message)
    assert client.pop(order=order, poll=0, attempt="d") == []


def test_the_highest_priority_comes_first(ogive_broker: Broker, topic: str, group: str) -> None:
    """PopPriorityIT: Java's producer, its broker's rules; a factor of 0 leaves any order."""
    with ogive.Admin(ogive_broker.name_server) as admin:
        admin.create_topic(topic, queues=QUEUES, message_type="PRIORITY")
    client = PopClient(ogive_broker, topic, group)
    for priority in (2, 0, 3, 1, 7):
        (sent,) = client.send(1, first=priority, priority=priority)
        assert sent["queueId"] == min(priority, QUEUES - 1)
    (failed,) = client.pop(max=1, invisible=1_000)
    assert (failed["priority"], failed["queueId"]) == (3, 3)
    time.sleep(3.0)
    found = client.pop()
    assert [message["priority"] for message in found] == [7, 2, 1, 0, 3]
    assert [message["reconsumeTimes"] for message in found] == [0, 0, 0, 0, 1]


def test_mqadmin_reads_the_progress_of_a_group_with_a_lease(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    """Our answer has a field more than Java's, the time of the oldest lease."""
    with ogive.Admin(ogive_broker.name_server) as admin:
        admin.create_topic(topic, queues=1)
        admin.create_group(group)
    with (
        ogive.Producer(ogive_broker.name_server) as producer,
        ogive.SimpleConsumer(
            topic, group=group, start="earliest", name_server=ogive_broker.name_server
        ) as consumer,
    ):
        producer.send(topic, b"x")
        while not consumer.receive():
            pass
        (shown,) = apache.admin(ogive_broker.name_server, f"consumerProgress -g {group}")
    # end of the queue, progress, difference, in flight
    assert re.search(rf"^{topic} +broker-a +0 +1 +0 +1 +1 ", shown, re.MULTILINE), shown
