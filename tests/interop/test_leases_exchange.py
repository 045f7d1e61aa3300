"""A directory with leases out goes to Apache's broker, 5.5.0, and comes from it."""

import asyncio
from pathlib import Path

from ogive.wire import java_json
from ogive.wire.codes import RequestCode
from tests.interop.test_store_exchange import new_apache
from tests.peers import our_broker
from tests.pop import acknowledging, leased, pop, popping
from tests.raw_client import RawClient

# Apache's broker gives a message again 2 to 4 s after its time
INVISIBLE_MS = 8_000


async def fill(address: str, invisible_ms: int = INVISIBLE_MS) -> None:
    """Three messages, of which the second is acknowledged."""
    async with await RawClient.open(address) as client:
        for body in (b"a", b"b", b"c"):
            await client.send("T", body)
        found = await pop(client, invisibleTime=invisible_ms)
        assert [message.body for message, _ in found] == [b"a", b"b", b"c"]
        await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(found[1][1]))


async def given_again(address: str) -> list[tuple[bytes, int]]:
    """What comes: bodies, and how often they were tried before."""
    async with await RawClient.open(address) as client:
        found: list[tuple[bytes, int]] = []
        while len(found) < 2:
            answer = await client.call(
                RequestCode.POP_MESSAGE, **popping(pollTime=5_000, bornTime=0)
            )
            if answer.code == 0:
                found += [(one.body, one.reconsume_times) for one, _ in leased(answer)]
        answer = await client.call(RequestCode.POP_MESSAGE, **popping(pollTime=3_000))
        assert answer.code != 0
    return sorted(found)


def saved(data: Path) -> bool:
    """Apache's broker has saved the group's progress."""
    file = data / "config" / "consumerOffset.json"
    table = java_json.loads(file.read_text()) if file.exists() else {}
    return bool(sum(table.get("offsetTable", {}).get("T@G", {}).values()) == 3)


EXPECTED = [(b"a", 1), (b"c", 1)]


async def test_apaches_broker_gives_our_leased_messages_again(tmp_path: Path) -> None:
    with our_broker(tmp_path) as ours:
        await fill(ours.address)
    with new_apache(tmp_path) as theirs:
        assert await given_again(theirs.address) == EXPECTED


async def test_ours_gives_messages_again_that_apaches_broker_leased(tmp_path: Path) -> None:
    with new_apache(tmp_path) as theirs:
        await fill(theirs.address, invisible_ms=60_000)
        async with asyncio.timeout(60):
            while not saved(theirs.data):
                await asyncio.sleep(0.2)
    with our_broker(tmp_path) as ours:
        assert await given_again(ours.address) == EXPECTED
