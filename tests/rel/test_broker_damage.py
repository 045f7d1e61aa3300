"""What a broker can make again, backups of its tables among it: any of these files may be missing
or wrong at a start (T7).
"""

import json
import logging
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ogive.broker import Broker, BrokerConfig
from ogive.wire.codes import RequestCode
from tests.figures import figures
from tests.raw_client import RawClient, messages
from tests.rel.test_store_damage import derived_files, spoil_some

pytestmark = [pytest.mark.rel, pytest.mark.quick]

TABLES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json")
MESSAGES = 60


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[Broker, RawClient]]:
    broker = Broker(BrokerConfig(data=folder, port=0, segment_bytes=64 * 1024))
    await broker.start()
    try:
        async with await RawClient.open(broker.address) as client:
            yield broker, client
    finally:
        await broker.stop()


async def change(client: RawClient, name: str) -> None:
    """Something new in each table."""
    fields = {
        "readQueueNums": 1,
        "writeQueueNums": 1,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "order": False,
    }
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_TOPIC, topic=name, defaultTopic="TBW102", **fields
    )
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json.dumps({"groupName": name}).encode()
    )
    await client.send(name, name.encode())
    await client.ok(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        consumerGroup=name,
        topic=name,
        queueId=0,
        commitOffset=1,
    )


async def fill(folder: Path) -> None:
    """Messages, also some that wait, a group that is half done; in two runs, so that each table has
    a version before.
    """
    for run in ("First", "Second"):
        async with running(folder) as (_, client):
            await change(client, run)
            for number in range(MESSAGES):
                await client.send(
                    f"T{number % 3}",
                    b"%b %d" % (run.encode(), number) + b"x" * 900,
                    queue=number % 4,
                )
            await client.send("T0", b"waits", {"DELAY": "18"})
            await client.send("T0", b"waits, too", {"TIMER_DELAY_SEC": "7200"})
            await client.heartbeat("c", "G", "T0")
            for queue in range(4):
                await client.ok(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    consumerGroup="G",
                    topic="T0",
                    queueId=queue,
                    commitOffset=3,
                )


async def all_of(broker: Broker, client: RawClient) -> dict[str, Any]:
    """What clients see, and what waits."""
    ctx = broker.context
    bodies: dict[str, list[bytes]] = {}
    for topic, queue in sorted(key for key in ctx.store.queues if key[0] in ctx.topics):
        found = bodies[f"{topic}/{queue}"] = []
        while len(found) < ctx.store.max_offset(topic, queue):
            found += [
                message.body
                for message in messages(await client.pull("Looker", topic, len(found), queue=queue))
            ]
    offsets = ctx.offsets.snapshot()()
    return {
        "topics": dict(ctx.topics.all()),
        "groups": dict(ctx.groups.all()),
        "offsets": offsets["offsetTable"],
        "bodies": bodies,
        "timers": len(ctx.timers),
    }


@pytest.mark.parametrize("trials", [4, pytest.param(100, marks=pytest.mark.nightly)])
async def test_a_broker_starts_without_any_of_what_it_can_make_again(
    tmp_path: Path, trials: int
) -> None:
    """All is as it was; and each backup, once there is one again, is a version of its table that a
    start may rely on.
    """
    root, dice = tmp_path / "original", random.Random(7)
    await fill(root)
    shutil.copytree(root, tmp_path / "looked")
    async with running(tmp_path / "looked") as (broker, client):
        truth = await all_of(broker, client)
    assert truth["timers"] == 2
    assert sum(map(len, truth["bodies"].values())) > 2 * MESSAGES
    with figures("T7", nightly=trials > 4, seed=7, faults=trials) as line:
        for trial in range(trials):
            folder = tmp_path / f"trial-{trial}"
            shutil.copytree(root, folder)
            backups = [folder / "config" / f"{name}.bak" for name in TABLES]
            assert all(path.exists() for path in backups)
            files = [*derived_files(folder), *(folder / "config").glob("*.bak")]
            spoil_some(files, dice)
            async with running(folder) as (broker, client):
                assert await all_of(broker, client) == truth, trial
                await change(client, "Third")
            for name in TABLES:
                (folder / "config" / name).unlink()
            async with running(folder) as (broker, client):
                found = await all_of(broker, client)
            for kind in ("topics", "groups", "offsets"):
                assert found[kind].items() >= truth[kind].items(), (trial, kind)
            assert found["bodies"].items() >= truth["bodies"].items()
            shutil.rmtree(folder)
        line["lost"] = 0
