"""T30 and T32: many messages and many queues (a million, 40,000) are all there after a clean stop
and after a kill. And T7's full size: all that is made of a gibibyte of log is made again from it.

How long a start takes stands in the figures, and in docs/performance.md, from ``python -m
bench.store_scale``.
"""

import hashlib
import json
import random
from pathlib import Path

import pytest

from bench.store_scale import in_a_process, messages
from ogive.store import MessageStore, StoreConfig
from tests.figures import figures
from tests.stores import read_queue

pytestmark = [pytest.mark.rel, pytest.mark.computes(15)]


def keys_of(store: MessageStore, count: int, topics: int, checked: int) -> int:
    """How many of *checked* keys, chosen at random, lead to their message."""
    rng = random.Random(1)
    right = 0
    for number in rng.sample(range(count), checked):
        found = [
            r
            for r in store.find_key(f"Topic{number % topics}", f"key-{number}", 0, 2**62)
            if isinstance(r, bytes)
        ]
        right += len(found) >= 1
    return right


@pytest.mark.computes(50)
@pytest.mark.parametrize(
    ("test", "count", "topics", "body"),
    [
        pytest.param("T30", 50_000, 10, 256, marks=pytest.mark.quick),
        pytest.param("T32", 2_000, 500, 256, marks=pytest.mark.quick),
        pytest.param("T30", 1_000_000, 10, 256, marks=pytest.mark.nightly),
        pytest.param("T32", 40_000, 10_000, 256, marks=pytest.mark.nightly),
    ],
)
def test_everything_is_there_after_a_clean_stop_and_after_a_kill(
    tmp_path: Path, test: str, count: int, topics: int, body: int
) -> None:
    more = count // 100
    with figures(
        test,
        nightly=count in (1_000_000, 40_000),
        attempts=count + more,
        acknowledged=count + more,
        faults=1,
    ) as line:
        in_a_process("fill", tmp_path, count, topics, body)
        for how, written in (("stop", count), ("kill", count + more)):
            measured = json.loads(in_a_process("measure", tmp_path))
            assert (measured["messages"], measured["damaged"], measured["queues"]) == (
                written,
                0,
                4 * topics,
            )
            line |= {
                f"open_after_{how}_s": measured["start (s)"],
                f"resident_after_{how}_mib": measured["peak resident (MiB)"],
            }
            if written == count:
                in_a_process("kill", tmp_path, more, topics, body)
        store = MessageStore.open(StoreConfig(root=tmp_path))
        try:
            expected: dict[tuple[str, int], int] = {}
            for new in [*messages(count, topics, 1), *messages(more, topics, 1)]:
                expected[new.topic, new.queue_id] = expected.get((new.topic, new.queue_id), 0) + 1
            received = 0
            for (topic, queue_id), wanted in expected.items():
                records = read_queue(store, topic, queue_id)
                assert [record.queue_offset for record in records] == list(range(wanted))
                received += len(records)
            assert keys_of(store, count, topics, 500) == 500
            line["received"], line["lost"] = received, count + more - received
        finally:
            store.close()


def digests(root: Path) -> dict[Path, str]:
    """Of what is made from the log."""
    found: dict[Path, str] = {}
    for path in root.rglob("*"):
        if path.is_file() and "commitlog" not in path.parts and path.name != "apache-broker.conf":
            with path.open("rb") as file:
                found[path] = hashlib.file_digest(file, "blake2b").hexdigest()
    return found


@pytest.mark.nightly
def test_a_gibibyte_of_log_makes_its_files_again(tmp_path: Path) -> None:
    """Every queue, index and checkpoint is gone: a start makes each byte of them again."""
    count = 260_000
    with figures("T7 gibibyte", nightly=True, attempts=count, acknowledged=count) as line:
        in_a_process("fill", tmp_path, count, 10, 4096)
        assert sum(path.stat().st_size for path in (tmp_path / "commitlog").iterdir()) >= 1 << 30
        before = digests(tmp_path)
        assert {path.parts[len(tmp_path.parts)] for path in before} >= {
            "consumequeue",
            "index",
            "checkpoint",
            "queues.json",
        }
        for path in before:
            path.unlink()
        measured = json.loads(in_a_process("measure", tmp_path))
        assert (measured["messages"], measured["damaged"], measured["queues"]) == (count, 0, 40)
        line.update(faults=len(before), received=count, lost=0, rebuilt_s=measured["start (s)"])
        assert digests(tmp_path) == before
