"""``ogive lag``: what it does when there is nothing, or nobody, to ask."""

import argparse
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import pytest

from ogive import aio
from ogive.cli import group_commands
from ogive.client.admin import QueueLag
from ogive.errors import (
    ConnectionLost,
    GroupNotExist,
    InvalidOption,
    NoPermission,
    ResponseCode,
    TopicNotExist,
)
from ogive.model import MessageQueue
from ogive.wire.bodies.routes import BrokerData, ClusterInfo


class Cluster:
    """An Admin that answers what the test wrote down, and at last ends the watching."""

    def __init__(self, *answers: Any, lost: Sequence[str] = ()) -> None:
        self._answers = list(answers)
        self._lost = {
            name: BrokerData(cluster="c", broker_name=name, addresses={}) for name in lost
        }

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

    async def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(brokers={}, clusters={}, lost=self._lost)

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


def row(queue_id: int, lag: int, last_consumed_ms: int | None = None) -> QueueLag:
    queue = MessageQueue("Orders", "broker-a", queue_id)
    return QueueLag(queue, 10, 10 + lag, lag, last_consumed_ms, "app@1")


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


async def test_a_watch_on_a_terminal_shows_the_trend_of_each_lag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A queue that comes later has a trend of its own."""
    lags = [[row(0, 0)], [row(0, 4)], [row(0, 8), row(1, 3)]]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with pytest.raises(KeyboardInterrupt):
        await watch("billing", monkeypatch, *lags)
    last = capsys.readouterr().out.rpartition(group_commands.CLEAR)[2].splitlines()
    assert last[0].split()[-3:] == ["SECONDS", "TREND", "MEMBER\x1b[0m"]
    assert [line.split()[-2:] for line in last[1:3]] == [["▁▅█", "app@1"], ["█", "app@1"]]


async def test_a_watch_in_a_pipe_is_plain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        await watch("billing", monkeypatch, [row(0, 4)])
    head, line, total = capsys.readouterr().out.splitlines()
    assert head.split()[-3:] == ["LAG", "SECONDS", "MEMBER"]
    assert "\x1b" not in head
    assert line.split() == ["Orders", "broker-a", "0", "10", "14", "4", "app@1"]
    assert total == "total lag 4"


async def test_the_lag_is_told_in_seconds_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_000.0)
    rows = [row(0, 4, 985_000), row(1, 0, 985_000), row(2, 4, None), row(3, 4, 1_000_500)]
    monkeypatch.setattr(aio, "Admin", lambda **_: Cluster(rows))
    asked = options("billing", watch=False)
    asked.json = True
    assert await group_commands.show_lag(asked) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["behind_s"] for record in records] == [15.0, 0.0, None, 0.0]


class Modes(Cluster):
    """An Admin that notes the modes that were set."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str, str, int]] = []

    async def set_consume_mode(
        self, group: str, topic: str, mode: str, *, share_queues: int
    ) -> None:
        self.seen.append((group, topic, mode, share_queues))


def updating(**changed: Any) -> argparse.Namespace:
    nothing = dict.fromkeys(
        ("max_retries", "retry_queues", "broadcast", "enabled", "orderly", "share_queues")
    )
    return options("billing", **nothing | {"topic": "Orders", "dry_run": False} | changed)


@pytest.mark.parametrize(("mode", "share"), [("pop", 2), ("pop", None), ("pull", None)])
async def test_the_mode_of_a_group_is_set(
    mode: str,
    share: int | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    modes = Modes()
    monkeypatch.setattr(aio, "Admin", lambda **_: modes)
    await group_commands.update_group(updating(consume_mode=mode, share_queues=share))
    assert modes.seen == [("billing", "Orders", mode, share or 0)]
    assert f"that ask the brokers {mode} Orders from now on" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"consume_mode": "pop", "topic": None}, "add --topic"),
        ({"consume_mode": "pop", "dry_run": True}, "goes alone"),
        ({"consume_mode": "pop", "max_retries": 3}, "goes alone"),
        ({"consume_mode": None, "share_queues": 1}, "go with --consume-mode"),
    ],
)
async def test_a_mode_needs_a_topic_and_goes_alone(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        await group_commands.update_group(updating(**changed))


async def test_a_broker_that_is_away_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The total is that of the others."""
    monkeypatch.setattr(aio, "Admin", lambda **_: Cluster([row(0, 7)], lost=["broker-b"]))
    assert await group_commands.show_lag(options("billing", watch=False)) == 0
    shown = capsys.readouterr()
    assert shown.out.endswith("total lag 7\n")
    assert shown.err == "ogive: broker broker-b is away, and may hold messages of the group\n"


async def test_a_user_who_may_not_see_the_cluster_sees_the_lag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster([row(0, 7)])

    async def refused() -> ClusterInfo:
        raise NoPermission(ResponseCode.NO_PERMISSION, "not yours")

    monkeypatch.setattr(cluster, "cluster_info", refused)
    monkeypatch.setattr(aio, "Admin", lambda **_: cluster)
    assert await group_commands.show_lag(options("billing", watch=False)) == 0
    shown = capsys.readouterr()
    assert (shown.out.endswith("total lag 7\n"), shown.err) == (True, "")
