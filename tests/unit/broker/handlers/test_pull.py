"""Pulls over a socket: states, limits, filters, long polls, slow readers."""

import asyncio
import dataclasses
from typing import Any

import pytest

from ogive.access.user_table import AccessTable
from ogive.broker import Broker, filters
from ogive.broker.pulls import long_polling
from ogive.errors import ResponseCode, StoreError
from ogive.store.types import GetResult
from ogive.transport.limits import ServerLimits
from ogive.wire.bodies.acls import Acl, Policy, PolicyEntry, User
from ogive.wire.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from ogive.wire.bodies.configs import TopicConfig
from ogive.wire.codes import LanguageCode, RequestCode, SerializeType
from ogive.wire.message import encode_batch
from ogive.wire.signing import Credentials
from tests.raw_client import RawClient, messages
from tests.unit.broker.cold_disk import ColdDisk
from tests.unit.broker.conftest import StartBroker, not_reading


async def until_held(server: Broker, count: int = 1) -> None:
    async with asyncio.timeout(60):
        while len(server.context.holds) < count:
            await asyncio.sleep(0)


def offsets(answer: object) -> tuple[str, ...]:
    fields = answer.ext_fields  # type: ignore[attr-defined]
    return fields["nextBeginOffset"], fields["minOffset"], fields["maxOffset"]


# --- states ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", SerializeType)
async def test_found_messages_come_as_they_stand_in_the_log(
    server: Broker, client: RawClient, codec: SerializeType
) -> None:
    client.codec = codec
    for body in (b"a", b"b"):
        await client.send("T", body)
    answer = await client.pull("G", "T", 0)
    assert (answer.code, answer.remark, offsets(answer)) == (0, "FOUND", ("2", "0", "2"))
    assert answer.ext_fields["suggestWhichBrokerId"] == "0"
    log = (server.config.data / "commitlog" / f"{0:020}").read_bytes()
    assert log.startswith(answer.body)


