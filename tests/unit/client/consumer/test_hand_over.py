"""Queues that go from one member of a group to another, against a broker that plays the other
one.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from ogive.client.config import ClientConfig
from ogive.client.consumer import other_members
from ogive.client.consumer.push_consumer import PushConsumer
from ogive.errors import ResponseCode
from ogive.model import MessageExt, MessageQueue
from ogive.testing.fake_broker import SILENT, WAIT_S, FakeBroker, error, ok
from ogive.wire.bodies.clients import (
    ConnectionInfo,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProcessQueueInfo,
)
from ogive.wire.bodies.json_fields import dumps
from ogive.wire.bodies.stats import group_status_dumps
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from tests.unit.client.consumer import polling
from tests.unit.client.consumer.test_orderly import LEASED, in_order
from tests.unit.client.consumer.test_push_consumer import (
    MEMBERS,
    PULL,
    QUERY,
    QUICK,
    RETRY,
    SEND_BACK,
    UPDATE,
    Seen,
    consumer,
    eventually,
    progress,
    rounds,
    to,
    with_others,
)

ASK = RequestCode.GET_CONSUMER_RUNNING_INFO
LANGUAGES = RequestCode.GET_CONSUMER_CONNECTION_LIST
PROGRESS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
ORDERS = MessageQueue("Orders", "broker-a", 0)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1, RETRY: 1}) as broker:
        yield broker


def holds(broker: FakeBroker, queues: Collection[MessageQueue]) -> None:
    """Let the other members answer that they hold *queues*."""
    info = ConsumerRunningInfo(
        properties={}, subscriptions=(), queues=dict.fromkeys(queues, ProcessQueueInfo()), topics={}
    )
    broker.on(ASK, ok(body=info.encode()))


def of_orders(broker: FakeBroker, code: int) -> list[RemotingCommand]:
    return [request for request in broker.of(code) if request.ext_fields["topic"] == "Orders"]


def questions_of_orders(broker: FakeBroker) -> list[RemotingCommand]:
    return [request for request in broker.of(ASK) if b'"Orders"' in request.body]


async def holdings(
    broker: FakeBroker, running: PushConsumer, *queues: MessageQueue
) -> set[MessageQueue]:
    """The answer of *running* to a member that wants *queues*."""
    body = dumps(
        {
            "queues": [
                {"topic": q.topic, "brokerName": q.broker_name, "queueId": q.queue_id}
                for q in queues
            ]
        }
    )
    fields = {"consumerGroup": "billing", "clientId": running.client_id}
    answer = await broker.ask("billing", running.client_id, RemotingCommand(ASK, fields, body))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return set(ConsumerRunningInfo.decode(answer.body).queues)


class Slow:
    """A listener whose calls last until ``free`` is set."""

    def __init__(self) -> None:
        self.free, self.seen = threading.Event(), Seen()

    def __call__(self, message: MessageExt) -> None:
        self.seen(message)
        self.free.wait(WAIT_S)


async def given_away(broker: FakeBroker) -> None:
    """Another member has come, that is given the only queue."""
    holds(broker, ())
    with_others(broker, "000")
    broker.notify("billing")


@asynccontextmanager
async def given_away_at_work(
    broker: FakeBroker, messages: int
) -> AsyncIterator[tuple[PushConsumer, Slow]]:
    """A consumer whose only queue goes to another member while the first of its messages is worked
    on.
    """
    work = Slow()
    for i in range(messages):
        broker.put("Orders", b"%d" % i)
    async with consumer(broker, to(work, threads=1)) as running:
        await work.seen.wait(1)
        await given_away(broker)
        await rounds(broker)
        yield running, work


async def test_a_queue_that_its_topic_has_lost_is_given_up_without_a_word(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Its broker refuses progress in it for good."""
    seen, lost = Seen(), False

    def update(request: RemotingCommand) -> RemotingCommand | None:
        gone = lost and (request.ext_fields["topic"], request.ext_fields["queueId"]) == (
            "Orders",
            "1",
        )
        return error(ResponseCode.INVALID_PARAMETER, "no such queue") if gone else None

    broker.topics["Orders"] = 2
    broker.on(UPDATE, update)
    client = ClientConfig(name_server=broker.address, route_period_s=0.02)
    async with PushConsumer(
        to(seen), client=client, config=replace(QUICK, hand_over_wait_s=WAIT_S)
    ) as running:
        await eventually(lambda: progress(broker, queue_id=1) == 0)
        lost = True
        broker.put("Orders", b"x", queue_id=1)
        await seen.wait(1)
        broker.topics["Orders"] = 1
        await eventually(
            lambda: MessageQueue("Orders", "broker-a", 1) not in running.assignment["billing"]
        )
    assert [record.getMessage() for record in caplog.records] == []


