"""What brokers and tools ask of a push consumer."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from ogive.client.consumer import member as consumer_member
from ogive.client.consumer.push_consumer import PushConsumer
from ogive.client.listener import LATER
from ogive.errors import ResponseCode
from ogive.model import MessageExt, MessageQueue
from ogive.testing.fake_broker import WAIT_S, FakeBroker
from ogive.wire.bodies.clients import ConsumerRunningInfo, LockBatchBody
from ogive.wire.bodies.json_fields import loads_object
from ogive.wire.bodies.stats import offset_table_dumps
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.message import encode_stored
from tests.unit.client.consumer.test_orderly import LEASED, ORDERS, in_order
from tests.unit.client.consumer.test_push_consumer import (
    RETRY,
    SEND_BACK,
    Seen,
    consumer,
    eventually,
    progress,
    to,
    with_others,
)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1, RETRY: 1}) as broker:
        yield broker


async def ask(
    broker: FakeBroker, running: PushConsumer, code: int, body: bytes = b"", **fields: str
) -> RemotingCommand:
    await broker.until(lambda: running.client_id in broker.members["billing"])
    return await broker.ask("billing", running.client_id, RemotingCommand(code, fields, body))


async def running_info(
    broker: FakeBroker, running: PushConsumer, **fields: str
) -> ConsumerRunningInfo:
    fields = {"consumerGroup": "billing", "clientId": running.client_id, **fields}
    answer = await ask(broker, running, RequestCode.GET_CONSUMER_RUNNING_INFO, b"", **fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return ConsumerRunningInfo.decode(answer.body)


# --- running info ---------------------------------------------------------------------------------


@pytest.mark.feature(1, 34)
async def test_running_info_tells_who_consumes_how(broker: FakeBroker) -> None:
    before = time.time_ns() // 1_000_000
    async with consumer(
        broker, to(Seen(), threads=3, max_retries=4, tags="paid", consume_timeout_s=90)
    ) as running:
        told = await running_info(broker, running)
    properties = told.properties
    assert before <= int(properties["PROP_CONSUMER_START_TIMESTAMP"]) <= time.time_ns() // 1_000_000
    assert (properties["PROP_CONSUME_TYPE"], properties["PROP_CONSUMEORDERLY"]) == (
        "CONSUME_PASSIVELY",
        "false",
    )
    assert (properties["PROP_NAMESERVER_ADDR"], properties["PROP_THREADPOOL_CORE_SIZE"]) == (
        broker.address,
        "3",
    )
    assert properties["PROP_CLIENT_VERSION"].startswith("ogive ")
    assert (properties["messageModel"], properties["consumeFromWhere"]) == (
        "CLUSTERING",
        "CONSUME_FROM_FIRST_OFFSET",
    )
    assert (
        properties["maxReconsumeTimes"],
        properties["consumeTimeout"],
        properties["pullThresholdForQueue"],
    ) == ("4", "1.5", "1000")
    assert {(s.topic, s.expression) for s in told.subscriptions} == {
        ("Orders", "paid"),
        (RETRY, "*"),
    }
    assert told.stacks is None


@pytest.mark.feature(39, 42, 59, 60, 69)
async def test_running_info_tells_what_is_held_and_how_fast_it_goes(broker: FakeBroker) -> None:
    """Two of five messages are at work, one of two finished ones failed."""
    seen, free = Seen(), threading.Event()
    for i in range(5):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> Any:
        if message.queue_offset in (2, 3):
            seen(message)
            free.wait(WAIT_S)
        return LATER if message.queue_offset == 1 else None

    async with consumer(broker, to(bill, threads=2)) as running:
        await seen.wait(2)
        await broker.received(SEND_BACK)
        await eventually(lambda: progress(broker) == 2)
        told = await running_info(broker, running)
        free.set()
        await eventually(lambda: progress(broker) == 5)
        after = await running_info(broker, running)
    held, status = told.queues[ORDERS], told.topics["Orders"]
    assert (
        held.commit_offset,
        held.cached_count,
        held.cached_min_offset,
        held.cached_max_offset,
    ) == (2, 3, 2, 4)
    assert (held.locked, held.dropped, held.taken_count) == (False, False, 0)
    assert min(held.last_pull_ms, held.last_consume_ms) > 0
    assert min(status.pull_rt, status.pull_tps, status.consume_rt) > 0
    assert status.consume_ok_tps == status.consume_failed_tps > 0
    assert status.consume_failed_count == 1
    assert set(told.topics) == {"Orders", RETRY}
    assert after.queues[ORDERS].cached_count == 0
    assert after.queues[ORDERS].last_consume_ms >= held.last_consume_ms


@pytest.mark.feature(64, 67)
async def test_running_info_of_an_orderly_group(broker: FakeBroker) -> None:
    """What its listener has taken, its lock, and how often the queue could not be given up."""
    seen, free = Seen(), threading.Event()
    for i in range(3):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> None:
        seen(message)
        free.wait(WAIT_S)

    async with consumer(broker, in_order(bill)) as running:
        await seen.wait(1)
        told = await running_info(broker, running)
        held = told.queues[ORDERS]
        assert told.properties["PROP_CONSUMEORDERLY"] == "true"
        assert (
            held.taken_min_offset,
            held.taken_max_offset,
            held.taken_count,
            held.cached_count,
        ) == (0, 2, 3, 0)
        assert held.last_lock_ms > 0
        assert (held.locked, held.failed_unlocks) == (True, 0)
        with_others(broker, "000")
        broker.notify("billing")
        async with asyncio.timeout(WAIT_S):
            while (await running_info(broker, running)).queues[ORDERS].failed_unlocks == 0:
                await asyncio.sleep(0.02)
        free.set()
        await broker.until(
            lambda: any(
                ORDERS in LockBatchBody.decode(r.body).queues
                for r in broker.of(RequestCode.UNLOCK_BATCH_MQ)
            )
        )


@pytest.mark.feature(70)
async def test_a_lock_that_is_not_renewed_shows(broker: FakeBroker) -> None:
    async with consumer(broker, in_order(Seen()), config=LEASED) as running:
        await eventually(lambda: len(running.assignment["billing"]) == 2)
        assert (await running_info(broker, running)).queues[ORDERS].locked
        broker.on(RequestCode.LOCK_BATCH_MQ, RemotingCommand(ResponseCode.SYSTEM_ERROR, {}))
        async with asyncio.timeout(WAIT_S):
            while (await running_info(broker, running)).queues[ORDERS].locked:
                await asyncio.sleep(0.02)


async def test_stacks_are_told_where_they_are_asked_for(broker: FakeBroker) -> None:
    seen, free = Seen(), threading.Event()
    broker.put("Orders", b"x")

    def stuck_in_here(message: MessageExt) -> None:
        seen(message)
        free.wait(WAIT_S)

    async with consumer(broker, to(stuck_in_here)) as running:
        await seen.wait(1)
        told = await running_info(broker, running, jstackEnable="true")
        free.set()
    assert told.stacks is not None
    assert "stuck_in_here" in told.stacks
    assert "task billing: rebalance" in told.stacks


# --- offsets --------------------------------------------------------------------------------------


async def test_the_status_is_how_far_the_group_got(broker: FakeBroker) -> None:
    seen = Seen()
    for i in range(3):
        broker.put("Orders", b"%d" % i)
    async with consumer(broker, to(seen)) as running:
        await seen.wait(3)
        await eventually(lambda: progress(broker) == 3)
        answer = await ask(
            broker,
            running,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            topic="Orders",
            group="billing",
        )
        other = await ask(
            broker,
            running,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            topic="Refunds",
            group="billing",
        )
        refused = await ask(
            broker,
            running,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            topic="Orders",
            group="nobody",
        )
    assert loads_object(answer.body)["messageQueueTable"] == {
        '{"brokerName":"broker-a","queueId":0,"topic":"Orders"}': 3
    } or answer.body == (
        b'{"consumerTable":{},"messageQueueTable":{{"brokerName":"broker-a","queueId":0,'
        b'"topic":"Orders"}:3}}'
    )
    assert loads_object(other.body)["messageQueueTable"] == {}
    assert refused.code == ResponseCode.SYSTEM_ERROR


def tell_reset(broker: FakeBroker, running: PushConsumer, table: dict[MessageQueue, int]) -> None:
    fields = {"topic": "Orders", "group": "billing", "timestamp": "0"}
    request = RemotingCommand(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, offset_table_dumps(table)
    )
    broker.members["billing"][running.client_id].send_nowait(request)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_reset_moves_held_queues_and_the_groups_progress(
    broker: FakeBroker, orderly: bool
) -> None:
    """Back and forth; queues of other topics, and those that others hold, are left alone."""
    seen = Seen()
    broker.topics["Orders"] = 2
    for i in range(5):
        broker.put("Orders", b"%d" % i)
    broker.put("Orders", b"other", queue_id=1)
    async with consumer(broker, in_order(seen) if orderly else to(seen)) as running:
        await seen.wait(6)
        await eventually(lambda: progress(broker) == 5 and progress(broker, 1) == 1)
        tell_reset(
            broker,
            running,
            {
                ORDERS: 2,
                MessageQueue("Refunds", "broker-a", 0): 0,
                MessageQueue("Orders", "broker-z", 0): 0,
            },
        )
        await seen.wait(9)
        await eventually(lambda: progress(broker) == 5)
        tell_reset(broker, running, {ORDERS: 7})
        await eventually(lambda: progress(broker) == 7)
        for i in range(5, 8):
            broker.put("Orders", b"%d" % i)
        await seen.wait(10)
        await eventually(lambda: progress(broker) == 8)
    assert sorted(seen.bodies[:6]) == [b"0", b"1", b"2", b"3", b"4", b"other"]
    assert sorted(seen.bodies[6:9]) == [b"2", b"3", b"4"]
    assert seen.bodies[9:] == [b"7"]
    assert progress(broker, 1) == 1
    assert "Refunds" not in {topic for _, topic, _ in broker.offsets}


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_call_that_runs_during_a_reset_does_not_count(
    broker: FakeBroker, orderly: bool
) -> None:
    seen, free = Seen(), threading.Event()
    for i in range(5):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> None:
        seen(message)
        if message.queue_offset == 0:
            free.wait(WAIT_S)

    listener = in_order(bill, threads=1) if orderly else to(bill, threads=1)
    async with consumer(broker, listener) as running:
        await seen.wait(1)
        tell_reset(broker, running, {ORDERS: 3})
        await eventually(lambda: progress(broker) == 3)
        free.set()
        await eventually(lambda: progress(broker) == 5)
    assert seen.bodies == [b"0", b"3", b"4"]


# --- one message, directly ------------------------------------------------------------------------


async def consume(
    broker: FakeBroker, running: PushConsumer, topic: str = "Orders", properties: bytes = b""
) -> dict[str, Any]:
    broker.topics.setdefault("Elsewhere", 1)
    message = broker.put("Elsewhere", b"4711", properties=properties)
    body = encode_stored(replace(message, topic=topic))
    fields = {
        "consumerGroup": "billing",
        "clientId": running.client_id,
        "brokerName": "broker-a",
        "msgId": "x",
    }
    answer = await ask(broker, running, RequestCode.CONSUME_MESSAGE_DIRECTLY, body, **fields)
    return (
        loads_object(answer.body)
        if answer.code == ResponseCode.SUCCESS
        else {"code": answer.code, "remark": answer.remark}
    )


async def test_so_many_messages_are_consumed_directly_at_a_time_and_no_more(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No limit of a queue counts them."""
    monkeypatch.setattr(consumer_member, "MAX_CALLED_DIRECTLY", 1)
    begun, go = asyncio.Event(), asyncio.Event()

    async def bill(message: MessageExt) -> None:
        begun.set()
        await go.wait()

    async with consumer(broker, to(bill)) as running:
        first = asyncio.create_task(consume(broker, running))
        await begun.wait()
        refused = await consume(broker, running)
        go.set()
        assert (await first)["consumeResult"] == "CR_SUCCESS"
        assert "1 messages that tools have given to it already" in refused["remark"]
        assert (await consume(broker, running))["consumeResult"] == "CR_SUCCESS"


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (None, "CR_SUCCESS"),
        (LATER, "CR_LATER"),
        (42, "CR_LATER"),
        (ValueError("boom"), "CR_THROW_EXCEPTION"),
    ],
    ids=["None", "LATER", "42", "raising"],
)
async def test_a_message_is_consumed_outside_of_any_queue(
    broker: FakeBroker, kind: str, answer: Any, result: str
) -> None:
    """The tool learns what the listener made of it; nothing is sent back and no progress moves."""
    seen = Seen()

    def bill(message: MessageExt) -> Any:
        seen(message)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def bill_async(message: MessageExt) -> Any:
        return bill(message)

    async with consumer(broker, to(bill if kind == "plain" else bill_async)) as running:
        await eventually(lambda: len(running.assignment["billing"]) == 2)
        told = await consume(broker, running)
    assert (told["consumeResult"], told["order"], told["autoCommit"]) == (result, False, True)
    assert told["spentTimeMills"] >= 0
    assert ("boom" in told["remark"]) == (result == "CR_THROW_EXCEPTION")
    assert seen.bodies == [b"4711"]
    assert not broker.of(SEND_BACK)
    assert progress(broker) in (None, 0)


async def test_a_dead_letter_goes_to_the_listener_of_its_first_topic(broker: FakeBroker) -> None:
    seen = Seen()
    async with consumer(broker, in_order(lambda messages: seen(messages[0]), batch=8)) as running:
        told = await consume(broker, running, "%DLQ%billing", b"RETRY_TOPIC\x01Orders\x02")
    assert (told["consumeResult"], told["order"]) == ("CR_SUCCESS", True)
    assert seen.messages[0].topic == "Orders"


async def test_a_message_that_nobody_listens_to_is_refused(broker: FakeBroker) -> None:
    async with consumer(broker, to(Seen())) as running:
        told = await consume(broker, running, "Refunds")
    assert told["code"] == ResponseCode.SYSTEM_ERROR
    assert "no listener of Refunds" in told["remark"]


async def test_an_iterated_consumer_cannot_be_given_a_message(broker: FakeBroker) -> None:
    async with consumer(broker, "Orders", group="billing") as running:
        told = await consume(broker, running)
    assert "no listener" in told["remark"]
