"""Old files go when an operator says so."""

import asyncio

from ogive.store.retention import RetentionConfig
from ogive.wire.codes import RequestCode
from tests.raw_client import RawClient
from tests.unit.broker.conftest import StartBroker


async def test_segments_that_are_old_enough_go_at_once_whatever_the_hour(start_broker: StartBroker) -> None:
    retention = RetentionConfig(keep_s=0.001, hours=(4,), disk_share=1.0, force_share=1.0)
    server = await start_broker(segment_bytes=8192, retention=retention, retention_check_s=3600.0)
    context = server.context
    context.retention._hour = lambda: 5  # not the one in which old messages go by themselves
    async with await RawClient.open(server.address) as client:
        for _ in range(10):
            await client.send("T", b"x" * 2000)
        await context.retention.run()
        await context.retention.run()
        assert context.store.min_offset("T", 0) == 0
        async with asyncio.timeout(20):
            while context.store.min_offset("T", 0) == 0:
                await client.ok(RequestCode.DELETE_EXPIRED_COMMITLOG)
                await context.retention.run()
        assert 0 < context.store.min_offset("T", 0) < 10
        await client.ok(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
        assert context.store.min_offset("T", 0) < context.store.max_offset("T", 0) == 10
