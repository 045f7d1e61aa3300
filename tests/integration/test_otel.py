"""OpenTelemetry through a real broker: which spans there are, and that the context arrives."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan

import ogive
import ogive.otel
from ogive import aio
from tests.peers import RunningBroker
from tests.telemetry import WAIT_S, Telemetry, instrumented

QUICK = ogive.ConsumerConfig(rebalance_pause_s=0.1)


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    with instrumented() as made:
        yield made


@pytest.fixture
async def producer(
    telemetry: Telemetry, broker: RunningBroker, topic: str
) -> AsyncIterator[aio.Producer]:
    """A producer with telemetry; the topic has one queue."""
    async with aio.Admin(broker.name_server) as admin:
        await admin.create_topic(topic, queues=1)
    async with aio.Producer(broker.name_server, group="senders", check=lambda _: None) as producer:
        yield producer


def links(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


def id_of(span: ReadableSpan) -> int:
    number: int = span.context.span_id
    return number


async def all_ways(producer: aio.Producer, topic: str) -> int:
    """Send a message in each way but by request. Return how many these are."""
    await producer.send(topic, b"send", tag="paid", keys=["4711"])
    await (await producer.submit(topic, b"submit", sharding_key="7"))
    await producer.send_oneway(topic, b"oneway")
    async with producer.transaction(topic, b"transaction"):
        pass
    await producer.send_batch(topic, [b"batch 1", b"batch 2"])
    return 6


async def test_each_send_is_a_span_and_each_message_carries_its_context(
    telemetry: Telemetry, producer: aio.Producer, broker: RunningBroker, topic: str, group: str
) -> None:
    with telemetry.tracer.start_as_current_span("order") as order:
        count = await all_ways(producer, topic)
    received: list[ogive.MessageExt] = []
    async with aio.SimpleConsumer(
        topic, group=group, start="earliest", name_server=broker.name_server
    ) as consumer:
        async with asyncio.timeout(WAIT_S):
            while len(received) < count:
                more = await consumer.receive()
                await consumer.ack(*more)
                received += more
    sends, creates = telemetry.named(f"send {topic}"), telemetry.named(f"create {topic}")
    assert (len(sends), len(creates)) == (5, 2)
    trace_id = order.get_span_context().trace_id
    assert {span.context.trace_id for span in (*sends, *creates)} == {trace_id}
    assert {span.parent and span.parent.span_id for span in (*sends, *creates)} == {
        order.get_span_context().span_id
    }
    kinds = {span.kind for span in (*sends[:4], *creates)}
    assert (kinds, sends[4].kind) == ({trace.SpanKind.PRODUCER}, trace.SpanKind.CLIENT)
    assert links(sends[4]) == set(map(id_of, creates))
    carried = {
        message.text: int(message.properties["traceparent"].split("-")[2], 16)
        for message in received
    }
    by_text = {
        "send": sends[0],
        "submit": sends[1],
        "oneway": sends[2],
        "transaction": sends[3],
        "batch 1": creates[0],
        "batch 2": creates[1],
    }
    assert carried == {text: id_of(span) for text, span in by_text.items()}
    host, _, port = broker.address.rpartition(":")
    first = dict(sends[0].attributes or {})
    assert first.pop("messaging.message.id") in {message.id for message in received}
    assert first.pop("messaging.client.id")
    assert first == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": f"{received[0].queue.broker_name}/0",
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("4711",),
        "server.address": host,
        "server.port": int(port),
    }
    kinds_of_messages = [
        (span.attributes or {})["messaging.rocketmq.message.type"] for span in sends[:4]
    ]
    assert kinds_of_messages == ["normal", "fifo", "normal", "transaction"]
    assert (sends[4].attributes or {})["messaging.batch.message_count"] == 2
    acks, receives = telemetry.named(f"ack {topic}"), telemetry.named(f"receive {topic}")
    expected = set(carried.values())
    assert set().union(*map(links, receives)) == set().union(*map(links, acks)) == expected
    metrics = telemetry.metrics()
    assert sum(point.value for point in metrics["messaging.client.sent.messages"]) == count
    assert sum(point.value for point in metrics["messaging.client.consumed.messages"]) == count
    durations = [
        point.count
        for point in metrics["messaging.client.operation.duration"]
        if point.attributes["messaging.operation.name"] == "send"
    ]
    assert sum(durations) == len(sends)


Listeners = Callable[[str, str, list[int]], Any]


def current() -> int:
    return trace.get_current_span().get_span_context().span_id


def plain(topic: str, group: str, seen: list[int]) -> Any:
    @ogive.listener(topic, group=group, start="earliest")
    def work(message: ogive.MessageExt) -> None:
        seen.append(current())

    return work


def asynchronous(topic: str, group: str, seen: list[int]) -> Any:
    @ogive.listener(topic, group=group, start="earliest")
    async def work(message: ogive.MessageExt) -> None:
        await asyncio.sleep(0)
        seen.append(current())

    return work


def orderly(topic: str, group: str, seen: list[int]) -> Any:
    @ogive.listener(topic, group=group, start="earliest", orderly=True)
    def work(message: ogive.MessageExt) -> None:
        seen.append(current())

    return work


def popping(topic: str, group: str, seen: list[int]) -> Any:
    @ogive.listener(topic, group=group, start="earliest", mode="pop")
    def work(message: ogive.MessageExt) -> None:
        seen.append(current())

    return work


@pytest.mark.parametrize("make", [plain, asynchronous, orderly, popping])
async def test_a_listener_works_in_a_span_of_the_trace_of_its_message(
    telemetry: Telemetry,
    producer: aio.Producer,
    broker: RunningBroker,
    topic: str,
    group: str,
    make: Listeners,
) -> None:
    seen: list[int] = []
    listener = make(topic, group, seen)
    # the span that is current at the start has nothing to do with the messages
    with telemetry.tracer.start_as_current_span("start"):
        consumer = aio.PushConsumer(listener, name_server=broker.name_server, config=QUICK)
        await consumer.start()
    try:
        await producer.send(topic, b"1", tag="paid")
        [span] = await telemetry.wait(f"process {topic}")
    finally:
        await consumer.close()
    [send] = telemetry.named(f"send {topic}")
    assert span.parent is not None
    assert (span.parent.span_id, links(span)) == (id_of(send), {id_of(send)})
    assert (seen, span.kind) == ([id_of(span)], trace.SpanKind.CONSUMER)
    attributes = span.attributes or {}
    assert attributes["messaging.consumer.group.name"] == group
    assert attributes["messaging.rocketmq.consumption_model"] == "clustering"
    assert attributes["messaging.rocketmq.message.tag"] == "paid"
    metrics = telemetry.metrics()
    [consumed] = metrics["messaging.client.consumed.messages"]
    [duration] = metrics["messaging.process.duration"]
    assert (consumed.value, duration.count) == (1, 1)


async def test_a_call_with_several_messages_is_a_trace_of_its_own_with_links(
    telemetry: Telemetry, producer: aio.Producer, broker: RunningBroker, topic: str, group: str
) -> None:
    """The call fails first: its span says so."""
    calls: list[int] = []

    @ogive.listener(topic, group=group, start="earliest", batch=16, orderly=True)
    def work(messages: list[ogive.MessageExt]) -> ogive.ConsumeResult | None:
        calls.append(len(messages))
        return ogive.suspend(1) if len(calls) == 1 else None

    await producer.send_batch(topic, [b"1", b"2", b"3"])
    async with aio.PushConsumer(work, name_server=broker.name_server, config=QUICK):
        failed, done = (await telemetry.wait(f"process {topic}", 2))[:2]
    assert links(failed) == links(done) == set(map(id_of, telemetry.named(f"create {topic}")))
    assert (failed.parent, done.parent, calls) == (None, None, [3, 3])
    assert (done.attributes or {})["messaging.batch.message_count"] == 3
    assert (failed.attributes or {})["error.type"] == "failed"
    assert (failed.status.is_ok, done.status.is_ok) == (False, True)


async def test_blocks_of_iterated_and_pull_consumers_continue_the_trace(
    telemetry: Telemetry, producer: aio.Producer, broker: RunningBroker, topic: str, group: str
) -> None:
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    await producer.send(topic, b"1")
    context.detach(token)
    settings: dict[str, Any] = {"start": "earliest", "name_server": broker.name_server}
    async with aio.PushConsumer(topic, group=group, config=QUICK, **settings) as consumer:
        message = await anext(aiter(consumer))
        with message.process():
            tenants = [baggage.get_baggage("tenant")]
    async with aio.PullConsumer(topic, group=f"{group}-pull", **settings) as pulling:
        async with asyncio.timeout(WAIT_S):
            while not (messages := await pulling.poll()):
                pass
        with ogive.otel.process(messages[0], group=f"{group}-pull"):
            tenants.append(baggage.get_baggage("tenant"))
        with pytest.raises(ZeroDivisionError), ogive.otel.process(messages):
            1 / 0  # noqa: B018
    one, two, three = telemetry.named(f"process {topic}")
    [send], [poll] = telemetry.named(f"send {topic}"), telemetry.named(f"poll {topic}")
    assert one.parent is not None
    assert two.parent is not None
    assert one.parent.span_id == two.parent.span_id == id_of(send)
    assert (three.parent, (three.attributes or {})["error.type"]) == (None, "ZeroDivisionError")
    assert links(poll) == links(three) == {id_of(send)}
    assert tenants == ["acme", "acme"]
    consumed = telemetry.metrics()["messaging.client.consumed.messages"]
    # a message that was polled does not count again when it is processed
    assert sum(point.value for point in consumed) == 2


async def test_a_request_is_answered_in_its_trace_and_a_context_that_was_given_is_kept(
    telemetry: Telemetry, producer: aio.Producer, broker: RunningBroker, topic: str, group: str
) -> None:
    given = f"00-{7:032x}-{9:016x}-01"

    @ogive.listener(topic, group=group, start="earliest")
    def answer(message: ogive.MessageExt) -> ogive.Reply:
        return ogive.Reply(message.properties["traceparent"].encode())

    async with aio.PushConsumer(answer, name_server=broker.name_server, config=QUICK):
        first = await producer.request(topic, b"?", timeout_s=WAIT_S)
        second = await producer.request(
            topic, b"?", properties={"traceparent": given}, timeout_s=WAIT_S
        )
        spans = await telemetry.wait(f"process {topic}", 2)
    # the reply may overtake the answer to the send
    own, kept = await telemetry.wait(f"send {topic}", 2)
    assert first.text.startswith(f"00-{own.context.trace_id:032x}-{id_of(own):016x}-")
    assert (second.text, kept.kind, links(kept)) == (given, trace.SpanKind.CLIENT, {9})
    assert [span.parent and span.parent.span_id for span in spans] == [id_of(own), 9]
