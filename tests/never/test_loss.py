"""Loss and wrong positions: cases 1 to 6 of the faults that users report of RocketMQ clients and
that must not happen in this one.
"""

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest

import ogive
from ogive import aio
from ogive.client.config import ClientConfig
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.listener import LATER, later
from ogive.errors import ResponseCode
from ogive.model import MessageExt
from ogive.testing.fake_broker import SILENT, error
from ogive.wire.command import RemotingCommand
from tests.never.scene import (
    GROUP,
    PULL,
    QUERY,
    RETRY,
    SEND,
    SEND_BACK,
    TOPIC,
    Scene,
    moved,
    rounds,
    until,
)

HASTY = ClientConfig(request_timeout_s=0.4)


def of_queue(answer: Any, queue_id: int) -> Any:
    """A script: *answer* where a request is about that queue of the topic, the usual one
    elsewhere.
    """

    def script(request: RemotingCommand) -> Any:
        fields = request.ext_fields
        return answer if (fields["topic"], fields["queueId"]) == (TOPIC, str(queue_id)) else None

    return script


def queries(scene: Scene, queue_id: int) -> int:
    return sum(
        r.ext_fields["topic"] == TOPIC and r.ext_fields["queueId"] == str(queue_id)
        for r in scene.broker.of(QUERY)
    )


@pytest.mark.kills(
    "case 1: a failed query leaves the queue at offset 0",
    param="error-concurrent-start",
)
@pytest.mark.kills(
    "case 1: any refusal of a query counts as no offset",
    param="error-orderly-rebalance",
)
@pytest.mark.parametrize("when", ["start", "rebalance"])
@pytest.mark.parametrize("kind", ["concurrent", "orderly", "pull"])
@pytest.mark.parametrize(
    "failure", [SILENT, error(ResponseCode.SYSTEM_ERROR)], ids=["silence", "error"]
)
async def test_case_1_a_failed_offset_query_never_becomes_no_offset(
    scene: Scene, kind: str, failure: Any, when: str
) -> None:
    """Neither pulled nor committed until a query succeeds; then it goes on at the right place."""
    scene.broker.topics[TOPIC] = 2
    scene.put(40, queues=2)
    scene.broker.offsets.update({(GROUP, TOPIC, 0): 7, (GROUP, TOPIC, 1): 9})
    if when == "rebalance":
        # sorts before ours, and has queue 0
        scene.others("000")
    else:
        scene.broker.on(QUERY, of_queue(failure, 0))
    seen: set[tuple[int, int]] = set()

    async def run() -> None:
        if kind != "pull":
            listener = scene.listener(
                lambda m: seen.add((m.queue.queue_id, m.queue_offset)), orderly=kind == "orderly"
            )
            async with scene.consumer(listener, client=HASTY):
                await steps()
        else:
            config = ConsumerConfig(
                rebalance_pause_s=0.02,
                hand_over_pause_s=0.02,
                pull_retry_s=0.02,
                persist_period_s=0.05,
            )
            client = ClientConfig(name_server=scene.broker.address, request_timeout_s=0.4)
            async with aio.PullConsumer(
                TOPIC, group=GROUP, start="earliest", config=config, client=client
            ) as pulling:
                polling = asyncio.create_task(poll(pulling))
                await steps()
            await polling

    async def poll(pulling: aio.PullConsumer) -> None:
        async for batch in pulling.batches():
            seen.update((m.queue.queue_id, m.queue_offset) for m in batch)

    async def steps() -> None:
        await until(lambda: (1, 19) in seen, "the queue whose offset is known")
        if when == "rebalance":
            scene.broker.on(QUERY, of_queue(failure, 0))
            scene.others()
        before = queries(scene, 0)
        await until(lambda: queries(scene, 0) >= before + 3, "three queries that fail")
        assert scene.pulls(0) == []
        assert scene.commits(0) == []
        scene.broker.on(QUERY, None)
        await until(lambda: (0, 19) in seen, "the queue whose query failed")

    await run()
    assert scene.pulls(0)[0] == 7
    assert min(offset for queue_id, offset in seen if queue_id == 0) == 7
    assert min(scene.commits(0)) >= 7


