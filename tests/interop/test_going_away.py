"""Apache's broker, 5.5.0, on its way out with enableShutdownGracefully: all it answers for a while
is GO_AWAY (1500).
"""

import asyncio
import os
import signal
from pathlib import Path

from ogive.client import rpc
from ogive.client.config import ClientConfig
from ogive.client.instance import ClientInstance
from ogive.errors import ResponseCode
from ogive.wire.headers.admin import GetBrokerConfigRequest
from tests.interop.apache import Apache

WAIT_S = 60.0


async def test_a_broker_that_says_go_away_is_left_and_found_again_after_its_restart(
    tmp_path: Path,
) -> None:
    graceful = {"enableShutdownGracefully": "true", "shutdownWaitTimeSeconds": "15"}
    with Apache(tmp_path, graceful) as broker:
        async with ClientInstance(ClientConfig(name_server=broker.name_server)) as client:
            left = await client.pool.get(broker.address)
            os.kill(broker.pid, signal.SIGTERM)
            async with asyncio.timeout(WAIT_S):
                while True:
                    answer = await client.pool.call(
                        broker.address, rpc.request(GetBrokerConfigRequest()), WAIT_S
                    )
                    if answer.code != ResponseCode.SUCCESS:
                        break
                    await asyncio.sleep(0.05)
            assert (answer.code, answer.remark) == (ResponseCode.GO_AWAY, "please go away")
            assert left.leaving
            await left.wait_closed()
            # it took the request there, and refused it there too
            assert client.pool.existing(broker.address) not in (None, left)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            assert "brokerName" in await rpc.broker_settings(
                client.pool, broker.address, timeout_s=WAIT_S
            )
