"""T10: a real, small file system that fills up and gets room again, ten times, under a broker's
store and under ``ogive up``.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ogive.errors import ResponseCode, StoreFull
from ogive.store import StoreConfig
from ogive.wire.codes import RequestCode
from tests.figures import figures, p99_ms
from tests.peers import our_broker
from tests.raw_client import RawClient, messages
from tests.stores import Driver, message

pytestmark = [pytest.mark.rel, pytest.mark.result("T10"), pytest.mark.nightly]

MIB = 1024 * 1024
# of the first message, measured in each round
PULLS = 100


@pytest.fixture
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Of 16 MiB, or as many as the test says."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root may mount a file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            f"size={getattr(request, 'param', 16)}m",
            "tmpfs",
            str(disk),
        ],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode()[:200]}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk_refuses_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    """Refused sends lose nothing, reads go on, no record is torn, and nothing has to be started
    again.
    """
    now = [0.0]
    config = StoreConfig(
        root=small_disk / "store",
        segment_bytes=MIB,
        ahead_bytes=0,
        hot_log_bytes=MIB,
        index_slots=1000,
    )
    driver = Driver(config)
    driver.store._full._monotonic = lambda: now[0]
    acked: list[bytes] = []
    ballast = small_disk / "ballast"
    with figures("T10", nightly=True, faults=10) as line:
        for round_ in range(10):
            ballast.write_bytes(bytes(MIB * (10 - round_)))
            refused = 0
            while not refused:
                body = b"%d/%d " % (round_, len(acked)) + bytes(4000)
                try:
                    driver.put(message(body))
                    acked.append(body)
                except StoreFull:
                    refused += 1
                assert len(acked) < 5000, "the disk was never full"
            assert driver.store.failed is None
            assert driver.bodies() == acked
            ballast.unlink()
            now[0] += 2.0
        line["attempts"], line["acknowledged"] = len(acked) + 10, len(acked)
        driver.put(message(b"last"))
        driver.close()
        with Driver(config) as again:
            assert again.bodies() == [*acked, b"last"]
            line["received"], line["lost"] = len(acked), 0


def take_all(ballast: Path) -> None:
    """The broker takes room at the same time."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


async def fill(client: RawClient, acked: list[bytes]) -> int:
    """Send until the broker says no to a message of any size; how often it did."""
    refused = 0
    for size in (100_000, 4_000, 0):
        while True:
            body = b"%d " % len(acked) + bytes(size)
            answer = await client.start_send("T", body)
            if answer.code != ResponseCode.SUCCESS:
                break
            acked.append(body)
            assert len(acked) < 5000, "the disk was never full"
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, answer
        assert "its disk is full" in (answer.remark or "")
        refused += 1
    return refused


async def received(client: RawClient, topic: str) -> list[bytes]:
    found: list[bytes] = []
    while (answer := await client.pull("Looker", topic, len(found))).code == ResponseCode.SUCCESS:
        found += [message.body for message in messages(answer)]
    return found


async def pulls_s(client: RawClient) -> list[float]:
    took: list[float] = []
    for _ in range(PULLS):
        began = time.perf_counter()
        assert messages(await client.pull("Looker", "T", 0, count=1))[0].body == b"first"
        took.append(time.perf_counter() - began)
    return took


@pytest.mark.parametrize("small_disk", [64], indirect=True, ids=["64 MiB"])
async def test_broker_on_a_full_disk_refuses_sends_and_goes_on_when_there_is_room(
    small_disk: Path,
) -> None:
    """A producer hears why, consumers get everything and commit, and within 5 s of there being room
    all is as before.
    """
    acked: list[bytes] = []
    before_s: list[float] = []
    full_s: list[float] = []
    writes_again_s: list[float] = []
    ballast = small_disk / "ballast"
    with (
        figures("T10 ogive up", nightly=True, faults=10, attempts=0) as line,
        our_broker(small_disk) as broker,
    ):
        async with await RawClient.open(broker.address) as client:
            await client.send("T", b"first")
            acked.append(b"first")
            await client.heartbeat("c", "G", "T")
            for round_ in range(10):
                before_s += await pulls_s(client)
                take_all(ballast)
                line["attempts"] += await fill(client, acked)
                full_s += await pulls_s(client)
                assert await received(client, "T") == acked
                await client.ok(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    consumerGroup="G",
                    topic="T",
                    queueId=0,
                    commitOffset=len(acked),
                )
                new = await client.start_send(f"New{round_}", b"refused")
                assert new.code == ResponseCode.SERVICE_NOT_AVAILABLE, new
                ballast.unlink()
                began = time.monotonic()
                async with asyncio.timeout(5.0):
                    while (
                        await client.start_send(f"New{round_}", b"taken")
                    ).code != ResponseCode.SUCCESS:
                        await asyncio.sleep(0.05)
                writes_again_s.append(time.monotonic() - began)
                # the log may have had room for one
                assert await received(client, f"New{round_}") in (
                    [b"taken"],
                    [b"refused", b"taken"],
                )
        broker.kill()
        broker.start()
        async with await RawClient.open(broker.address) as client:
            found = await received(client, "T")
            asked = await client.ok(
                RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0
            )
        line["attempts"] += len(acked)
        line["acknowledged"], line["received"], line["lost"] = (
            len(acked),
            len(found),
            len(set(acked) - set(found)),
        )
        line.update(
            pull_p99_before_ms=p99_ms(before_s),
            pull_p99_full_ms=p99_ms(full_s),
            writes_again_slowest_s=round(max(writes_again_s), 2),
        )
        assert found == acked
        assert int(asked.ext_fields["offset"]) <= len(acked)