@pytest.mark.parametrize(
    ("offset", "code", "remark", "next_offset"),
    [
        (2, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", "2"),
        (3, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", "2"),
        (-1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", "0"),
    ],
)
async def test_offsets_outside_the_queue(
    client: RawClient, offset: int, code: int, remark: str, next_offset: str
) -> None:
    await client.send_batch("T", [b"a", b"b"])
    answer = await client.pull("G", "T", offset)
    assert (answer.code, answer.remark, answer.ext_fields["nextBeginOffset"], answer.body) == (
        code,
        remark,
        next_offset,
        b"",
    )


@pytest.mark.parametrize(
    ("offset", "code"), [(0, ResponseCode.PULL_NOT_FOUND), (7, ResponseCode.PULL_OFFSET_MOVED)]
)
async def test_an_empty_queue_is_waited_for_from_its_start_only(
    client: RawClient, offset: int, code: int
) -> None:
    await client.send("T", queue=1)
    answer = await client.pull("G", "T", offset, queue=0)
    assert (answer.code, answer.remark, offsets(answer)) == (
        code,
        "NO_MESSAGE_IN_QUEUE",
        ("0", "0", "0"),
    )


# --- checks ---------------------------------------------------------------------------------------


async def test_an_unknown_topic_is_refused(client: RawClient) -> None:
    assert (await client.pull("G", "Nowhere", 0)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_an_unknown_group_is_made_or_refused(start_broker: StartBroker) -> None:
    server = await start_broker(auto_create_groups=False)
    async with await RawClient.open(server.address) as client:
        await client.send("T")
        answer = await client.pull("G", "T", 0)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert answer.remark is not None
        assert answer.remark.endswith("this broker makes none by itself (`ogive group create`)")


@pytest.mark.parametrize("group", ["", "a b", "g" * 121, "../up"])
async def test_a_bad_group_name_is_refused_as_one_that_does_not_exist(
    client: RawClient, group: str
) -> None:
    """As by Apache's broker; the remark says what is wrong with it."""
    await client.send("T")
    answer = await client.pull(group, "T", 0)
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "does not exist" not in (answer.remark or "")


@pytest.mark.parametrize("queue", [-1, 4])
async def test_a_queue_outside_the_topic_is_refused(client: RawClient, queue: int) -> None:
    await client.send("T")
    assert (await client.pull("G", "T", 0, queue=queue)).code == ResponseCode.INVALID_PARAMETER


async def test_a_topic_that_may_not_be_read_is_refused(server: Broker, client: RawClient) -> None:
    server.context.topics.create_or_update(TopicConfig(name="WriteOnly", perm=2))
    assert (await client.pull("G", "WriteOnly", 0)).code == ResponseCode.NO_PERMISSION


async def test_a_group_that_may_not_consume_is_refused(server: Broker, client: RawClient) -> None:
    await client.send("T")
    await client.pull("G", "T", 0)
    config = server.context.groups.get("G")
    assert config is not None
    server.context.groups.create_or_update(dataclasses.replace(config, consume_enable=False))
    assert (await client.pull("G", "T", 0)).code == ResponseCode.NO_PERMISSION


async def test_without_a_subscription_in_the_request_the_heartbeats_decide(
    client: RawClient,
) -> None:
    await client.send("T")
    assert (
        await client.pull("G", "T", 0, subscription=None)
    ).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    await client.heartbeat("c1", "G", "Other")
    assert (
        await client.pull("G", "T", 0, subscription=None)
    ).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    await client.heartbeat("c1", "G", "T", version=5)
    assert (await client.pull("G", "T", 0, subscription=None)).code == ResponseCode.SUCCESS
    assert (
        await client.pull("G", "T", 0, subscription=None, subVersion=6)
    ).code == ResponseCode.SUBSCRIPTION_NOT_LATEST


async def test_broadcasting_must_be_allowed(server: Broker, client: RawClient) -> None:
    await client.send("T")
    await client.heartbeat("c1", "G", "T", model="BROADCASTING")
    assert (await client.pull("G", "T", 0, subscription=None)).code == ResponseCode.SUCCESS
    config = server.context.groups.get("G")
    assert config is not None
    server.context.groups.create_or_update(
        dataclasses.replace(config, consume_broadcast_enable=False)
    )
    assert (await client.pull("G", "T", 0, subscription=None)).code == ResponseCode.NO_PERMISSION


async def test_sql_filters_are_refused_in_plain_words_where_they_are_off(
    start_broker: StartBroker,
) -> None:
    server = await start_broker(property_filter=False)
    async with await RawClient.open(server.address) as client:
        await client.send("T")
        answer = await client.pull("G", "T", 0, subscription="a > 1", expressionType="SQL92")
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "The broker does not support consumer to filter message by SQL92",
        )


async def test_a_bad_filter_is_refused_with_the_place(client: RawClient) -> None:
    await client.send("T")
    answer = await client.pull("G", "T", 0, subscription="a > 'x'", expressionType="SQL92")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "at character 5" in str(answer.remark)
    answer = await client.pull("G", "T", 0, subscription="a > 1", expressionType="GREP")
    assert (answer.code, "GREP" in str(answer.remark)) == (
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        True,
    )


async def test_an_endless_expression_is_refused(client: RawClient) -> None:
    await client.send("T")
    assert (
        await client.pull("G", "T", 0, subscription="a" * 5000)
    ).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


# --- filters and limits ---------------------------------------------------------------------------


async def test_sql_chooses_by_properties_and_passes_the_rest_over(client: RawClient) -> None:
    for number in range(6):
        await client.send("T", b"%d" % number, {"amount": str(number), "UNIQ_KEY": "K"})
    # cannot be compared: no match
    await client.send("T", b"word", {"amount": "many", "UNIQ_KEY": "K"})
    answer = await client.pull(
        "G", "T", 0, subscription="amount > 1 AND amount <> 3", expressionType="SQL92"
    )
    assert ([m.body for m in messages(answer)], answer.ext_fields["nextBeginOffset"]) == (
        [b"2", b"4", b"5"],
        "7",
    )
    some = await client.pull(
        "G", "T", 0, count=2, subscription="amount > 1", expressionType="SQL92"
    )
    assert ([m.body for m in messages(some)], some.ext_fields["nextBeginOffset"]) == (
        [b"2", b"3"],
        "4",
    )
    none = await client.pull("G", "T", 0, subscription="amount > 9", expressionType="SQL92")
    assert (none.code, none.remark, offsets(none)) == (
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        "NO_MATCHED_MESSAGE",
        ("7", "0", "7"),
    )


async def test_one_sql_pull_looks_at_a_bounded_part_of_the_queue(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "SCAN_S", 600.0)
    await asyncio.gather(*(client.send_batch("T", [b"x"] * 500) for _ in range(2)))
    answer = await client.pull("G", "T", 0, subscription="missing = 'x'", expressionType="SQL92")
    assert (answer.remark, answer.ext_fields["nextBeginOffset"]) == ("NO_MATCHED_MESSAGE", "800")


async def test_sql_pulls_that_take_long_say_how_far_they_came_and_lose_nothing(
    server: Broker, client: RawClient, another: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "SCAN_S", -1.0)
    sql = {"subscription": "colour = 'red'", "expressionType": "SQL92"}
    for colour in ("blue", "red", "red"):
        await client.send("T", colour.encode(), {"colour": colour})
    answers = [await client.pull("G", "T", offset, **sql) for offset in range(2)]
    assert [(answer.remark, answer.ext_fields["nextBeginOffset"]) for answer in answers] == [
        ("NO_MATCHED_MESSAGE", "1"),
        ("FOUND", "2"),
    ]
    held = client.start_pull("G", "T", 3, suspend_ms=60_000, **sql)  # type: ignore[arg-type]
    await until_held(server)
    items = [
        (0, b"x", f"colour\x01{colour}\x02".encode()) for colour in ("blue", "green", "blue", "red")
    ]
    await another.ok(
        RequestCode.SEND_BATCH_MESSAGE,
        encode_batch(items),
        **(another.send_fields("T", 0, "") | {"m": True}),
    )
    assert (await held).ext_fields["nextBeginOffset"] == "7"


async def test_the_groups_sql_filter_counts_and_wakes_a_held_pull(
    server: Broker, client: RawClient, another: RawClient
) -> None:
    data = SubscriptionData(
        topic="T", expression="colour = 'red'", expression_type="SQL92", version=1
    )
    await client.send("T", b"first", {"colour": "blue"})
    await client.ok(
        RequestCode.HEART_BEAT,
        HeartbeatData(
            client_id="c1", consumers=(ConsumerData(group="G", subscriptions=(data,)),)
        ).encode(),
    )
    held = client.start_pull("G", "T", 1, subscription=None, suspend_ms=20_000)
    await until_held(server)
    await another.send("T", b"second", {"colour": "blue"})
    await another.send("T", b"third", {"colour": "red"})
    assert [m.body for m in messages(await held)] == [b"third"]


async def test_a_groups_bad_sql_filter_is_told_at_the_pull(client: RawClient) -> None:
    data = SubscriptionData(
        topic="T", expression="colour == 'red'", expression_type="SQL92", version=1
    )
    await client.send("T")
    await client.ok(
        RequestCode.HEART_BEAT,
        HeartbeatData(
            client_id="c1", consumers=(ConsumerData(group="G", subscriptions=(data,)),)
        ).encode(),
    )
    answer = await client.pull("G", "T", 0, subscription=None)
    assert (answer.code, "at character 9" in str(answer.remark)) == (
        ResponseCode.FILTER_DATA_NOT_EXIST,
        True,
    )


async def test_tags_are_filtered_and_passed_over(client: RawClient) -> None:
    for tag in ("red", "blue", "red", "中文"):
        await client.send("T", tag.encode(), {"TAGS": tag, "UNIQ_KEY": "AB"})
    await client.send("T", b"none")
    answer = await client.pull("G", "T", 0, subscription="blue || 中文")
    assert [message.tag for message in messages(answer)] == ["blue", "中文"]
    assert answer.ext_fields["nextBeginOffset"] == "5"
    answer = await client.pull("G", "T", 0, subscription="green")
    assert (answer.code, answer.remark, offsets(answer)) == (
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        "NO_MATCHED_MESSAGE",
        ("5", "0", "5"),
    )


async def test_a_group_subscription_without_hashes_is_filtered_by_its_expression(
    client: RawClient,
) -> None:
    """As clients in C++ send it."""
    for tag in ("red", "blue"):
        await client.send("T", tag.encode(), {"TAGS": tag, "UNIQ_KEY": "AB"})
    body = (
        b'{"clientID":"cpp","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
        b'"groupName":"G","messageModel":1,'
        b'"subscriptionDataSet":[{"subString":"blue","subVersion":"17","topic":"T"}]}],'
        b'"producerDataSet":[]}\n'
    )
    await client.ok(RequestCode.HEART_BEAT, body)
    assert [
        message.tag for message in messages(await client.pull("G", "T", 0, subscription=None))
    ] == ["blue"]


@pytest.mark.parametrize(("asked", "got"), [(0, 1), (1, 1), (32, 32), (33, 33), (4096, 40)])
async def test_as_many_messages_come_as_were_asked_for(
    client: RawClient, asked: int, got: int
) -> None:
    await client.send_batch("T", [b"x"] * 40)
    assert len(messages(await client.pull("G", "T", 0, count=asked))) == got


async def test_bytes_are_limited_and_more_for_those_who_ask_for_many_messages(
    start_broker: StartBroker,
) -> None:
    server = await start_broker(
        max_pull_bytes=2_500, max_large_pull_bytes=5_500, max_large_pull_messages=50
    )
    async with await RawClient.open(server.address, language=LanguageCode.PYTHON) as client:
        await client.send_batch("T", [bytes(900)] * 60)
        assert len(messages(await client.pull("G", "T", 0, count=32))) == 2
        assert len(messages(await client.pull("G", "T", 0, count=1000))) == 5
        assert len(messages(await client.pull("G", "T", 0, count=1000, maxMsgBytes=3_500))) == 3
        assert len(messages(await client.pull("G", "T", 0, count=1000, maxMsgBytes=1))) == 1


# --- progress -------------------------------------------------------------------------------------


async def test_a_pull_commits_progress_on_the_way(server: Broker, client: RawClient) -> None:
    await client.send_batch("T", [b"", b"", b""])
    await client.pull("G", "T", 0, commit=2)
    assert server.context.offsets.get("G", "T", 0) == 2
    await client.pull("G", "T", 0, commitOffset=3)
    assert server.context.offsets.get("G", "T", 0) == 2


# --- long polls -----------------------------------------------------------------------------------


async def test_a_held_pull_is_answered_by_the_next_message_of_its_queue(
    server: Broker, client: RawClient, another: RawClient
) -> None:
    await client.send("T", b"old")
    pull = client.start_pull("G", "T", 1, suspend_ms=50_000)
    await until_held(server)
    await another.send("T", b"elsewhere", queue=1)
    assert not pull.done()
    await another.send("T", b"new")
    assert [message.body for message in messages(await pull)] == [b"new"]
    assert len(server.context.holds) == 0


@pytest.mark.parametrize(
    ("change", "code"), [("no user", 16), ("no rule", 16), ("disabled", 16), ("another rule", 0)]
)
async def test_a_held_pull_gets_no_message_that_its_user_may_not_have_any_more(
    start_broker: StartBroker, change: str, code: int
) -> None:
    access = AccessTable()
    await access.create_user(User(username="u", password="p"))
    rules = [
        PolicyEntry.from_json({"resource": name, "actions": ["Sub"], "decision": "Allow"})
        for name in ("Topic:T", "Group:G")
    ]
    await access.put_acl(Acl(subject="User:u", policies=(Policy(entries=tuple(rules)),)))
    server = await start_broker(access=access)
    mine = Credentials(access_key="u", secret_key="p")
    async with (
        await RawClient.open(server.address, credentials=mine) as client,
        await RawClient.open(server.address, credentials=access.internal) as another,
    ):
        await another.send("T", b"before")
        held = client.start_pull("G", "T", 1, suspend_ms=60_000)
        await until_held(server)
        if change == "no user":
            await access.delete_user("u")
        elif change == "no rule":
            await access.delete_acl("User:u", None, "Topic:T")
        elif change == "disabled":
            await access.update_user(User(username="u", status="disable"))
        else:
            await access.create_user(User(username="other", password="p"))
        await another.send("T", b"after")
        answer = await held
        assert (answer.code, b"after" in answer.body) == (code, code == 0)


async def test_a_pull_from_an_empty_queue_is_held_too(
    server: Broker, client: RawClient, another: RawClient
) -> None:
    await client.send("T", queue=1)
    pull = client.start_pull("G", "T", 0, suspend_ms=50_000)
    await until_held(server)
    await another.send("T", b"first")
    assert [message.body for message in messages(await pull)] == [b"first"]


async def test_a_held_pull_ends_when_its_time_is_over(client: RawClient) -> None:
    await client.send("T")
    answer = await client.pull("G", "T", 1, suspend_ms=20)
    assert (answer.code, answer.remark, offsets(answer)) == (
        ResponseCode.PULL_NOT_FOUND,
        "OFFSET_OVERFLOW_ONE",
        ("1", "0", "1"),
    )


async def test_messages_that_fail_the_filter_do_not_wake_and_are_passed_over(
    server: Broker, client: RawClient, another: RawClient
) -> None:
    await client.send("T")
    pull = client.start_pull("G", "T", 1, subscription="blue", suspend_ms=50_000)
    await until_held(server)
    await another.send_batch("T", [b"no tag"] * 2_000)
    assert not pull.done()
    await another.send("T", b"b", {"TAGS": "blue", "UNIQ_KEY": "AB"})
    answer = await pull
    assert [message.body for message in messages(answer)] == [b"b"]
    assert answer.ext_fields["nextBeginOffset"] == "2002"


async def test_an_expired_pull_moves_its_client_past_what_failed_the_filter(
    server: Broker, client: RawClient, another: RawClient
) -> None:
    await client.send("T")
    pull = client.start_pull("G", "T", 1, subscription="blue", suspend_ms=1000)
    await until_held(server)
    await another.send_batch("T", [b"no tag"] * 10)
    answer = await pull
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (
        ResponseCode.PULL_NOT_FOUND,
        "11",
    )


@pytest.mark.parametrize("sent_first", [False, True])
async def test_a_held_pull_gets_what_its_group_subscribed_to_meanwhile(
    server: Broker, client: RawClient, another: RawClient, sent_first: bool
) -> None:
    """What it had passed over before, too: nobody asks for that offset again."""
    await another.send("T", b"first", {"TAGS": "A", "UNIQ_KEY": "0"})
    await client.heartbeat("c1", "G", "T", expression="A", version=1)
    pull = client.start_pull("G", "T", 1, subscription=None, suspend_ms=60_000)
    await until_held(server)
    if sent_first:
        await another.send("T", b"of B", {"TAGS": "B", "UNIQ_KEY": "1"})
    await client.heartbeat("c1", "G", "T", expression="A || B", version=2)
    if not sent_first:
        await another.send("T", b"of B", {"TAGS": "B", "UNIQ_KEY": "1"})
    await another.send("T", b"of A", {"TAGS": "A", "UNIQ_KEY": "2"})
    got = [message.body for message in messages(await pull)]
    assert got == [b"of B", b"of A"][: len(got)]
    assert got


async def test_a_held_pull_that_goes_back_looks_at_all_that_it_had_passed_over(
    server: Broker, client: RawClient, another: RawClient
) -> None:
    """At more than one look covers."""
    await another.send("T", b"first", {"TAGS": "A", "UNIQ_KEY": "0"})
    await client.heartbeat("c1", "G", "T", expression="A", version=1)
    pull = client.start_pull("G", "T", 1, subscription=None, suspend_ms=60_000)
    await until_held(server)
    for sent in [
        another.start_send("T", b"of B", {"TAGS": "B", "UNIQ_KEY": f"{n}"}) for n in range(3_000)
    ]:
        await sent
    await client.heartbeat("c1", "G", "T", expression="A || C", version=2)
    await another.send("T", b"of C", {"TAGS": "C", "UNIQ_KEY": "C"})
    async with asyncio.timeout(60):
        assert [message.body for message in messages(await pull)] == [b"of C"]


@pytest.mark.parametrize("error", [None, StoreError("the commit log cannot be read at 0")])
async def test_a_held_pull_whose_answer_is_only_on_the_disk_is_answered_when_it_has_been_read(
    server: Broker,
    client: RawClient,
    another: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    error: StoreError | None,
) -> None:
    """It goes back to what it had passed over, when its group subscribes to that."""
    await another.send("T", b"of A", {"TAGS": "A", "UNIQ_KEY": "0"})
    await client.heartbeat("c1", "G", "T", expression="A", version=1)
    pull = client.start_pull("G", "T", 1, subscription=None, suspend_ms=60_000)
    await until_held(server)
    await another.send("T", b"of B", {"TAGS": "B", "UNIQ_KEY": "1"})
    disk = ColdDisk(server.context.store)
    monkeypatch.setattr(server.context.cold_reads, "fetch", disk.fetch)
    disk.forget()
    await client.heartbeat("c1", "G", "T", expression="A || B", version=2)
    await another.send("T", b"also of B", {"TAGS": "B", "UNIQ_KEY": "2"})
    async with asyncio.timeout(60):
        while not pull.done():
            disk.bring_in(error)
            await asyncio.sleep(0)
    answer = await pull
    if error is None:
        assert messages(answer)[0].body == b"of B"
    else:
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert str(error) in (answer.remark or "")


async def test_a_held_pull_commits_once(
    server: Broker, client: RawClient, another: RawClient
) -> None:
    await client.send("T")
    pull = client.start_pull("G", "T", 1, suspend_ms=50_000, commit=1)
    await until_held(server)
    server.context.offsets.commit("G", "T", 0, 5)
    await another.send("T")
    await pull
    assert server.context.offsets.get("G", "T", 0) == 5


async def test_pulls_of_a_closed_connection_are_forgotten(
    server: Broker, client: RawClient, another: RawClient
) -> None:
    await client.send("T")
    async with await RawClient.open(server.address) as leaving:
        gone = leaving.start_pull("G", "T", 1, suspend_ms=50_000)
        await until_held(server)
    assert gone.exception() is not None
    async with asyncio.timeout(60):
        while len(server.context.holds):
            await asyncio.sleep(0)


async def test_too_many_held_pulls_are_answered_as_busy(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_polling, "FEW", 2)
    server = await start_broker(max_held_pulls=5, max_held_pulls_per_connection=3)
    async with (
        await RawClient.open(server.address) as client,
        await RawClient.open(server.address) as other,
    ):
        await client.send("T")
        mine = [client.start_pull("G", "T", 1, suspend_ms=50_000) for _ in range(3)]
        assert (await client.pull("G", "T", 1, suspend_ms=50_000)).code == ResponseCode.SYSTEM_BUSY
        theirs = [other.start_pull("G", "T", 1, suspend_ms=50_000) for _ in range(2)]
        assert (await other.pull("G", "T", 1, suspend_ms=50_000)).code == ResponseCode.SYSTEM_BUSY
        await client.send("T")
        assert {(await pull).code for pull in mine + theirs} == {ResponseCode.SUCCESS}


async def test_stopping_answers_held_pulls(start_broker: StartBroker) -> None:
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        await client.send("T")
        pull = client.start_pull("G", "T", 1, suspend_ms=50_000)
        await until_held(server)
        await server.stop()
        assert (await pull).code == ResponseCode.PULL_NOT_FOUND


# --- slow readers ---------------------------------------------------------------------------------


@pytest.mark.kills("outgoing buffer without limit")
async def test_a_client_that_does_not_read_gets_no_further_bodies_until_it_does(
    start_broker: StartBroker,
) -> None:
    limit = 256 * 1024
    server = await start_broker(
        segment_bytes=32 * 1024 * 1024, server=ServerLimits(max_write_buffer_bytes=limit)
    )
    async with await RawClient.open(server.address) as client:
        await client.send_batch("T", [bytes(16 * 1024)] * 64)
        async with not_reading(client, server, limit):
            pulls = [client.start_pull("G", "T", 0, count=1000) for _ in range(60)]
        for pull in pulls:
            assert len(messages(await pull)) == 64
        (connection,) = server.context.origins
        assert not server.context.slow_readers.must_wait(connection)


async def test_a_disk_that_cannot_be_read_is_an_answer_also_to_a_held_pull(
    server: Broker, client: RawClient, another: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulls of other queues are answered as ever."""
    for topic in ("T", "U"):
        await another.send(topic)
    held = client.start_pull("G", "T", 1, suspend_ms=20_000)
    other = client.start_pull("G", "U", 1, suspend_ms=20_000)
    await until_held(server, 2)
    read = server.context.store.get

    def get(topic: str, *rest: Any, wait: bool) -> GetResult:
        if topic == "T":
            raise StoreError("the commit log cannot be read at 0: Input/output error")
        return read(topic, *rest, wait=wait)

    monkeypatch.setattr(server.context.store, "get", get)
    await another.send("T", b"unreadable")
    await another.send("U", b"readable")
    answer = await held
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "Input/output error" in (answer.remark or "")
    assert [message.body for message in messages(await other)] == [b"readable"]
