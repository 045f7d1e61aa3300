"""Blocking sends: what can go wrong with one, and what an interrupt leaves behind."""

import asyncio
import contextlib
import gc
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

import ogive
import ogive.aio
from ogive.client.config import ProducerConfig
from ogive.client.sending.handle import SendHandle
from ogive.client.sending.pending import PendingSend
from ogive.errors import (
    BrokerError,
    IllegalStateError,
    MessageIllegal,
    OgiveError,
    ResponseCode,
    SendTimeout,
)
from ogive.model import SendResult, SendStatus
from ogive.testing.fake_broker import HANG_UP, SILENT, FakeBroker, Raw, Script, error
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from tests.unit.client.interrupting import Sweep, interrupting
from tests.unit.client.serving import on_a_thread

SEND = RequestCode.SEND_MESSAGE_V2
WAIT_S = 60.0


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with on_a_thread() as fake:
        yield fake


def until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)


def arrived(broker: FakeBroker, body: bytes) -> bool:
    """Return True if a message with *body* was sent, whatever the answer."""
    return any(request.body == body for request in broker.of(SEND))


# --- what can go wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answers",
    [
        [error(ResponseCode.SYSTEM_BUSY)],
        [error(ResponseCode.GO_AWAY)],
        [HANG_UP],
        [Raw(b"HTTP/1.1 400")],
        [
            RemotingCommand(
                SendStatus.FLUSH_DISK_TIMEOUT.value,
                {"queueId": "0", "queueOffset": "0", "msgId": "7F"},
            )
        ],
    ],
    ids=["busy", "go away", "hangs up", "nonsense", "not flushed"],
)
def test_a_failed_try_is_followed_by_another_one(broker: FakeBroker, answers: list[Script]) -> None:
    config = ProducerConfig(retries=1, retry_when_not_stored_ok=True)
    with ogive.Producer(broker.address, config=config) as producer:
        producer.send("Orders", b"first")
        broker.script(SEND, *answers)
        assert producer.send("Orders", b"again").status is SendStatus.SEND_OK
        assert [request.body for request in broker.of(SEND)].count(b"again") == len(answers) + 1
        assert producer.in_flight == 0


def test_errors_say_what_became_of_the_message(broker: FakeBroker) -> None:
    with ogive.Producer(broker.address, config=ProducerConfig(retries=0)) as producer:
        found: list[str] = []
        for script in (
            error(ResponseCode.MESSAGE_ILLEGAL, "no"),
            error(ResponseCode.SYSTEM_BUSY, "later"),
            HANG_UP,
            SILENT,
        ):
            producer.send("Orders", b"")
            broker.script(SEND, script)
            with pytest.raises(OgiveError) as caught:
                producer.send("Orders", b"x", timeout_s=0.5 if script is SILENT else WAIT_S)
            assert producer.in_flight == 0
            assert isinstance(caught.value, BrokerError) != caught.value.outcome_unknown
            found.append(str(caught.value).partition(" within ")[0])
        with pytest.raises(MessageIllegal, match="over the limit"):
            producer.send("Orders", b"", properties={"long": "x" * 40_000})
    lost = f"no answer from broker-a ({broker.address})"
    assert found == [
        f"{broker.address} answered 13 MESSAGE_ILLEGAL: no",
        f"{broker.address} answered 2 SYSTEM_BUSY: later",
        lost,
        lost,
    ]


# --- flush, close ---------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["flush", "close"])
def test_flush_and_close_wait_for_the_outcome(broker: FakeBroker, end: str) -> None:
    with ogive.Producer(broker.address, config=ProducerConfig(send_timeout_s=WAIT_S)) as producer:
        broker.hold(SEND)
        results: list[SendResult] = []
        sending = threading.Thread(target=lambda: results.append(producer.send("Orders", b"slow")))
        sending.start()
        until(lambda: arrived(broker, b"slow"))
        ending = threading.Thread(target=getattr(producer, end))
        ending.start()
        ending.join(0.05)
        assert ending.is_alive()
        broker.release(SEND)
        ending.join(WAIT_S)
        sending.join(WAIT_S)
        assert not ending.is_alive()
        assert [result.status for result in results] == [SendStatus.SEND_OK]
    until(lambda: broker.connections == 0)


def test_close_waits_until_the_time_of_a_send_is_up(broker: FakeBroker) -> None:
    client = ogive.ClientConfig(name_server=broker.address)
    config = ProducerConfig(send_timeout_s=1.0)
    with ogive.Producer(client=client, config=config) as producer:
        broker.hold(SEND)
        errors: list[OgiveError] = []

        def send() -> None:
            try:
                producer.send("Orders", b"slow")
            except OgiveError as exc:
                errors.append(exc)

        sending = threading.Thread(target=send)
        sending.start()
        until(lambda: arrived(broker, b"slow"))
    sending.join(WAIT_S)
    assert [one.outcome_unknown for one in errors] == [True]
    with pytest.raises(IllegalStateError, match="closed"):
        producer.send("Orders", b"too late")


