"""POP_MESSAGE, and what ends leases, over the wire."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ogive.broker import Broker
from ogive.broker.config import PopConfig
from ogive.broker.pop.leases import Place
from ogive.errors import ResponseCode
from ogive.store import queue_reader
from ogive.wire.bodies.stats import OffsetWrapper, consume_stats_loads
from ogive.wire.codes import RequestCode
from ogive.wire.pop import BatchAck, BatchAckBody
from tests.pop import GROUP, acknowledging, leased, open_offsets, pop, popping
from tests.raw_client import RawClient
from tests.unit.broker.conftest import StartBroker, crash_image


async def bodies(client: RawClient, **options: object) -> list[bytes]:
    return [message.body for message, _ in await pop(client, **options)]  # type: ignore[arg-type]


async def test_messages_are_given_out_once_and_acknowledged(client: RawClient) -> None:
    for queue, body in ((0, b"a"), (0, b"b"), (3, b"c")):
        await client.send("T", body, queue=queue)
    found = await pop(client)
    assert sorted(message.body for message, _ in found) == [b"a", b"b", b"c"]
    assert await pop(client) == []
    assert await bodies(client, group="another") != []
    for _, handle in found:
        await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(handle))


async def test_the_highest_queue_of_a_topic_with_priorities_comes_first(client: RawClient) -> None:
    fields = {"topic": "P", "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
    fields |= {"attributes": "+message.type=PRIORITY"}
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        **fields,
        readQueueNums=8,
        writeQueueNums=8,
        perm=6,
        order=False,
    )
    for queue in (2, 7, 0, 5):
        await client.send("P", b"%d" % queue, queue=queue)
    assert await bodies(client, topic="P") == [b"7", b"5", b"2", b"0"]
    for queue in (3, 6):
        await client.send("P", b"%d" % queue, queue=queue)
    assert await bodies(client, topic="P", maxMsgNums=1) == [b"6"]


async def test_what_is_not_acknowledged_comes_again_as_another_try(
    server: Broker, client: RawClient
) -> None:
    await client.send("T", b"a", {"UNIQ_KEY": "KEY", "TAGS": "tag"})
    await client.send("T", b"b")
    (first, _), (_, second) = await pop(client, invisibleTime=500)
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(second))
    answer = await client.call(
        RequestCode.POP_MESSAGE, **popping(pollTime=30_000, exp="tag", expType="TAG")
    )
    ((again, handle),) = leased(answer)
    assert (again.body, again.topic, again.reconsume_times) == (b"a", "T", 1)
    assert again.properties["UNIQ_KEY"] == "KEY"
    assert again.properties["ORIGIN_GROUP"] == GROUP
    assert int(again.properties["1ST_POP_TIME"]) <= handle.pop_time_ms
    assert handle.flag == 1
    assert first.reconsume_times == 0
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(handle, f"%RETRY%{GROUP}_T"))
    assert len(server.context.leases) == 0
    assert server.context.offsets.get(GROUP, f"%RETRY%{GROUP}_T", 0) == 1


async def test_a_request_waits_for_a_message_of_any_queue(client: RawClient) -> None:
    await client.send("T", b"a")
    assert await bodies(client) == [b"a"]
    waiting = client.start(RequestCode.POP_MESSAGE, **popping(pollTime=30_000))
    one_queue = client.start(RequestCode.POP_MESSAGE, **popping(pollTime=30_000, queueId=1))
    await client.send("T", b"b", queue=3)
    assert [message.body for message, _ in leased(await waiting)] == [b"b"]
    await client.send("T", b"c", queue=1)
    assert [message.body for message, _ in leased(await one_queue)] == [b"c"]
    answer = await client.call(RequestCode.POP_MESSAGE, **popping(pollTime=20))
    assert answer.code == ResponseCode.POLLING_TIMEOUT
    assert answer.ext_fields["startOffsetInfo"] == ""


async def test_a_change_gives_another_handle_and_the_old_one_counts_no_more(
    server: Broker, client: RawClient
) -> None:
    await client.send("T", b"a")
    await client.send("T", b"b")
    _, (_, handle) = await pop(client)
    answer = await client.ok(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **acknowledging(handle, invisibleTime=90_000)
    )
    fields = answer.ext_fields
    assert fields["invisibleTime"] == "90000"
    changed = handle._replace(
        start=handle.offset, pop_time_ms=int(fields["popTime"]), invisible_ms=90_000
    )
    again = await client.call(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **acknowledging(handle, invisibleTime=1)
    )
    assert again.code == ResponseCode.NO_MESSAGE
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(handle))
    assert sum(server.context.leases.out.values()) == 2
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(changed))
    assert sum(server.context.leases.out.values()) == 1


async def test_what_is_being_stored_again_is_changed_no_more(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is over: with another lease it would be delivered twice."""
    reads, go_on = server.context.cold_reads, asyncio.Event()
    read = reads.read

    async def late(*arguments: Any) -> Any:
        found = await read(*arguments)
        await go_on.wait()
        return found

    monkeypatch.setattr(reads, "read", late)
    await client.send("T", b"a")
    ((_, handle),) = await pop(client, invisibleTime=20)
    (lease,) = server.context.leases.all()
    async with asyncio.timeout(60):
        while not lease.reviving:
            await asyncio.sleep(0)
    answer = await client.call(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **acknowledging(handle, invisibleTime=60_000)
    )
    assert answer.code == ResponseCode.NO_MESSAGE
    # and an acknowledgement comes just in time
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(handle))
    go_on.set()
    await server.context.finish_tasks()
    assert len(server.context.leases) == 0
    assert f"%RETRY%{GROUP}_T" not in server.context.topics


