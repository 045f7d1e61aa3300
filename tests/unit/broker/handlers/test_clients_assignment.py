"""Queues that the broker assigns, and the switch to another mode."""

import asyncio

import pytest

from ogive.broker import Broker
from ogive.broker.handlers.clients import STRATEGIES, to_pop
from ogive.client.consumer.allocate import average, average_by_circle
from ogive.errors import ResponseCode
from ogive.model import MessageQueue
from ogive.namesrv import NameServer, NameServerConfig
from ogive.transport import event_loop
from ogive.wire.bodies.json_fields import dumps, loads_object
from ogive.wire.codes import RequestCode
from tests.raw_client import RawClient
from tests.unit.broker.conftest import StartBroker


async def assigned(client: RawClient, client_id: str, **changed: str) -> list[tuple[str, int]]:
    asked = {
        "topic": "T",
        "consumerGroup": "G",
        "clientId": client_id,
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    } | changed
    body = loads_object((await client.ok(RequestCode.QUERY_ASSIGNMENT, dumps(asked))).body)
    assert all(entry["mode"] == "PULL" for entry in body["messageQueueAssignments"])
    return [
        (entry["messageQueue"]["brokerName"], entry["messageQueue"]["queueId"])
        for entry in body["messageQueueAssignments"]
    ]


async def test_members_get_queues_of_every_broker_that_the_name_server_knows(
    start_broker: StartBroker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name_server = NameServer(NameServerConfig(port=0))
    await name_server.start()
    try:
        first = await start_broker(name="a", name_servers=(name_server.address,))
        other = await start_broker(
            name="b", name_servers=(name_server.address,), data=tmp_path_factory.mktemp("other")
        )
        async with (
            await RawClient.open(first.address) as one,
            await RawClient.open(first.address) as two,
        ):
            for broker in (first, other):
                async with await RawClient.open(broker.address) as client:
                    await client.ok(
                        RequestCode.UPDATE_AND_CREATE_TOPIC,
                        topic="T",
                        readQueueNums=2,
                        writeQueueNums=2,
                    )
            await one.heartbeat("c1", "G", "T")
            await two.heartbeat("c2", "G", "T")
            assert await assigned(one, "c1") == [("a", 0), ("a", 1)]
            assert await assigned(one, "c2") == [("b", 0), ("b", 1)]
            assert await assigned(one, "c2", strategyName="AVG_BY_CIRCLE") == [("a", 1), ("b", 1)]
            assert len(await assigned(one, "c1", messageModel="BROADCASTING")) == 4
            assert await assigned(one, "stranger") == []
            assert await assigned(one, "c1", topic="none") == []
    finally:
        await name_server.stop()


async def test_a_broker_alone_assigns_its_own_queues(client: RawClient) -> None:
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T", readQueueNums=3, writeQueueNums=3
    )
    await client.heartbeat("c1", "G", "T")
    assert await assigned(client, "c1") == [("broker-a", queue_id) for queue_id in range(3)]
    body = dumps({"topic": "T", "consumerGroup": "G", "clientId": "c1", "strategyName": "BY_STARS"})
    answer = await client.call(RequestCode.QUERY_ASSIGNMENT, body)
    assert (answer.code, "AVG_BY_CIRCLE" in (answer.remark or "")) == (
        ResponseCode.INVALID_PARAMETER,
        True,
    )


