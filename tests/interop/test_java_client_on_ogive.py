"""Apache's Java client, 5.5.0, sends to and consumes from our broker, with JSON headers and with
binary ones.
"""

from collections import defaultdict
from typing import Any

import pytest

import ogive
from ogive.testing import Broker
from tests.interop import apache
from tests.topics import eventually

both_encodings = pytest.mark.parametrize("binary_headers", [False, True], ids=["json", "binary"])


def place(line: dict[str, Any]) -> tuple[int, int]:
    return line["queueId"], line["queueOffset"]


@both_encodings
@pytest.mark.parametrize("mode", ["sync", "async", "orderly"])
def test_a_message_is_delivered_from_the_place_that_the_send_reported(
    ogive_broker: Broker, topic: str, group: str, mode: str, binary_headers: bool
) -> None:
    sent = apache.send(
        ogive_broker.name_server, topic, 20, mode=mode, tags="a,b", binary_headers=binary_headers
    )
    received = apache.consume(
        ogive_broker.name_server, topic, group, 20, binary_headers=binary_headers
    )
    assert {result["status"] for result in sent} == {"SEND_OK"}
    expected = {
        (
            place(result),
            result["id"],
            f"message {result['index']}",
            f"key-{result['index']}",
            "ab"[result["index"] % 2],
        )
        for result in sent
    }
    assert {
        (place(line), line["id"], line["body"], line["keys"], line["tags"]) for line in received
    } == expected
    assert {line["properties"]["index"] for line in received} == {str(index) for index in range(20)}


@both_encodings
@pytest.mark.parametrize(("mode", "results"), [("batch", 2), ("oneway", 0)])
def test_batches_and_one_way_messages_arrive_once_each(
    ogive_broker: Broker, topic: str, group: str, mode: str, results: int, binary_headers: bool
) -> None:
    sent = apache.send(
        ogive_broker.name_server, topic, 20, mode=mode, binary_headers=binary_headers
    )
    received = apache.consume(
        ogive_broker.name_server, topic, group, 20, binary_headers=binary_headers
    )
    assert len(sent) == results
    assert sorted(line["body"] for line in received) == sorted(
        f"message {index}" for index in range(20)
    )


