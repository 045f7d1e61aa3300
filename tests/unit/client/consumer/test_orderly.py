"""A push consumer with an orderly listener, against a broker that does what a test wants."""

import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from ogive.client.consumer import rebalance
from ogive.client.listener import COMMIT, DEAD_LETTER, LATER, ROLLBACK, AnyListener, later, suspend
from ogive.errors import InvalidOption, ResponseCode
from ogive.model import MessageExt, MessageQueue
from ogive.testing.fake_broker import SILENT, WAIT_S, FakeBroker, error, ok
from ogive.wire.bodies.clients import LockBatchBody, locked_queues_dumps
from ogive.wire.codes import RequestCode, SysFlag
from tests.unit.client.consumer.test_push_consumer import (
    QUICK,
    RETRY,
    SEND,
    UPDATE,
    Seen,
    consumer,
    eventually,
    progress,
    rounds,
    to,
    with_others,
)

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
LEASED = replace(QUICK, lock_renew_s=0.1, lock_lease_s=1.0)
# renewed often, and no lease ends within a test
RENEWED = replace(QUICK, lock_renew_s=0.1)
ORDERS = MessageQueue("Orders", "broker-a", 0)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1, RETRY: 1}) as broker:
        yield broker


def in_order(function: Any, **settings: Any) -> AnyListener:
    return to(function, orderly=True, suspend_s=0.01, **settings)


@pytest.mark.feature(11, 14, 81, 88, 92, 93, 101, 102, 105, 183)
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_queue_is_consumed_in_order_one_call_at_a_time(
    broker: FakeBroker, kind: str
) -> None:
    broker.topics["Orders"] = 4
    seen, busy, overlaps = Seen(), set[int](), list[int]()
    for i in range(600):
        broker.put("Orders", b"%d" % i, queue_id=i % 4)

    def work(message: MessageExt) -> None:
        queue_id = message.queue.queue_id
        if queue_id in busy:
            overlaps.append(queue_id)
        busy.add(queue_id)
        seen(message)
        busy.discard(queue_id)

    async def bill(message: MessageExt) -> None:
        work(message)

    async with consumer(broker, in_order(bill if kind == "async" else work)):
        await seen.wait(600)
        for i in range(600, 640):
            broker.put("Orders", b"%d" % i, queue_id=i % 4)
        await seen.wait(640)
    offsets = defaultdict(list)
    for message in seen.messages:
        offsets[message.queue.queue_id].append(message.queue_offset)
    assert dict(offsets) == {queue_id: list(range(160)) for queue_id in range(4)}
    assert overlaps == []
    assert [progress(broker, i) for i in range(4)] == [160] * 4


@pytest.mark.feature(86, 89)
@pytest.mark.parametrize(
    "answer", [LATER, suspend(0.0), suspend(), "nonsense", ValueError("boom")], ids=str
)
async def test_a_failed_message_comes_again_before_those_behind_it(
    broker: FakeBroker, answer: Any
) -> None:
    """With its tries counted, and without a limit unless one is set."""
    seen = Seen()
    for i in range(4):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> Any:
        seen(message)
        if message.queue_offset == 1 and message.reconsume_times < 20:
            if isinstance(answer, Exception):
                raise answer
            return answer
        return None

    async with consumer(broker, in_order(bill)):
        await seen.wait(24)
        await broker.until(lambda: progress(broker) == 4)
    assert seen.bodies == [b"0"] + [b"1"] * 21 + [b"2", b"3"]
    assert [m.reconsume_times for m in seen.messages if m.body == b"1"] == list(range(21))
    assert broker.of(SEND) == []


@pytest.mark.feature(85)
async def test_of_a_batch_only_what_is_not_done_comes_again(broker: FakeBroker) -> None:
    batches: list[list[int]] = []
    seen = Seen()
    for i in range(6):
        broker.put("Orders", b"%d" % i)

    def bill(messages: list[MessageExt]) -> Any:
        batches.append([m.queue_offset for m in messages])
        for message in messages:
            seen(message)
        return later(done=2) if messages[0].queue_offset == 0 else None

    async with consumer(broker, in_order(bill, batch=4)):
        await broker.until(lambda: progress(broker) == 6)
    assert batches == [[0, 1, 2, 3], [2, 3, 4, 5]]


