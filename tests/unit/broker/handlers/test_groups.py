"""Consumer groups over a socket: create, change, delete, show."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ogive.broker import Broker
from ogive.errors import ResponseCode
from ogive.transport import event_loop
from ogive.wire.bodies.configs import SubscriptionGroupConfig
from ogive.wire.bodies.json_fields import dumps, loads_object
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from tests.raw_client import RawClient
from tests.unit.broker.conftest import StartBroker, crash_image


async def create(client: RawClient, config: SubscriptionGroupConfig) -> RemotingCommand:
    return await client.call(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, dumps(config.to_json())
    )


async def test_a_group_is_made_changed_and_shown_and_is_on_disk_before_the_answer(
    server: Broker, client: RawClient
) -> None:
    for retries in (3, 5):
        config = SubscriptionGroupConfig(name="G", retry_max_times=retries)
        assert (await create(client, config)).code == ResponseCode.SUCCESS
        stored = json.loads(
            Path(server.config.data, "config", "subscriptionGroup.json").read_text()
        )
        assert stored["subscriptionGroupTable"]["G"] == config.to_json()
        shown = await client.ok(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="G")
        assert SubscriptionGroupConfig.from_json(loads_object(shown.body)) == config


async def test_attributes_and_retry_policy_of_a_group_are_kept_and_shown(
    server: Broker, client: RawClient
) -> None:
    policy = {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 1000, "max": 60_000, "multiplier": 3},
    }
    subscriptions = [{"topic": "T", "expressionType": "TAG", "expression": "*", "version": 1}]

    async def change(attributes: dict[str, str]) -> dict[str, Any]:
        """The group after the change."""
        settings = {
            "groupName": "G",
            "groupRetryPolicy": policy,
            "groupSysFlag": 1,
            "subscriptionDataSet": subscriptions,
        }
        await client.ok(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            dumps(settings | {"attributes": attributes}),
        )
        shown = loads_object(
            (await client.ok(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="G")).body
        )
        assert [shown[name] for name in settings] == list(settings.values())
        listed = loads_object((await client.ok(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body)
        assert listed["subscriptionGroupTable"]["G"] == shown
        return shown["attributes"]  # type: ignore[no-any-return]

    assert await change({"+priority.factor": "5", "+lite.sub.model": "Shared"}) == {
        "priority.factor": "5",
        "lite.sub.model": "Shared",
    }
    assert await change({"+priority.factor": "7", "-lite.sub.model": ""}) == {
        "priority.factor": "7"
    }
    assert await change({}) == {"priority.factor": "7"}
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        dumps(
            {
                "groupConfigList": [
                    {"groupName": "G", "attributes": {change: "9"}}
                    for change in ("+priority.factor", "+lite.bind.topic")
                ]
            }
        ),
    )
    config = server.context.groups.get("G")
    assert config is not None
    assert config.attributes == {"priority.factor": "9", "lite.bind.topic": "9"}


async def test_an_attribute_that_is_not_known_is_refused_by_its_name(
    server: Broker, client: RawClient
) -> None:
    await create(client, SubscriptionGroupConfig(name="G"))
    for name in ("G", "H"):
        body = {"groupName": name, "retryMaxTimes": 1, "attributes": {"+colour": "red"}}
        for code, content in (
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body),
            (
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
                {"groupConfigList": [{"groupName": "I"}, body]},
            ),
        ):
            answer = await client.call(code, dumps(content))
            assert (answer.code, "'colour' is not known" in str(answer.remark)) == (
                ResponseCode.INVALID_PARAMETER,
                True,
            )
    assert "H" not in server.context.groups
    assert "I" not in server.context.groups
    assert server.context.groups.get("G") == SubscriptionGroupConfig(name="G")


async def test_showing_a_group_that_is_not_there_does_not_make_it(client: RawClient) -> None:
    for _ in range(2):
        answer = await client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="G")
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(
    ("body", "code"),
    [(b'{"groupName":"a/b"}', ResponseCode.INVALID_PARAMETER), (b"{}", 29), (b"", 1), (b"[]", 1)],
)
async def test_a_group_that_makes_no_sense_is_refused(
    client: RawClient, body: bytes, code: int
) -> None:
    assert (await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)).code == code


@pytest.mark.parametrize(
    ("field", "kept"), [("cleanOffset", False), ("removeOffset", False), (None, True)]
)
async def test_a_deleted_group_keeps_its_offsets_unless_asked_otherwise(
    client: RawClient, field: str | None, kept: bool
) -> None:
    await create(client, SubscriptionGroupConfig(name="G"))
    position = {"consumerGroup": "G", "topic": "TBW102", "queueId": 0}
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **position, commitOffset=0)
    await client.ok(
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        groupName="G",
        **({} if field is None else {field: True}),
    )
    assert (
        await client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="G")
    ).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    answer = await client.call(
        RequestCode.QUERY_CONSUMER_OFFSET, **position, setZeroIfNotFound=False
    )
    assert (answer.code == ResponseCode.SUCCESS) is kept
    await client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G")


async def test_a_built_in_group_is_not_deleted(client: RawClient) -> None:
    assert (
        await client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="TOOLS_CONSUMER")
    ).code == ResponseCode.INVALID_PARAMETER


async def test_all_groups_come_whole_or_by_pages(client: RawClient) -> None:
    await create(client, SubscriptionGroupConfig(name="G"))
    whole = await client.ok(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    table = loads_object(whole.body)["subscriptionGroupTable"]
    assert whole.ext_fields == {"totalGroupNum": str(len(table))}
    assert {"G", "TOOLS_CONSUMER"} <= table.keys()
    pages: dict[str, object] = {}
    while len(pages) < len(table):
        page = await client.ok(
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            groupSeq=len(pages),
            maxGroupNum=4,
            dataVersion="",
        )
        part = loads_object(page.body)["subscriptionGroupTable"]
        assert 1 <= len(part) <= 4
        pages |= part
    assert pages == table
    for first, most, found in (
        (0, 2**31 - 1, len(table)),
        (1, 2**31 - 1, len(table) - 1),
        (2**31 - 1, 2**31 - 1, 0),
        (-(2**31), 0, 1),
    ):
        page = await client.ok(
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, groupSeq=first, maxGroupNum=most
        )
        assert len(loads_object(page.body)["subscriptionGroupTable"]) == found


async def test_groups_are_created_by_the_list_all_or_none(
    server: Broker, client: RawClient
) -> None:
    def body(*names: str) -> bytes:
        return dumps(
            {"groupConfigList": [{"groupName": name, "retryMaxTimes": 5} for name in names]}
        )

    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body("A", "B"))
    assert [server.context.groups.all()[name].retry_max_times for name in ("A", "B")] == [5, 5]
    answer = await client.call(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body("C", "a b")
    )
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "C" not in server.context.groups


async def test_a_crash_after_a_group_was_deleted_brings_its_offsets_not_back(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    server = await start_broker()
    server.context.offsets.commit("G", "T", 0, 5)
    await server.context.save_offsets()
    async with await RawClient.open(server.address) as client:
        await create(client, SubscriptionGroupConfig(name="G"))
        await client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G", cleanOffset=True)
    server = await start_broker(data=crash_image(server, tmp_path))
    assert server.context.offsets.topics_of("G") == []


async def test_the_loop_turns_between_deletions_that_waited_for_one_save(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looks at all offsets: a thousand of them stopped everybody for seconds."""
    ctx, now, turns = server.context, 0.0, 0
    removed: list[int] = []
    saved = asyncio.Event()

    async def save() -> None:
        await saved.wait()

    def remove_group(group: str) -> None:
        nonlocal now
        now += 1.0
        removed.append(turns)

    monkeypatch.setattr(event_loop, "SLICE_S", 0.01)
    monkeypatch.setattr(ctx.slices, "_now", lambda: now)
    monkeypatch.setattr(ctx.groups, "saved", save)
    monkeypatch.setattr(ctx.offsets, "remove_group", remove_group)
    answers = [
        client.start(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName=f"G{n}", cleanOffset=True)
        for n in range(20)
    ]
    while len(ctx._tasks) < 20:
        await asyncio.sleep(0)
    for _ in range(30):
        await asyncio.sleep(0)
    saved.set()
    async with asyncio.timeout(60):
        while not all(answer.done() for answer in answers):
            await asyncio.sleep(0)
            turns += 1
    assert len(set(removed)) == 20


