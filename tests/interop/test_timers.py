"""Timer messages with Apache's client, and a store that changes hands while they wait."""

import time
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path

import pytest

from ogive import Admin
from ogive.testing import Broker
from tests.interop import apache
from tests.interop.apache import Apache
from tests.peers import RunningBroker, our_broker

pytestmark = [pytest.mark.waits(30), pytest.mark.alone]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def recall(name_server: str, topic: str, handle: str) -> apache.Run:
    return apache.run_client(
        "Send", nameServer=name_server, topic=topic, mode="recall", handle=handle
    )


def everything(name_server: str, topic: str) -> list[str]:
    """The bodies of all that the topic ever got, two seconds after the last that was expected: what
    must not come gives no sign.
    """
    time.sleep(2.0)
    with Admin(name_server) as admin:
        count = sum(offsets.max_offset for offsets in admin.offsets(topic))
    return [line["body"] for line in apache.consume(name_server, topic, "everything", count)]


def test_javas_client_sends_for_a_time_and_takes_back(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    server = ogive_broker.name_server
    apache.send(server, topic, 1, first=0)
    deliver_ms = now_ms() + 20_000
    (taken,) = apache.send(server, topic, 1, first=1, deliverAt=deliver_ms)
    run = recall(server, topic, taken["handle"])
    assert (run.code, [line["id"] for line in run.lines]) == (0, [taken["id"]]), run.other
    again = recall(server, topic, taken["handle"])
    assert (again.code, [line["id"] for line in again.lines]) == (0, [taken["id"]]), again.other
    apache.send(server, topic, 3, first=2, deliverAt=deliver_ms)
    lines = apache.consume(server, topic, group, 4)
    assert sorted(line["body"] for line in lines) == [
        "message 0",
        "message 2",
        "message 3",
        "message 4",
    ]
    assert all(line["at"] >= deliver_ms for line in lines if line["body"] != "message 0")
    assert sorted(everything(server, topic)) == ["message 0", "message 2", "message 3", "message 4"]


def fill(name_server: str, topic: str) -> int:
    """One message delivered, three that wait, one taken back.

    When those are due, ms: late enough for another broker to start first.
    """
    apache.send(name_server, topic, 1, first=0, delayMs=500)
    deliver_ms = now_ms() + 40_000
    taken, *_ = apache.send(name_server, topic, 4, first=1, deliverAt=deliver_ms)
    run = recall(name_server, topic, taken["handle"])
    assert run.code == 0, run.other
    assert [line["body"] for line in apache.consume(name_server, topic, "first", 1)] == [
        "message 0"
    ]
    return deliver_ms


def check(name_server: str, topic: str, deliver_ms: int) -> None:
    """All that waited come, none early; the delivered one may come again, the one taken back must
    not.
    """
    lines = apache.consume(name_server, topic, "first", 3, timeout=90)
    assert {line["body"] for line in lines} - {"message 0"} <= {
        "message 2",
        "message 3",
        "message 4",
    }
    late = {line["body"] for line in apache.consume(name_server, topic, "second", 4, timeout=90)}
    assert {"message 2", "message 3", "message 4"} <= late | {line["body"] for line in lines}
    assert "message 1" not in late
    assert all(line["at"] >= deliver_ms for line in lines if line["body"] != "message 0")
    assert set(everything(name_server, topic)) == {
        "message 0",
        "message 2",
        "message 3",
        "message 4",
    }


def new_apache(folder: Path) -> Apache:
    return Apache(folder, {"recallMessageEnable": "true"})


def wait_until_saved(data: Path) -> None:
    """Progress is saved every few seconds."""
    file = data / "config" / "timercheck"
    ends_at = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < ends_at, "the progress was not saved"
        time.sleep(0.1)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(methodcaller("stop"), id="stopped"),
        pytest.param(methodcaller("kill"), id="killed", marks=pytest.mark.nightly),
    ],
)
def test_a_store_changes_hands_with_timers_pending(
    tmp_path: Path, end: Callable[[RunningBroker], None]
) -> None:
    """Ours to Apache's, then Apache's to ours."""
    with our_broker(tmp_path) as ours:
        deliver_ms = fill(ours.name_server, "There")
        wait_until_saved(ours.data)
        end(ours)
    with new_apache(tmp_path) as theirs:
        check(theirs.name_server, "There", deliver_ms)
        deliver_ms = fill(theirs.name_server, "Back")
        end(theirs)
    with our_broker(tmp_path) as again:
        check(again.name_server, "Back", deliver_ms)