@pytest.mark.kills("case 2: offset committed = highest done")
async def test_case_2_no_message_is_lost_when_a_pull_consumers_queue_goes_away_and_comes_back(
    scene: Scene,
) -> None:
    """One queue and two members, of which the second comes and goes while messages flow."""
    config = ConsumerConfig(
        rebalance_period_s=0.05,
        rebalance_pause_s=0.02,
        hand_over_pause_s=0.02,
        pull_retry_s=0.02,
        persist_period_s=0.05,
    )

    def member(name: str) -> aio.PullConsumer:
        client = ClientConfig(name_server=scene.broker.address, instance_name=name)
        return aio.PullConsumer(TOPIC, group=GROUP, start="earliest", config=config, client=client)

    async def poll(pulling: aio.PullConsumer, name: str) -> None:
        async for batch in pulling.batches(max_messages=7):
            for message in batch:
                scene.ledger.receive(message, name)
            # slower than the pulls: something is here and not handed out whenever the queue goes
            await asyncio.sleep(0.005)

    def has_it(pulling: aio.PullConsumer) -> bool:
        return len(pulling.assignment) == 1

    async with member("stays") as stays:
        polling = asyncio.create_task(poll(stays, "stays"))
        for _ in range(8):
            scene.put(300)
            # its id sorts first: it gets the queue
            async with member("comes") as comes:
                other = asyncio.create_task(poll(comes, "comes"))
                await until(partial(has_it, comes), "the newcomer has the queue")
                scene.put(300)
            await other
            await until(partial(has_it, stays), "the queue is back")
        await until(lambda: not scene.ledger.lost, "every message")
    await polling
    scene.check()
    assert scene.progress() == 4800


@pytest.mark.kills("case 3: a queue that leaves takes the offsets of all", param="never")
@pytest.mark.parametrize("period_s", [0.05, 60.0], ids=["often", "never"])
async def test_case_3_giving_one_queue_away_touches_no_other_queues_offset(
    scene: Scene, period_s: float
) -> None:
    """After the hand-over the broker has the right offset of what was given, and after the end of
    all; a restart repeats nothing.
    """
    scene.broker.topics[TOPIC] = 4
    scene.put(40, queues=4)
    again = max(period_s, 30.0)
    async with scene.consumer(persist_period_s=period_s, persist_again_s=again) as running:

        def holds(count: int) -> bool:
            return sum(queue.topic == TOPIC for queue in running.assignment[GROUP]) == count

        await until(lambda: scene.received == 40, "all messages")
        # each of the four gets one queue
        scene.others("zzz", "zzzz", "zzzzz")
        await until(partial(holds, 1), "three queues given away")
        await until(
            lambda: [scene.progress(i) for i in range(4)].count(10) >= 3,
            "progress of those that were given away",
        )
        scene.others()
        await until(partial(holds, 4), "all four are back")
    assert [scene.progress(i) for i in range(4)] == [10] * 4
    async with scene.consumer():
        scene.put(4, queues=4)
        await until(lambda: scene.received == 44, "the new ones")
    scene.check()
    assert scene.ledger.duplicates == 0
    assert scene.ledger.went_back == []


