"""Putting a group elsewhere, with members online and without: 222 and 314."""

import asyncio

import pytest

from ogive.broker import Broker
from ogive.errors import ResponseCode
from ogive.model import MessageQueue
from ogive.wire.bodies.configs import SubscriptionGroupConfig
from ogive.wire.bodies.json_fields import dumps
from ogive.wire.bodies.stats import offset_table_loads
from ogive.wire.codes import RequestCode
from tests.raw_client import RawClient
from tests.unit.broker.cold_disk import ColdDisk
from tests.unit.broker.conftest import StartBroker
from tests.unit.broker.handlers.test_pull import until_held

NONE = ResponseCode.QUERY_NOT_FOUND
RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
POSITION = {"consumerGroup": "G", "topic": "T", "queueId": 0}


async def make_group(client: RawClient, *names: str) -> None:
    for name in names:
        await client.ok(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            dumps(SubscriptionGroupConfig(name=name).to_json()),
        )


async def position(client: RawClient, group: str = "G", queue: int = 0) -> str:
    answer = await client.call(
        RequestCode.QUERY_CONSUMER_OFFSET,
        consumerGroup=group,
        topic="T",
        queueId=queue,
        setZeroIfNotFound=False,
    )
    return answer.ext_fields.get("offset", "none")


async def reset(client: RawClient, **fields: object) -> dict[MessageQueue, int]:
    return offset_table_loads(
        (
            await client.ok(
                RESET, **({"topic": "T", "group": "G", "timestamp": 0, "isForce": True} | fields)
            )
        ).body
    )


@pytest.mark.parametrize(("timestamp", "place"), [(-1, 3), (0, 0), (4_102_444_800_000, 3)])
async def test_all_queues_are_put_to_a_time_or_the_end(
    client: RawClient, timestamp: int, place: int
) -> None:
    await client.send_batch("T", [b"a", b"b", b"c"])
    await make_group(client, "G")
    moved = await reset(client, timestamp=timestamp)
    assert moved == {
        MessageQueue("T", "broker-a", i): place if i == 0 else 0 for i in range(len(moved))
    }
    assert await position(client) == str(place)


async def test_one_queue_is_put_to_an_offset_that_it_has(client: RawClient) -> None:
    await client.send_batch("T", [b"a", b"b", b"c"])
    await make_group(client, "G")
    assert await reset(client, queueId=0, offset=2) == {MessageQueue("T", "broker-a", 0): 2}
    assert (await position(client), await position(client, queue=1)) == ("2", "none")
    for wrong in (
        {"queueId": 0, "offset": 4},
        {"queueId": 0, "offset": -2},
        {"queueId": 99, "offset": 0},
    ):
        fields = {"topic": "T", "group": "G", "timestamp": 0, "isForce": True} | wrong
        assert (await client.call(RESET, **fields)).code == ResponseCode.INVALID_PARAMETER
    assert await position(client) == "2"


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "nobody"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
async def test_what_is_not_there_cannot_be_reset(
    client: RawClient, changed: dict[str, str], code: ResponseCode
) -> None:
    await client.send("T")
    await make_group(client, "G")
    assert (
        await client.call(
            RESET, **({"topic": "T", "group": "G", "timestamp": 0, "isForce": True} | changed)
        )
    ).code == code


async def test_a_member_learns_it_with_its_next_pull_and_its_commits_do_not_count_until_then(
    client: RawClient,
) -> None:
    await client.send_batch("T", [b"a", b"b", b"c"])
    await client.heartbeat("c1", "G", "T")
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **POSITION, commitOffset=3)
    await reset(client, queueId=0, offset=1)
    ignored = await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **POSITION, commitOffset=3)
    assert (ignored.remark, await position(client)) == ("Offset has been previously reset", "1")
    told = await client.pull("G", "T", 3, commit=3)
    assert (told.code, told.remark, told.ext_fields["nextBeginOffset"]) == (
        ResponseCode.PULL_OFFSET_MOVED,
        "OFFSET_RESET",
        "1",
    )
    assert (told.ext_fields["minOffset"], told.ext_fields["maxOffset"], await position(client)) == (
        "0",
        "3",
        "1",
    )
    assert (await client.pull("G", "T", 1)).remark == "FOUND"
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **POSITION, commitOffset=3)
    assert await position(client) == "3"