# --- taking over ----------------------------------------------------------------------------------


@pytest.mark.kills("a queue is taken over while another member has it")
async def test_a_queue_that_another_member_still_has_is_left_alone_until_it_has_given_it_up(
    broker: FakeBroker,
) -> None:
    seen = Seen()
    broker.put("Orders", b"first")
    with_others(broker, "zzz")
    holds(broker, [ORDERS, MessageQueue(RETRY, "broker-a", 0)])
    async with consumer(broker, to(seen)) as running:
        await broker.received(ASK, 4)
        assert (of_orders(broker, QUERY), of_orders(broker, PULL), running.assignment) == (
            [],
            [],
            {"billing": []},
        )
        # The other one commits this at the end.
        broker.offsets["billing", "Orders", 0] = 1
        broker.put("Orders", b"second")
        holds(broker, ())
        assert await seen.wait(1) == [b"second"]


async def test_a_member_is_asked_about_many_queues_in_questions_that_a_broker_takes(
    broker: FakeBroker,
) -> None:
    """Our broker refuses longer ones, and who cannot be asked is not waited for."""
    topic = "T" * 127
    broker.topics[topic] = 1000
    with_others(broker, "zzz")
    info = ConsumerRunningInfo(properties={}, subscriptions=(), queues={}, topics={})
    held = replace(info, queues={MessageQueue(topic, "broker-a", 499): ProcessQueueInfo()})

    def answer(request: RemotingCommand) -> RemotingCommand:
        too_long = len(request.body) > 64 * 1024
        return error(ResponseCode.INVALID_PARAMETER) if too_long else ok(body=held.encode())

    broker.on(ASK, answer)
    async with consumer(broker, to(Seen(), topic=topic)) as running:
        await eventually(lambda: len(running.assignment["billing"]) >= 500)
        await rounds(broker)
        # One of them is of the retry topic.
        assert len(running.assignment["billing"]) == 500
        held = info
        await eventually(lambda: len(running.assignment["billing"]) == 501)


async def test_who_is_alone_asks_nobody(broker: FakeBroker) -> None:
    async with consumer(broker, to(Seen())):
        await broker.received(PULL)
    assert broker.of(ASK) == []


async def test_a_member_that_has_nothing_of_a_queue_is_not_asked_again(broker: FakeBroker) -> None:
    with_others(broker, "zzz")
    holds(broker, ())
    async with consumer(broker, to(Seen())) as running:
        await eventually(lambda: len(running.assignment["billing"]) == 2)
        await rounds(broker)
    # One for each topic.
    assert len(broker.of(ASK)) == 2


async def test_a_member_that_cannot_say_what_it_has_delays_nothing_for_long(
    broker: FakeBroker,
) -> None:
    """An old client, or one behind access rules."""
    with_others(broker, "zzz")
    broker.on(ASK, error(ResponseCode.NO_PERMISSION))
    async with consumer(broker, to(Seen())) as running:
        await eventually(lambda: len(running.assignment["billing"]) == 2)
    assert len(broker.of(ASK)) == 2


