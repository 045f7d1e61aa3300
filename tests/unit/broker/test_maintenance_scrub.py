"""The log is read in the background, and damage is counted and logged once."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from ogive.broker import Broker, BrokerConfig
from ogive.broker.maintenance import PAUSE_S, Scrubbing
from ogive.store.log_scan import Scrubbed
from tests.chaos.recorder import MemoryFs
from tests.raw_client import RawClient
from tests.stores import Driver, message, small

ROOT = Path("/store")


async def whole_round(scrubbing: Scrubbing, driver: Driver) -> int:
    """Run until it rests; how many steps that took."""
    steps: list[int] = []
    scrub_step = driver.store.scrub_step

    def counted(position: int, most_bytes: int) -> Callable[[], Scrubbed]:
        steps.append(position)
        return scrub_step(position, most_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver.store, "scrub_step", counted)
        for runs in range(1, 10_000):
            await scrubbing.run()
            if len(steps) < runs:
                return len(steps)
    raise AssertionError("it never rests")


async def test_each_damaged_record_is_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    fs = MemoryFs()
    driver = Driver(small(ROOT), fs, threaded=False)
    stored = [driver.put(message(b"%d " % n + bytes(200)))[0] for n in range(300)]
    scrubbing = Scrubbing(driver.store, 4096, lambda: now[0])
    assert await whole_round(scrubbing, driver) > 10
    assert driver.store.stats().damaged == 0
    # two of them neighbours, one place
    hit = [stored[n] for n in (3, 4, 150, 298)]
    segment = small(ROOT).segment_bytes
    for result in hit:
        path = ROOT / "commitlog" / f"{result.commitlog_offset // segment * segment:020d}"
        fs.names[path].data[result.commitlog_offset % segment + 120] ^= 1
    assert await whole_round(scrubbing, driver) == 0
    for _ in range(2):
        now[0] += PAUSE_S
        with caplog.at_level(logging.ERROR):
            assert await whole_round(scrubbing, driver) > 10
    assert driver.store.stats().damaged == 3
    assert len([r for r in caplog.records if "damaged" in r.message]) == 3
    driver.close()


async def test_it_goes_on_where_retention_left_something() -> None:
    fs = MemoryFs()
    driver = Driver(small(ROOT), fs, threaded=False)
    for n in range(300):
        driver.put(message(b"%d " % n + bytes(200)))
    scrubbing = Scrubbing(driver.store, 4096, lambda: 0.0)
    await scrubbing.run()
    for _ in driver.store.retention.expire(driver.store.retention.full_segments[2]):
        pass
    assert await whole_round(scrubbing, driver) > 10
    assert driver.store.stats().damaged == 0
    driver.close()


async def test_a_broker_reads_its_log_again_while_it_serves(tmp_path: Path) -> None:
    server = Broker(BrokerConfig(data=tmp_path / "store", port=0, segment_bytes=64 * 1024))
    await server.start()
    async with await RawClient.open(server.address) as client:
        await client.send("T", bytes(1000))
        await client.send("T", b"behind it")
    [segment, *_] = sorted((tmp_path / "store" / "commitlog").iterdir())
    with segment.open("r+b") as file:
        file.seek(500)
        file.write(b"x")
    async with asyncio.timeout(60):
        while not server.context.store.stats().damaged:
            await asyncio.sleep(0.01)
    assert server.context.store.stats().damaged == 1
    await server.stop()