@pytest.mark.kills("case 4: an illegal offset is followed without a check", param="12")
@pytest.mark.parametrize("to", [12, 2])
async def test_case_4_an_illegal_offset_is_repaired_once_and_holds_up_no_other_queue(
    scene: Scene, to: int, caplog: Any
) -> None:
    """What was in hand at the old place cannot overwrite the new one."""
    scene.broker.topics[TOPIC] = 2
    scene.put(40, queues=2)
    free = asyncio.Event()

    async def hang(message: MessageExt) -> None:
        if message.queue.queue_id == 0 and message.queue_offset == 4 and not free.is_set():
            await free.wait()

    def wrong_at_5(request: RemotingCommand) -> Any:
        fields = request.ext_fields
        if (
            (fields["topic"], fields["queueId"]) == (TOPIC, "0")
            and fields["queueOffset"] == "5"
            and len(scene.pulls(0)) < 4
        ):
            return moved(to, 0, 20)
        return None

    scene.broker.on(PULL, wrong_at_5)
    async with scene.consumer(scene.listener(hang), pull_batch_size=5):
        await until(lambda: scene.progress(1) == 20, "the other queue")
        await until(lambda: to in scene.commits(0), "the repair")
        repaired = len(scene.commits(0))
        free.set()
        await until(lambda: scene.progress(0) == 20, "the end of the repaired queue")
    assert scene.pulls(0)[:2] == [0, 5]
    assert scene.pulls(0)[2] == to
    assert min(scene.commits(0)[repaired - 1 :]) >= to
    assert sum("the group was reset" in record.message for record in caplog.records) == 1
    for offset in range(5, to):
        # the broker says that it does not hold them
        scene.ledger.acknowledged.discard(b"Orders/0/%d" % offset)
    scene.check(skipped=to > 5)


@pytest.mark.kills("case 5: a failed send-back counts as done")
async def test_case_5_a_failed_send_back_does_not_advance_the_offset(scene: Scene) -> None:
    """No broker takes the failed message for a while; a client that dies meanwhile leaves it to the
    next.
    """
    scene.put(10)
    scene.broker.on(SEND_BACK, error(ResponseCode.SYSTEM_ERROR))
    scene.broker.on(SEND, error(ResponseCode.SYSTEM_ERROR))
    fails = [True]
    async with scene.consumer(
        scene.listener(lambda m: LATER if m.queue_offset == 3 and fails[0] else None)
    ):
        await until(
            lambda: scene.received == 10 and len(scene.broker.of(SEND_BACK)) >= 3,
            "three tries to send it back",
        )
        assert len(scene.broker.of(SEND)) >= 2
        await until(lambda: scene.progress() == 3, "what is in front of it")
        died = dict(scene.broker.offsets)
    assert max(scene.commits()) == 3
    scene.broker.offsets = died
    fails[0] = False
    before = len(scene.ledger.deliveries)
    async with scene.consumer(scene.listener(member="next")):
        await until(lambda: scene.progress() == 10, "the next client is through")
    assert scene.ledger.deliveries[before].offset == 3
    scene.check()


@pytest.mark.kills("case 6: a failing batch is sent back whole")
async def test_case_6_a_failing_batch_sends_back_exactly_the_failed_messages_once(
    scene: Scene,
) -> None:
    scene.put(32)
    batches: list[list[int]] = []

    async def work(messages: list[MessageExt]) -> Any:
        offsets = [message.queue_offset for message in messages]
        batches.append(offsets)
        return later(done=offsets.index(13)) if 13 in offsets else None

    listener = ogive.listener(topic=TOPIC, group=GROUP, start="earliest", batch=8)(work)
    async with scene.consumer(listener, pull_batch_size=32):
        await until(lambda: scene.progress() == 32, "the end of the queue")
        await rounds(scene)
    commitlog = {
        message.commitlog_offset: message.queue_offset for message in scene.broker.stored[TOPIC, 0]
    }
    sent_back = Counter(
        commitlog[int(request.ext_fields["offset"])] for request in scene.broker.of(SEND_BACK)
    )
    assert sent_back == {13: 1, 14: 1, 15: 1}
    assert sorted(offset for batch in batches for offset in batch) == list(range(32))
    assert RETRY not in {r.ext_fields.get("b") for r in scene.broker.of(SEND)}