def in_java(broker: FakeBroker, client_id: str, *queues: MessageQueue) -> None:
    """Let *client_id* be a member of Java's that has progress in *queues*."""
    one = ConnectionInfo(client_id=client_id, address="10.0.0.1:5", language="JAVA", version=513)
    connected = ConsumerConnection(
        connections=(one,),
        subscriptions={},
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
    )

    def progress(request: RemotingCommand) -> RemotingCommand:
        topic = request.ext_fields["topic"]
        table = {client_id: {queue: 1 for queue in queues if queue.topic == topic}}
        return ok(body=group_status_dumps(table))

    broker.on(LANGUAGES, ok(body=connected.encode()))
    broker.on(PROGRESS, progress)


@pytest.mark.feature(2)
async def test_a_java_member_is_asked_for_its_progress_only(broker: FakeBroker) -> None:
    """Two reports on itself at a time block Java's client of 5.x on two cores."""
    with_others(broker, "zzz")
    in_java(broker, "zzz", ORDERS, MessageQueue(RETRY, "broker-a", 0))
    async with consumer(
        broker, to(Seen()), config=replace(QUICK, hand_over_pause_s=0.01)
    ) as running:
        await broker.received(PROGRESS, 4)
        assert running.assignment == {"billing": []}
        in_java(broker, "zzz")
        await eventually(lambda: len(running.assignment["billing"]) == 2)
    assert broker.of(ASK) == []
    assert {request.ext_fields["clientAddr"] for request in broker.of(PROGRESS)} == {"zzz"}


async def test_a_java_member_without_progress_in_a_queue_gets_a_pause(broker: FakeBroker) -> None:
    """It may have begun the queue."""
    with_others(broker, "zzz")
    in_java(broker, "zzz")
    async with consumer(
        broker, to(Seen()), config=replace(QUICK, hand_over_pause_s=600, hand_over_wait_s=600)
    ) as running:
        await broker.received(PROGRESS, 2)
        await rounds(broker)
        assert running.assignment == {"billing": []}


async def test_a_java_member_that_does_not_answer_the_broker_is_waited_for(
    broker: FakeBroker,
) -> None:
    """Apache's broker leaves it out of its answer then."""
    with_others(broker, "zzz")
    in_java(broker, "zzz")
    broker.on(PROGRESS, ok(body=group_status_dumps({})))
    async with consumer(
        broker, to(Seen()), config=replace(QUICK, hand_over_pause_s=0.01, hand_over_wait_s=600)
    ) as running:
        await broker.received(PROGRESS, 6)
        assert running.assignment == {"billing": []}
        in_java(broker, "zzz")
        await eventually(lambda: len(running.assignment["billing"]) == 2)


async def test_no_member_is_asked_before_its_language_is_known(broker: FakeBroker) -> None:
    with_others(broker, "zzz")
    holds(broker, ())
    broker.on(LANGUAGES, error(ResponseCode.SYSTEM_BUSY))
    async with consumer(
        broker, to(Seen()), config=replace(QUICK, hand_over_pause_s=0.01)
    ) as running:
        await broker.received(LANGUAGES, 4)
        assert running.assignment == {"billing": []}
        in_java(broker, "zzz")
        await eventually(lambda: len(running.assignment["billing"]) == 2)
    assert broker.of(ASK) == []


async def test_a_member_that_is_too_busy_to_say_what_it_has_is_asked_again(
    broker: FakeBroker,
) -> None:
    with_others(broker, "zzz")
    broker.on(ASK, error(ResponseCode.SYSTEM_BUSY))
    async with consumer(broker, to(Seen())) as running:
        await broker.received(ASK, 6)
        assert running.assignment == {"billing": []}
        holds(broker, ())
        await eventually(lambda: len(running.assignment["billing"]) == 2)


async def test_in_a_large_group_a_member_asks_its_neighbours_and_gives_the_others_a_pause(
    broker: FakeBroker,
) -> None:
    """All would be a flood: a change moves the queues of nearly all members."""
    others = [f"zzz{i:03}" for i in range(300)]
    with_others(broker, *others)
    holds(broker, ())
    begun = asyncio.get_running_loop().time()
    async with consumer(
        broker, to(Seen()), config=replace(QUICK, hand_over_pause_s=0.3)
    ) as running:
        await eventually(lambda: ORDERS in running.assignment["billing"])
        assert asyncio.get_running_loop().time() - begun >= 0.3
        asked = [request.ext_fields["clientId"] for request in questions_of_orders(broker)]
    assert sorted(asked) == [*others[:16], *others[-16:]]


