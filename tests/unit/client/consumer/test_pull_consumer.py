"""A pull consumer against a broker that does what a test wants."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from ogive.client.config import ClientConfig
from ogive.client.consumer.config import ConsumerConfig
from ogive.errors import (
    BrokerInternalError,
    IllegalStateError,
    InvalidOption,
    RequestTimeout,
    ResponseCode,
)
from ogive.testing.fake_broker import SILENT, WAIT_S, FakeBroker, error, ok
from ogive.wire.bodies.clients import HeartbeatData
from ogive.wire.bodies.json_fields import loads_object
from ogive.wire.codes import BEYOND_THE_END, PullSysFlag, RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import encode_header
from ogive.wire.headers.pull import PullMessageResponse
from tests.unit.client.consumer.polling import (
    PULL,
    Q0,
    Q1,
    QUERY,
    QUICK,
    SELDOM,
    UPDATE,
    collect,
    eventually,
    fill,
    member,
    offsets,
    progress,
    pulls_of,
    reader,
)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1}) as broker:
        yield broker


# --- the normal way -------------------------------------------------------------------------------


async def test_polls_hand_out_every_message_in_order(broker: FakeBroker) -> None:
    fill(broker, 100)
    async with member(broker) as consumer:
        assert offsets(await collect(consumer, 100, max_messages=7)) == list(range(100))
        assert await consumer.poll(0) == []
        fill(broker, 1)
        assert offsets(await collect(consumer, 1)) == [100]
        assert consumer.assignment == [Q0]


async def test_a_poll_gives_at_most_what_was_asked_for(broker: FakeBroker) -> None:
    fill(broker, 10)
    async with member(broker) as consumer:
        first = await collect(consumer, 1)
        await eventually(lambda: pulls_of(broker)[-1] == 10)
        assert offsets(first + await consumer.poll(max_messages=3)) == [0, 1, 2, 3]


async def test_polls_that_do_not_wait_let_the_pulls_run(broker: FakeBroker) -> None:
    fill(broker, 1)
    async with reader(broker) as consumer:
        await consumer.assign([Q0])
        for _ in range(100_000):
            if await consumer.poll(0):
                break
        else:
            pytest.fail("nothing came")


async def test_batches_go_on_until_the_consumer_is_closed(broker: FakeBroker) -> None:
    fill(broker, 10)
    seen: list[int] = []
    async with member(broker) as consumer:
        async for batch in consumer.batches(max_messages=4):
            assert 1 <= len(batch) <= 4
            seen += offsets(batch)
            if len(seen) == 10:
                await consumer.close()
    assert seen == list(range(10))
    assert progress(broker) == 10


async def test_a_poll_that_waits_ends_with_the_consumer(broker: FakeBroker) -> None:
    async with member(broker) as consumer:
        waiting = asyncio.create_task(consumer.poll(None))
        await broker.received(PULL)
        await consumer.close()
        assert await waiting == []
        with pytest.raises(IllegalStateError, match="closed"):
            await consumer.poll()


async def test_what_the_heartbeat_and_the_running_info_say(broker: FakeBroker) -> None:
    """Actively, clustering, the topic with its tags, and no retry topic."""
    async with member(broker, tags="paid || refunded") as consumer:
        await eventually(lambda: consumer.assignment == [Q0])
        data = HeartbeatData.decode(broker.of(RequestCode.HEART_BEAT)[0].body).consumers[0]
        asked = RemotingCommand(
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            {"consumerGroup": "replay", "clientId": consumer.client_id},
        )
        info = loads_object((await broker.ask("replay", consumer.client_id, asked)).body)
    assert (data.group, data.consume_type, data.message_model) == (
        "replay",
        "CONSUME_ACTIVELY",
        "CLUSTERING",
    )
    assert data.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert [(s.topic, s.tags) for s in data.subscriptions] == [("Orders", ("paid", "refunded"))]
    assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
    assert [row["topic"] for row in info["subscriptionSet"]] == ["Orders"]


@pytest.mark.feature(143)
async def test_a_pull_says_itself_what_it_wants_and_how_long_it_waits(broker: FakeBroker) -> None:
    async with member(broker, tags="paid", config=ConsumerConfig()) as consumer:
        fields = (await broker.received(PULL))[0].ext_fields
        assert consumer.assignment == [Q0]
    assert int(fields["sysFlag"]) == PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION
    assert (fields["subscription"], fields["expressionType"], fields["suspendTimeoutMillis"]) == (
        "paid",
        "TAG",
        "15000",
    )


@pytest.mark.feature(40)
async def test_only_the_wanted_tags_are_handed_out(broker: FakeBroker) -> None:
    """Brokers filter by hash; AaAa and BBBB have the same. What was left out counts as progress."""
    for tag in (b"AaAa", b"BBBB", b"AaAa", b"BBBB"):
        broker.put("Orders", tag, properties=b"TAGS\x01" + tag + b"\x02")
    async with member(broker, tags="AaAa") as consumer:
        assert offsets(await collect(consumer, 2)) == [0, 2]
        assert await consumer.position(Q0) == 4
    assert progress(broker) == 4


@pytest.mark.parametrize(
    ("start", "first"),
    [("earliest", 0), ("latest", 5), (datetime.fromtimestamp(1_700_000_000.001, UTC), 1)],
)
async def test_where_a_group_begins_that_has_no_offset(
    broker: FakeBroker, start: Any, first: int
) -> None:
    fill(broker, 5)
    async with member(broker, start=start):
        assert int((await broker.received(PULL))[0].ext_fields["queueOffset"]) == first


async def test_a_known_offset_is_where_the_group_goes_on(broker: FakeBroker) -> None:
    fill(broker, 5)
    broker.offsets["replay", "Orders", 0] = 3
    async with member(broker) as consumer:
        assert offsets(await collect(consumer, 2)) == [3, 4]


async def test_a_topic_that_comes_later_is_read_then(broker: FakeBroker) -> None:
    async with member(broker, "Later") as consumer:
        broker.topics["Later"] = 1
        broker.put("Later", b"first")
        assert [message.body for message in await collect(consumer, 1)] == [b"first"]


# --- progress -------------------------------------------------------------------------------------


@pytest.mark.feature(157)
async def test_a_batch_counts_only_once_the_next_poll_is_called(broker: FakeBroker) -> None:
    """A crash while it is worked on repeats it."""
    fill(broker, 10)
    async with member(broker) as consumer:
        await collect(consumer, 4)
        assert progress(broker) == 0
        await consumer.poll(0, max_messages=3)
        await broker.until(lambda: progress(broker) == 4)
        assert await consumer.committed(Q0) == 4
        assert await consumer.position(Q0) == 7


async def test_a_clean_close_commits_what_was_handed_out(broker: FakeBroker) -> None:
    fill(broker, 10)
    async with member(broker, config=SELDOM) as consumer:
        await collect(consumer, 4)
    assert progress(broker) == 4
    async with member(broker) as consumer:
        assert offsets(await collect(consumer, 6)) == list(range(4, 10))


@pytest.mark.feature(157)
async def test_a_block_that_fails_has_not_finished_what_it_had_in_hand(broker: FakeBroker) -> None:
    fill(broker, 10)

    async def fail() -> None:
        async with member(broker, config=SELDOM) as consumer:
            await collect(consumer, 3)
            await collect(consumer, 4)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert progress(broker) == 3


async def test_without_auto_commit_only_the_application_moves_the_progress(
    broker: FakeBroker,
) -> None:
    fill(broker, 10)
    async with member(broker, auto_commit=False) as consumer:
        await collect(consumer, 4)
        await collect(consumer, 1)
        await eventually(lambda: pulls_of(broker)[-1] == 10)
        assert broker.of(UPDATE) == []
        await consumer.commit()
        assert progress(broker) == 5
        await consumer.commit({Q0: 2})
        assert progress(broker) == 2
        await collect(consumer, 5)
    assert progress(broker) == 2


async def test_messages_that_no_tag_wanted_do_not_commit_for_the_application(
    broker: FakeBroker,
) -> None:
    """They may stand behind messages that it has not committed."""
    broker.put("Orders", b"wanted", properties=b"TAGS\x01AaAa\x02")
    async with member(broker, auto_commit=False, tags="AaAa") as consumer:
        await collect(consumer, 1)
        assert await consumer.poll(0) == []
        broker.put("Orders", b"other", properties=b"TAGS\x01BBBB\x02")
        await broker.until(lambda: pulls_of(broker)[-1] == 2)
    assert progress(broker) is None


async def test_a_commit_says_what_it_could_not_do(broker: FakeBroker) -> None:
    fill(broker, 1)
    async with member(broker, auto_commit=False) as consumer:
        await collect(consumer, 1)
        broker.script(UPDATE, error(ResponseCode.SYSTEM_ERROR, "no"))
        with pytest.raises(BrokerInternalError, match="no"):
            await consumer.commit()
        await consumer.commit()
        assert progress(broker) == 1
        with pytest.raises(IllegalStateError, match="not held"):
            await consumer.commit({Q1: 1})
        with pytest.raises(InvalidOption, match="must be between 0 and"):
            await consumer.commit({Q0: -1})
        broker.script(UPDATE, RemotingCommand(ResponseCode.SUCCESS, {}, remark=BEYOND_THE_END))
        with pytest.raises(
            InvalidOption,
            match="Orders/broker-a/0 ends before 99, and its broker keeps no progress beyond the "
            "end",
        ):
            await consumer.commit({Q0: 99})
        assert progress(broker) == 1


async def test_a_commit_takes_queues_and_numbers(broker: FakeBroker) -> None:
    async with member(broker) as consumer:
        given: Any
        for given, text in (
            ({Q0: "x"}, "offset must be int, not str"),
            ({"Orders": 1}, r"queue must be an ogive.MessageQueue .*, not str"),
            (1, "not int"),
        ):
            with pytest.raises(TypeError, match=text):
                await consumer.commit(given)


async def test_updates_of_a_queue_never_overtake_each_other_even_if_a_commit_is_cancelled(
    broker: FakeBroker,
) -> None:
    """A broker with several threads may apply two of them the other way round."""
    fill(broker, 2)
    async with member(broker, config=SELDOM) as consumer:
        await collect(consumer, 1)
        broker.hold(UPDATE)
        cancelled = asyncio.create_task(consumer.commit())
        # the first: where the group begins
        await broker.received(UPDATE, 2)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        await collect(consumer, 1)
        second = asyncio.create_task(consumer.commit())
        # round trips, in which a second update would come
        for _ in range(5):
            assert await consumer.committed(Q0) == 0
        assert len(broker.of(UPDATE)) == 2
        broker.release(UPDATE)
        await second
    assert [r.ext_fields["commitOffset"] for r in broker.of(UPDATE)][:3] == ["0", "1", "2"]
    assert progress(broker) == 2


# --- where to read --------------------------------------------------------------------------------


async def test_a_seek_discards_what_was_prefetched_and_the_pull_on_its_way(
    broker: FakeBroker,
) -> None:
    fill(broker, 10)
    async with member(broker, config=replace(QUICK, pull_batch_size=5)) as consumer:
        await collect(consumer, 1)
        await eventually(lambda: pulls_of(broker)[-1] == 10)
        broker.hold(PULL)
        await consumer.seek(Q0, 2)
        await broker.until(lambda: pulls_of(broker)[-1] == 2)
        # the pull from 2 is on its way
        await consumer.seek(Q0, 8)
        await broker.until(lambda: pulls_of(broker)[-1] == 8)
        assert await consumer.position(Q0) == 8
        broker.release(PULL)
        assert offsets(await collect(consumer, 2)) == [8, 9]
        assert await consumer.poll(0) == []
    assert progress(broker) == 10


async def test_a_seek_back_moves_the_progress_back(broker: FakeBroker) -> None:
    """What was in hand at that moment does not count any more."""
    fill(broker, 10)
    async with member(broker, config=SELDOM) as consumer:
        await collect(consumer, 5)
        await collect(consumer, 5)
        await consumer.commit()
        assert progress(broker) == 10
        await consumer.seek(Q0, 3)
        assert offsets(await collect(consumer, 1)) == [3]
    assert progress(broker) == 4


async def test_a_seek_finds_ends_and_times(broker: FakeBroker) -> None:
    fill(broker, 10)
    async with member(broker) as consumer:
        await collect(consumer, 1)
        third = datetime.fromtimestamp(broker.stored["Orders", 0][3].store_timestamp_ms / 1000, UTC)
        await consumer.seek(Q0, "latest")
        assert await consumer.position(Q0) == await consumer.end_offset(Q0) == 10
        await consumer.seek(Q0, at=third)
        assert await consumer.position(Q0) == await consumer.offset_at(Q0, third) == 3
        await consumer.seek(Q0, "earliest")
        assert await consumer.position(Q0) == await consumer.beginning_offset(Q0) == 0
        assert offsets(await collect(consumer, 10)) == list(range(10))


async def test_a_seek_that_cannot_work_changes_nothing(broker: FakeBroker) -> None:
    fill(broker, 10)
    async with member(broker) as consumer:
        await collect(consumer, 1)
        with pytest.raises(InvalidOption, match="holds 0 to 10: 11"):
            await consumer.seek(Q0, 11)
        with pytest.raises(InvalidOption, match="takes an offset"):
            await consumer.seek(Q0)
        with pytest.raises(InvalidOption, match=r"^at needs a time zone"):
            # the naive time is the fault
            await consumer.seek(Q0, at=datetime(2026, 11, 1))  # noqa: DTZ001
        with pytest.raises(IllegalStateError, match="not held"):
            await consumer.seek(Q1, 0)
        broker.script(RequestCode.GET_MAX_OFFSET, error(ResponseCode.SYSTEM_ERROR))
        with pytest.raises(BrokerInternalError):
            await consumer.seek(Q0, 5)
        assert await consumer.position(Q0) == 1


async def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(broker: FakeBroker) -> None:
    """The other one goes on; a seek leaves it paused."""
    broker.topics["Orders"] = 2
    fill(broker, 3, queue_id=0)
    fill(broker, 3, queue_id=1)
    async with member(broker) as consumer:
        await eventually(lambda: consumer.assignment == [Q0, Q1])
        await consumer.pause(Q0)
        assert {message.queue for message in await collect(consumer, 3)} == {Q1}
        await consumer.seek(Q0, 1)
        pulled = len(pulls_of(broker, 0))
        fill(broker, 1, queue_id=1)
        await collect(consumer, 1)
        assert await consumer.poll(0) == []
        assert len(pulls_of(broker, 0)) == pulled
        waiting = asyncio.create_task(consumer.poll(WAIT_S))
        await consumer.resume(Q0)
        assert {message.queue for message in await waiting} == {Q0}
        await consumer.pause()
        assert await consumer.poll(0) == []
        await consumer.resume()


async def test_lag_is_what_was_not_handed_out(broker: FakeBroker) -> None:
    fill(broker, 10)
    async with member(broker) as consumer:
        await collect(consumer, 4)
        assert await consumer.lag() == {Q0: 6}


async def test_a_full_queue_is_not_pulled_until_a_poll_makes_room(broker: FakeBroker) -> None:
    """What is in hand counts, too."""
    fill(broker, 100)
    async with member(
        broker, config=replace(QUICK, pull_batch_size=10, max_cached_messages=25)
    ) as consumer:
        await broker.until(lambda: pulls_of(broker) == [0, 10, 20])
        assert offsets(await consumer.poll(max_messages=10)) == list(range(10))
        # round trips, in which a pull too many would come
        await consumer.lag()
        await consumer.lag()
        assert pulls_of(broker) == [0, 10, 20]
        await consumer.poll(0, max_messages=1)
        await broker.until(lambda: pulls_of(broker) == [0, 10, 20, 30])


@pytest.mark.feature(36)
async def test_bytes_are_bounded_too(broker: FakeBroker) -> None:
    for _ in range(10):
        broker.put("Orders", bytes(1000))
    async with member(
        broker, config=replace(QUICK, pull_batch_size=1, max_cached_bytes=3500)
    ) as consumer:
        await broker.until(lambda: pulls_of(broker) == [0, 1, 2, 3])
        await consumer.lag()
        await consumer.lag()
        assert pulls_of(broker) == [0, 1, 2, 3]
        assert len(await collect(consumer, 10)) == 10


@pytest.mark.feature(108)
async def test_one_pull_of_a_queue_is_under_way_at_a_time(broker: FakeBroker) -> None:
    async with member(broker) as consumer:
        for _ in range(20):
            fill(broker, 1)
            await collect(consumer, 1)
    assert pulls_of(broker) == sorted(set(pulls_of(broker)))


# --- trouble --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure", [error(ResponseCode.SYSTEM_ERROR), SILENT], ids=["error", "silence"]
)
async def test_an_offset_that_cannot_be_learned_is_not_guessed(
    broker: FakeBroker, failure: Any
) -> None:
    """No pull and no commit until the query succeeds; then from the right place."""
    fill(broker, 5)
    broker.offsets["replay", "Orders", 0] = 4
    broker.on(QUERY, failure)
    client = ClientConfig(name_server=broker.address, request_timeout_s=0.5)
    async with member(broker, client=client) as consumer:
        await broker.received(QUERY, 2)
        assert await consumer.poll(0) == []
        assert broker.of(PULL) == broker.of(UPDATE) == []
        broker.on(QUERY, None)
        assert offsets(await collect(consumer, 1)) == [4]


@pytest.mark.parametrize(
    "failure", [error(ResponseCode.SYSTEM_ERROR), SILENT], ids=["error", "silence"]
)
async def test_assign_raises_where_an_offset_cannot_be_learned(
    broker: FakeBroker, failure: Any
) -> None:
    broker.topics["Orders"] = 2
    fill(broker, 5)
    client = ClientConfig(name_server=broker.address, request_timeout_s=0.5)
    async with reader(broker, group="replay", client=client) as consumer:
        await consumer.assign([Q0])
        broker.script(QUERY, failure)
        with pytest.raises((BrokerInternalError, RequestTimeout)):
            await consumer.assign([Q1])
        assert consumer.assignment == [Q0]
        assert pulls_of(broker, 1) == []


async def test_an_offset_that_the_broker_does_not_hold_is_put_right_at_once(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The queue goes on at the broker's word; the other one does not notice."""
    broker.topics["Orders"] = 2
    fill(broker, 8)
    fill(broker, 1, queue_id=1)
    broker.offsets["replay", "Orders", 0] = 100
    moved = error(ResponseCode.PULL_OFFSET_MOVED)
    moved.ext_fields = encode_header(
        PullMessageResponse(next_begin_offset=5, min_offset=0, max_offset=8)
    )
    broker.on(PULL, lambda request: moved if request.ext_fields["queueOffset"] == "100" else None)
    async with member(broker) as consumer:
        found = await collect(consumer, 4)
    assert sorted((message.queue.queue_id, message.queue_offset) for message in found) == [
        (0, 5),
        (0, 6),
        (0, 7),
        (1, 0),
    ]
    assert (progress(broker, 0), progress(broker, 1)) == (8, 1)
    assert "holds 0 to 8 and not 100" in caplog.text


