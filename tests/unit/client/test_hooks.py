"""Hooks around sends: what they see, what they may change, and that they break nothing."""

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

import ogive
from ogive.client.config import ProducerConfig
from ogive.client.producer import Producer
from ogive.errors import MessageIllegal, NoRoute, ResponseCode, SendFailed
from ogive.model import Message, SendResult
from ogive.testing.fake_broker import WAIT_S, FakeBroker, error, ok
from ogive.wire.codes import RequestCode
from ogive.wire.headers.send import SendMessageResponse
from ogive.wire.message import decode_batch, decode_properties
from tests.unit.client.serving import on_a_thread
from tests.unit.client.test_producer import properties_of

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1}) as broker:
        yield broker


class Notes:
    """A hook that writes down what it hears, and adds a property."""

    def __init__(self, name: str = "a") -> None:
        self.name = name
        self.before: list[bytes] = []
        self.after: list[tuple[bytes, SendResult | None, BaseException | None]] = []

    def before_send(self, message: Message) -> Message | None:
        self.before.append(message.body)
        return replace(
            message,
            properties={
                **message.properties,
                "path": message.properties.get("path", "") + self.name,
            },
        )

    def after_send(
        self, message: Message, result: SendResult | None, error: BaseException | None
    ) -> None:
        assert message.properties["path"]
        self.after.append((message.body, result, error))


def producer(broker: FakeBroker, *hooks: ogive.SendHook, **settings: float) -> Producer:
    return Producer(
        broker.address,
        config=ProducerConfig(
            hooks=hooks,
            send_timeout_s=WAIT_S,
            **settings,  # type: ignore[arg-type]
        ),
    )


async def test_a_hook_sees_each_message_before_and_after_and_may_add_to_it(
    broker: FakeBroker,
) -> None:
    notes = Notes()
    async with producer(broker, notes) as sending:
        first = await sending.send("Orders", b"1", tag="paid", properties={"size": "XL"})
        second = await sending.send(Message("Orders", b"2", sharding_key="7"))
    assert notes.before == [b"1", b"2"]
    assert notes.after == [(b"1", first, None), (b"2", second, None)]
    properties = properties_of(broker.of(SEND)[0])
    assert (properties["path"], properties["size"], properties["TAGS"]) == ("a", "XL", "paid")
    assert properties_of(broker.of(SEND)[1])["__SHARDINGKEY"] == "7"


async def test_a_hook_gets_the_handle_that_takes_the_message_back(broker: FakeBroker) -> None:
    notes = Notes()
    place = SendMessageResponse(
        msg_id="7F" * 16, queue_id=0, queue_offset=0, recall_handle="aGFuZGxl"
    )
    broker.script(SEND, ok(place))
    async with producer(broker, notes) as sending:
        sent = await sending.send("Orders", b"1", delay_s=60.0)
    assert sent.recall_handle == "aGFuZGxl"
    assert notes.after == [(b"1", sent, None)]


async def test_the_first_hook_is_the_outermost(broker: FakeBroker) -> None:
    order: list[str] = []

    class Ordered(Notes):
        def after_send(
            self, message: Message, result: SendResult | None, error: BaseException | None
        ) -> None:
            order.append(self.name)

    async with producer(broker, Ordered("a"), Ordered("b")) as sending:
        await sending.send("Orders", b"1")
    assert (properties_of(broker.of(SEND)[0])["path"], order) == ("ab", ["b", "a"])


async def test_a_failed_send_is_heard_of_with_its_error(broker: FakeBroker) -> None:
    notes = Notes()
    async with producer(broker, notes, max_in_flight=1) as sending:
        broker.script(SEND, error(ResponseCode.MESSAGE_ILLEGAL, "no"))
        with pytest.raises(MessageIllegal) as refused:
            await sending.send("Orders", b"refused by the broker")
        with pytest.raises(NoRoute) as lost:
            await sending.send("Odrers", b"nowhere")
        with pytest.raises(MessageIllegal) as long:
            await sending.send("Orders", b"refused here", properties={"x": "y" * 40_000})
        broker.hold(SEND)
        waiting = await sending.submit("Orders", b"first")
        with pytest.raises(SendFailed) as crowded:
            await sending.send("Orders", b"no room", timeout_s=0.01)
        broker.release(SEND)
        result = await waiting
    bodies = [b"refused by the broker", b"nowhere", b"refused here", b"no room", b"first"]
    outcomes = [refused.value, lost.value, long.value, crowded.value, result]
    assert [(body, result or error) for body, result, error in notes.after] == list(
        zip(bodies, outcomes, strict=True)
    )


async def test_a_batch_is_seen_message_by_message(broker: FakeBroker) -> None:
    notes = Notes()
    async with producer(broker, notes) as sending:
        results = await sending.send_batch("Orders", [b"1", b"2", b"3"])
        assert notes.after == [(b"%d" % (i + 1), result, None) for i, result in enumerate(results)]
        assert [result.queue_offset for result in results] == [0, 1, 2]
        [request] = broker.of(BATCH)
        assert [
            decode_properties(item.properties)["path"] for item in decode_batch(request.body)
        ] == ["a"] * 3
        broker.script(BATCH, error(ResponseCode.MESSAGE_ILLEGAL, "no"))
        with pytest.raises(MessageIllegal) as refused:
            await sending.send_batch("Orders", [b"4", b"5"])
        assert notes.after[3:] == [(b"4", None, refused.value), (b"5", None, refused.value)]