def test_a_body_that_the_client_compresses_arrives_whole(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    apache.send(ogive_broker.name_server, topic, 3, size=100_000)
    bodies = {line["body"] for line in apache.consume(ogive_broker.name_server, topic, group, 3)}
    assert bodies == {f"message {index}".ljust(100_000, ".") for index in range(3)}


def test_only_subscribed_tags_are_delivered(ogive_broker: Broker, topic: str, group: str) -> None:
    apache.send(ogive_broker.name_server, topic, 30, tags="red,green,blue")
    received = apache.consume(ogive_broker.name_server, topic, group, 20, expression="red||blue")
    assert sorted(line["tags"] for line in received) == ["blue"] * 10 + ["red"] * 10


def test_an_sql_filter_is_applied_at_the_broker(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    """bySql: the client checks it with code 46, heartbeats it, and does not look at the messages
    itself.
    """
    apache.send(ogive_broker.name_server, topic, 30, tags="red,green,blue")
    sql = "TAGS IN ('red', 'blue') AND index BETWEEN 10 AND 20"
    received = apache.consume(ogive_broker.name_server, topic, group, 7, sql=sql)
    assert sorted(int(line["properties"]["index"]) for line in received) == [
        n for n in range(10, 21) if n % 3 != 1
    ]


def test_a_bad_sql_filter_keeps_the_consumer_from_starting(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    apache.send(ogive_broker.name_server, topic, 1)
    run = apache.run_java(
        "Consume",
        f"nameServer={ogive_broker.name_server}",
        f"topic={topic}",
        f"group={group}",
        "sql=a == 1",
        "timeout=20",
    )
    assert run.code == 1
    assert "at character 4" in run.other


@pytest.mark.feature(81)
@both_encodings
def test_an_orderly_consumer_gets_each_queue_in_order(
    ogive_broker: Broker, topic: str, group: str, binary_headers: bool
) -> None:
    apache.send(
        ogive_broker.name_server, topic, 40, mode="orderly", shards=4, binary_headers=binary_headers
    )
    received = apache.consume(
        ogive_broker.name_server, topic, group, 40, mode="orderly", binary_headers=binary_headers
    )
    queues = defaultdict(list)
    for line in received:
        queues[line["queueId"]].append((line["queueOffset"], line["body"]))
    assert dict(queues) == {
        queue: [(offset, f"message {4 * offset + queue}") for offset in range(10)]
        for queue in range(4)
    }


def test_an_orderly_consumer_repeats_a_failed_message_before_it_goes_on(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    apache.send(ogive_broker.name_server, topic, 3, mode="orderly", shards=1)
    received = apache.consume(ogive_broker.name_server, topic, group, 9, mode="orderly", failures=2)
    assert [(line["queueOffset"], line["reconsumeTimes"]) for line in received] == [
        (offset, times) for offset in range(3) for times in range(3)
    ]


@pytest.mark.feature(150)
@both_encodings
def test_a_message_that_always_fails_is_retried_and_then_dead(
    ogive_broker: Broker, topic: str, group: str, binary_headers: bool
) -> None:
    apache.send(ogive_broker.name_server, topic, 3)
    tries = apache.consume(
        ogive_broker.name_server,
        topic,
        group,
        9,
        failures=100,
        maxReconsume=2,
        binary_headers=binary_headers,
    )
    assert sorted((line["body"], line["reconsumeTimes"]) for line in tries) == [
        (f"message {i}", times) for i in range(3) for times in range(3)
    ]
    assert {line["topic"] for line in tries} == {topic}
    dead = apache.consume(ogive_broker.name_server, f"%DLQ%{group}", f"{group}_after", 3)
    assert sorted(line["body"] for line in dead) == [f"message {index}" for index in range(3)]
    assert {line["properties"]["RETRY_TOPIC"] for line in dead} == {topic}


@pytest.mark.feature(90)
def test_an_orderly_message_that_always_fails_is_dead_and_the_queue_goes_on(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    apache.send(ogive_broker.name_server, topic, 2, mode="orderly", shards=1)
    tries = apache.consume(
        ogive_broker.name_server, topic, group, 6, mode="orderly", failures=100, maxReconsume=2
    )
    assert [line["queueOffset"] for line in tries] == [0, 0, 0, 1, 1, 1]
    # the second may be there, too
    dead = apache.consume(
        ogive_broker.name_server, f"%DLQ%{group}", f"{group}_after", 1, mode="orderly"
    )
    assert dead[0]["body"] == "message 0"


def poll(
    broker: Broker, topic: str, group: str, count: int, **options: object
) -> list[dict[str, Any]]:
    """By the lite pull consumer, which commits what it printed."""
    arguments = {
        "nameServer": broker.name_server,
        "topic": topic,
        "group": group,
        "count": count,
    } | options
    run = apache.run_java("Poll", *(f"{name}={value}" for name, value in arguments.items()))
    assert run.code == 0, run.other
    return list(run.lines)


def test_the_lite_pull_consumer_shares_a_group_s_progress(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    """Its pulls have a code of their own, 361."""
    apache.send(ogive_broker.name_server, topic, 20, tags="a,b")
    first = poll(ogive_broker, topic, group, 20)
    assert sorted(line["body"] for line in first) == sorted(
        f"message {index}" for index in range(20)
    )
    apache.send(ogive_broker.name_server, topic, 4, first=20, tags="a,b")
    assert {line["body"] for line in poll(ogive_broker, topic, group, 4)} == {
        f"message {index}" for index in range(20, 24)
    }
    with ogive.Admin(ogive_broker.name_server) as admin:
        assert sum(row.lag for row in admin.lag(group)) == 0
    assert {
        line["tags"] for line in poll(ogive_broker, topic, f"{group}_b", 12, expression="b")
    } == {"b"}


def test_the_lite_pull_consumer_reads_assigned_queues_from_where_it_seeks(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    apache.send(ogive_broker.name_server, topic, 40, mode="orderly", shards=4)
    read = poll(ogive_broker, topic, group, 12, mode="assign", seek=7)
    assert {place(line) for line in read} == {
        (queue, offset) for queue in range(4) for offset in range(7, 10)
    }


def test_a_client_that_lets_the_broker_assign_is_told_to_pull(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    """Such clients ask for the mode first, and use POP where a broker has it."""
    apache.send(ogive_broker.name_server, topic, 20)
    received = apache.consume(ogive_broker.name_server, topic, group, 20, clientRebalance="false")
    assert sorted(line["body"] for line in received) == sorted(
        f"message {index}" for index in range(20)
    )


def test_delayed_messages_arrive(ogive_broker: Broker, topic: str, group: str) -> None:
    apache.send(ogive_broker.name_server, topic, 4, delay=2)
    received = apache.consume(ogive_broker.name_server, topic, group, 4)
    assert sorted(line["body"] for line in received) == [f"message {index}" for index in range(4)]


def test_two_members_of_a_group_share_the_work(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    """Both take part once each holds some of the four queues; from then on every message reaches
    one of them.
    """
    name_server = ogive_broker.name_server
    apache.send(name_server, topic, 1)
    options: dict[str, Any] = {
        "nameServer": name_server,
        "topic": topic,
        "group": group,
        "deliveries": 1000,
    }
    with (
        apache.JavaClient("Consume", system=apache.QUICK_REBALANCE, **options) as first,
        apache.JavaClient("Consume", system=apache.QUICK_REBALANCE, **options) as second,
    ):
        first.wait_for("ready")
        second.wait_for("ready")
        shares: list[list[str]] = []
        for round_ in range(1, 20):
            apache.send(name_server, topic, 40, first=40 * round_)
            sent = {f"message {i}" for i in range(40 * round_, 40 * round_ + 40)}

            def received(sent: set[str] = sent) -> list[list[str]]:
                """By each of the two, of those that were just sent."""
                return [
                    [line["body"] for line in member.printed().lines if line.get("body") in sent]
                    for member in (first, second)
                ]

            # called at once
            assert eventually(lambda: set().union(*received()) == sent or None)  # noqa: B023
            shares = received()
            if all(shares) and sum(map(len, shares)) == len(sent):
                return
    raise AssertionError(f"after many rounds {shares[0]} and {shares[1]}")


def test_progress_survives_a_restart_of_the_consumer(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    apache.send(ogive_broker.name_server, topic, 8)
    apache.consume(ogive_broker.name_server, topic, group, 8)
    apache.send(ogive_broker.name_server, topic, 4, first=8)
    received = apache.consume(ogive_broker.name_server, topic, group, 4)
    assert sorted(line["properties"]["index"] for line in received) == sorted(
        ["8", "9", "10", "11"]
    )
