"""The harness against Apache's own broker: what fails here is the harness or the machine, not
ogive.
"""

from pathlib import Path

import pytest

from tests.interop import apache, cpp
from tests.interop.apache import Apache


@pytest.mark.parametrize("binary_headers", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("mode", ["sync", "async", "oneway", "batch", "orderly"])
def test_java_client_sends_in_every_mode(
    apache_broker: Apache, topic: str, mode: str, binary_headers: bool
) -> None:
    results = apache.send(
        apache_broker.name_server, topic, 20, mode=mode, binary_headers=binary_headers
    )
    assert {result["status"] for result in results} <= {"SEND_OK"}
    assert len(results) == {"oneway": 0, "batch": 2}.get(mode, 20)
    ends = apache.table(apache_broker.admin(f"topicStatus -t {topic}")[0])
    assert sum(int(row["Max Offset"]) for row in ends) == 20


def test_java_client_consumes_what_it_sent(apache_broker: Apache, topic: str, group: str) -> None:
    apache.send(apache_broker.name_server, topic, 20, tags="a,b")
    deliveries = apache.consume(apache_broker.name_server, topic, group, 20)
    assert {line["body"] for line in deliveries} == {f"message {i}" for i in range(20)}
    assert {line["tags"] for line in deliveries} == {"a", "b"}


def test_java_consumer_prints_failed_deliveries_and_their_retries(
    apache_broker: Apache, topic: str, group: str
) -> None:
    apache.send(apache_broker.name_server, topic, 1)
    deliveries = apache.consume(
        apache_broker.name_server, topic, group, 2, mode="orderly", failures=1
    )
    assert [(line["reconsumeTimes"], line["outcome"]) for line in deliveries] == [
        (0, "later"),
        (1, "done"),
    ]


def test_cpp_client_sends_and_consumes(apache_broker: Apache, topic: str, group: str) -> None:
    for mode in ("sync", "orderly"):
        assert {
            result["status"] for result in cpp.send(apache_broker.name_server, topic, 8, mode)
        } == {"OK"}
    cpp.send(apache_broker.name_server, topic, 8, "oneway")
    for mode in ("concurrent", "orderly"):
        deliveries = cpp.consume(apache_broker.name_server, topic, f"{group}_{mode}", 25, mode)
        assert sorted(line["index"] for line in deliveries) == sorted([*range(8)] * 3 + [8])


def test_mqadmin_runs_many_commands_in_one_jvm_and_its_tables_parse(
    apache_broker: Apache, topic: str, group: str
) -> None:
    apache.send(apache_broker.name_server, topic, 20, mode="orderly")
    apache.consume(apache_broker.name_server, topic, group, 20)
    clusters, topics, route, status, progress = apache_broker.admin(
        "clusterList",
        "topicList",
        f"topicRoute -t {topic}",
        f"topicStatus -t {topic}",
        f"consumerProgress -g {group}",
    )
    assert [(row["Broker Name"], row["Addr"]) for row in apache.table(clusters)] == [
        ("broker-a", apache_broker.address)
    ]
    assert topic in topics.split()
    assert apache.route(route)["queueDatas"][0]["writeQueueNums"] == 4
    assert [(row["QID"], row["Max Offset"]) for row in apache.table(status)] == [
        (str(queue), "5") for queue in range(4)
    ]
    assert [
        (row["Consumer Offset"], row["Diff"])
        for row in apache.table(progress)
        if row["Topic"] == topic
    ] == [("5", "0")] * 4


def test_a_broker_that_cannot_start_is_reported_with_its_output(
    apache_broker: Apache, tmp_path: Path
) -> None:
    broken = Apache(tmp_path, name_server=apache_broker.name_server, jvm=["-XX:NoSuchOption"])
    with pytest.raises(AssertionError, match=r"(?s)ended with code 1.*NoSuchOption"):
        broken.start()


def test_a_killed_broker_serves_what_it_stored_after_a_restart(
    apache_broker: Apache, topic: str, group: str
) -> None:
    apache.send(apache_broker.name_server, topic, 20)
    apache_broker.kill()
    apache_broker.start()
    assert len(apache.consume(apache_broker.name_server, topic, group, 20)) == 20