async def test_in_a_large_group_too_a_neighbour_that_still_has_a_queue_is_waited_for(
    broker: FakeBroker,
) -> None:
    with_others(broker, *(f"zzz{i:03}" for i in range(300)))
    holds(broker, [ORDERS])
    async with consumer(
        broker, to(Seen()), config=replace(QUICK, hand_over_pause_s=0.01)
    ) as running:
        await rounds(broker)
        assert ORDERS not in running.assignment["billing"]
        holds(broker, ())
        await eventually(lambda: ORDERS in running.assignment["billing"])


async def test_in_a_large_group_a_member_asks_again_before_it_looks_at_the_group_again(
    broker: FakeBroker,
) -> None:
    """That is up to a second away."""
    with_others(broker, *(f"zzz{i:03}" for i in range(300)))
    holds(broker, [ORDERS])
    async with consumer(
        broker, to(Seen()), config=replace(QUICK, hand_over_pause_s=0.3, rebalance_pause_s=WAIT_S)
    ) as running:
        await eventually(lambda: len(questions_of_orders(broker)) == 32)
        holds(broker, ())
        await eventually(lambda: ORDERS in running.assignment["billing"])
        # Of Orders, and of the retry topic if its turn has come.
        assert len(broker.of(MEMBERS)) <= 2


@pytest.mark.parametrize("answer", ["silence", "it has it"])
async def test_a_member_that_never_gives_a_queue_up_is_not_waited_for_for_ever(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, answer: str
) -> None:
    with_others(broker, "zzz")
    holds(broker, [ORDERS, MessageQueue(RETRY, "broker-a", 0)])
    if answer == "silence":
        broker.on(ASK, SILENT)
    async with consumer(broker, to(Seen()), config=replace(QUICK, hand_over_wait_s=0.0)) as running:
        await eventually(lambda: len(running.assignment["billing"]) == 2)
    assert "took over Orders/broker-a/0 of billing although zzz did not release it" in caplog.text


async def test_who_has_left_meanwhile_is_not_waited_for(broker: FakeBroker) -> None:
    """It was killed: the broker forgets it at once."""
    with_others(broker, "zzz")
    broker.on(ASK, SILENT)
    async with consumer(
        broker, to(Seen()), config=replace(QUICK, hand_over_wait_s=600.0)
    ) as running:
        await broker.received(ASK, 2)
        broker.on(MEMBERS, None)
        broker.notify("billing")
        await eventually(lambda: len(running.assignment["billing"]) == 2)


@pytest.mark.parametrize("return_s", [0.1, 3600.0])
async def test_members_that_are_not_back_yet_at_a_broker_that_has_started_again_keep_their_queues(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, return_s: float
) -> None:
    """It lists only those that are back.

    The first one does not take the queues of all for a while.
    """
    monkeypatch.setattr(other_members, "RETURN_S", return_s)
    broker.topics["Orders"] = 2
    with_others(broker, "zzz")
    holds(broker, ())
    async with consumer(broker, to(Seen())) as running:
        await eventually(lambda: ORDERS in running.assignment["billing"])
        await broker.stop()
        broker.on(MEMBERS, None)
        await broker.start()
        if return_s < 1:
            await eventually(
                lambda: MessageQueue("Orders", "broker-a", 1) in running.assignment["billing"]
            )
        else:
            await broker.received(MEMBERS, len(broker.of(MEMBERS)) + 10)
            assert MessageQueue("Orders", "broker-a", 1) not in running.assignment["billing"]


# --- answering ------------------------------------------------------------------------------------


async def test_a_member_says_which_of_the_queues_it_holds(broker: FakeBroker) -> None:
    other = MessageQueue("Orders", "broker-a", 7)
    async with consumer(broker, to(Seen())) as running:
        await eventually(lambda: len(running.assignment["billing"]) == 2)
        assert await holdings(broker, running, ORDERS, other) == {ORDERS}
        assert await holdings(broker, running, other) == set()


