"""ogive.otel: what is exported, against a scripted broker; tests/integration has a real one."""

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

import ogive
import ogive.otel
from ogive import Message
from ogive.errors import MessageIllegal, ResponseCode
from ogive.testing.fake_broker import FakeBroker, error
from ogive.wire.codes import RequestCode
from ogive.wire.message import MAX_PROPERTIES_BYTES, decode_properties
from tests.telemetry import Telemetry, instrumented
from tests.unit.client.serving import on_a_thread
from tests.unit.client.test_producer import properties_of

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with on_a_thread() as fake:
        yield fake


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    with instrumented() as made:
        yield made


def test_a_failed_send_is_a_failed_span(broker: FakeBroker, telemetry: Telemetry) -> None:
    broker.on(SEND, error(ResponseCode.MESSAGE_ILLEGAL, "too long"))
    with ogive.Producer(broker.address) as producer, pytest.raises(MessageIllegal):
        producer.send("Orders", b"1")
    [span] = telemetry.spans
    attributes = span.attributes or {}
    assert (span.name, span.status.is_ok) == ("send Orders", False)
    assert attributes["error.type"] == "ogive.errors.MessageIllegal"
    assert [event.name for event in span.events] == ["exception"]
    [sent] = telemetry.metrics()["messaging.client.sent.messages"]
    assert (sent.value, sent.attributes["error.type"]) == (1, attributes["error.type"])


def test_each_submitted_message_has_a_span_of_the_callers_trace(
    broker: FakeBroker, telemetry: Telemetry
) -> None:
    with (
        ogive.Producer(broker.address) as producer,
        telemetry.tracer.start_as_current_span("order") as order,
    ):
        producer.submit("Orders", b"the topic is known").result()
        handles = [producer.submit("Orders", b"%d" % number) for number in range(20)]
    ids = [handle.result().id for handle in handles]
    assert len(broker.of(RequestCode.SEND_BATCH_MESSAGE)) < 20
    spans = telemetry.named("send Orders")
    assert len({span.context.span_id for span in spans}) == 21
    assert [(span.attributes or {})["messaging.message.id"] for span in spans[1:]] == ids
    assert {span.context.trace_id for span in spans} == {order.get_span_context().trace_id}


def test_clients_that_are_made_after_uninstrument_send_no_context(
    broker: FakeBroker, telemetry: Telemetry
) -> None:
    ogive.otel.uninstrument()
    with ogive.Producer(broker.address) as producer:
        producer.send("Orders", b"1")
    with telemetry.tracer.start_as_current_span("work"):
        pass
    assert [span.name for span in telemetry.spans] == ["work"]
    assert "traceparent" not in properties_of(broker.of(SEND)[0])


class Broken(SpanProcessor):
    """A processor of an application that has a fault."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if "create" not in span.name:
            raise RuntimeError(span.name)

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError(span.name)


def test_telemetry_that_fails_is_logged_and_loses_no_message(
    broker: FakeBroker, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry.tracer_provider.add_span_processor(Broken())
    with ogive.Producer(broker.address) as producer:
        assert producer.send("Orders", b"1").status.name == "SEND_OK"
        assert len(producer.send_batch("Orders", [b"2", b"3"])) == 2
    logged = {record.message for record in caplog.records if record.levelno == logging.ERROR}
    assert logged == {"no span for a message for Orders"}


@pytest.mark.parametrize("left", [0, 60, 200])
def test_a_message_without_room_for_its_trace_is_sent_without_it(
    broker: FakeBroker, telemetry: Telemetry, caplog: pytest.LogCaptureFixture, left: int
) -> None:
    """*left*: bytes that the message alone leaves of the limit."""
    text = "x" * (MAX_PROPERTIES_BYTES - len("UNIQ_KEY\x01\x02" + "k\x01\x02") - 32 - left)
    with ogive.Producer(broker.address) as producer:
        for _ in range(2):
            producer.send("Orders", b"1", properties={"k": text})
        producer.send_batch("Orders", [Message("Orders", b"2", properties={"k": text})])
        producer.submit("Orders", b"3", properties={"k": text}).result()
        producer.send("Orders", b"4")
    kept = [
        decode_properties(message.properties)
        for message in sorted(
            (m for rows in broker.stored.values() for m in rows), key=lambda m: m.commitlog_offset
        )
    ]
    assert [len(properties.get("k", "")) for properties in kept] == [len(text)] * 4 + [0]
    assert ["traceparent" in properties for properties in kept] == [False] * 4 + [True]
    logged = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert ["without the context of its trace" in line for line in logged] == [True]
    assert len(telemetry.named("send Orders")) == 5


WITHOUT = """
import sys
from ogive.aio import Producer, PullConsumer, PushConsumer, SimpleConsumer
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
sys.modules["opentelemetry"] = None
try:
    import ogive.otel
except ModuleNotFoundError as exc:
    print(exc)
"""


def test_nothing_is_imported_without_it_and_a_missing_package_is_named() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.rstrip().endswith("ogive.otel needs pip install 'ogive[otel]'")
