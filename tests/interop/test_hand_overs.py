"""Queues that change hands between our members, and between ours and Java's, on our broker and on
Apache's.

``python -m tests.interop.test_hand_overs`` prints a row for each: our broker and Apache's, Java
alone and one Java member among ours.
"""

import asyncio
import json
import signal
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from ogive import aio
from ogive.testing import Broker
from tests import hand_overs
from tests.interop import apache
from tests.interop.test_mixed_churn import JavaMember, OurMember

Kind = Literal["ours", "java"]

JAVA_ALONE: Final[tuple[Kind, ...]] = ("java", "java", "java")
MIXED: Final[tuple[Kind, ...]] = ("ours", "ours", "java")
QUEUES: Final = 8
RATE: Final = 150
JOIN_AFTER_S: Final = (0.0, 4.0, 8.0)
KILL_AFTER_S: Final = 13.0
FLOW_S: Final = 20.0
WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    """Messages of three members that joined one after the other. The first was killed."""

    members: str
    sent: int
    delivered: int
    twice_at_joins: int
    twice_at_kill: int
    taken_over_s: float | None
    """From the kill to the last of the first calls in the queues of the killed member."""


async def joins_and_a_kill(server: str, folder: Path, kinds: tuple[Kind, ...]) -> Row:
    scene = hand_overs.Scene(server)
    topic, group = scene.topic, scene.group
    members: list[OurMember | JavaMember] = []
    sent = 0
    try:
        async with aio.Admin(server) as admin, aio.Producer(server) as producer:
            await admin.create_topic(topic, queues=QUEUES)

            async def join(kind: Kind, after_s: float) -> None:
                await asyncio.sleep(after_s)
                names = (server, topic, group, "concurrent")
                members.append(JavaMember(*names) if kind == "java" else OurMember(folder, *names))  # type: ignore[arg-type]

            joining = [asyncio.create_task(join(kind, after_s)) for kind, after_s in zip(kinds, JOIN_AFTER_S, strict=True)]
            begun, killed_ms = time.monotonic(), 0
            while (now := time.monotonic() - begun) < FLOW_S:
                await producer.send(topic, b"%d" % sent)
                sent += 1
                if not killed_ms and now > KILL_AFTER_S:
                    killed_ms = time.time_ns() // 1_000_000
                    await asyncio.to_thread(members[0].end, signal.SIGKILL)
                await asyncio.sleep(max(0.0, begun + sent / RATE - time.monotonic()))
            await asyncio.gather(*joining)
            deadline = time.monotonic() + WAIT_S
            while time.monotonic() < deadline and len(bodies(members)) < sent:
                await asyncio.sleep(0.5)
    finally:
        for member in members[1:]:
            member.end(signal.SIGTERM)
    row = judged(" ".join(kinds), sent, members, killed_ms)
    for member in members:
        if isinstance(member, JavaMember):
            member.forget()
    return row


def bodies(members: list[OurMember | JavaMember]) -> set[str]:
    return {line["body"] for member in members for line in member.deliveries()}


def judged(name: str, sent: int, members: list[OurMember | JavaMember], killed_ms: int) -> Row:
    lines = sorted((line | {"member": i} for i, member in enumerate(members) for line in member.deliveries()), key=lambda line: line["at"])
    early, seen = Counter[str](), set[str]()
    twice_at_kill = 0
    for line in lines:
        if line["at"] < killed_ms:
            early[line["body"]] += 1
        elif line["body"] in seen:
            twice_at_kill += 1
        seen.add(line["body"])
    victims = {line["queueId"]: line["member"] for line in lines if line["at"] < killed_ms}
    first = {
        queue: min((line["at"] for line in lines if line["at"] >= killed_ms and line["queueId"] == queue), default=None)
        for queue, member in victims.items()
        if member == 0
    }
    times = [(at - killed_ms) / 1000 for at in first.values() if at is not None]
    return Row(name, sent, len(seen), early.total() - len(early), twice_at_kill, max(times, default=None))


# --- tests -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["apache_broker", "ogive_broker"])
def server(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).name_server)


async def test_members_that_start_together_get_each_message_once(server: str) -> None:
    """Over a backlog; at most one of two hundred may come twice."""
    row = await hand_overs.together(server, members=4, messages=4000, listener_s=0.002, apart_s=0.1)
    assert row.delivered == row.sent == 4000
    assert row.twice <= row.sent / 200


async def test_members_that_come_and_go_cleanly_repeat_nothing(server: str) -> None:
    row = await hand_overs.join_and_leave(server, listener_s=0.002)
    assert (row.delivered, row.twice) == (row.sent, 0)


async def test_a_message_that_fails_is_tried_as_often_as_it_may_be_before_it_is_a_dead_letter(server: str) -> None:
    row = await hand_overs.failing(server, messages=200)
    assert (row.dead, row.dead_early, row.twice) == (40, 0, 0)


async def test_with_a_java_member_no_more_comes_twice_than_among_java_members(server: str, tmp_path: Path) -> None:
    alone = await joins_and_a_kill(server, tmp_path, JAVA_ALONE)
    mixed = await joins_and_a_kill(server, tmp_path, MIXED)
    print(json.dumps([asdict(alone), asdict(mixed)]))
    assert (alone.delivered, mixed.delivered) == (alone.sent, mixed.sent)
    assert mixed.twice_at_joins <= max(alone.twice_at_joins, mixed.sent / 200)


async def table(folder: Path) -> None:
    with ExitStack() as stack:
        brokers: list[tuple[str, Any]] = [
            ("apache", stack.enter_context(apache.Apache(folder / "apache"))),
            ("ogive", stack.enter_context(Broker(flush="async"))),
        ]
        for kinds in (JAVA_ALONE, MIXED, ("ours", "ours", "ours")):
            for name, broker in brokers:
                print(name, json.dumps(asdict(await joins_and_a_kill(broker.name_server, folder, kinds))), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(table(Path(directory)))
