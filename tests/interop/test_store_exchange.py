"""A store that one broker wrote opens in the other: every message is served from its place, and groups go on where they were."""

import time
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from ogive.wire import java_json
from tests.interop import apache
from tests.interop.apache import Apache
from tests.peers import DELAY_LEVELS, RunningBroker, our_broker

ends = pytest.mark.parametrize("end", [methodcaller("stop"), methodcaller("kill")], ids=["stopped", "killed"])


def fill(name_server: str) -> None:
    """Every way to store a message; group "early" has consumed what was there before "late" was sent."""
    apache.send(name_server, "Plain", 50, tags="a,b")
    apache.send(name_server, "Ordered", 50, mode="orderly", binary_headers=True)
    apache.send(name_server, "Batched", 50, mode="batch")
    apache.send(name_server, "Large", 5, size=100_000)
    apache.consume(name_server, "Plain", "early", 50)
    apache.send(name_server, "Plain", 10, first=50)


def everything(name_server: str, group: str) -> set[tuple[Any, ...]]:
    """Place, id, tag, key and body of each message that *fill* sent."""
    lines = apache.consume(name_server, "Plain,Ordered,Batched,Large", group, 60 + 50 + 50 + 5)
    found = {
        (line["topic"], line["queueId"], line["queueOffset"], line["id"], line.get("tags"), line["keys"], line["body"]) for line in lines
    }
    assert len(found) == len(lines)
    return found


def continued(name_server: str) -> set[str]:
    """What group "early" gets next."""
    return {line["body"] for line in apache.consume(name_server, "Plain", "early", 10)}


def wait_until_saved(data: Path) -> None:
    """Brokers save progress every few seconds; a kill before that would take it back."""

    def saved() -> bool:
        file = data / "config" / "consumerOffset.json"
        table = java_json.loads(file.read_text()) if file.exists() else {}
        return bool(sum(table.get("offsetTable", {}).get("Plain@early", {}).values()) == 50)

    ends_at = time.monotonic() + 30
    while not saved():
        assert time.monotonic() < ends_at, "the progress was not saved"
        time.sleep(0.2)


def new_apache(folder: Path) -> Apache:
    return Apache(folder, {"messageDelayLevel": DELAY_LEVELS})


@ends
def test_apache_opens_our_store_and_we_open_it_again(tmp_path: Path, end: Callable[[RunningBroker], None]) -> None:
    with our_broker(tmp_path) as ours:
        fill(ours.name_server)
        written = everything(ours.name_server, "ours")
        wait_until_saved(ours.data)
        end(ours)
    with new_apache(tmp_path) as theirs:
        assert everything(theirs.name_server, "theirs") == written
        assert continued(theirs.name_server) == {f"message {index}" for index in range(50, 60)}
        apache.send(theirs.name_server, "Plain", 4, first=60)
        end(theirs)
    with our_broker(tmp_path) as again:
        assert len(apache.consume(again.name_server, "Plain", "again", 64)) == 64


@ends
def test_we_open_apaches_store_and_apache_opens_it_again(tmp_path: Path, end: Callable[[RunningBroker], None]) -> None:
    with new_apache(tmp_path) as theirs:
        fill(theirs.name_server)
        written = everything(theirs.name_server, "theirs")
        wait_until_saved(theirs.data)
        end(theirs)
    with our_broker(tmp_path) as ours:
        assert everything(ours.name_server, "ours") == written
        assert continued(ours.name_server) == {f"message {index}" for index in range(50, 60)}
        apache.send(ours.name_server, "Plain", 4, first=60)
        end(ours)
    with new_apache(tmp_path) as again:
        assert len(apache.consume(again.name_server, "Plain", "again", 64)) == 64
