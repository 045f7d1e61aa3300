"""mqadmin asks our consumer, through Apache's broker, what it asks of Java's."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

import ogive
from ogive import aio
from ogive.model import MessageExt
from tests.interop import apache

WAIT_S = 60.0


class Consuming:
    """A running consumer of 20 messages in four queues."""

    def __init__(self, server: str, topic: str, group: str) -> None:
        self.server, self.topic, self.group = server, topic, group
        self.seen: list[MessageExt] = []
        self.producer = aio.Producer(server)
        listener = ogive.listener(topic, group=group, start="earliest")(self._bill)
        config = ogive.ConsumerConfig(rebalance_pause_s=0.1, persist_period_s=0.2)
        self.consumer = aio.PushConsumer(listener, name_server=server, config=config)

    def _bill(self, message: MessageExt) -> None:
        self.seen.append(message)

    async def until_seen(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.seen) < count:
                await asyncio.sleep(0.05)

    async def until_told(self, offsets: int) -> None:
        """Until the broker knows of so many finished messages."""
        async with asyncio.timeout(WAIT_S), aio.Admin(self.server) as admin:
            while (
                sum(max(0, row.consumer_offset) for row in await admin.lag(self.group, self.topic))
                != offsets
            ):
                await asyncio.sleep(0.05)

    async def mqadmin(self, *commands: str) -> list[str]:
        outputs = await asyncio.to_thread(apache.admin, self.server, *commands)
        for output in outputs:
            assert "\tat org.apache" not in output, output
        return outputs


@pytest.fixture
async def consuming(
    apache_broker: apache.Apache, topic: str, group: str
) -> AsyncIterator[Consuming]:
    server = apache_broker.name_server
    async with aio.Admin(server) as admin:
        await admin.create_topic(topic, queues=4)
    running = Consuming(server, topic, group)
    async with running.producer, running.consumer:
        queues = await running.producer.client.routes.publish_queues(topic)
        for i in range(20):
            await running.producer.send(topic, b"%d" % i, queue=queues[i % 4], keys=f"k{i}")
        await running.until_seen(20)
        await running.until_told(20)
        yield running


@pytest.mark.feature(43, 60)
async def test_consumer_status(consuming: Consuming) -> None:
    """The table of queues, the subscriptions, the figures, and the stacks."""
    client = consuming.consumer.client_id
    (status,) = await consuming.mqadmin(f"consumerStatus -g {consuming.group} -i {client} -s")
    for wanted in (
        "PROP_CONSUMER_START_TIMESTAMP",
        "PROP_CLIENT_VERSION",
        "ogive ",
        "#Consumer Subscription#",
        consuming.topic,
        "thread ",
    ):
        assert wanted in status
    rows = re.findall(rf"^{consuming.topic[:32]}\S* +broker-a +(\d) +(\d+)", status, re.MULTILINE)
    assert sorted(rows) == [(str(queue_id), "5") for queue_id in range(4)]
    figures = re.search(
        rf"^{consuming.topic[:32]}\S* +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +(\d+)",
        status,
        re.MULTILINE,
    )
    assert figures is not None
    pull_rt, pull_tps, _, ok_tps, failed_tps, failed = map(float, figures.groups())
    assert min(pull_rt, pull_tps, ok_tps) > 0
    assert (failed_tps, failed) == (0, 0)


@pytest.mark.parametrize(
    "server_side",
    [True, False],
    ids=["the broker moves the offsets", "the broker tells the consumer"],
)
async def test_reset_offset_by_time(
    consuming: Consuming, apache_broker: apache.Apache, server_side: bool
) -> None:
    """To the beginning: everything comes again, while the consumer runs."""
    reset = f"resetOffsetByTime -g {consuming.group} -t {consuming.topic} -s 1000"
    setting = (
        f"updateBrokerConfig -b {apache_broker.address} -k useServerSideResetOffset -v "
        f"{str(server_side).lower()}"
    )
    _, output = await consuming.mqadmin(setting, reset)
    assert consuming.topic[:32] in output
    await consuming.until_seen(40)
    await consuming.until_told(20)
    assert sorted(int(message.body) for message in consuming.seen) == sorted([*range(20)] * 2)


async def test_a_message_is_consumed_directly(consuming: Consuming) -> None:
    """By its unique key: the consumer's listener gets it once more, and the tool its answer."""
    message = next(message for message in consuming.seen if message.body == b"7")
    target = f"-g {consuming.group} -d {consuming.consumer.client_id} -t {consuming.topic}"
    (output,) = await consuming.mqadmin(f"queryMsgByUniqueKey -i {message.id} {target}")
    assert "CR_SUCCESS" in output
    await consuming.until_seen(21)
    assert (consuming.seen[20].body, consuming.seen[20].topic) == (b"7", consuming.topic)
