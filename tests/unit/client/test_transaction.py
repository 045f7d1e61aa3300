"""Transactions and checks, against a scripted broker."""

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import ogive
from ogive import aio
from ogive.client import transaction
from ogive.client.config import ClientConfig, ProducerConfig
from ogive.client.instance import ClientInstance
from ogive.errors import (
    IllegalStateError,
    InvalidOption,
    MessageIllegal,
    ResponseCode,
    SendFailed,
    SendTimeout,
)
from ogive.model import HALF_TOPIC, Message, MessageExt
from ogive.testing.fake_broker import HANG_UP, SILENT, WAIT_S, FakeBroker, error, ok
from ogive.wire.bodies.clients import HeartbeatData
from ogive.wire.codes import Decision, RequestCode, SysFlag
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import decode_header, encode_header
from ogive.wire.headers.send import (
    CheckTransactionStateRequest,
    EndTransactionRequest,
    SendMessageRequestV2,
    SendMessageResponse,
)
from ogive.wire.message import encode_stored, offset_message_id

SEND = RequestCode.SEND_MESSAGE_V2
END = RequestCode.END_TRANSACTION


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1}) as broker:
        broker.on(END, ok())
        yield broker


@pytest.fixture
async def producer(broker: FakeBroker) -> AsyncIterator[aio.Producer]:
    config = ProducerConfig(send_timeout_s=2.0)
    async with aio.Producer(
        broker.address, group="shop", check=lambda message: None, config=config
    ) as producer:
        yield producer


def end_of(request: RemotingCommand) -> EndTransactionRequest:
    return decode_header(EndTransactionRequest, request.ext_fields)


def decisions(broker: FakeBroker) -> list[int]:
    return [end_of(request).commit_or_rollback for request in broker.of(END)]


# --- the block ------------------------------------------------------------------------------------


async def test_leaving_the_block_commits_the_half_message_that_entering_stored(
    broker: FakeBroker, producer: aio.Producer
) -> None:
    async with producer.transaction(
        "Orders", b"4711", tag="paid", keys="4711", properties={"a": "b"}
    ) as transaction:
        [half] = broker.of(SEND)
        assert broker.of(END) == []
        assert not transaction.confirmed
    header = decode_header(SendMessageRequestV2, half.ext_fields)
    assert header.sys_flag == SysFlag.TRANSACTION_PREPARED
    properties = dict(
        entry.split("\x01") for entry in (header.properties or "").split("\x02") if entry
    )
    assert properties == {
        "UNIQ_KEY": transaction.id,
        "TAGS": "paid",
        "KEYS": "4711",
        "a": "b",
        "TRAN_MSG": "true",
        "PGROUP": "shop",
    }
    [stored] = broker.stored["Orders", 0]
    assert end_of(broker.of(END)[0]) == EndTransactionRequest(
        producer_group="shop",
        tran_state_table_offset=stored.queue_offset,
        commit_log_offset=stored.commitlog_offset,
        commit_or_rollback=Decision.COMMIT,
        msg_id=transaction.id,
        transaction_id=transaction.id,
        topic="Orders",
        broker_name="broker-a",
    )
    assert transaction.confirmed


async def test_an_exception_rolls_back_and_goes_on(
    broker: FakeBroker, producer: aio.Producer
) -> None:
    with pytest.raises(KeyError, match="no such order"):
        async with producer.transaction("Orders", b"x"):
            raise KeyError("no such order")
    assert decisions(broker) == [Decision.ROLLBACK]


async def test_a_block_can_roll_back_without_an_exception(
    broker: FakeBroker, producer: aio.Producer
) -> None:
    async with producer.transaction("Orders", b"x") as transaction:
        transaction.rollback()
    assert decisions(broker) == [Decision.ROLLBACK]


async def test_a_block_that_does_not_know_decides_nothing(
    broker: FakeBroker, producer: aio.Producer
) -> None:
    async with producer.transaction("Orders", b"x") as transaction:
        transaction.leave_open()
    assert not transaction.confirmed

    async def commit_timed_out() -> None:
        async with producer.transaction("Orders", b"x") as transaction:
            transaction.leave_open()
            raise ValueError("commit timed out")

    with pytest.raises(ValueError, match="commit timed out"):
        await commit_timed_out()
    assert broker.of(END) == []


