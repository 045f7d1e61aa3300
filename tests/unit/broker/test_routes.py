"""The table of handlers, and what happens to everything outside it."""

import pytest

from ogive.broker.routes import NOT_SUPPORTED, ROUTES
from ogive.errors import ResponseCode
from ogive.wire.codes import RequestCode, SerializeType
from tests.raw_client import RawClient


def test_every_code_of_the_protocol_is_either_served_or_refused_for_a_stated_reason() -> None:
    assert set(RequestCode) == ROUTES.keys() | NOT_SUPPORTED.keys()
    assert not ROUTES.keys() & NOT_SUPPORTED.keys()
    assert all(NOT_SUPPORTED.values())


@pytest.mark.parametrize("code", [RequestCode.RESUME_CHECK_HALF_MESSAGE, RequestCode.POP_MESSAGE, 4_711, -1])
async def test_an_unknown_code_is_answered_at_once_as_java_does(client: RawClient, code: int) -> None:
    answer = await client.call(code)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    reason = f": {NOT_SUPPORTED[RequestCode(code)]}" if code in NOT_SUPPORTED else ""
    assert answer.remark == f" request type {code} not supported{reason}"


async def test_an_unknown_oneway_request_gets_no_answer_and_breaks_nothing(client: RawClient) -> None:
    client.oneway(4_711)
    assert (await client.call(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)).ext_fields == {"offset": "0"}
    assert client.connection.calls_in_flight == 0


async def test_answers_are_json_and_carry_the_version_whatever_the_request_was(client: RawClient) -> None:
    """As every server of 5.x answers; clients in C++ read nothing else."""
    client.codec = SerializeType.ROCKETMQ
    answer = await client.send("T")
    assert (answer.serialize_type, answer.version) == (SerializeType.JSON, 479)
    answer = await client.call(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)
    assert (answer.serialize_type, answer.version, answer.ext_fields) == (SerializeType.JSON, 479, {"offset": "1"})


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
async def test_a_body_that_is_no_heartbeat_is_a_system_error(client: RawClient, body: bytes) -> None:
    assert (await client.call(RequestCode.HEART_BEAT, body)).code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
