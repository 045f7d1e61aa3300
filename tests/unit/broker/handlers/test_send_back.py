"""Messages that a consumer gives back, over a socket; delays are scaled down by configuration."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ogive.broker import Broker
from ogive.errors import ResponseCode
from ogive.model import MessageExt
from ogive.wire.bodies.json_fields import dumps
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.message import BatchItem, encode_batch, encode_properties
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


def start_giving_back(
    client: RawClient, message: MessageExt, level: int = 0, limit: int | None = None
) -> asyncio.Future[RemotingCommand]:
    return client.start(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        offset=message.commitlog_offset,
        group="G",
        delayLevel=level,
        originMsgId=message.id,
        originTopic=message.topic,
        maxReconsumeTimes=limit,
    )


async def give_back(
    client: RawClient, message: MessageExt, *, level: int = 0, limit: int | None = None
) -> None:
    assert (await start_giving_back(client, message, level, limit)).code == ResponseCode.SUCCESS


async def arrived(client: RawClient, topic: str, offset: int = 0) -> MessageExt:
    return messages(await client.pull("G", topic, offset, suspend_ms=15_000))[0]


@pytest.mark.feature(150)
async def test_a_message_comes_again_through_the_retry_topic(client: RawClient) -> None:
    first = await a_message(client)
    await give_back(client, first)
    again = await arrived(client, "%RETRY%G")
    assert (again.body, again.flag, again.id, again.tag, again.reconsume_times) == (
        b"order",
        3,
        "AB",
        "paid",
        1,
    )
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


@pytest.mark.feature(151)
async def test_each_retry_waits_a_level_longer_and_remembers_where_it_began(
    client: RawClient,
) -> None:
    first = message = await a_message(client)
    for tries in range(3):
        await give_back(client, message)
        message = await arrived(client, "%RETRY%G", tries)
        assert (message.reconsume_times, message.delay_level) == (tries + 1, 3 + tries)
        assert (message.properties["RETRY_TOPIC"], message.properties["ORIGIN_MESSAGE_ID"]) == (
            "T",
            first.offset_id,
        )


async def test_after_the_last_retry_comes_the_dead_letter_topic(client: RawClient) -> None:
    message = await a_message(client)
    await give_back(client, message, limit=1)
    message = await arrived(client, "%RETRY%G")
    await give_back(client, message, limit=1)
    dead = await arrived(client, "%DLQ%G")
    assert (dead.body, dead.id, dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (
        b"order",
        "AB",
        2,
        "T",
    )


async def test_a_dead_letter_that_fits_no_file_of_the_log_is_refused_and_what_waits_is_stored(
    client: RawClient,
) -> None:
    """Their topic is new, so that both wait until it is saved; a copy has more properties than its
    message.
    """
    size = SEGMENT_BYTES
    while (await client.start_send("T", bytes(size))).code != ResponseCode.SUCCESS:
        size -= 8
    await client.send("T", b"small")
    (large,), (small,) = (
        messages(await client.pull("G", "T", 0)),
        messages(await client.pull("G", "T", 1)),
    )
    too_large, stored = (start_giving_back(client, message, level=-1) for message in (large, small))
    assert ((await too_large).code, (await stored).code) == (
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.SUCCESS,
    )
    assert (await arrived(client, "%DLQ%G")).body == b"small"


async def set_group(client: RawClient, **settings: int) -> None:
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, dumps({"groupName": "G"} | settings)
    )


@pytest.mark.feature(149)
async def test_the_group_says_how_many_retries_there_are_when_the_client_does_not(
    server: Broker, client: RawClient
) -> None:
    await set_group(client, retryMaxTimes=2)
    message = await a_message(client)
    for tries in range(2):
        await give_back(client, message)
        message = await arrived(client, "%RETRY%G", tries)
    await give_back(client, message)
    dead = await arrived(client, "%DLQ%G")
    assert (dead.body, dead.id, dead.reconsume_times) == (b"order", "AB", 3)
    assert server.context.store.max_offset("%RETRY%G", 0) == 2


@pytest.mark.feature(149)
async def test_a_client_that_names_a_limit_is_asked_before_the_group(client: RawClient) -> None:
    await set_group(client, retryMaxTimes=0)
    await give_back(client, await a_message(client), limit=1)
    assert (await arrived(client, "%RETRY%G")).body == b"order"


@pytest.mark.feature(149)
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


@pytest.mark.feature(149)
async def test_a_group_without_retry_queues_gives_its_messages_up(
    server: Broker, client: RawClient
) -> None:
    await set_group(client, retryQueueNums=0)
    message = await a_message(client)
    end = server.context.store.stats().commitlog_end
    await give_back(client, message)
    await give_back(client, message, level=-1)
    assert server.context.store.stats().commitlog_end == end
    assert "%DLQ%G" not in server.context.topics


@pytest.mark.feature(58)
@pytest.mark.parametrize("level", [1, 18, 99])
async def test_a_level_of_the_clients_choice(client: RawClient, level: int) -> None:
    await give_back(client, await a_message(client), level=level)
    assert (await arrived(client, "%RETRY%G")).delay_level == min(level, 18)


async def test_an_unknown_group_is_refused_where_none_is_made(start_broker: StartBroker) -> None:
    server = await start_broker(auto_create_groups=False)
    async with await RawClient.open(server.address) as client:
        answer = await client.call(
            RequestCode.CONSUMER_SEND_MSG_BACK, offset=0, group="Nobody", delayLevel=0
        )
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize("offset", [-1, 1, 1 << 40])
async def test_an_offset_without_a_message_is_refused(client: RawClient, offset: int) -> None:
    await a_message(client)
    answer = await client.call(
        RequestCode.CONSUMER_SEND_MSG_BACK, offset=offset, group="G", delayLevel=0
    )
    assert answer.code == ResponseCode.SYSTEM_ERROR


ADDED = "MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
ROOM = 32_767 - len(ADDED)
"""Bytes of properties that fit beside those which a broker adds, ours and Apache's."""


