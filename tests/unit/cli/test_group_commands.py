"""``ogive lag``: what it does when there is nothing, or nobody, to ask."""

import argparse
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import pytest

from ogive import aio
from ogive.cli import group_commands
from ogive.errors import ConnectionLost, GroupNotExist, ResponseCode, TopicNotExist


class Cluster:
    """An Admin that answers what the test wrote down, and at last ends the watching."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    async def lag(self, group: str, topic: str | None, *, members: bool = True) -> list[Any]:
        answer = self._answers.pop(0) if self._answers else KeyboardInterrupt()
        if isinstance(answer, BaseException):
            raise answer
        return list(answer)

    async def topic(self, name: str) -> None:
        if name == "Order":
            raise TopicNotExist(ResponseCode.TOPIC_NOT_EXIST, "no broker knows it")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commands, "WATCH_S", 0.0)


def options(group: str, topic: str | None = None, **others: Any) -> argparse.Namespace:
    asked = dict.fromkeys(("credentials", "cafile", "certfile", "keyfile"))
    return argparse.Namespace(
        group=group, topic=topic, json=False, name_server="h:1", **asked, **others
    )


async def watch(group: str, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
    monkeypatch.setattr(aio, "Admin", lambda **_: Cluster(*answers))
    await group_commands.show_lag(options(group, watch=True))


async def test_an_unknown_group_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GroupNotExist):
        await watch(
            "nope",
            monkeypatch,
            GroupNotExist(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no broker knows it"),
        )


async def test_a_restart_of_the_broker_does_not_end_the_watching(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        await watch(
            "billing", monkeypatch, [], ConnectionLost("the connection to h:1 was lost", "h:1"), []
        )
    said = capsys.readouterr().err.splitlines()
    nothing = "ogive: group billing has no position in any queue: nothing consumed yet"
    assert said == [nothing, "ogive: the connection to h:1 was lost", nothing]


@pytest.mark.parametrize("look", [group_commands.show_lag, group_commands.check_lag])
async def test_a_topic_that_is_misspelt_is_no_group_that_has_consumed_nothing(
    look: Callable[[argparse.Namespace], Awaitable[int]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(aio, "Admin", lambda **_: Cluster([]))
    with pytest.raises(TopicNotExist):
        await look(options("billing", "Order", watch=False, max=0))
    monkeypatch.setattr(aio, "Admin", lambda **_: Cluster([]))
    assert await look(options("billing", "Orders", watch=False, max=0)) == 1
    assert (
        capsys.readouterr().err
        == "ogive: group billing has no position in any queue of Orders: nothing consumed yet\n"
    )