def test_a_close_that_the_end_of_the_loop_cuts_short_ends_what_is_in_flight(
    broker: FakeBroker,
) -> None:
    async def leave_it_unanswered() -> SendHandle:
        producer = ogive.aio.Producer(broker.address, config=ProducerConfig(send_timeout_s=WAIT_S))
        await producer.start()
        broker.hold(SEND)
        future = await producer.submit("Orders", b"slow")
        await asyncio.to_thread(until, lambda: arrived(broker, b"slow"))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(producer.close(), 0.05)
        assert not future.done()
        return future

    # the end of a loop cancels its tasks
    future = asyncio.run(leave_it_unanswered())
    with pytest.raises(IllegalStateError, match="closed before the message had an outcome"):
        future.result()


# --- interrupts -----------------------------------------------------------------------------------


class Interrupted(BaseException):
    """Raised by the handler of a signal."""


def interrupt() -> None:
    raise Interrupted


@interrupting
def test_an_interrupt_at_any_moment_leaves_everything_in_order(broker: FakeBroker) -> None:
    """Later answers belong to their messages, nothing stays in flight, and no message is stored
    twice.
    """
    with ogive.Producer(broker.address) as producer:
        producer.send("Orders", b"first")
        whole, sweep = 0, Sweep(10e-6)
        for number in range(300):
            try:
                sweep.strike(partial(producer.send, "Orders", b"message %d" % number), interrupt)
                whole += 1
            except Interrupted:
                pass
            after = producer.send("Orders", b"after %d" % number)
            assert broker.bodies("Orders")[0][after.queue_offset] == b"after %d" % number
            producer.flush()
            assert producer.in_flight == 0
        bodies = broker.bodies("Orders")[0]
        copies = [bodies.count(b"message %d" % i) for i in range(300)]
        assert set(copies) <= {0, 1}
        assert sweep.struck > 30
        assert sum(copies) >= whole


def test_an_interrupted_send_says_that_nobody_knows(broker: FakeBroker) -> None:
    with ogive.Producer(broker.address, config=ProducerConfig(send_timeout_s=WAIT_S)) as producer:
        producer.send("Orders", b"first")
        broker.hold(SEND)

        def press() -> None:
            until(lambda: arrived(broker, b"4711"))
            os.kill(os.getpid(), signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, lambda *_: interrupt())
        pressing = threading.Thread(target=press)
        try:
            pressing.start()
            with pytest.raises(Interrupted) as caught:
                producer.send("Orders", b"4711")
        finally:
            pressing.join(WAIT_S)
            signal.signal(signal.SIGUSR1, before)
        [note] = caught.value.__notes__
        key = broker.of(SEND)[-1].ext_fields["i"].partition("UNIQ_KEY\x01")[2].partition("\x02")[0]
        assert note == f"The message may or may not be stored: its id is {key}."
        broker.release(SEND)
        assert producer.send("Orders", b"next").status is SendStatus.SEND_OK
        assert producer.in_flight == 0


def test_a_blocked_event_loop_does_not_hold_a_send_longer_than_its_time(
    broker: FakeBroker,
) -> None:
    """A callback that waits for another thread's send would wait for ever, and that send for it."""
    sent: queue.SimpleQueue[SendResult | OgiveError] = queue.SimpleQueue()
    with ogive.Producer(broker.address) as producer:
        producer.send("Orders", b"first")

        def send() -> None:
            try:
                sent.put(producer.send("Orders", b"second", timeout_s=0.05))
            except OgiveError as exc:
                sent.put(exc)

        def wait_for_it(_: object) -> None:
            other = threading.Thread(target=send)
            other.start()
            other.join()

        producer.submit("Orders", b"third").add_done_callback(wait_for_it)
        failure = sent.get(timeout=WAIT_S)
        assert isinstance(failure, SendTimeout)
        assert "ogive's event loop is blocked" in str(failure)
        assert failure.outcome_unknown


def in_memory() -> int:
    return sum(isinstance(one, PendingSend) for one in gc.get_objects())


def test_a_refused_message_leaves_memory_without_a_collection(broker: FakeBroker) -> None:
    with ogive.Producer(broker.address) as producer:
        producer.send("Orders", b"first")
        gc.collect()
        gc.disable()
        # tracebacks of interrupts that other tests caused may hold some, too
        others = in_memory()
        try:
            for _ in range(5):
                broker.script(SEND, error(ResponseCode.MESSAGE_ILLEGAL))
                with contextlib.suppress(MessageIllegal):
                    producer.send("Orders", b"x")
            producer.send("Orders", b"last")
            # the loop's thread may still be in the turn that answered the last one
            until(lambda: in_memory() <= others + 1)
        finally:
            gc.enable()
