"""Messages that may go to any queue: alone while little is on its way, together beyond that, and
each with an outcome of its own.
"""

import asyncio
import random
import time
from collections import Counter
from dataclasses import replace

import pytest

from ogive.client.config import ProducerConfig
from ogive.client.producer import Producer
from ogive.client.sending.handle import SendHandle
from ogive.errors import MessageIllegal, OgiveError, ResponseCode, SendFailed, SendTimeout
from ogive.model import SendResult
from ogive.testing.fake_broker import HANG_UP, SILENT, WAIT_S, FakeBroker, error
from ogive.wire.message import decode_batch, decode_properties
from tests.unit.client.test_producer import BATCH, BUSY, SEND, producing, stop_and_be_noticed

TWO = ProducerConfig(max_requests=2)


def sizes(broker: FakeBroker) -> list[int]:
    """How many messages each send request carried."""
    return [
        len(decode_batch(r.body)) if r.code == BATCH else 1
        for r in broker.requests
        if r.code in (SEND, BATCH)
    ]


async def lone(producer: Producer, body: bytes, *, timeout_s: float | None = None) -> SendHandle:
    """Submit a message, and let the loop turn: it leaves alone, unless it has to wait."""
    handle = await producer.submit("Orders", body, timeout_s=timeout_s)
    await asyncio.sleep(0)
    return handle


async def test_what_comes_while_requests_are_on_their_way_leaves_together() -> None:
    async with producing("Orders", config=TWO) as (producer, [broker]):
        await producer.send("Orders", b"the way is open")
        broker.hold(SEND)
        futures = [await lone(producer, b"%d" % i) for i in range(2)]
        futures += [await producer.submit("Orders", b"%d" % i, tag="t") for i in range(2, 50)]
        await broker.received(SEND, 3)
        assert sizes(broker) == [1, 1, 1]
        broker.release(SEND)
        results = await asyncio.gather(*futures)
        assert sizes(broker) == [1, 1, 1, 48]
        items = decode_batch(broker.of(BATCH)[0].body)
        assert sorted(
            body for bodies in broker.bodies("Orders").values() for body in bodies
        ) == sorted([b"the way is open", *(b"%d" % i for i in range(50))])
    assert [decode_properties(item.properties)["UNIQ_KEY"] for item in items] == [
        result.id for result in results[2:]
    ]
    assert [result.queue_offset for result in results[2:]] == list(
        range(results[2].queue_offset, results[2].queue_offset + 48)
    )
    assert len({(result.queue, result.queue_offset) for result in results}) == 50


async def test_what_waited_is_shared_by_the_queues() -> None:
    """Batches go where the fewest messages went; a queue that comes later gets its share, and not
    all until it has caught up.
    """
    async with producing("Orders", queues=4, config=TWO) as (producer, [broker]):
        for _ in range(20):
            await asyncio.gather(*[await producer.submit("Orders", b"x") for _ in range(20)])
        assert {
            queue: len(bodies) for queue, bodies in broker.bodies("Orders").items()
        } == dict.fromkeys(range(4), pytest.approx(100, abs=30))
        broker.topics["Orders"] = 5
        await producer.client.routes.refresh("Orders")
        for _ in range(20):
            await asyncio.gather(*[await producer.submit("Orders", b"y") for _ in range(25)])
        assert 50 <= len(broker.bodies("Orders")[4]) <= 200


async def test_topics_take_turns_and_do_not_share_a_batch() -> None:
    async with producing("Orders", "Refunds", config=replace(TWO, max_requests=1)) as (
        producer,
        [broker],
    ):
        await asyncio.gather(producer.send("Orders", b"open"), producer.send("Refunds", b"open"))
        topics = ["Orders", "Refunds"] * 20
        futures = [await producer.submit(topic, topic.encode()) for topic in topics]
        await broker.received(BATCH)
        results = await asyncio.gather(*futures)
        assert sizes(broker)[2:] == [20, 20]
        for topic in ("Orders", "Refunds"):
            assert broker.bodies(topic)[0] == [b"open"] + [topic.encode()] * 20
    assert [result.queue.topic for result in results] == topics


