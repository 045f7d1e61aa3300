"""Groups of our members and Java's, in which members join, leave and are killed all the time: what
came is held against what was sent.

Lost: sent, and never delivered. Out of order: a queue of the orderly group went on without the next
message in between. What may come twice is counted from what happened: of a killed member what it
had not told yet, and in a concurrent group, whose queues nobody locks, what both owners got around
a hand-over. A queue of an orderly group that is handed over repeats nothing.
"""

import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from ogive import aio
from ogive.testing import Broker
from tests.figures import write
from tests.interop import apache
from tests.processes import stop

pytestmark = pytest.mark.waits(640)


Mode = Literal["concurrent", "orderly"]

MODES: tuple[Mode, ...] = ("concurrent", "orderly")
MEMBER = Path(__file__).parent / "member.py"
# messages a second and topic
RATE = 100
QUEUES = 8
UNSAVED_MS = (
    # of a killed one's work. Ours tells its progress each second; Java's each five, but also with
    # each pull. And as long again
    2000
)
# both look at their group again a second after the last time; until then an owner goes on that has
# lost a queue
HAND_OVER_MS = 1000
# a queue of a killed orderly member is free when the broker's lease is over
LEASE_S = 60.0
QUIET_S = 45.0


class OurMember:
    """A process that prints its deliveries into a file that outlives it."""

    def __init__(
        self, directory: Path, name_server: str, topic: str, group: str, mode: Mode
    ) -> None:
        self._output = directory / f"{group}-{time.monotonic_ns()}"
        with self._output.open("wb") as out:
            command = [sys.executable, str(MEMBER), name_server, topic, group, mode]
            self._process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
            )

    def end(self, sign: signal.Signals) -> None:
        stop(self._process, sign)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def send(self, sign: signal.Signals) -> None:
        self._process.send_signal(sign)

    def deliveries(self) -> list[dict[str, Any]]:
        # a killed one may have been in the middle of a line
        lines = self._output.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]


class JavaMember:
    def __init__(self, name_server: str, topic: str, group: str, mode: Mode) -> None:
        options = {
            "nameServer": name_server,
            "topic": topic,
            "group": group,
            "deliveries": 10_000_000,
            "mode": mode,
            "timeout": 7200,
        }
        self._client = apache.JavaClient("Consume", system=apache.QUICK_REBALANCE, **options)

    def end(self, sign: signal.Signals) -> None:
        """It has no way to leave but to be killed."""
        self._client.kill()

    def forget(self) -> None:
        """Remove its files."""
        self._client.__exit__(None, None, None)

    def deliveries(self) -> list[dict[str, Any]]:
        return [line for line in self._client.printed().lines if "body" in line]


@dataclass
class Churn:
    """One group under change."""

    directory: Path
    name_server: str
    topic: str
    group: str
    mode: Mode
    live: list[OurMember | JavaMember] = field(default_factory=list)
    gone: list[OurMember | JavaMember] = field(default_factory=list)
    ids: dict[OurMember | JavaMember, int] = field(default_factory=dict)
    # when, in ms
    killed: dict[int, int] = field(default_factory=dict)
    changes: Counter[str] = field(default_factory=Counter)

    def join(self, *, java: bool = False) -> None:
        names = (self.name_server, self.topic, self.group, self.mode)
        member = JavaMember(*names) if java else OurMember(self.directory, *names)
        self.ids[member] = len(self.ids)
        self.live.append(member)
        self.changes["java joins" if java else "joins"] += 1

    def leave(self, member: OurMember | JavaMember, sign: signal.Signals) -> None:
        self.live.remove(member)
        if sign is signal.SIGKILL:
            self.killed[self.ids[member]] = time.time_ns() // 1_000_000
        member.end(sign)
        self.gone.append(member)
        self.changes[
            "java kills"
            if isinstance(member, JavaMember)
            else "kills"
            if sign is signal.SIGKILL
            else "leaves"
        ] += 1

    def change(self, dice: random.Random) -> None:
        """One member comes, leaves or is killed; there are two of ours at least, and Java's comes
        back at once.
        """
        ours = [member for member in self.live if isinstance(member, OurMember)]
        java = [member for member in self.live if isinstance(member, JavaMember)]
        what = dice.choice(["join", "leave", "kill", "java"])
        if what == "java" and java:
            self.leave(java[0], signal.SIGKILL)
            self.join(java=True)
        elif what in ("leave", "kill") and len(ours) > 2:
            self.leave(dice.choice(ours), signal.SIGTERM if what == "leave" else signal.SIGKILL)
        elif len(ours) < 4:
            self.join()

    def numbers(self) -> set[str]:
        return {line["body"] for line in self.deliveries()}

    def end(self) -> None:
        """Kill who is left, and forget the files."""
        for member in list(self.live):
            self.leave(member, signal.SIGKILL)
        for member in self.gone:
            if isinstance(member, JavaMember):
                member.forget()

    def deliveries(self) -> list[dict[str, Any]]:
        found = [
            line | {"member": self.ids[member]}
            for member in (*self.gone, *self.live)
            for line in member.deliveries()
        ]
        return sorted(found, key=lambda line: (line["at"], line["queueId"], line["queueOffset"]))


