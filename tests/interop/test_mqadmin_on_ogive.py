"""Apache's mqadmin shows the right figures of our broker."""

import json

from ogive.testing import Broker
from tests.interop import apache


def test_the_commands_that_operators_use_show_the_right_figures(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    """20 messages in 4 queues, consumed; then 4 more, which is the lag."""
    name_server = ogive_broker.name_server
    apache.send(name_server, topic, 20, mode="orderly", shards=4)
    apache.consume(name_server, topic, group, 20)
    apache.send(name_server, topic, 4, mode="orderly", shards=4, first=20)
    outputs = apache.admin(
        name_server,
        "clusterList",
        "topicList",
        f"topicRoute -t {topic}",
        f"topicStatus -t {topic}",
        f"consumerProgress -g {group}",
    )
    for output in outputs:
        assert "Exception" not in output
    clusters, topics, route, status, progress = outputs

    (broker,) = apache.table(clusters)
    assert (broker["Cluster Name"], broker["Broker Name"], broker["BID"]) == (
        "DefaultCluster",
        "broker-a",
        "0",
    )
    assert (broker["Addr"], broker["ACTIVATED"]) == (ogive_broker.address, "true")

    assert topic in topics.split()
    found = apache.route(route)
    assert found["brokerDatas"][0]["brokerAddrs"] == {"0": ogive_broker.address}
    assert [
        (queues["brokerName"], queues["readQueueNums"], queues["writeQueueNums"], queues["perm"])
        for queues in found["queueDatas"]
    ] == [("broker-a", 4, 4, 6)]

    assert [(row["QID"], row["Min Offset"], row["Max Offset"]) for row in apache.table(status)] == [
        (str(q), "0", "6") for q in range(4)
    ]

    rows = [row for row in apache.table(progress) if row["Topic"] == topic]
    assert [
        (row["QID"], row["Broker Offset"], row["Consumer Offset"], row["Diff"]) for row in rows
    ] == [(str(q), "6", "5", "1") for q in range(4)]
    assert "Consume Diff Total: 4" in progress


def test_a_topic_made_with_mqadmin_has_the_queues_that_were_asked_for(
    ogive_broker: Broker, topic: str
) -> None:
    created, route = apache.admin(
        ogive_broker.name_server,
        f"updateTopic -c DefaultCluster -t {topic} -r 6 -w 6",
        f"topicRoute -t {topic}",
    )
    assert "Exception" not in created
    assert apache.route(route)["queueDatas"][0]["writeQueueNums"] == 6


def test_topics_json_is_written_as_apache_writes_it(ogive_broker: Broker, topic: str) -> None:
    apache.send(ogive_broker.name_server, topic, 1)
    table = json.loads((ogive_broker.data / "config" / "topics.json").read_text())
    assert table["topicConfigTable"][topic]["writeQueueNums"] == 4
