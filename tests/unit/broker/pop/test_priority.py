"""Topics of type PRIORITY: a priority chooses the queue, and POP reads the highest first."""

import asyncio

import pytest

from ogive.broker import Broker
from ogive.broker.config import PopConfig
from ogive.errors import InvalidOption
from ogive.wire.codes import RequestCode
from tests.pop import acknowledging, leased, pop, popping
from tests.raw_client import RawClient
from tests.unit.broker.conftest import StartBroker

QUEUES = 4


async def make_topic(client: RawClient, queues: int = QUEUES) -> None:
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic="T",
        defaultTopic="TBW102",
        readQueueNums=queues,
        writeQueueNums=queues,
        perm=6,
        topicFilterType="SINGLE_TAG",
        order=False,
        attributes="+message.type=PRIORITY",
    )


async def send(client: RawClient, priority: object, **more: str) -> int:
    """Return the queue that the broker chose."""
    answer = await client.send("T", b"x", {"_SYS_MSG_PRIORITY_": str(priority), **more}, queue=1)
    return int(answer.ext_fields["queueId"])


async def test_the_priority_chooses_the_queue(client: RawClient) -> None:
    await make_topic(client)
    assert [await send(client, priority) for priority in range(6)] == [0, 1, 2, 3, 3, 3]
    # what is no priority leaves the queue to the client
    assert [await send(client, text) for text in ("-1", "high", "1.5", 1 << 64)] == [1, 1, 1, 1]


async def test_the_priority_chooses_the_queue_in_a_topic_of_any_type(client: RawClient) -> None:
    assert [await send(client, priority) for priority in (0, 2)] == [0, 2]


@pytest.mark.parametrize(
    "more", [{"__SHARDINGKEY": "k"}, {"TIMER_DELAY_MS": "1"}, {"DELAY": "1"}], ids=str
)
async def test_a_message_of_another_type_loses_its_priority(
    client: RawClient, more: dict[str, str]
) -> None:
    await make_topic(client)
    assert await send(client, 3, **more) == 1
    waiting = client.start(RequestCode.POP_MESSAGE, **popping(pollTime=30_000))
    ((message, _),) = leased(await waiting)
    assert message.queue.queue_id == 1
    assert "_SYS_MSG_PRIORITY_" not in message.properties


@pytest.mark.parametrize("ascending", [True, False])
async def test_requests_read_the_highest_priority_first(
    start_broker: StartBroker, ascending: bool
) -> None:
    server = await start_broker(pop=PopConfig(priority_ascending=ascending))
    async with await RawClient.open(server.address) as client:
        await make_topic(client)
        for priority in (2, 0, 3, 1):
            for _ in range(2):
                await send(client, priority)
        found = [await pop(client, maxMsgNums=1) for _ in range(2 * QUEUES)]
        queues = [message.queue.queue_id for ((message, _),) in found]
        assert queues == sorted(2 * list(range(QUEUES)), reverse=ascending)


async def test_a_factor_of_the_group_leaves_requests_in_any_order(client: RawClient) -> None:
    """With 0 none reads by priority: 64 requests begin at any queue."""
    await make_topic(client)
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        b'{"groupName":"G","attributes":{"+priority.factor":"0"}}',
    )
    for _ in range(64):
        for priority in range(QUEUES):
            await send(client, priority)
    found = [await pop(client, maxMsgNums=1) for _ in range(64)]
    assert len({message.queue.queue_id for ((message, _),) in found}) > 1


async def let_it_end(server: Broker) -> None:
    while len(server.context.leases):
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("share", [0, 100])
async def test_messages_for_another_try_are_last_or_first(
    start_broker: StartBroker, share: int
) -> None:
    server = await start_broker(pop=PopConfig(priority_retry_share=share))
    async with await RawClient.open(server.address) as client:
        await make_topic(client)
        for priority in range(QUEUES):
            await send(client, priority)
        ((failed, _),) = await pop(client, maxMsgNums=1, invisibleTime=1)
        assert failed.queue.queue_id == QUEUES - 1
        await let_it_end(server)
        tries = [message.reconsume_times for message, _ in await pop(client)]
        assert tries == ([1, 0, 0, 0] if share else [0, 0, 0, 1])


async def test_with_separate_retry_queues_another_try_keeps_the_priority(
    start_broker: StartBroker,
) -> None:
    """The retry topic grows with its topic."""
    pop_config = PopConfig(separate_retry_queues=True, priority_retry_share=100)
    server = await start_broker(pop=pop_config)
    async with await RawClient.open(server.address) as client:
        await make_topic(client, 2)
        for queues in (2, QUEUES):
            await make_topic(client, queues)
            for priority in range(queues):
                await send(client, priority)
            assert len(await pop(client, invisibleTime=1)) == queues
            await let_it_end(server)
            again = await pop(client)
            assert [message.queue.queue_id for message, _ in again] == list(range(queues))[::-1]
            assert {message.reconsume_times for message, _ in again} == {1}
            for _, handle in again:
                acknowledged = acknowledging(handle, "%RETRY%G_T")
                await client.ok(RequestCode.ACK_MESSAGE, **acknowledged)
        assert len(server.context.leases) == 0


async def test_in_order_priorities_do_not_count(client: RawClient) -> None:
    await make_topic(client)
    for priority in range(QUEUES):
        await send(client, priority)
    firsts = set()
    for number in range(64):
        found = await pop(client, group=f"G{number}", order=True, maxMsgNums=32)
        assert len(found) == QUEUES
        firsts.add(found[0][0].queue.queue_id)
    assert len(firsts) > 1


def test_a_share_is_a_percentage() -> None:
    with pytest.raises(InvalidOption, match="priority_retry_share=101: must be between 0 and 100"):
        PopConfig(priority_retry_share=101)
