"""How planning and reading repeat their questions, and when no more."""

import asyncio

import pytest

pytest.importorskip("pyspark")

from ogive.client import rpc
from ogive.errors import (
    NoNameServer,
    NoPermission,
    NoRoute,
    NotANameServer,
    OgiveError,
    TopicNotExist,
)
from ogive.spark.routes import BrokerAway, Patience, Retry, Routes
from ogive.transport.pool import ConnectionPool


async def ask(failure: OgiveError, *, settled: bool) -> int:
    """A question that fails once: how often it was asked."""
    asked = 0

    async def call() -> int:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise failure
        return asked

    return await Routes(ConnectionPool(), ("127.0.0.1:9876",)).insist(
        "Orders", call, Patience(pause_s=0.0, settled=settled)
    )


async def test_name_servers_that_are_away_are_waited_for_once_they_have_answered() -> None:
    """A process that begins while all of them restart, for a query that runs: it failed at once,
    and with it the query.
    """
    assert await ask(NoNameServer("connection lost"), settled=True) == 2


async def test_a_first_question_that_nobody_answers_is_an_error_at_once() -> None:
    """The address is likely wrong."""
    with pytest.raises(NoNameServer):
        await ask(NoNameServer("connection refused"), settled=False)


@pytest.mark.parametrize("settled", [True, False])
async def test_something_else_at_the_address_is_an_error_at_once(settled: bool) -> None:
    with pytest.raises(NotANameServer):
        await ask(NotANameServer("a broker"), settled=settled)


async def test_a_topic_without_route_is_told_to_a_user_who_may_not_see_the_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The dead letters of a group that has none, for a user with rights on topics and groups: the
    job failed with the permission.
    """

    async def get_route(*_: object, **__: object) -> None:
        raise TopicNotExist(17, "no route")

    async def get_cluster_info(*_: object, **__: object) -> None:
        raise NoPermission(16, "no policy of user reader allows Get on Cluster:DefaultCluster")

    monkeypatch.setattr(rpc, "get_route", get_route)
    monkeypatch.setattr(rpc, "get_cluster_info", get_cluster_info)
    with pytest.raises(NoRoute, match="topic '%DLQ%billing' has no route") as raised:
        await Routes(ConnectionPool(), ("127.0.0.1:9876",)).route("%DLQ%billing")
    assert not isinstance(raised.value, BrokerAway)


async def test_pauses_grow_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    retry = Retry(3600.0)
    for _ in range(8):
        await retry.pause()
    assert slept == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


async def test_attempts_end_with_their_number() -> None:
    retry, tries = Retry(3600.0, limit=3, pause_s=0.0), 1
    while not retry.over:
        await retry.pause()
        tries += 1
    assert tries == 4


async def test_no_attempt_begins_behind_the_window() -> None:
    assert not Retry(60.0, pause_s=59.0).over
    assert Retry(60.0, pause_s=61.0).over
    assert Retry(0.0).over
