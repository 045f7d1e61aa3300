"""The transport as kombu uses it, with a real broker."""

import os
import socket
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError

import ogive
from ogive.testing import Broker

LIMIT_S = 60


class Reader:
    """Consumer of one queue, which keeps its messages."""

    def __init__(self, connection: Any, queue: Any, *, prefetch: int = 0, no_ack: bool = False):
        self.connection = connection
        self.messages: list[Any] = []
        self.consumer = Consumer(
            connection.channel(), [queue], on_message=self.messages.append, no_ack=no_ack
        )
        if prefetch:
            self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def read(self, count: int) -> list[Any]:
        """Return the next *count* messages."""
        while len(self.messages) < count:
            self.connection.drain_events(timeout=LIMIT_S)
        taken, self.messages[:] = self.messages[:count], self.messages[count:]
        return taken

    def wait_empty(self, queue: Any) -> None:
        """Wait until everything in the queue is acknowledged."""
        give_up = time.monotonic() + LIMIT_S
        with self.connection.channel() as channel:
            while queue(channel).queue_declare(passive=True).message_count:
                assert time.monotonic() < give_up
                time.sleep(0.1)


def send(connection: Any, queue: Any, *bodies: Any, **options: Any) -> None:
    with connection.channel() as channel:
        for body in bodies:
            Producer(channel).publish(body, routing_key=queue.name, declare=[queue], **options)


def test_messages_arrive_with_their_headers_and_end_with_an_ack(connection: Any, name: str) -> None:
    queue = Queue(name, no_declare=False)
    send(connection, queue, {"amount": 20}, headers={"a": "b"}, correlation_id="4711")
    send(connection, queue, b"\x00\xff", serializer="pickle")
    reader = Reader(connection, Queue(name))
    first, second = reader.read(2)
    if first.properties.get("correlation_id") != "4711":
        first, second = second, first
    assert (first.payload, first.headers) == ({"amount": 20}, {"a": "b"})
    assert first.delivery_info["redelivered"] is False
    assert second.content_type == "application/x-python-serialize"
    first.ack()
    second.ack()
    reader.wait_empty(queue)


def test_the_key_of_a_message_is_the_id_of_the_task(
    broker: Broker, connection: Any, name: str
) -> None:
    send(connection, Queue(name), "x", correlation_id="4711")
    with ogive.Admin(broker.name_server) as admin:
        assert [one.keys for one in admin.messages(name, key="4711")] == [("4711",)]


def test_a_close_gives_back_what_is_not_acknowledged(url: str, connection: Any, name: str) -> None:
    queue = Queue(name)
    send(connection, queue, "x")
    # its lease does not end during the test
    with Connection(url, transport_options={"visibility_timeout": 3600}) as first:
        Reader(first, queue).read(1)
    (again,) = Reader(connection, queue).read(1)
    assert again.payload == "x"
    assert again.delivery_info["redelivered"] is True


def test_a_rejected_message_is_delivered_again_or_dropped(connection: Any, name: str) -> None:
    queue = Queue(name)
    send(connection, queue, "x")
    reader = Reader(connection, queue)
    reader.read(1)[0].requeue()
    reader.read(1)[0].reject()
    reader.wait_empty(queue)


def test_a_channel_holds_no_more_messages_than_its_prefetch_limit(
    connection: Any, name: str
) -> None:
    queue = Queue(name)
    send(connection, queue, *"abcde")
    reader = Reader(connection, queue, prefetch=2)
    held = reader.read(2)
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=1)
    held[0].ack()
    reader.read(1)
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=1)


def test_several_queues_are_read_at_the_same_time(connection: Any, name: str) -> None:
    """An empty queue does not hold up another one."""
    queues = [Queue(f"{name}_{number}") for number in range(3)]
    channel = connection.channel()
    messages: list[Any] = []
    consumer = Consumer(channel, queues, on_message=messages.append)
    consumer.qos(prefetch_count=1)
    consumer.consume()
    for queue in reversed(queues):
        send(connection, queue, queue.name)
        while not messages:
            connection.drain_events(timeout=LIMIT_S)
        message = messages.pop()
        assert message.payload == queue.name
        message.ack()


def test_a_lease_is_renewed_until_the_ack(url: str, connection: Any, name: str) -> None:
    queue = Queue(name)
    send(connection, queue, "x")
    with Connection(url, transport_options={"visibility_timeout": 10}) as holder:
        reader = Reader(holder, queue)
        (message,) = reader.read(1)
        other = Reader(connection, queue)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=14)
        message.ack()
        reader.wait_empty(queue)
        assert not other.messages


def test_messages_without_ack_end_when_they_arrive(connection: Any, name: str) -> None:
    queue = Queue(name)
    send(connection, queue, "x")
    reader = Reader(connection, queue, no_ack=True)
    reader.read(1)
    reader.wait_empty(queue)


