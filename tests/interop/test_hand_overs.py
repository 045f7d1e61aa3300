"""Queues that change hands between our members, and between ours and Java's, on our broker and on
Apache's.

``python -m tests.interop.test_hand_overs`` prints a row for each: our broker and Apache's, Java
alone and one Java member among ours. With ``--stop`` a row for each broker of a member that stands
still.
"""

import argparse
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
KILL_AFTER_S: Final = 9.0
"""From the beginning, and SETTLED_S after all members got something."""
SETTLED_S: Final = 4.0
AFTER_KILL_S: Final = 7.0
WAIT_S: Final = 60.0
EXPIRY_S: Final = 120.0
"""Both brokers drop a client that has sent no heartbeat for so long; they look each ten seconds."""
UNSAVED: Final = RATE
"""Messages that a killed member may cost: all that was sent in the longest time between two
commits, 1 s. Usually a third of them are its own, and 0.2 s pass.
"""
TAKEN_OVER_S: Final = 3.0
LATER_S: Final = 1.0
"""Slack over the time of Java members in the same run."""


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
                java = kind == "java"
                members.append(
                    JavaMember(*names)  # type: ignore[arg-type]
                    if java
                    else OurMember(folder, *names)  # type: ignore[arg-type]
                )

            async def kill_the_first() -> int:
                """Once all are at work, however long a JVM needs to start."""
                await asyncio.sleep(KILL_AFTER_S)
                await asyncio.gather(*joining)
                async with asyncio.timeout(WAIT_S):
                    while not all(member.deliveries() for member in members):
                        await asyncio.sleep(0.5)
                await asyncio.sleep(SETTLED_S)
                now_ms = time.time_ns() // 1_000_000
                await asyncio.to_thread(members[0].end, signal.SIGKILL)
                await asyncio.sleep(AFTER_KILL_S)
                return now_ms

            joining = [
                asyncio.create_task(join(kind, after_s))
                for kind, after_s in zip(kinds, JOIN_AFTER_S, strict=True)
            ]
            killing = asyncio.create_task(kill_the_first())
            begun = time.monotonic()
            while not killing.done():
                await producer.send(topic, b"%d" % sent)
                sent += 1
                await asyncio.sleep(max(0.0, begun + sent / RATE - time.monotonic()))
            killed_ms = await killing
            deadline = time.monotonic() + WAIT_S
            while time.monotonic() < deadline and len(bodies(members)) < sent:
                await asyncio.sleep(0.5)
    finally:
        for member in members:
            member.end(signal.SIGTERM)
    row = judged(" ".join(kinds), sent, members, killed_ms)
    for member in members:
        if isinstance(member, JavaMember):
            member.forget()
    return row


@dataclass(frozen=True, slots=True)
class Stop:
    """Messages of two members of ours, of which the first got SIGSTOP until its queues were read
    again, and then SIGCONT.
    """

    sent: int
    delivered: int
    twice: int
    read_again_s: float | None
    """From the stop to the last of the first calls in its queues."""
    just_before: int
    """What it got in the second before it was stopped: some of that may not be committed."""
    after: int
    """What it got once it went on."""


async def a_stop(server: str, folder: Path) -> Stop:
    scene = hand_overs.Scene(server)
    names = (server, scene.topic, scene.group, "concurrent")
    members: list[OurMember] = []
    sent, stopped_ms, continued_ms = 0, 0, 0
    try:
        async with aio.Admin(server) as admin, aio.Producer(server) as producer:
            await admin.create_topic(scene.topic, queues=QUEUES)
            members += [
                OurMember(folder, *names)  # type: ignore[arg-type]
                for _ in range(2)
            ]
            begun = time.monotonic()
            while (now := time.monotonic() - begun) < EXPIRY_S + 40.0:
                await producer.send(scene.topic, b"%d" % sent)
                sent += 1
                if not stopped_ms and now > 10.0:
                    stopped_ms = time.time_ns() // 1_000_000
                    members[0].send(signal.SIGSTOP)
                if not continued_ms and now > EXPIRY_S + 25.0:
                    continued_ms = time.time_ns() // 1_000_000
                    members[0].send(signal.SIGCONT)
                await asyncio.sleep(max(0.0, begun + sent / RATE - time.monotonic()))
            await asyncio.sleep(3.0)
    finally:
        for member in members:
            member.end(signal.SIGTERM)
    stopped, other = (member.deliveries() for member in members)
    row = judged("", sent, list(members), stopped_ms)
    seen = Counter(line["body"] for line in (*stopped, *other))
    just_before = sum(stopped_ms - 1000 <= line["at"] < stopped_ms for line in stopped)
    after = sum(line["at"] >= continued_ms for line in stopped)
    return Stop(sent, len(seen), seen.total() - len(seen), row.taken_over_s, just_before, after)