async def test_a_cancelled_block_decides_nothing(
    broker: FakeBroker, producer: aio.Producer
) -> None:
    entered = asyncio.Event()

    async def work() -> None:
        async with producer.transaction("Orders", b"x"):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.wait_for(entered.wait(), WAIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert broker.of(END) == []


@pytest.mark.parametrize("answer", [error(ResponseCode.SYSTEM_ERROR), HANG_UP, SILENT])
async def test_an_end_that_nobody_confirms_is_left_to_the_check(
    broker: FakeBroker, producer: aio.Producer, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker.on(END, answer)
    async with producer.transaction("Orders", b"x", timeout_s=1.0) as transaction:
        pass
    assert not transaction.confirmed
    assert decisions(broker) == [Decision.COMMIT]
    assert (
        f"commit of transaction {transaction.id} is not confirmed, the broker will ask group shop "
        "for the result" in caplog.text
    )


@pytest.mark.parametrize("answer", [HANG_UP, SILENT])
async def test_a_half_message_whose_fate_is_unknown_is_not_sent_again(
    broker: FakeBroker, producer: aio.Producer, answer: Any
) -> None:
    """Two half messages would both be committed by the check."""
    broker.script(SEND, answer)
    entered = False
    with pytest.raises(
        SendTimeout, match=r"may or may not be stored.*nobody gets it unless the check"
    ):
        async with producer.transaction("Orders", b"x", timeout_s=1.0):
            entered = True
    assert not entered
    assert len(broker.of(SEND)) == 1
    assert broker.of(END) == []


async def test_a_half_message_that_a_busy_broker_refused_is_sent_again(
    broker: FakeBroker, producer: aio.Producer
) -> None:
    broker.script(SEND, error(ResponseCode.SYSTEM_BUSY), error(ResponseCode.SYSTEM_BUSY))
    async with producer.transaction("Orders", b"x"):
        pass
    assert len(broker.of(SEND)) == 3
    assert decisions(broker) == [Decision.COMMIT]


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ],
)
@pytest.mark.parametrize("retried", [False, True])
async def test_a_half_message_that_is_not_held_safely_is_rolled_back(
    broker: FakeBroker, code: ResponseCode, retried: bool
) -> None:
    """Also where other messages are tried again: a second half message would be committed by the
    check, beside the first.
    """
    answer = SendMessageResponse(
        msg_id="7F00000100002A9F0000000000000007", queue_id=0, queue_offset=3
    )
    broker.script(SEND, RemotingCommand(code, encode_header(answer)))
    entered = False
    config = ProducerConfig(send_timeout_s=2.0, retry_when_not_stored_ok=retried)
    async with aio.Producer(
        broker.address, group="shop", check=lambda message: None, config=config
    ) as producer:
        with pytest.raises(
            SendFailed, match=f"is rolled back: the broker does not hold it safely .{code.name}"
        ):
            async with producer.transaction("Orders", b"x"):
                entered = True
    assert not entered
    assert len(broker.of(SEND)) == 1
    [end] = [end_of(request) for request in broker.of(END)]
    assert (end.commit_or_rollback, end.commit_log_offset, end.tran_state_table_offset) == (
        Decision.ROLLBACK,
        7,
        3,
    )