def skipped(deliveries: Iterable[dict[str, Any]]) -> list[tuple[int, int]]:
    """(queue, offset) where a queue went on without what lies between."""
    ends: dict[int, int] = defaultdict(int)
    found = []
    for line in deliveries:
        queue, offset = line["queueId"], line["queueOffset"]
        if offset > ends[queue]:
            found.append((queue, offset))
        ends[queue] = max(ends[queue], offset + 1)
    return found


def may_come_again(
    deliveries: Sequence[dict[str, Any]], killed: Mapping[int, int], mode: Mode
) -> int:
    """How many deliveries there may be beyond the first of each message; *killed*: which member,
    and when.
    """
    unsaved: int = sum(
        line["at"] >= killed.get(line["member"], sys.maxsize) - UNSAVED_MS for line in deliveries
    )
    return unsaved + (0 if mode == "orderly" else around_hand_overs(deliveries, killed))


def around_hand_overs(deliveries: Iterable[dict[str, Any]], killed: Mapping[int, int]) -> int:
    """What the others, as long as they lived, got of a queue just before and after a member began
    to get it.
    """
    by_queue: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for line in deliveries:
        by_queue[line["queueId"]].append(line)
    count = 0
    for lines in by_queue.values():
        got = {(line["member"], line["queueOffset"]) for line in lines}
        for first in lines:
            if (first["member"], first["queueOffset"] - 1) in got:
                # it had the queue already
                continue
            count += sum(
                line["member"] != first["member"]
                and abs(line["at"] - first["at"]) <= HAND_OVER_MS
                and killed.get(line["member"], sys.maxsize) > first["at"]
                for line in lines
            )
    return count


async def run(
    broker: Broker, directory: Path, seconds: float, pause_s: float, *, java: bool
) -> dict[str, Any]:
    """The figures of one run."""
    groups = [
        Churn(directory, broker.name_server, f"Churn_{mode}", f"churn_{mode}", mode)
        for mode in MODES
    ]
    try:
        async with aio.Admin(broker.name_server) as admin:
            for churn in groups:
                await admin.create_topic(churn.topic, queues=QUEUES)
                churn.join()
                churn.join()
                if java:
                    churn.join(java=True)
        numbers = await send_and_change(broker.name_server, groups, seconds, pause_s)
        deadline = time.monotonic() + LEASE_S + QUIET_S
        while time.monotonic() < deadline and any(numbers - churn.numbers() for churn in groups):
            await asyncio.sleep(0.5)
        return {churn.mode: figures(churn, numbers) for churn in groups} | {
            "seconds": seconds,
            "java": java,
        }
    finally:
        for churn in groups:
            churn.end()