async def test_submitted_messages_share_a_request_and_each_hook_call_has_its_own_result(
    broker: FakeBroker,
) -> None:
    notes = Notes()
    bodies = [b"1", b"2", b"3"]
    async with producer(broker, notes) as sender:
        await sender.send("Orders", b"0")
        handles = [await sender.submit("Orders", body, keys=("k",)) for body in bodies]
        results = [await handle for handle in handles]
    assert [body for body, *_ in notes.after[1:]] == bodies
    assert [result for _, result, _ in notes.after[1:]] == results
    assert len({result.id for result in results}) == 3
    [request] = broker.of(BATCH)
    found = [decode_properties(raw) for _, _, raw in decode_batch(request.body)]
    assert [(one["path"], one["KEYS"]) for one in found] == [("a", "k")] * 3


async def test_of_a_refused_batch_each_submitted_message_is_heard_of_once(
    broker: FakeBroker,
) -> None:
    notes = Notes()
    async with producer(broker, notes) as sender:
        await sender.send("Orders", b"0")
        refused = error(ResponseCode.MESSAGE_ILLEGAL, "no")
        broker.script(BATCH, refused)
        broker.script(SEND, refused)
        handles = [await sender.submit("Orders", body) for body in (b"1", b"2")]
        outcomes = await asyncio.gather(*handles, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [MessageIllegal, SendResult]
    assert [body for body, *_ in notes.after] == [b"0", b"1", b"2"]
    assert [type(failed) for *_, failed in notes.after[1:]] == [MessageIllegal, type(None)]


async def test_a_submitted_message_without_room_is_heard_of_as_not_sent(
    broker: FakeBroker,
) -> None:
    notes = Notes()
    async with producer(broker, notes, max_in_flight=1) as sender:
        await sender.send("Orders", b"0")
        broker.hold(SEND)
        first = await sender.submit("Orders", b"1")
        with pytest.raises(SendFailed, match="not sent"):
            await sender.submit("Orders", b"2", timeout_s=0.01)
        assert [(body, type(failed)) for body, _, failed in notes.after[1:]] == [(b"2", SendFailed)]
        broker.release(SEND)
        await first
    assert [body for body, *_ in notes.after] == [b"0", b"2", b"1"]


async def test_a_one_way_message_has_neither_result_nor_error_unless_it_never_left(
    broker: FakeBroker,
) -> None:
    notes = Notes()
    async with producer(broker, notes) as sending:
        await sending.send_oneway("Orders", b"1")
        with pytest.raises(NoRoute) as lost:
            await sending.send_oneway("Odrers", b"2")
    assert notes.after == [(b"1", None, None), (b"2", None, lost.value)]


async def test_a_hook_that_raises_or_returns_nonsense_breaks_nothing(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def before_send(self, message: Message) -> Message | None:
            raise ValueError("before")

        def after_send(
            self, message: Message, result: SendResult | None, error: BaseException | None
        ) -> None:
            raise SystemExit("after")

    class Odd(Notes):
        def before_send(self, message: Message) -> Message | None:
            return 7  # type: ignore[return-value]

    notes = Notes()
    async with producer(broker, Broken(), notes, Odd("odd")) as sending:
        sent = await sending.send("Orders", b"1")
    assert notes.after == [(b"1", sent, None)]
    assert "neither a Message nor None" in caplog.text
    assert caplog.text.count("Traceback") == 2


def test_a_blocking_send_runs_before_send_in_the_callers_thread_and_context() -> None:
    """So that a trace or a request id that lives in a context variable can travel along."""
    request_id = contextvars.ContextVar("request_id", default="")
    seen: list[tuple[str, bool]] = []
    here = threading.get_ident()

    class Context:
        def before_send(self, message: Message) -> Message | None:
            seen.append((request_id.get(), threading.get_ident() == here))
            return None

        def after_send(
            self, message: Message, result: SendResult | None, error: BaseException | None
        ) -> None:
            seen.append(("after", threading.get_ident() != here))

    with (
        on_a_thread() as fake,
        ogive.Producer(fake.address, config=ProducerConfig(hooks=(Context(),))) as sending,
    ):
        request_id.set("r-1")
        sending.send("Orders", b"1")
    assert seen == [("r-1", True), ("after", True)]


def test_what_after_send_or_a_callback_sets_in_the_context_is_gone_for_the_next_message() -> None:
    left = contextvars.ContextVar("left", default="")
    seen: list[str] = []

    class Setting:
        def before_send(self, message: Message) -> Message | None:
            return None

        def after_send(
            self, message: Message, result: SendResult | None, error: BaseException | None
        ) -> None:
            seen.append(left.get())
            left.set("by after_send")

    def called(_: object) -> None:
        seen.append(left.get())
        left.set("by a callback")

    with (
        on_a_thread() as fake,
        ogive.Producer(fake.address, config=ProducerConfig(hooks=(Setting(),))) as sending,
    ):
        for body in (b"1", b"2"):
            future = sending.submit("Orders", body)
            future.add_done_callback(called)
            future.result()
            sending.send("Orders", body)
    assert set(seen) == {""}
