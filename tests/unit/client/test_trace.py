"""Message traces: what is recorded, in which form, and that recording disturbs nothing."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from ogive.client import trace
from ogive.client import trace as tracing
from ogive.client.config import ClientConfig, ProducerConfig
from ogive.client.consumer.push_consumer import PushConsumer
from ogive.client.instance import ClientInstance
from ogive.client.listener import LATER, Reply, listener
from ogive.client.producer import Producer
from ogive.client.trace import CallEnd, EncodedTrace, MessageKind, Tracer, packed
from ogive.errors import MessageIllegal, ResponseCode
from ogive.model import TRACE_TOPIC, MessageExt, MessageQueue, SendResult, SendStatus
from ogive.testing.fake_broker import SILENT, WAIT_S, FakeBroker, error, ok
from ogive.wire.codes import RequestCode
from ogive.wire.headers.codec import decode_header
from ogive.wire.headers.send import SendMessageRequestV2
from ogive.wire.message import decode_properties, encode_properties
from tests.unit.client.consumer.test_process_queue import message
from tests.unit.client.consumer.test_push_consumer import QUICK, RETRY, eventually

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1, RETRY: 1, TRACE_TOPIC: 1}) as broker:
        yield broker


def producer(broker: FakeBroker, **settings: Any) -> Producer:
    return Producer(
        broker.address, config=ProducerConfig(trace=True, send_timeout_s=WAIT_S, **settings)
    )


def traces(broker: FakeBroker) -> list[list[str]]:
    """The fields of every record that the broker holds."""
    bodies = broker.bodies(TRACE_TOPIC).get(0, [])
    return [
        record.split("\x01") for body in bodies for record in body.decode().split("\x02") if record
    ]


# --- the form -------------------------------------------------------------------------------------


def test_what_was_sent_in_apaches_form() -> None:
    result = SendResult(
        SendStatus.SEND_OK, "AB12", "7F00", MessageQueue("Orders", "broker-a", 0), 5
    )
    fields: dict[str, Any] = {
        "timestamp_ms": 1_700_000_000_000,
        "region": "DefaultRegion",
        "group": "shop",
        "broker": "127.0.0.1:10911",
        "body_bytes": 19,
        "cost_ms": 3,
        "kind": MessageKind.DELAY,
    }
    record = trace.sent(**fields, tags="paid", keys=("k1", "k2"), result=result)
    text = (
        "Pub|1700000000000|DefaultRegion|shop|Orders|AB12|paid|k1 "
        "k2|127.0.0.1:10911|19|3|3|7F00|true"
    )
    assert record == EncodedTrace(("AB12", "k1", "k2"), text.replace("|", "\x01") + "\x02")
    bare = trace.sent(
        **fields,
        tags=None,
        keys=(),
        result=SendResult(SendStatus.FLUSH_DISK_TIMEOUT, "AB12", "7F00", result.queue, 5),
    )
    assert bare.text.split("\x01")[6:8] == ["null", "null"]
    assert bare.text.endswith("\x01false\x02")


def test_what_was_consumed_in_apaches_form() -> None:
    one = message(0)
    before = trace.begun(one, timestamp_ms=1_700_000_000_000, group="billing", request_id="R1")
    after = trace.ended(
        one,
        timestamp_ms=1_700_000_000_009,
        group="billing",
        request_id="R1",
        cost_ms=9,
        success=False,
        end=CallEnd.EXCEPTION,
    )
    assert (
        before.text.replace("\x01", "|")
        == f"SubBefore|1700000000000|null|billing|R1|{one.id}|0|null\x02"
    )
    assert (
        after.text.replace("\x01", "|")
        == f"SubAfter|R1|{one.id}|9|false|null|2|1700000000009|billing\x02"
    )


def test_a_reason_is_one_bounded_field() -> None:
    record = trace.ended(
        message(0),
        timestamp_ms=1_700_000_000_009,
        group="billing",
        request_id="R1",
        cost_ms=9,
        success=False,
        end=CallEnd.EXCEPTION,
        why="bad\x01\x02\n" + "x" * 1000,
    )
    fields = record.text.removesuffix("\x02").split("\x01")
    assert len(fields) == 10
    assert fields[9] == "bad   " + "x" * 194


def test_records_are_packed_into_few_messages_within_the_limits() -> None:
    records = [EncodedTrace((f"id{i}", "shared"), "x" * 1000) for i in range(300)]
    messages = list(packed(records))
    assert b"".join(body for _, body in messages) == b"x" * 300_000
    assert max(len(body) for _, body in messages) <= trace.MAX_BODY_BYTES
    assert [keys.count("shared") for keys, _ in messages] == [1] * len(messages)
    assert sorted(key for keys, _ in messages for key in keys if key != "shared") == sorted(
        f"id{i}" for i in range(300)
    )
    many_keys = list(packed([EncodedTrace(("k" * 3000 + str(i),), "x") for i in range(4)]))
    assert [len(keys) for keys, _ in many_keys] == [2, 2]
    assert list(packed([])) == []
    assert len(list(packed([EncodedTrace(("k",), "x" * 200_000)] * 2))) == 2


# --- the producer's side --------------------------------------------------------------------------


async def test_sent_messages_are_recorded_at_the_latest_at_the_close(broker: FakeBroker) -> None:
    async with producer(broker, group="shop") as sending:
        first = await sending.send("Orders", b"espresso", tag="paid", keys="k1")
        second = await sending.send("Orders", b"latte", sharding_key="7", delay_level=2)
        batch = await sending.send_batch("Orders", [b"1", b"22"])
    rows = traces(broker)
    assert [(row[0], row[3], row[4], row[5], row[12]) for row in rows] == [
        ("Pub", "shop", "Orders", result.id, result.offset_id) for result in (first, second, *batch)
    ]
    assert [(row[2], row[6], row[7], row[8], row[9], row[11], row[13]) for row in rows] == [
        ("DefaultRegion", "paid", "k1", broker.address, "8", "0", "true"),
        ("DefaultRegion", "null", "null", broker.address, "5", "3", "true"),
        ("DefaultRegion", "null", "null", broker.address, "1", "0", "true"),
        ("DefaultRegion", "null", "null", broker.address, "2", "0", "true"),
    ]
    [request] = [
        r
        for r in broker.of(SEND)
        if decode_header(SendMessageRequestV2, r.ext_fields).topic == TRACE_TOPIC
    ]
    header = decode_header(SendMessageRequestV2, request.ext_fields)
    keys = decode_properties((header.properties or "").encode())["KEYS"].split()
    assert set(keys) == {first.id, "k1", second.id, *(result.id for result in batch)}
    assert header.producer_group.startswith("_INNER_TRACE_PRODUCER-shop-PRODUCE-")


async def test_submitted_messages_that_share_a_request_have_a_record_each(
    broker: FakeBroker,
) -> None:
    async with producer(broker, group="shop") as sending:
        await sending.send("Orders", b"")
        handles = [
            await sending.submit("Orders", bytes(size), tag="paid", keys=f"k{size}")
            for size in (1, 2, 3)
        ]
        results = [await handle for handle in handles]
    assert len(broker.of(RequestCode.SEND_BATCH_MESSAGE)) == 1
    assert [(row[5], row[6], row[7], row[9], row[12]) for row in traces(broker)[1:]] == [
        (result.id, "paid", f"k{size}", str(size), result.offset_id)
        for size, result in zip((1, 2, 3), results, strict=True)
    ]


async def test_what_was_not_stored_or_is_not_to_be_traced_leaves_no_record(
    broker: FakeBroker,
) -> None:
    async with producer(broker) as sending:
        broker.script(SEND, error(ResponseCode.MESSAGE_ILLEGAL, "no"))
        with pytest.raises(MessageIllegal):
            await sending.send("Orders", b"refused")
        await sending.send_oneway("Orders", b"one-way")
        await broker.received(SEND, 2)
        untraced = {
            "msgId": "0" * 32,
            "queueId": "0",
            "queueOffset": "0",
            "MSG_REGION": "r",
            "TRACE_ON": "false",
        }
        broker.script(
            SEND,
            replaced(untraced),
            replaced({k: v for k, v in untraced.items() if k not in ("MSG_REGION", "TRACE_ON")}),
        )
        await sending.send("Orders", b"not traced by the broker")
        await sending.send("Orders", b"from a broker that does not say")
        await sending.send(TRACE_TOPIC, b"a trace by hand")
    assert traces(broker) == [["a trace by hand"]]


def replaced(fields: dict[str, str]) -> Any:
    answer = ok()
    answer.ext_fields = fields
    return answer


async def test_traces_that_cannot_be_sent_are_lost_with_one_line_and_hold_up_nothing(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "CLOSE_S", 0.1)
    async with producer(broker, retries=0) as sending:
        await sending.send("Orders", b"1")
        broker.on(SEND, SILENT)
    assert [record.levelname for record in caplog.records if "trace" in record.message] == [
        "WARNING",
        "WARNING",
    ]
    assert "not all traces of ogive-producer could be sent" in caplog.text
    assert "traces of ogive-producer are lost: the producer was closed" in caplog.text


async def test_records_that_wait_are_bounded_and_sent_when_enough_are_there(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with ClientInstance(ClientConfig(name_server=broker.address)) as client:
        tracer = Tracer(client, "shop", "PRODUCE", flush_s=3600.0)
        for i in range(tracing.MAX_RECORDS + 7):
            tracer.add(EncodedTrace((f"id{i}",), f"r{i}\x02"))
        assert tracer.dropped == 7
        with caplog.at_level(logging.WARNING):
            # without waiting for the time to come
            await eventually(lambda: len(traces(broker)) == tracing.MAX_RECORDS)
        assert "dropped 7 trace records of shop" in caplog.text
        tracer.add(EncodedTrace(("late",), "late\x02"))
        await tracer.close()
        assert traces(broker)[-1] == ["late"]


async def test_few_records_are_sent_when_their_time_has_come(broker: FakeBroker) -> None:
    async with ClientInstance(ClientConfig(name_server=broker.address)) as client:
        tracer = Tracer(client, "shop", "PRODUCE", flush_s=0.01)
        tracer.add(EncodedTrace(("id",), "one\x02"))
        await eventually(lambda: traces(broker) == [["one"]])
        await tracer.close()


# --- the consumer's side --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async", "orderly"])
async def test_each_call_of_a_listener_is_recorded_before_and_after(
    broker: FakeBroker, kind: str
) -> None:
    broker.put(
        "Orders",
        b"good",
        properties=encode_properties({"UNIQ_KEY": "ID1", "KEYS": "k1", "MSG_REGION": "r1"}),
    )
    broker.put(
        "Orders", b"hidden", properties=encode_properties({"UNIQ_KEY": "ID2", "TRACE_ON": "false"})
    )
    seen: list[bytes] = []

    def bill(message: MessageExt) -> None:
        seen.append(message.body)

    async def bill_later(message: MessageExt) -> None:
        bill(message)

    one = listener("Orders", group="billing", start="earliest", orderly=kind == "orderly")(
        bill_later if kind == "async" else bill
    )
    async with PushConsumer(one, name_server=broker.address, config=traced()):
        await eventually(lambda: len(seen) == 2)
    before, after = traces(broker)
    assert (before[0], before[2:4], before[5:]) == (
        "SubBefore",
        ["r1", "billing"],
        ["ID1", "0", "k1"],
    )
    assert (after[0], after[1:3], after[4:7], after[8]) == (
        "SubAfter",
        [before[4], "ID1"],
        ["true", "k1", "0"],
        "billing",
    )
    assert int(after[3]) >= 0


def traced() -> Any:
    return replace(QUICK, trace=True)


@pytest.mark.feature(78)
async def test_the_record_says_how_a_call_ended(broker: FakeBroker) -> None:
    answers: dict[bytes, Any] = {
        b"later": LATER,
        b"nonsense": 7,
        b"reply": Reply(b"2.20"),
        b"good": None,
    }
    seen: list[bytes] = []

    def bill(message: MessageExt) -> Any:
        seen.append(message.body)
        if message.body == b"raises":
            raise ValueError("bad")
        return answers[message.body]

    for body in (*answers, b"raises"):
        broker.put("Orders", body, properties=encode_properties({"UNIQ_KEY": body.decode()}))
    one = listener("Orders", group="billing", start="earliest")(bill)
    async with PushConsumer(one, name_server=broker.address, config=traced()):
        await eventually(lambda: len(seen) == 5)
    ends = {row[2]: (row[4], row[6], *row[9:]) for row in traces(broker) if row[0] == "SubAfter"}
    assert ends == {
        "later": ("false", "4", "its listener asked for another try"),
        "nonsense": ("false", "3", "its listener returned 7, which is not a result"),
        "reply": ("true", "0"),
        "good": ("true", "0"),
        "raises": ("false", "2", "ValueError('bad')"),
    }


@pytest.mark.feature(78)
async def test_a_call_that_outlasts_the_consume_timeout_is_recorded_as_such(
    broker: FakeBroker,
) -> None:
    broker.put("Orders", b"slow", properties=encode_properties({"UNIQ_KEY": "ID1"}))
    done = asyncio.Event()
    loop, timeout_s = asyncio.get_running_loop(), 0.05

    async def bill(_: MessageExt) -> None:
        begun = loop.time()
        # its time is over
        await broker.received(RequestCode.CONSUMER_SEND_MSG_BACK)
        # also by the clock of the record, which begins a little later than that of the worker
        while loop.time() < begun + timeout_s:
            await asyncio.sleep(timeout_s)
        done.set()

    one = listener("Orders", group="billing", start="earliest", consume_timeout_s=timeout_s)(bill)
    async with PushConsumer(one, name_server=broker.address, config=traced()):
        await done.wait()
    [after] = [row for row in traces(broker) if row[0] == "SubAfter"]
    assert (after[4], after[6]) == ("true", "1")


async def test_messages_that_are_iterated_over_are_recorded(broker: FakeBroker) -> None:
    for name in ("ID1", "ID2"):
        broker.put("Orders", b"x", properties=encode_properties({"UNIQ_KEY": name}))
    async with PushConsumer(
        "Orders", group="billing", start="earliest", name_server=broker.address, config=traced()
    ) as consumer:
        async for incoming in consumer:
            if incoming.id == "ID1":
                incoming.done()
            else:
                incoming.later()
                break
    assert [(row[0], row[2], row[4], row[6]) for row in traces(broker) if row[0] == "SubAfter"] == [
        ("SubAfter", "ID1", "true", "0"),
        ("SubAfter", "ID2", "false", "4"),
    ]
