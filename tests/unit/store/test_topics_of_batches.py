"""A store that Apache's broker left with a topic of batches (queue.type=BatchCQ), or with what a deleted one left in the log."""

import json
from pathlib import Path

import pytest

from ogive.errors import StoreUnusable
from ogive.store.verify import repair, verify
from ogive.wire.message import StoredMessage, encode_batch, encode_stored
from tests.stores import HOST, Driver, message, small

PROPERTIES = b"UNIQ_KEY\x01OUTER\x02CLUSTER\x01DefaultCluster\x02INNER_NUM\x013\x02INNER_BASE\x010\x02"


def record(topic: str, offset: int, at: int, *, body: bytes = b"plain", flags: int = 0, properties: bytes = b"UNIQ_KEY\x01A\x02") -> bytes:
    """As it stands at *at* in Apache's log."""
    stored = StoredMessage(
        topic, body, properties, queue_offset=offset, commitlog_offset=at, sys_flag=flags, born_host=HOST, store_host=HOST,
        born_timestamp_ms=1_700_000_000_000, store_timestamp_ms=1_700_000_000_000,
    )  # fmt: skip
    return encode_stored(stored)


def apaches_store(root: Path, *topics: str, name: str = "topics.json") -> Path:
    """Batches: three messages in one record, then one that was sent by itself. Orders: two messages, one before and one behind."""
    batch = encode_batch([(0, b"%d" % n, b"") for n in range(3)])
    log = record("Orders", 0, 0)
    log += record("Batches", 0, len(log), body=batch, flags=0xC0, properties=PROPERTIES)
    log += record("Orders", 1, len(log))
    if topics:
        log += record("Batches", 3, len(log))
    write(root / "commitlog" / f"{0:020d}", log.ljust(16 * 1024, b"\0"))
    write(root / "batchconsumequeue" / "Batches" / "0" / f"{0:020d}", bytes(46 * 20))
    table = {topic: {"topicName": topic, "attributes": {"queue.type": "BatchCQ"}} for topic in topics}
    table["Orders"] = {"topicName": "Orders", "attributes": {}}
    write(root / "config" / name, json.dumps({"topicConfigTable": table}).encode())
    return root


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.mark.parametrize("name", ["topics.json", "topics.json.bak"])
def test_a_store_with_a_topic_of_batches_is_refused_and_stays_as_it_is(tmp_path: Path, name: str) -> None:
    """Apache's broker would not start where it found the topic's queue in consumequeue/."""
    root = apaches_store(tmp_path, "Batches", name=name)
    before = files(root)
    for opening in (lambda: Driver(small(root)), lambda: repair(root)):
        with pytest.raises(StoreUnusable, match=r"only Apache's broker serves: Batches\. .*mqadmin deleteTopic"):
            opening()
        assert files(root) == before
        assert not any((root / "consumequeue").glob("*"))


def test_many_topics_of_batches_are_counted(tmp_path: Path) -> None:
    root = apaches_store(tmp_path, *(f"B{n}" for n in range(7)))
    with pytest.raises(StoreUnusable, match="serves: B0, B1, B2, B3, B4 and 2 more"):
        Driver(small(root))


def test_the_check_of_a_store_names_its_topics_of_batches(tmp_path: Path) -> None:
    report = verify(apaches_store(tmp_path, "Batches"))
    assert report.records == 4
    told = [problem for problem in report.problems if "Batches" in problem]
    assert told == ["Batches is a topic of batches (queue.type=BatchCQ), which only Apache's broker serves: no broker of ours starts"]


def test_what_a_deleted_topic_of_batches_left_in_the_log_is_passed_over(tmp_path: Path) -> None:
    """An entry for it would be one message with the body of three. What is around it is served, and the name can be used again."""
    root = apaches_store(tmp_path)
    driver = Driver(small(root))
    assert driver.bodies("Orders") == [b"plain", b"plain"]
    assert driver.store.max_offset("Batches", 0) == 0
    driver.put(message("new", "Batches"))
    assert [(r.queue_offset, r.body) for r in driver.read_all("Batches")] == [(0, b"new")]
    driver.close()
    assert verify(root).problems == []
    before, after = repair(root)
    assert (before.problems, after.problems) == ([], [])
    again = Driver(small(root))
    assert (again.bodies("Orders"), again.bodies("Batches")) == ([b"plain", b"plain"], [b"new"])
    again.close()


@pytest.mark.parametrize(
    "text",
    [
        '{"topicConfigTable":{"B":{"attributes":{"queue.type":"SimpleCQ"}}}}',
        '{"topicConfigTable":{"B":{"attributes":["queue.type"]},"C":7}}',
        '{"topicConfigTable":[]}',
        "[]",
        "no JSON",
        "",
    ],
)
def test_other_tables_of_topics_refuse_nothing(tmp_path: Path, text: str) -> None:
    write(tmp_path / "config" / "topics.json", text.encode())
    Driver(small(tmp_path)).close()