async def test_a_member_says_which_queues_it_is_about_to_take(broker: FakeBroker) -> None:
    """Or two members that ask each other at the same time would both take one."""
    with_others(broker, "zzz")
    holds(broker, [ORDERS])
    async with consumer(broker, to(Seen())) as running:
        await broker.received(ASK)
        assert await holdings(broker, running, ORDERS) == {ORDERS}
        assert running.assignment["billing"] in ([], [MessageQueue(RETRY, "broker-a", 0)])


async def test_a_question_is_news_of_a_change_that_the_broker_did_not_tell(
    broker: FakeBroker,
) -> None:
    config = replace(QUICK, rebalance_period_s=3600)
    async with consumer(broker, to(Seen()), config=config) as running:
        await eventually(lambda: len(running.assignment["billing"]) == 2)
        await rounds(broker)
        holds(broker, ())
        with_others(broker, "000")
        assert await holdings(broker, running, ORDERS) == {ORDERS}
        await eventually(lambda: running.assignment == {"billing": []})
        assert await holdings(broker, running, ORDERS) == set()


# --- giving up ------------------------------------------------------------------------------------


async def test_a_queue_is_held_until_its_running_calls_have_ended_and_their_progress_is_committed(
    broker: FakeBroker,
) -> None:
    async with given_away_at_work(broker, messages=10) as (running, work):
        assert await holdings(broker, running, ORDERS) == {ORDERS}
        assert progress(broker) in (None, 0)
        broker.hold(RequestCode.UPDATE_CONSUMER_OFFSET)
        work.free.set()
        await eventually(lambda: len(broker.of(RequestCode.UPDATE_CONSUMER_OFFSET)) > 0)
        assert await holdings(broker, running, ORDERS) == {ORDERS}
        broker.release(RequestCode.UPDATE_CONSUMER_OFFSET)
        await eventually(lambda: running.assignment == {"billing": []})
        assert (progress(broker), work.seen.bodies) == (1, [b"0"])


@pytest.mark.kills("a queue is given up before its commit")
async def test_a_queue_is_held_until_a_broker_has_taken_its_progress(broker: FakeBroker) -> None:
    """Or its next owner repeats what was done since the last commit."""
    seen = Seen()
    broker.put("Orders", b"x")
    config = replace(QUICK, persist_period_s=60, persist_again_s=60)
    async with consumer(broker, to(seen), config=config) as running:
        await seen.wait(1)
        broker.on(RequestCode.UPDATE_CONSUMER_OFFSET, error(ResponseCode.SYSTEM_ERROR))
        await given_away(broker)
        await rounds(broker)
        assert await holdings(broker, running, ORDERS) == {ORDERS}
        broker.on(RequestCode.UPDATE_CONSUMER_OFFSET, None)
        await eventually(lambda: running.assignment == {"billing": []})
        assert progress(broker) == 1


async def test_a_failed_message_is_sent_back_before_its_queue_is_given_up(
    broker: FakeBroker,
) -> None:
    """Or its next owner gets it, and the group its retry as well."""
    free, begun = threading.Event(), Seen()
    broker.put("Orders", b"bad")

    def fail(message: MessageExt) -> None:
        begun(message)
        free.wait(WAIT_S)
        raise ValueError

    broker.hold(SEND_BACK)
    async with consumer(broker, to(fail)) as running:
        await begun.wait(1)
        free.set()
        await broker.received(SEND_BACK)
        await given_away(broker)
        await rounds(broker)
        assert await holdings(broker, running, ORDERS) == {ORDERS}
        broker.release(SEND_BACK)
        await eventually(lambda: running.assignment == {"billing": []})
        assert progress(broker) == 1


