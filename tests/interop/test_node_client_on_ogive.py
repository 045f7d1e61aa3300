"""npm's ali-ons, a client of its own for Node.js, on our broker."""

import json
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import ogive
from ogive.testing import Broker
from tests.interop.apache import CACHE

HERE = Path(__file__).parent / "node"
PACKAGE = json.loads((HERE / "package.json").read_text())["dependencies"]


@pytest.fixture(scope="module")
def modules() -> Path:
    """A folder with the package installed; made once per machine.

    Skips where Node.js is missing; fails there in CI.
    """
    if any(shutil.which(program) is None for program in ("node", "npm")):
        missing = "node or npm is not installed (Debian: apt-get install nodejs npm)"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    kept = CACHE / f"ali-ons-{PACKAGE['ali-ons']}"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            new = Path(folder, "new")
            new.mkdir()
            shutil.copy(HERE / "package.json", new)
            command = [
                "npm",
                "install",
                "--no-package-lock",
                "--no-audit",
                "--no-fund",
                "--ignore-scripts",
            ]
            done = subprocess.run(
                command, cwd=new, capture_output=True, text=True, timeout=180, check=False
            )
            assert done.returncode == 0, done.stderr
            if not kept.exists():
                new.rename(kept)
    return kept / "node_modules"


def talk(modules: Path, *arguments: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / "talk.js", folder)
        Path(folder, "node_modules").symlink_to(modules)
        done = subprocess.run(
            ["node", "talk.js", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_it_sends_to_us_and_receives_by_tag(
    modules: Path, ogive_broker: Broker, topic: str, group: str
) -> None:
    """10 messages in two queues, every other one of the tag that is subscribed to; where the group
    stands is known afterwards.
    """
    server = ogive_broker.name_server
    with ogive.Admin(server) as admin:
        admin.create_topic(topic, queues=2)
    sent = talk(modules, "send", server, topic, "producers", "10")
    assert [line["status"] for line in sent] == ["SEND_OK"] * 10
    with ogive.Admin(server) as admin:
        stored = admin.messages(topic, limit=20)
        assert sorted(message.text for message in stored) == [f"café {i}" for i in range(10)]
        assert {message.offset_id for message in stored} == {line["id"] for line in sent}
        lines = received(modules, "receive", server, topic, group, "5")
        assert sorted(line["body"] for line in lines) == [f"café {i}" for i in range(0, 10, 2)]
        assert {(line["tag"], line["retries"]) for line in lines} == {("even", 0)}
        assert sum(max(0, row.consumer_offset) for row in admin.lag(group, topic)) > 0


def fill(server: str, topic: str, *, queues: int, count: int) -> None:
    """Messages "thé 0", "thé 1", ... of our producer, of the tag that is subscribed to."""
    with ogive.Admin(server) as admin:
        admin.create_topic(topic, queues=queues)
    with ogive.Producer(server) as producer:
        for i in range(count):
            producer.send(topic, f"thé {i}".encode(), tag="even", keys=f"k{i}")


def received(modules: Path, *arguments: str) -> list[dict[str, Any]]:
    return [line for line in talk(modules, *arguments) if "body" in line]


def test_it_receives_what_our_producer_sent(
    modules: Path, ogive_broker: Broker, topic: str, group: str
) -> None:
    server = ogive_broker.name_server
    fill(server, topic, queues=2, count=5)
    lines = received(modules, "receive", server, topic, group, "5")
    assert sorted((line["body"], line["keys"]) for line in lines) == [
        (f"thé {i}", f"k{i}") for i in range(5)
    ]


def test_what_it_asks_for_again_comes_again(
    modules: Path, ogive_broker: Broker, topic: str, group: str
) -> None:
    """5 messages, the first of which it gets twice, the second time by way of the group's retry
    topic.
    """
    server = ogive_broker.name_server
    fill(server, topic, queues=1, count=5)
    lines = received(modules, "receive-later", server, topic, group, "6")
    assert sorted((line["body"], line["keys"], line["retries"]) for line in lines) == [
        ("thé 0", "k0", 0),
        ("thé 0", "k0", 1),
        *((f"thé {i}", f"k{i}", 0) for i in range(1, 5)),
    ]


def test_each_member_of_a_broadcasting_group_receives_everything(
    modules: Path, ogive_broker: Broker, topic: str, group: str
) -> None:
    server = ogive_broker.name_server
    fill(server, topic, queues=2, count=10)
    with ThreadPoolExecutor(2) as members:
        both = list(
            members.map(
                lambda _: received(modules, "receive-all", server, topic, group, "10"), range(2)
            )
        )
    for lines in both:
        assert sorted(line["body"] for line in lines) == [f"thé {i}" for i in range(10)]
    with ogive.Admin(server) as admin:
        # where they stand is theirs to know
        assert not any(row.consumer_offset for row in admin.lag(group, topic))
