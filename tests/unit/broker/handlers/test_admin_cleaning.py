"""Old files go when an operator says so."""

import asyncio

from ogive.store.retention import MAX_PER_RUN, RetentionConfig
from ogive.wire.codes import RequestCode
from tests.raw_client import RawClient
from tests.unit.broker.conftest import StartBroker

HOUR_S = 3600.0


async def test_segments_that_are_old_enough_go_at_once_whatever_the_hour(
    start_broker: StartBroker,
) -> None:
    retention = RetentionConfig(keep_s=0.001, hours=(4,), disk_share=1.0, force_share=1.0)
    server = await start_broker(segment_bytes=8192, retention=retention, retention_check_s=3600.0)
    context = server.context
    # not the one in which old messages go by themselves
    context.retention._hour = lambda: 5
    async with await RawClient.open(server.address) as client:
        for _ in range(10):
            await client.send("T", b"x" * 2000)
        await context.retention.run()
        await context.retention.run()
        assert context.store.min_offset("T", 0) == 0
        async with asyncio.timeout(60):
            while context.store.min_offset("T", 0) == 0:
                await client.ok(RequestCode.DELETE_EXPIRED_COMMITLOG)
                await context.retention.run()
        assert 0 < context.store.min_offset("T", 0) < 10
        await client.ok(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
        assert context.store.min_offset("T", 0) < context.store.max_offset("T", 0) == 10


async def test_one_order_removes_all_that_is_old_enough(start_broker: StartBroker) -> None:
    """However many looks that takes: each removes ten segments at the most.

    Then the hour counts again.
    """
    retention = RetentionConfig(keep_s=HOUR_S, hours=(4,), disk_share=1.0, force_share=1.0)
    server = await start_broker(segment_bytes=8192, retention=retention, retention_check_s=3600.0)
    job, store, now = server.context.retention, server.context.store, [0.0]
    job._hour, job._now_s = (lambda: 5), (lambda: now[0])
    async with await RawClient.open(server.address) as client:
        for _ in range(4 * (MAX_PER_RUN + 3)):
            await client.send("T", b"x" * 2000)
        full = len(store.retention.full_segments)
        assert MAX_PER_RUN < full < 2 * MAX_PER_RUN
        await job.run()
        now[0] = 2 * HOUR_S
        await client.ok(RequestCode.DELETE_EXPIRED_COMMITLOG)
        await job.run()
        assert len(store.retention.full_segments) == full - MAX_PER_RUN
        await job.run()
        assert store.retention.full_segments == []
        assert not job.at_once