def bodies(members: list[OurMember | JavaMember]) -> set[str]:
    return {line["body"] for member in members for line in member.deliveries()}


def judged(name: str, sent: int, members: list[OurMember | JavaMember], killed_ms: int) -> Row:
    lines = sorted(
        (line | {"member": i} for i, member in enumerate(members) for line in member.deliveries()),
        key=lambda line: line["at"],
    )
    early, seen = Counter[str](), set[str]()
    twice_at_kill = 0
    for line in lines:
        if line["at"] < killed_ms:
            early[line["body"]] += 1
        elif line["body"] in seen:
            twice_at_kill += 1
        seen.add(line["body"])
    victims = {line["queueId"]: line["member"] for line in lines if line["at"] < killed_ms}
    late = [line for line in lines if line["at"] >= killed_ms and line["member"] != 0]
    first = {
        queue: min((line["at"] for line in late if line["queueId"] == queue), default=None)
        for queue, member in victims.items()
        if member == 0
    }
    times = [(at - killed_ms) / 1000 for at in first.values() if at is not None]
    return Row(
        name, sent, len(seen), early.total() - len(early), twice_at_kill, max(times, default=None)
    )


# --- tests ----------------------------------------------------------------------------------------


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


async def test_a_message_that_fails_is_tried_as_often_as_it_may_be_before_it_is_a_dead_letter(
    server: str,
) -> None:
    row = await hand_overs.failing(server, messages=200)
    assert (row.dead, row.dead_early, row.twice) == (40, 0, 0)


async def test_with_a_java_member_hand_overs_cost_no_more_than_among_java_members(
    server: str, tmp_path: Path
) -> None:
    """Neither joins nor a kill; a machine that is busy gets the slack of the constants."""
    alone = await joins_and_a_kill(server, tmp_path, JAVA_ALONE)
    mixed = await joins_and_a_kill(server, tmp_path, MIXED)
    print(json.dumps([asdict(alone), asdict(mixed)]))
    assert (alone.delivered, mixed.delivered) == (alone.sent, mixed.sent)
    assert mixed.twice_at_joins <= max(alone.twice_at_joins, mixed.sent / 200)
    assert mixed.twice_at_kill <= max(alone.twice_at_kill, UNSAVED)
    assert alone.taken_over_s is not None
    assert mixed.taken_over_s is not None
    assert mixed.taken_over_s <= max(TAKEN_OVER_S, alone.taken_over_s + LATER_S)


async def table(folder: Path, *, stop: bool) -> None:
    with ExitStack() as stack:
        brokers: list[tuple[str, Any]] = [
            ("apache", stack.enter_context(apache.Apache(folder / "apache"))),
            ("ogive", stack.enter_context(Broker(flush="async"))),
        ]
        if stop:
            rows = await asyncio.gather(
                *(a_stop(broker.name_server, folder) for _, broker in brokers)
            )
            for (name, _), row in zip(brokers, rows, strict=True):
                print(name, json.dumps(asdict(row)))
            return
        for kinds in (JAVA_ALONE, MIXED, ("ours", "ours", "ours")):
            for name, broker in brokers:
                print(
                    name,
                    json.dumps(asdict(await joins_and_a_kill(broker.name_server, folder, kinds))),
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.interop.test_hand_overs", description=__doc__
    )
    parser.add_argument("--stop", action="store_true", help="a member that stands still")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(table(Path(directory), stop=options.stop))


if __name__ == "__main__":
    main()
