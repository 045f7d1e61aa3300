"""A store with topics of batches loses nothing either: power cuts at any write, and a broker that
is killed again and again.
"""

import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest

from ogive.store import JsonTable, MessageStore, NewMessage, PutResult, StoreConfig
from ogive.wire.message import WRAPPED, encode_batch, unwrap
from tests.chaos.recorder import MemoryFs, RecorderFs, images
from tests.rel.test_broker_kill import MAX_BATCH, killed_again_and_again
from tests.stores import HOST, Clock, InlineWriter, read_queue, run_now, small

pytestmark = [pytest.mark.rel]

ROOT = Path("/store")
BATCHES, PLAIN = "Batches", "Plain"
Place = tuple[str, int]
"""topic, offset"""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def config(flush: Any) -> StoreConfig:
    return small(ROOT, flush=flush, async_window_bytes=6 * 1024, async_window_s=3600.0)


def recorded(flush: Any, seed: int, steps: int) -> tuple[RecorderFs, dict[Place, bytes]]:
    """Batches and single messages for both topics, removals and restarts; every body by its
    place.
    """
    fs, rng, clock = RecorderFs(), random.Random(seed), Clock()
    JsonTable(fs, ROOT / "config" / "topics.json").save(
        {
            "topicConfigTable": {
                BATCHES: {"topicName": BATCHES, "attributes": {"queue.type": "BatchCQ"}},
                PLAIN: {"topicName": PLAIN},
            }
        }
    )
    bodies: dict[Place, bytes] = {}
    store = started(fs, flush, clock)
    for step in range(steps):
        clock.now_ms += rng.randint(0, 5)
        choice = rng.random()
        if choice < 0.94:
            topic = rng.choice((BATCHES, BATCHES, PLAIN))
            run = [
                b"%d.%d:" % (step, n) + rng.randbytes(rng.choice((1, 30, 200)))
                for n in range(rng.choice((1, 1, 3, 9)))
            ]
            put(store, fs, topic, run, bodies)
            if rng.random() < 0.5:
                store.submit()
        elif choice < 0.98 and len(store.retention.full_segments) > 2:
            for _ in store.retention.expire(store.retention.full_segments[1]):
                pass
        else:
            store.close()
            store = started(fs, flush, clock)
    store.submit()
    return fs, bodies


def started(fs: MemoryFs, flush: Any, clock: Clock) -> MessageStore:
    store = MessageStore.open(config(flush), fs=fs, clock_ms=clock)
    store.start(run_now, writer=InlineWriter)
    return store


def put(
    store: MessageStore, fs: RecorderFs, topic: str, run: list[bytes], bodies: dict[Place, bytes]
) -> None:
    """*run* as one record where the topic keeps batches, else as single ones; acknowledged with the
    places of all.
    """

    def done(answer: Any) -> None:
        results: list[PutResult] = answer
        offsets = range(results[0].queue_offset, results[0].queue_offset + len(run))
        bodies.update(zip([(topic, offset) for offset in offsets], run, strict=True))
        fs.ack((topic, offsets, results[-1].commitlog_offset + results[-1].size))

    if topic == BATCHES and len(run) > 1:
        whole = encode_batch([(0, body, b"") for body in run])
        properties = b"UNIQ_KEY\x01B\x02INNER_NUM\x01%d\x02" % len(run)
        store.put(
            [NewMessage(topic, 0, whole, properties, WRAPPED, born_host=HOST, store_host=HOST)],
            done,
        )
    else:
        store.put(
            [NewMessage(topic, 0, body, b"", born_host=HOST, store_host=HOST) for body in run], done
        )


def judge(image: MemoryFs, acked: list[Any], bodies: dict[Place, bytes], flush: Any) -> list[str]:
    """What is wrong with what a start finds."""
    wrong: list[str] = []
    store = MessageStore.open(config(flush), fs=image, clock_ms=Clock())
    try:
        found: dict[Place, bytes] = {}
        for topic, queue_id in list(store.queues):
            low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            for record in read_queue(store, topic, queue_id):
                for each in unwrap(record) if record.sys_flag & WRAPPED == WRAPPED else [record]:
                    found[topic, each.queue_offset] = each.body
                    if not low <= each.queue_offset < high:
                        wrong.append(f"{topic} {each.queue_offset} is outside {low} to {high}")
        start, end = store.stats().commitlog_start, store.stats().commitlog_end
        wrong += [
            f"{place} is foreign"
            for place, body in found.items()
            if flush == "sync" and bodies.get(place) != body
        ]
        for topic, offsets, stands_until in acked:
            lost = [
                offset
                for offset in offsets
                if (topic, offset) not in found and offset >= store.min_offset(topic, 0)
            ]
            if lost and stands_until > start and (flush == "sync" or stands_until <= end):
                wrong.append(
                    f"{topic} {lost} of {offsets}, in the log until {stands_until} of {start} to "
                    f"{end}"
                )
    finally:
        store.close()
    return wrong


@pytest.mark.quick
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_power_cut_loses_nothing_that_was_acknowledged(flush: Any) -> None:
    for seed in range(1, 4):
        fs, bodies = recorded(flush, seed, 200)
        for image, acked in images(fs, 150, random.Random(seed)):
            assert judge(image, acked, bodies, flush) == [], (seed, len(acked))


@pytest.mark.quick
def test_power_cut_during_recovery_loses_nothing() -> None:
    rng = random.Random(3)
    fs, bodies = recorded("sync", 7, 200)
    for image, acked in images(fs, 20, rng):
        recovering = RecorderFs(image)
        assert judge(recovering, acked, bodies, "sync") == []
        for second, _ in images(recovering, 5, rng):
            assert judge(second, acked, bodies, "sync") == []


def test_the_judgement_can_fail() -> None:
    fs, bodies = recorded("sync", 1, 60)
    image, acked = next(
        (image, acked) for image, acked in images(fs, 20, random.Random(1)) if len(acked) > 30
    )
    table = json.loads(image.names[ROOT / "config" / "topics.json"].data)
    table["topicConfigTable"][BATCHES]["attributes"] = {}
    image.names[ROOT / "config" / "topics.json"].data[:] = json.dumps(table).encode()
    assert judge(image, acked, bodies, "sync") != []


@pytest.mark.quick
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_kill_loses_nothing_acknowledged(tmp_path: Path, flush: str) -> None:
    """As T1, with whole batches."""
    await killed_again_and_again(
        tmp_path, flush, kills=4, each_life=60, max_batch=MAX_BATCH, whole_batches=True
    )