def test_get_returns_one_message_or_none(connection: Any, name: str) -> None:
    queue = Queue(name)(connection.channel())
    queue.declare()
    assert queue.get() is None
    send(connection, Queue(name), "x")
    message = queue.get()
    assert message.payload == "x"
    message.ack()


def test_a_queue_is_declared_purged_and_deleted(connection: Any, name: str) -> None:
    queue = Queue(name)(connection.channel())
    with pytest.raises(ChannelError, match=name):
        queue.queue_declare(passive=True)
    send(connection, Queue(name), *"abc")
    assert queue.queue_declare(passive=True).message_count == 3
    assert queue.purge() == 3
    assert queue.queue_declare(passive=True).message_count == 0
    assert queue.get() is None
    queue.channel.close()
    queue = queue(connection.channel())
    queue.delete()
    with pytest.raises(ChannelError, match=name):
        queue.queue_declare(passive=True)


def test_higher_priorities_come_first(connection: Any, name: str) -> None:
    queue = Queue(name, max_priority=3)
    for priority in (0, 3, 1):
        send(connection, queue, priority, priority=priority)
    reader = Reader(connection, queue, prefetch=1)
    order = []
    for _ in range(3):
        (message,) = reader.read(1)
        order.append(message.payload)
        message.ack()
    assert order == [3, 1, 0]


def test_the_broker_keeps_a_task_back_until_its_eta(connection: Any, name: str) -> None:
    queue = Queue(name)
    eta = datetime.now(UTC) + timedelta(seconds=5)
    send(connection, queue, "x", headers={"eta": eta.isoformat()})
    Reader(connection, queue).read(1)
    # the broker's timers have a precision of a second
    assert datetime.now(UTC) > eta - timedelta(seconds=1)


def test_the_worker_holds_what_the_broker_cannot_keep_back(url: str, name: str) -> None:
    queue = Queue(name)
    eta = datetime.now(UTC) + timedelta(days=30)
    with Connection(url, transport_options={"max_delay": 3}) as connection:
        send(connection, queue, "x", headers={"eta": eta.isoformat()})
        (message,) = Reader(connection, queue).read(1)
        assert message.headers["eta"] == eta.isoformat()


def test_a_message_of_another_client_has_its_bytes_as_the_body(
    broker: Broker, connection: Any, name: str
) -> None:
    queue = Queue(name)
    queue(connection.channel()).declare()
    with ogive.Producer(broker.name_server) as producer:
        producer.send(name, b"not JSON", properties={"a": "b"})
    (message,) = Reader(connection, queue).read(1)
    assert (message.body, message.content_type) == (b"not JSON", "application/data")
    assert message.headers["a"] == "b"
    message.ack()


def test_a_virtual_host_is_a_namespace(broker: Broker, name: str) -> None:
    queue = Queue(name)
    with Connection(f"rocketmq://{broker.name_server}/shop") as connection:
        send(connection, queue, "x")
        reader = Reader(connection, queue)
        reader.read(1)[0].ack()
        reader.wait_empty(queue)
    with ogive.Admin(broker.name_server) as admin:
        names = [one.name for one in admin.topics()]
        assert f"shop%{name}" in names
        assert name not in names


def test_a_routing_key_of_a_topic_exchange_chooses_queues(connection: Any, name: str) -> None:
    exchange = Exchange(f"{name}_exchange", type="topic")
    queue = Queue(name, exchange, routing_key="order.*")
    channel = connection.channel()
    producer = Producer(channel, exchange)
    producer.publish("paid", routing_key="order.paid", declare=[queue])
    producer.publish("other", routing_key="invoice.paid", declare=[queue])
    assert queue(channel).queue_declare(passive=True).message_count == 1


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        (Queue("x", Exchange("x", type="fanout")), "fanout"),
        (Queue("x", auto_delete=True), "temporary"),
        (Queue("x", exclusive=True), "temporary"),
        (Queue("x", expires=60), "x-expires"),
        (Queue("x", message_ttl=60), "x-message-ttl"),
        (Queue("a.b"), "a.b"),
    ],
)
def test_what_a_topic_cannot_be_is_refused(connection: Any, queue: Any, words: str) -> None:
    with pytest.raises(ogive.InvalidOption, match=words):
        queue(connection.channel()).declare()


def test_a_forked_child_is_told_to_make_a_connection_of_its_own(connection: Any, name: str) -> None:
    send(connection, Queue(name), "x")
    child = os.fork()
    if child == 0:
        try:
            send(connection, Queue(name), "y")
        except ogive.IllegalStateError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_missing_name_server_is_a_connection_error() -> None:
    with (
        Connection("rocketmq://127.0.0.1:1//", connect_timeout=1) as connection,
        pytest.raises(connection.connection_errors),
    ):
        connection.channel().queue_declare("x")
