"""Operating a real broker, ours or Apache's: topics, groups, offsets, members, messages."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import ogive
from ogive import aio
from ogive.client import rpc
from ogive.errors import GroupNotExist, InvalidOption, NoRoute, QueryNotFound
from ogive.model import MessageExt, MessageQueue, dlq_topic
from ogive.testing import Broker
from tests.integration.test_producer import read_all
from tests.interop.apache import Apache
from tests.peers import Flavour, RunningBroker

pytestmark = pytest.mark.client_suite

WAIT_S = 60.0
QUICK = ogive.ConsumerConfig(rebalance_pause_s=0.1)


@pytest.fixture
async def admin(broker: RunningBroker) -> AsyncIterator[aio.Admin]:
    async with aio.Admin(broker.name_server) as made:
        yield made


@pytest.fixture
async def producer(
    broker: RunningBroker, admin: aio.Admin, topic: str
) -> AsyncIterator[aio.Producer]:
    """The topic has two queues."""
    await admin.create_topic(topic, queues=2)
    async with aio.Producer(broker.name_server) as made:
        yield made


async def fill(producer: aio.Producer, topic: str, count: int) -> list[MessageQueue]:
    """*count* messages in each queue, with the numbers as bodies."""
    queues = list(await producer.client.routes.publish_queues(topic))
    for queue in queues:
        for i in range(count):
            await producer.send(
                topic, b"%d" % i, queue=queue, keys=f"k{queue.queue_id}-{i}", timeout_s=WAIT_S
            )
    await read_all(producer.client, topic, count * len(queues))
    return queues


# --- topics and brokers ---------------------------------------------------------------------------


async def test_a_topic_is_made_shown_changed_and_deleted(admin: aio.Admin, topic: str) -> None:
    await admin.create_topic(topic, queues=2, order=True)
    shown = await admin.topic(topic)
    (at,) = shown.brokers
    assert (shown.kind, shown.groups) == ("application", ())
    assert (at.broker, at.read_queues, at.write_queues, at.perm) == ("broker-a", 2, 2, "rw")
    await admin.update_topic(topic, write_queues=1, perm="r")
    (at,) = (await admin.topic(topic)).brokers
    assert (at.read_queues, at.write_queues, at.perm) == (2, 1, "r")
    assert [row.write_queues for row in (await admin.route(topic)).queues] == [1]
    assert {row.name: row.kind for row in await admin.topics(system=True)}[topic] == "application"
    await admin.delete_topic(topic)
    with pytest.raises(NoRoute):
        await admin.topic(topic)


@pytest.mark.since("5.0.0", what="types of messages")
async def test_a_topic_keeps_its_message_type(admin: aio.Admin, topic: str) -> None:
    await admin.create_topic(topic, queues=2, message_type="FIFO")
    assert (await admin.topic(topic)).message_type == "FIFO"
    await admin.update_topic(topic, write_queues=1)
    (at,) = (await admin.topic(topic)).brokers
    assert (at.write_queues, at.attributes) == (1, {"message.type": "FIFO"})


async def test_a_topic_and_a_group_that_are_there_with_other_settings_keep_them(
    broker: RunningBroker, admin: aio.Admin, topic: str, group: str
) -> None:
    """What a program says at its start must not take the last queues away, with the messages in
    them.
    """
    await admin.create_topic(topic, queues=8)
    await admin.create_group(group, max_retries=3)
    async with aio.Producer(broker.name_server) as producer:
        await fill(producer, topic, 1)
    for _ in range(2):
        await admin.create_topic(topic)
        await admin.create_group(group, max_retries=3)
    with pytest.raises(
        InvalidOption,
        match=f"topic {topic} exists already on broker-a, with read queues 8, write queues 8: "
        "update_topic",
    ):
        await admin.create_topic(topic, queues=4)
    with pytest.raises(
        InvalidOption,
        match=f"group {group} exists already on broker-a, with max retries 3: update_group",
    ):
        await admin.create_group(group)
    assert [(row.min_offset, row.max_offset) for row in await admin.offsets(topic)] == [(0, 1)] * 8
    assert (await admin.group(group)).max_retries == 3


async def test_brokers_show_their_version_and_figures(
    admin: aio.Admin, producer: aio.Producer, topic: str, flavour: Flavour, release: tuple[int, ...]
) -> None:
    await fill(producer, topic, 1)
    (row,) = await admin.brokers()
    async with asyncio.timeout(WAIT_S):
        # one of 4.9 that has just started trips over its figures, until the first are there
        while row.trouble and release < (5,):
            await asyncio.sleep(0.1)
            (row,) = await admin.brokers()
    assert (row.name, row.broker_id, row.trouble) == ("broker-a", 0, None)
    assert (
        row.version
        == {"ogive": f"ogive {ogive.__version__}", "apache": ".".join(map(str, release))}[flavour]
    )
    assert (row.puts_today or 0) >= 2
    assert row.disk_used is not None
    assert 0 <= row.disk_used <= 1


# --- groups ---------------------------------------------------------------------------------------


async def test_a_group_is_made_shown_changed_and_deleted(admin: aio.Admin, group: str) -> None:
    await admin.create_group(group, retry_queues=2, max_retries=3, broadcast=False)
    assert group in {row.name for row in await admin.groups()}
    await admin.update_group(group, max_retries=5)
    shown = await admin.group(group)
    assert (shown.retry_queues, shown.max_retries, shown.broadcast, shown.enabled) == (
        2,
        5,
        False,
        True,
    )
    assert (shown.members, shown.lag, dict(shown.subscriptions)) == ((), 0, {})
    await admin.update_group(group, enabled=False)
    assert [row.enabled for row in await admin.groups() if row.name == group] == [False]
    await admin.delete_group(group, offsets=True)
    with pytest.raises(GroupNotExist, match="no broker knows"):
        await admin.group(group)


async def test_members_are_shown_with_what_they_hold_and_keep_their_group(
    broker: RunningBroker, admin: aio.Admin, producer: aio.Producer, topic: str, group: str
) -> None:
    queues = await fill(producer, topic, 3)

    @ogive.listener(topic, group=group, start="earliest")
    async def note(message: MessageExt) -> None:
        pass

    async with aio.PushConsumer(note, name_server=broker.name_server, config=QUICK) as consumer:
        async with asyncio.timeout(WAIT_S):
            while not set(queues) <= set(consumer.assignment[group]):
                await asyncio.sleep(0.1)
        shown = await admin.group(group)
        (member,) = shown.members
        assert (member.client_id, member.language, member.version) == (
            consumer.client_id,
            "PYTHON",
            "5.3.3",
        )
        assert (shown.subscriptions[topic], shown.message_model) == ("*", "CLUSTERING")
        info = await admin.running_info(group, consumer.client_id)
        assert set(info.queues) >= set(queues)
        with pytest.raises(InvalidOption, match="members online"):
            await admin.delete_group(group)
        async with asyncio.timeout(WAIT_S):
            # the first commit comes with the next persist
            while len(rows := await admin.lag(group, topic)) < len(queues):
                await asyncio.sleep(0.2)
        assert {row.queue: row.member for row in rows} == dict.fromkeys(queues, consumer.client_id)


# --- offsets --------------------------------------------------------------------------------------


async def test_a_group_without_members_is_reset_skipped_and_cloned(
    admin: aio.Admin, producer: aio.Producer, topic: str, group: str, release: tuple[int, ...]
) -> None:
    queues = await fill(producer, topic, 3)
    # 4.9 says that a new group on a young topic stands at its beginning
    nowhere = None if release >= (5,) else 0
    for name in (group, f"{group}-b"):
        await admin.create_group(name)
    planned = await admin.reset_offsets(group, topic, "latest", dry_run=True)
    assert [(row.queue, row.before, row.after) for row in planned] == [
        (queue, nowhere, 3) for queue in queues
    ]
    assert set((await admin.positions(group, topic)).values()) == {nowhere}
    await admin.skip_backlog(group, topic)
    assert set((await admin.positions(group, topic)).values()) == {3}
    await admin.reset_offsets(group, topic, datetime.now(UTC) - timedelta(hours=1))
    assert set((await admin.positions(group, topic)).values()) == {0}
    await admin.reset_offsets(group, topic, {queues[1]: 2})
    assert await admin.positions(group, topic) == {queues[0]: 0, queues[1]: 2}
    await admin.clone_offsets(group, f"{group}-b", topic)
    assert await admin.positions(f"{group}-b", topic) == {queues[0]: 0, queues[1]: 2}
    with pytest.raises(InvalidOption, match="holds the offsets 0 to 3"):
        await admin.reset_offsets(group, topic, {queues[1]: 4})


async def test_the_last_of_several_resets_is_where_a_group_goes_on_that_was_away(
    broker: RunningBroker,
    admin: aio.Admin,
    producer: aio.Producer,
    topic: str,
    group: str,
    release: tuple[int, ...],
) -> None:
    """The members have not heard of the first when the second comes."""
    first, second = await fill(producer, topic, 3)
    await admin.create_group(group)
    if release >= (5,):
        # as mqadmin does
        await rpc.reset_offset_by_time(admin.client.pool, broker.address, group, topic, -1)
    await admin.reset_offsets(group, topic, {first: 1, second: 2})
    assert await admin.positions(group, topic) == {first: 1, second: 2}
    seen: asyncio.Queue[tuple[MessageQueue, int]] = asyncio.Queue()

    @ogive.listener(topic, group=group)
    async def note(message: MessageExt) -> None:
        seen.put_nowait((message.queue, message.queue_offset))

    async with (
        aio.PushConsumer(note, name_server=broker.name_server, config=QUICK),
        asyncio.timeout(WAIT_S),
    ):
        assert {await seen.get() for _ in range(3)} == {(first, 1), (first, 2), (second, 2)}
    assert seen.empty()


@pytest.mark.since("5.0.0", what="refusing offsets of a group that it does not know")
async def test_a_reset_of_an_unknown_group_says_what_to_do(
    admin: aio.Admin, producer: aio.Producer, topic: str, group: str
) -> None:
    await fill(producer, topic, 1)
    with pytest.raises(GroupNotExist, match=f"ogive group create {group}"):
        await admin.reset_offsets(group, topic, "latest")


@pytest.mark.parametrize(
    "by_offset",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.since(
                "5.0.0", what="members that are sent to an offset, not to a time"
            ),
        ),
    ],
)
async def test_members_go_on_where_their_group_was_reset_to(
    broker: RunningBroker,
    admin: aio.Admin,
    producer: aio.Producer,
    topic: str,
    group: str,
    by_offset: bool,
) -> None:
    queues = await fill(producer, topic, 3)
    seen: asyncio.Queue[tuple[MessageQueue, int]] = asyncio.Queue()

    @ogive.listener(topic, group=group, start="earliest")
    async def note(message: MessageExt) -> None:
        seen.put_nowait((message.queue, message.queue_offset))

    async def take(count: int) -> set[tuple[MessageQueue, int]]:
        async with asyncio.timeout(WAIT_S):
            return {await seen.get() for _ in range(count)}

    everything = {(queue, i) for queue in queues for i in range(3)}
    async with aio.PushConsumer(note, name_server=broker.name_server, config=QUICK):
        assert await take(6) == everything
        async with asyncio.timeout(WAIT_S):
            # a broker of 4.9 resets only what was committed
            while set((await admin.positions(group, topic)).values()) != {3}:
                await asyncio.sleep(0.1)
        plan = await admin.reset_offsets(
            group, topic, dict.fromkeys(queues, 1) if by_offset else "earliest"
        )
        assert {row.after for row in plan} == {1 if by_offset else 0}
        again = {place for place in everything if place[1] >= (1 if by_offset else 0)}
        assert await take(len(again)) == again
    assert set((await admin.positions(group, topic)).values()) == {3}


@pytest.mark.since("5.0.0", what="members that are sent to an offset, not to a time")
async def test_a_backlog_is_skipped_though_its_member_has_read_all_of_it(
    broker: RunningBroker, admin: aio.Admin, producer: aio.Producer, topic: str, group: str
) -> None:
    """The member is sent to where it reads already: what it has and has not begun is what was to be
    skipped.
    """
    queue, _ = await fill(producer, topic, 20)
    seen: list[bytes] = []
    came = asyncio.Event()

    @ogive.listener(topic, group=group, start="earliest", orderly=True)
    async def work(message: MessageExt) -> None:
        if message.queue == queue:
            seen.append(message.body)
            came.set()
            await asyncio.sleep(1.0)

    async with aio.PushConsumer(work, name_server=broker.name_server, config=QUICK):
        async with asyncio.timeout(WAIT_S):
            await came.wait()
            await admin.skip_backlog(group, topic)
            await producer.send(topic, b"new", queue=queue)
            while b"new" not in seen:
                came.clear()
                await came.wait()
    assert b"19" not in seen


async def test_all_messages_of_a_millisecond_follow_the_offset_of_its_time(
    broker: RunningBroker, admin: aio.Admin, producer: aio.Producer, topic: str, group: str
) -> None:
    """A broker before 5.1.1 answers with any of them."""
    queue = (await producer.client.routes.publish_queues(topic))[0]
    for size in (1, 30, 60, 1):
        await producer.send_batch(topic, [b"%d" % i for i in range(size)], queue=queue)
    stored = (await read_all(producer.client, topic, 92))[queue]
    times = [message.stored_at for message in stored]
    firsts = {at: times.index(at) for at in times}
    assert len(firsts) < len(times)
    millisecond = timedelta(milliseconds=1)
    for at, first in firsts.items():
        assert (await admin.offsets_at(topic, at))[queue] == first
        last = first + times.count(at)
        assert (await admin.offsets_at(topic, at + millisecond))[queue] == last
        plan = await admin.reset_offsets(group, topic, at, dry_run=True)
        assert {row.queue: row.after for row in plan}[queue] == first
    at = times[1]
    async with aio.PullConsumer(topic, group=group, name_server=broker.name_server) as consumer:
        assert await consumer.offset_at(queue, at) == firsts[at]
    assert (await admin.offsets_at(topic, times[-1] + timedelta(days=1)))[queue] == len(times)


# --- messages -------------------------------------------------------------------------------------


async def test_messages_are_found_by_place_time_and_the_brokers_id(
    admin: aio.Admin, producer: aio.Producer, topic: str
) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    # more than one pull gives
    queues = await fill(producer, topic, 40)
    sent = await producer.send(topic, b"last", queue=queues[0])
    await read_all(producer.client, topic, 81)
    found = await admin.message(sent.offset_id)
    assert (found.body, found.id, found.queue, found.queue_offset) == (
        b"last",
        sent.id,
        sent.queue,
        40,
    )
    assert (await admin.message_at(sent.queue, 40)).id == sent.id
    with pytest.raises(
        QueryNotFound, match="holds no message at 41; it has 0 up to, not including, 41"
    ):
        await admin.message_at(sent.queue, 41)
    everything = await admin.messages(topic, limit=1000)
    assert len(everything) == 81
    assert [m.store_timestamp_ms for m in everything] == sorted(
        m.store_timestamp_ms for m in everything
    )
    assert [m.body for m in await admin.messages(topic, limit=3)] == [
        m.body for m in everything[:3]
    ]
    assert await admin.messages(topic, end=before) == []
    assert len(await admin.messages(topic, start=before, limit=1000)) == 81


async def test_messages_are_found_by_key(
    admin: aio.Admin, producer: aio.Producer, topic: str
) -> None:
    sent = await producer.send(topic, b"x", keys=("4711", "other"))
    async with asyncio.timeout(WAIT_S):
        # indexed a moment after it is stored
        while not (found := await admin.messages(topic, key="4711")):
            await asyncio.sleep(0.1)
    assert [message.id for message in found] == [sent.id]
    assert (await admin.message(sent.id)).queue == sent.queue
    assert (await admin.message(sent.id, topic=topic)).body == b"x"
    assert await admin.messages(topic, key="47") == []
    with pytest.raises(QueryNotFound, match="no message"):
        await admin.message("0" * 32, topic=topic)


async def test_a_message_is_found_by_the_id_of_a_broker_that_is_listed_by_a_name(
    flavour: Flavour, topic: str, tmp_path: Path
) -> None:
    if flavour == "apache":
        started: RunningBroker = Apache(tmp_path, {"brokerIP1": "localhost"})
    else:
        started = Broker(data=tmp_path / "store", options=("--advertised-host", "localhost"))
    with started as broker:
        async with (
            aio.Producer(broker.name_server) as producer,
            aio.Admin(broker.name_server) as admin,
        ):
            (listed,) = (await admin.cluster_info()).brokers.values()
            assert listed.addresses[0].startswith("localhost:")
            sent = await producer.send(topic, b"here", timeout_s=WAIT_S)
            await read_all(producer.client, topic, 1)
            found = await admin.message(sent.offset_id)
            assert (found.body, found.queue) == (b"here", sent.queue)


async def test_all_of_a_cluster_can_have_ipv6_addresses(topic: str, tmp_path: Path) -> None:
    with Broker(data=tmp_path / "store", options=("--host", "[::1]")) as broker:
        assert broker.name_server.startswith("[::1]:")
        assert broker.address.startswith("[::1]:")
        async with (
            aio.Producer(broker.name_server) as producer,
            aio.Admin(broker.name_server) as admin,
        ):
            sent = await producer.send(topic, b"here", timeout_s=WAIT_S)
            found = await admin.message(sent.offset_id)
            assert (found.body, found.queue) == (b"here", sent.queue)


async def test_a_message_is_found_by_each_of_thousands_of_keys(
    broker: RunningBroker, admin: aio.Admin, producer: aio.Producer, topic: str
) -> None:
    keys = [f"{n:x}" for n in range(6_000)]
    sent = await producer.send(topic, b"x", keys=keys)
    async with asyncio.timeout(WAIT_S):
        while not await admin.messages(topic, key=keys[-1]):
            await asyncio.sleep(0.1)
        for key in (keys[0], keys[255], keys[256], keys[1_024], keys[5_000]):
            assert [one.id for one in await admin.messages(topic, key=key)] == [sent.id]


async def test_each_of_thousands_of_keys_is_found_after_a_crash_and_without_the_old_index(
    topic: str, tmp_path: Path
) -> None:
    keys = [f"{n:x}" for n in range(6_000)]
    with Broker(data=tmp_path) as broker:
        async with aio.Producer(broker.name_server) as producer:
            sent = [
                await producer.send(topic, b"x", keys=keys, timeout_s=WAIT_S) for _ in range(20)
            ]
        for lost in (False, True):
            broker.kill()
            if lost:
                shutil.rmtree(tmp_path / "index")
            broker.start()
            async with aio.Admin(broker.name_server) as admin:
                for key in (keys[0], keys[256], keys[-1]):
                    found = await admin.messages(topic, key=key)
                    assert {one.id for one in found} == {one.id for one in sent}


async def test_only_a_space_separates_keys(
    broker: RunningBroker, admin: aio.Admin, topic: str
) -> None:
    keys = ("a\u00a0b", "c\u3000d", "e\tf", "g\nh", "\u2028i", "j\x1ck\x85l", "plain")
    await admin.create_topic(topic, queues=2)
    settings = ogive.ProducerConfig(trace=True, send_timeout_s=WAIT_S)
    async with aio.Producer(broker.name_server, config=settings) as producer:
        sent = await producer.send(topic, b"x", keys=keys)
    (message,) = (await read_all(admin.client, topic, 1))[sent.queue]
    assert message.keys == keys
    async with asyncio.timeout(WAIT_S):
        for key in keys:
            # indexed a moment after it is stored
            while not (found := await admin.messages(topic, key=key)):
                await asyncio.sleep(0.1)
            assert [one.id for one in found] == [sent.id]
            while not (steps := await admin.trace(key)):
                await asyncio.sleep(0.1)
            assert sent.id in {step.message_id for step in steps if step.keys == keys}
    assert await admin.messages(topic, key="a") == []


async def test_dead_letters_are_shown_and_given_to_their_group_again(
    broker: RunningBroker, admin: aio.Admin, producer: aio.Producer, topic: str, group: str
) -> None:
    with pytest.raises(GroupNotExist, match=group):
        await admin.dead_letters(group)
    await admin.create_group(group)
    assert await admin.dead_letters(group) == []
    await producer.send(topic, b"poison", keys="4711", properties={"colour": "red"})
    healed = asyncio.Event()
    eaten: asyncio.Queue[MessageExt] = asyncio.Queue()

    @ogive.listener(topic, group=group, start="earliest")
    async def eat(message: MessageExt) -> ogive.ConsumeResult:
        if not healed.is_set():
            return ogive.DEAD_LETTER
        eaten.put_nowait(message)
        return None

    async with aio.PushConsumer(eat, name_server=broker.name_server, config=QUICK):
        async with asyncio.timeout(WAIT_S):
            while not (dead := await admin.dead_letters(group)):
                await asyncio.sleep(0.1)
            assert [(message.body, message.queue.topic) for message in dead] == [
                (b"poison", dlq_topic(group))
            ]
            healed.set()
            await admin.send_again(group, dead[0])
            again = await eaten.get()
    assert (again.topic, again.body, again.keys, again.reconsume_times) == (
        topic,
        b"poison",
        ("4711",),
        0,
    )
    assert again.properties["colour"] == "red"
    assert again.id == dead[0].id
