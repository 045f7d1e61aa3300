"""Messages that fail always, among good ones (T22): each ends in the dead letters, once, after all
its retries, and holds up no other.

That an orderly queue waits for such a message and skips nothing is case 16 in
tests/never/test_stuck.py.
"""

import asyncio
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from ogive import aio
from ogive.errors import NoRoute, OgiveError
from ogive.model import MessageQueue, dlq_topic
from tests.figures import figures
from tests.peers import our_broker
from tests.processes import stop

pytestmark = [pytest.mark.rel, pytest.mark.waits(43)]

TOPIC, GROUP = "Poison", "poisoned"
WAIT_S = 300.0
# where the rate is measured: sends on their way, and what a good message takes
AT_A_TIME, WORK_S = 500, 0.002

# A line for each call; O_APPEND, so that a kill tears no line but the last.
MEMBER = """
import os, sys, time
import ogive

out = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

retries = int(sys.argv[3])


@ogive.listener("Poison", group="poisoned", start="earliest", threads=8, max_retries=retries)
def work(message):
    os.write(out, b"%d %d %s\\n" % (time.monotonic_ns(), message.reconsume_times, message.body))
    if message.body.startswith(b"bad"):
        raise ValueError("always")
    time.sleep(float(sys.argv[4]))

config = ogive.ConsumerConfig(
    rebalance_pause_s=0.1, persist_period_s=0.2, pull_retry_s=0.2, send_back_retry_s=0.5
)
ogive.run(work, name_server=sys.argv[1], config=config)
"""


