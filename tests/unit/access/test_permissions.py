"""What each request needs."""

import json
from typing import Any

import pytest

from ogive.access.permissions import MAX_BODY_BYTES, RULES, SUPER_ONLY, Facts
from ogive.access.policy import Need
from ogive.broker.routes import ROUTES as BROKER
from ogive.errors import ProtocolError
from ogive.namesrv.handlers import ROUTES as NAME_SERVER
from ogive.wire.bodies.acls import Resource
from ogive.wire.bodies.clients import ConsumerData, SubscriptionData
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand

LOG = {100: "T", 200: "%RETRY%G"}
FACTS = Facts(
    cluster="C",
    is_super=lambda name: name == "root",
    topic_at=LOG.get,
    topics_to_clone=lambda group: ["T", "U"] if group == "G" else [],
)


def needs(code: int, fields: dict[str, str] | None = None, body: Any = b"") -> list[Need]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return list(RULES[code](RemotingCommand(code, fields or {}, raw), FACTS))


@pytest.mark.kills("one request code missing from the permission table")
def test_every_code_of_the_protocol_has_a_row() -> None:
    assert RULES.keys() == set(RequestCode)
    assert BROKER.keys() <= RULES.keys()
    assert NAME_SERVER.keys() <= RULES.keys()


TOPIC, GROUP = {"topic": "T"}, {"consumerGroup": "G"}
BOTH = TOPIC | GROUP
QUEUES = [
    {"topic": "T", "queueId": 0, "brokerName": "b"},
    {"topic": "%RETRY%G", "queueId": 0, "brokerName": "b"},
]
HEARTBEAT = {
    "clientID": "c",
    "consumerDataSet": [
        {
            "groupName": "G",
            "subscriptionDataSet": [
                {"topic": "T", "subString": "*"},
                {"topic": "%RETRY%G", "subString": "*"},
            ],
        }
    ],
    "producerDataSet": [{"groupName": "P"}],
}


