"""Blocking sends that are alone: their own thread asks the broker, and everything else stays as it
is.
"""

import dis
import os
import signal
import ssl as tls
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import pytest
import trustme

import ogive
from ogive.client.config import ClientConfig, ProducerConfig
from ogive.client.portal import OneShot, Portal, portal
from ogive.client.sending import accumulator, answer, destinations, lone, pending, publisher
from ogive.client.sending.destinations import Destinations
from ogive.client.sending.pending import Target
from ogive.client.sync import producer as sync_producer
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
from ogive.transport import busy_poll
from ogive.transport import line as lines
from ogive.transport.line import Line
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from tests.unit.client.serving import on_a_thread

SEND = RequestCode.SEND_MESSAGE_V2
WAIT_S = 60.0


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with on_a_thread() as fake:
        yield fake


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The requests that went the short way."""
    monkeypatch.setattr(lone, "OPEN_PAUSE_S", 0.0)
    opaques: list[int] = []
    ask = Line.ask

    def spy(line: Line, opaque: int, frame: bytes, timeout_s: float) -> RemotingCommand:
        opaques.append(opaque)
        return ask(line, opaque, frame, timeout_s)

    monkeypatch.setattr(Line, "ask", spy)
    return opaques


def until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)


def warm_up(producer: ogive.Producer, asked: list[int]) -> None:
    """Send until a message has gone the short way; the next one can, too."""
    before = len(asked)
    until(lambda: producer.send("Orders", b"warm").id and len(asked) > before)


@contextmanager
def ready(broker: FakeBroker, asked: list[int], **settings: Any) -> Iterator[ogive.Producer]:
    with ogive.Producer(broker.address, config=ProducerConfig(**settings)) as producer:
        warm_up(producer, asked)
        asked.clear()
        yield producer


def release(broker: FakeBroker) -> None:
    connection, _ = broker._held[SEND][0]
    connection._loop.call_soon_threadsafe(broker.release, SEND)


def count_of(broker: FakeBroker, body: bytes) -> int:
    return broker.bodies("Orders").get(0, []).count(body)


# --- which way ------------------------------------------------------------------------------------


def test_sends_that_follow_one_another_do_not_wake_the_loop(
    broker: FakeBroker, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ready(broker, asked) as producer:
        with monkeypatch.context() as patched:
            patched.setattr(Portal, "post", None)
            patched.setattr(Portal, "call", None)
            results = [producer.send("Orders", b"%d" % i, tag="paid") for i in range(10)]
        assert len(asked) == 10
        assert (producer.in_flight, broker.connections) == (0, 2)
        stored = broker.bodies("Orders")[0]
        assert [stored[result.queue_offset] for result in results] == [b"%d" % i for i in range(10)]
        assert len({result.id for result in results}) == 10
    until(lambda: broker.connections == 0)


def test_what_must_keep_its_order_or_is_watched_or_large_goes_through_the_loop(
    broker: FakeBroker, asked: list[int]
) -> None:
    with ready(broker, asked) as producer:
        producer.send("Orders", b"1", sharding_key="N14228")
        producer.send("Orders", b"2", queue=ogive.MessageQueue("Orders", broker.name, 0))
        producer.send("Orders", os.urandom(lone.MAX_BYTES))
        assert asked == []
    with ogive.Producer(broker.address, config=ProducerConfig(trace=True)) as producer:
        for _ in range(5):
            producer.send("Orders", b"3")
    assert asked == []


def test_a_send_beside_others_goes_with_them_through_the_loop(
    broker: FakeBroker, asked: list[int]
) -> None:
    with ready(broker, asked) as producer:
        broker.hold(SEND)
        first = producer.submit("Orders", b"on its way")
        until(lambda: broker.of(SEND)[-1].body == b"on its way")
        second = threading.Thread(target=producer.send, args=("Orders", b"beside"))
        second.start()
        until(lambda: broker.of(SEND)[-1].body == b"beside")
        assert (asked, producer.in_flight) == ([], 2)
        release(broker)
        second.join(WAIT_S)
        assert first.result(WAIT_S).status is SendStatus.SEND_OK


def test_a_message_on_the_short_way_is_in_flight_like_any_other(
    broker: FakeBroker, asked: list[int]
) -> None:
    with ready(broker, asked) as producer:
        broker.hold(SEND)
        first = threading.Thread(target=producer.send, args=("Orders", b"alone"))
        first.start()
        until(lambda: broker.of(SEND)[-1].body == b"alone")
        second = threading.Thread(target=producer.send, args=("Orders", b"beside"))
        second.start()
        until(lambda: broker.of(SEND)[-1].body == b"beside")
        assert (len(asked), producer.in_flight) == (1, 2)
        release(broker)
        first.join(WAIT_S)
        second.join(WAIT_S)
        assert producer.in_flight == 0


def test_of_two_threads_at_the_same_moment_one_goes_through_the_loop(
    broker: FakeBroker, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    choosing, go_on = threading.Event(), threading.Event()
    free_target = Destinations.free_target

    def slowly(known: Destinations, name: str, now: float) -> Target | None:
        choosing.set()
        assert go_on.wait(WAIT_S)
        return free_target(known, name, now)

    with ready(broker, asked) as producer:
        monkeypatch.setattr(Destinations, "free_target", slowly)
        first = threading.Thread(target=producer.send, args=("Orders", b"first"))
        first.start()
        assert choosing.wait(WAIT_S)
        producer.send("Orders", b"second")
        assert asked == []
        go_on.set()
        first.join(WAIT_S)
        assert len(asked) == 1


def test_results_carry_the_names_that_users_know(broker: FakeBroker, asked: list[int]) -> None:
    broker.topics["shop%Orders"] = 1
    with ogive.Producer(
        client=ClientConfig(name_server=broker.address, namespace="shop")
    ) as producer:
        warm_up(producer, asked)
        before = len(asked)
        assert producer.send("Orders", b"").queue.topic == "Orders"
        assert len(asked) == before + 1
    assert len(broker.bodies("shop%Orders")[0]) > before


def test_a_slow_answer_makes_its_broker_avoided(
    broker: FakeBroker, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ready(broker, asked, avoid_slow_brokers=True) as producer:
        monkeypatch.setattr(pending, "_AVOIDANCE_S", ((0.0, 60.0),))
        producer.send("Orders", b"slow")
        assert len(asked) == 1
        producer.send("Orders", b"no other broker is there")
        assert len(asked) == 1


def test_for_a_message_now_and_then_there_is_no_second_connection(
    broker: FakeBroker, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lone, "FOLLOWS_S", 0.0)
    with ogive.Producer(broker.address) as producer:
        for _ in range(20):
            producer.send("Orders", b"")
        assert (asked, broker.connections) == ([], 1)


def test_over_tls_nothing_goes_beside_the_encrypted_connection(asked: list[int]) -> None:
    authority = trustme.CA()
    serving, trusting = tls.SSLContext(tls.PROTOCOL_TLS_SERVER), tls.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(serving)
    authority.configure_trust(trusting)
    with (
        on_a_thread(serving) as broker,
        ogive.Producer(client=ClientConfig(name_server=broker.address, ssl=trusting)) as producer,
    ):
        for _ in range(20):
            producer.send("Orders", b"")
        assert (asked, broker.connections) == ([], 1)


def test_an_idle_connection_is_closed(
    broker: FakeBroker, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lone, "IDLE_S", 0.02)
    with ogive.Producer(broker.address) as producer:
        until(lambda: producer.send("Orders", b"").id and broker.connections == 2)
        until(lambda: broker.connections == 1)
        producer.send("Orders", b"")


@pytest.mark.parametrize(
    ("processors", "busy_poll_s", "looks"), [(1, 200e-6, False), (2, 200e-6, True), (2, 0.0, False)]
)
def test_the_answer_is_looked_for_where_another_processor_can_work_meanwhile(
    broker: FakeBroker,
    asked: list[int],
    monkeypatch: pytest.MonkeyPatch,
    processors: int,
    busy_poll_s: float,
    looks: bool,
) -> None:
    begun: list[float] = []
    begin = busy_poll.Expectation.begin

    def spy(expected: busy_poll.Expectation) -> bool:
        begun.append(expected._limit_s)
        return begin(expected)

    monkeypatch.setattr(lone, "_processors", lambda: processors)
    monkeypatch.setattr(busy_poll.Expectation, "begin", spy)
    with ready(broker, asked, busy_poll_s=busy_poll_s) as producer:
        begun.clear()
        producer.send("Orders", b"1")
        assert len(asked) == 1
        assert begun == ([busy_poll_s] if looks else [])


# --- what can go wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "retries", "new_line"),
    [
        ([error(ResponseCode.SYSTEM_BUSY)], 1, False),
        # the first does not count
        ([error(ResponseCode.GO_AWAY), HANG_UP], 1, True),
        ([HANG_UP], 1, True),
        ([Raw(b"HTTP/1.1 400")], 1, True),
        (
            [
                RemotingCommand(
                    SendStatus.FLUSH_DISK_TIMEOUT.value,
                    {"queueId": "0", "queueOffset": "0", "msgId": "7F"},
                )
            ],
            1,
            False,
        ),
    ],
    ids=["busy", "go away", "hangs up", "nonsense", "not flushed"],
)
def test_a_failed_try_is_followed_by_another_one_as_ever(
    broker: FakeBroker, asked: list[int], answers: list[Script], retries: int, new_line: bool
) -> None:
    with ready(broker, asked, retries=retries, retry_when_not_stored_ok=True) as producer:
        broker.script(SEND, *answers)
        result = producer.send("Orders", b"again")
        assert result.status is SendStatus.SEND_OK
        assert len(asked) == 1
        assert [request.body for request in broker.of(SEND)].count(b"again") == len(answers) + 1
        assert producer.in_flight == 0
        warm_up(producer, asked)
        assert (asked[-1] == 1) == new_line


@pytest.mark.parametrize("way", ["short", "loop"])
def test_errors_are_the_same_on_both_ways(
    broker: FakeBroker, asked: list[int], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    with ready(broker, asked, retries=0) as producer:
        if way == "loop":
            monkeypatch.setattr(lone.LoneSends, "send", lambda self, outgoing, timeout_s: False)
        found: list[str] = []
        for script in (
            error(ResponseCode.MESSAGE_ILLEGAL, "no"),
            error(ResponseCode.SYSTEM_BUSY, "later"),
            HANG_UP,
            SILENT,
        ):
            warm_up(producer, asked) if way == "short" else producer.send("Orders", b"")
            asked.clear()
            broker.script(SEND, script)
            with pytest.raises(OgiveError) as caught:
                producer.send("Orders", b"x", timeout_s=0.05 if script is SILENT else WAIT_S)
            assert (len(asked), producer.in_flight) == (way == "short", 0)
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


def test_whatever_goes_wrong_after_a_failed_try_reaches_the_caller(
    broker: FakeBroker, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ready(broker, asked) as producer:
        broker.script(SEND, error(ResponseCode.SYSTEM_BUSY, "later"))
        with monkeypatch.context() as patched:
            patched.setattr(publisher.Publisher, "note_failure", None)
            with pytest.raises(TypeError, match="not callable"):
                producer.send("Orders", b"x")
        assert (len(asked), producer.in_flight) == (1, 0)
        assert producer.send("Orders", b"next").status is SendStatus.SEND_OK


def test_a_broker_that_hung_up_meanwhile_gets_the_message_once(
    broker: FakeBroker, asked: list[int]
) -> None:
    with ready(broker, asked) as producer:
        loop = portal()
        [line] = producer._lone._lines.values()  # type: ignore[union-attr]
        line.hang_up()
        producer.send("Orders", b"once")
        assert (asked, count_of(broker, b"once")) == ([], 1)
        assert loop.posted == 0


def test_a_silent_link_costs_one_timeout_only(broker: FakeBroker, asked: list[int]) -> None:
    """The client's own connection is given up with it, as if the request had been on that."""
    with ready(broker, asked, retries=0) as producer:
        broker.mute = True
        with pytest.raises(SendTimeout):
            producer.send("Orders", b"lost", timeout_s=1.1)
        until(lambda: broker.connections == 0)
        broker.mute = False
        assert producer.send("Orders", b"next").status is SendStatus.SEND_OK


