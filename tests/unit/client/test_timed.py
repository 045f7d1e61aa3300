"""Messages for a later time, and taking them back."""

import base64
import copy
import pickle
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from ogive import aio
from ogive.errors import BrokerError, InvalidOption, ResponseCode
from ogive.model import Message, RecallResult
from ogive.testing.fake_broker import FakeBroker, error, ok
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.send import RecallMessageResponse, SendMessageResponse
from ogive.wire.message import decode_properties

SEND, RECALL = RequestCode.SEND_MESSAGE_V2, RequestCode.RECALL_MESSAGE
AT = datetime(2026, 11, 22, 12, 0, 0, 250_000, tzinfo=UTC)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1}) as broker:
        yield broker


def properties_of(request: RemotingCommand) -> dict[str, str]:
    return decode_properties(request.ext_fields["i"].encode())


def handle(topic: str, broker_name: str = "broker-a") -> str:
    return base64.urlsafe_b64encode(f"v1 {topic} {broker_name} 1795348800001 KEY".encode()).decode()


async def test_a_time_and_a_delay_travel_as_properties_in_milliseconds(broker: FakeBroker) -> None:
    async with aio.Producer(broker.address) as producer:
        await producer.send("Orders", b"1", deliver_at=AT)
        await producer.send("Orders", b"2", delay_s=1.5)
        await producer.send(Message("Orders", b"3", delay_s=0))
    sent = [properties_of(request) for request in broker.of(SEND)]
    assert [(p.get("TIMER_DELIVER_MS"), p.get("TIMER_DELAY_MS")) for p in sent] == [
        (str(int(AT.timestamp() * 1000)), None),
        (None, "1500"),
        (None, "0"),
    ]


async def test_they_never_share_a_request(broker: FakeBroker) -> None:
    """Brokers refuse them in batches."""
    async with aio.Producer(broker.address) as producer:
        broker.hold(SEND)
        first = [await producer.submit("Orders", b"%d" % i) for i in range(8)]
        timed = [await producer.submit("Orders", b"t%d" % i, delay_s=60) for i in range(8)]
        await broker.received(SEND)
        broker.release(SEND)
        for future in first + timed:
            await future
        with pytest.raises(InvalidOption, match="delayed messages cannot be sent in a batch"):
            await producer.send_batch("Orders", [Message("Orders", b"x", delay_s=1)])
        with pytest.raises(InvalidOption, match="either transactional or delayed"):
            producer.transaction(Message("Orders", b"x", deliver_at=AT))
    assert sum("TIMER_DELAY_MS" in properties_of(request) for request in broker.of(SEND)) == 8


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"deliver_at": AT, "delay_s": 1.0}, "give one of them"),
        ({"delay_level": 1, "delay_s": 1.0}, "give one of them"),
        ({"deliver_at": AT.replace(tzinfo=None)}, "needs a time zone"),
        ({"delay_s": -1.0}, "delay_s is -1"),
        ({"delay_s": float("nan")}, "delay_s is nan"),
    ],
)
def test_a_time_that_makes_no_sense_is_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        Message("Orders", b"x", **how)


async def test_what_waits_is_taken_back_at_its_broker(broker: FakeBroker) -> None:
    given = handle("Orders")
    stored = SendMessageResponse(
        msg_id="7F00000100002A9F0000000000000000", queue_id=0, queue_offset=0, recall_handle=given
    )
    broker.on(SEND, ok(stored))
    broker.on(RECALL, ok(RecallMessageResponse(msg_id="KEY")))
    async with aio.Producer(broker.address, group="sellers") as producer:
        sent = await producer.send("Orders", b"1", delay_s=60)
        assert sent.recall_handle == given
        result = await producer.recall("Orders", given)
        assert (result.id, result.recalled) == ("KEY", None)
        for told in (True, False):
            broker.on(RECALL, ok(RecallMessageResponse(msg_id="KEY", recalled=told)))
            assert await producer.recall("Orders", given) == RecallResult("KEY", told)
        broker.on(RECALL, error(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid"))
        with pytest.raises(BrokerError, match="timestamp invalid"):
            await producer.recall("Orders", given)
    fields = broker.of(RECALL)[0].ext_fields
    assert (
        fields
        | {
            "topic": "Orders",
            "recallHandle": given,
            "producerGroup": "sellers",
            "bname": "broker-a",
        }
        == fields
    )


@pytest.mark.parametrize(
    "use",
    [
        lambda result: result == "KEY",
        lambda result: result != "ANOTHER",
        lambda result: str(result) == "KEY",
        lambda result: f"{result}" == "KEY",
        lambda result: result + "!" == "KEY!",
        lambda result: result.lower() == "key",
        lambda result: {"KEY": 1}[result] == 1,
    ],
)
def test_the_result_of_a_recall_still_works_as_text_with_a_warning(
    use: Callable[[RecallResult], bool],
) -> None:
    with pytest.warns(DeprecationWarning, match="take its id"):
        assert use(RecallResult("KEY", recalled=True))


def test_the_result_of_a_recall_is_a_value() -> None:
    result = RecallResult("KEY", recalled=False)
    assert pickle.loads(pickle.dumps(result)) == result == copy.copy(result)
    assert result != RecallResult("KEY", recalled=None)
    assert repr(result) == "RecallResult(id='KEY', recalled=False)"
    assert isinstance(result, str)
    assert type(result.id) is str


@pytest.mark.parametrize(
    "text", ["", "x", "!!", "djI=", base64.urlsafe_b64encode(b"v2 a b c d").decode(), "ä"]
)
async def test_a_handle_that_no_broker_gave_is_refused_before_one_is_asked(
    broker: FakeBroker, text: str
) -> None:
    async with aio.Producer(broker.address) as producer:
        with pytest.raises(InvalidOption, match="is not a recall handle"):
            await producer.recall("Orders", text)
    assert broker.requests == []