def filled(properties: dict[str, str], name: str, size: int = ROOM) -> dict[str, str]:
    """*properties* and one more, in exactly so many bytes."""
    rest = {other: value for other, value in properties.items() if other != name}
    return rest | {name: "v" * (size - len(encode_properties(rest)) - len(name.encode()) - 2)}


async def stored(client: RawClient, properties: dict[str, str], **changed: int) -> MessageExt:
    """The only message of its topic."""
    await client.send("T", b"order", properties, **changed)
    (message,) = messages(await client.pull("G", "T", 0))
    return message


async def tried_and_dead(client: RawClient, message: MessageExt) -> tuple[MessageExt, MessageExt]:
    """The one retry of *message*, and its dead letter."""
    await give_back(client, message, limit=message.reconsume_times + 1)
    again = await arrived(client, "%RETRY%G")
    await give_back(client, again, limit=message.reconsume_times + 1)
    return again, await arrived(client, "%DLQ%G")


@pytest.mark.parametrize("missing", [0, 1, 2, 60])
@pytest.mark.parametrize(
    "name", ["baggage", "KEYS", "TAGS", "UNIQ_KEY", "größe" * 40, "n" * 20_000]
)
async def test_copies_without_room_lack_the_largest_property_and_name_it(
    client: RawClient, name: str, missing: int
) -> None:
    first = await stored(
        client, filled({"UNIQ_KEY": "AB", "TAGS": "paid", "tenant": "9"}, name, ROOM - missing)
    )
    for copy in await tried_and_dead(client, first):
        assert (copy.body, copy.properties["tenant"], name in copy.properties) == (
            b"order",
            "9",
            False,
        )
        assert copy.properties["OGIVE_REMOVED_PROPERTIES"].startswith(name[:32])
        assert (copy.properties["RETRY_TOPIC"], copy.properties["ORIGIN_MESSAGE_ID"]) == (
            "T",
            first.offset_id,
        )


