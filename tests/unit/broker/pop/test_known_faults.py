"""Known faults of Apache's brokers, and edge cases of popping. Each has a test, here or elsewhere.

Issues of apache/rocketmq:

- #7914, #10985: test_a_read_that_fails_ends_no_lease
- #7724: test_only_the_leased_message_is_stored_again
- #8479: test_a_topic_that_is_made_again_gets_nothing_of_the_old_one
- #7412: test_checkpoints.py, test_a_lease_is_written_as_apaches_broker_writes_it
- #6339: test_another_try_is_the_same_message
- #6681, #8472: test_another_try_wakes_a_request_that_waits
- #8592: test_a_blocked_queue_wakes_nobody
- #10827, and rocketmq-clients#708: test_orderly.py,
  test_a_repeated_request_gets_the_same_batch_and_no_count_rises
- #10229: test_orderly.py, test_a_reset_frees_the_queue
- #8268, #9339: test_offsets_pass_what_does_not_match_and_nothing_else
- #9583, #11174: test_each_of_many_is_acknowledged_after_a_change
- #7842: test_a_group_without_a_limit_of_tries_gets_messages
- #3787, #4815: test_leases.py, test_a_lease_ends_at_its_time_and_not_before
- #4953: test_pop.py, test_a_handle_counts_only_for_what_it_was_given_for
- #9105 is about LMQ, and #11195, #10945, #10276 and #10658 are about the KV store: neither exists
  here.

Edge cases:

- the first message of a read does not match: test_each_of_many_is_acknowledged_after_a_change
- two pops in one millisecond: test_two_pops_in_the_same_millisecond_are_two_leases
- a group with _ in its name: test_pop.py,
  test_another_groups_retry_topic_of_the_same_name_is_not_read
- fewer queues than before: test_leases_of_a_queue_that_is_gone
- a restart between pop and acknowledgement: test_pop.py, test_leases_outlive_a_kill;
  test_checkpoints.py, test_leases_go_over_a_clean_stop
- an acknowledgement after the lease, a change after an acknowledgement:
  test_a_late_request_changes_nothing
- the last of 32 messages is not acknowledged: test_the_last_of_a_full_answer_comes_again
- compressed bodies, and batches: test_another_try_is_the_same_message
- the clock is set back: test_leases.py,
  test_a_lease_is_no_longer_than_asked_for_when_the_clock_was_set_back
- the topic is created later: test_a_topic_that_is_created_later
- 100,000 leases: python -m bench.pops --leases 100000
"""

import asyncio
import zlib
from typing import Any

import pytest

from ogive.broker import Broker
from ogive.broker.config import PopConfig
from ogive.broker.pop import revive
from ogive.errors import ResponseCode, StoreError
from ogive.model import MessageExt
from ogive.store.file_reader import Cold
from ogive.wire.codes import RequestCode, SysFlag
from ogive.wire.pop import PopHandle
from tests.pop import GROUP, acknowledging, leased, open_offsets, pop, popping
from tests.raw_client import RawClient
from tests.unit.broker.conftest import StartBroker

RETRY = f"%RETRY%{GROUP}_T"


async def make_topic(client: RawClient, queues: int = 4) -> None:
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic="T",
        defaultTopic="TBW102",
        topicFilterType="SINGLE_TAG",
        readQueueNums=queues,
        writeQueueNums=queues,
        perm=6,
        order=False,
    )


async def wait_for(client: RawClient, **changed: Any) -> list[tuple[MessageExt, PopHandle]]:
    """What a request gets that waits."""
    answer = await client.call(RequestCode.POP_MESSAGE, **popping(pollTime=30_000, **changed))
    return leased(answer)