async def send_and_change(
    name_server: str, groups: list[Churn], seconds: float, pause_s: float
) -> set[str]:
    """Send the same numbers to each group's topic, at RATE, and change the groups every *pause_s*;
    the numbers.
    """
    dice, number, begun = random.Random(1), 0, time.monotonic()
    next_change = begun + pause_s
    async with aio.Producer(name_server) as producer:
        while time.monotonic() < begun + seconds:
            for churn in groups:
                await producer.send(churn.topic, b"%d" % number, sharding_key=str(number % 64))
            number += 1
            if time.monotonic() > next_change:
                next_change = time.monotonic() + pause_s
                for churn in groups:
                    await asyncio.to_thread(churn.change, dice)
            await asyncio.sleep(max(0.0, begun + number / RATE - time.monotonic()))
    return set(map(str, range(number)))


def figures(churn: Churn, sent: set[str]) -> dict[str, Any]:
    deliveries = churn.deliveries()
    return {
        "sent": len(sent),
        "delivered": len(deliveries),
        "lost": len(sent - churn.numbers()),
        "out_of_order": len(skipped(deliveries)) if churn.mode == "orderly" else None,
        "duplicates": len(deliveries) - len({line["body"] for line in deliveries}),
        "duplicates_allowed": may_come_again(deliveries, churn.killed, churn.mode),
        "changes": dict(churn.changes),
    }


def judge(result: dict[str, Any]) -> None:
    print(json.dumps({"mixed_churn": result}))
    for mode in MODES:
        row = result[mode]
        write(
            {
                "test": f"mixed group, {mode}, {result['seconds']:.0f} s",
                "size": "nightly",
                "faults": sum(row["changes"].values()),
                "attempts": row["sent"],
                "acknowledged": row["sent"],
                "received": row["delivered"],
                "lost": row["lost"],
                "duplicates": row["duplicates"],
                "seconds": result["seconds"],
            }
        )
        assert row["lost"] == 0, (mode, row)
        assert not row["out_of_order"], (mode, row)
        assert row["duplicates"] <= row["duplicates_allowed"], (mode, row)


async def churned(seconds: float, pause_s: float, *, java: bool) -> None:
    with tempfile.TemporaryDirectory() as directory, Broker() as broker:
        judge(await run(broker, Path(directory), seconds, pause_s, java=java))


@pytest.mark.nightly
@pytest.mark.timeout(200)
async def test_members_come_and_go_and_nothing_is_lost() -> None:
    """The short size: 15 seconds, one change of each group every three; a lease of a killed orderly
    member may cost a minute more.
    """
    await churned(15.0, 3.0, java=True)


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_ten_minutes_of_coming_and_going() -> None:
    await churned(600.0, 5.0, java=True)


def test_a_gap_in_a_queue_is_found() -> None:
    """The check itself: going back is allowed, going on without the next is not."""
    lines = [{"queueId": 0, "queueOffset": offset} for offset in (0, 1, 2, 1, 2, 3, 5)]
    assert skipped(lines) == [(0, 5)]
    assert skipped(lines[:-1]) == []


def line(member: int, offset: int, at: int) -> dict[str, Any]:
    return {"member": member, "queueId": 0, "queueOffset": offset, "at": at}


def test_of_a_killed_member_what_it_did_last_may_come_again() -> None:
    lines = [line(0, offset, 1000 * offset) for offset in range(10)] + [line(1, 9, 60_000)]
    for mode in MODES:
        # what it did at 8,000 and 9,000
        assert may_come_again(lines, {0: 9500}, mode) == 2
        assert may_come_again(lines, {0: 90_000}, mode) == 0


def test_what_two_owners_get_around_a_hand_over_may_come_again_unless_they_lock() -> None:
    old = [line(0, offset, 100 * offset) for offset in range(40)]
    # begins at 4,000, with what the old one got at 2,000
    new = [line(1, offset, 2000 + 100 * offset) for offset in range(20, 60)]
    again = [line(0, 70, 9000)]
    # from 3,000 on
    assert around_hand_overs(old + new, {}) == 10
    # it begins anew, with nobody at work
    assert around_hand_overs(old + new + again, {}) == 10 + 0
    assert around_hand_overs(old + new, {0: 3950}) == 0
    assert (
        may_come_again(old + new, {}, "concurrent"),
        may_come_again(old + new, {}, "orderly"),
    ) == (10, 0)