@pytest.mark.parametrize(
    ("code", "fields", "body", "expected"),
    [
        (10, TOPIC, b"", ["Pub on Topic:T"]),
        (310, {"b": "T"}, b"", ["Pub on Topic:T"]),
        (320, {"b": "T"}, b"", ["Pub on Topic:T"]),
        (310, {"b": "%RETRY%G"}, b"", ["Sub on Group:G"]),
        (310, {"topic": "T"}, b"", ["Pub on Topic:"]),
        (324, {"topic": "C_REPLY_TOPIC"}, b"", ["Pub on Topic:C_REPLY_TOPIC or Sub on some Group"]),
        (325, {"b": "C_REPLY_TOPIC"}, b"", ["Pub on Topic:C_REPLY_TOPIC or Sub on some Group"]),
        (324, {"topic": "T", "b": "C_REPLY_TOPIC"}, b"", ["Pub on Topic:T"]),
        (325, {"b": "T", "topic": "C_REPLY_TOPIC"}, b"", ["Pub on Topic:T"]),
        (11, BOTH, b"", ["Sub on Topic:T", "Sub on Group:G"]),
        (361, BOTH, b"", ["Sub on Topic:T", "Sub on Group:G"]),
        (11, GROUP | {"topic": "%RETRY%H"}, b"", ["Sub on Group:H", "Sub on Group:G"]),
        (11, GROUP | {"topic": "%DLQ%G"}, b"", ["Sub on Topic:%DLQ%G", "Sub on Group:G"]),
        (12, TOPIC, b"", ["Sub|Get on Topic:T"]),
        (14, BOTH, b"", ["Sub|Get on Topic:T", "Sub|Get on Group:G"]),
        (15, BOTH, b"", ["Sub|Update on Topic:T", "Sub|Update on Group:G"]),
        (15, TOPIC, b"", ["Sub|Update on Topic:T", "Sub|Update on Group:"]),
        (33, {"offset": "100"}, b"", ["Sub|Get on Topic:T"]),
        (33, {"offset": "100", "topic": "Mine"}, b"", ["Sub|Get on Topic:T"]),
        (33, {"offset": "101"}, b"", ["Sub|Get on Topic:"]),
        (33, {"offset": "-1"}, b"", ["Sub|Get on Topic:"]),
        (33, {}, b"", ["Sub|Get on Topic:"]),
        (34, {}, HEARTBEAT, ["Sub on Group:G", "Sub on Topic:T", "Sub on Group:G"]),
        (35, {"clientID": "c"}, b"", []),
        (35, GROUP, b"", ["Sub on Group:G"]),
        (36, {"group": "G", "offset": "100"}, b"", ["Sub on Group:G", "Sub on Topic:T"]),
        (36, {"group": "G", "offset": "200"}, b"", ["Sub on Group:G", "Sub on Group:G"]),
        (37, {"commitLogOffset": "100", "topic": "Mine"}, b"", ["Pub on Topic:T"]),
        (38, GROUP, b"", ["Sub|Get on Group:G"]),
        (
            41,
            {},
            {"consumerGroup": "G", "mqSet": QUEUES},
            ["Sub on Group:G", "Sub on Topic:T", "Sub on Group:G"],
        ),
        (42, {}, {}, ["Sub on Group:"]),
        (
            46,
            {},
            {"group": "G", "subscriptionData": {"topic": "T"}},
            ["Sub on Group:G", "Sub on Topic:T"],
        ),
        (46, {}, {}, ["Sub on Group:", "Sub on Topic:"]),
        (17, TOPIC, b"", ["Create on Topic:T"]),
        (
            18,
            {},
            {"topicConfigList": [{"topicName": "T"}, 7]},
            ["Create on Topic:T", "Create on Topic:"],
        ),
        (18, {}, {}, ["Create on Topic:"]),
        (21, {}, b"", ["Get|List on Topic:*"]),
        (200, {}, {"groupName": "G"}, ["Create|Update on Group:G"]),
        (201, {}, b"", ["Get|List on Group:*"]),
        (207, {"groupName": "G"}, b"", ["Delete on Group:G"]),
        (208, GROUP, b"", ["Get on Group:G"]),
        (
            208,
            BOTH | {"topicList": "T;U;%RETRY%H"},
            b"",
            ["Get on Group:G", "Get on Topic:T", "Get on Topic:U", "Get on Group:H"],
        ),
        (215, TOPIC, b"", ["Delete on Topic:T"]),
        (222, {"topic": "T", "group": "G"}, b"", ["Update on Topic:T", "Update on Group:G"]),
        (
            314,
            {"srcGroup": "G", "destGroup": "H", "topic": "T"},
            b"",
            ["Get on Group:G", "Update on Group:H", "Update on Topic:T"],
        ),
        (
            314,
            {"srcGroup": "G", "destGroup": "H"},
            b"",
            ["Get on Group:G", "Update on Group:H", "Update on Topic:T", "Update on Topic:U"],
        ),
        (203, GROUP, b"", ["Sub|Get on Group:G"]),
        (223, {"topic": "T", "group": "G"}, b"", ["Get on Topic:T", "Get on Group:G"]),
        (
            223,
            {"topic": "T", "group": "G", "clientAddr": "c1"},
            b"",
            ["Sub|Get on Topic:T", "Sub|Get on Group:G"],
        ),
        (307, GROUP, b"", ["Get on Group:G"]),
        (307, GROUP, {"queues": []}, ["Sub|Get on Group:G"]),
        (307, GROUP | {"jstackEnable": "1"}, b"", ["Get on Group:G"]),
        (
            309,
            GROUP | {"msgId": "7F00000100002A9F" + "0000000000000064", "topic": "Mine"},
            b"",
            ["Sub on Group:G", "Sub on Topic:T"],
        ),
        (309, GROUP | {"msgId": "-64"}, b"", ["Sub on Group:G", "Sub on Topic:"]),
        (
            309,
            GROUP | {"msgId": "7F00000100002A9F" + "00000001" + "        00000064"},
            b"",
            ["Sub on Group:G", "Sub on Topic:"],
        ),
        (309, GROUP, b"", ["Sub on Group:G", "Sub on Topic:"]),
        (25, {}, b"", ["Update on Cluster:C"]),
        (26, {}, b"", ["Get on Cluster:C"]),
        (103, {"clusterName": "Other"}, b"", ["Update on Cluster:Other"]),
        (103, {}, b"", ["Update on Cluster:"]),
        (105, TOPIC, b"", ["Pub|Sub|Get on Topic:T"]),
        (105, {"topic": "TBW102"}, b"", []),
        (105, {"topic": "%RETRY%G"}, b"", ["Sub|Get on Group:G"]),
        (318, {}, b"", ["Update on Cluster:C"]),
        (3001, {"username": "u"}, {"userType": "Normal"}, ["Update on Cluster:C"]),
        (3001, {"username": "u"}, {"userType": "super"}, ["Update on Cluster:C", str(SUPER_ONLY)]),
        (3002, {"username": "root"}, {"password": "x"}, ["Update on Cluster:C", str(SUPER_ONLY)]),
        (3003, {"username": "root"}, b"", ["Update on Cluster:C", str(SUPER_ONLY)]),
        (3007, {"subject": "User:root"}, b"", ["Update on Cluster:C", str(SUPER_ONLY)]),
        (3007, {"subject": "user:root"}, b"", ["Update on Cluster:C", str(SUPER_ONLY)]),
        (3006, {"subject": "USER:u"}, b"", ["Update on Cluster:C"]),
        (3006, {"subject": "Role:root"}, b"", ["Update on Cluster:C"]),
        (3005, {}, b"", ["Get on Cluster:C"]),
        (200151, {}, {"acks": [{"c": "G", "t": "T"}]}, ["Sub on Group:G", "Sub on Topic:T"]),
        (400, {}, {"consumerGroup": "G", "topic": "T"}, ["Sub on Group:G", "Sub on Topic:T"]),
        (1003, {}, b"", [str(SUPER_ONLY)]),
    ],
)
def test_a_request_needs(code: int, fields: dict[str, str], body: Any, expected: list[str]) -> None:
    assert [str(need) for need in needs(code, fields, body)] == expected