async def test_a_change_makes_no_more_leases_than_there_may_be(start_broker: StartBroker) -> None:
    broker = await start_broker(pop=PopConfig(max_leases=1))
    async with await RawClient.open(broker.address) as client:
        for body in (b"a", b"b"):
            await client.send("T", body)
        (_, first), (_, second) = await pop(client)
        changing = acknowledging(second, invisibleTime=60_000)
        answer = await client.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **changing)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(first))
        await client.ok(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **changing)


async def test_properties_of_another_try_fit(client: RawClient) -> None:
    await client.send("T", b"a", {"big": "x" * 32_580})
    await pop(client, invisibleTime=20)
    answer = await client.call(RequestCode.POP_MESSAGE, **popping(pollTime=30_000))
    ((message, handle),) = leased(answer)
    assert handle.flag == 1
    size = sum(len(name) + len(value) + 2 for name, value in message.properties.items())
    assert size <= 32_767


async def test_many_are_acknowledged_by_one_request(server: Broker, client: RawClient) -> None:
    for number in range(3):
        await client.send("T", b"%d" % number)
    found = await pop(client)
    handle = found[0][1]
    ack = BatchAck(
        group=GROUP, topic="T", start=handle.start, queue_id=0, revive_queue=handle.revive_queue,
        pop_time_ms=handle.pop_time_ms, invisible_ms=handle.invisible_ms, bits=0b101,
    )  # fmt: skip
    body = BatchAckBody(broker_name="broker-a", acks=(ack,)).encode()
    await client.ok(RequestCode.BATCH_ACK_MESSAGE, body)
    (lease,) = server.context.leases.all()
    assert open_offsets(lease) == [1]
    answer = await client.call(RequestCode.BATCH_ACK_MESSAGE)
    assert answer.code == ResponseCode.NO_MESSAGE


@pytest.mark.parametrize(
    "changed",
    [
        {"consumerGroup": "another"},
        {"topic": "another"},
        {"offset": 1},
        {"queueId": 1},
    ],
)
async def test_a_handle_counts_only_for_what_it_was_given_for(
    changed: dict[str, object], server: Broker, client: RawClient
) -> None:
    for topic in ("T", "another"):
        for queue in (0, 1):
            await client.send(topic, b"a", queue=queue)
            await client.send(topic, b"b", queue=queue)
    (_, handle), *_ = await pop(client, queueId=0)
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(handle) | changed)
    answer = await client.call(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        **acknowledging(handle, invisibleTime=1) | changed,
    )
    assert answer.code == ResponseCode.NO_MESSAGE
    assert sum(server.context.leases.out.values()) == 2