@pytest.mark.feature(90)
@pytest.mark.parametrize(("answer", "tries"), [(LATER, 3), (DEAD_LETTER, 1)])
async def test_what_fails_too_often_goes_to_the_dead_letters_and_the_queue_moves_on(
    broker: FakeBroker, answer: Any, tries: int
) -> None:
    """More tries in the header than allowed are what makes a broker put it there."""
    seen = Seen()
    for i in range(3):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> Any:
        if message.topic == "Orders" and message.queue.topic == "Orders":
            seen(message)
            return answer if message.body == b"1" else None
        return None

    async with consumer(broker, in_order(bill, max_retries=2)):
        request = (await broker.received(SEND))[0]
        await broker.until(lambda: progress(broker) == 3)
    assert seen.bodies == [b"0"] + [b"1"] * tries + [b"2"]
    assert (request.ext_fields["b"], request.ext_fields["j"], request.ext_fields["l"]) == (
        RETRY,
        "3",
        "2",
    )
    assert "DELAY" not in request.ext_fields["i"]


async def test_a_dead_letter_that_no_broker_takes_is_tried_again(broker: FakeBroker) -> None:
    broker.script(SEND, *[error(ResponseCode.SYSTEM_ERROR)] * 3)
    for i in range(2):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> Any:
        return LATER if message.queue == ORDERS and message.queue_offset == 0 else None

    async with consumer(broker, in_order(bill, max_retries=0)):
        await broker.received(SEND, 4)
        await broker.until(lambda: progress(broker) == 2)
    assert len(broker.of(SEND)) == 4


# --- locks ----------------------------------------------------------------------------------------


@pytest.mark.feature(96, 103)
async def test_a_queue_that_cannot_be_locked_is_not_pulled(broker: FakeBroker) -> None:
    seen = Seen()
    broker.put("Orders", b"x")
    broker.on(
        LOCK,
        lambda r: ok(
            body=locked_queues_dumps(
                q for q in LockBatchBody.decode(r.body).queues if q.topic != "Orders"
            )
        ),
    )
    async with consumer(broker, in_order(seen)):
        await broker.received(LOCK, 4)
        assert not [
            r for r in broker.of(RequestCode.PULL_MESSAGE) if r.ext_fields["topic"] == "Orders"
        ]
        broker.on(LOCK, None)
        await seen.wait(1)


@pytest.mark.feature(24, 97, 104)
async def test_locks_are_renewed_and_given_back(broker: FakeBroker) -> None:
    async with consumer(broker, in_order(Seen()), config=RENEWED) as running:
        await eventually(lambda: len(running.assignment["billing"]) == 2)
        await broker.received(LOCK, len(broker.of(LOCK)) + 3)
    unlocked = {queue for r in broker.of(UNLOCK) for queue in LockBatchBody.decode(r.body).queues}
    assert unlocked == {ORDERS, MessageQueue(RETRY, "broker-a", 0)}


@pytest.mark.feature(82, 83)
async def test_no_call_begins_once_the_lease_is_over(broker: FakeBroker) -> None:
    """Renewals that get no answer: calls stop with the lease; after the next grant the queue starts
    anew, in order.
    """
    seen, step = Seen(), threading.Semaphore(0)
    for i in range(50):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> None:
        seen(message)
        step.acquire(timeout=WAIT_S)

    async with consumer(broker, in_order(bill), config=LEASED) as running:
        await seen.wait(1)
        queue = running._members[0].assignment[ORDERS]
        broker.on(LOCK, error(ResponseCode.SYSTEM_ERROR))
        await eventually(lambda: time.monotonic() > queue.leased_until)
        step.release()
        # busy again at once, and until the next step, if another call had begun
        await eventually(lambda: not queue.busy)
        assert seen.bodies == [b"0"]
        broker.on(LOCK, None)
        for _ in range(60):
            step.release()
        await seen.until(lambda: seen.bodies[-1] == b"49")
    first = seen.bodies[1]
    # at least once: the last call's result may not have been committed
    assert first in (b"0", b"1")
    assert seen.bodies[1:] == [b"%d" % i for i in range(int(first), 50)]


