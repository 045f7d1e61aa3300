"""Groups that go from pulling to popping and back, under load: nothing is lost."""

import asyncio
import random

from ogive.errors import ResponseCode
from ogive.wire.codes import RequestCode
from tests.pop import GROUP, acknowledging, pop
from tests.raw_client import RawClient, messages

RETRY = f"%RETRY%{GROUP}_T"
QUEUES = 4


async def pull_all(client: RawClient, topic: str, queue: int) -> set[bytes]:
    """Read and commit as a member does that has just got the queue."""
    place = {"consumerGroup": GROUP, "topic": topic, "queueId": queue}
    known = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, **place)
    offset = int(known.ext_fields["offset"]) if known.code == ResponseCode.SUCCESS else 0
    answer = await client.pull(GROUP, topic, offset, queue=queue)
    if answer.code != ResponseCode.SUCCESS:
        return set()
    offset = int(answer.ext_fields["nextBeginOffset"])
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **place, commitOffset=offset)
    return {message.body for message in messages(answer)}


async def pull(client: RawClient) -> set[bytes]:
    """The topic's queues, and the retry topic, to which Java's client subscribes after popping."""
    got = [await pull_all(client, "T", queue) for queue in range(QUEUES)]
    return set().union(*got, await pull_all(client, RETRY, 0))


async def take(client: RawClient, chance: random.Random) -> set[bytes]:
    """Pop, and acknowledge some: those are done with."""
    done = set()
    for message, handle in await pop(client, invisibleTime=50, maxMsgNums=4):
        if chance.random() < 0.5:
            topic = RETRY if handle.flag else "T"
            await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(handle, topic))
            done.add(message.body)
    return done


async def test_nothing_is_lost_by_going_back_and_forth(
    client: RawClient, another: RawClient
) -> None:
    chance = random.Random(3)
    sent: set[bytes] = set()
    done: set[bytes] = set()
    for turn in range(30):
        for number in range(10):
            body = b"%d" % (10 * turn + number)
            await client.send("T", body, queue=chance.randrange(QUEUES))
            sent.add(body)
        # members that pull and members that pop overlap for a moment
        if turn % 3:
            done |= await take(client, chance)
        if turn % 5 > 1:
            done |= await pull(another)
    async with asyncio.timeout(60):
        while sent - done:
            done |= await pull(client)
            await asyncio.sleep(0.01)
