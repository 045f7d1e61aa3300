"""Asking any one of several name servers within one time budget."""

import asyncio

import pytest

from ogive.client.name_servers import NameServers
from ogive.errors import (
    BrokerBusy,
    BrokerInternalError,
    ConnectError,
    NoNameServer,
    NotANameServer,
    OgiveError,
    ProtocolError,
    TopicNotExist,
)


async def test_the_server_that_answered_last_is_asked_first() -> None:
    asked: list[str] = []

    async def call(address: str, timeout_s: float) -> str:
        asked.append(address)
        if address == "a:1":
            raise ConnectError("refused", address)
        return address

    servers = NameServers(["a:1", "b:2", "c:3"])
    assert [await servers.ask(call, 1.0) for _ in range(3)] == ["b:2"] * 3
    assert asked == ["a:1", "b:2", "b:2", "b:2"]


async def test_each_server_gets_its_share_of_the_budget() -> None:
    shares: list[float] = []

    async def call(address: str, timeout_s: float) -> None:
        shares.append(timeout_s)
        raise ConnectError("refused", address)

    with pytest.raises(NoNameServer, match=r"at a:1;b:2;c:3 within 0\.. s; tried \d+ times, at last: refused"):
        await NameServers(["a:1", "b:2", "c:3"]).ask(call, 0.3)
    first, second, third = shares[:3]
    assert 0.05 < first <= 0.1
    assert first < second < third <= 0.3


async def test_an_answer_that_says_no_is_an_answer() -> None:
    asked: list[str] = []

    async def call(address: str, timeout_s: float) -> None:
        asked.append(address)
        raise TopicNotExist(17, "no route")

    with pytest.raises(TopicNotExist):
        await NameServers(["a:1", "b:2"]).ask(call, 1.0)
    assert asked == ["a:1"]


@pytest.mark.parametrize("refusal", [BrokerBusy(2, "busy"), BrokerInternalError(1, "not ready"), ProtocolError("body is no JSON object")])
async def test_a_server_that_cannot_say_is_passed_over_and_believed_only_when_no_other_can(refusal: OgiveError) -> None:
    asked: list[str] = []
    able = {"b:2"}

    async def call(address: str, timeout_s: float) -> str:
        asked.append(address)
        if address not in able:
            raise refusal
        return address

    servers = NameServers(["a:1", "b:2"])
    assert [await servers.ask(call, 1.0) for _ in range(2)] == ["b:2", "b:2"]
    able.clear()
    with pytest.raises(type(refusal)):
        await servers.ask(call, 1.0)
    assert asked == ["a:1", "b:2", "b:2", "b:2", "a:1"]


async def test_what_is_no_name_server_is_passed_over_and_said_at_once_where_there_is_no_other() -> None:
    asked: list[str] = []

    async def call(address: str, timeout_s: float) -> str:
        asked.append(address)
        if address == "c:3":
            return address
        raise NotANameServer(f"{address} is not a name server")

    assert await NameServers(["a:1", "c:3"]).ask(call, 60.0) == "c:3"
    with pytest.raises(NotANameServer, match="b:2 is not a name server"):
        await NameServers(["a:1", "b:2"]).ask(call, 60.0)
    assert asked == ["a:1", "c:3", "a:1", "b:2"]


async def test_a_server_that_comes_up_within_the_budget_is_found() -> None:
    up = asyncio.Event()

    async def call(address: str, timeout_s: float) -> str:
        if not up.is_set():
            up.set()
            raise ConnectError("refused", address)
        return address

    assert await NameServers(["a:1"]).ask(call, 5.0) == "a:1"
