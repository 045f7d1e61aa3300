"""Filters: tags and SQL92, as they are asked of the broker, and once more where the messages
arrive.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import ogive
from ogive import aio
from ogive.errors import (
    BrokerInternalError,
    InvalidExpression,
    InvalidOption,
    ResponseCode,
    SubscriptionInvalid,
)
from ogive.testing.fake_broker import FakeBroker, error
from ogive.wire.bodies.clients import HeartbeatData
from ogive.wire.bodies.json_fields import loads_object
from ogive.wire.codes import PullSysFlag, RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.message import encode_properties
from tests.unit.client.consumer.polling import PULL, Q0, collect, member, reader
from tests.unit.client.consumer.test_push_consumer import RETRY, Seen, consumer, progress, to

CHECK = RequestCode.CHECK_CLIENT_CONFIG
SQL = "amount > 100 AND TAGS = 'paid'"


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    """It sends everything, whatever the filter is."""
    async with FakeBroker({"Orders": 1, RETRY: 1}) as broker:
        for amount in ("50", "150", "", "x", "250"):
            properties = {"TAGS": "paid"} | ({"amount": amount} if amount else {})
            broker.put(
                "Orders", amount.encode() or b"none", properties=encode_properties(properties)
            )
        broker.put(
            "Orders", b"other tag", properties=encode_properties({"TAGS": "open", "amount": "900"})
        )
        yield broker


@pytest.mark.parametrize(
    "wanted", [{"tags": "paid"}, {"sql": "TAGS = 'paid'"}], ids=["tags", "sql"]
)
async def test_a_message_whose_properties_are_no_text_stops_nobody(wanted: dict[str, str]) -> None:
    """A batch brings any bytes into a store, and whoever reads a queue meets them.

    Java's clients read U+FFFD there.
    """
    async with FakeBroker({"Orders": 1, RETRY: 1}) as broker:
        broker.put("Orders", b"odd", properties=b"TAGS\x01paid\x02by\x01\xff\xfe\x02")
        broker.put("Orders", b"plain", properties=encode_properties({"TAGS": "paid"}))
        seen = Seen()
        async with consumer(broker, to(seen, threads=1, **wanted)):
            await seen.wait(2)
            await broker.until(lambda: progress(broker) == 2)
    assert seen.bodies == [b"odd", b"plain"]


async def test_a_listener_gets_what_its_sql_is_true_of_and_the_rest_counts_as_finished(
    broker: FakeBroker,
) -> None:
    seen = Seen()
    async with consumer(broker, to(seen, threads=1, sql=SQL)):
        await seen.wait(2)
        await broker.until(lambda: progress(broker) == 6)
    assert seen.bodies == [b"150", b"250"]
    (beat, *_) = broker.of(RequestCode.HEART_BEAT)
    subscriptions = {
        one.topic: one for one in HeartbeatData.decode(beat.body).consumers[0].subscriptions
    }
    assert (subscriptions["Orders"].expression_type, subscriptions["Orders"].expression) == (
        "SQL92",
        SQL,
    )
    assert (subscriptions["Orders"].tags, subscriptions["Orders"].codes) == ((), ())
    assert subscriptions[RETRY].expression_type == "TAG"
    assert {
        pull.ext_fields["expressionType"]
        for pull in broker.of(PULL)
        if pull.ext_fields["topic"] == "Orders"
    } == {"SQL92"}


@pytest.mark.feature(27)
async def test_a_filter_that_is_no_tags_is_checked_with_a_broker_before_the_group_is_joined(
    broker: FakeBroker,
) -> None:
    broker.on(CHECK, error(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse error"))
    with pytest.raises(SubscriptionInvalid, match="parse error"):
        async with consumer(broker, to(print, sql=SQL)):
            pass
    (asked,) = broker.of(CHECK)
    body = loads_object(asked.body)
    assert (
        body["group"],
        body["subscriptionData"]["subString"],
        body["subscriptionData"]["expressionType"],
    ) == ("billing", SQL, "SQL92")
    assert broker.of(RequestCode.HEART_BEAT) == []
    broker.on(
        CHECK,
        error(
            ResponseCode.SYSTEM_ERROR,
            "The broker does not support consumer to filter message by SQL92",
        ),
    )
    with pytest.raises(
        BrokerInternalError, match="does not support consumer to filter message by SQL92"
    ):
        async with member(broker, sql=SQL):
            pass


async def test_a_listener_that_joins_later_is_checked_too_and_tags_never_are(
    broker: FakeBroker,
) -> None:
    broker.topics["Prices"] = 1
    async with consumer(broker, to(print, tags="paid")) as running:
        assert broker.of(CHECK) == []
        broker.on(CHECK, error(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "no"))
        with pytest.raises(SubscriptionInvalid):
            await running.subscribe(to(print, topic="Prices", sql="a > 1"))
        assert list(running.assignment) == ["billing"]
        assert {queue.topic for queue in running.assignment["billing"]} <= {"Orders", RETRY}


async def test_pulls_say_what_they_want(broker: FakeBroker) -> None:
    async with member(broker, sql=SQL) as consumer:
        assert [message.body for message in await collect(consumer, 2)] == [b"150", b"250"]
    async with reader(broker) as consumer:
        result = await consumer.pull(Q0, 0, sql="amount IS NULL")
        assert [message.body for message in result.messages] == [b"none"]
    last: RemotingCommand = broker.of(PULL)[-1]
    assert (last.ext_fields["expressionType"], last.ext_fields["subscription"]) == (
        "SQL92",
        "amount IS NULL",
    )
    assert int(last.ext_fields["sysFlag"]) & PullSysFlag.SUBSCRIPTION


@pytest.mark.feature(27)
@pytest.mark.parametrize(
    "make",
    [lambda **how: to(print, **how), lambda **how: member(FakeBroker(), **how)],
    ids=["listener", "pull"],
)
def test_what_cannot_be_a_filter_is_refused_at_once(make: Any) -> None:
    with pytest.raises(InvalidExpression, match="character 4"):
        make(sql="a == 1")
    with pytest.raises(InvalidOption, match="by tags or in SQL, not by both"):
        make(sql="a = 1", tags="paid")


MAKERS: list[Callable[[str], object]] = [
    lambda tags: ogive.listener("Orders", group="billing", tags=tags)(print),
    lambda tags: aio.PushConsumer("Orders", group="billing", tags=tags),
    lambda tags: aio.PullConsumer("Orders", group="billing", tags=tags),
    lambda tags: ogive.PullConsumer("Orders", group="billing", tags=tags),
]


@pytest.mark.parametrize("make", MAKERS, ids=("listener", "push", "pull", "blocking pull"))
@pytest.mark.parametrize(
    "tags", ["paid,refunded", "paid or refunded", "paid OR refunded", "paid; refunded"]
)
def test_tags_that_look_like_several_are_warned_of_once(
    make: Callable[[str], object], tags: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They are one tag, which no message has: the group would pass over all messages without a
    word.
    """
    make(tags)
    assert [record.getMessage() for record in caplog.records] == [
        f"tags {tags!r}: {tags!r} is one tag; several are separated by ||, as in 'paid || refunded'"
    ]


@pytest.mark.parametrize("tags", ["*", "paid", "paid || refunded", "orange", "for", "or", ","])
def test_other_tags_are_not_warned_of(tags: str, caplog: pytest.LogCaptureFixture) -> None:
    MAKERS[0](tags)
    assert caplog.records == []