async def test_a_held_pull_is_answered_at_once(
    server: Broker, client: RawClient, another: RawClient
) -> None:
    await client.send_batch("T", [b"a", b"b"])
    await client.heartbeat("c1", "G", "T")
    pull = client.start_pull("G", "T", 2, suspend_ms=60_000)
    await until_held(server)
    await reset(another, queueId=0, offset=0)
    async with asyncio.timeout(60):
        told = await pull
    assert (told.code, told.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")


async def test_who_has_the_queue_hears_of_it_beside_a_pull_of_who_had_it(
    server: Broker, client: RawClient, another: RawClient
) -> None:
    """After a rebalance the pull of the member before is held for seconds: it must not be the only
    one that is told.
    """
    await client.send_batch("T", [b"a", b"b"])
    await another.heartbeat("before", "G", "T")
    stale = another.start_pull("G", "T", 2, suspend_ms=60_000)
    await until_held(server)
    await client.heartbeat("now", "G", "T")
    await reset(client, queueId=0, offset=0)
    assert ((await stale).remark, (await stale).ext_fields["nextBeginOffset"]) == (
        "OFFSET_RESET",
        "0",
    )
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **POSITION, commitOffset=2)
    assert await position(client) == "0"
    told = await client.pull("G", "T", 2, commit=2)
    assert (told.remark, told.ext_fields["nextBeginOffset"], await position(client)) == (
        "OFFSET_RESET",
        "0",
        "0",
    )
    assert (await client.pull("G", "T", 0)).remark == "FOUND"


async def told_to_go_to(client: RawClient, at: int) -> tuple[object, object]:
    """What a pull from *at*, with the progress before it, is answered."""
    answer = await client.pull("G", "T", at, commit=at)
    return answer.remark, answer.ext_fields["nextBeginOffset"]


@pytest.mark.parametrize("restarted", [False, True])
async def test_both_members_that_stand_in_a_queue_are_told(
    start_broker: StartBroker, restarted: bool
) -> None:
    """Around a rebalance.

    The one that loses it pulls first, and the other one's commit would undo the reset.
    """
    server = await start_broker()
    async with (
        await RawClient.open(server.address) as before,
        await RawClient.open(server.address) as now,
    ):
        await now.send_batch("T", [b"a", b"b", b"c"])
        await before.heartbeat("before", "G", "T")
        await now.heartbeat("now", "G", "T")
        await reset(now, queueId=0, offset=1)
    if restarted:
        await server.stop()
        server = await start_broker()
    async with (
        await RawClient.open(server.address) as before,
        await RawClient.open(server.address) as now,
    ):
        await before.heartbeat("before", "G", "T")
        await now.heartbeat("now", "G", "T")
        assert await told_to_go_to(before, 2) == ("OFFSET_RESET", "1")
        await now.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **POSITION, commitOffset=3)
        assert await told_to_go_to(now, 3) == ("OFFSET_RESET", "1")
        assert await position(now) == "1"
        for member in (before, now):
            assert (await member.pull("G", "T", 1)).remark == "FOUND"
        await now.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **POSITION, commitOffset=2)
        assert await position(now) == "2"


async def test_a_member_that_has_read_to_the_end_is_told_that_it_is_put_there(
    server: Broker, client: RawClient, another: RawClient
) -> None:
    """What it has not consumed yet is to be skipped, and is not to count."""
    await client.send_batch("T", [b"a", b"b", b"c"])
    await client.heartbeat("c1", "G", "T")
    held = client.start_pull("G", "T", 3, commit=0, suspend_ms=60_000)
    await until_held(server)
    await reset(another, queueId=0, offset=3)
    assert ((await held).remark, (await held).ext_fields["nextBeginOffset"]) == (
        "OFFSET_RESET",
        "3",
    )
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **POSITION, commitOffset=1)
    assert await position(client) == "3"


