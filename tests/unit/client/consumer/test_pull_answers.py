"""What a pull asks, and what each answer of a broker does to a queue."""

import logging
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from ogive.client.config import ClientConfig
from ogive.client.consumer import pull_loop
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.group_client import Outages
from ogive.client.instance import ClientInstance
from ogive.client.rpc import messages
from ogive.errors import ConnectError, ConnectionLost, RequestTimeout, ResponseCode
from ogive.model import MessageQueue
from ogive.testing.fake_broker import HANG_UP, SILENT, FakeBroker, error
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import encode_header
from ogive.wire.headers.pull import PullMessageResponse
from ogive.wire.message import encode_stored
from tests.unit.client.consumer.polling import (
    PULL,
    Q0,
    QUICK,
    collect,
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


def answer(code: int, next_offset: int) -> RemotingCommand:
    return RemotingCommand(
        code,
        encode_header(
            PullMessageResponse(next_begin_offset=next_offset, min_offset=0, max_offset=next_offset)
        ),
    )


@pytest.mark.feature(40, 51)
async def test_messages_are_cached_and_the_next_pull_goes_on_behind_them(
    broker: FakeBroker,
) -> None:
    fill(broker, 25)
    async with member(broker, config=replace(QUICK, pull_batch_size=10)) as consumer:
        await broker.until(lambda: pulls_of(broker) == [0, 10, 20, 25])
        assert offsets(await collect(consumer, 25)) == list(range(25))


@pytest.mark.feature(45, 46)
@pytest.mark.parametrize("code", [ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY])
async def test_a_broker_may_move_a_queue_that_has_nothing_for_us(
    broker: FakeBroker, code: int
) -> None:
    """That is progress, too."""
    broker.script(PULL, answer(code, 40))
    async with member(broker):
        await broker.until(lambda: pulls_of(broker) == [0, 40])
        await broker.until(lambda: progress(broker) == 40)


async def test_a_broker_that_sends_a_queue_to_where_it_is_is_asked_again_later() -> None:
    """It was asked as fast as it answered, with a line in the log and a commit each time.

    The other queue shows that time passes.
    """
    async with FakeBroker({"Orders": 2}) as broker:
        broker.on(
            PULL,
            lambda request: (
                answer(ResponseCode.PULL_OFFSET_MOVED, 0)
                if request.ext_fields["queueId"] == "0"
                else None
            ),
        )
        async with member(broker, config=replace(QUICK, pull_retry_s=60.0)) as consumer:
            for number in range(10):
                fill(broker, 1, queue_id=1)
                assert offsets(await collect(consumer, 1)) == [number]
        assert [request.ext_fields["queueId"] for request in broker.of(PULL)].count("0") == 1


async def test_a_broker_whose_answers_lead_nowhere_is_not_asked_without_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is something, and to be asked for where it was.

    The other queue shows that time passes.
    """
    monkeypatch.setattr(pull_loop, "IDLE_PAUSE_S", 60.0)
    async with FakeBroker({"Orders": 2}) as broker:
        stuck = answer(ResponseCode.SUCCESS, 0)
        broker.on(PULL, lambda request: stuck if request.ext_fields["queueId"] == "0" else None)
        async with member(broker) as consumer:
            for number in range(10):
                fill(broker, 1, queue_id=1)
                assert offsets(await collect(consumer, 1)) == [number]
        assert [request.ext_fields["queueId"] for request in broker.of(PULL)].count("0") == 1


@pytest.mark.parametrize(
    "said",
    [[0, 1 << 40], [0, 3], [0, 0], [1, 0]],
    ids=["far ahead", "behind the end", "twice", "back"],
)
async def test_an_offset_that_a_record_makes_up_moves_no_progress(
    broker: FakeBroker, said: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """As one flipped bit of a disk makes it: no checksum covers it.

    What stands in front is delivered, and the right one when it comes.
    """
    fill(broker, 3)
    records = broker.stored["Orders", 0]
    wrong = answer(ResponseCode.SUCCESS, 3)
    wrong.body = b"".join(
        encode_stored(replace(record, queue_offset=at))
        for record, at in zip(records, [*said, 2], strict=False)
    )
    broker.script(PULL, wrong)
    async with member(broker) as consumer:
        assert offsets(await collect(consumer, 3)) == [0, 1, 2]
        await consumer.commit()
        await broker.until(lambda: progress(broker) == 3)
    assert f"says it has offset {said[1]}" in caplog.text
    assert progress(broker) == 3


@pytest.mark.feature(46)
async def test_what_a_filter_leaves_out_never_lets_the_progress_pass_a_message_in_hand(
    broker: FakeBroker,
) -> None:
    fill(broker, 1)
    broker.on(
        PULL,
        lambda request: (
            answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 40)
            if request.ext_fields["queueOffset"] == "1"
            else None
        ),
    )
    async with member(broker) as consumer:
        await collect(consumer, 1)
        await broker.until(lambda: pulls_of(broker) == [0, 1, 40])
        assert await consumer.position(Q0) == 40
        await consumer.lag()
        assert progress(broker) == 0
        await consumer.poll(0)
        await broker.until(lambda: progress(broker) == 40)


@pytest.mark.feature(41)
async def test_a_broker_that_goes_back_is_followed_and_reported(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.offsets["replay", "Orders", 0] = 10
    broker.script(PULL, answer(ResponseCode.PULL_NOT_FOUND, 7))
    async with member(broker):
        await broker.until(lambda: pulls_of(broker) == [10, 7])
    assert "the broker moved back from offset 10 to 7" in caplog.text


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            5,
            "Orders/broker-a/0: the broker sends replay from 5 to 2: the group was reset (the "
            "broker holds 0 to 8)",
        ),
        (9, "Orders/broker-a/0: the broker holds 0 to 8 and not 9; the group goes on at 2"),
    ],
)
async def test_a_reset_does_not_read_like_a_loss(
    asked: int, said: str, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the broker holds what the group asked for, nothing is gone."""
    broker.offsets["replay", "Orders", 0] = asked
    header = PullMessageResponse(next_begin_offset=2, min_offset=0, max_offset=8)
    broker.script(PULL, RemotingCommand(ResponseCode.PULL_OFFSET_MOVED, encode_header(header)))
    async with member(broker):
        await broker.until(lambda: pulls_of(broker)[:2] == [asked, 2])
    assert said in caplog.messages


async def test_a_reset_to_the_groups_own_place_is_no_warning(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """As after `ogive group reset billing Orders --to latest` without a backlog.

    The queue goes on.
    """
    caplog.set_level(logging.INFO)
    fill(broker, 2)
    broker.offsets["replay", "Orders", 0] = 2
    header = PullMessageResponse(next_begin_offset=2, min_offset=0, max_offset=2)
    broker.script(PULL, RemotingCommand(ResponseCode.PULL_OFFSET_MOVED, encode_header(header)))
    async with member(broker, config=replace(QUICK, pull_retry_s=0.01)) as consumer:
        await broker.until(lambda: pulls_of(broker)[:2] == [2, 2])
        fill(broker, 1)
        assert offsets(await collect(consumer, 1)) == [2]
    assert "Orders/broker-a/0: the group was reset to 2, where it is" in caplog.messages
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_message_that_cannot_be_decompressed_is_handed_out_in_its_place(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """As it is, and marked; what is behind it does not wait."""
    fill(broker, 1)
    broker.put("Orders", b"no zlib", sys_flag=1)
    fill(broker, 1)
    async with member(broker) as consumer:
        found = await collect(consumer, 3)
    assert [(m.queue_offset, m.is_compressed, m.body) for m in found] == [
        (0, False, b"0"),
        (1, True, b"no zlib"),
        (2, False, b"2"),
    ]
    assert "Orders/broker-a/0/1 cannot be decompressed" in caplog.text
    assert progress(broker) == 3


async def test_an_answer_that_inflates_to_too_much_comes_in_parts(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A MiB of compressed bodies, one answer, may be a thousand in memory."""
    monkeypatch.setattr(messages, "MAX_INFLATED_BYTES", 1500)
    bodies = [b"%d" % n * 1000 for n in range(5)]
    for body in bodies:
        broker.put("Orders", zlib.compress(body), sys_flag=1)
    fill(broker, 1)
    async with member(broker) as consumer:
        assert [m.body for m in await collect(consumer, 6)] == [*bodies, b"5"]
        await broker.until(lambda: pulls_of(broker) == [0, 2, 4, 6])


@pytest.mark.feature(48)
async def test_an_unknown_answer_is_an_error_after_which_the_pull_is_repeated(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, 1)
    broker.script(PULL, error(99, "from the future"))
    with caplog.at_level(logging.INFO):
        async with member(broker) as consumer:
            assert offsets(await collect(consumer, 1)) == [0]
    assert "99 unknown code: from the future" in caplog.text
    assert "pulls of Orders from broker-a succeed again" in caplog.text


async def test_an_outage_of_a_broker_is_one_line_and_one_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not one for each queue."""
    async with FakeBroker({"Orders": 4}) as broker:
        for number in range(4):
            fill(broker, 1, queue_id=number)
        broker.on(
            PULL, error(ResponseCode.NO_PERMISSION, "subscription group no permission, replay")
        )
        with caplog.at_level(logging.INFO, logger="ogive.client.consumer.pull_loop"):
            async with member(broker):
                await broker.until(lambda: len(broker.of(PULL)) >= 12)
                broker.on(PULL, lambda request: None)
                await broker.until(
                    lambda: any("succeed again" in message for message in caplog.messages)
                )
        assert [message.partition(":")[0] for message in caplog.messages] == [
            "pull of Orders/broker-a/0 failed, trying again",
            "pulls of Orders from broker-a succeed again",
        ]


def test_queues_that_fail_alike_are_one_outage_of_their_broker() -> None:
    here, there, elsewhere = (
        MessageQueue("Orders", name, number) for name, number in (("a", 0), ("a", 1), ("b", 0))
    )
    outages = Outages()
    assert outages.begins(here, "refused")
    assert not outages.begins(here, "lost")
    assert not outages.begins(there, "refused")
    assert outages.begins(elsewhere, "refused")
    assert not outages.ends(here)
    assert outages.ends(there)
    assert not outages.ends(there)
    assert outages.begins(here, "busy")
    assert outages.begins(there, "no permission")


@pytest.mark.feature(144)
async def test_a_pull_that_failed_is_repeated_after_a_pause(broker: FakeBroker) -> None:
    """A second by default."""
    broker.script(PULL, error(ResponseCode.SYSTEM_ERROR))
    async with member(broker, config=replace(QUICK, pull_retry_s=60)) as consumer:
        await broker.received(PULL)
        # round trips, in which another pull would come
        for _ in range(5):
            await consumer.lag()
        assert pulls_of(broker) == [0]
    assert ConsumerConfig().pull_retry_s == 1.0


@pytest.mark.feature(109)
async def test_a_poll_that_waits_asks_the_broker_nothing_more(broker: FakeBroker) -> None:
    async with member(broker) as consumer:
        await broker.received(PULL)
        asked = len(broker.requests)
        assert await consumer.poll(0.1) == []
        jobs = {RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.HEART_BEAT}
        assert [
            request.code for request in broker.requests[asked:] if request.code not in jobs
        ] == []


@pytest.mark.feature(145)
async def test_a_batch_belongs_to_the_application(broker: FakeBroker) -> None:
    """Whatever it does to the list, the messages in it were handed out; they themselves cannot be
    changed.
    """
    fill(broker, 3)
    async with member(broker) as consumer:
        batch = await collect(consumer, 3)
        with pytest.raises(AttributeError):
            batch[0].queue_offset = 7  # type: ignore[misc]
        batch.clear()
        await consumer.poll(0)
        await broker.until(lambda: progress(broker) == 3)


@pytest.mark.feature(143)
async def test_a_pull_may_take_15_s_longer_than_the_broker_may_hold_it(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, 1)
    budgets: list[float] = []
    async with (
        ClientInstance(ClientConfig(name_server=broker.address)) as client,
        reader(broker, client=client) as consumer,
    ):
        call = client.pool.call

        async def note(
            address: str, command: RemotingCommand, timeout_s: float, **options: bool
        ) -> RemotingCommand:
            if command.code == PULL:
                budgets.append(timeout_s)
            return await call(address, command, timeout_s, **options)

        monkeypatch.setattr(client.pool, "call", note)
        await consumer.pull(Q0, 0, suspend_s=15)
    assert budgets == [30.0]


@pytest.mark.feature(117)
async def test_a_lost_connection_a_silent_broker_and_none_at_all_are_told_apart(
    broker: FakeBroker,
) -> None:
    """Each error names the address, and a timeout also the time; that no name server answers then
    is not what the caller hears of.
    """
    broker.peers.append(FakeBroker({"Orders": 1}, name="broker-b", port=1))  # not there
    client = ClientConfig(name_server=broker.address, request_timeout_s=0.5)
    async with reader(broker, client=client) as consumer:
        broker.script(PULL, HANG_UP)
        with pytest.raises(ConnectionLost, match=broker.address):
            await consumer.pull(Q0, 0)
        broker.script(RequestCode.GET_MAX_OFFSET, SILENT)
        with pytest.raises(RequestTimeout, match=rf"{broker.address} within \d\.\d s"):
            await consumer.end_offset(Q0)
        broker.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, SILENT)
        with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1\b"):
            await consumer.pull(MessageQueue("Orders", "broker-b", 0), 0)
