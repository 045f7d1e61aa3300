"""Attributes of topics and groups as Apache checks them, and what message.type lets through, over a
socket.
"""

from contextlib import AsyncExitStack

import pytest

from ogive.broker.state.topic_table import change_attributes, change_group_attributes, message_type
from ogive.errors import InvalidOption, ResponseCode
from ogive.wire.codes import RequestCode
from tests.raw_client import RawClient, unique_key
from tests.unit.broker.conftest import StartBroker


def test_attributes_are_added_changed_and_taken_away() -> None:
    assert change_attributes(None, "+message.type=FIFO,+cleanup.policy=DELETE") == {
        "message.type": "FIFO",
        "cleanup.policy": "DELETE",
    }
    assert change_attributes({"message.type": "FIFO"}, "+message.type=DELAY") == {
        "message.type": "DELAY"
    }
    assert change_attributes({"message.type": "FIFO"}, "-message.type") == {}
    assert change_attributes({"message.type": "FIFO"}, None) == {"message.type": "FIFO"}
    assert change_attributes(None, "+queue.type=BatchCQ") == {"queue.type": "BatchCQ"}
    assert change_attributes({"queue.type": "BatchCQ"}, "+queue.type=BatchCQ") == {
        "queue.type": "BatchCQ"
    }


@pytest.mark.parametrize(
    ("current", "text", "message"),
    [
        (None, "message.type=FIFO", "neither"),
        (None, "+message.type", "neither"),
        (None, "-message.type=FIFO", "neither"),
        (None, "+=FIFO", "neither"),
        (None, "+colour=red", "not known"),
        (None, "+message.type=LOUD", "UNSPECIFIED, NORMAL"),
        (None, "-message.type", "does not have it"),
        (None, "+message.type=FIFO,+message.type=DELAY", "twice"),
        (None, "+queue.type=RocksDBCQ", "SimpleCQ, BatchCQ"),
        (None, "+cleanup.policy=COMPACTION", "this broker has DELETE"),
        (None, "+reserve.time=86400000", "for stores with tiers"),
        ({}, "+queue.type=BatchCQ", "decided when a topic is made"),
        ({"queue.type": "SimpleCQ"}, "-queue.type", "decided when a topic is made"),
    ],
)
def test_impossible_changes_are_refused(
    current: dict[str, str] | None, text: str, message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        change_attributes(current, text)


def test_attributes_of_groups_are_added_changed_and_taken_away() -> None:
    known = {"priority.factor": "30", "of.a.later.release": "x"}
    assert change_group_attributes(None, {}) == {}
    assert change_group_attributes(
        None, {"+lite.sub.client.quota": "-1", "+lite.sub.wildcard": ""}
    ) == {
        "lite.sub.client.quota": "-1",
        "lite.sub.wildcard": "",
    }
    assert change_group_attributes(
        known, {"+priority.factor": "100", "+lite.sub.model": "Exclusive"}
    ) == {
        "priority.factor": "100",
        "of.a.later.release": "x",
        "lite.sub.model": "Exclusive",
    }
    assert change_group_attributes(known, {"-priority.factor": "whatever"}) == {
        "of.a.later.release": "x"
    }
    assert change_group_attributes(None, {"+lite.sub.reset.offset.exclusive": "True"}) == {
        "lite.sub.reset.offset.exclusive": "True"
    }


@pytest.mark.parametrize(
    ("current", "changes", "message"),
    [
        (None, {"priority.factor": "5"}, "neither"),
        ({"priority.factor": "30"}, {"priority.factor": "5"}, "neither"),
        (None, {"+": "5"}, "neither"),
        (None, {"": "5"}, "neither"),
        (None, {"+colour": "red"}, "'colour' is not known: there are priority.factor"),
        (None, {"-priority.factor": ""}, "does not have it"),
        ({}, {"-priority.factor": ""}, "does not have it"),
        ({"of.a.later.release": "x"}, {"-of.a.later.release": ""}, "not known"),
        ({"priority.factor": "30"}, {"+priority.factor": "5", "-priority.factor": ""}, "twice"),
        (None, {"+priority.factor": "101"}, "a number from 0 to 100 is expected"),
        (None, {"+priority.factor": "ten"}, "a number from 0 to 100 is expected"),
        (None, {"+lite.sub.client.max.event.cnt": "9" * 30}, "a number from 10"),
        (None, {"+lite.sub.model": "shared"}, "Shared or Exclusive is expected"),
        (None, {"+lite.sub.reset.offset.unsubscribe": "yes"}, "true or false is expected"),
    ],
)
def test_impossible_changes_of_groups_are_refused(
    current: dict[str, str] | None, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        change_group_attributes(current, changes)


PROPERTIES = {
    "NORMAL": {"KEYS": "k"},
    "FIFO": {"__SHARDINGKEY": "s"},
    "DELAY": {"TIMER_DELAY_MS": "5"},
    "TRANSACTION": {"TRAN_MSG": "true", "PGROUP": "P"},
    "PRIORITY": {"_SYS_MSG_PRIORITY_": "3"},
}


@pytest.mark.parametrize(
    ("declared", "taken"),
    [
        ("NORMAL", {"NORMAL"}),
        ("FIFO", {"NORMAL", "FIFO"}),
        ("DELAY", {"DELAY"}),
        ("TRANSACTION", {"TRANSACTION"}),
        ("PRIORITY", {"PRIORITY"}),
        ("MIXED", set(PROPERTIES)),
        ("UNSPECIFIED", set(PROPERTIES)),
        (None, set(PROPERTIES)),
    ],
)
@pytest.mark.parametrize("enforced", [True, False])
async def test_a_topic_takes_messages_of_its_type_only_where_that_is_enforced(
    start_broker: StartBroker,
    cleanup: AsyncExitStack,
    declared: str | None,
    taken: set[str],
    enforced: bool,
) -> None:
    """Apache's broker takes all: only its proxy looks at types."""
    server = await start_broker(enforce_message_types=enforced)
    client = await cleanup.enter_async_context(await RawClient.open(server.address))
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic="T",
        defaultTopic="TBW102",
        readQueueNums=1,
        writeQueueNums=1,
        perm=6,
        topicFilterType="SINGLE_TAG",
        order=False,
        attributes=f"+message.type={declared}" if declared else None,
    )
    taken = taken if enforced else set(PROPERTIES)
    for kind, properties in PROPERTIES.items():
        assert message_type(properties) == kind
        answer = await client.start_send(
            "T", b"x", properties | {"UNIQ_KEY": unique_key()}, f=4 if kind == "TRANSACTION" else 0
        )
        assert answer.code == (
            ResponseCode.SUCCESS if kind in taken else ResponseCode.MESSAGE_ILLEGAL
        ), answer
        if kind not in taken:
            assert f"expected type is {declared}, but actual type is {kind}" in str(answer.remark)


async def test_what_a_consumer_sends_again_is_not_asked_for_its_type(
    start_broker: StartBroker, cleanup: AsyncExitStack
) -> None:
    server = await start_broker(enforce_message_types=True)
    client = await cleanup.enter_async_context(await RawClient.open(server.address))
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic="T",
        defaultTopic="TBW102",
        readQueueNums=1,
        writeQueueNums=1,
        perm=6,
        topicFilterType="SINGLE_TAG",
        order=False,
        attributes="+message.type=NORMAL",
    )
    await client.send(
        "T", b"x", {"TIMER_DELAY_MS": "5", "TIMER_OUT_MS": "1", "UNIQ_KEY": unique_key()}, j=1
    )
