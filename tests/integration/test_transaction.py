"""Transactions on a real broker, ours or Apache's.

Open ones are asked about after a second, see tests/peers.py.
"""

import asyncio
from collections import Counter

import pytest

import ogive
from ogive import aio
from ogive.client.instance import ClientInstance
from ogive.model import MessageExt
from ogive.store.clock import now_ms
from ogive.wire.bodies.clients import HeartbeatData
from ogive.wire.codes import RequestCode, SysFlag
from ogive.wire.message import decode_messages
from tests.integration.test_producer import read, read_all
from tests.peers import RunningBroker
from tests.raw_client import RawClient, unique_key

pytestmark = pytest.mark.client_suite

# Apache's first round may come late
ASKED_S = 60.0


async def visible(client: ClientInstance, topic: str) -> Counter[bytes]:
    await client.routes.refresh(topic)
    stored = [await read(client, queue) for queue in await client.routes.subscribe_queues(topic)]
    return Counter(message.body for rows in stored for message in rows)


async def create(broker: RunningBroker, topic: str) -> None:
    async with aio.Admin(broker.name_server) as admin:
        await admin.create_topic(topic, queues=2)


async def test_a_committed_message_arrives_once_and_a_rolled_back_one_never(
    broker: RunningBroker, topic: str, group: str, release: tuple[int, ...]
) -> None:
    await create(broker, topic)
    async with aio.Producer(
        broker.name_server, group=f"P{group}", check=lambda message: None
    ) as producer:
        async with producer.transaction(
            topic, b"paid", tag="a", keys="4711", properties={"amount": "3"}
        ) as transaction:
            assert await visible(producer.client, topic) == {}
        assert transaction.confirmed
        with pytest.raises(KeyError):
            async with producer.transaction(topic, b"cancelled"):
                raise KeyError
        async with producer.transaction(topic, bytes(100_000), sharding_key="k"):  # compressed
            pass
        await producer.send(topic, b"the end")
        messages = [
            message
            for rows in (await read_all(producer.client, topic, 3)).values()
            for message in rows
        ]
    assert Counter(message.body for message in messages) == {
        b"paid": 1,
        bytes(100_000): 1,
        b"the end": 1,
    }
    [paid] = [message for message in messages if message.body == b"paid"]
    assert (paid.id, paid.tag, paid.keys, paid.properties["amount"]) == (
        transaction.id,
        "a",
        ("4711",),
        "3",
    )
    names = {
        name: value
        for name, value in paid.properties.items()
        if name not in ("UNIQ_KEY", "__transactionId__", "WAIT")
    }
    # what stood on the half message stays there
    if release < (5, 5):
        del names["REAL_TOPIC"], names["REAL_QID"]
    added = {"CLUSTER": "DefaultCluster"} | (
        {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"} if release >= (5,) else {}
    )
    assert names == {
        "TAGS": "a",
        "KEYS": "4711",
        "amount": "3",
        "TRAN_MSG": "true",
        "PGROUP": f"P{group}",
        **added,
    }
    assert paid.properties.get("__transactionId__") == (paid.id if release >= (5,) else None)


async def test_a_check_settles_what_a_dead_producer_left_open(
    broker: RunningBroker, topic: str, group: str
) -> None:
    """The producer that is asked has sent nothing. It does not know at first, then it does."""
    await create(broker, topic)
    async with aio.Producer(
        broker.name_server, group=f"P{group}", check=lambda message: None
    ) as dead:
        for body in (b"paid", b"cancelled", b"later"):
            async with dead.transaction(topic, body) as transaction:
                transaction.leave_open()
    asked: Counter[bytes] = Counter()
    settled = asyncio.Event()

    async def was_paid(message: MessageExt) -> bool | None:
        assert (message.topic, message.properties["PGROUP"]) == (topic, f"P{group}")
        asked[message.body] += 1
        if asked.keys() >= {b"paid", b"cancelled"} and asked[b"later"] >= 2:
            settled.set()
        if message.body == b"later":
            return True if asked[b"later"] >= 2 else None
        return message.body == b"paid"

    async with aio.Producer(broker.name_server, group=f"P{group}", check=was_paid) as producer:
        await asyncio.wait_for(settled.wait(), ASKED_S)
        stored = await read_all(producer.client, topic, 2)
        assert Counter(message.body for rows in stored.values() for message in rows) == {
            b"paid": 1,
            b"later": 1,
        }


def test_blocking_transactions_reach_a_listener(
    broker: RunningBroker, topic: str, group: str
) -> None:
    with ogive.Admin(broker.name_server) as admin:
        admin.create_topic(topic, queues=1)
    orders: set[str] = {"2"}

    def was_stored(message: MessageExt) -> bool:
        return message.text in orders

    with ogive.Producer(broker.name_server, group=f"P{group}", check=was_stored) as producer:
        with producer.transaction(topic, b"1"):
            orders.add("1")
        with producer.transaction(topic, b"2") as second:
            second.leave_open()
        with producer.transaction(topic, b"3") as third:
            third.rollback()
        received: list[str] = []

        @ogive.listener(topic, group=group, start="earliest")
        async def collect(message: MessageExt) -> None:
            received.append(message.text)
            if len(received) == 2:
                done.set()

        async def consume() -> None:
            async with aio.PushConsumer(collect, name_server=broker.name_server):
                await asyncio.wait_for(done.wait(), ASKED_S)

        done = asyncio.Event()
        asyncio.run(consume())
    assert sorted(received) == ["1", "2"]


async def test_a_time_of_its_own_keeps_a_transaction_from_its_first_check_only(
    broker: RunningBroker, topic: str, group: str
) -> None:
    """Later checks come with each round, so those of the first transaction overtake the first check
    of the second one.
    """
    async with await RawClient.open(broker.address) as client:

        async def send_half(body: bytes) -> None:
            own = {
                "UNIQ_KEY": unique_key(),
                "TRAN_MSG": "true",
                "PGROUP": group,
                "CHECK_IMMUNITY_TIME_IN_SECONDS": "7",
            }
            await client.send(topic, body, own, f=SysFlag.TRANSACTION_PREPARED, g=now_ms())

        async def next_checked() -> bytes:
            [message] = decode_messages(
                (await client.next_request(RequestCode.CHECK_TRANSACTION_STATE)).body
            )
            return message.body

        await client.ok(
            RequestCode.HEART_BEAT,
            HeartbeatData(client_id=f"C{group}", producers=(group,)).encode(),
        )
        await send_half(b"first")
        assert await next_checked() == b"first"
        await send_half(b"second")
        checked = [await next_checked()]
        while checked[-1] != b"second":
            checked.append(await next_checked())
        # seven on a quiet machine; one, if the time counted for later checks, too
        assert checked.count(b"first") >= 2
