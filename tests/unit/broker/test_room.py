"""Requests that wait, and filters of pulls, hold so much and no more."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ogive.broker import Broker, quota
from ogive.broker.filters import MAX_TAGS
from ogive.broker.quota import SMALL_FILTER, FilterRoom, RequestRoom, size_of
from ogive.broker.replies import Rejected
from ogive.errors import ResponseCode
from ogive.transport.connection import Connection
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from tests.raw_client import RawClient


def connections(count: int) -> list[Connection]:
    return [cast("Connection", cast("Any", object())) for _ in range(count)]


def test_a_connection_has_its_share_and_what_it_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "MAX_BYTES_PER_CONNECTION", 10)
    waiting = RequestRoom()
    [one] = connections(1)
    assert [waiting.take(one, size) for size in (6, 5, 4, 0, 1)] == [True, False, True, True, False]
    for size in (0, 6, 4, 0):
        waiting.give_back(one, size)
    assert not waiting._held
    assert waiting.take(one, 10)


def test_who_holds_little_is_refused_on_no_others_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "MAX_BYTES", 25)
    monkeypatch.setattr(quota, "FREE_BYTES", 3)
    waiting = RequestRoom()
    greedy, another, modest = connections(3)
    assert [
        waiting.take(greedy, 20),
        waiting.take(another, 10),
        waiting.take(modest, 3),
        waiting.take(modest, 3),
    ] == [
        True,
        False,
        True,
        False,
    ]
    waiting.give_back(greedy, 20)
    assert waiting.take(another, 10)


def test_names_and_values_count() -> None:
    assert size_of(RemotingCommand(1, {"abc": "de"}, b"xyz")) == 8


async def test_listings_that_wait_hold_no_more_than_they_may(
    server: Broker, client: RawClient, another: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty of them with 16 MB each took a gigabyte."""
    monkeypatch.setattr(quota, "MAX_BYTES_PER_CONNECTION", 100_000)
    async with server.context.listings.turn:
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
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota, "MAX_BYTES_PER_CONNECTION", 1)
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


def test_filters_have_a_limit_for_each_connection_and_for_all_and_small_ones_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quota, "MAX_FILTER_BYTES_PER_CONNECTION", 5_000)
    monkeypatch.setattr(quota, "MAX_FILTER_BYTES", 8_000)
    monkeypatch.setattr(quota, "FREE_FILTER_BYTES", 1_000)
    filters = FilterRoom()
    greedy, another, modest = connections(3)
    held = [filters.take(greedy, 4_500)]
    with pytest.raises(Rejected, match="5500 bytes: 5000 are allowed for one"):
        filters.take(greedy, 1_000)
    assert filters.take(greedy, SMALL_FILTER) is None
    held.append(filters.take(another, 3_000))
    with pytest.raises(Rejected, match="4000 bytes: 8000 are allowed for all"):
        filters.take(another, 1_000)
    held.append(filters.take(modest, 1_000))
    held.clear()
    assert (filters._bytes, dict(filters._held)) == (0, {})


async def test_pulls_that_wait_with_large_filters_of_their_own_are_limited(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three connections with 5,700 of them took 740 MiB."""
    monkeypatch.setattr(quota, "MAX_FILTER_BYTES_PER_CONNECTION", 150_000)
    monkeypatch.setattr(quota, "FREE_FILTER_BYTES", 0)

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
    assert not server.context.filter_room._held
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