async def test_a_call_that_outlasts_the_wait_is_left_behind_counted_and_logged(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    work = Slow()
    broker.put("Orders", b"long")
    async with consumer(broker, to(work), config=replace(QUICK, hand_over_wait_s=0.05)) as running:
        await work.seen.wait(1)
        await given_away(broker)
        await eventually(lambda: running.assignment == {"billing": []})
        fields = {"consumerGroup": "billing", "clientId": running.client_id}
        info = ConsumerRunningInfo.decode(
            (await broker.ask("billing", running.client_id, RemotingCommand(ASK, fields))).body
        )
        broker.offsets["billing", "Orders", 0] = 77
        work.free.set()
    assert info.properties["queuesGivenUpWhileBusy"] == "1"
    assert "releasing Orders/broker-a/0 of billing while its listener still runs" in caplog.text
    assert progress(broker) == 77


async def test_a_queue_that_comes_back_while_it_is_being_given_up_goes_on_behind_what_was_done(
    broker: FakeBroker,
) -> None:
    async with given_away_at_work(broker, messages=3) as (running, work):
        broker.on(MEMBERS, None)
        broker.notify("billing")
        await rounds(broker)
        work.free.set()
        assert await work.seen.wait(3) == [b"0", b"1", b"2"]
        await eventually(lambda: len(running.assignment["billing"]) == 2)


@pytest.mark.parametrize("end", ["done", "never"])
async def test_a_message_that_an_iteration_has_handed_out_is_waited_for(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    for i in range(3):
        broker.put("Orders", b"%d" % i)
    wait_s = WAIT_S if end == "done" else 0.05
    config = replace(QUICK, hand_over_wait_s=wait_s, await_termination_s=wait_s)
    async with consumer(
        broker, "Orders", group="billing", start="earliest", config=config
    ) as running:
        message: Any = await anext(aiter(running))
        await given_away(broker)
        await rounds(broker)
        if end == "done":
            assert await holdings(broker, running, ORDERS) == {ORDERS}
            message.done()
        await eventually(lambda: running.assignment == {"billing": []})
    assert progress(broker) in ((1,) if end == "done" else (None, 0))
    assert ("still runs" in caplog.text) is (end == "never")


async def test_what_a_poll_has_handed_out_is_waited_for_until_the_next_poll(
    broker: FakeBroker,
) -> None:
    for _ in range(3):
        broker.put("Orders", b"x")
    config = replace(polling.SELDOM, hand_over_wait_s=WAIT_S)
    async with polling.member(broker, config=config) as running:
        assert len(await polling.collect(running, 2, 2)) == 2
        broker.on(ASK, ok(body=b"{}"))
        polling.with_others(broker, "000")
        broker.notify("replay")
        await broker.received(MEMBERS, len(broker.of(MEMBERS)) + 2)
        assert running.assignment == [ORDERS]
        assert await running.poll(0) == []
        await eventually(lambda: running.assignment == [])
    assert polling.progress(broker) == 2


async def test_what_an_application_commits_itself_counts_while_its_queue_is_being_given_up(
    broker: FakeBroker,
) -> None:
    for _ in range(3):
        broker.put("Orders", b"x")
    config = replace(polling.SELDOM, hand_over_wait_s=WAIT_S)
    async with polling.member(broker, config=config, auto_commit=False) as running:
        assert len(await polling.collect(running, 2, 2)) == 2
        broker.on(ASK, ok(body=b"{}"))
        polling.with_others(broker, "000")
        broker.notify("replay")
        await broker.received(MEMBERS, len(broker.of(MEMBERS)) + 2)
        await running.commit()
        assert await running.poll(0) == []
        await eventually(lambda: running.assignment == [])
    assert polling.progress(broker) == 2


async def test_an_orderly_queue_asks_nobody_its_lock_decides(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen = Seen()
    broker.put("Orders", b"x")
    with_others(broker, "zzz")
    async with consumer(broker, in_order(seen), config=LEASED):
        await seen.wait(1)
    assert broker.of(ASK) == []


async def test_a_close_waits_for_no_question(broker: FakeBroker) -> None:
    with_others(broker, "zzz")
    broker.on(ASK, SILENT)
    running = consumer(broker, to(Seen()), config=replace(QUICK, hand_over_wait_s=600.0))
    await running.start()
    await broker.received(ASK)
    async with asyncio.timeout(WAIT_S):
        await running.close()
