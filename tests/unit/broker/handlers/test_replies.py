"""Replies to requests over sockets: pushed to the client that asked, stored, answered in Java's
words.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ogive.access.user_table import AccessTable
from ogive.broker import Broker
from ogive.errors import ResponseCode, StoreFailed
from ogive.store.types import NewMessage, PutDone
from ogive.wire.bodies.acls import User
from ogive.wire.bodies.clients import HeartbeatData
from ogive.wire.codes import Flag, RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import decode_header
from ogive.wire.headers.send import PushReplyMessageRequest
from ogive.wire.message import MAX_PROPERTIES_BYTES, decode_properties, encode_properties
from ogive.wire.signing import Credentials
from tests.raw_client import RawClient, messages
from tests.unit.broker.conftest import StartBroker

REPLIES = "DefaultCluster_REPLY_TOPIC"
V2 = RequestCode.SEND_REPLY_MESSAGE_V2
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
TO_ASKER = {
    "MSG_TYPE": "reply",
    "CORRELATION_ID": "c-1",
    "REPLY_TO_CLIENT": "asker",
    "TTL": "5000",
    "UNIQ_KEY": "AB12",
}
TEXT = encode_properties(TO_ASKER).decode()


@pytest.fixture
async def asker(server: Broker) -> AsyncIterator[RawClient]:
    """A client that the broker knows as a producer."""
    async with await RawClient.open(server.address) as asker:
        await asker.heartbeat("asker", "G", "T")
        yield asker


def take(asker: RawClient, push: RemotingCommand, code: int = ResponseCode.SUCCESS) -> None:
    asker.connection.reply(RemotingCommand(code, opaque=push.opaque, flag=Flag.RESPONSE))


async def stored_replies(client: RawClient) -> list[bytes]:
    answer = await client.pull("looker", REPLIES, 0)
    return (
        [message.body for message in messages(answer)]
        if answer.code == ResponseCode.SUCCESS
        else []
    )


async def test_a_reply_reaches_the_client_that_asked_and_is_stored(
    client: RawClient, asker: RawClient
) -> None:
    sending = client.start_send(REPLIES, b"2.20", TO_ASKER, code=V2, h=7)
    push = await asker.next_request(PUSH)
    header = decode_header(PushReplyMessageRequest, push.ext_fields)
    properties = decode_properties((header.properties or "").encode())
    # the answer waits for the client
    assert not sending.done()
    take(asker, push)
    answer = await sending
    [message] = messages(await client.pull("looker", REPLIES, 0))
    assert (push.body, header.topic, header.queue_id, header.flag, header.producer_group) == (
        b"2.20",
        REPLIES,
        0,
        7,
        "raw-producer",
    )
    assert (header.born_timestamp, header.reconsume_times, header.unit_mode) == (
        1_795_230_231_293,
        0,
        False,
    )
    assert (header.store_host, header.born_host.partition(":")[0]) == (
        message.store_host,
        "127.0.0.1",
    )
    assert int(properties.pop("PUSH_REPLY_TIME")) == header.store_timestamp
    added = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
    assert properties == TO_ASKER | added
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    assert answer.ext_fields == {
        "msgId": message.offset_id,
        "queueId": "0",
        "queueOffset": "0",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert message.body == b"2.20"


async def test_code_324_means_the_same_with_long_names(client: RawClient, asker: RawClient) -> None:
    properties = "".join(f"{name}\x01{value}\x02" for name, value in TO_ASKER.items())
    fields = {
        "producerGroup": "p",
        "topic": REPLIES,
        "queueId": -1,
        "bornTimestamp": 5,
        "properties": properties,
    }
    sending = client.start(RequestCode.SEND_REPLY_MESSAGE, b"pong", **fields)
    take(asker, await asker.next_request(PUSH))
    assert ((await sending).code, await stored_replies(client)) == (ResponseCode.SUCCESS, [b"pong"])


@pytest.mark.parametrize(
    ("changed", "remark"),
    [
        ({"REPLY_TO_CLIENT": "gone"}, "push reply message fail, channel of <gone> not found."),
        ({"REPLY_TO_CLIENT": None}, "reply message properties[REPLY_TO_CLIENT] is null"),
    ],
)
async def test_a_reply_that_reaches_nobody_is_answered_with_an_error_and_not_stored(
    client: RawClient, changed: dict[str, str | None], remark: str
) -> None:
    """Else anyone could fill the disk with replies to nobody."""
    properties = {name: value for name, value in (TO_ASKER | changed).items() if value is not None}
    answer = await client.start_send(REPLIES, b"2.20", properties, code=V2)
    assert (answer.code, answer.remark, answer.ext_fields["msgId"]) == (
        ResponseCode.SYSTEM_ERROR,
        remark,
        "0",
    )
    assert await stored_replies(client) == []


async def test_a_client_that_refuses_its_reply_is_an_error(
    client: RawClient, asker: RawClient
) -> None:
    sending = client.start_send(REPLIES, b"2.20", TO_ASKER, code=V2)
    take(asker, await asker.next_request(PUSH), ResponseCode.SYSTEM_ERROR)
    assert ((await sending).code, (await sending).remark) == (
        ResponseCode.SYSTEM_ERROR,
        "push reply message to askerfail.",
    )


async def test_a_client_that_goes_while_it_is_told_is_an_error(
    client: RawClient, asker: RawClient
) -> None:
    sending = client.start_send(REPLIES, b"2.20", TO_ASKER, code=V2)
    await asker.next_request(PUSH)
    asker.connection.close()
    assert (await sending).remark == "push reply message to askerfail."
    again = await client.start_send(REPLIES, b"2.20", TO_ASKER, code=V2)
    assert again.remark == "push reply message fail, channel of <asker> not found."


async def test_replies_are_not_stored_where_that_is_switched_off(start_broker: StartBroker) -> None:
    server = await start_broker(store_replies=False)
    async with (
        await RawClient.open(server.address) as asker,
        await RawClient.open(server.address) as client,
    ):
        await asker.heartbeat("asker", "G", "T")
        sending = client.start_send(REPLIES, b"2.20", TO_ASKER, code=V2)
        take(asker, await asker.next_request(PUSH))
        answer = await sending
        assert (answer.code, answer.ext_fields["msgId"], await stored_replies(client)) == (
            ResponseCode.SUCCESS,
            "0",
            [],
        )


async def test_a_store_that_fails_does_not_take_the_reply_back(
    server: Broker, client: RawClient, asker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: list[NewMessage], done: PutDone) -> None:
        done(StoreFailed("no disk"))

    monkeypatch.setattr(server.context.store, "put", fail)
    sending = client.start_send(REPLIES, b"2.20", TO_ASKER, code=V2)
    take(asker, await asker.next_request(PUSH))
    assert ((await sending).code, (await sending).ext_fields["msgId"]) == (
        ResponseCode.SUCCESS,
        "0",
    )


async def test_a_reply_that_fits_no_file_of_the_log_reaches_its_client(
    start_broker: StartBroker,
) -> None:
    server = await start_broker(segment_bytes=64 * 1024)
    async with (
        await RawClient.open(server.address) as asker,
        await RawClient.open(server.address) as client,
    ):
        await asker.heartbeat("asker", "G", "T")
        sending = client.start_send(REPLIES, b"x" * 100_000, TO_ASKER, code=V2)
        take(asker, await asker.next_request(PUSH))
        assert ((await sending).code, (await sending).ext_fields["msgId"]) == (
            ResponseCode.SUCCESS,
            "0",
        )


@pytest.mark.parametrize("size", [MAX_PROPERTIES_BYTES - 60, MAX_PROPERTIES_BYTES, 40_000])
async def test_a_reply_with_too_many_properties_for_the_log_reaches_its_client(
    client: RawClient, asker: RawClient, size: int
) -> None:
    text = TEXT + "x\x01" + "y" * (size - len(TEXT) - 2)
    sending = client.start_send(REPLIES, b"2.20", TO_ASKER, code=V2, i=text)
    pushed = await asker.next_request(PUSH)
    take(asker, pushed)
    assert text in pushed.ext_fields["properties"]
    assert ((await sending).code, (await sending).ext_fields["msgId"]) == (
        ResponseCode.SUCCESS,
        "0",
    )


@pytest.mark.parametrize(
    ("topic", "changed", "code"),
    [
        ("Nowhere", {}, ResponseCode.TOPIC_NOT_EXIST),
        ("SCHEDULE_TOPIC_XXXX", {}, ResponseCode.NO_PERMISSION),
        (REPLIES, {"e": 9}, ResponseCode.INVALID_PARAMETER),
        (REPLIES, {"f": 1 << 20}, ResponseCode.MESSAGE_ILLEGAL),
        (REPLIES, {"i": TEXT + "INNER_NUM\x01-5\x02"}, ResponseCode.MESSAGE_ILLEGAL),
        (
            REPLIES,
            {"i": TEXT + "INNER_NUM\x01-5\x02INNER_NUM\x01\x02"},
            ResponseCode.MESSAGE_ILLEGAL,
        ),
        (REPLIES, {"i": TEXT + "DELAY\x011\x02"}, ResponseCode.MESSAGE_ILLEGAL),
        (REPLIES, {"i": TEXT + "TIMER_DELAY_SEC\x011\x02"}, ResponseCode.MESSAGE_ILLEGAL),
        (REPLIES, {"i": TEXT + "TRAN_MSG\x01true\x02"}, ResponseCode.MESSAGE_ILLEGAL),
        (REPLIES, {"g": None}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_reply_that_could_not_be_stored_is_not_pushed_either(
    client: RawClient, asker: RawClient, topic: str, changed: dict[str, Any], code: int
) -> None:
    answer = await client.start_send(topic, b"2.20", TO_ASKER, code=V2, **changed)
    # the notification of its own heartbeat
    assert (answer.code, asker.requests.qsize()) == (code, 1)


async def test_replies_that_nobody_takes_keep_neither_sends_nor_other_replies_waiting(
    start_broker: StartBroker,
) -> None:
    """An eighth of what may wait is for one client, and none of it of the room for sends."""
    server = await start_broker(max_sends_waiting=16)
    async with (
        await RawClient.open(server.address) as silent,
        await RawClient.open(server.address) as asker,
        await RawClient.open(server.address) as client,
    ):
        await silent.heartbeat("silent", "G", "T")
        await asker.heartbeat("asker", "G", "T")
        to_silent = TO_ASKER | {"REPLY_TO_CLIENT": "silent"}
        waiting = [client.start_send(REPLIES, b"1", to_silent, code=V2) for _ in range(2)]
        for _ in waiting:
            await silent.next_request(PUSH)
        for _ in range(20):
            refused = await client.start_send(REPLIES, b"2", to_silent, code=V2)
            assert (refused.code, "too many replies wait for <silent>" in str(refused.remark)) == (
                ResponseCode.SYSTEM_BUSY,
                True,
            )
        assert server.context.sends_waiting == 0
        assert (await client.send("T", b"x")).code == ResponseCode.SUCCESS
        answered = client.start_send(REPLIES, b"3", TO_ASKER, code=V2)
        take(asker, await asker.next_request(PUSH))
        assert (await answered).code == ResponseCode.SUCCESS
        silent.connection.close()
        assert [(await reply).code for reply in waiting] == [ResponseCode.SYSTEM_ERROR] * 2
        assert server.context.reply_quota.used == 0


async def test_replies_that_wait_are_bounded(start_broker: StartBroker) -> None:
    server = await start_broker(max_sends_waiting=1)
    async with (
        await RawClient.open(server.address) as asker,
        await RawClient.open(server.address) as client,
    ):
        await asker.heartbeat("asker", "G", "T")
        first = client.start_send(REPLIES, b"1", TO_ASKER, code=V2)
        push = await asker.next_request(PUSH)
        assert (
            await client.start_send(REPLIES, b"2", TO_ASKER, code=V2)
        ).code == ResponseCode.SYSTEM_BUSY
        take(asker, push)
        assert (await first).code == ResponseCode.SUCCESS
        third = client.start_send(REPLIES, b"3", TO_ASKER, code=V2)
        take(asker, await asker.next_request(PUSH))
        assert (await third).code == ResponseCode.SUCCESS


async def test_replies_do_not_go_to_who_named_the_id_first(start_broker: StartBroker) -> None:
    table = AccessTable()
    for name, kind in (
        ("root", "Super"),
        ("alice", "Super"),
        ("server", "Super"),
        ("mallory", "Normal"),
    ):
        await table.create_user(User(username=name, password=name * 2, user_type=kind))
    server = await start_broker(access=table)

    async def opened(name: str) -> RawClient:
        return await RawClient.open(
            server.address, credentials=Credentials(access_key=name, secret_key=name * 2)
        )

    async with (
        await opened("mallory") as mallory,
        await opened("alice") as alice,
        await opened("server") as answering,
    ):
        beat = HeartbeatData(client_id="asker", consumers=(), producers=("G",)).encode()
        for client in (mallory, alice):
            await client.ok(RequestCode.HEART_BEAT, beat)
        answer = await answering.start_send(REPLIES, b"2.20", TO_ASKER, code=V2)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "push reply message fail, channel of <asker> not found.",
        )
        await mallory.ok(RequestCode.UNREGISTER_CLIENT, clientID="asker", producerGroup="G")
        sending = answering.start_send(REPLIES, b"2.20", TO_ASKER, code=V2)
        take(alice, await alice.next_request(PUSH))
        assert (await sending).code == ResponseCode.SUCCESS