async def test_who_was_told_while_its_pull_was_held_is_not_told_again(
    server: Broker, client: RawClient, another: RawClient
) -> None:
    await client.send_batch("T", [b"a", b"b"])
    await client.heartbeat("c1", "G", "T")
    pull = client.start_pull("G", "T", 2, suspend_ms=60_000)
    await until_held(server)
    await reset(another, queueId=0, offset=1)
    assert (await pull).remark == "OFFSET_RESET"
    assert (await client.pull("G", "T", 1)).remark == "FOUND"
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **POSITION, commitOffset=2)
    assert await position(client) == "2"


async def test_who_is_at_work_begins_anew_in_a_topic_that_is_made_again_after_its_deletion(
    server: Broker, client: RawClient
) -> None:
    """Its place in the old topic is beyond the end of the new one, and what it commits is no
    progress there.
    """
    await client.send_batch("T", [b"a", b"b", b"c"])
    await client.heartbeat("c1", "G", "T")
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **POSITION, commitOffset=2)
    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    await client.send("T", b"new")
    assert (
        await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **POSITION, commitOffset=3)
    ).remark == "Offset has been previously reset"
    told = await client.pull("G", "T", 3, commit=3)
    assert (told.code, told.ext_fields["nextBeginOffset"], await position(client)) == (
        ResponseCode.PULL_OFFSET_MOVED,
        "0",
        "none",
    )
    assert (await client.pull("G", "T", 0)).remark == "FOUND"
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **POSITION, commitOffset=1)
    assert await position(client) == "1"


async def test_a_pull_that_is_held_hears_of_the_topics_deletion(
    server: Broker, client: RawClient, another: RawClient
) -> None:
    await client.send_batch("T", [b"a", b"b"])
    await client.heartbeat("c1", "G", "T")
    pull = client.start_pull("G", "T", 2, suspend_ms=60_000)
    await until_held(server)
    await another.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    async with asyncio.timeout(60):
        told = await pull
    assert (told.code, told.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")


async def test_nobody_is_told_of_a_topic_that_went_before_it_came(client: RawClient) -> None:
    await client.send_batch("T", [b"a", b"b", b"c"])
    await client.heartbeat("c1", "G", "T")
    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    await client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G", cleanOffset=True)
    await client.send_batch("T", [b"a", b"b", b"c"])
    assert (await client.pull("G", "T", 1)).remark == "FOUND"


async def test_a_group_without_members_has_nobody_to_tell(start_broker: StartBroker) -> None:
    server = await start_broker(client_expiry_s=1e-9)
    async with await RawClient.open(server.address) as client:
        await client.send_batch("T", [b"a", b"b"])
        await make_group(client, "G")
        await reset(client, timestamp=-1)
        await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **POSITION, commitOffset=1)
        assert await position(client) == "1"


@pytest.mark.parametrize("cut", ["the broker", "the connection"])
async def test_members_that_are_not_back_yet_learn_of_a_reset_when_they_are(
    server: Broker, client: RawClient, cut: str
) -> None:
    """They have outlived the broker, or their connection, and go on from their own place."""
    await client.send_batch("T", [b"a", b"b", b"c"])
    if cut == "the connection":
        server.context.clients._began = -1e9
        async with await RawClient.open(server.address) as before:
            await before.heartbeat("c1", "G", "T")
        async with asyncio.timeout(60):
            while server.context.clients.consumer_group("G") is not None:
                await asyncio.sleep(0)
    await make_group(client, "G")
    await reset(client, queueId=0, offset=1)
    async with await RawClient.open(server.address) as member:
        assert (
            await member.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **POSITION, commitOffset=3)
        ).remark == "Offset has been previously reset"
        await member.heartbeat("c1", "G", "T")
        told = await member.pull("G", "T", 3, commit=3)
        assert (told.code, told.ext_fields["nextBeginOffset"], await position(client)) == (
            ResponseCode.PULL_OFFSET_MOVED,
            "1",
            "1",
        )


async def test_a_member_that_starts_after_a_reset_begins_there(client: RawClient) -> None:
    await client.send_batch("T", [b"a", b"b", b"c"])
    await make_group(client, "G")
    await reset(client, queueId=0, offset=1)
    await client.heartbeat("c1", "G", "T")
    assert await position(client) == "1"
    assert (await client.pull("G", "T", 1)).remark == "FOUND"