# --- flush, close ---------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["flush", "close"])
def test_flush_and_close_wait_for_the_outcome(
    broker: FakeBroker, asked: list[int], end: str
) -> None:
    with ready(broker, asked, send_timeout_s=WAIT_S) as producer:
        broker.hold(SEND)
        results: list[SendResult] = []
        sending = threading.Thread(target=lambda: results.append(producer.send("Orders", b"slow")))
        sending.start()
        until(lambda: broker.of(SEND)[-1].body == b"slow")
        ending = threading.Thread(target=getattr(producer, end))
        ending.start()
        until(lambda: producer._lone._publisher.is_flushing)  # type: ignore[union-attr]
        assert ending.is_alive()
        release(broker)
        ending.join(WAIT_S)
        assert not ending.is_alive()
        sending.join(WAIT_S)
        assert [result.status for result in results] == [SendStatus.SEND_OK]
        assert len(asked) == 1
    until(lambda: broker.connections == 0)


def test_a_send_that_outlives_its_producer_ends_with_an_error(
    broker: FakeBroker, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ready(broker, asked, send_timeout_s=WAIT_S) as producer:
        broker.hold(SEND)
        errors: list[OgiveError] = []

        def send() -> None:
            try:
                producer.send("Orders", b"slow")
            except OgiveError as exc:
                errors.append(exc)

        sending = threading.Thread(target=send)
        sending.start()
        until(lambda: broker.of(SEND)[-1].body == b"slow")

        async def no_patience(_: object) -> None: ...

        monkeypatch.setattr(publisher.Publisher, "flush", no_patience)
        portal().call(producer._producer.close())
        sending.join(WAIT_S)
        assert [str(one) for one in errors] == [publisher.CLOSED_MEANWHILE]
        assert len(asked) == 1
        release(broker)


def test_an_answer_in_the_moment_of_the_end_is_no_second_outcome() -> None:
    """The producer's close and the sender's own thread come to the message at the same time."""
    for first, second in (("set_exception", "set_result"), ("set_result", "set_exception")):
        outcome: OneShot[object] = OneShot()
        getattr(outcome, first)(IllegalStateError("closed"))
        getattr(outcome, second)(IllegalStateError("closed"))
        with pytest.raises(IllegalStateError, match="closed"):
            outcome.result()


def test_a_message_whose_outcome_was_lost_holds_nobody_up_beyond_its_deadline(
    broker: FakeBroker, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "GRACE_S", 0.01)
    with ready(broker, asked) as producer:
        lost = pending.Outgoing("Orders", b"", "", None, None)
        lost.future = OneShot[SendResult]()
        lost.deadline = time.monotonic()
        producer._producer.publisher.under_way.add(lost)
        producer.flush()


# --- interrupts -----------------------------------------------------------------------------------


class Interrupted(BaseException):
    pass


CODE = {
    module.__file__
    for module in (
        answer,
        destinations,
        busy_poll,
        lone,
        lines,
        publisher,
        accumulator,
        sync_producer,
    )
}


class Interrupter:
    """Raises where an interrupt can strike: after the *nth* call, jump or entry that the
    interpreter makes in the modules above.
    """

    def __init__(self, nth: int) -> None:
        self.nth = nth
        self._names: dict[CodeType, dict[int, str]] = {}

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename not in CODE:
            return None
        names = self._names.setdefault(
            frame.f_code, {i.offset: i.opname for i in dis.get_instructions(frame.f_code)}
        )
        before = ""

        def instruction(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal before
            if event == "opcode":
                if before.startswith(("CALL", "RESUME", "JUMP_BACKWARD")):
                    self.nth -= 1
                    if self.nth == 0:
                        raise Interrupted
                before = names[frame.f_lasti]
            return instruction

        # in this order: 3.13 looks for the function when it is switched on
        frame.f_trace, frame.f_trace_opcodes = instruction, True
        return instruction


@pytest.mark.parametrize("busy_poll_s", [0.0, 50e-6], ids=["sleeping", "looking"])
def test_an_interrupt_at_any_moment_leaves_everything_in_order(
    broker: FakeBroker, asked: list[int], monkeypatch: pytest.MonkeyPatch, busy_poll_s: float
) -> None:
    """Later answers belong to their messages, nothing stays in flight, no message is stored twice,
    and the short way stays open.
    """
    monkeypatch.setattr(lone, "_processors", lambda: 2)
    # every answer is looked for
    for name, value in {"SOON": 0, "SHARE": 1.0, "SAVED_S": WAIT_S, "HELD_UP_S": WAIT_S}.items():
        monkeypatch.setattr(busy_poll, name, value)
    with ready(broker, asked, busy_poll_s=busy_poll_s) as producer:
        moment, interrupted = 0, True
        while interrupted:
            moment += 1
            body = b"message %d" % moment
            traced = sys.gettrace()
            # 3.12: what settrace() goes by
            sys._getframe().f_trace_opcodes = True
            sys.settrace(Interrupter(moment))
            try:
                producer.send("Orders", body)
                interrupted = False
            except Interrupted:
                pass
            finally:
                sys.settrace(traced)
            assert producer.in_flight == 0
            after = producer.send("Orders", b"after %d" % moment)
            assert broker.bodies("Orders")[0][after.queue_offset] == b"after %d" % moment
            warm_up(producer, asked)
        assert moment > 30
        producer.flush()
        bodies = broker.bodies("Orders")[0]
        assert all(bodies.count(b"message %d" % i) <= 1 for i in range(1, moment))
        assert any(bodies.count(b"message %d" % i) == 1 for i in range(1, moment))
        assert bodies.count(b"message %d" % moment) == 1


def test_an_interrupted_send_says_that_nobody_knows(broker: FakeBroker, asked: list[int]) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    with ready(broker, asked, send_timeout_s=WAIT_S) as producer:
        broker.hold(SEND)

        def press() -> None:
            until(lambda: broker.of(SEND)[-1].body == b"4711")
            os.kill(os.getpid(), signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, interrupt)
        pressing = threading.Thread(target=press)
        try:
            pressing.start()
            with pytest.raises(Interrupted) as caught:
                producer.send("Orders", b"4711")
        finally:
            pressing.join(WAIT_S)
            signal.signal(signal.SIGUSR1, before)
        assert len(asked) == 1
        [note] = caught.value.__notes__
        key = broker.of(SEND)[-1].ext_fields["i"].partition("UNIQ_KEY\x01")[2].partition("\x02")[0]
        assert note == f"The message may or may not be stored: its id is {key}."
        release(broker)
        assert (producer.in_flight, producer.send("Orders", b"next").status) == (
            0,
            SendStatus.SEND_OK,
        )