async def test_messages_with_a_sharding_key_go_alone(
    broker: FakeBroker, producer: aio.Producer
) -> None:
    broker.hold(SEND)
    block = producer.transaction("Orders", b"half", sharding_key="a")
    first = asyncio.create_task(producer.send("Orders", b"1", sharding_key="a"))
    await broker.received(SEND)
    entering = asyncio.create_task(block.__aenter__())
    second = asyncio.create_task(producer.send("Orders", b"2", sharding_key="a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    broker.release(SEND)
    await asyncio.gather(first, entering, second)
    await block.__aexit__(None, None, None)
    assert broker.bodies("Orders") == {0: [b"1", b"half", b"2"]}
    assert [
        decode_header(SendMessageRequestV2, one.ext_fields).sys_flag for one in broker.of(SEND)
    ] == [0, 4, 0]
    assert broker.of(RequestCode.SEND_BATCH_MESSAGE) == []


async def test_what_cannot_be_is_refused_before_anything_is_sent(
    broker: FakeBroker, producer: aio.Producer
) -> None:
    with pytest.raises(InvalidOption, match="transactional or delayed"):
        producer.transaction(Message("Orders", b"x", delay_level=3))
    with pytest.raises(MessageIllegal):
        producer.transaction("Orders", b"x", properties={"TRAN_MSG": "true"})
    block = producer.transaction("Orders", b"x")
    for use in (block.rollback, block.leave_open, lambda: block.id):
        with pytest.raises(IllegalStateError, match="enter the block first"):
            use()
    assert broker.of(SEND) == []
    async with block:
        pass
    with pytest.raises(IllegalStateError, match="entered before"):
        await block.__aenter__()


# --- questions ------------------------------------------------------------------------------------


def ask(
    broker: FakeBroker,
    group: str = "shop",
    body: bytes = b"half",
    *,
    place: int = 5,
    sent_to: str | None = None,
) -> None:
    """A question about a half message of *group*, over the connection that *sent_to* (another
    group) has.
    """
    stored = broker.put(
        "Orders",
        body,
        properties=(
            f"UNIQ_KEY\x01{body.decode()}\x02PGROUP\x01{group}\x02TRAN_MSG\x01true\x02".encode()
        ),
    )
    header = CheckTransactionStateRequest(
        tran_state_table_offset=place,
        commit_log_offset=1000 + place,
        msg_id=body.decode(),
        transaction_id=body.decode(),
        offset_msg_id=offset_message_id(stored.store_host, 1000 + place),
        topic=HALF_TOPIC,
        broker_name="broker-a",
    )
    broker.producers[sent_to or group].send_nowait(
        RemotingCommand(header.code, encode_header(header), encode_stored(stored))
    )


async def met(broker: FakeBroker, *groups: str) -> None:
    await broker.until(lambda: broker.producers.keys() >= set(groups))


async def test_a_producer_that_has_sent_nothing_can_be_asked(broker: FakeBroker) -> None:
    """It may have been started to take the place of one that died."""
    async with aio.Producer(broker.address, group="shop", check=lambda message: True):
        await met(broker, "shop")
        beats = [
            HeartbeatData.decode(request.body) for request in broker.of(RequestCode.HEART_BEAT)
        ]
        assert all(beat.producers == ("shop",) for beat in beats)


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize(
    ("answer", "decision", "text"),
    [
        (True, Decision.COMMIT, ""),
        (False, Decision.ROLLBACK, ""),
        (None, Decision.UNKNOWN, ""),
        (
            "yes",
            Decision.UNKNOWN,
            "returned 'yes' for transaction half: expected True, False or None",
        ),
        (1, Decision.UNKNOWN, "returned 1 for"),
        (ValueError("no database"), Decision.UNKNOWN, "no database"),
        (
            asyncio.CancelledError(),
            Decision.UNKNOWN,
            "failed for transaction half: the result counts as unknown",
        ),
    ],
)
async def test_the_checks_answer_is_told_to_the_broker(
    broker: FakeBroker,
    is_async: bool,
    answer: Any,
    decision: Decision,
    text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[MessageExt] = []

    def plain(message: MessageExt) -> Any:
        seen.append(message)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def awaited(message: MessageExt) -> Any:
        return plain(message)

    check: Any = awaited if is_async else plain
    async with aio.Producer(broker.address, group="shop", check=check):
        await met(broker, "shop")
        ask(broker)
        [request] = await broker.received(END)
    assert request.is_oneway
    end = end_of(request)
    assert (end.producer_group, end.tran_state_table_offset, end.commit_log_offset) == (
        "shop",
        5,
        1005,
    )
    assert (end.commit_or_rollback, end.from_transaction_check, end.msg_id, end.transaction_id) == (
        decision,
        True,
        "half",
        "half",
    )
    assert [(message.topic, message.body, message.queue.broker_name) for message in seen] == [
        ("Orders", b"half", "broker-a")
    ]
    assert text in caplog.text
    assert bool(text) == any(record.levelno >= logging.ERROR for record in caplog.records)


async def test_a_transaction_whose_block_still_runs_here_is_not_known_yet(
    broker: FakeBroker,
) -> None:
    """The check finds nothing before the block commits; a "no" would lose the message."""
    asked: list[str] = []

    def check(message: MessageExt) -> bool:
        asked.append(message.id)
        return False

    async with aio.Producer(broker.address, group="shop", check=check) as producer:
        await met(broker, "shop")
        async with producer.transaction("Orders", b"4711") as transaction:
            ask(broker, body=transaction.id.encode())
            await broker.received(END)
            assert decisions(broker) == [Decision.UNKNOWN]
            assert asked == []
            transaction.leave_open()
        ask(broker, body=transaction.id.encode())
        await broker.until(lambda: len(broker.of(END)) == 2)
    assert decisions(broker) == [Decision.UNKNOWN, Decision.ROLLBACK]
    assert asked == [transaction.id]


@pytest.mark.parametrize("fails", ["entering", "leaving"])
async def test_a_transaction_that_failed_is_left_to_the_check(
    broker: FakeBroker, fails: str
) -> None:
    """A half message whose answer was lost has no block; an end that was not confirmed is over."""
    async with aio.Producer(broker.address, group="shop", check=lambda message: False) as producer:
        await met(broker, "shop")
        # the route is known then: a second of silence would end the connection of the question
        await producer.send("Orders", b"the first")
        transaction = producer.transaction("Orders", b"4711", timeout_s=0.3)
        broker.on(SEND if fails == "entering" else END, SILENT)
        with contextlib.suppress(SendTimeout):
            async with transaction:
                pass
        properties = decode_header(SendMessageRequestV2, broker.of(SEND)[-1].ext_fields).properties
        key = (properties or "").split("\x02")[0].removeprefix("UNIQ_KEY\x01")
        broker.requests.clear()
        ask(broker, body=key.encode())
        await broker.received(END)
        assert decisions(broker) == [Decision.ROLLBACK]


class AsyncCheck:
    async def __call__(self, message: MessageExt, *, answer: bool) -> bool:
        return answer


async def test_an_object_that_is_awaited_may_be_the_check(broker: FakeBroker) -> None:
    """Bound to its settings, too: what a listener may be, a check may be."""
    async with aio.Producer(
        broker.address, group="shop", check=functools.partial(AsyncCheck(), answer=True)
    ):
        await met(broker, "shop")
        ask(broker)
        [request] = await broker.received(END)
    assert end_of(request).commit_or_rollback == Decision.COMMIT


async def test_plain_checks_run_in_threads_and_no_more_than_allowed_at_a_time(
    broker: FakeBroker,
) -> None:
    started, go = threading.Semaphore(0), threading.Event()
    threads: set[int] = set()
    running: list[bytes] = []
    most = 0

    def check(message: MessageExt) -> bool:
        nonlocal most
        running.append(message.body)
        most = max(most, len(running))
        threads.add(threading.get_ident())
        started.release()
        assert go.wait(WAIT_S)
        running.remove(message.body)
        return True

    config = ProducerConfig(check_threads=2, max_checks_waiting=3)
    before = threading.active_count()
    async with aio.Producer(broker.address, group="shop", check=check, config=config) as producer:
        await met(broker, "shop")
        # Threads of earlier tests may end.
        assert threading.active_count() <= before
        for i in range(5):
            ask(broker, body=b"h%d" % i, place=i)
        assert await asyncio.to_thread(started.acquire, True, WAIT_S)
        assert await asyncio.to_thread(started.acquire, True, WAIT_S)
        await producer.send("Orders", b"the loop is free")
        assert not started.acquire(blocking=False)
        go.set()
        ended = await broker.received(END, 3)
    assert most == 2
    # the broker asks again about the others
    assert sorted(end_of(one).msg_id for one in ended) == ["h0", "h1", "h2"]
    assert threading.get_ident() not in threads


async def test_questions_that_wait_are_bounded_in_bytes(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker asks again about the others."""
    monkeypatch.setattr(transaction, "MAX_CHECKED_BYTES", 1)
    go, asked = threading.Event(), []

    def check(message: MessageExt) -> bool:
        asked.append(message.body)
        return go.wait(WAIT_S)

    config = ProducerConfig(check_threads=1)
    async with aio.Producer(broker.address, group="shop", check=check, config=config) as producer:
        await met(broker, "shop")
        for i in range(3):
            ask(broker, body=b"h%d" % i, place=i)
        await producer.send("Orders", b"all of them have come")
        go.set()
        await broker.received(END, 1)
        ask(broker, body=b"h3", place=3)
        await broker.received(END, 2)
    assert asked == [b"h0", b"h3"]


async def test_several_groups_of_one_client_are_asked_about_their_own(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[str, str]] = []

    def checker(group: str) -> Callable[[MessageExt], bool]:
        def check(message: MessageExt) -> bool:
            asked.append((group, message.id))
            return group == "shop"

        return check

    async with (
        ClientInstance(ClientConfig(name_server=broker.address)) as client,
        aio.Producer(group="shop", check=checker("shop"), client=client),
        aio.Producer(group="market", check=checker("market"), client=client),
    ):
        await met(broker, "shop", "market")
        ask(broker, "market", b"m", place=1)
        ask(broker, "shop", b"s", place=2, sent_to="market")
        ask(broker, "other", b"o", place=3, sent_to="market")
        await broker.received(END, 2)
    assert sorted(asked) == [("market", "m"), ("shop", "s")]
    ends = {end_of(one).msg_id: end_of(one) for one in broker.of(END)}
    assert {(key, end.producer_group, end.commit_or_rollback) for key, end in ends.items()} == {
        ("m", "market", 12),
        ("s", "shop", 8),
    }
    assert (
        "asks for the result of transaction o, and group other has no check in this process: the "
        "message is not delivered until" in caplog.text
    )


@pytest.mark.parametrize("group", [None, "shop"])
async def test_a_transaction_needs_somebody_who_can_answer_for_it(
    broker: FakeBroker, group: str | None
) -> None:
    """Else a process that dies behind its database's commit leaves a message that nobody ever
    gets.
    """
    async with aio.Producer(broker.address, group=group) as producer:
        with pytest.raises(
            InvalidOption,
            match=r"a transaction needs Producer\(group=..., check=...\): the check answers for it",
        ):
            producer.transaction("Orders", b"x")


async def test_a_check_needs_a_group_of_its_own(broker: FakeBroker) -> None:
    """Producers of other programs with the default group would be asked about transactions that
    they never saw.
    """
    with pytest.raises(InvalidOption, match="a producer group of its own"):
        aio.Producer(broker.address, check=lambda message: True)


async def test_a_closed_producer_answers_what_it_was_asked_before(broker: FakeBroker) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def check(message: MessageExt) -> bool:
        started.set()
        await go.wait()
        return True

    async with aio.Producer(broker.address, group="shop", check=check):
        await met(broker, "shop")
        ask(broker)
        await asyncio.wait_for(started.wait(), WAIT_S)
        go.set()
    assert decisions(broker) == [Decision.COMMIT]


async def test_checks_that_exit_leave_a_check_for_the_next_question(broker: FakeBroker) -> None:
    """``sys.exit()`` in an async check ends neither the program nor what answers the questions."""
    answers = [SystemExit(3), GeneratorExit(), asyncio.CancelledError()]

    async def check(message: MessageExt) -> bool:
        if answers:
            raise answers.pop(0)
        return True

    config = ProducerConfig(check_threads=1)
    async with aio.Producer(broker.address, group="shop", check=check, config=config):
        await met(broker, "shop")
        for asked in range(4):
            ask(broker)
            await broker.received(END, asked + 1)
    assert decisions(broker) == [Decision.UNKNOWN] * 3 + [Decision.COMMIT]


# --- blocking -------------------------------------------------------------------------------------


def test_the_blocking_transaction_has_the_same_words() -> None:
    def public(cls: type) -> set[str]:
        return {name for name in dir(cls) if not name.startswith("_")}

    assert public(ogive.Transaction) == public(transaction.Transaction)
    assert aio.Transaction is transaction.Transaction


async def test_blocking_transactions_commit_and_roll_back(broker: FakeBroker) -> None:
    def work() -> None:
        with ogive.Producer(broker.address, group="shop", check=lambda message: True) as producer:
            with producer.transaction("Orders", b"1") as first:
                pass
            assert first.confirmed
            with pytest.raises(KeyError), producer.transaction("Orders", b"2"):
                raise KeyError
            with producer.transaction("Orders", b"3") as third:
                third.rollback()
            with pytest.raises(KeyboardInterrupt), producer.transaction("Orders", b"4"):
                raise KeyboardInterrupt
            with producer.transaction("Orders", b"5") as fifth:
                fifth.leave_open()

    await asyncio.to_thread(work)
    assert decisions(broker) == [Decision.COMMIT, Decision.ROLLBACK, Decision.ROLLBACK]