async def test_the_loop_turns_between_answers_whose_routes_came_together(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred clients of a topic with 1,024 queues stopped everybody for 0.4 s."""
    ctx, now, turns = server.context, 0.0, 0
    answered: list[int] = []
    came = asyncio.Event()

    async def route(topic: str) -> None:
        await came.wait()

    def get(topic: str) -> None:
        nonlocal now
        now += 1.0
        answered.append(turns)

    monkeypatch.setattr(event_loop, "SLICE_S", 0.01)
    monkeypatch.setattr(ctx.slices, "_now", lambda: now)
    monkeypatch.setattr(ctx.registration, "route", route)
    monkeypatch.setattr(ctx.topics, "get", get)
    body = dumps(
        {
            "topic": "T",
            "consumerGroup": "G",
            "clientId": "c1",
            "strategyName": "AVG",
            "messageModel": "BROADCASTING",
        }
    )
    answers = [client.start(RequestCode.QUERY_ASSIGNMENT, body) for _ in range(20)]
    while len(ctx._tasks) < 20:
        await asyncio.sleep(0)
    for _ in range(30):
        await asyncio.sleep(0)
    came.set()
    async with asyncio.timeout(60):
        while not all(answer.done() for answer in answers):
            await asyncio.sleep(0)
            turns += 1
    assert len(set(answered)) == 20


@pytest.mark.parametrize(
    ("name", "theirs"), [("AVG", average), ("AVG_BY_CIRCLE", average_by_circle)]
)
def test_the_broker_divides_as_clients_do(name: str, theirs: object) -> None:
    assert callable(theirs)
    for count in range(10):
        queues = [MessageQueue("T", "a", queue_id) for queue_id in range(count)]
        for size in range(1, 7):
            members = [f"m{i}" for i in range(size)]
            for place, member in enumerate(members):
                assert list(STRATEGIES[name](queues, size, place)) == theirs(
                    queues, members, member
                )


@pytest.mark.parametrize(
    ("topic", "group", "mode", "code"),
    [
        ("T", "G", "PULL", ResponseCode.SUCCESS),
        ("T", "G", "POP", ResponseCode.SUCCESS),
        ("T", "G", "PUSH", ResponseCode.INVALID_PARAMETER),
        ("none", "G", "PULL", ResponseCode.TOPIC_NOT_EXIST),
        ("T", "none", "PULL", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ("%RETRY%G", "G", "PULL", ResponseCode.NO_PERMISSION),
    ],
)
async def test_the_mode_of_a_group(
    client: RawClient, topic: str, group: str, mode: str, code: ResponseCode
) -> None:
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T", readQueueNums=1, writeQueueNums=1
    )
    await client.heartbeat("c1", "G", "T")
    body = dumps({"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": 0})
    async with asyncio.timeout(60):
        answer = await client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body)
    assert (answer.code, bool(answer.remark)) == (code, code != ResponseCode.SUCCESS)


async def test_a_group_that_pops_gets_all_queues_of_a_broker_or_shares_them(
    server: Broker, client: RawClient, another: RawClient, start_broker: StartBroker
) -> None:
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T", readQueueNums=4, writeQueueNums=4
    )
    await client.heartbeat("c1", "G", "T")
    await another.heartbeat("c2", "G", "T")
    asked = {"topic": "T", "consumerGroup": "G", "clientId": "c1", "strategyName": "AVG"}
    mode = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0}
    await client.ok(RequestCode.SET_MESSAGE_REQUEST_MODE, dumps(mode))
    answer = await client.ok(RequestCode.QUERY_ASSIGNMENT, dumps(asked))
    (entry,) = loads_object(answer.body)["messageQueueAssignments"]
    assert (entry["mode"], entry["messageQueue"]["queueId"]) == ("POP", -1)
    retry = asked | {"topic": "%RETRY%G"}
    answer = await client.ok(RequestCode.QUERY_ASSIGNMENT, dumps(retry))
    (entry,) = loads_object(answer.body)["messageQueueAssignments"]
    assert entry["mode"] == "PULL"
    kept = loads_object((await client.ok(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body)
    assert kept == {"messageRequestModeMap": {"T": {"G": mode}}}
    await server.stop()
    again = await start_broker()
    assert again.context.modes.to_json() == kept
    async with await RawClient.open(again.address) as last:
        await last.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        assert again.context.modes.to_json() == {"messageRequestModeMap": {}}


def test_shares_of_members_that_pop() -> None:
    queues = [MessageQueue("T", "a", number) for number in range(4)]
    share = STRATEGIES["AVG"]

    def ids(members: int, place: int, others: int) -> list[int]:
        return [one.queue_id for one in to_pop(queues, members, place, others, share)]

    assert ids(4, 3, 1) == [3, 0]
    assert ids(4, 0, 2) == [0, 1, 2]
    assert ids(4, 0, 3) == ids(4, 2, 0) == ids(1, 0, 5) == [-1]
    assert ids(8, 5, 2) == [1]
    assert to_pop([], 8, 5, 2, share) == []
