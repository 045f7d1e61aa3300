"""A consumer that is slower than its producers holds a bounded amount, and asks for no more."""

import logging
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.push_consumer import PushConsumer
from ogive.errors import InvalidOption
from ogive.model import MessageExt
from ogive.testing.fake_broker import WAIT_S, FakeBroker
from tests.unit.client.consumer.test_push_consumer import (
    PULL,
    QUICK,
    RETRY,
    Seen,
    consumer,
    eventually,
    rounds,
    to,
)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 2, "Refunds": 1, RETRY: 1}) as broker:
        yield broker


def held(running: PushConsumer, topic: str = "Orders") -> tuple[int, int]:
    """(messages, bytes) that are here and not finished."""
    queues = [
        p
        for member in running._members
        for queue, p in member.assignment.items()
        if queue.topic == topic
    ]
    return sum(p.count for p in queues), sum(p.bytes for p in queues)


@pytest.mark.feature(36, 37)
@pytest.mark.parametrize(
    ("limit", "most"),
    [
        # 25 messages of a queue and what a pull brings more; all of the other queue
        ({"max_cached_bytes": 25_000}, 30 + 5),
        # and what a pull of the other queue brings more
        ({"max_topic_messages": 25}, 30 + 10),
        ({"max_topic_bytes": 25_000}, 30 + 10),
        ({"max_total_bytes": 25_000}, 30 + 10),
        ({"max_span": 24}, 30 + 5),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_no_limit_is_passed_by_more_than_a_pull(
    broker: FakeBroker, limit: dict[str, Any], most: int
) -> None:
    """And no pull is sent while it is reached; other topics go on, and everything comes in the
    end.
    """
    free, seen, refunds = threading.Event(), Seen(), Seen()
    for i in range(100):
        broker.put("Orders", b"%d".ljust(1002) % i)
    for _ in range(5):
        broker.put("Orders", b"other", queue_id=1)

    def bill(message: MessageExt) -> None:
        free.wait(WAIT_S)
        seen(message)

    config = replace(QUICK, pull_batch_size=10, **limit)
    async with consumer(
        broker, to(bill, threads=1), to(refunds, topic="Refunds"), config=config
    ) as running:
        await eventually(lambda: held(running)[0] > 25)
        # time for pulls that must not be
        await rounds(broker)
        pulled = [r for r in broker.of(PULL) if r.ext_fields["topic"] == "Orders"]
        assert 25 < held(running)[0] <= most
        await rounds(broker)
        assert [r for r in broker.of(PULL) if r.ext_fields["topic"] == "Orders"] == pulled
        broker.put("Refunds", b"flows")
        await refunds.wait(1)
        free.set()
        await seen.wait(105)
        await eventually(lambda: held(running) == (0, 0))


@pytest.mark.feature(38)
async def test_waiting_for_room_is_told_seldom_and_without_bodies(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The first time; then every thousandth."""
    step, seen = threading.Semaphore(0), Seen()
    for i in range(100):
        broker.put("Orders", b"secret %d" % i)

    def bill(message: MessageExt) -> None:
        step.acquire(timeout=WAIT_S)
        seen(message)

    config = replace(QUICK, pull_batch_size=50, max_cached_messages=10)
    with caplog.at_level(logging.DEBUG, "ogive.client.consumer"):
        async with consumer(broker, to(bill, threads=1), config=config):
            # room is made 25 times, and each time it is too little
            for i in range(25):
                step.release()
                await seen.wait(i + 1)
            for _ in range(100):
                step.release()
            await seen.wait(100)
    told = [
        record.getMessage()
        for record in caplog.records
        if "is not pulled until" in record.getMessage()
    ]
    assert len(told) == 1
    assert (
        "Orders/broker-a/0 is not pulled until some messages are finished: it holds 50, of"
        in told[0]
    )
    assert "secret" not in caplog.text


@pytest.mark.feature(38)
async def test_what_is_full_all_the_time_is_told_once_more_after_a_thousand_times(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    step, seen = threading.Semaphore(0), Seen()
    for i in range(2_200):
        broker.put("Orders", b"%d" % i, queue_id=i % 2)

    caplog.set_level(logging.INFO, "ogive.client.consumer")

    def told() -> list[str]:
        return [
            record.getMessage()
            for record in caplog.records
            if "is not pulled until" in record.getMessage()
        ]

    def bill(message: MessageExt) -> None:
        step.acquire(timeout=WAIT_S)
        seen(message)

    config = replace(QUICK, pull_batch_size=1_024, max_cached_messages=10)
    async with consumer(broker, to(bill, threads=1), config=config):
        finished = 0
        # each makes room that is too little
        while len(told()) < 2 and finished < 2_000:
            finished += 1
            step.release()
            await seen.wait(finished)
        step.release(2_200)
        await seen.wait(2_200)
    assert [message.rpartition(", ")[2] for message in told()[:2]] == ["1 times)", "1001 times)"]
    assert len(told()) <= 3
    levels = [
        record.levelno for record in caplog.records if "is not pulled until" in record.getMessage()
    ]
    # the first time is no news: every backlog is more than a pull
    assert levels[:2] == [logging.INFO, logging.WARNING]


@pytest.mark.parametrize(
    "wrong", [{"max_topic_messages": 0}, {"max_topic_bytes": 0}, {"max_topic_messages": 10_000_000}]
)
def test_a_limit_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="max_topic"):
        ConsumerConfig(**wrong)
