"""Messages that a consumer gives back, over a socket; delays are scaled down by configuration."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ogive.broker import Broker
from ogive.errors import ResponseCode
from ogive.model import MessageExt
from ogive.wire.bodies import dumps
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from tests.raw_client import RawClient, messages
from tests.unit.broker.conftest import StartBroker

LEVELS = " ".join(["0s"] * 18)
SEGMENT_BYTES = 1024 * 1024


@pytest.fixture
async def server(start_broker: StartBroker) -> Broker:
    return await start_broker(delay_levels=LEVELS, segment_bytes=SEGMENT_BYTES)


@pytest.fixture
async def client(server: Broker) -> AsyncIterator[RawClient]:
    """Of a member of group G."""
    async with await RawClient.open(server.address) as client:
        await client.heartbeat("c1", "G", "T")
        yield client


async def a_message(client: RawClient) -> MessageExt:
    await client.send("T", b"order", {"UNIQ_KEY": "AB", "TAGS": "paid"}, h=3)
    return messages(await client.pull("G", "T", 0))[0]


def start_giving_back(client: RawClient, message: MessageExt, level: int = 0, limit: int | None = None) -> asyncio.Future[RemotingCommand]:
    return client.start(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        offset=message.commitlog_offset,
        group="G",
        delayLevel=level,
        originMsgId=message.id,
        originTopic=message.topic,
        maxReconsumeTimes=limit,
    )


async def give_back(client: RawClient, message: MessageExt, *, level: int = 0, limit: int | None = None) -> None:
    assert (await start_giving_back(client, message, level, limit)).code == ResponseCode.SUCCESS


async def arrived(client: RawClient, topic: str, offset: int = 0) -> MessageExt:
    return messages(await client.pull("G", topic, offset, suspend_ms=15_000))[0]


async def test_a_message_comes_again_through_the_retry_topic(client: RawClient) -> None:
    first = await a_message(client)
    await give_back(client, first)
    again = await arrived(client, "%RETRY%G")
    assert (again.body, again.flag, again.id, again.tag, again.reconsume_times) == (b"order", 3, "AB", "paid", 1)
    assert (again.born_timestamp_ms, again.born_host) == (first.born_timestamp_ms, first.born_host)
    expected = {
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": first.offset_id,
        "WAIT": "false",
        "REAL_TOPIC": "%RETRY%G",
        "REAL_QID": "0",
        "DELAY": "3",
    }
    assert {name: again.properties.get(name) for name in expected} == expected


async def test_each_retry_waits_a_level_longer_and_remembers_where_it_began(client: RawClient) -> None:
    first = message = await a_message(client)
    for tries in range(3):
        await give_back(client, message)
        message = await arrived(client, "%RETRY%G", tries)
        assert (message.reconsume_times, message.delay_level) == (tries + 1, 3 + tries)
        assert (message.properties["RETRY_TOPIC"], message.properties["ORIGIN_MESSAGE_ID"]) == ("T", first.offset_id)


async def test_after_the_last_retry_comes_the_dead_letter_topic(client: RawClient) -> None:
    message = await a_message(client)
    await give_back(client, message, limit=1)
    message = await arrived(client, "%RETRY%G")
    await give_back(client, message, limit=1)
    dead = await arrived(client, "%DLQ%G")
    assert (dead.body, dead.id, dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (b"order", "AB", 2, "T")


async def test_a_dead_letter_that_fits_no_file_of_the_log_is_refused_and_what_waits_behind_it_is_stored(client: RawClient) -> None:
    """Their topic is new, so that both wait until it is saved; a copy has more properties than its message."""
    size = SEGMENT_BYTES
    while (await client.start_send("T", bytes(size))).code != ResponseCode.SUCCESS:
        size -= 8
    await client.send("T", b"small")
    (large,), (small,) = messages(await client.pull("G", "T", 0)), messages(await client.pull("G", "T", 1))
    too_large, stored = (start_giving_back(client, message, level=-1) for message in (large, small))
    assert ((await too_large).code, (await stored).code) == (ResponseCode.INVALID_PARAMETER, ResponseCode.SUCCESS)
    assert (await arrived(client, "%DLQ%G")).body == b"small"


async def set_group(client: RawClient, **settings: int) -> None:
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, dumps({"groupName": "G"} | settings))


async def test_the_group_says_how_many_retries_there_are_when_the_client_does_not(server: Broker, client: RawClient) -> None:
    await set_group(client, retryMaxTimes=2)
    message = await a_message(client)
    for tries in range(2):
        await give_back(client, message)
        message = await arrived(client, "%RETRY%G", tries)
    await give_back(client, message)
    dead = await arrived(client, "%DLQ%G")
    assert (dead.body, dead.id, dead.reconsume_times) == (b"order", "AB", 3)
    assert server.context.store.max_offset("%RETRY%G", 0) == 2


async def test_a_client_that_names_a_limit_is_asked_before_the_group(client: RawClient) -> None:
    await set_group(client, retryMaxTimes=0)
    await give_back(client, await a_message(client), limit=1)
    assert (await arrived(client, "%RETRY%G")).body == b"order"


async def test_retries_go_to_all_retry_queues_of_the_group(server: Broker) -> None:
    async with await RawClient.open(server.address) as client:
        await set_group(client, retryQueueNums=3)
        await client.heartbeat("c1", "G", "T")
        await client.send("T")
        message = messages(await client.pull("G", "T", 0))[0]
        assert server.context.topics.all()["%RETRY%G"].write_queues == 3
        for _ in range(40):
            await give_back(client, message)
        for queue in range(3):
            assert messages(await client.pull("G", "%RETRY%G", 0, queue=queue, suspend_ms=15_000))


async def test_a_group_without_retry_queues_gives_its_messages_up(server: Broker, client: RawClient) -> None:
    await set_group(client, retryQueueNums=0)
    message = await a_message(client)
    end = server.context.store.stats().commitlog_end
    await give_back(client, message)
    await give_back(client, message, level=-1)
    assert server.context.store.stats().commitlog_end == end
    assert "%DLQ%G" not in server.context.topics


@pytest.mark.parametrize("level", [1, 18, 99])
async def test_a_level_of_the_clients_choice(client: RawClient, level: int) -> None:
    await give_back(client, await a_message(client), level=level)
    assert (await arrived(client, "%RETRY%G")).delay_level == min(level, 18)


async def test_an_unknown_group_is_refused_where_none_is_made(start_broker: StartBroker) -> None:
    server = await start_broker(auto_create_groups=False)
    async with await RawClient.open(server.address) as client:
        answer = await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, offset=0, group="Nobody", delayLevel=0)
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize("offset", [-1, 1, 1 << 40])
async def test_an_offset_without_a_message_is_refused(client: RawClient, offset: int) -> None:
    await a_message(client)
    answer = await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, offset=offset, group="G", delayLevel=0)
    assert answer.code == ResponseCode.SYSTEM_ERROR
