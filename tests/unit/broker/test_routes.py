"""The table of handlers, and what happens to everything outside it."""

import asyncio
import dataclasses
import gc
import time
from collections.abc import Callable
from typing import Any

import pytest

from ogive.broker import Broker
from ogive.broker.replies import success
from ogive.broker.routes import NOT_SUPPORTED, ROUTES, Route
from ogive.errors import ConnectionLost, ResponseCode
from ogive.transport import event_loop
from ogive.wire.codes import RequestCode, SerializeType
from tests.raw_client import RawClient


def test_every_code_of_the_protocol_is_either_served_or_refused_for_a_stated_reason() -> None:
    assert set(RequestCode) == ROUTES.keys() | NOT_SUPPORTED.keys()
    assert not ROUTES.keys() & NOT_SUPPORTED.keys()
    assert all(NOT_SUPPORTED.values())


@pytest.mark.parametrize(
    "code", [RequestCode.RESUME_CHECK_HALF_MESSAGE, RequestCode.POP_ROLLBACK, 4_711, -1]
)
async def test_an_unknown_code_is_answered_at_once_as_java_does(
    client: RawClient, code: int
) -> None:
    answer = await client.call(code)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    reason = f": {NOT_SUPPORTED[RequestCode(code)]}" if code in NOT_SUPPORTED else ""
    assert answer.remark == f" request type {code} not supported{reason}"


async def test_an_unknown_oneway_request_gets_no_answer_and_breaks_nothing(
    client: RawClient,
) -> None:
    client.oneway(4_711)
    assert (await client.call(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)).ext_fields == {
        "offset": "0"
    }
    assert client.connection.calls_in_flight == 0


async def test_answers_are_json_and_carry_the_version_whatever_the_request_was(
    client: RawClient,
) -> None:
    """As every server of 5.x answers; clients in C++ read nothing else."""
    client.codec = SerializeType.ROCKETMQ
    answer = await client.send("T")
    assert (answer.serialize_type, answer.version) == (SerializeType.JSON, 479)
    answer = await client.call(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)
    assert (answer.serialize_type, answer.version, answer.ext_fields) == (
        SerializeType.JSON,
        479,
        {"offset": "1"},
    )


@pytest.mark.parametrize(
    ("code", "fields", "word"),
    [
        (RequestCode.GET_MAX_OFFSET, {"topic": "T"}, "queueId"),
        (RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "one"}, "queueId"),
        (RequestCode.SEND_MESSAGE_V2, {}, "'b'"),
        (RequestCode.SEND_MESSAGE_V2, {"b": "T", "e": "x", "g": "1"}, "no integer"),
        (RequestCode.PULL_MESSAGE, {"topic": "T"}, "consumerGroup"),
    ],
)
async def test_a_header_without_what_the_handler_needs_is_a_system_error_that_names_the_field(
    client: RawClient, code: int, fields: dict[str, str], word: str
) -> None:
    answer = await client.call(code, **fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert word in (answer.remark or "")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"clientID":7}', b"\xff"])
async def test_a_body_that_is_no_heartbeat_is_a_system_error(
    client: RawClient, body: bytes
) -> None:
    assert (await client.call(RequestCode.HEART_BEAT, body)).code in (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.INVALID_PARAMETER,
    )


# --- listings -------------------------------------------------------------------------------------


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Has something called whenever all topics are listed."""

    def go(look: Callable[[], None]) -> None:
        route = ROUTES[RequestCode.GET_ALL_TOPIC_CONFIG]
        assert isinstance(route, Route)

        def handle(*arguments: Any) -> Any:
            look()
            return route.handle(*arguments)

        monkeypatch.setitem(
            ROUTES, RequestCode.GET_ALL_TOPIC_CONFIG, dataclasses.replace(route, handle=handle)
        )

    return go


async def test_others_are_served_between_two_long_listings(
    client: RawClient, another: RawClient, listed: Any
) -> None:
    served, at = 0, list[int]()

    def long() -> None:
        time.sleep(0.2)
        at.append(served)

    listed(long)
    answers = [client.start(RequestCode.GET_ALL_TOPIC_CONFIG) for _ in range(3)]
    while not all(answer.done() for answer in answers):
        await another.ok(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)
        served += 1
    assert at == sorted(set(at))
    assert len(at) == 3


async def test_nothing_is_listed_for_a_client_that_is_gone(
    server: Broker, client: RawClient, another: RawClient, listed: Any
) -> None:
    made: list[int] = []
    listed(lambda: made.append(1))
    async with server.context.large_replies.turn:
        for _ in range(3):
            another.oneway(RequestCode.GET_ALL_TOPIC_CONFIG)
        another.start(RequestCode.GET_ALL_TOPIC_CONFIG).add_done_callback(
            lambda answer: answer.exception()
        )
        while len(server.context._tasks) < 4:
            await asyncio.sleep(0)
        another.connection.close()
        while len(server.context.origins) > 1:
            await asyncio.sleep(0)
    await client.ok(RequestCode.GET_ALL_TOPIC_CONFIG)
    assert made == [1]


async def test_a_listing_that_fails_ends_its_connection_and_no_other(
    client: RawClient, another: RawClient, listed: Any
) -> None:
    """Nobody waits for its answer, as nobody does for that of another request."""
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))

    def fail() -> None:
        raise ZeroDivisionError

    listed(fail)
    with pytest.raises(ConnectionLost):
        await client.call(RequestCode.GET_ALL_TOPIC_CONFIG)
    assert (
        await another.call(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)
    ).code == ResponseCode.SUCCESS
    gc.collect()
    assert [type(report["exception"]) for report in reports] == [ZeroDivisionError]


# --- requests of many steps -----------------------------------------------------------------------


async def test_the_loop_turns_between_requests_that_begin_with_much_work(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that came together began all in one turn of the loop: it stood still for seconds."""
    ctx, now, turns = server.context, 0.0, 0
    began: list[int] = []
    monkeypatch.setattr(event_loop, "SLICE_S", 0.01)
    monkeypatch.setattr(ctx.slices, "_now", lambda: now)
    route = ROUTES[RequestCode.DELETE_TOPIC_IN_BROKER]
    assert isinstance(route, Route)

    async def handle(*arguments: Any) -> Any:
        nonlocal now
        now += 1.0
        began.append(turns)
        return success()

    monkeypatch.setitem(
        ROUTES, RequestCode.DELETE_TOPIC_IN_BROKER, dataclasses.replace(route, handle=handle)
    )
    answers = [client.start(RequestCode.DELETE_TOPIC_IN_BROKER, topic=f"T{n}") for n in range(20)]
    async with asyncio.timeout(60):
        while not all(answer.done() for answer in answers):
            await asyncio.sleep(0)
            turns += 1
    assert len(set(began)) == 20
