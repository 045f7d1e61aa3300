"""Requests that make no sense: each gets exactly one answer, and the broker goes on."""

import random

import pytest

from ogive.broker import Broker
from ogive.broker.routes import ROUTES, Route
from ogive.errors import ResponseCode
from ogive.wire.codes import RequestCode, SerializeType
from ogive.wire.headers.codec import Header, fields_of
from ogive.wire.headers.pull import PullMessageRequest
from ogive.wire.headers.send import ConsumerSendMsgBackRequest, SendMessageRequest
from tests.raw_client import RawClient

VALUES = [
    *(
        "",
        "0",
        "1",
        "-1",
        "3",
        "2147483647",
        "-2147483648",
        "2147483648",
        "9223372036854775807",
        "-9223372036854775808",
        "9" * 30,
        "1.5",
    ),
    *(
        "x",
        "true",
        "T",
        "G",
        "%RETRY%G",
        "%DLQ%G",
        "%RETRY%",
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "../../etc/passwd",
        "a\x00b",
        "ü" * 200,
    ),
    *(
        "T@G",
        "*",
        "TAG",
        "SQL92",
        "A||B",
        "[]",
        "{}",
        "UNIQ_KEY\x01",
        "\x01\x02\x01\x02",
        "DELAY\x01x\x02",
        "TAGS\x01" + "t" * 40_000,
    ),
    "DELAY\x013\x02UNIQ_KEY\x01AB\x02",
]
BODIES = [
    *(b"", b"{}", b"[]", b"null", b"{", b"\x00" * 64, b"\xff" * 64, b"[" * 9_000),
    *(b'{"clientID":"c","consumerDataSet":[{}]}', b'{"mqSet":[{"queueId":1e9}]}'),
]
NAMES = {
    RequestCode.PULL_MESSAGE: PullMessageRequest,
    RequestCode.LITE_PULL_MESSAGE: PullMessageRequest,
    RequestCode.SEND_MESSAGE: SendMessageRequest,
}


def field_names(code: int) -> list[str]:
    route = ROUTES[code]
    if code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        return list("abcdefghijklmn")
    header: type[Header] = (
        route.header
        if isinstance(route, Route)
        else NAMES.get(RequestCode(code), ConsumerSendMsgBackRequest)
    )
    return [field.wire for field in fields_of(header)]


@pytest.mark.parametrize("code", sorted(ROUTES))
async def test_nonsense_is_answered_once_and_the_broker_goes_on(
    server: Broker, client: RawClient, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    dice = random.Random(code)
    await client.send("T")
    await client.heartbeat("c", "G", "T")
    names = field_names(code)
    for _ in range(40):
        fields = {name: dice.choice(VALUES) for name in names if dice.random() < 0.9}
        if "suspendTimeoutMillis" in fields:
            fields["suspendTimeoutMillis"] = "1"
        # the binary header has two bytes for the code
        client.codec = dice.choice(list(SerializeType)) if code < 2**15 else SerializeType.JSON
        answer = await client.call(code, dice.choice(BODIES), **fields)
        assert answer.code in set(ResponseCode)
    assert client.connection.calls_in_flight == 0
    async with await RawClient.open(server.address) as other:
        await other.send("Still")
    assert not server.failed.done()
    assert not [record for record in caplog.records if record.exc_info]
