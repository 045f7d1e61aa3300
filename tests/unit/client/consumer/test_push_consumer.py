"""A push consumer with concurrent listeners, against a broker that does what a test wants."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ogive.client.config import ClientConfig
from ogive.client.consumer import push_consumer, workers
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.group_client import GroupClient
from ogive.client.consumer.push_consumer import PushConsumer, run
from ogive.client.consumer.workers import IDLE_NAME
from ogive.client.instance import ClientInstance
from ogive.client.listener import DEAD_LETTER, LATER, AnyListener, later, listener
from ogive.client.producer import Producer
from ogive.errors import IllegalStateError, InvalidOption, NoNameServer, NoRoute, ResponseCode
from ogive.model import MessageExt, MessageQueue, PullResult
from ogive.testing.fake_broker import SILENT, WAIT_S, FakeBroker, error, ok
from ogive.wire.bodies.clients import HeartbeatData, SubscriptionData, consumer_ids_dumps
from ogive.wire.bodies.json_fields import dumps
from ogive.wire.bodies.routes import BrokerData, QueueData, TopicRouteData
from ogive.wire.codes import PullSysFlag, RequestCode, SysFlag
from ogive.wire.command import RemotingCommand
from ogive.wire.compression import compress, decompress
from ogive.wire.headers.codec import decode_header, encode_header
from ogive.wire.headers.pull import PullMessageResponse
from ogive.wire.headers.send import SendMessageRequestV2, SendMessageResponse
from ogive.wire.message import decode_properties, offset_message_id

PULL = RequestCode.PULL_MESSAGE
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
SEND = RequestCode.SEND_MESSAGE_V2
QUERY = RequestCode.QUERY_CONSUMER_OFFSET
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP
RETRY = "%RETRY%billing"

QUICK = ConsumerConfig(
    rebalance_pause_s=0.01,
    hand_over_pause_s=0.01,
    pull_retry_s=0.01,
    persist_period_s=0.02,
    send_back_retry_s=0.02,
    hand_over_wait_s=WAIT_S,
    await_termination_s=WAIT_S,
    pull_suspend_s=5.0,
)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1, RETRY: 1}) as broker:
        yield broker


class Seen:
    """What a listener got; ``wait(n)`` returns when it has got n messages."""

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []
        self._loop = asyncio.get_running_loop()
        self._more = asyncio.Event()

    def __call__(self, message: MessageExt) -> None:
        self.messages.append(message)
        self._loop.call_soon_threadsafe(self._more.set)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    async def wait(self, count: int) -> list[bytes]:
        await self.until(lambda: len(self.messages) >= count)
        return self.bodies

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._more.clear()
                await self._more.wait()


def to(function: Callable[..., Any], **settings: Any) -> AnyListener:
    return listener(**{"topic": "Orders", "group": "billing", "start": "earliest", **settings})(
        function
    )


def consumer(
    broker: FakeBroker,
    *listeners: AnyListener | str,
    config: ConsumerConfig = QUICK,
    **settings: Any,
) -> PushConsumer:
    return PushConsumer(*listeners, name_server=broker.address, config=config, **settings)


def progress(broker: FakeBroker, queue_id: int = 0, topic: str = "Orders") -> int | None:
    return broker.offsets.get(("billing", topic, queue_id))


def of_orders(broker: FakeBroker) -> list[RemotingCommand]:
    return [update for update in broker.of(UPDATE) if update.ext_fields["topic"] == "Orders"]


async def rounds(broker: FakeBroker) -> None:
    """Until the consumer has looked at its group three times more: what it was about to do at once
    is done, the rounds among it.
    """
    for _ in range(3):
        before = len(broker.of(MEMBERS))
        broker.notify("billing")
        await broker.received(MEMBERS, before + 1)


def at_most(threads: int, tasks: int) -> bool:
    return threading.active_count() <= threads and len(asyncio.all_tasks()) <= tasks


async def eventually(condition: Callable[[], bool]) -> None:
    """For what no request of the broker announces."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


# --- the normal way -------------------------------------------------------------------------------


@pytest.mark.feature(11, 30, 52, 142)
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_messages_are_delivered_and_progress_is_committed_at_close(
    broker: FakeBroker, kind: str
) -> None:
    seen = Seen()
    for i in range(100):
        broker.put("Orders", b"%d" % i)

    async def bill(message: MessageExt) -> None:
        seen(message)

    async with consumer(broker, to(bill if kind == "async" else seen)) as running:
        await seen.wait(100)
        broker.put("Orders", b"late")
        await seen.wait(101)
        both = [MessageQueue(RETRY, "broker-a", 0), MessageQueue("Orders", "broker-a", 0)]
        await eventually(lambda: running.assignment == {"billing": both})
    assert sorted(seen.bodies) == sorted([b"%d" % i for i in range(100)] + [b"late"])
    assert progress(broker) == 101
    assert not broker.members["billing"]


@pytest.mark.feature(7, 32, 162)
async def test_what_the_heartbeat_says(broker: FakeBroker) -> None:
    """Passive, clustering, the topic with its tags, and the retry topic."""
    async with consumer(broker, to(Seen(), tags="paid || refunded")):
        request = (await broker.received(RequestCode.HEART_BEAT))[0]
    data = HeartbeatData.decode(request.body).consumers[0]
    assert (data.group, data.consume_type, data.message_model) == (
        "billing",
        "CONSUME_PASSIVELY",
        "CLUSTERING",
    )
    assert {(s.topic, s.tags) for s in data.subscriptions} == {
        ("Orders", ("paid", "refunded")),
        (RETRY, ()),
    }


async def test_a_group_that_starts_latest_skips_what_is_there(broker: FakeBroker) -> None:
    seen = Seen()
    broker.put("Orders", b"old")
    async with consumer(broker, to(seen, start="latest")):
        await broker.until(lambda: any(r.ext_fields["topic"] == "Orders" for r in broker.of(PULL)))
        broker.put("Orders", b"new")
        assert await seen.wait(1) == [b"new"]


async def test_a_known_offset_is_where_the_group_goes_on(broker: FakeBroker) -> None:
    seen = Seen()
    for i in range(5):
        broker.put("Orders", b"%d" % i)
    broker.offsets["billing", "Orders", 0] = 3
    async with consumer(broker, to(seen, threads=1)):
        assert await seen.wait(2) == [b"3", b"4"]


@pytest.mark.feature(26)
async def test_a_topic_that_comes_later_is_consumed_then(broker: FakeBroker) -> None:
    seen = Seen()
    async with consumer(broker, to(seen, topic="Later")):
        broker.topics["Later"] = 1
        broker.put("Later", b"first")
        assert await seen.wait(1) == [b"first"]


