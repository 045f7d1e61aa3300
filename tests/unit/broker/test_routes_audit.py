"""What the log tells of those who administer a broker."""

import pytest

from ogive.wire.bodies.json_fields import dumps
from ogive.wire.codes import RequestCode
from tests.raw_client import RawClient
from tests.unit.audit import ROOT, lines, table_with_root
from tests.unit.broker.conftest import StartBroker

TOPIC = {
    "topic": "Orders",
    "defaultTopic": "TBW102",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": False,
}


async def test_a_broker_tells_who_changed_what(
    start_broker: StartBroker, told: pytest.LogCaptureFixture
) -> None:
    broker = await start_broker(access=await table_with_root())
    async with await RawClient.open(broker.address, credentials=ROOT) as client:
        for queues in (4, 8):
            await client.ok(
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                **TOPIC,
                perm=6,
                readQueueNums=queues,
                writeQueueNums=4,
            )
        group = dumps({"groupName": "G", "retryMaxTimes": 16})
        await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)
        await client.ok(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup="G",
            topic="Orders",
            queueId=0,
            commitOffset=0,
        )
        reset = {
            "topic": "Orders",
            "group": "G",
            "timestamp": -1,
            "isForce": True,
            "queueId": 1,
            "offset": 0,
        }
        await client.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset)
        await client.ok(
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, group="G", topic="Orders", readable=False
        )
        await client.ok(RequestCode.UPDATE_BROKER_CONFIG, b"maxMessageSize=99")
        await client.ok(
            RequestCode.AUTH_CREATE_USER,
            dumps({"username": "ann", "password": "ann-secret"}),
            username="ann",
        )
        await client.ok(
            RequestCode.AUTH_UPDATE_USER,
            dumps({"username": "ann", "password": "ann-secret-2"}),
            username="ann",
        )
        rule = {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}
        await client.ok(
            RequestCode.AUTH_CREATE_ACL,
            dumps({"policies": [{"entries": [rule]}]}),
            subject="User:ann",
        )
        await client.ok(RequestCode.AUTH_DELETE_USER, username="ann")
        await client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G")
        await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="Orders")
        await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="Orders")
        assert (await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic=" ")).code == 29
    who, what = zip(*[line.split(", at broker broker-a: ") for line in lines(told)], strict=True)
    assert {one.rpartition(":")[0] for one in who} == {"user root from 127.0.0.1"}
    assert what[0].startswith(
        "create or change topic Orders: it is now attributes='{}', order=False, perm=6"
    )
    assert what[1] == "create or change topic Orders: readQueueNums 4 -> 8"
    assert what[2].startswith("create or change group G: ")
    assert "retryMaxTimes=16" in what[2]
    assert what[3:11] == (
        "reset the offsets of group G, topic Orders: Orders/1 none -> 0",
        "set the right to read of group G, topic Orders: readable True -> False",
        "change the broker's settings: maxMessageSize 4194304 -> 99",
        "create user ann: it is now type=Normal, status=enable, password=***",
        "change user ann: password *** -> ***",
        "allow or deny subject User:ann: it is now Custom/Topic:T='Allow Pub'",
        "delete user ann: it was type=Normal, status=enable, password=***",
        what[10],
    )
    assert what[10].startswith("delete group G: ")
    assert "it was attributes='{}', order=False, perm=6" in what[11]
    assert what[12] == "delete topic Orders: nothing is different"
    assert len(what) == 13
    assert "secret" not in told.text


async def test_a_broker_without_access_control_tells_the_address_alone(
    start_broker: StartBroker, told: pytest.LogCaptureFixture
) -> None:
    broker = await start_broker()
    async with await RawClient.open(broker.address) as client:
        await client.ok(RequestCode.UPDATE_BROKER_CONFIG, b"maxMessageSize=99")
    (line,) = lines(told)
    assert line.startswith("127.0.0.1:")
    assert line.endswith(
        ", at broker broker-a: change the broker's settings: maxMessageSize 4194304 -> 99"
    )


async def test_changes_of_one_thing_that_come_together_are_told_in_order(
    start_broker: StartBroker, told: pytest.LogCaptureFixture
) -> None:
    broker = await start_broker()
    async with await RawClient.open(broker.address) as client:
        await client.ok(RequestCode.UPDATE_BROKER_CONFIG, b"maxMessageSize=1")
        for size in (2, 3):
            client.oneway(RequestCode.UPDATE_BROKER_CONFIG, b"maxMessageSize=%d" % size)
        await client.ok(RequestCode.UPDATE_BROKER_CONFIG, b"maxMessageSize=4")
    assert len(lines(told)) == 4
    assert "maxMessageSize 1 -> " in lines(told)[1]
    assert lines(told)[-1].endswith("-> 4")