@pytest.mark.feature(111)
async def test_a_failing_pull_is_tried_again(broker: FakeBroker) -> None:
    """Whatever is wrong: an error, flow control, an unknown code, an answer that cannot be read."""
    fill(broker, 1)
    garbage = ok(PullMessageResponse(next_begin_offset=1, min_offset=0, max_offset=1), b"no record")
    broker.script(
        PULL,
        error(ResponseCode.SYSTEM_ERROR),
        error(ResponseCode.FLOW_CONTROL),
        error(99),
        garbage,
        ok(body=b"no header"),
    )
    async with member(broker) as consumer:
        assert offsets(await collect(consumer, 1)) == [0]


async def test_a_broker_restart_needs_no_client_restart(broker: FakeBroker) -> None:
    async with member(broker) as consumer:
        fill(broker, 1)
        await collect(consumer, 1)
        await broker.stop()
        await broker.start()
        fill(broker, 1)
        assert offsets(await collect(consumer, 1)) == [1]


async def test_a_bug_in_the_background_ends_a_poll_loudly(broker: FakeBroker) -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    async with member(broker) as consumer:
        consumer._owner.client.spawn(broken(), "a bug")
        with pytest.raises(IllegalStateError, match="unexpected error"):
            async with asyncio.timeout(WAIT_S):
                await consumer.poll(None)


@pytest.mark.feature(113)
async def test_a_pull_cannot_be_one_way(broker: FakeBroker) -> None:
    """Whoever pulls wants the answer: there is no such call, and none goes out as one."""
    async with reader(broker) as consumer:
        with pytest.raises(TypeError, match="oneway"):
            # what the test is about
            await consumer.pull(Q0, 0, oneway=True)  # type: ignore[call-arg]
        await consumer.pull(Q0, 0)
    assert [request.is_oneway for request in broker.of(PULL)] == [False]


@pytest.mark.parametrize("to", [True, False])
async def test_a_truth_value_is_no_offset(broker: FakeBroker, to: bool) -> None:
    fill(broker, 3)
    async with member(broker) as consumer:
        await eventually(lambda: Q0 in consumer.assignment)
        with pytest.raises(InvalidOption, match="to is"):
            await consumer.seek(Q0, to)
        with pytest.raises(TypeError, match="an offset must be int, not bool"):
            await consumer.commit({Q0: to})
