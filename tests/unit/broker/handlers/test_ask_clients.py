"""What the broker passes on to clients, and who produces."""

import asyncio
import re
import time
from collections.abc import Callable
from typing import cast

import pytest

from ogive.broker import Broker
from ogive.broker.handlers import clients
from ogive.errors import ResponseCode, StoreError
from ogive.model import MessageQueue
from ogive.store.file_reader import Place
from ogive.wire.bodies.json_fields import loads_object, queue_from_json
from ogive.wire.bodies.stats import consumer_status_dumps
from ogive.wire.codes import Flag, LanguageCode, RequestCode, SerializeType
from ogive.wire.command import RemotingCommand
from tests.raw_client import RawClient
from tests.unit.broker.cold_disk import ColdDisk


def answer_to(request: RemotingCommand, body: bytes, code: int = 0) -> RemotingCommand:
    return RemotingCommand(code, {}, body, request.opaque, int(Flag.RESPONSE))


async def test_a_message_is_given_to_the_client_that_is_named(
    server: Broker, client: RawClient, another: RawClient
) -> None:
    sent = await client.send("T", b"hello")
    await client.heartbeat("c1", "G", "T")
    fields = {
        "consumerGroup": "G",
        "clientId": "c1",
        "msgId": sent.ext_fields["msgId"],
        "topic": "T",
    }
    asking = another.start(RequestCode.CONSUME_MESSAGE_DIRECTLY, **fields)
    request = await client.next_request(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    assert request.body == server.context.store.record_at(0)
    assert request.ext_fields == fields | {"brokerName": "broker-a"}
    client.connection.reply(answer_to(request, b'{"consumeResult":"CR_SUCCESS"}'))
    answer = await asking
    assert (answer.code, answer.body) == (ResponseCode.SUCCESS, b'{"consumeResult":"CR_SUCCESS"}')


@pytest.mark.parametrize("body", [b"", b'{"queues":[]}'])
@pytest.mark.parametrize("stacks", ["true", "TRUE", "1"])
async def test_stacks_are_not_asked_for_in_a_question_about_queues(
    client: RawClient, another: RawClient, body: bytes, stacks: str
) -> None:
    """Sub on the group is enough for that question.

    A member that knows nothing of it looks at the header alone.
    """
    await client.heartbeat("c1", "G", "T")
    asking = another.start(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        body,
        consumerGroup="G",
        clientId="c1",
        jstackEnable=stacks,
    )
    request = await client.next_request(RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert (request.body, request.ext_fields["jstackEnable"]) == (body, "false" if body else "true")
    client.connection.reply(answer_to(request, b"{}"))
    assert (await asking).code == ResponseCode.SUCCESS


async def test_a_message_on_disk_is_brought_in_beside_the_loop(
    server: Broker, client: RawClient, another: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = await client.send("T", b"hello")
    await client.heartbeat("c1", "G", "T")
    ctx = server.context
    disk, fetched = ColdDisk(ctx.store), []

    def fetch(place: Place, then: Callable[[StoreError | None], None]) -> None:
        fetched.append(place)
        disk.fetch(place, then)
        disk.bring_in()

    monkeypatch.setattr(ctx.cold_reads, "fetch", fetch)
    disk.forget()
    fields = {
        "consumerGroup": "G",
        "clientId": "c1",
        "msgId": sent.ext_fields["msgId"],
        "topic": "T",
    }
    asking = another.start(RequestCode.CONSUME_MESSAGE_DIRECTLY, **fields)
    request = await client.next_request(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    assert fetched
    client.connection.reply(answer_to(request, b"{}"))
    await asking


async def test_a_client_of_an_unknown_language_is_shown_as_another_one(
    server: Broker, another: RawClient
) -> None:
    """Whoever asks who is connected must not lose the connection over it."""
    async with await RawClient.open(
        server.address, SerializeType.ROCKETMQ, cast(LanguageCode, 99)
    ) as stranger:
        await stranger.heartbeat("c1", "G", "T")
        for code in (RequestCode.GET_CONSUMER_CONNECTION_LIST, RequestCode.GET_ALL_PRODUCER_INFO):
            assert b'"OTHER"' in (await another.ok(code, consumerGroup="G")).body
        assert 'language="other"' in (await server.metrics_page()).text


async def test_a_message_or_client_that_is_not_there_is_an_answer(client: RawClient) -> None:
    async def ask(message_id: str, client_id: str = "c1") -> tuple[int, str]:
        answer = await client.call(
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            consumerGroup="G",
            clientId=client_id,
            msgId=message_id,
        )
        return answer.code, answer.remark or ""

    sent = await client.send("T")
    message_id = sent.ext_fields["msgId"]
    assert await ask(message_id) == (ResponseCode.SYSTEM_ERROR, "The Consumer <G> <c1> not online")
    assert (await ask("nonsense"))[0] == ResponseCode.INVALID_PARAMETER
    assert (await ask(message_id[:-4] + "FFFF"))[1] == "can not find message by the offset, 65535"


async def test_where_each_member_stands(
    client: RawClient,
    another: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play(member: RawClient, queue_id: int, code: int) -> None:
        request = await member.next_request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
        assert request.ext_fields == {"topic": "T", "group": "G"}
        member.connection.reply(
            answer_to(
                request, consumer_status_dumps({MessageQueue("T", "broker-a", queue_id): 7}), code
            )
        )

    async def status(**fields: str) -> dict[str, dict[int, int]]:
        body = loads_object(
            (
                await client.ok(
                    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="T", group="G", **fields
                )
            ).body
        )
        return {
            name: {queue_from_json_text(key): at for key, at in table.items()}
            for name, table in body["consumerTable"].items()
        }

    answer = await client.call(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="T", group="G"
    )
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    await client.heartbeat("c1", "G", "T")
    await another.heartbeat("c2", "G", "T")
    _, _, found = await asyncio.gather(play(client, 0, 0), play(another, 1, 0), status())
    assert found == {"c1": {0: 7}, "c2": {1: 7}}
    _, found = await asyncio.gather(play(another, 1, 0), status(clientAddr="c2"))
    assert found == {"c2": {1: 7}}
    _, _, found = await asyncio.gather(play(client, 0, 1), play(another, 1, 0), status())
    assert found == {"c2": {1: 7}}
    _, found = await asyncio.gather(play(another, 1, 1), status(clientAddr="c2"))
    assert found == {}
    answer = await client.call(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="T", group="G", clientAddr="c3"
    )
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "no member of G has the client id c3",
    )
    monkeypatch.setattr(clients, "MAX_QUEUES_SHOWN", 1)
    _, _, found = await asyncio.gather(play(client, 0, 0), play(another, 1, 0), status())
    assert len(found) == 1
    assert re.search("left out the progress of client c[12] in 1 queues: the answer", caplog.text)


def queue_from_json_text(key: object) -> int:
    """The queue id in a key that is an object."""
    return queue_from_json(loads_object(key) if isinstance(key, str) else key).queue_id


async def test_all_producers_with_the_time_of_their_last_heartbeat(
    client: RawClient, another: RawClient
) -> None:
    await client.heartbeat("c1", "G", "T")
    await another.heartbeat("c2", "G", "T")
    body = loads_object((await client.ok(RequestCode.GET_ALL_PRODUCER_INFO)).body)
    (rows,) = body["data"].values()
    assert sorted((row["clientId"], row["language"], row["version"]) for row in rows) == [
        ("c1", "JAVA", 479),
        ("c2", "JAVA", 479),
    ]
    assert all(
        row["remoteIP"].startswith("/127.0.0.1:")
        and abs(row["lastUpdateTimestamp"] - time.time() * 1000) < 60_000
        for row in rows
    )
