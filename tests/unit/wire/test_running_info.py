"""What a member says of itself, and release numbers."""

import dataclasses

import pytest

from ogive.errors import ProtocolError
from ogive.model import MessageQueue
from ogive.wire.bodies.clients import SubscriptionData
from ogive.wire.bodies.running_info import ConsumerRunningInfo
from ogive.wire.codes import version_name

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


def test_a_java_member_s_account_is_read() -> None:
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
    "body",
    [
        b"[]",
        b'{"mqTable":[]}',
        b'{"mqTable":{"{}":{"commitOffset":"x"}}}',
        b'{"statusTable":{"T":{"pullRT":"x"}}}',
        b'{"subscriptionSet":{}}',
        b'{"mqTable":{"{}":{"locked":1}}}',
    ],
)
def test_what_is_no_account_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        ConsumerRunningInfo.decode(body)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (513, "5.5.0"),
        (479, "5.3.3"),
        (478, "5.3.3-SNAPSHOT"),
        (413, "5.0.0"),
        (399, "4.9.3"),
        (317, "4.5.2"),
        (62, "before 4.0 (62)"),
    ],
)
def test_a_version_number_stands_for_a_release(number: int, name: str) -> None:
    assert version_name(number) == name


def test_an_account_is_read_as_it_was_written() -> None:
    info = ConsumerRunningInfo.decode(JAVA)
    assert ConsumerRunningInfo.decode(dataclasses.replace(info, stacks=None).encode()) == (
        dataclasses.replace(info, stacks=None)
    )


@pytest.mark.parametrize(
    "body",
    [
        b'{"mqTable":[]}',
        b'{"subscriptionSet":{}}',
        b'{"statusTable":{"T":5}}',
        b'{"statusTable":{"T":{"pullRT":"fast"}}}',
        b"[]",
    ],
)
def test_an_account_that_is_not_understood_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        ConsumerRunningInfo.decode(body)