class Member:
    """*work_s*: what a good message takes."""

    def __init__(self, server: str, folder: Path, retries: int, work_s: float = 0.0) -> None:
        self._words = (server, folder, retries, work_s)
        self._started = 0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        server, folder, retries, work_s = self._words
        self._started += 1
        words = [
            sys.executable,
            "-c",
            MEMBER,
            server,
            str(folder / f"member-{self._started}"),
            str(retries),
            str(work_s),
        ]
        return subprocess.Popen(words, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        stop(self.process, signal.SIGKILL)
        self.process = self._start()


def calls_of(folder: Path) -> Iterator[tuple[int, int, bytes]]:
    """When each call was, in nanoseconds, its retries and its body, in whole lines of all members
    that ever were.
    """
    for file in folder.glob("member-*"):
        for line in file.read_bytes().split(b"\n")[:-1]:
            when, times, body = line.split(b" ", 2)
            yield int(when), int(times), body


def tries(folder: Path) -> dict[bytes, list[int]]:
    """Retries of each call, by body."""
    found: dict[bytes, list[int]] = defaultdict(list)
    for _, times, body in calls_of(folder):
        found[body].append(times)
    return found


async def letters(consumer: aio.PullConsumer) -> list[bytes]:
    """What lies in the group's dead letters, in order."""
    queue, offset = MessageQueue(dlq_topic(GROUP), "broker-a", 0), 0
    bodies: list[bytes] = []
    try:
        while True:
            result = await consumer.pull(queue, offset)
            if not result.messages:
                return bodies
            bodies += [message.body for message in result.messages]
            offset = result.next_offset
    except (NoRoute, OgiveError):
        return bodies


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("poison", "good", "retries", "kills"),
    [
        pytest.param(20, 200, 1, 0, marks=pytest.mark.quick),
        pytest.param(30, 150, 2, 2, marks=pytest.mark.quick),
        pytest.param(500, 5000, 16, 10, marks=pytest.mark.nightly),
    ],
    ids=["no kill", "quick", "nightly"],
)
async def test_poison_goes_to_the_dead_letters_once_and_good_messages_past_it(
    tmp_path: Path, poison: int, good: int, retries: int, kills: int
) -> None:
    """T22.

    With kills of member and broker in turn some dead letters come again, each at the end of a way
    through the tries of its own.

    A broker that was killed delivers a second of delayed messages again: of each message several
    tries at once, each with its own way on. What is sent behind the last kill goes one way.
    """
    seed = 22
    chance = random.Random(seed)
    bad = {b"bad %d" % i for i in range(poison)}
    fine = {b"good %d" % i for i in range(good)}
    bodies = sorted(bad | fine, key=lambda _: chance.random())
    with (
        our_broker(tmp_path) as broker,
        figures("T22", nightly=kills > 2, seed=seed, attempts=len(bodies), faults=kills) as line,
    ):
        async with (
            aio.Admin(broker.name_server) as admin,
            aio.Producer(broker.name_server) as producer,
        ):
            await admin.create_topic(TOPIC, queues=4)
            member, part = Member(broker.name_server, tmp_path, retries), bodies
            try:
                for i in range(kills + 1):
                    part = bodies[
                        i * len(bodies) // (kills + 1) : (i + 1) * len(bodies) // (kills + 1)
                    ]
                    await asyncio.gather(
                        *(producer.send(TOPIC, body, timeout_s=60.0) for body in part)
                    )
                    if i == kills:
                        break
                    await asyncio.sleep(chance.uniform(0.5, 3.0))
                    if i % 2:
                        await asyncio.to_thread(broker.kill)
                        await asyncio.to_thread(broker.start)
                    else:
                        await asyncio.to_thread(member.kill)
                async with (
                    aio.PullConsumer(name_server=broker.name_server) as reader,
                    asyncio.timeout(WAIT_S),
                ):
                    while (
                        not bad <= set(dead := await letters(reader))
                        or not fine <= tries(tmp_path).keys()
                    ):
                        await asyncio.sleep(0.1)
            finally:
                await asyncio.to_thread(stop, member.process)
        calls = tries(tmp_path)
        copies = Counter(dead)
        extra = len(dead) - len(copies)
        line.update(
            received=len(calls),
            lost=len(set(bodies) - calls.keys()),
            dead=len(copies),
            duplicates=extra,
        )
        line.update(most_copies=max(copies.values()))
    assert copies.keys() == bad
    assert all(set(calls[body]) == set(range(retries + 1)) for body in bad), (
        "each try came, the last one with all its retries"
    )
    # one whose answer a kill took is sent back once more
    assert all(copies[body] <= calls[body].count(retries) + kills for body in bad), (
        "a dead letter without a last try"
    )
    lone = set(part)
    assert all(
        copies[body] == 1 and sorted(calls[body]) == list(range(retries + 1)) for body in lone & bad
    )
    assert all(calls[body] == [0] for body in lone & fine)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("poison", "good", "retries"),
    [
        pytest.param(30, 300, 2, marks=pytest.mark.quick),
        pytest.param(2_000, 20_000, 16, marks=pytest.mark.nightly),
    ],
    ids=["quick", "nightly"],
)
async def test_good_messages_go_on_beside_poison(
    tmp_path: Path, poison: int, good: int, retries: int
) -> None:
    """T22.

    A member comes to good messages alone, and then to as many with poison among them, whose tries
    come between them as well.

    Its eight threads work all the time.
    """
    seed = 22
    chance = random.Random(seed)
    rates: list[float] = []
    with (
        our_broker(tmp_path) as broker,
        figures(
            "T22 rate", nightly=good > 300, seed=seed, attempts=2 * good + poison, lost=0
        ) as line,
    ):
        async with (
            aio.Admin(broker.name_server) as admin,
            aio.Producer(broker.name_server) as producer,
        ):
            await admin.create_topic(TOPIC, queues=4)
            for kind, count in ("alone", 0), ("beside", poison):
                folder = tmp_path / kind
                folder.mkdir()
                fine = {b"good %s %d" % (kind.encode(), i) for i in range(good)}
                bodies = sorted(
                    {b"bad %d" % i for i in range(count)} | fine, key=lambda _: chance.random()
                )
                for first in range(0, len(bodies), AT_A_TIME):
                    await asyncio.gather(
                        *(
                            producer.send(TOPIC, body, timeout_s=60.0)
                            for body in bodies[first : first + AT_A_TIME]
                        )
                    )
                member = Member(broker.name_server, folder, retries, WORK_S)
                try:
                    async with asyncio.timeout(WAIT_S):
                        while not fine <= tries(folder).keys():
                            await asyncio.sleep(0.2)
                finally:
                    await asyncio.to_thread(stop, member.process)
                came = [when for when, _, body in calls_of(folder) if body in fine]
                rates.append(good / (max(came) - min(came)) * 1e9)
        alone, beside = rates
        line.update(
            good_alone_a_second=round(alone), good_of_usual_percent=round(100 * beside / alone)
        )
