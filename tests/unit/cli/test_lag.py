"""``ogive lag --watch``: what it does when there is nothing, or nobody, to ask."""

import argparse
from types import TracebackType
from typing import Any, Self

import pytest

from ogive import aio
from ogive.cli import lag
from ogive.errors import ConnectionLost, GroupNotExist, ResponseCode


class Cluster:
    """An Admin that answers what the test wrote down, and at last ends the watching."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    async def lag(self, group: str, topic: str | None) -> list[Any]:
        answer = self._answers.pop(0) if self._answers else KeyboardInterrupt()
        if isinstance(answer, BaseException):
            raise answer
        return list(answer)

    async def group(self, name: str) -> None:
        if name == "nope":
            raise GroupNotExist(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no broker knows it")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "WATCH_S", 0.0)


async def watch(group: str, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
    monkeypatch.setattr(aio, "Admin", lambda **_: Cluster(*answers))
    options = argparse.Namespace(
        group=group, topic=None, watch=True, json=False, name_server="h:1", credentials=None, cafile=None, certfile=None, keyfile=None
    )
    await lag.run(options)


async def test_an_unknown_group_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GroupNotExist):
        await watch("nope", monkeypatch, [])


async def test_a_restart_of_the_broker_does_not_end_the_watching(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        await watch("billing", monkeypatch, [], ConnectionLost("the connection to h:1 was lost", "h:1"), [])
    said = capsys.readouterr().err.splitlines()
    nothing = "ogive: group billing has no position in any queue: nothing consumed yet"
    assert said == [nothing, "ogive: the connection to h:1 was lost", nothing]
