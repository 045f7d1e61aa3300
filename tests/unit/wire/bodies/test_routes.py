"""Route bodies, as name servers of several releases write them."""

import json
from pathlib import Path

import pytest

from ogive.errors import ProtocolError
from ogive.wire.bodies.json_fields import loads_object
from ogive.wire.bodies.routes import MAX_BROKERS, TopicRouteData

VECTORS = Path(__file__).parents[3] / "vectors" / "conversations.jsonl"
GET_ROUTE = 105
WHOLE = """{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},
"brokerName":"broker-a","cluster":"DefaultCluster"}],
"filterServerTable":{"10.0.0.1:10911":["10.0.0.1:9000","10.0.0.1:9001"]},
"orderTopicConf":"broker-a:4;broker-b:2",
"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":8,"topicSynFlag":1,
"writeQueueNums":4}]}"""


def recorded() -> list[str]:
    """What Apache's name server answered, in both dialects of JSON."""
    rows = [json.loads(line) for line in VECTORS.read_text().splitlines()]
    answers = [
        row["response"] for row in rows if row["request"]["code"] == GET_ROUTE and row["response"]
    ]
    return [answer["body"] for answer in answers if answer.get("body")]


@pytest.mark.feature(158)
@pytest.mark.parametrize("body", recorded())
def test_recorded_routes_decode(body: str) -> None:
    route = TopicRouteData.from_json(loads_object(body))
    assert [(broker.broker_name, broker.addresses) for broker in route.brokers] == [
        ("broker-a", {0: "127.0.0.1:18911"})
    ]
    assert [(row.broker_name, row.perm) for row in route.queues] == [
        ("broker-a", 7)
    ] or route.queues[0].perm == 6
    assert TopicRouteData.from_json(loads_object(route.encode(standard=True))) == route
    assert TopicRouteData.from_json(loads_object(route.encode(standard=False))) == route


def test_there_are_recorded_routes_of_both_dialects() -> None:
    assert {'"0":' in body for body in recorded()} == {True, False}


@pytest.mark.feature(158)
def test_every_part_of_a_route_decodes() -> None:
    route = TopicRouteData.from_json(loads_object(WHOLE))
    assert route.brokers[0].addresses == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
    assert route.order_topic_conf == "broker-a:4;broker-b:2"
    assert route.filter_servers == {"10.0.0.1:10911": ("10.0.0.1:9000", "10.0.0.1:9001")}
    (row,) = route.queues
    assert (row.read_queues, row.write_queues, row.perm, row.topic_sys_flag) == (8, 4, 6, 1)
    assert TopicRouteData.from_json(loads_object(route.encode(standard=True))) == route


@pytest.mark.parametrize(
    "part",
    [
        '"filterServerTable":[1]',
        '"filterServerTable":{"a:1":[1]}',
        '"filterServerTable":{"a:1":"b:2"}',
    ],
)
def test_a_filter_server_that_is_none_is_refused(part: str) -> None:
    with pytest.raises(ProtocolError):
        TopicRouteData.from_json(loads_object("{" + part + "}"))


def route_of(brokers: int, addresses: int = 1) -> str:
    rows = [
        {
            "brokerName": f"b{i}",
            "cluster": "c",
            "brokerAddrs": {str(j): "127.0.0.1:1" for j in range(addresses)},
        }
        for i in range(brokers)
    ]
    return json.dumps({"brokerDatas": rows, "queueDatas": []})


@pytest.mark.parametrize(
    ("brokers", "addresses"), [(MAX_BROKERS, 1), (1, MAX_BROKERS), (MAX_BROKERS // 2, 2)]
)
def test_a_route_with_as_many_brokers_as_a_client_talks_to_is_taken_and_one_with_more_is_not(
    brokers: int, addresses: int
) -> None:
    assert (
        len(TopicRouteData.from_json(loads_object(route_of(brokers, addresses))).brokers) == brokers
    )
    more = (brokers, addresses + 1) if brokers == 1 else (brokers + 1, addresses)
    with pytest.raises(ProtocolError, match=rf"brokers: {MAX_BROKERS} are the limit"):
        TopicRouteData.from_json(loads_object(route_of(*more)))
