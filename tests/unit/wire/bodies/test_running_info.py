"""Running info of a consumer, Java's and ours."""

import dataclasses

import pytest

from ogive.errors import ProtocolError
from ogive.model import MessageQueue
from ogive.wire.bodies.clients import ConsumerRunningInfo, SubscriptionData

JAVA = (
    b'{"jstack":"main '
    b'RUNNABLE","mqTable":{{"brokerName":"broker-a","queueId":3,"topic":"Orders"}'
    b':{"cachedMsgCount":2,"commitOffset":7,'
    b'"cachedMsgSizeInMiB":1,"droped":false,"locked":true,"lastPullTimestamp":11,'
    b'"lastConsumeTimestamp":12}},'
    b'"properties":{"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"},'
    b'"statusTable":{"Orders":{"consumeFailedMsgs":0,"consumeFailedTPS":0.5,"consumeOKTPS":3,'
    b'"consumeRT":1.5,"pullRT":2.0,"pullTPS":4.0}},'
    b'"subscriptionSet":[{"topic":"Orders","subString":"*"}]}'
)


def test_the_running_info_of_a_java_member_is_read() -> None:
    info = ConsumerRunningInfo.decode(JAVA)
    row = info.queues[MessageQueue("Orders", "broker-a", 3)]
    assert (row.commit_offset, row.cached_count, row.cached_mib, row.locked, row.dropped) == (
        7,
        2,
        1,
        True,
        False,
    )
    assert (row.last_pull_ms, row.last_consume_ms) == (11, 12)
    topic = info.topics["Orders"]
    assert (
        topic.consume_ok_tps,
        topic.consume_failed_tps,
        topic.pull_tps,
        topic.consume_rt,
        topic.pull_rt,
    ) == (3.0, 0.5, 4.0, 1.5, 2.0)
    assert info.subscriptions == (SubscriptionData.of_tags("Orders"),)
    assert (info.stacks, info.properties) == (
        "main RUNNABLE",
        {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
    )


def test_a_member_may_say_less() -> None:
    info = ConsumerRunningInfo.decode(
        b'{"mqTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":0,\\"topic\\":\\"T\\"}":{}}}'
    )
    assert info.queues[MessageQueue("T", "b", 0)].commit_offset == 0
    assert (info.topics, info.stacks, info.subscriptions) == ({}, None, ())


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"[]", "body is not a JSON object"),
        (b'{"properties":[]}', "member properties is not of type dict"),
        (b'{"mqTable":[]}', "member mqTable is not of type dict"),
        (b'{"mqTable":{"{}":{"commitOffset":"x"}}}', "member commitOffset is not an integer"),
        (b'{"mqTable":{"{}":{"locked":1}}}', "member locked is not of type bool"),
        (b'{"statusTable":{"T":5}}', "ConsumeStatus is not a JSON object"),
        (b'{"statusTable":{"T":{"pullRT":"fast"}}}', "member pullRT is not of type float"),
        (b'{"subscriptionSet":{}}', "member subscriptionSet is not of type list"),
        (b'{"jstack":["main"]}', "member jstack is not of type str"),
    ],
)
def test_running_info_that_is_malformed_is_refused(body: bytes, fault: str) -> None:
    with pytest.raises(ProtocolError, match=f"^{fault}$"):
        ConsumerRunningInfo.decode(body)


def test_running_info_is_read_as_it_was_written() -> None:
    info = ConsumerRunningInfo.decode(JAVA)
    assert ConsumerRunningInfo.decode(dataclasses.replace(info, stacks=None).encode()) == (
        dataclasses.replace(info, stacks=None)
    )