async def test_a_read_that_fails_ends_no_lease(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revive, "_RETRY_S", 0.0)
    monkeypatch.setattr(revive, "_RETRY_LATER_S", 0.0)
    reads, failures = server.context.cold_reads, 3
    read = reads.read

    async def failing(*arguments: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreError("the disk does not answer")
        return await read(*arguments)

    monkeypatch.setattr(reads, "read", failing)
    await client.send("T", b"a")
    await pop(client, invisibleTime=20)
    ((message, _),) = await wait_for(client)
    assert (message.body, failures, server.context.pop_figures.gone) == (b"a", 0, 0)


async def test_only_the_leased_message_is_stored_again(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention has removed it, and a read finds the one behind it."""
    context = server.context
    for body in (b"a", b"b"):
        await client.send("T", body)
    (_, _), (_, second) = await pop(client, invisibleTime=200)
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(second))
    behind = context.store.get("T", 0, 1, 1, 1)

    async def read(store: object, get: object, cold: Cold | None = None) -> Any:
        return behind

    monkeypatch.setattr(context.cold_reads, "read", read)
    async with asyncio.timeout(60):
        while len(context.leases):
            await asyncio.sleep(0.01)
    assert RETRY not in context.topics
    assert context.pop_figures.gone == 1


async def test_a_topic_that_is_made_again_gets_nothing_of_the_old_one(
    server: Broker, client: RawClient
) -> None:
    await make_topic(client)
    await client.send("T", b"old")
    ((_, handle),) = await pop(client, invisibleTime=200)
    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    await make_topic(client)
    assert len(server.context.leases) == 0
    await client.send("T", b"new")
    ((message, again),) = await wait_for(client)
    assert message.body == b"new"
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(handle))
    assert sum(server.context.leases.out.values()) == 1
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(again))
    assert RETRY not in server.context.topics


async def test_another_try_is_the_same_message(client: RawClient) -> None:
    """Flag, tags, keys and a compressed body stay; a message of a batch comes by itself."""
    packed = zlib.compress(b"x" * 10_000)
    await client.send(
        "T", packed, {"UNIQ_KEY": "K", "TAGS": "t", "KEYS": "k"}, h=77, f=int(SysFlag.COMPRESSED)
    )
    await client.send_batch("T", [b"1", b"2"])
    first = {message.queue_offset: message for message, _ in await pop(client, invisibleTime=20)}
    assert len(first) == 3
    again: list[MessageExt] = []
    while len(again) < 3:
        again += [message for message, _ in await wait_for(client)]
    for before, after in zip(
        sorted(first.values(), key=lambda one: one.body),
        sorted(again, key=lambda one: one.body),
        strict=True,
    ):
        assert (after.body, after.flag, after.sys_flag) == (
            before.body,
            before.flag,
            before.sys_flag,
        )
        assert after.properties.items() >= before.properties.items()
        assert after.reconsume_times == 1
    assert {message.flag for message in again} == {0, 77}


@pytest.mark.parametrize("newer_name", [False, True])
async def test_another_try_wakes_a_request_that_waits(
    start_broker: StartBroker, newer_name: bool
) -> None:
    broker = await start_broker(pop=PopConfig(retry_v2=newer_name))
    async with await RawClient.open(broker.address) as client:
        await client.send("T", b"a")
        await pop(client, invisibleTime=300)
        ((message, handle),) = await wait_for(client)
    assert (message.body, handle.flag) == (b"a", 2 if newer_name else 1)


async def test_a_blocked_queue_wakes_nobody(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, tries = server.context.leases, 0
    blocked = book.orders.blocked_until_s

    def count(*arguments: Any) -> Any:
        nonlocal tries
        tries += 1
        return blocked(*arguments)

    await client.send("T", b"a")
    assert len(await pop(client, order=True, queueId=0)) == 1
    waiting = client.start(
        RequestCode.POP_MESSAGE, **popping(order=True, queueId=0, pollTime=30_000)
    )
    while not len(server.context.pop_holds):
        await asyncio.sleep(0)
    monkeypatch.setattr(book.orders, "blocked_until_s", count)
    await client.send("T", b"b")
    for _ in range(100):
        await asyncio.sleep(0)
    assert tries < 5
    waiting.cancel()


async def test_offsets_pass_what_does_not_match_and_nothing_else(
    server: Broker, client: RawClient
) -> None:
    place = (GROUP, "T", 0)
    wanted: dict[str, Any] = {"exp": "mine", "expType": "TAG", "queueId": 0}
    for tag in ("other", "mine", "other"):
        await client.send("T", tag.encode(), {"TAGS": tag})
    ((_, handle),) = await pop(client, order=True, **wanted)
    # to where the read began: the message is not acknowledged
    assert server.context.offsets.get(*place) in (0, 1)
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(handle))
    assert server.context.offsets.get(*place) == 2
    for order, end in ((True, 3), (False, 4)):
        assert await pop(client, order=order, **wanted) == []
        async with asyncio.timeout(60):
            while server.context.offsets.get(*place) != end:
                await asyncio.sleep(0.01)
        await client.send("T", b"other", {"TAGS": "other"})


async def test_each_of_many_is_acknowledged_after_a_change(
    server: Broker, client: RawClient
) -> None:
    """The read begins before the first of them, which its filter passes over."""
    await client.send("T", b"other", {"TAGS": "other"})
    for number in range(10):
        await client.send("T", b"%d" % number, {"TAGS": "mine"})
    found = await pop(client, exp="mine", expType="TAG")
    assert [handle.offset for _, handle in found] == list(range(1, 11))
    assert {handle.start for _, handle in found} == {0}
    for _, handle in found:
        answer = await client.ok(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **acknowledging(handle, invisibleTime=90_000)
        )
        changed = handle._replace(
            start=handle.offset, pop_time_ms=int(answer.ext_fields["popTime"]), invisible_ms=90_000
        )
        await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(changed))
    assert len(server.context.leases) == 0


async def test_a_group_without_a_limit_of_tries_gets_messages(client: RawClient) -> None:
    await client.ok(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        b'{"groupName":"%b","retryMaxTimes":-1}' % GROUP.encode(),
    )
    await client.send("T", b"a")
    await pop(client, invisibleTime=20)
    ((message, _),) = await wait_for(client)
    assert message.reconsume_times == 1


async def test_two_pops_in_the_same_millisecond_are_two_leases(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.context.leases, "_now_ms", lambda: 1_795_230_231_293)
    for body in (b"a", b"b"):
        await client.send("T", body)
    ((_, first),) = await pop(client, queueId=0, maxMsgNums=1)
    ((_, second),) = await pop(client, queueId=0, maxMsgNums=1)
    assert first.pop_time_ms == second.pop_time_ms
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(first))
    (left,) = server.context.leases.all()
    assert open_offsets(left) == [1]
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(second))
    assert len(server.context.leases) == 0


async def test_leases_of_a_queue_that_is_gone(server: Broker, client: RawClient) -> None:
    """They can be acknowledged, which Apache's broker refuses, and come again."""
    await make_topic(client)
    for body in (b"a", b"b"):
        await client.send("T", body, queue=3)
    (_, first), _ = await pop(client, invisibleTime=300)
    await make_topic(client, queues=2)
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(first))
    ((message, _),) = await wait_for(client)
    assert message.body == b"b"


async def test_a_late_request_changes_nothing(server: Broker, client: RawClient) -> None:
    await client.send("T", b"a")
    ((_, old),) = await pop(client, invisibleTime=20)
    ((message, new),) = await wait_for(client)
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(old))
    assert sum(server.context.leases.out.values()) == 1
    await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(new, RETRY))
    assert (message.body, len(server.context.leases)) == (b"a", 0)
    for handle, topic in ((old, "T"), (new, RETRY)):
        answer = await client.call(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            **acknowledging(handle, topic, invisibleTime=10),
        )
        assert answer.code == ResponseCode.NO_MESSAGE
    assert len(server.context.leases) == 0


async def test_the_last_of_a_full_answer_comes_again(client: RawClient) -> None:
    await client.send_batch("T", [b"%d" % number for number in range(32)])
    *done, (last, _) = await pop(client, invisibleTime=1_000)
    assert len(done) == 31
    for _, handle in done:
        await client.ok(RequestCode.ACK_MESSAGE, **acknowledging(handle))
    ((message, _),) = await wait_for(client)
    assert message.body == last.body == b"31"
    assert await pop(client) == []


async def test_a_topic_that_is_created_later(client: RawClient) -> None:
    answer = await client.call(RequestCode.POP_MESSAGE, **popping(pollTime=30_000))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    await client.send("T", b"a")
    ((message, _),) = await wait_for(client)
    assert message.body == b"a"