def test_a_body_is_read_within_limits() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        needs(34, {}, b"{" + b" " * MAX_BODY_BYTES)


@pytest.mark.parametrize("text", ["100", "+100", "0" * 30 + "100", "1\u0660\u0660"])
@pytest.mark.parametrize(
    ("code", "field"), [(33, "offset"), (36, "offset"), (37, "commitLogOffset")]
)
def test_a_message_is_looked_up_where_the_handler_would_find_it(
    code: int, field: str, text: str
) -> None:
    """Each way to write a number that the handler takes: what it took and the rule did not came
    past the rule for its topic.
    """
    assert any(
        str(need).endswith("Topic:T")
        for need in needs(code, {field: text, "group": "G", "producerGroup": "G"})
    )


def test_one_that_is_nowhere_is_of_no_topic() -> None:
    assert [
        str(need)
        for text in ("", "x", "-1", "9" * 30, "9" * 5_000, "7")
        for need in needs(33, {"offset": text})
    ] == ["Sub|Get on Topic:"] * 6


def test_nothing_and_what_waits_are_not_in_all_topics() -> None:
    everything = Resource.parse("Topic:*")
    assert everything.matches("Topic", "T")
    assert not everything.matches("Topic", "")
    halves = (
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    )
    for waiting in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", *halves):
        assert not everything.matches("Topic", waiting)
        assert not Resource.parse(f"Topic:{waiting[:8]}*").matches("Topic", waiting)
        assert Resource.parse(f"Topic:{waiting}").matches("Topic", waiting)
    assert Resource.parse("*").matches("Topic", "SCHEDULE_TOPIC_XXXX")


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (34, {"consumerDataSet": [{}] * 1_025}),
        (34, {"producerDataSet": [{}] * 1_025}),
        (34, {"consumerDataSet": [{"subscriptionDataSet": [{}] * 10_001}] * 2}),
        (41, {"consumerGroup": "G", "mqSet": [{}] * 65_537}),
    ],
)
def test_lists_of_nothing_are_refused_before_anything_is_made_of_them(
    code: int, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """340,000 empty objects in one request without any right kept a broker for two seconds."""
    made: list[object] = []
    for kind in (ConsumerData, SubscriptionData):
        monkeypatch.setattr(kind, "from_json", made.append)
    with pytest.raises(ProtocolError, match=r"limit|more than"):
        needs(code, {}, body)
    assert not made