@pytest.mark.parametrize("name", ["RETRY_TOPIC", "ORIGIN_MESSAGE_ID"])
async def test_what_a_sender_claims_about_an_earlier_try_is_not_kept_where_it_cannot_be_true(
    client: RawClient, name: str
) -> None:
    first = await stored(client, filled({"UNIQ_KEY": "AB"}, name))
    for copy in await tried_and_dead(client, first):
        assert (copy.properties["RETRY_TOPIC"], copy.properties["ORIGIN_MESSAGE_ID"]) == (
            "T",
            first.offset_id,
        )


async def test_many_small_properties_give_way_only_as_far_as_needed(client: RawClient) -> None:
    small = {f"name-{i:04}": "v" * 20 for i in range(1_000)}
    first = await stored(client, filled({"UNIQ_KEY": "A" * 32} | small, "large"))
    for copy in await tried_and_dead(client, first):
        assert {name for name in first.properties if name not in copy.properties} == {"large"}


async def test_of_small_properties_alone_only_some_go_and_none_that_clients_need(
    client: RawClient,
) -> None:
    own = {"UNIQ_KEY": "A" * 32, "TAGS": "paid"}
    first = await stored(
        client, filled(own | {f"name-{i:04}": "v" * 20 for i in range(1_053)}, "last")
    )
    for copy in await tried_and_dead(client, first):
        missing = {name for name in first.properties if name not in copy.properties}
        assert not missing & own.keys()
        assert 1 <= len(missing) <= 20


async def test_a_copy_with_room_keeps_every_property(client: RawClient) -> None:
    first = await stored(client, filled({"UNIQ_KEY": "AB"}, "baggage", ROOM - 300))
    for copy in await tried_and_dead(client, first):
        assert copy.properties["baggage"] == first.properties["baggage"]
        assert "OGIVE_REMOVED_PROPERTIES" not in copy.properties


async def test_a_message_that_claims_the_most_tries_there_are_becomes_a_dead_letter(
    client: RawClient,
) -> None:
    message = await stored(client, {"UNIQ_KEY": "AB"}, j=0x7FFFFFFF)
    await give_back(client, message)
    assert (await arrived(client, "%DLQ%G")).reconsume_times == 0x7FFFFFFF


async def test_properties_of_a_batch_item_that_are_no_text_and_grow_as_such_do_not_hinder_its_copy(
    client: RawClient,
) -> None:
    raw = b"UNIQ_KEY\x01AB\x02binary\x01"
    items = encode_batch([BatchItem(0, b"order", raw + b"\xff" * (32_767 - len(raw)))])
    assert (
        await client.call(320, items, **(client.send_fields("T", 0, "") | {"m": True}))
    ).code == ResponseCode.SUCCESS
    (message,) = messages(await client.pull("G", "T", 0))
    for copy in await tried_and_dead(client, message):
        assert (copy.body, copy.properties["OGIVE_REMOVED_PROPERTIES"]) == (b"order", "binary")


@pytest.mark.parametrize("tries", [1, 3])
async def test_a_client_that_sends_the_copy_itself_gets_it_stored_too(
    client: RawClient, tries: int
) -> None:
    """As Java's does, with more properties than a record holds."""
    properties = filled({"UNIQ_KEY": "AB", "RETRY_TOPIC": "T", "DELAY": "3"}, "baggage", 40_000)
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    fields = client.send_fields("%RETRY%G", 0, text) | {"j": tries, "l": 2}
    assert (await client.call(310, b"order", **fields)).code == ResponseCode.SUCCESS
    copy = await arrived(client, "%DLQ%G" if tries > 2 else "%RETRY%G")
    assert (copy.body, copy.properties["OGIVE_REMOVED_PROPERTIES"]) == (b"order", "baggage")