@pytest.mark.feature(26)
async def test_a_topic_that_does_not_exist_is_reported_and_disturbs_nobody(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A producer and another consumer share the client."""
    seen, later = Seen(), Seen()
    async with (
        ClientInstance(ClientConfig(name_server=broker.address)) as client,
        Producer(client=client) as producer,
        PushConsumer(to(seen, group="others"), client=client, config=QUICK),
    ):
        broker.topics["%RETRY%others"] = 1
        await producer.send("Orders", b"before")
        await seen.wait(1)
        async with PushConsumer(to(later, topic="Absent"), client=client, config=QUICK) as running:
            [report] = [
                r for r in caplog.records if "group billing waits for its topic" in r.getMessage()
            ]
            assert (report.levelno, 'topic "Absent" has no route' in report.getMessage()) == (
                logging.WARNING,
                True,
            )
            for body in (b"1", b"2"):
                await producer.send("Orders", body)
                await rounds(broker)
            await seen.wait(3)
            assert [
                queue.topic for queue in running.assignment["billing"] if queue.topic != RETRY
            ] == []
        await producer.send("Orders", b"after")
        await seen.wait(4)
    assert later.messages == []


@pytest.mark.feature(40, 44, 46)
async def test_tags_with_equal_hashes_are_told_apart_and_count_as_progress(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker filters by hash; AaAa and BBBB have the same.

    Members that subscribe differently show the same way, so the log says so.
    """
    seen = Seen()
    for tag in (b"AaAa", b"BBBB", b"AaAa", b"BBBB"):
        broker.put("Orders", tag, properties=b"TAGS\x01" + tag + b"\x02")
    async with consumer(broker, to(seen, tags="AaAa")):
        assert await seen.wait(2) == [b"AaAa", b"AaAa"]
        await broker.until(lambda: progress(broker) == 4)
    assert caplog.text.count("must have the same subscriptions") == 1


async def test_pulls_carry_no_progress(broker: FakeBroker) -> None:
    """A broker with several threads may take what a pull carries after a later update, and the
    group's progress would move back.
    """
    seen = Seen()
    async with consumer(broker, to(seen)):
        for i in range(50):
            broker.put("Orders", b"%d" % i)
            await seen.wait(i + 1)
        await broker.until(lambda: progress(broker) == 50)
    assert not any(
        int(pull.ext_fields["sysFlag"]) & PullSysFlag.COMMIT_OFFSET for pull in broker.of(PULL)
    )


async def test_progress_that_does_not_change_is_told_again_seldom(broker: FakeBroker) -> None:
    seen = Seen()
    broker.put("Orders", b"x")
    async with consumer(broker, to(seen), config=replace(QUICK, persist_again_s=60)):
        await seen.wait(1)
        await broker.until(lambda: progress(broker) == 1)
        broker.put("Orders", b"y")
        await broker.until(lambda: progress(broker) == 2)
        # the first: where the group begins
        assert len(of_orders(broker)) == 3
    assert len(of_orders(broker)) == 4


@pytest.mark.feature(50, 54, 77, 146, 153)
async def test_a_batch_listener_gets_lists_and_only_the_failed_part_comes_back(
    broker: FakeBroker,
) -> None:
    """done=5 of a batch of 8: exactly the messages from the sixth on are sent back."""
    sizes: list[int] = []
    seen = Seen()
    for i in range(16):
        broker.put("Orders", b"%d" % i)

    def bill(messages: list[MessageExt]) -> Any:
        sizes.append(len(messages))
        for message in messages:
            seen(message)
        return later(2, done=5) if messages[0].queue_offset == 0 else None

    async with consumer(broker, to(bill, batch=8)):
        await seen.wait(16)
        sent_back = await broker.received(SEND_BACK, 3)
        await broker.until(lambda: progress(broker) == 16)
    assert sizes == [8, 8]
    offsets = sorted(int(request.ext_fields["offset"]) for request in sent_back)
    assert offsets == [m.commitlog_offset for m in broker.stored["Orders", 0][5:8]]
    assert {request.ext_fields["delayLevel"] for request in sent_back} == {"2"}


@pytest.mark.feature(145)
async def test_what_a_listener_does_to_its_list_changes_nothing(broker: FakeBroker) -> None:
    """It is the listener's own; all of its messages count as finished."""
    seen = Seen()
    for i in range(8):
        broker.put("Orders", b"%d" % i)

    def bill(messages: list[MessageExt]) -> None:
        for message in messages:
            seen(message)
        messages.clear()

    async with consumer(broker, to(bill, batch=8)):
        assert await seen.wait(8) == [b"%d" % i for i in range(8)]
        await broker.until(lambda: progress(broker) == 8)
    assert len(seen.messages) == 8


# --- failures -------------------------------------------------------------------------------------


def raises(_: MessageExt) -> None:
    raise ValueError("not today")


@pytest.mark.feature(53, 77)
@pytest.mark.parametrize(
    ("function", "level"),
    [
        (raises, "0"),
        (lambda _: LATER, "0"),
        (lambda _: later(4), "4"),
        (lambda _: DEAD_LETTER, "-1"),
        (lambda _: False, "0"),
    ],
    ids=["raising", "LATER", "later(4)", "DEAD_LETTER", "False"],
)
async def test_what_counts_as_failure_is_sent_back(
    broker: FakeBroker,
    function: Callable[[MessageExt], Any],
    level: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker.put("Orders", b"x")
    async with consumer(broker, to(function, max_retries=5)):
        request = (await broker.received(SEND_BACK))[0]
        await broker.until(lambda: progress(broker) == 1)
    fields = request.ext_fields
    assert (
        fields["group"],
        fields["delayLevel"],
        fields["maxReconsumeTimes"],
        fields["originTopic"],
    ) == ("billing", level, "5", "Orders")
    assert len(broker.of(SEND_BACK)) == 1
    assert ("is given up" in caplog.text) == (level == "-1")


class Unprintable(Exception):
    """As a row of a session that was closed."""

    def __repr__(self) -> str:
        raise RuntimeError("detached")

    __str__ = __repr__


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("what", ["returned", "raised"])
async def test_what_has_no_repr_ends_no_worker(
    broker: FakeBroker, what: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    broker.put("Orders", b"bad")
    broker.put("Orders", b"good")

    def work(message: MessageExt) -> Any:
        seen(message)
        if message.body == b"bad" and what == "raised":
            raise Unprintable
        return Unprintable() if message.body == b"bad" else None

    async def bill(message: MessageExt) -> Any:
        return work(message)

    async with consumer(broker, to(work if kind == "plain" else bill, threads=1)):
        assert await seen.wait(2) == [b"bad", b"good"]
        await broker.received(SEND_BACK)
        await broker.until(lambda: progress(broker) == 2)
    assert "<Unprintable, whose repr raises RuntimeError>" in caplog.text


async def test_a_cancellation_that_a_listener_leaves_behind_ends_no_worker(
    broker: FakeBroker,
) -> None:
    """Libraries that cancel for a timeout, and do not take it back; then an inner future that
    somebody cancelled.
    """
    seen = Seen()
    for body in (b"timeout", b"inner", b"good"):
        broker.put("Orders", body)

    async def bill(message: MessageExt) -> None:
        seen(message)
        task = asyncio.current_task()
        assert task is not None
        if message.body == b"timeout":
            task.cancel()
            try:
                await asyncio.sleep(WAIT_S)
            except asyncio.CancelledError:
                return
        if message.body == b"inner":
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

    async with consumer(broker, to(bill, threads=1)):
        await seen.wait(3)
        await broker.until(lambda: progress(broker) == 3)
    assert seen.bodies == [b"timeout", b"inner", b"good"]
    assert len(broker.of(SEND_BACK)) == 1


@pytest.mark.parametrize("when", ["in the call", "after it"])
async def test_a_worker_that_was_cancelled_is_replaced(
    broker: FakeBroker, when: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody could tell it from our own cancellation. What it had in hand comes again."""
    monkeypatch.setattr(workers, "_REPLACE_S", 0.01)
    seen = Seen()
    broker.put("Orders", b"cancels")

    async def bill(message: MessageExt) -> None:
        seen(message)
        task = asyncio.current_task()
        assert task is not None
        if message.body == b"cancels":
            task.cancel()
            if when == "in the call":
                await asyncio.sleep(WAIT_S)

    async with consumer(broker, to(bill, threads=1)):
        await eventually(lambda: "is replaced" in caplog.text)
        broker.put("Orders", b"good")
        assert await seen.wait(2) == [b"cancels", b"good"]
        await broker.until(lambda: progress(broker) == 2)
    assert len(broker.of(SEND_BACK)) == (when == "in the call")


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (raises, "ValueError('not today')"),
        (lambda _: LATER, "its listener asked for another try"),
        (lambda _: DEAD_LETTER, "its listener gave it up"),
        (lambda _: False, "its listener returned False, which is not a result"),
    ],
    ids=["raising", "LATER", "DEAD_LETTER", "False"],
)
@pytest.mark.parametrize("orderly", [False, True])
async def test_the_log_tells_the_last_try_from_those_before_it(
    broker: FakeBroker,
    function: Callable[[MessageExt], Any],
    why: str,
    orderly: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once a broker has the message, and only when no other try follows."""
    # the way of an orderly group
    broker.on(SEND, ok(SendMessageResponse(msg_id="0" * 32, queue_id=0, queue_offset=0)))
    tried = 0 if orderly else 3
    broker.put("Orders", b"x", properties=b"UNIQ_KEY\x01K1\x02")
    broker.stored["Orders", 0][0].reconsume_times = tried
    async with consumer(broker, to(function, max_retries=tried, orderly=orderly)):
        await broker.until(lambda: progress(broker) == 1)
    tries = "4 tries" if tried else "1 try"
    assert (
        f"Orders/broker-a/0/0 (id K1) is given up after {tries} and is in %DLQ%billing now: {why}"
        in caplog.text
    )


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_body_that_cannot_be_read_is_a_dead_letter_and_holds_up_nobody(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, orderly: bool
) -> None:
    """No listener gets it; progress waits until a broker has it.

    If the broker cannot, a copy goes as it is.
    """
    seen = Seen()
    broker.on(SEND_BACK, error(ResponseCode.SYSTEM_ERROR))
    # for the dead-letter topic
    broker.on(SEND, ok(SendMessageResponse(msg_id="0" * 32, queue_id=0, queue_offset=0)))
    broker.put("Orders", b"first")
    broker.put("Orders", b"no zlib", sys_flag=SysFlag.COMPRESSED | SysFlag.ZLIB)
    broker.put("Orders", b"last")
    async with consumer(broker, to(seen, threads=1, orderly=orderly, max_retries=5)):
        assert await seen.wait(2) == [b"first", b"last"]
        copy = (await broker.received(SEND))[0]
        await broker.until(lambda: progress(broker) == 3)
    assert broker.of(SEND_BACK)[0].ext_fields["delayLevel"] == "-1"
    header = decode_header(SendMessageRequestV2, copy.ext_fields)
    assert (copy.body, header.topic, header.sys_flag, header.reconsume_times) == (
        b"no zlib",
        RETRY,
        0x301,
        6,
    )
    assert (
        caplog.text.count(
            "cannot be decoded and goes to the dead letters of billing: body is not a zlib stream"
        )
        == 1
    )


@pytest.mark.feature(13, 16, 75, 152)
async def test_a_retry_reaches_the_listener_of_its_first_topic(broker: FakeBroker) -> None:
    orders, refunds = Seen(), Seen()
    broker.topics["Refunds"] = 1
    broker.put(RETRY, b"again", properties=b"RETRY_TOPIC\x01Refunds\x02")
    async with consumer(broker, to(orders), to(refunds, topic="Refunds")):
        await refunds.wait(1)
    assert (refunds.messages[0].topic, refunds.messages[0].queue.topic) == ("Refunds", RETRY)
    assert orders.messages == []


@pytest.mark.feature(148)
async def test_the_retry_topic_takes_what_cannot_be_sent_back(broker: FakeBroker) -> None:
    broker.on(SEND_BACK, error(ResponseCode.SYSTEM_ERROR))
    broker.put(
        "Orders", b"x", properties=b"KEYS\x014711\x02UNIQ_KEY\x01ABC\x02TRAN_MSG\x01true\x02"
    )
    seen = Seen()

    def bill(message: MessageExt) -> Any:
        seen(message)
        return LATER if message.queue.topic == "Orders" else None

    async with consumer(broker, to(bill)):
        request = (await broker.received(SEND))[0]
        await seen.wait(2)
    fields, properties = request.ext_fields, request.ext_fields["i"]
    assert (fields["b"], fields["j"], fields["l"]) == (RETRY, "1", "16")
    assert "RETRY_TOPIC\x01Orders\x02" in properties
    assert f"ORIGIN_MESSAGE_ID\x01{seen.messages[0].offset_id}\x02" in properties
    assert "DELAY\x013\x02" in properties
    assert "TRAN_MSG" not in properties
    assert seen.messages[1].topic == "Orders"


@pytest.mark.feature(56, 154)
async def test_a_message_that_no_broker_takes_stays_and_holds_back_the_progress(
    broker: FakeBroker,
) -> None:
    """It is tried again here, and counted; the messages behind it go on."""
    broker.on(SEND_BACK, error(ResponseCode.SYSTEM_ERROR))
    broker.on(SEND, error(ResponseCode.SYSTEM_ERROR))
    seen = Seen()
    for body in (b"good", b"bad", b"good"):
        broker.put("Orders", body)

    def bill(message: MessageExt) -> Any:
        seen(message)
        return LATER if message.body == b"bad" and message.reconsume_times < 2 else None

    async with consumer(broker, to(bill)):
        await seen.until(lambda: sum(m.body == b"bad" for m in seen.messages) == 2)
        assert progress(broker) in (None, 1)
        await seen.until(lambda: sum(m.body == b"bad" for m in seen.messages) == 3)
        await broker.until(lambda: progress(broker) == 3)
    assert [m.reconsume_times for m in seen.messages if m.body == b"bad"] == [0, 1, 2]


FULL = b"UNIQ_KEY\x01K1\x02KEYS\x014711\x02baggage\x01" + b"v" * 32_600 + b"\x02"
"""Properties that leave less room than a copy needs."""


def too_long(limit: int) -> Callable[[RemotingCommand], RemotingCommand | None]:
    """The answer of Apache's broker to a send with more than *limit* bytes of properties."""
    return lambda request: (
        error(ResponseCode.MESSAGE_ILLEGAL)
        if len(request.ext_fields["i"].encode()) > limit
        else None
    )


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_copy_without_room_is_sent_without_its_largest_property(
    broker: FakeBroker, orderly: bool
) -> None:
    """The broker cannot send the message back, and adds properties of its own to a copy."""
    broker.on(SEND_BACK, error(ResponseCode.SYSTEM_ERROR, "PROPERTIES_SIZE_EXCEEDED"))
    broker.on(SEND, too_long(32_000))
    broker.put("Orders", b"x", properties=FULL)

    def bill(message: MessageExt) -> Any:
        return LATER if message.queue.topic == "Orders" else None

    async with consumer(broker, to(bill, max_retries=0, orderly=orderly)):
        await broker.until(lambda: progress(broker) == 1)
    (copy,) = broker.stored[RETRY, 0]
    properties = decode_properties(copy.properties)
    original = broker.stored["Orders", 0][0]
    assert (copy.body, properties["KEYS"], "baggage" in properties) == (b"x", "4711", False)
    assert properties["OGIVE_REMOVED_PROPERTIES"] == "baggage"
    assert properties["ORIGIN_MESSAGE_ID"] == offset_message_id(
        original.store_host, original.commitlog_offset
    )


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_message_whose_copy_brokers_refuse_is_passed_over_after_its_retries(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, orderly: bool
) -> None:
    broker.on(SEND_BACK, error(ResponseCode.SYSTEM_ERROR))
    broker.on(SEND, error(ResponseCode.MESSAGE_ILLEGAL, "no copy of it"))
    seen = Seen()
    for body in (b"good", b"bad", b"good"):
        broker.put("Orders", body)

    def bill(message: MessageExt) -> Any:
        seen(message)
        return LATER if message.body == b"bad" else None

    async with consumer(
        broker, to(bill, max_retries=2, orderly=orderly, **({"suspend_s": 0.01} if orderly else {}))
    ):
        await broker.until(lambda: progress(broker) == 3)
    assert [m.reconsume_times for m in seen.messages if m.body == b"bad"] == [0, 1, 2]
    stored = broker.stored["Orders", 0][1]
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "skipped Orders/broker-a/0/1 after 3 tries" in record.getMessage()
    assert offset_message_id(stored.store_host, stored.commitlog_offset) in record.getMessage()


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_message_is_not_passed_over_while_a_broker_may_still_take_it(
    broker: FakeBroker, orderly: bool
) -> None:
    """The one that holds it is busy, the other refuses the copy."""
    broker.on(SEND_BACK, error(ResponseCode.SYSTEM_BUSY))
    broker.on(SEND, error(ResponseCode.MESSAGE_ILLEGAL))
    broker.put("Orders", b"bad")
    async with consumer(broker, to(lambda message: LATER, max_retries=0, orderly=orderly)):
        await broker.received(SEND_BACK, 3)
        assert progress(broker) in (None, 0)


async def test_a_copy_of_a_message_that_claims_the_most_tries_has_a_number_that_fits(
    broker: FakeBroker,
) -> None:
    broker.on(SEND_BACK, error(ResponseCode.SYSTEM_ERROR))
    broker.put("Orders", b"x").reconsume_times = 0x7FFFFFFF

    async with consumer(
        broker, to(lambda message: LATER if message.queue.topic == "Orders" else None)
    ):
        request = (await broker.received(SEND))[0]
    assert request.ext_fields["j"] == str(0x7FFFFFFF)


async def test_an_orderly_dead_letter_of_a_compressed_body_is_sent_compressed(
    broker: FakeBroker,
) -> None:
    """Inflated it is longer than brokers take."""
    body = bytes(20_000_000)
    packed, sys_flag = compress(body)
    broker.put("Orders", packed, sys_flag=sys_flag)
    async with consumer(
        broker,
        to(
            lambda message: LATER if message.queue.topic == "Orders" else None,
            max_retries=0,
            orderly=True,
        ),
    ):
        request = (await broker.received(SEND))[0]
        await broker.until(lambda: progress(broker) == 1)
    assert len(request.body) < 100_000
    assert decompress(request.body, int(request.ext_fields["f"])) == body


@pytest.mark.feature(23)
async def test_a_call_that_takes_too_long_is_sent_back_once(broker: FakeBroker) -> None:
    """Its late answer is ignored, and the queue's progress moves on meanwhile."""
    free = threading.Event()
    broker.put("Orders", b"slow")

    def bill(_: MessageExt) -> Any:
        free.wait(WAIT_S)
        return LATER

    async with consumer(broker, to(bill, consume_timeout_s=0.05)):
        request = (await broker.received(SEND_BACK))[0]
        await broker.until(lambda: progress(broker) == 1)
        free.set()
    assert request.ext_fields["delayLevel"] == "3"
    assert len(broker.of(SEND_BACK)) == 1


@pytest.mark.feature(13, 124)
async def test_a_hung_listener_does_not_stop_the_other_topics(broker: FakeBroker) -> None:
    free = threading.Event()
    seen = Seen()
    broker.topics["Refunds"] = 1
    for _ in range(5):
        broker.put("Orders", b"stuck")
        broker.put("Refunds", b"flows")
    async with consumer(
        broker, to(lambda _: free.wait(WAIT_S) and None, threads=2), to(seen, topic="Refunds")
    ):
        await seen.wait(5)
        free.set()


# --- offsets and pulls ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure", [error(ResponseCode.SYSTEM_ERROR), SILENT], ids=["error", "silence"]
)
async def test_an_offset_that_cannot_be_learned_is_not_guessed(
    broker: FakeBroker, failure: Any
) -> None:
    """No pull and no commit until the query succeeds; then from the right place."""
    seen = Seen()
    for i in range(5):
        broker.put("Orders", b"%d" % i)
    broker.offsets["billing", "Orders", 0] = 4
    broker.on(QUERY, lambda request: failure if request.ext_fields["topic"] == "Orders" else None)
    client = ClientConfig(name_server=broker.address, request_timeout_s=1.0)
    async with PushConsumer(to(seen), client=client, config=QUICK):
        await broker.received(QUERY, 3)
        assert not [
            r
            for r in broker.requests
            if r.code in (PULL, UPDATE) and r.ext_fields["topic"] == "Orders"
        ]
        broker.on(QUERY, None)
        assert await seen.wait(1) == [b"4"]


@pytest.mark.feature(47)
async def test_an_offset_that_the_broker_does_not_hold_is_put_right_at_once(
    broker: FakeBroker,
) -> None:
    """The queue goes on at the broker's word; a result that was still under way does not overwrite
    it; the other queue does not notice.
    """
    broker.topics["Orders"] = 2
    free, seen = threading.Event(), Seen()
    for i in range(8):
        broker.put("Orders", b"%d" % i)
    broker.put("Orders", b"other", queue_id=1)
    broker.offsets["billing", "Orders", 0] = 100
    broker.offsets["billing", "Orders", 1] = 0
    moved = encode_header(PullMessageResponse(next_begin_offset=5, min_offset=0, max_offset=8))

    def pull(request: Any) -> Any:
        if request.ext_fields["queueOffset"] != "100":
            return None
        answer = error(ResponseCode.PULL_OFFSET_MOVED)
        answer.ext_fields = moved
        return answer

    broker.on(PULL, pull)
    async with consumer(broker, to(seen)):
        await seen.wait(4)
        await broker.until(lambda: progress(broker) == 8 and progress(broker, 1) == 1)
        free.set()
    assert sorted(seen.bodies) == [b"5", b"6", b"7", b"other"]


async def test_a_slave_that_is_behind_does_not_set_the_group_back(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Its word that an offset is not there is not believed: the master decides, and without one the
    queue waits.
    """
    for i in range(10):
        broker.put("Orders", b"%d" % i)
    broker.offsets["billing", "Orders", 0] = 8
    moved = RemotingCommand(
        21, encode_header(PullMessageResponse(next_begin_offset=0, min_offset=0, max_offset=3))
    )
    async with (
        FakeBroker({"Orders": 1, RETRY: 1}) as slave,
        ClientInstance(ClientConfig(name_server=broker.address)) as client,
    ):
        slave.on(PULL, moved)
        queue = MessageQueue("Orders", "broker-a", 0)
        subscription = SubscriptionData(topic="Orders")

        def route(addresses: dict[int, str]) -> RemotingCommand:
            brokers = (
                BrokerData(cluster="DefaultCluster", broker_name="broker-a", addresses=addresses),
            )
            queues = (QueueData(broker_name="broker-a", read_queues=1, write_queues=1, perm=6),)
            return ok(body=dumps(TopicRouteData(queues=queues, brokers=brokers).to_json()))

        async def pull() -> PullResult:
            await client.routes.refresh("Orders")
            return await GroupClient(client, "billing").pull(
                queue,
                8,
                broker_id=1,
                max_messages=32,
                max_bytes=1 << 20,
                subscription=subscription,
                suspend_s=0.0,
            )

        broker.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, route({1: slave.address}))
        with pytest.raises(NoRoute, match="broker-a"):
            await pull()
        broker.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, route({0: broker.address, 1: slave.address}))
        assert [message.body for message in (await pull()).messages] == [b"8", b"9"]
        assert len(slave.of(PULL)) == 2
    assert "it may be behind, asking the master" in caplog.text


async def test_a_member_that_starts_without_a_master_goes_on_where_a_slave_says(
    broker: FakeBroker,
) -> None:
    """A slave that does not know the group says nothing about it, and is not asked for 0."""
    queue = MessageQueue("Orders", "broker-a", 0)
    queues = (QueueData(broker_name="broker-a", read_queues=1, write_queues=1, perm=6),)
    async with (
        FakeBroker({"Orders": 1, RETRY: 1}) as slave,
        ClientInstance(ClientConfig(name_server=broker.address)) as client,
    ):
        brokers = (
            BrokerData(
                cluster="DefaultCluster", broker_name="broker-a", addresses={1: slave.address}
            ),
        )
        route = TopicRouteData(queues=queues, brokers=brokers)
        broker.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, ok(body=dumps(route.to_json())))
        await client.routes.refresh("Orders")
        slave.offsets["billing", "Orders", 0] = 8
        assert await GroupClient(client, "billing").query_offset(queue) == 8
        assert await GroupClient(client, "others").query_offset(queue) is None
        asked = [request.ext_fields for request in slave.of(RequestCode.QUERY_CONSUMER_OFFSET)]
        assert [fields.get("setZeroIfNotFound") for fields in asked] == ["false", "false"]
        with pytest.raises(NoRoute):
            await GroupClient(client, "billing").update_offset(queue, 9)


@pytest.mark.feature(9, 111)
async def test_a_failing_pull_is_tried_again(broker: FakeBroker) -> None:
    """Whatever is wrong: an error, flow control, an unknown code, an answer that cannot be read."""
    seen = Seen()
    broker.put("Orders", b"x")
    garbage = ok(PullMessageResponse(next_begin_offset=1, min_offset=0, max_offset=1), b"no record")
    answers = [
        error(ResponseCode.SYSTEM_ERROR),
        error(ResponseCode.FLOW_CONTROL),
        error(99),
        garbage,
        ok(body=b"no header"),
    ]
    broker.on(
        PULL,
        lambda request: (
            answers.pop() if request.ext_fields["topic"] == "Orders" and answers else None
        ),
    )
    async with consumer(broker, to(seen)):
        await seen.wait(1)
    assert answers == []


async def test_a_broker_that_forgot_the_subscription_gets_a_heartbeat(broker: FakeBroker) -> None:
    seen = Seen()
    broker.put("Orders", b"x")
    broker.script(
        PULL, error(ResponseCode.SUBSCRIPTION_NOT_EXIST), error(ResponseCode.SUBSCRIPTION_NOT_EXIST)
    )
    async with consumer(broker, to(seen)):
        await seen.wait(1)
        beats = len(broker.of(RequestCode.HEART_BEAT))
    assert beats >= 2


async def test_a_broker_restart_needs_no_client_restart(broker: FakeBroker) -> None:
    seen = Seen()
    broker.put("Orders", b"before")
    async with consumer(broker, to(seen)):
        await seen.wait(1)
        await broker.stop()
        await broker.start()
        broker.put("Orders", b"after")
        await seen.until(lambda: b"after" in seen.bodies)


@pytest.mark.feature(35, 37)
async def test_a_full_queue_is_not_pulled_until_there_is_room(broker: FakeBroker) -> None:
    """Never more than the limit and one pull is held."""
    free, seen = threading.Event(), Seen()
    for i in range(100):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> None:
        free.wait(WAIT_S)
        seen(message)

    def orders_pulled() -> int:
        return sum(r.ext_fields["topic"] == "Orders" for r in broker.of(PULL))

    config = ConsumerConfig(rebalance_pause_s=0.01, pull_batch_size=10, max_cached_messages=25)
    async with consumer(broker, to(bill, threads=1), config=config) as running:
        await broker.until(
            lambda: any(r.ext_fields["queueOffset"] == "20" for r in broker.of(PULL))
        )
        await eventually(
            lambda: sum(p.count for m in running._members for p in m.assignment.values()) == 30
        )
        pulled = orders_pulled()
        await rounds(broker)
        assert orders_pulled() == pulled
        free.set()
        await seen.wait(100)


@pytest.mark.feature(9, 40, 49, 108)
async def test_one_pull_of_a_queue_is_under_way_at_a_time(broker: FakeBroker) -> None:
    seen = Seen()
    async with consumer(broker, to(seen)):
        for i in range(20):
            broker.put("Orders", b"%d" % i)
            await seen.wait(i + 1)
        offsets = [
            int(r.ext_fields["queueOffset"])
            for r in broker.of(PULL)
            if r.ext_fields["topic"] == "Orders"
        ]
    assert offsets == sorted(set(offsets))


# --- members --------------------------------------------------------------------------------------


def with_others(broker: FakeBroker, *others: str) -> None:
    """Let the broker say that *others* are members of the group, too."""
    broker.on(MEMBERS, lambda _: ok(body=consumer_ids_dumps([*broker.members["billing"], *others])))


@pytest.mark.feature(22)
async def test_a_thousand_queues_take_no_thousand_threads(broker: FakeBroker) -> None:
    broker.topics["Orders"] = 1000
    seen = Seen()
    names: set[str] = set()

    def work(message: MessageExt) -> None:
        names.add(threading.current_thread().name)
        seen(message)

    def of_listeners() -> int:
        return sum(
            thread.name == IDLE_NAME or thread.name in names for thread in threading.enumerate()
        )

    async with consumer(broker, to(work, threads=4)) as running:
        before = of_listeners()
        await eventually(lambda: len(running.assignment["billing"]) == 1001)
        for i in range(1000):
            broker.put("Orders", b"%d" % i, queue_id=i)
        await seen.wait(1000)
        assert of_listeners() <= before + 4
    assert names <= {f"billing Orders-{slot}" for slot in range(4)}


@pytest.mark.feature(25)
async def test_routes_are_known_before_anything_is_pulled(broker: FakeBroker) -> None:
    async with consumer(broker, to(Seen())):
        await broker.received(PULL)
    codes = [
        request.code
        for request in broker.requests
        if request.ext_fields.get("topic", "Orders") == "Orders"
    ]
    route, hello, pull = (
        codes.index(code)
        for code in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.HEART_BEAT, PULL)
    )
    assert route < hello < pull


async def test_a_retry_topic_that_comes_to_be_late_is_not_waited_for_a_whole_period(
    broker: FakeBroker,
) -> None:
    """A new group's is made by its first heartbeat, and the first pass may ask for its route before
    a name server has heard of it.
    """
    asked = 0

    def route(request: RemotingCommand) -> Any:
        nonlocal asked
        asked += request.ext_fields["topic"] == "%RETRY%billing"
        return (
            error(ResponseCode.TOPIC_NOT_EXIST)
            if request.ext_fields["topic"] == "%RETRY%billing" and asked <= 3
            else None
        )

    broker.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
    async with consumer(
        broker, to(Seen()), config=replace(QUICK, rebalance_period_s=3600)
    ) as running:
        await eventually(
            lambda: any(queue.topic == "%RETRY%billing" for queue in running.assignment["billing"])
        )


@pytest.mark.feature(19)
async def test_of_several_starts_at_once_one_counts(broker: FakeBroker) -> None:
    running = consumer(broker, to(Seen()))
    results = await asyncio.gather(*(running.start() for _ in range(10)), return_exceptions=True)
    try:
        assert results.count(None) == 1
        assert sum(isinstance(result, IllegalStateError) for result in results) == 9
        await eventually(lambda: len(running.assignment["billing"]) == 2)
    finally:
        await running.close()


@pytest.mark.feature(163, 173, 174, 175, 176)
async def test_queues_are_shared_with_other_members_and_come_back(broker: FakeBroker) -> None:
    """Giving one queue away commits it, and does not touch the others."""
    broker.topics["Orders"] = 4
    seen = Seen()
    for i in range(4):
        broker.put("Orders", b"%d" % i, queue_id=i)
    config = ConsumerConfig(rebalance_pause_s=0.01, persist_period_s=60, persist_again_s=60)
    async with consumer(broker, to(seen), config=config) as running:
        await seen.wait(4)
        with_others(broker, "zzz")
        broker.notify("billing")
        # two of Orders, and the retry topic
        await eventually(lambda: len(running.assignment["billing"]) == 3)
        assert MessageQueue("Orders", "broker-a", 3) not in running.assignment["billing"]
        await broker.until(lambda: (progress(broker, 2), progress(broker, 3)) == (1, 1))
        broker.on(MEMBERS, None)
        broker.notify("billing")
        await eventually(lambda: len(running.assignment["billing"]) == 5)
        broker.put("Orders", b"again", queue_id=3)
        await seen.wait(5)
    assert [progress(broker, i) for i in range(4)] == [1, 1, 1, 2]
    assert len(seen.messages) == 5


@pytest.mark.feature(175)
async def test_progress_is_told_before_the_next_holder_asks_for_it(broker: FakeBroker) -> None:
    """In the order of the requests at the broker.

    What nobody tells by and by is told at the hand-over.
    """
    broker.topics["Orders"] = 4
    seen, others = Seen(), Seen()
    for i in range(8):
        broker.put("Orders", b"%d" % i, queue_id=i % 4)
    config = replace(QUICK, hand_over_pause_s=1.0, persist_period_s=60, persist_again_s=60)

    def places(code: int, queue_id: int) -> list[int]:
        return [
            at
            for at, request in enumerate(broker.requests)
            if (request.code, request.ext_fields.get("topic"), request.ext_fields.get("queueId"))
            == (code, "Orders", str(queue_id))
        ]

    async with consumer(broker, to(seen), config=config) as first:
        await seen.wait(8)
        # where the group begins
        assert {update.ext_fields["commitOffset"] for update in broker.of(UPDATE)} == {"0"}
        client = ClientConfig(name_server=broker.address, instance_name="other")
        async with PushConsumer(to(others), client=client, config=config) as second:
            await broker.until(lambda: len(broker.members["billing"]) == 2)
            broker.notify("billing")
            await eventually(
                lambda: sum(queue.topic == "Orders" for queue in second.assignment["billing"]) == 2
            )
            moved = [
                queue.queue_id for queue in second.assignment["billing"] if queue.topic == "Orders"
            ]
            for queue_id in moved:
                [_, told], asked = places(UPDATE, queue_id), places(QUERY, queue_id)
                assert asked[0] < told < asked[1], (
                    "the first holder asked, told what it had done, then the next one asked"
                )
                assert len(asked) == 2
                assert broker.requests[told].ext_fields["commitOffset"] == "2"
            kept = [
                queue.queue_id for queue in first.assignment["billing"] if queue.topic == "Orders"
            ]
            assert sorted(kept + moved) == [0, 1, 2, 3]
    assert (len(seen.messages), others.messages) == (8, [])


@pytest.mark.feature(68, 74)
async def test_results_for_a_queue_that_was_given_away_do_not_count(broker: FakeBroker) -> None:
    """Its progress belongs to the next owner."""
    free, seen = threading.Event(), Seen()
    for i in range(20):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> None:
        seen(message)
        free.wait(WAIT_S)

    async with consumer(
        broker, to(bill, threads=1), config=replace(QUICK, hand_over_wait_s=0.0)
    ) as running:
        await seen.wait(1)
        with_others(broker, "000")
        broker.notify("billing")
        await eventually(lambda: not running.assignment["billing"])
        assert progress(broker) in (None, 0)
        broker.offsets["billing", "Orders", 0] = 77
        free.set()
    assert progress(broker) == 77
    assert seen.bodies == [b"0"]


@pytest.mark.feature(74)
async def test_calls_that_end_soon_still_count_at_a_hand_over_and_waiting_ones_never_begin(
    broker: FakeBroker,
) -> None:
    """The next owner begins exactly behind the last message that was consumed here."""
    step, seen = threading.Semaphore(0), Seen()
    for i in range(20):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> None:
        seen(message)
        step.acquire(timeout=WAIT_S)

    async with consumer(broker, to(bill, threads=1)) as running:
        await seen.wait(1)
        for _ in range(3):
            step.release()
        await seen.wait(4)
        with_others(broker, "000")
        broker.notify("billing")
        await eventually(
            lambda: any(not p.active for m in running._members for p in m.assignment.values())
        )
        step.release()
        await eventually(lambda: not running.assignment["billing"])
    assert seen.bodies == [b"0", b"1", b"2", b"3"]
    assert progress(broker) == 4


async def test_members_that_cannot_be_learned_leave_the_assignment_as_it_is(
    broker: FakeBroker,
) -> None:
    seen = Seen()
    async with consumer(broker, to(seen)) as running:
        await eventually(lambda: len(running.assignment["billing"]) == 2)
        broker.on(MEMBERS, error(ResponseCode.SYSTEM_ERROR))
        broker.notify("billing")
        asked = len(broker.of(MEMBERS))
        await broker.received(MEMBERS, asked + 2)
        broker.put("Orders", b"x")
        await seen.wait(1)


async def test_a_member_that_the_broker_does_not_know_says_hello_and_then_gives_up(
    broker: FakeBroker,
) -> None:
    async with consumer(broker, to(Seen())) as running:
        await eventually(lambda: len(running.assignment["billing"]) == 2)
        beats = len(broker.of(RequestCode.HEART_BEAT))
        broker.on(MEMBERS, ok(body=consumer_ids_dumps(["somebody else"])))
        broker.notify("billing")
        await eventually(lambda: not running.assignment["billing"])
        assert len(broker.of(RequestCode.HEART_BEAT)) > beats
        broker.on(MEMBERS, None)
        await eventually(lambda: len(running.assignment["billing"]) == 2)


async def test_a_strategy_that_raises_leaves_the_assignment_as_it_is(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A table of machine rooms, say, that lacks the new member's. The log says so once."""
    broken, seen = False, Seen()

    def mine(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        if broken:
            raise KeyError("a room")
        return list(queues)

    async with consumer(broker, to(seen), config=replace(QUICK, strategy=mine)) as running:
        await eventually(lambda: len(running.assignment["billing"]) == 2)
        broken = True
        await rounds(broker)
        assert len(running.assignment["billing"]) == 2
        broker.put("Orders", b"x")
        await seen.wait(1)
        broken = False
        await rounds(broker)
    assert caplog.text.count("the strategy of billing failed: it keeps its queues of Orders") == 1


async def test_a_dead_broker_at_the_head_of_the_route_stops_no_rebalance(
    broker: FakeBroker,
) -> None:
    """The next one knows the members as well."""
    seen = Seen()
    broker.put("Orders", b"x")
    async with FakeBroker({"Orders": 1}, name="broker-0") as dead:
        dead_address = dead.address
    brokers = tuple(
        BrokerData(cluster="DefaultCluster", broker_name=name, addresses={0: address})
        for name, address in (("broker-0", dead_address), ("broker-a", broker.address))
    )
    queues = (QueueData(broker_name="broker-a", read_queues=1, write_queues=1, perm=6),)
    broker.on(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        ok(body=dumps(TopicRouteData(queues=queues, brokers=brokers).to_json())),
    )
    async with consumer(broker, to(seen)):
        await seen.wait(1)


@pytest.mark.feature(66, 72)
async def test_suspended_nothing_is_pulled_and_what_is_here_is_consumed(broker: FakeBroker) -> None:
    seen = Seen()
    async with consumer(broker, to(seen)) as running:
        broker.put("Orders", b"a")
        await seen.wait(1)
        await running.suspend()
        # answers the pull that is under way
        broker.put("Orders", b"b")
        await seen.wait(2)
        broker.put("Orders", b"c")
        await broker.until(lambda: progress(broker) == 2)
        assert await running.lag() == {MessageQueue("Orders", "broker-a", 0): 1}
        await running.resume()
        await seen.wait(3)
        await eventually(lambda: progress(broker) == 3)
        assert await running.lag() == {MessageQueue("Orders", "broker-a", 0): 0}


# --- the end --------------------------------------------------------------------------------------


async def test_close_waits_for_running_calls_and_commits_them(broker: FakeBroker) -> None:
    """What was begun is finished and never delivered again; what was not begun stays for the next
    member.
    """
    begun, free = Seen(), threading.Event()
    for i in range(50):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> None:
        begun(message)
        free.wait(WAIT_S)

    running = consumer(broker, to(bill, threads=4))
    await running.start()
    await begun.wait(4)
    closing = asyncio.gather(running.close(), running.close())
    # turns of the loop until the workers are told
    for _ in range(20):
        await asyncio.sleep(0)
    free.set()
    await closing
    await running.close()
    assert progress(broker) == len(begun.messages) == 4


async def test_close_does_not_wait_for_ever(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    begun, free = Seen(), threading.Event()
    broker.put("Orders", b"hangs")

    def bill(message: MessageExt) -> None:
        begun(message)
        free.wait(WAIT_S)

    config = ConsumerConfig(rebalance_pause_s=0.01, await_termination_s=0.05)
    async with consumer(broker, to(bill), config=config):
        await begun.wait(1)
    free.set()
    assert "1 listener calls still run" in caplog.text
    assert progress(broker) in (None, 0)


async def test_a_broker_that_does_not_answer_does_not_hold_up_the_close(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """One limit for all queues together."""
    broker.topics["Orders"] = 8
    seen = Seen()
    for i in range(8):
        broker.put("Orders", b"x", queue_id=i)
    client = ClientConfig(name_server=broker.address, request_timeout_s=1.0)
    async with PushConsumer(
        to(seen), client=client, config=replace(QUICK, persist_period_s=60, persist_again_s=60)
    ):
        await seen.wait(8)
        broker.on(UPDATE, SILENT)
    # and where the group begins
    assert len(of_orders(broker)) == 2 * 8
    assert "could not store offset" in caplog.text


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_listener_may_close_its_consumer(broker: FakeBroker, kind: str) -> None:
    broker.put("Orders", b"last")
    loop, closed = asyncio.get_running_loop(), asyncio.Event()

    async def bill_async(_: MessageExt) -> None:
        await running.close()
        closed.set()

    def bill(_: MessageExt) -> None:
        asyncio.run_coroutine_threadsafe(running.close_for(threading.get_ident()), loop).result(
            WAIT_S
        )
        loop.call_soon_threadsafe(closed.set)

    running = consumer(broker, to(bill if kind == "plain" else bill_async))
    await running.start()
    async with asyncio.timeout(WAIT_S):
        await running.wait()
        await closed.wait()


@pytest.mark.parametrize("what", ["close", "unsubscribe"])
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_many_calls_of_a_listener_may_close_its_consumer(
    broker: FakeBroker, kind: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They do not wait for each other, and neither does a close from outside for one of them."""
    count = 5
    loop, begun, ended = asyncio.get_running_loop(), Seen(), Seen()
    all_begun, all_here = asyncio.Event(), threading.Event()
    for i in range(count):
        broker.put("Orders", b"%d" % i)

    async def end(caller: object) -> None:
        if what == "close":
            await running.close_for(caller)
        else:
            # the first one succeeds
            with contextlib.suppress(InvalidOption, IllegalStateError):
                await running.unsubscribe_for(listener, caller)

    async def bill_async(message: MessageExt) -> None:
        begun(message)
        await all_begun.wait()
        await end(asyncio.current_task())
        ended(message)

    def bill(message: MessageExt) -> None:
        begun(message)
        all_here.wait(WAIT_S)
        asyncio.run_coroutine_threadsafe(end(threading.get_ident()), loop).result(WAIT_S)
        ended(message)

    listener = to(bill if kind == "plain" else bill_async, threads=count)
    running = consumer(broker, listener)
    await running.start()
    await begun.wait(count)
    all_begun.set()
    all_here.set()
    async with asyncio.timeout(WAIT_S):
        await running.close()
        await ended.wait(count)
    assert "still run" not in caplog.text


@pytest.mark.feature(15)
async def test_nothing_is_left_behind(broker: FakeBroker) -> None:
    """No thread, no task, no connection, over many lives and failed starts."""
    for _ in range(10):
        threads, tasks = threading.active_count(), len(asyncio.all_tasks())
        seen = Seen()
        broker.put("Orders", b"x")
        async with consumer(broker, to(seen), config=replace(QUICK, pull_suspend_s=0.05)):
            await seen.wait(1)
        await eventually(partial(at_most, threads, tasks))
    with pytest.raises(IllegalStateError, match="started before"):
        async with consumer(broker, to(Seen())) as running:
            await running.start()


async def test_a_start_without_a_name_server_fails_and_leaves_nothing() -> None:
    threads, tasks = threading.active_count(), len(asyncio.all_tasks())
    client = ClientConfig(name_server="127.0.0.1:1", request_timeout_s=0.2)
    with pytest.raises(NoNameServer):
        async with PushConsumer(to(Seen()), client=client):
            pass
    await eventually(partial(at_most, threads, tasks))


@pytest.mark.feature(174)
async def test_a_bug_in_the_background_stops_the_consumer_loudly(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """And not half of it: it calls no listener, pulls nothing, and leaves its queues to others at
    once.
    """
    seen, free = Seen(), threading.Event()
    for i in range(5):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> None:
        seen(message)
        free.wait(WAIT_S)

    async def broken() -> None:
        raise ZeroDivisionError

    async with consumer(broker, to(bill, threads=1)) as running:
        await seen.wait(1)
        running._owner.client.spawn(broken(), "a bug")
        with pytest.raises(IllegalStateError, match="unexpected error"):
            async with asyncio.timeout(WAIT_S):
                await running.wait()
        await eventually(lambda: broker.connections == 0)
        asked = len(broker.requests)
        free.set()
        assert running.assignment == {"billing": []}
    assert seen.bodies == [b"0"]
    assert len(broker.requests) == asked
    assert any(record.levelno == logging.CRITICAL for record in caplog.records)


@pytest.mark.feature(6)
async def test_a_client_may_be_shared(broker: FakeBroker) -> None:
    """Closing the consumer leaves the client, and nothing of the consumer in it."""
    seen = Seen()
    async with ClientInstance(ClientConfig(name_server=broker.address)) as client:
        tasks = len(asyncio.all_tasks())
        for _ in range(2):
            broker.put("Orders", b"x")
            async with PushConsumer(to(seen), client=client, config=QUICK):
                await seen.wait(1)
        # the fake broker's side of the connection, and pulls that it holds
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks + 4)
        assert client.running


@pytest.mark.feature(6)
async def test_who_shares_a_client_shares_its_connection_and_its_heartbeat(
    broker: FakeBroker,
) -> None:
    """As in Java those with one client id.

    Of one name alone, two clients would have two connections of the same id.
    """
    seen = Seen()
    config = ClientConfig(name_server=broker.address, instance_name="till", heartbeat_period_s=0.05)
    async with (
        ClientInstance(config) as client,
        Producer(client=client, group="sellers") as producer,
        PushConsumer(to(seen), client=client, config=QUICK),
        PushConsumer(to(seen, group="audit"), client=client, config=QUICK),
    ):
        await producer.send("Orders", b"x")
        await seen.wait(2)

        def of_all() -> list[HeartbeatData]:
            beats = [
                HeartbeatData.decode(request.body) for request in broker.of(RequestCode.HEART_BEAT)
            ]
            return [beat for beat in beats if beat.producers and len(beat.consumers) == 2]

        await broker.until(lambda: len(of_all()) >= 2)
        assert broker.connections == 1
        told = len(broker.of(RequestCode.HEART_BEAT)) - len(of_all())
        await broker.until(lambda: len(of_all()) >= 5)
        # nobody beats for itself
        assert len(broker.of(RequestCode.HEART_BEAT)) - len(of_all()) == told
        last = of_all()[-1]
        assert last.client_id.endswith("@till")
        assert (last.producers, {consumer.group for consumer in last.consumers}) == (
            ("sellers",),
            {"billing", "audit"},
        )


@pytest.mark.feature(21)
async def test_a_second_member_of_a_group_on_one_client_is_refused_and_the_first_stays(
    broker: FakeBroker,
) -> None:
    seen = Seen()
    async with (
        ClientInstance(ClientConfig(name_server=broker.address)) as client,
        PushConsumer(to(seen), client=client, config=QUICK),
    ):
        await broker.until(lambda: client.client_id in broker.members["billing"])
        for _ in range(2):
            with pytest.raises(IllegalStateError, match='of group "billing" already'):
                async with PushConsumer(to(Seen()), client=client, config=QUICK):
                    pass
        assert not broker.of(RequestCode.UNREGISTER_CLIENT)
        broker.put("Orders", b"x")
        await seen.wait(1)


@pytest.mark.feature(1, 20)
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (PushConsumer, "at least one listener"),
        (lambda: PushConsumer("Orders"), "a topic and a group|one topic and a group"),
        (lambda: PushConsumer("Orders", "Refunds", group="billing"), "one topic and a group"),
        (lambda: PushConsumer(print), "is not a listener"),  # type: ignore[arg-type]
        (lambda: PushConsumer(to(print), "10.0.0.1:9876"), "given as name_server="),
        (lambda: PushConsumer(to(print), group="shipping"), "their own groups"),
        (lambda: PushConsumer(to(print), to(print)), "two listeners to one topic"),
        (
            lambda: PushConsumer(to(print), to(print, topic="Refunds", orderly=True)),
            "orderly listener beside",
        ),
        (lambda: ConsumerConfig(pull_batch_size=0), "pull_batch_size is 0"),
        (lambda: ConsumerConfig(lock_renew_s=40), "renewed before"),
    ],
)
def test_what_cannot_work_is_refused_at_once(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        make()


async def test_run_inside_an_event_loop_says_what_to_use_there() -> None:
    with pytest.raises(IllegalStateError, match=r"await ogive\.aio\.run"):
        run(to(print))


async def test_what_a_stop_cuts_short_is_over_when_run_goes_on_and_its_error_is_raised() -> None:
    stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    begun = asyncio.Event()

    async def fails_on_the_way_out() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise IllegalStateError("it cannot be undone")

    waiting = asyncio.ensure_future(push_consumer._unless(stopped, fails_on_the_way_out()))
    await begun.wait()
    stopped.set_result(None)
    with pytest.raises(IllegalStateError, match="cannot be undone"):
        await waiting


async def test_who_is_cancelled_himself_leaves_no_work_behind() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiting = asyncio.ensure_future(
        push_consumer._unless(asyncio.get_running_loop().create_future(), work())
    )
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(ended.wait(), 10)
