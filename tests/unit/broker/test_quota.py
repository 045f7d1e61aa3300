"""Requests that wait, and filters of pulls, hold so much and no more."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ogive.broker import Broker
from ogive.broker.filters import MAX_TAGS
from ogive.broker.quota import Quota, ReplyQuota, size_of
from ogive.errors import ResponseCode
from ogive.transport.connection import Connection
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from tests.raw_client import RawClient


def connections(count: int) -> list[Connection]:
    return [cast("Connection", cast("Any", object())) for _ in range(count)]


def test_a_connection_has_its_share_and_gives_it_back() -> None:
    quota = Quota(total=25, per_connection=10, free=3)
    [one] = connections(1)
    sizes = (6, 5, 4, 0, 1)
    assert [quota.acquire(one, size) for size in sizes] == [True, False, True, True, False]
    assert quota.excess(one, 1) == "11 bytes: 10 are allowed for one connection"
    for size in (0, 6, 4, 0):
        quota.release(one, size)
    assert quota.used == 0
    assert quota.acquire(one, 10)


def test_a_connection_that_holds_little_is_not_refused_on_account_of_others() -> None:
    quota = Quota(total=25, per_connection=25, free=3)
    greedy, another, modest = connections(3)
    assert [
        quota.acquire(greedy, 20),
        quota.acquire(another, 10),
        quota.acquire(modest, 3),
        quota.acquire(modest, 3),
    ] == [True, False, True, False]
    assert quota.excess(another, 10) == "10 bytes: 25 are allowed for all together"
    quota.release(greedy, 20)
    assert quota.acquire(another, 10)


def test_a_closed_connection_holds_nothing_and_gives_nothing_back_twice() -> None:
    quota = Quota(total=25, per_connection=25, free=3)
    gone, other = connections(2)
    assert quota.acquire(gone, 20)
    assert quota.acquire(other, 2)
    quota.drop(gone)
    quota.release(gone, 20)
    assert quota.used == 2


def test_one_client_has_at_most_an_eighth_of_the_replies_that_wait() -> None:
    quota = ReplyQuota()
    clients = connections(9)
    assert [quota.acquire_one(clients[0], 16) for _ in range(3)] == [True, True, False]
    assert all(quota.acquire_one(client, 16) for client in clients[1:8] for _ in range(2))
    assert not quota.acquire_one(clients[8], 16)
    quota.release(clients[0], 1)
    assert quota.acquire_one(clients[8], 16)


def test_names_and_values_count() -> None:
    assert size_of(RemotingCommand(1, {"abc": "de"}, b"xyz")) == 8


async def test_listings_that_wait_hold_no_more_than_they_may(
    server: Broker, client: RawClient, another: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty of them with 16 MB each took a gigabyte."""
    monkeypatch.setattr(server.context.request_quota, "per_connection", 100_000)
    async with server.context.large_replies.turn:
        waiting = [client.start(RequestCode.GET_ALL_TOPIC_CONFIG, bytes(40_000)) for _ in range(2)]
        refused = await client.call(RequestCode.GET_ALL_TOPIC_CONFIG, bytes(40_000))
        other = another.start(RequestCode.GET_ALL_TOPIC_CONFIG, bytes(40_000))
    assert (refused.code, "hold too much memory" in str(refused.remark)) == (
        ResponseCode.SYSTEM_BUSY,
        True,
    )
    assert [answer.code for answer in await asyncio.gather(*waiting, other)] == [0, 0, 0]
    await client.ok(RequestCode.GET_ALL_TOPIC_CONFIG, bytes(40_000))


async def test_a_request_that_waits_for_another_is_not_begun_where_too_much_waits(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.context.request_quota, "per_connection", 1)
    answer = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    assert answer.code == ResponseCode.SYSTEM_BUSY


@pytest.mark.parametrize(
    ("code", "most"), [(21, 64 * 1024), (12, 64 * 1024), (18, 1024 * 1024), (41, 1024 * 1024)]
)
async def test_a_body_is_as_long_as_its_request_needs(
    client: RawClient, code: int, most: int
) -> None:
    answer = await client.call(
        code, bytes(most + 1), topic="T", key="k", maxNum=1, beginTimestamp=0, endTimestamp=1
    )
    assert (answer.code, answer.remark) == (
        ResponseCode.INVALID_PARAMETER,
        f"a body of {most + 1} bytes, {most} are allowed",
    )
    allowed = await client.call(
        code, bytes(most), topic="T", key="k", maxNum=1, beginTimestamp=0, endTimestamp=1
    )
    assert "are allowed" not in str(allowed.remark)


async def test_a_body_that_is_too_long_is_refused_before_the_guard_reads_it(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It signs the whole body, and takes some apart to see what they are about."""

    def check(*_: object) -> None:
        raise AssertionError("the guard was asked")

    monkeypatch.setattr(server.context, "guard", SimpleNamespace(check=check))
    assert (
        await client.call(RequestCode.AUTH_CREATE_ACL, bytes(2 * 1024 * 1024))
    ).code == ResponseCode.INVALID_PARAMETER


async def test_pulls_that_wait_with_large_filters_of_their_own_are_limited(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three connections with 5,700 of them took 740 MiB."""
    monkeypatch.setattr(server.context.filter_quota, "per_connection", 150_000)

    def tags(count: int, first: str) -> str:
        return "||".join([first, *(f"t{number}" for number in range(count - 1))])

    await client.send("T", b"old")
    waiting = [
        client.start_pull("G", "T", 1, subscription=tags(600, f"first{number}"), suspend_ms=60_000)
        for number in range(2)
    ]
    refused = await client.pull("G", "T", 1, subscription=tags(600, "first"), suspend_ms=60_000)
    assert (refused.code, "filters of pulls" in str(refused.remark)) == (
        ResponseCode.SYSTEM_BUSY,
        True,
    )
    sql = await client.pull(
        "G",
        "T",
        1,
        subscription="a in (" + "'x'," * 1_000 + "'y')",
        expressionType="SQL92",
        suspend_ms=60_000,
    )
    assert sql.code == ResponseCode.SYSTEM_BUSY
    await client.send("T", b"new", {"TAGS": "t7"})
    assert [answer.code for answer in await asyncio.gather(*waiting)] == [0, 0]
    assert (await client.pull("G", "T", 1, subscription=tags(600, "first"))).code == 0
    assert server.context.filter_quota.used == 0
    many = await client.pull(
        "G", "T", 1, subscription=tags(MAX_TAGS + 1, "first")[:4096].rpartition("||")[0]
    )
    # as many as fit
    assert many.code == 0
    many = await client.pull("G", "T", 1, subscription="||".join("abcd" * 300))
    assert (many.code, "1200 tags" in str(many.remark)) == (
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        True,
    )


async def test_pulls_of_a_closed_connection_hold_nothing_of_the_filter_quota(
    server: Broker, client: RawClient
) -> None:
    await client.send("T", b"old")
    quota = server.context.filter_quota
    async with await RawClient.open(server.address) as leaving:
        gone = leaving.start_pull(
            "G", "T", 1, subscription="||".join(map(str, range(50))), suspend_ms=60_000
        )
        async with asyncio.timeout(60):
            while not quota.used:
                await asyncio.sleep(0)
    assert gone.exception() is not None
    async with asyncio.timeout(60):
        while quota.used:
            await asyncio.sleep(0)