async def test_a_deleted_group_leaves_nothing_to_tell(client: RawClient) -> None:
    await client.send_batch("T", [b"a", b"b"])
    await client.heartbeat("c1", "G", "T")
    await reset(client, timestamp=-1)
    await client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G", cleanOffset=True)
    await make_group(client, "G")
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **POSITION, commitOffset=1)
    assert await position(client) == "1"
    assert (await client.pull("G", "T", 0)).remark == "FOUND"


async def test_a_group_takes_over_where_another_stands(client: RawClient) -> None:
    for queue in range(2):
        await client.send_batch("T", [b"a", b"b"], queue=queue)
    await make_group(client, "G", "H")
    for topic, queue, offset in (("T", 0, 1), ("T", 1, 2), ("%RETRY%G", 0, 0)):
        fields = {"consumerGroup": "G", "topic": topic, "queueId": queue, "commitOffset": offset}
        await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)
    clone = {"srcGroup": "G", "destGroup": "H", "offline": True}
    await client.ok(RequestCode.CLONE_GROUP_OFFSET, **clone, topic="Other")
    assert await position(client, "H") == "none"
    await client.ok(RequestCode.CLONE_GROUP_OFFSET, **clone)
    assert [await position(client, "H", queue) for queue in (0, 1)] == ["1", "2"]
    refused = await client.call(RequestCode.CLONE_GROUP_OFFSET, **(clone | {"destGroup": "nobody"}))
    assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(
    ("topic", "queue", "code"),
    [("T", 0, ResponseCode.SUCCESS), ("T", 99, NONE), ("Nowhere", 0, NONE)],
)
async def test_a_new_group_begins_at_0_where_there_is_a_queue(
    client: RawClient, topic: str, queue: int, code: ResponseCode
) -> None:
    await client.send("T")
    answer = await client.call(
        RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="new", topic=topic, queueId=queue
    )
    assert answer.code == code


@pytest.mark.parametrize(
    ("offset", "queue", "code"),
    [
        (0, 0, ResponseCode.SUCCESS),
        (1, 0, ResponseCode.SUCCESS),
        (-1, 0, ResponseCode.INVALID_PARAMETER),
        (0, -1, ResponseCode.INVALID_PARAMETER),
        (0, 4, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_progress_may_be_any_offset_of_a_queue_the_first_too(
    client: RawClient, offset: int, queue: int, code: ResponseCode
) -> None:
    await client.send("T")
    await make_group(client, "G")
    answer = await client.call(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        consumerGroup="G",
        topic="T",
        queueId=queue,
        commitOffset=offset,
    )
    assert answer.code == code
    assert await position(client) == (str(offset) if code == ResponseCode.SUCCESS else "none")


async def test_a_pull_that_waits_for_the_disk_meanwhile_is_sent_to_the_new_place(
    server: Broker, client: RawClient, another: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.send_batch("T", [b"a", b"b", b"c"])
    await client.heartbeat("c1", "G", "T")
    disk = ColdDisk(server.context.store)
    monkeypatch.setattr(server.context.cold_reads, "fetch", disk.fetch)
    disk.forget()
    pull = client.start_pull("G", "T", 0)
    while not disk.waiting:
        await asyncio.sleep(0)
    await reset(another, queueId=0, offset=2)
    disk.bring_in()
    assert ((await pull).remark, (await pull).ext_fields["nextBeginOffset"]) == (
        "OFFSET_RESET",
        "2",
    )


async def test_nothing_is_read_or_held_for_a_client_that_went_while_the_disk_was_read(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.send_batch("T", [b"a", b"b", b"c"])
    disk = ColdDisk(server.context.store)
    monkeypatch.setattr(server.context.cold_reads, "fetch", disk.fetch)
    disk.forget()
    async with await RawClient.open(server.address) as gone:
        gone.start_pull("G", "T", 0).add_done_callback(lambda answer: answer.exception())
        while not disk.waiting:
            await asyncio.sleep(0)
    while len(server.context.origins) > 1:
        await asyncio.sleep(0)
    monkeypatch.setattr(server.context.store, "get", None)
    disk.bring_in()