async def test_refusals(client: RawClient) -> None:
    await client.send("T", b"a")
    for changed, code in (
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 8}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": -1}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "missing"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"expType": "SQL92", "exp": "a ="}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ):
        answer = await client.call(RequestCode.POP_MESSAGE, **popping() | changed)
        assert answer.code == code, (changed, answer)
    for info in ("", "1 2 3", "a b c d e f g h", "-1 0 0 0 0 broker-a 0 0"):
        answer = await client.call(
            RequestCode.ACK_MESSAGE,
            consumerGroup=GROUP, topic="T", queueId=0, extraInfo=info, offset=0,
        )  # fmt: skip
        assert answer.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_leases_outlive_a_kill(flush: str, start_broker: StartBroker, tmp_path: Path) -> None:
    broker = await start_broker(flush=flush)
    async with await RawClient.open(broker.address) as client:
        for body in (b"a", b"b", b"c"):
            await client.send("T", body)
        found = await pop(client, maxMsgNums=2, invisibleTime=60_000)
        (_, first), (_, second) = found
        await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(first))
        await client.ok(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **acknowledging(second, invisibleTime=1500)
        )
        # no file is being replaced while the directory is copied
        await broker.context.topics.saved()
        await broker.context.groups.saved()
        left = crash_image(broker, tmp_path)
    broker = await start_broker(flush=flush, data=left)
    async with await RawClient.open(broker.address) as client:
        assert await bodies(client) == [b"c"]
        answer = await client.call(RequestCode.POP_MESSAGE, **popping(pollTime=30_000))
        assert [message.body for message, _ in leased(answer)] == [b"b"]


async def test_a_second_request_is_woken_by_what_the_first_left(client: RawClient) -> None:
    await client.send("T", b"0")
    assert await bodies(client) == [b"0"]
    waiting = [
        client.start(RequestCode.POP_MESSAGE, **popping(pollTime=30_000, maxMsgNums=1))
        for _ in range(2)
    ]
    await asyncio.sleep(0)
    await client.send_batch("T", [b"1", b"2"])
    found = [message.body for answer in waiting for message, _ in leased(await answer)]
    assert sorted(found) == [b"1", b"2"]


