"""A script of mixed work for a recorded store, and the judgement of what a start finds after a
power cut.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ogive.store import JsonTable, MessageStore, NewMessage, PutResult, StoreConfig
from tests.chaos.recorder import MemoryFs, RecorderFs
from tests.stores import HOST, Clock, InlineWriter, read_queue, run_now, small

ROOT = Path("/store")
TOPICS = ("A", "B", "SCHEDULE_TOPIC_XXXX")


@dataclass(frozen=True, slots=True)
class Stored:
    """Acknowledged: this body stands at this offset."""

    topic: str
    queue_id: int
    queue_offset: int
    commitlog_offset: int
    end: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Saved:
    """Acknowledged: the table held at least this version."""

    version: int


@dataclass(slots=True)
class History:
    """What was tried. Bodies are unique."""

    attempts: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    versions: int = 0
    operations: int = 0


def config(flush: Any = "sync") -> StoreConfig:
    return small(ROOT, flush=flush, async_window_bytes=6 * 1024, async_window_s=3600.0)


def run_script(
    fs: RecorderFs, flush: Any, seed: int, steps: int, store_type: type[MessageStore] = MessageStore
) -> History:
    """Puts, batches, table saves, deletes of nothing and clean restarts, all in one order of
    events.
    """
    rng = random.Random(seed)
    history = History()
    clock = Clock()
    store = _started(store_type, fs, flush, clock)
    table = JsonTable(fs, ROOT / "config" / "consumerOffset.json")
    for _ in range(steps):
        history.operations += 1
        clock.now_ms += rng.randint(0, 5)
        choice = rng.random()
        if choice < 0.90:
            batch = [
                _message(rng, history)
                for _ in range(1 if rng.random() < 0.8 else rng.randint(2, 6))
            ]
            store.put(batch, partial(_acknowledge, fs, batch))
            if rng.random() < 0.5:
                store.submit()
        elif choice < 0.99:
            history.versions += 1
            table.save({"version": history.versions, "filler": "x" * rng.randint(0, 2000)})
            fs.ack(Saved(history.versions))
        else:
            store.close()
            store = _started(store_type, fs, flush, clock)
    store.submit()
    return history


def _started(
    store_type: type[MessageStore], fs: MemoryFs, flush: Any, clock: Clock
) -> MessageStore:
    store = store_type.open(config(flush), fs=fs, clock_ms=clock)
    store.start(run_now, writer=InlineWriter)
    return store


def _message(rng: random.Random, history: History) -> NewMessage:
    topic, queue_id = rng.choice(TOPICS), rng.randint(0, 2)
    body = b"%d:" % len(history.attempts) + rng.randbytes(rng.choice((1, 30, 200, 1500)))
    history.attempts[body] = (topic, queue_id)
    properties = b"TAGS\x01TagA\x02DELAY\x013\x02"
    return NewMessage(topic, queue_id, body, properties, born_host=HOST, store_host=HOST)


def _acknowledge(fs: RecorderFs, batch: list[NewMessage], answer: Any) -> None:
    results: list[PutResult] = answer
    for message, result in zip(batch, results, strict=True):
        end = result.commitlog_offset + result.size
        fs.ack(
            Stored(
                message.topic,
                message.queue_id,
                result.queue_offset,
                result.commitlog_offset,
                end,
                message.body,
            )
        )


@dataclass(slots=True)
class Verdict:
    lost: list[Stored] = field(default_factory=list)
    phantom: list[bytes] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    holes: list[Stored] = field(default_factory=list)

    @property
    def alarms(self) -> int:
        return len(self.lost) + len(self.phantom) + len(self.damaged) + len(self.holes)


def judge(image: MemoryFs, acked: Iterable[Any], history: History, flush: Any = "sync") -> Verdict:
    """Start a store on *image* and compare everything it serves with what was acknowledged and
    tried.
    """
    verdict = Verdict()
    stored = [ack for ack in acked if isinstance(ack, Stored)]
    store = MessageStore.open(config(flush), fs=image, clock_ms=Clock())
    try:
        found: dict[tuple[str, int, int], tuple[bytes, int]] = {}
        for topic, queue_id in list(store.queues):
            for record in read_queue(store, topic, queue_id):
                if history.attempts.get(record.body) != (topic, queue_id):
                    verdict.phantom.append(record.body)
                if (record.topic, record.queue_id) != (topic, queue_id):
                    verdict.damaged.append(
                        f"{topic}@{queue_id} served {record.topic}@{record.queue_id}"
                    )
                found[topic, queue_id, record.queue_offset] = record.body, record.commitlog_offset
        end = store.stats().commitlog_end
        missing = [
            ack
            for ack in stored
            if found.get((ack.topic, ack.queue_id, ack.queue_offset), (b"", 0))[0] != ack.body
        ]
        if flush == "sync":
            verdict.lost = missing
        else:
            newest = max((ack.end for ack in stored), default=0)
            limit = config(flush).async_window_bytes + 2 * config(flush).max_group_bytes
            verdict.lost = [ack for ack in missing if ack.commitlog_offset < newest - limit]
            last: dict[tuple[str, int], int] = {}
            for (topic, queue_id, _), (_, commitlog_offset) in found.items():
                last[topic, queue_id] = max(commitlog_offset, last.get((topic, queue_id), 0))
            verdict.holes = [
                ack
                for ack in missing
                if ack.commitlog_offset < last.get((ack.topic, ack.queue_id), 0)
            ]
        if end < max((ack.end for ack in stored), default=0) and flush == "sync":
            verdict.damaged.append("the log ends before an acknowledged record")
    finally:
        store.close()
    return verdict


def judge_table(image: MemoryFs, acked: Iterable[Any], history: History) -> list[str]:
    """What is wrong with the table after a power cut: older than acknowledged, or something that
    was never saved.
    """
    versions = [ack.version for ack in acked if isinstance(ack, Saved)]
    value = JsonTable(image, ROOT / "config" / "consumerOffset.json").load()
    if value is None:
        return ["the table is gone"] if versions else []
    version = value.get("version", -1)
    if not max(versions, default=0) <= version <= history.versions:
        return [f"version {version}, acknowledged {max(versions, default=0)} of {history.versions}"]
    return []
