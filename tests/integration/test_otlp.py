"""OpenTelemetry of applications in processes of their own, exported to a receiver of OTLP."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ogive
from ogive.proxy import rocketmq_pb2 as pb
from ogive.testing import Broker
from tests.grpc_client import GrpcClient
from tests.otlp import SET_UP, Receiver, attributes, links, receiving
from tests.processes import stop

WAIT_S = 60.0
SENDER = (
    SET_UP
    + """
import ogive
with trace.get_tracer("shop").start_as_current_span("order"):
    with ogive.Producer(os.environ["NAME_SERVER"], group="shop", check=lambda _: None) as producer:
        producer.send("Orders", b"send")
        producer.submit("Orders", b"submit").result()
        producer.send_oneway("Orders", b"oneway")
        with producer.transaction("Orders", b"transaction"):
            pass
        producer.send_batch("Orders", [b"batch 1", b"batch 2"])
        if os.environ["REQUESTS"]:
            producer.request("Orders", b"request", timeout_s=60)
"""
)
WORKER = (
    SET_UP
    + """
import ogive

@ogive.listener("Orders", group="billing", start="earliest", mode=os.environ.get("MODE", "pull"))
def bill(message):
    # a span of the application's own, below that of the call
    with trace.get_tracer("worker").start_as_current_span("charge"):
        return ogive.Reply(b"done") if message.text == "request" else None
"""
)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(grpc_port=0) as broker, ogive.Admin(broker.name_server) as admin:
        admin.create_topic("Orders", queues=1)
        yield broker


@pytest.fixture
def otlp() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@contextmanager
def worker(
    folder: Path, broker: Broker, otlp: Receiver, *words: str, mode: str = "pull"
) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "otlp_worker.py").write_text(WORKER)
    command = [sys.executable, "-m", "ogive", "run", "otlp_worker:bill", *words]
    environment = os.environ | otlp.environment("worker") | {"MODE": mode}
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [*command, "-n", broker.name_server], cwd=folder, env=environment, stderr=errors
        )
    try:
        yield process
    finally:
        stop(process)


def send(broker: Broker, otlp: Receiver, *, requests: bool = True) -> None:
    environment = os.environ | otlp.environment("shop")
    environment |= {"NAME_SERVER": broker.name_server, "REQUESTS": "1" if requests else ""}
    done = subprocess.run(
        [sys.executable, "-c", SENDER],
        env=environment,
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("mode", ["pull", "pop"])
def test_one_trace_goes_from_each_send_through_the_worker(
    tmp_path: Path, broker: Broker, otlp: Receiver, mode: str
) -> None:
    with worker(tmp_path, broker, otlp, mode=mode) as process:
        send(broker, otlp)
        otlp.wait("worker", "process Orders", 7)
        # the last spans and figures are exported at the end
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    check(otlp, 5)


@pytest.mark.bridge
@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_trace_goes_through_workers_of_spark(
    tmp_path: Path, broker: Broker, otlp: Receiver
) -> None:
    words = ("--engine", "spark", "--memory", "512m")
    with worker(tmp_path, broker, otlp, *words) as process:
        # no reply comes from Spark
        send(broker, otlp, requests=False)
        otlp.wait("worker", "process Orders", 6, 300.0)
        otlp.wait("worker", "charge", 6)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    check(otlp, 4)


def check(otlp: Receiver, singles: int) -> None:
    """The spans and figures of both processes belong together: *singles* sends of one message, and
    a batch of two.
    """
    count = singles + 2
    (order,) = otlp.spans("shop", "order")
    sends, creates = otlp.spans("shop", "send Orders"), otlp.spans("shop", "create Orders")
    assert (len(sends), len(creates)) == (singles + 1, 2)
    assert {span.parent_span_id for span in (*sends, *creates)} == {order.span_id}
    batches = [span for span in sends if span.links]
    assert links(batches) == {span.span_id for span in creates}
    carried = {span.span_id for span in (*sends, *creates)} - {span.span_id for span in batches}
    calls = otlp.spans("worker", "process Orders")
    assert {span.trace_id for span in (*sends, *creates, *calls)} == {order.trace_id}
    assert links(calls) == carried
    # a half message, for one, may be delivered again
    assert {span.parent_span_id for span in calls} == carried
    assert {attributes(span)["messaging.consumer.group.name"] for span in calls} == {"billing"}
    charges = otlp.spans("worker", "charge")
    assert {span.parent_span_id for span in charges} <= {span.span_id for span in calls}
    assert len(charges) >= count
    assert otlp.total("shop", "messaging.client.sent.messages") == count
    assert otlp.total("shop", "messaging.client.operation.duration") == singles + 1
    assert otlp.total("worker", "messaging.client.consumed.messages") >= count
    assert otlp.total("worker", "messaging.process.duration") >= count


async def test_the_context_crosses_the_grpc_port(
    tmp_path: Path, broker: Broker, otlp: Receiver
) -> None:
    """An SDK reads and writes it as a property of the user's."""
    given = f"00-{7:032x}-{9:016x}-01"
    client = await GrpcClient.connect(int(broker.grpc_endpoint.rpartition(":")[2]))

    async def call(
        name: str, request: pb.SendMessageRequest | pb.ReceiveMessageRequest
    ) -> list[bytes]:
        metadata = [("x-mq-client-id", "sdk"), ("x-mq-language", "PYTHON")]
        reply = await client.call(name, request.SerializeToString(), metadata=metadata)
        assert reply.status == 0, reply.headers
        return list(reply.messages)

    try:
        message = pb.Message(
            topic=pb.Resource(name="Orders"),
            body=b"from an SDK",
            user_properties={"traceparent": given},
            system_properties=pb.SystemProperties(message_id="01" + 32 * "A"),
        )
        await call("SendMessage", pb.SendMessageRequest(messages=[message]))
        with worker(tmp_path, broker, otlp):
            (span,) = otlp.wait("worker", "process Orders")
        assert (span.trace_id, span.parent_span_id) == (
            (7).to_bytes(16, "big"),
            (9).to_bytes(8, "big"),
        )
        with ogive.Producer(broker.name_server) as producer:
            producer.send("Orders", b"to an SDK", properties={"traceparent": given})
        request = pb.ReceiveMessageRequest(group=pb.Resource(name="sdk"), batch_size=32)
        request.message_queue.topic.name, request.message_queue.id = "Orders", -1
        request.filter_expression.type, request.filter_expression.expression = pb.TAG, "*"
        request.invisible_duration.FromSeconds(30)
        request.long_polling_timeout.FromSeconds(20)
        answers = map(pb.ReceiveMessageResponse.FromString, await call("ReceiveMessage", request))
        found = {
            one.message.body: one.message.user_properties["traceparent"]
            for one in answers
            if one.HasField("message")
        }
        assert found == {b"from an SDK": given, b"to an SDK": given}
    finally:
        client.close()
