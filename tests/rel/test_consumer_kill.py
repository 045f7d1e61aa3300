"""T15: consumers of a group killed again and again: every message is processed, and progress never
passes one that is not.
"""

import asyncio
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ogive import aio
from tests.figures import figures
from tests.never.scene import WAIT_S
from tests.peers import our_broker

pytestmark = pytest.mark.waits(74)

TOPIC, GROUP, QUEUES = "Ledger", "killed", 4

# Each message that is done stands in the member's file before the listener returns; O_APPEND, so
# that a kill tears no line but the last.
MEMBER = """
import os, random, sys, time
import ogive

out = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

@ogive.listener("Ledger", group="killed", start="earliest", threads=4, max_retries=100)
def work(message):
    time.sleep(random.uniform(0, 0.05))  # so that a kill finds some at work
    if random.random() < 0.05:
        raise ValueError("one of twenty fails")
    os.write(out, message.body + b"\\n")

config = ogive.ConsumerConfig(rebalance_pause_s=0.1, persist_period_s=0.2)
ogive.run(work, name_server=sys.argv[1], config=config)
"""


def start_member(server: str, out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", MEMBER, server, str(out)], stderr=subprocess.DEVNULL
    )


def done(folder: Path) -> list[bytes]:
    """Whole lines of all members that ever were."""
    return [
        line for file in folder.glob("member-*") for line in file.read_bytes().split(b"\n")[:-1]
    ]


@pytest.mark.kills("case 2: offset committed = highest done", param="8-1500")
@pytest.mark.rel
@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("kills", "messages"),
    [
        pytest.param(8, 1500, marks=pytest.mark.quick),
        pytest.param(100, 20_000, marks=pytest.mark.nightly),
    ],
)
async def test_killed_consumers_lose_no_message(tmp_path: Path, kills: int, messages: int) -> None:
    seed = 15
    chance = random.Random(seed)
    bodies = [b"%d" % i for i in range(messages)]
    members: list[subprocess.Popen[bytes]] = []
    with (
        our_broker(tmp_path) as broker,
        figures(
            "T15",
            nightly=kills > 8,
            seed=seed,
            attempts=messages,
            acknowledged=messages,
            faults=kills,
        ) as line,
    ):
        try:
            async with (
                aio.Admin(broker.name_server) as admin,
                aio.Producer(broker.name_server) as producer,
            ):
                await admin.create_topic(TOPIC, queues=QUEUES)
                members += [
                    start_member(broker.name_server, tmp_path / f"member-{i}") for i in range(3)
                ]
                for i in range(kills):
                    part = bodies[i * messages // kills : (i + 1) * messages // kills]
                    for body in part:
                        await producer.send(TOPIC, body)
                    await asyncio.sleep(chance.uniform(0.1, 0.5))
                    victim = chance.randrange(3)
                    members[victim].send_signal(signal.SIGKILL)
                    members[victim].wait()
                    members[victim] = start_member(broker.name_server, tmp_path / f"member-{3 + i}")
                most, ends_at = 0, time.monotonic() + WAIT_S
                while (count := len(set(done(tmp_path)))) < messages and time.monotonic() < ends_at:
                    if count > most:
                        most, ends_at = count, time.monotonic() + WAIT_S
                    await asyncio.sleep(0.2)
        finally:
            for member in members:
                member.terminate()
            for member in members:
                member.wait(60)
        got = done(tmp_path)
        line.update(
            received=len(set(got)),
            lost=len(set(bodies) - set(got)),
            phantom=len(set(got) - set(bodies)),
            duplicates=len(got) - len(set(got)),
        )
    assert set(got) == set(bodies)
    # what was at work, and a second of what was done and not yet told
    assert line["duplicates"] <= kills * (4 + 1000)