async def readable(client: RawClient, topic: str, *, change_to: bool | None = None) -> bool:
    fields: dict[str, object] = {} if change_to is None else {"readable": change_to}
    answer = await client.ok(
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, group="G", topic=topic, **fields
    )
    shown = loads_object(answer.body)
    assert (shown["group"], shown["topic"]) == ("G", topic)
    return bool(shown["readable"])


async def test_a_group_that_is_forbidden_a_topic_is_given_nothing_of_it_until_it_is_allowed(
    server: Broker, client: RawClient
) -> None:
    for topic in ("T", "U"):
        await client.send(topic)
    await client.heartbeat("c1", "G", "T", "U")
    path = Path(server.config.data, "config", "subscriptionGroup.json")

    async def codes() -> list[int]:
        return [(await client.pull("G", topic, 0, subscription=None)).code for topic in ("T", "U")]

    assert await readable(client, "T")
    assert not await readable(client, "T", change_to=False)
    assert not await readable(client, "U", change_to=False)
    assert json.loads(path.read_text())["forbiddenTable"] == {"G": {"T": 4, "U": 4}}
    assert await codes() == [ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION]
    assert await readable(client, "T", change_to=True)
    assert json.loads(path.read_text())["forbiddenTable"] == {"G": {"U": 4}}
    assert await codes() == [ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION]
    assert (await client.pull("H", "U", 0)).code == ResponseCode.SUCCESS
    await client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G")
    assert json.loads(path.read_text())["forbiddenTable"] == {}


async def test_what_is_not_there_cannot_be_forbidden(server: Broker, client: RawClient) -> None:
    await create(client, SubscriptionGroupConfig(name="G"))
    for names, code in (
        ({"group": "H", "topic": "T"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"group": "G", "topic": "T"}, ResponseCode.TOPIC_NOT_EXIST),
    ):
        assert (
            await client.call(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, **names, readable=False)
        ).code == code
    assert server.context.groups.may_read("G", "T")