async def test_no_call_begins_after_the_machine_slept_through_the_lease(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the loop stood still meanwhile, that of the broker went on: somebody else may
    have the queue.
    """
    seen, step = Seen(), threading.Semaphore(0)
    broker.put("Orders", b"0")
    broker.put("Orders", b"1")

    def bill(message: MessageExt) -> None:
        seen(message)
        step.acquire(timeout=WAIT_S)

    async with consumer(
        broker, in_order(bill), config=replace(LEASED, lock_lease_s=WAIT_S, lock_renew_s=WAIT_S / 2)
    ) as running:
        await seen.wait(1)
        queue = running._members[0].assignment[ORDERS]
        monkeypatch.setattr(rebalance, "_slept_s", lambda: rebalance._BEFORE_S + 2 * WAIT_S)
        step.release(10)
        await eventually(lambda: not queue.busy)
        assert seen.bodies == [b"0"]


@pytest.mark.kills("case 16: a renewal does not start the queue again")
async def test_a_renewal_that_comes_back_after_the_lease_starts_the_queue_again(
    broker: FakeBroker,
) -> None:
    """It was asked for in time, so nobody else can have had the queue.

    Nothing new comes that would wake it.
    """
    seen, step = Seen(), threading.Semaphore(0)
    for i in range(3):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> None:
        seen(message)
        step.acquire(timeout=WAIT_S)

    async with consumer(broker, in_order(bill), config=LEASED) as running:
        await seen.wait(1)
        await eventually(lambda: len(running.assignment["billing"]) == 2)
        queue = running._members[0].assignment[ORDERS]
        broker.hold(LOCK)
        asked = len(broker.of(LOCK))
        await broker.received(LOCK, asked + 1)
        await eventually(lambda: time.monotonic() > queue.leased_until)
        step.release(10)
        await eventually(lambda: not queue.busy)
        assert seen.bodies == [b"0"]
        broker.release(LOCK)
        await seen.wait(3)
        await eventually(lambda: b"2" in seen.bodies)
        # the first may come again: its end was not yet told
        assert list(dict.fromkeys(seen.bodies)) == [b"0", b"1", b"2"]


@pytest.mark.feature(82, 104)
async def test_a_refused_renewal_ends_consumption_and_writes_no_progress(
    broker: FakeBroker,
) -> None:
    """Somebody else holds the queue: what we know of it is old."""
    seen, free = Seen(), threading.Event()
    broker.put("Orders", b"0")
    broker.put("Orders", b"1")

    def bill(message: MessageExt) -> None:
        seen(message)
        free.wait(WAIT_S)

    async with consumer(broker, in_order(bill), config=RENEWED) as running:
        await seen.wait(1)
        broker.on(LOCK, ok(body=locked_queues_dumps([])))
        await eventually(lambda: not running.assignment["billing"])
        broker.offsets["billing", "Orders", 0] = 1
        updates = len(broker.of(UPDATE))
        free.set()
        broker.on(LOCK, None)
        await seen.wait(2)
        assert seen.bodies == [b"0", b"1"]
        assert [
            r.ext_fields["commitOffset"]
            for r in broker.of(UPDATE)[updates:]
            if r.ext_fields["topic"] == "Orders"
        ][:1] != ["0"]


@pytest.mark.feature(104)
async def test_a_renewal_that_grants_some_of_the_queues_ends_the_others_alone(
    broker: FakeBroker,
) -> None:
    broker.topics["Orders"] = 3
    seen = Seen()
    async with consumer(broker, in_order(seen), config=RENEWED) as running:
        await eventually(lambda: len(running.assignment["billing"]) == 4)
        kept = [
            queue
            for queue in running.assignment["billing"]
            if queue != MessageQueue("Orders", "broker-a", 1)
        ]
        held = {queue: running._members[0].assignment[queue] for queue in kept}
        broker.on(
            LOCK,
            lambda request: ok(
                body=locked_queues_dumps(
                    [q for q in LockBatchBody.decode(request.body).queues if q in kept]
                )
            ),
        )
        await eventually(lambda: running.assignment["billing"] == kept)
        leased_until = {queue: process_queue.leased_until for queue, process_queue in held.items()}
        for queue_id in range(3):
            broker.put("Orders", b"%d" % queue_id, queue_id=queue_id)
        await seen.wait(2)
        await eventually(
            lambda: all(held[queue].leased_until > until for queue, until in leased_until.items())
        )
        await rounds(broker)
        assert sorted(seen.bodies) == [b"0", b"2"]
        # the same ones: they were not given up in between
        assert running._members[0].assignment == held
        broker.on(LOCK, None)
        await seen.wait(3)
    assert sorted(seen.bodies) == [b"0", b"1", b"2"]


@pytest.mark.feature(71, 98, 106)
async def test_two_calls_never_overlap_though_the_lock_was_lost_in_between(
    broker: FakeBroker,
) -> None:
    """The lock comes back while the old call still runs: the new one waits for it."""
    running_calls, most, free, seen = 0, 0, threading.Event(), Seen()
    broker.put("Orders", b"x")

    def bill(message: MessageExt) -> None:
        nonlocal running_calls, most
        running_calls += 1
        most = max(most, running_calls)
        seen(message)
        free.wait(WAIT_S)
        running_calls -= 1

    async with consumer(broker, in_order(bill), config=RENEWED) as running:
        await seen.wait(1)
        broker.on(LOCK, ok(body=locked_queues_dumps([])))
        await eventually(lambda: not running.assignment["billing"])
        broker.on(LOCK, None)
        await eventually(
            lambda: running.assignment["billing"] == [MessageQueue(RETRY, "broker-a", 0)]
        )
        await rounds(broker)
        assert ORDERS not in running.assignment["billing"]
        free.set()
        await seen.wait(2)
    assert most == 1


# --- hand-over ------------------------------------------------------------------------------------


@pytest.mark.feature(87, 99, 175)
async def test_a_hand_over_waits_for_the_running_call_and_commits_it(broker: FakeBroker) -> None:
    seen, free = Seen(), threading.Event()
    for i in range(5):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> None:
        seen(message)
        free.wait(WAIT_S)

    async with consumer(broker, in_order(bill)) as running:
        await seen.wait(1)
        await eventually(lambda: len(running.assignment["billing"]) == 2)
        with_others(broker, "000")
        broker.notify("billing")
        # the retry topic's queue is gone already
        await eventually(lambda: running.assignment["billing"] == [ORDERS])
        assert not any(ORDERS in LockBatchBody.decode(r.body).queues for r in broker.of(UNLOCK))
        free.set()
        await broker.until(
            lambda: any(ORDERS in LockBatchBody.decode(r.body).queues for r in broker.of(UNLOCK))
        )
        unlock = broker.of(UNLOCK)[-1]
    assert seen.bodies == [b"0"]
    assert progress(broker) == 1
    assert LockBatchBody.decode(unlock.body).queues == (ORDERS,)
    assert broker.requests.index(unlock) > max(
        i for i, r in enumerate(broker.requests) if r.code == UPDATE
    )


async def test_a_call_that_outlives_the_lease_loses_its_queue(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Without unlocking: the broker's own lease keeps others out a little longer.

    Its result does not count.
    """
    seen, free = Seen(), threading.Event()
    broker.put("Orders", b"x")

    def bill(message: MessageExt) -> None:
        seen(message)
        free.wait(WAIT_S)

    async with consumer(broker, in_order(bill), config=LEASED) as running:
        await seen.wait(1)
        await eventually(lambda: len(running.assignment["billing"]) == 2)
        with_others(broker, "000")
        broker.notify("billing")
        await eventually(lambda: not running.assignment["billing"])
        assert not any(ORDERS in LockBatchBody.decode(r.body).queues for r in broker.of(UNLOCK))
        free.set()
    assert progress(broker) in (None, 0)
    assert "our lock on it is over" in caplog.text


@pytest.mark.feature(100)
async def test_a_waiting_queue_is_handed_over_at_once(broker: FakeBroker) -> None:
    """Nothing runs while a queue waits for its next try."""
    seen = Seen()
    broker.put("Orders", b"x")

    def bill(message: MessageExt) -> Any:
        seen(message)
        return suspend(30.0)

    async with consumer(broker, in_order(bill)) as running:
        await seen.wait(1)
        await eventually(lambda: len(running.assignment["billing"]) == 2)
        with_others(broker, "000")
        broker.notify("billing")
        await eventually(lambda: not running.assignment["billing"])
    assert len(seen.messages) == 1


@pytest.mark.feature(91)
async def test_without_auto_commit_progress_moves_at_a_commit_only(broker: FakeBroker) -> None:
    """What was consumed since is delivered again to whoever comes next."""
    seen, again = Seen(), Seen()
    for i in range(6):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> Any:
        seen(message)
        return COMMIT if message.queue_offset == 3 else None

    async with consumer(broker, in_order(bill, auto_commit=False)):
        await seen.wait(6)
        await broker.until(lambda: progress(broker) == 4)
    assert seen.bodies == [b"%d" % i for i in range(6)]
    assert progress(broker) == 4
    async with consumer(broker, in_order(again, auto_commit=False)):
        await again.wait(2)
    assert again.bodies == [b"4", b"5"]
    assert progress(broker) == 4


@pytest.mark.feature(91)
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_rollback_has_all_that_is_not_committed_delivered_again_in_order(
    broker: FakeBroker, kind: str
) -> None:
    seen, rolled_back = Seen(), list[int]()
    for i in range(8):
        broker.put("Orders", b"%d" % i)

    def work(message: MessageExt) -> Any:
        seen(message)
        if message.queue_offset == 5 and not rolled_back:
            rolled_back.append(1)
            return ROLLBACK
        return COMMIT if message.queue_offset in (2, 7) else None

    async def bill(message: MessageExt) -> Any:
        return work(message)

    async with consumer(broker, in_order(bill if kind == "async" else work, auto_commit=False)):
        await broker.until(lambda: progress(broker) == 8)
    assert seen.bodies == [b"%d" % i for i in (0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7)]
    assert {message.reconsume_times for message in seen.messages} == {0}


@pytest.mark.feature(91)
async def test_a_failure_between_two_commits_comes_again_alone(broker: FakeBroker) -> None:
    seen = Seen()
    for i in range(4):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> Any:
        seen(message)
        if message.queue_offset == 2 and message.reconsume_times == 0:
            return suspend()
        return COMMIT if message.queue_offset == 3 else None

    async with consumer(broker, in_order(bill, auto_commit=False)):
        await seen.wait(3)
        assert progress(broker) in (None, 0)
        await broker.until(lambda: progress(broker) == 4)
    assert seen.bodies == [b"0", b"1", b"2", b"2", b"3"]


@pytest.mark.feature(88)
@pytest.mark.parametrize("answer", [COMMIT, ROLLBACK], ids=str)
async def test_an_end_that_nobody_asked_for_is_success_with_a_warning(
    broker: FakeBroker, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    broker.put("Orders", b"0")
    broker.put("Orders", b"1")

    def bill(message: MessageExt) -> Any:
        seen(message)
        return answer

    async with consumer(broker, in_order(bill)):
        await broker.until(lambda: progress(broker) == 2)
    assert seen.bodies == [b"0", b"1"]
    assert "which requires auto_commit=False: its 1 message(s) count as finished" in caplog.text


def test_only_orderly_listeners_end_their_messages_themselves() -> None:
    with pytest.raises(InvalidOption, match="auto_commit=False is for orderly listeners"):
        to(print, auto_commit=False)


async def test_a_broker_that_was_away_is_told_later_that_a_queue_is_free(
    broker: FakeBroker,
) -> None:
    """Else its next holder waits for the end of the lease."""
    seen = Seen()
    broker.put("Orders", b"0")
    broker.script(UNLOCK, *[error(ResponseCode.SYSTEM_ERROR)] * 3)
    async with consumer(broker, in_order(seen)) as running:
        await seen.wait(1)
        await eventually(lambda: len(running.assignment["billing"]) == 2)
        with_others(broker, "000")
        broker.notify("billing")
        await eventually(lambda: running.assignment["billing"] == [])
        await broker.received(UNLOCK, 4)
        last = LockBatchBody.decode(broker.of(UNLOCK)[-1].body).queues
        await eventually(lambda: not running._members[0]._rebalancer._locked_still)
    assert ORDERS in last


async def test_a_lock_that_is_lost_while_its_queue_is_given_up_harms_nothing(
    broker: FakeBroker,
) -> None:
    """The broker was restarted, say, and another member was quicker."""
    seen, free = Seen(), threading.Event()
    broker.put("Orders", b"0")

    def bill(message: MessageExt) -> None:
        seen(message)
        free.wait(WAIT_S)

    async with consumer(broker, in_order(bill), config=LEASED) as running:
        await seen.wait(1)
        await eventually(lambda: len(running.assignment["billing"]) == 2)
        broker.hold(LOCK)
        asked = len(broker.of(LOCK))
        await broker.received(LOCK, asked + 1)
        with_others(broker, "000")
        broker.notify("billing")
        queue = running._members[0].assignment[ORDERS]
        await eventually(lambda: not queue.active)
        broker.on(LOCK, ok(body=locked_queues_dumps([])))
        broker.release(LOCK)
        await eventually(lambda: not running.assignment["billing"])
        free.set()
        await rounds(broker)
        assert running._owner.client.failure is None
    assert not any(ORDERS in LockBatchBody.decode(r.body).queues for r in broker.of(UNLOCK))


@pytest.mark.parametrize("end", ["close", "unsubscribe"])
async def test_a_queue_stays_locked_while_its_listener_works_though_its_member_is_gone(
    broker: FakeBroker, end: str
) -> None:
    """Two members would work in it at once. The other queues are free for others."""
    broker.topics["Orders"] = 2
    seen, free = Seen(), threading.Event()
    broker.put("Orders", b"x")

    def bill(message: MessageExt) -> None:
        seen(message)
        free.wait(WAIT_S)

    listener = in_order(bill)
    async with consumer(
        broker, listener, config=replace(QUICK, await_termination_s=0.05)
    ) as running:
        await seen.wait(1)
        await eventually(lambda: len(running.assignment["billing"]) == 3)
        await (running.unsubscribe(listener) if end == "unsubscribe" else running.close())
        free.set()
    unlocked = {queue for r in broker.of(UNLOCK) for queue in LockBatchBody.decode(r.body).queues}
    assert unlocked == {MessageQueue("Orders", "broker-a", 1), MessageQueue(RETRY, "broker-a", 0)}


async def test_a_broker_that_hangs_keeps_no_queues_of_others_locked_at_the_close(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance, "LEAVE_TIMEOUT_S", 0.2)
    seen = Seen()
    async with FakeBroker({"Orders": 1}, name="broker-b") as hanging:
        broker.peers.append(hanging)
        for one in (broker, hanging):
            one.put("Orders", b"x")
        async with consumer(broker, in_order(seen)) as running:
            await seen.wait(2)
            await eventually(lambda: len(running.assignment["billing"]) == 3)
            hanging.mute = True
    assert ORDERS in {
        queue for r in broker.of(UNLOCK) for queue in LockBatchBody.decode(r.body).queues
    }


async def test_a_queue_of_nothing_but_what_cannot_be_read_is_not_worked_on_for_ever(
    broker: FakeBroker,
) -> None:
    """Its dead letter may be on its way for long: no worker turns round and round meanwhile."""
    seen = Seen()
    broker.on(RequestCode.CONSUMER_SEND_MSG_BACK, SILENT)
    broker.put("Orders", b"no zlib", sys_flag=SysFlag.COMPRESSED | SysFlag.ZLIB)
    async with consumer(
        broker, in_order(seen), config=replace(RENEWED, await_termination_s=0.05)
    ) as running:
        await broker.received(RequestCode.CONSUMER_SEND_MSG_BACK)
        # each renewal wakes the queue
        await broker.received(LOCK, len(broker.of(LOCK)) + 3)
        assert not running._members[0].assignment[ORDERS].busy
        broker.put("Orders", b"good")
        assert await seen.wait(1) == [b"good"]
