"""Apache's C++ client (PyPI: rocketmq 0.4.4) sends to and consumes from our broker."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import ogive
from ogive.testing import Broker
from tests.interop import cpp


@pytest.mark.parametrize(
    ("sends", "mode"), [("sync", "concurrent"), ("sync", "orderly"), ("async", "concurrent")]
)
def test_what_it_sends_it_receives(
    ogive_broker: Broker, topic: str, group: str, sends: str, mode: str
) -> None:
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
    # creates the topic: a one-way request cannot tell that it had to wait for that
    cpp.send(ogive_broker.name_server, topic, 1)
    # and one more, whose answer says that they have left
    cpp.send(ogive_broker.name_server, topic, 20, "oneway")
    assert len(cpp.consume(ogive_broker.name_server, topic, group, 22)) == 22


def test_an_orderly_consumer_gets_each_queue_in_order(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    cpp.send(ogive_broker.name_server, topic, 40, "orderly")
    queues = defaultdict(list)
    for line in cpp.consume(ogive_broker.name_server, topic, group, 40, "orderly"):
        queues[line["queueId"]].append(line["index"])
    assert dict(queues) == {queue: list(range(queue, 40, 4)) for queue in range(4)}


def test_a_consumer_gets_the_tags_that_it_subscribes_to(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    cpp.send(ogive_broker.name_server, topic, 20)
    assert {
        line["index"]
        for line in cpp.consume(ogive_broker.name_server, topic, group, 10, tags="odd || none")
    } == set(range(1, 20, 2))


def test_a_delayed_message_comes_when_its_level_is_over(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    cpp.send(ogive_broker.name_server, topic, 3, "delayed")
    received = cpp.consume(ogive_broker.name_server, topic, group, 3)
    assert {line["body"] for line in received} == {f"message {index}" for index in range(3)}
    # of one machine's clock
    assert all(line["storeTimestamp"] - line["bornTimestamp"] >= 1000 for line in received)


@pytest.mark.parametrize(("tags", "wanted"), [("*", range(40)), ("even", range(0, 40, 2))])
def test_its_pull_consumer_reads_each_queue_from_its_start(
    ogive_broker: Broker, topic: str, group: str, tags: str, wanted: range
) -> None:
    cpp.send(ogive_broker.name_server, topic, 40, "orderly")
    received = cpp.pull(ogive_broker.name_server, topic, group, len(wanted), tags)
    assert sorted(line["index"] for line in received) == list(wanted)
    for queue in range(4):
        offsets = [line["queueOffset"] for line in received if line["queueId"] == queue]
        assert offsets == sorted(offsets)


def test_what_it_asks_for_again_comes_again(ogive_broker: Broker, topic: str, group: str) -> None:
    """Its first three deliveries, by way of the group's retry topic.

    What it pulled with them and has not given out goes back, too.
    """
    cpp.send(ogive_broker.name_server, topic, 10)
    received = cpp.consume(ogive_broker.name_server, topic, group, 13, later=3)
    times = defaultdict(list)
    for line in received:
        times[line["index"]].append(line["reconsumeTimes"])
        assert (line["body"], line["keys"]) == (f"message {line['index']}", f"key-{line['index']}")
    failed = [line["index"] for line in received[:3]]
    assert [times.pop(index) for index in failed] == [[0, 1]] * 3
    assert sorted([*times, *failed]) == list(range(10))
    assert all(found in ([0], [1]) for found in times.values())


def test_an_orderly_queue_waits_for_what_it_asks_for_again(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    """Its client tries the same message again, a second later, and gives the queue's next one only
    then.
    """
    with ogive.Admin(ogive_broker.name_server) as admin:
        admin.create_topic(topic, queues=4)
    cpp.send(ogive_broker.name_server, topic, 16, "orderly")
    queues = defaultdict(list)
    for line in cpp.consume(ogive_broker.name_server, topic, group, 17, "orderly", later=1):
        queues[line["queueId"]].append(line["index"])
    [twice] = [queue for queue, indices in queues.items() if len(indices) == 5]
    assert queues.pop(twice) == [twice, *range(twice, 16, 4)]
    assert all(indices == list(range(queue, 16, 4)) for queue, indices in queues.items())


def test_each_member_of_a_broadcasting_group_receives_everything(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    """Such members begin at the end of each queue, so messages come until both have had twenty,
    without a gap in either of two queues.
    """
    with ogive.Admin(ogive_broker.name_server) as admin:
        admin.create_topic(topic, queues=2)
    with (
        messages_every_quarter_second(ogive_broker.name_server, topic),
        ThreadPoolExecutor(2) as members,
    ):
        one, other = members.map(
            lambda _: cpp.consume(ogive_broker.name_server, topic, group, 20, "broadcasting"),
            range(2),
        )
    for received in (one, other):
        assert {line["queueId"] for line in received} == {0, 1}
        assert len({line["body"] for line in received}) == len(received)
        for queue in range(2):
            offsets = sorted(line["queueOffset"] for line in received if line["queueId"] == queue)
            assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
    with ogive.Admin(ogive_broker.name_server) as admin:
        # where they stand is theirs to know
        assert not any(row.consumer_offset for row in admin.lag(group, topic))


@contextmanager
def messages_every_quarter_second(name_server: str, topic: str) -> Iterator[None]:
    enough = threading.Event()

    def go_on() -> None:
        index = 0
        with ogive.Producer(name_server) as producer:
            while not enough.wait(0.25):
                producer.send(
                    topic,
                    f"message {index}".encode(),
                    properties={"index": str(index)},
                    keys=f"k{index}",
                    tag="even",
                )
                index += 1

    sender = threading.Thread(target=go_on)
    sender.start()
    try:
        yield
    finally:
        enough.set()
        sender.join()