async def test_a_filter_goes_through_what_does_not_match(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read looks at a part of the queue, and no message arrives that would wake the request."""
    monkeypatch.setattr(queue_reader, "_MIN_SCAN", 2)
    for _ in range(20):
        await client.send("T", b"other", {"TAGS": "other"})
    await client.send("T", b"mine", {"TAGS": "mine"})
    answer = await client.call(
        RequestCode.POP_MESSAGE,
        **popping(pollTime=3_000, maxMsgNums=1, queueId=0, exp="mine", expType="TAG"),
    )
    assert [message.body for message, _ in leased(answer)] == [b"mine"]


async def test_a_full_queue_does_not_keep_a_request_busy(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start_broker(pop=PopConfig(limit_out=True, max_out=1))
    async with await RawClient.open(broker.address) as client:
        await client.send("T", b"a")
        await client.send("T", b"b")
        assert await bodies(client, maxMsgNums=1, queueId=0) == [b"a"]
        waiting = client.start(RequestCode.POP_MESSAGE, **popping(pollTime=30_000, queueId=0))
        await client.send("T", b"c")
        tries = 0
        book = broker.context.leases
        before = book.position

        def position(place: Place) -> int | None:
            nonlocal tries
            tries += 1
            return before(place)

        monkeypatch.setattr(book, "position", position)
        for _ in range(100):
            await asyncio.sleep(0)
        assert tries < 10
        waiting.cancel()


async def test_a_new_group_begins_at_the_same_time_in_each_queue(
    start_broker: StartBroker,
) -> None:
    """At the end, as it asks for: what comes before a queue has its turn is not passed over."""
    broker = await start_broker(pop=PopConfig(look_in_memory=False))
    async with await RawClient.open(broker.address) as client:
        for queue in range(4):
            for body in (b"1", b"2", b"3"):
                await client.send("T", body, queue=queue)
        found = Counter(await bodies(client, maxMsgNums=1, initMode=1))
        for queue in range(4):
            for body in (b"4", b"5", b"6"):
                await client.send("T", body, queue=queue)
        while more := await bodies(client, maxMsgNums=8, initMode=1):
            found.update(more)
        assert found == dict.fromkeys((b"3", b"4", b"5", b"6"), 4)


async def test_progress_has_a_limit(start_broker: StartBroker) -> None:
    broker = await start_broker(max_offsets=5)
    async with await RawClient.open(broker.address) as client:
        await client.send("T", b"a")
        assert await bodies(client, queueId=0) == [b"a"]
        answer = None
        for group in ("G1", "G2", "G3", "G4", "G5"):
            answer = await client.call(RequestCode.POP_MESSAGE, **popping(group=group, queueId=0))
        assert answer is not None
        assert answer.code == ResponseCode.SYSTEM_BUSY
        await client.send("T", b"b")
        assert await bodies(client, queueId=0) == [b"b"]


async def test_a_client_that_does_not_read_wakes_another(
    server: Broker, client: RawClient, another: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.send("T", b"0")
    assert await bodies(client) == [b"0"]
    slow = client.start(RequestCode.POP_MESSAGE, **popping(pollTime=30_000))
    while not len(server.context.pop_holds):
        await asyncio.sleep(0)
    (connection,) = set(server.context.pop_holds._by_connection)
    waiting = another.start(RequestCode.POP_MESSAGE, **popping(pollTime=30_000))
    while len(server.context.pop_holds) < 2:
        await asyncio.sleep(0)
    readers = server.context.slow_readers
    with monkeypatch.context() as patch:
        patch.setattr(readers, "must_wait", lambda one: one is connection)
        patch.setattr(readers, "is_slow", lambda one: one is connection, raising=False)
        # answered when its socket has room, and not here
        patch.setattr(readers, "put", lambda pull: None)
        await another.send("T", b"1")
        async with asyncio.timeout(60):
            assert [message.body for message, _ in leased(await waiting)] == [b"1"]
    slow.cancel()


async def test_messages_that_are_out_count_as_lag(server: Broker, client: RawClient) -> None:
    for body in (b"a", b"b", b"c"):
        await client.send("T", body)
    (_, first), *_ = await pop(client, maxMsgNums=2)
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(first))
    answer = await client.ok(RequestCode.GET_CONSUME_STATS, consumerGroup=GROUP, topic="T")
    assert b'"brokerOffset":3,"consumerOffset":1,' in answer.body
    assert b'"pullOffset":2' in answer.body
    text = (await server.metrics_page()).text
    for figure, count in (("lag", 2), ("inflight", 1), ("ready", 1)):
        (line,) = [
            line
            for line in text.splitlines()
            if line.startswith(f"rocketmq_consumer_{figure}_messages{{") and 'topic="T"' in line
        ]
        assert line.endswith(f" {count}"), line
    assert "rocketmq_pop_checkpoint_buffer_size" in text


async def test_the_oldest_lease_of_each_queue_is_in_the_progress(client: RawClient) -> None:
    async def places() -> dict[int, OffsetWrapper]:
        answer = await client.ok(RequestCode.GET_CONSUME_STATS, consumerGroup=GROUP, topic="T")
        return {queue.queue_id: row for queue, row in consume_stats_loads(answer.body).items()}

    for body in (b"a", b"b"):
        await client.send("T", body)
    await client.send("T", b"c", queue=1)
    ((_, first),) = await pop(client, maxMsgNums=1, queueId=0)
    assert (await places())[0].pop_timestamp == first.pop_time_ms
    ((_, second),) = await pop(client, maxMsgNums=1, queueId=0)
    ((_, third),) = await pop(client, maxMsgNums=1, queueId=1)
    rows = await places()
    assert rows[0].pop_timestamp == first.pop_time_ms
    assert rows[1].pop_timestamp == third.pop_time_ms
    for handle in (first, second, third):
        await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(handle))
    answer = await client.ok(RequestCode.GET_CONSUME_STATS, consumerGroup=GROUP, topic="T")
    assert b"popTimestamp" not in answer.body


async def test_retry_topics_and_leases_go_with_their_topic(
    server: Broker, client: RawClient
) -> None:
    await client.send("T", b"a")
    await client.send("T", b"b")
    await pop(client, maxMsgNums=1, invisibleTime=50)
    answer = await client.call(RequestCode.POP_MESSAGE, **popping(pollTime=30_000, queueId=1))
    assert len(leased(answer)) == 1
    retry = f"%RETRY%{GROUP}_T"
    assert retry in server.context.topics
    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    assert retry not in server.context.topics
    assert server.context.offsets.get(GROUP, retry, 0) is None
    assert len(server.context.leases) == 0


async def test_retry_topics_and_leases_go_with_their_group(
    server: Broker, client: RawClient
) -> None:
    context = server.context
    for topic in ("T", "U"):
        for body in (b"a", b"b"):
            await client.send(topic, body)
        await pop(client, topic, maxMsgNums=1, invisibleTime=50)
        answer = await client.call(
            RequestCode.POP_MESSAGE, **popping(topic, pollTime=30_000, queueId=1)
        )
        assert len(leased(answer)) == 1
    waiting = client.start(RequestCode.POP_MESSAGE, **popping(pollTime=30_000, queueId=1))
    while not len(context.pop_holds):
        await asyncio.sleep(0)
    await client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName=GROUP)
    assert (await waiting).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert [name for name in context.topics.all() if name.startswith("%RETRY%")] == []
    assert len(context.leases) == 0
    # what comes later is not given to a request of a group that is not there
    await client.send("T", b"c", queue=1)
    assert len(context.leases) == 0


async def test_a_retry_topic_that_is_anothers_as_well_stays(
    server: Broker, client: RawClient
) -> None:
    """%RETRY%a_b_c is that of a on b_c, and of a_b on c."""
    for topic, group in (("b_c", "a"), ("c", "a_b")):
        await client.send(topic, group.encode())
        await pop(client, topic, group, invisibleTime=50)
        answer = await client.call(
            RequestCode.POP_MESSAGE, **popping(topic, group, pollTime=30_000, invisibleTime=60_000)
        )
        assert [message.body for message, _ in leased(answer)] == [group.encode()]
    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="c")
    assert "%RETRY%a_b_c" in server.context.topics
    assert [lease.key.group for lease in server.context.leases.all() if lease.open] == ["a", "a_b"]
    await client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="a")
    assert "%RETRY%a_b_c" not in server.context.topics


async def test_another_groups_retry_topic_of_the_same_name_is_not_read(
    server: Broker, client: RawClient
) -> None:
    """%RETRY%a_b is that of the group a on topic b, and of the group a_b when it pulls."""
    await client.heartbeat("c", "a_b", "T")
    await client.send("b", b"mine")
    await client.send("%RETRY%a_b", b"theirs", {"UNIQ_KEY": "K", "RETRY_TOPIC": "T"})
    found = await pop(client, "b", "a", invisibleTime=50)
    assert [message.body for message, _ in found] == [b"mine"]
    answer = await client.call(RequestCode.POP_MESSAGE, **popping("b", "a", pollTime=30_000))
    ((again, handle),) = leased(answer)
    assert (again.body, handle.flag) == (b"mine", 2)
    assert "%RETRY%a+b" in server.context.topics