async def test_what_cannot_stand_in_a_batch_waits_for_nobody() -> None:
    config = replace(TWO, max_requests=1, compress_over_bytes=1000)
    async with producing("Orders", config=config) as (producer, [broker]):
        await producer.send("Orders", b"the way is open")
        broker.hold(SEND)
        futures = [await lone(producer, body) for body in (b"0", b"x" * 2000, b"1")]
        futures.append(await producer.submit("Orders", b"2", delay_level=1))
        await broker.received(SEND, 4)
        broker.release(SEND)
        await asyncio.gather(*futures)
        assert sizes(broker) == [1, 1, 1, 1, 1]


async def test_a_refused_batch_goes_message_by_message_and_only_the_culprit_fails() -> None:
    async with producing("Orders", config=TWO) as (producer, [broker]):
        broker.script(BATCH, error(ResponseCode.MESSAGE_ILLEGAL, "one of them"))
        refused = error(ResponseCode.MESSAGE_ILLEGAL, "this one")
        broker.on(SEND, lambda request: refused if request.body == b"5" else None)
        futures = [await producer.submit("Orders", b"%d" % i) for i in range(10)]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [i for i, outcome in enumerate(outcomes) if isinstance(outcome, MessageIllegal)] == [5]
    assert sum(isinstance(outcome, SendResult) for outcome in outcomes) == 9


async def test_a_batch_of_a_busy_broker_is_repeated_elsewhere() -> None:
    async with producing("Orders", brokers=2, config=replace(TWO, max_requests=1)) as (
        producer,
        brokers,
    ):
        for broker in brokers:
            broker.script(BATCH, BUSY)
        results = await asyncio.gather(
            *[await producer.submit("Orders", b"%d" % i) for i in range(20)]
        )
        assert len({result.id for result in results}) == 20
        stored = Counter(
            body
            for broker in brokers
            for bodies in broker.bodies("Orders").values()
            for body in bodies
        )
    assert stored == Counter(b"%d" % i for i in range(20))


async def test_a_lost_connection_leaves_nothing_waiting() -> None:
    """What was on its way is repeated, what waited goes with the new connection."""
    async with producing("Orders", config=TWO) as (producer, [broker]):
        await producer.send("Orders", b"the way is open")
        broker.hold(SEND)
        futures = [await lone(producer, b"%d" % i) for i in range(10)]
        await broker.received(SEND, 3)
        broker.release(SEND)
        broker.script(BATCH, HANG_UP)
        await asyncio.gather(*futures)
        assert set(broker.bodies("Orders")[0]) == {
            b"the way is open",
            *(b"%d" % i for i in range(10)),
        }


async def test_a_broker_that_is_gone_fails_what_waited_for_it() -> None:
    async with producing("Orders", config=TWO) as (producer, [broker]):
        await producer.send("Orders", b"the way is open")
        broker.hold(SEND)
        futures = [await lone(producer, b"%d" % i, timeout_s=2.0) for i in range(5)]
        await broker.received(SEND, 3)
        await stop_and_be_noticed(broker, producer)
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [SendTimeout] * 2 + [SendFailed] * 3


async def test_each_message_keeps_its_own_deadline() -> None:
    """One that waits ends as certainly not sent, one on its way as unknown; the others do not
    suffer.
    """
    async with producing("Orders", config=replace(TWO, max_requests=1)) as (producer, [broker]):
        await producer.send("Orders", b"the way is open")
        broker.hold(SEND)
        on_its_way = await lone(producer, b"a", timeout_s=0.3)
        with pytest.raises(SendFailed):
            await producer.send("Orders", b"waits", timeout_s=0.05)
        patient = await producer.submit("Orders", b"b", timeout_s=WAIT_S)
        impatient = await producer.submit("Orders", b"c", timeout_s=0.05)
        with pytest.raises(SendFailed):
            await impatient
        with pytest.raises(SendTimeout):
            await on_its_way
        broker.release(SEND)
        await patient
        assert b"c" not in broker.bodies("Orders")[0]


async def test_messages_with_the_same_budget_of_their_own_travel_together() -> None:
    async with producing("Orders", config=replace(TWO, max_requests=1)) as (producer, [broker]):
        await producer.send("Orders", b"the way is open")
        broker.hold(SEND)
        handles = [await lone(producer, b"alone")]
        budgets_s = [2.0, 2.0, None, None, 2.0]
        for i, timeout_s in enumerate(budgets_s):
            handles.append(await producer.submit("Orders", b"%d" % i, timeout_s=timeout_s))
        broker.release(SEND)
        await asyncio.gather(*handles)
        assert sizes(broker) == [1, 1, 2, 2, 1]
        assert broker.bodies("Orders")[0][2:] == [b"0", b"1", b"2", b"3", b"4"]


async def test_what_waits_behind_a_silent_broker_ends_in_its_time() -> None:
    config = replace(TWO, max_requests=1, send_timeout_s=0.3)
    async with producing("Orders", config=config) as (producer, [broker]):
        await producer.send("Orders", b"the way is open", timeout_s=WAIT_S)
        broker.hold(SEND)
        patient = await producer.submit("Orders", b"patient", timeout_s=WAIT_S)
        handles = [await lone(producer, b"%d" % i) for i in range(4)]
        outcomes = await asyncio.gather(*handles, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [SendFailed] * 4
        assert (patient.done(), producer.in_flight) == (False, 1)
        broker.release(SEND)
        await patient
        await producer.send("Orders", b"after", timeout_s=WAIT_S)
        assert broker.bodies("Orders")[0] == [b"the way is open", b"patient", b"after"]


async def test_only_messages_whose_time_is_up_end_in_the_inbox() -> None:
    config = replace(TWO, max_requests=1, send_timeout_s=0.6)
    async with producing("Orders", config=config) as (producer, [broker]):
        await producer.send("Orders", b"the way is open", timeout_s=WAIT_S)
        broker.hold(SEND)
        patient = await producer.submit("Orders", b"patient", timeout_s=WAIT_S)
        early = [await lone(producer, b"early") for _ in range(3)]
        await asyncio.sleep(0.5)
        late = [await lone(producer, b"late", timeout_s=WAIT_S) for _ in range(3)]
        outcomes = await asyncio.gather(*early, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [SendFailed] * 3
        assert not any(handle.done() for handle in late)
        broker.release(SEND)
        await asyncio.gather(patient, *late)
        assert broker.bodies("Orders")[0] == [b"the way is open", b"patient", *[b"late"] * 3]


async def test_what_a_blocked_loop_kept_too_long_is_not_sent_any_more() -> None:
    config = replace(TWO, send_timeout_s=0.2)
    async with producing("Orders", config=config) as (producer, [broker]):
        await producer.send("Orders", b"the way is open", timeout_s=WAIT_S)
        handles = [await producer.submit("Orders", b"%d" % i) for i in range(3)]
        # the program computes
        time.sleep(0.3)
        handles.append(await producer.submit("Orders", b"in time", timeout_s=WAIT_S))
        outcomes = await asyncio.gather(*handles, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [SendFailed] * 3 + [SendResult]
        assert broker.bodies("Orders")[0] == [b"the way is open", b"in time"]


async def test_messages_linger_for_others_to_share_their_request() -> None:
    config = ProducerConfig(linger_s=0.5, max_batch_bytes=2048, max_in_flight=30)
    async with producing("Orders", config=config) as (producer, [broker]):
        await producer.send("Orders", b"the way is open")
        await asyncio.gather(*[await lone(producer, b"%d" % i) for i in range(5)])
        assert sizes(broker) == [1, 5]
        # full: they leave at once
        handles = [await lone(producer, bytes(1000)) for _ in range(4)]
        await asyncio.gather(*handles)
        # no room: they leave at once, too
        config = replace(config, linger_s=2 * WAIT_S, send_timeout_s=3 * WAIT_S)
    async with producing("Orders", config=config) as (producer, [broker]):
        await producer.send("Orders", b"the way is open")
        async with asyncio.timeout(WAIT_S):
            handles = [await producer.submit("Orders", b"") for _ in range(100)]
            await producer.flush()
        assert all(handle.done() for handle in handles)


async def test_what_lingers_makes_room_for_messages_of_all_kinds_and_topics() -> None:
    config = ProducerConfig(linger_s=2 * WAIT_S, send_timeout_s=3 * WAIT_S, max_in_flight=10)
    async with producing("Orders", "Refunds", config=config) as (producer, _):
        await asyncio.gather(producer.send("Orders", b""), producer.send("Refunds", b""))
        async with asyncio.timeout(WAIT_S):
            handles = [await lone(producer, b"") for _ in range(10)]
            await producer.send("Orders", b"sharded", sharding_key="a")
            handles += [await lone(producer, b"") for _ in range(10)]
            handles.append(await producer.submit("Refunds", b""))
            await producer.flush()
        assert all(handle.done() for handle in handles)


async def test_a_flush_ends_with_what_waits_behind_other_requests() -> None:
    async with producing("Orders", config=replace(TWO, max_requests=1)) as (producer, [broker]):
        await producer.send("Orders", b"the way is open")
        broker.hold(SEND)
        handles = [await lone(producer, b"%d" % i) for i in range(5)]
        flushed = asyncio.create_task(producer.flush())
        await asyncio.sleep(0)
        broker.release(SEND)
        await flushed
        assert all(handle.done() for handle in handles)
        assert sizes(broker)[2:] == [4]


async def test_an_avoided_broker_does_not_get_what_the_other_has_no_room_for() -> None:
    config = replace(TWO, max_requests=1, avoid_slow_brokers=True)
    async with producing("Orders", brokers=2, config=config) as (producer, [slow, good]):
        slow.script(SEND, BUSY)
        for _ in range(3):
            await producer.send("Orders", b"x")
        assert len(slow.of(SEND)) == 1
        good.hold(SEND)
        handles = [await lone(producer, b"%d" % i) for i in range(10)]
        await good.received(SEND, 4)
        good.release(SEND)
        await asyncio.gather(*handles)
        assert sizes(slow) == [1]


@pytest.mark.parametrize("seed", range(6))
async def test_every_message_has_exactly_one_outcome_whatever_happens(seed: int) -> None:
    """Random refusals, silences and lost connections, on two brokers: what succeeded is stored,
    what is stored did not fail for certain.
    """
    chance = random.Random(seed)
    config = replace(TWO, max_requests=chance.randint(1, 3), send_timeout_s=1.0)
    async with producing("Orders", "Refunds", queues=2, brokers=2, config=config) as (
        producer,
        brokers,
    ):
        for broker in brokers:
            for code in (SEND, BATCH):
                broker.script(
                    code,
                    *chance.choices(
                        [BUSY, HANG_UP, error(ResponseCode.SYSTEM_ERROR), None, None, None, SILENT],
                        k=6,
                    ),
                )
        futures = []
        for i in range(200):
            futures.append(
                await producer.submit(
                    chance.choice(["Orders", "Refunds"]),
                    b"%d" % i,
                    timeout_s=chance.choice([0.2, 1.0, None]),
                )
            )
            if chance.random() < 0.1:
                await asyncio.sleep(0)
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        stored = {
            int(body)
            for broker in brokers
            for topic in ("Orders", "Refunds")
            for bodies in broker.bodies(topic).values()
            for body in bodies
        }
        assert producer.in_flight == 0
    for i, outcome in enumerate(outcomes):
        if isinstance(outcome, SendResult):
            assert i in stored
        else:
            assert isinstance(outcome, OgiveError), outcome
            assert outcome.outcome_unknown or i not in stored
