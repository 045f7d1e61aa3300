"""The offset of a record that was damaged on the disk, after its message was acknowledged and seen:
nobody else gets it.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ogive.store import checkpoint as checkpoints
from ogive.store import recovery
from ogive.store.verify import verify
from ogive.wire.codes import SysFlag
from ogive.wire.message import decode_stored, encode_batch
from tests.stores import Clock, Driver, crash, message, small

WHOLE = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP


def topics(root: Path, **attributes: dict[str, str]) -> None:
    (root / "config").mkdir(parents=True)
    table = {
        topic: {"topicName": topic, "attributes": given} for topic, given in attributes.items()
    }
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))


def spoil(root: Path, held: bytes, *, at: int = 0, to: bytes | None = None) -> None:
    """Change the first byte of the only record with *held*, or what stands *at* bytes before it."""
    [(path, where)] = [
        (path, data.find(held))
        for path in (root / "commitlog").iterdir()
        if held in (data := path.read_bytes())
    ]
    changed = bytearray(path.read_bytes())
    new = to if to is not None else bytes([changed[where] ^ 1])
    changed[where - at : where - at + len(new)] = new
    path.write_bytes(changed)


def after(root: Path, puts: Callable[[Driver], object], *spoiled: bytes) -> Driver:
    """The store that *puts* left when it was killed, after what happened to its disk."""
    driver = Driver(small(root))
    puts(driver)
    crash(driver)
    for held in spoiled:
        spoil(root, held)
    return Driver(small(root))


@pytest.mark.parametrize("followed", [True, False])
def test_the_last_of_a_queue_keeps_its_offset(tmp_path: Path, followed: bool) -> None:
    def puts(driver: Driver) -> None:
        driver.put(message(b"first"), message(b"second"))
        if followed:
            driver.put(message(b"of another", queue_id=1))

    topics(tmp_path, T={})
    with after(tmp_path, puts, b"second") as driver:
        assert driver.store.max_offset("T", 0) == 2
        assert [result.queue_offset for result in driver.put(message(b"third"))] == [2]
        assert driver.bodies() == [b"first", b"third"]
    report = verify(tmp_path)
    # one at the end is written over
    assert len(report.problems) == followed


def test_several_in_a_row_keep_theirs(tmp_path: Path) -> None:
    with after(
        tmp_path,
        lambda driver: driver.put(*(message(b"number %d" % n) for n in range(5))),
        b"number 3",
        b"number 4",
    ) as driver:
        assert driver.store.max_offset("T", 0) == 5
        assert driver.bodies() == [b"number 0", b"number 1", b"number 2"]


@pytest.mark.parametrize("known", [True, False])
def test_the_first_of_a_queue_keeps_its_offset_where_there_is_such_a_topic(
    tmp_path: Path, known: bool
) -> None:
    topics(tmp_path, **({"T": {}} if known else {}))
    with after(tmp_path, lambda driver: driver.put(message(b"first")), b"first") as driver:
        assert driver.store.max_offset("T", 0) == int(known)
        assert (("T", 0) in driver.store.queues) == known
        assert [result.queue_offset for result in driver.put(message(b"second"))] == [int(known)]


def test_a_batch_keeps_the_offsets_of_its_messages(tmp_path: Path) -> None:
    topics(tmp_path, T={"queue.type": "BatchCQ"})

    def puts(driver: Driver) -> None:
        driver.store.topics.make("T", batches=True)
        for start in (0, 3):
            held = encode_batch(
                [(0, b"number %d" % number, b"") for number in range(start, start + 3)]
            )
            driver.put(message(held, properties=b"INNER_NUM\x013\x02", sys_flag=WHOLE))

    with after(tmp_path, puts, b"number 4") as driver:
        assert driver.store.max_offset("T", 0) == 6


def test_half_messages_take_no_offset(tmp_path: Path) -> None:
    def puts(driver: Driver) -> None:
        driver.put(message(b"first"))
        driver.put(message(b"half", sys_flag=SysFlag.TRANSACTION_PREPARED))

    with after(tmp_path, puts, b"half") as driver:
        assert driver.store.max_offset("T", 0) == 1


def test_an_id_that_no_queue_can_have_is_not_believed(tmp_path: Path) -> None:
    """The first of its queue, whose sign was flipped."""
    topics(tmp_path, T={})
    driver = Driver(small(tmp_path))
    driver.put(message(b"first"), message(b"other", queue_id=1))
    crash(driver)
    spoil(tmp_path, b"first", at=88 - 12, to=b"\x80")
    with Driver(small(tmp_path)) as driver:
        assert list(driver.store.queues) == [("T", 1)]


@pytest.mark.parametrize(
    ("at", "to"),
    [(88 - 20, (5).to_bytes(8)), (88 - 12, (2).to_bytes(4)), (88 - 20, (0).to_bytes(8))],
    ids=["far", "queue", "taken"],
)
def test_a_place_that_is_not_the_next_of_its_queue_is_not_believed(
    tmp_path: Path, at: int, to: bytes
) -> None:
    driver = Driver(small(tmp_path))
    driver.put(message(b"first"), message(b"second"))
    crash(driver)
    spoil(tmp_path, b"second", at=at, to=to)
    with Driver(small(tmp_path)) as driver:
        assert driver.store.max_offset("T", 0) == 1
        assert list(driver.store.queues) == [("T", 0)]


def placed(root: Path, held: bytes, at: int, bit: int) -> None:
    """Flip a bit in the fields before the body *held*."""
    [(path, where)] = [
        (path, data.find(held))
        for path in (root / "commitlog").iterdir()
        if held in (data := path.read_bytes())
    ]
    changed = bytearray(path.read_bytes())
    changed[where - at] ^= bit
    path.write_bytes(changed)


def test_a_record_that_claims_a_place_in_another_queue_takes_nothing_from_it(
    tmp_path: Path,
) -> None:
    """Queues of one length, as sends in turn make them: the damaged record of queue 0 says that it
    is the next of queue 1.
    """
    topics(tmp_path, T={})
    with Driver(small(tmp_path)) as driver:
        for number in range(50):
            driver.put(
                *(message(b"%d of %d" % (number, queue), queue_id=queue) for queue in range(3))
            )
    driver = Driver(small(tmp_path))
    driver.put(message(b"spoiled", queue_id=0), message(b"behind it", queue_id=1))
    crash(driver)
    placed(tmp_path, b"spoiled", 88 - 15, 1)
    with Driver(small(tmp_path)) as driver:
        for queue, more in ((0, 0), (1, 1), (2, 0)):
            assert (driver.store.min_offset("T", queue), driver.store.max_offset("T", queue)) == (
                0,
                50 + more,
            )
            assert len(driver.bodies(queue_id=queue)) == 50 + more


def test_a_batch_that_claims_more_messages_than_it_has_takes_no_others(tmp_path: Path) -> None:
    topics(tmp_path, T={"queue.type": "BatchCQ"})

    def puts(driver: Driver) -> None:
        driver.store.topics.make("T", batches=True)
        for start in range(0, 15, 3):
            held = encode_batch(
                [(0, b"number %d" % number, b"") for number in range(start, start + 3)]
            )
            driver.put(
                message(held, properties=b"INNER_NUM\x013\x02AT\x01%d\x02" % start, sys_flag=WHOLE)
            )

    driver = Driver(small(tmp_path))
    puts(driver)
    crash(driver)
    spoil(tmp_path, b"3\x02AT\x019", to=b"7")
    with Driver(small(tmp_path)) as driver:
        assert (driver.store.min_offset("T", 0), driver.store.max_offset("T", 0)) == (0, 15)
        assert len(driver.read_all()) == 4


@pytest.mark.parametrize("bit", [0x20, 0x01], ids=["8 KiB more", "256 bytes more"])
def test_a_damaged_length_costs_no_other_record(tmp_path: Path, bit: int) -> None:
    """Records of one size, a power of two: where the length is damaged another record begins,
    too.
    """
    topics(tmp_path, T={})
    sizes = {"segment_bytes": 1024 * 1024, "checkpoint_bytes": 2**30, "flush_bytes": 1024 * 1024}
    driver = Driver(small(tmp_path, **sizes))
    short = driver.put(message(b""))[0].size
    for number in range(60):
        driver.put(message(b"%04d" % number + bytes(256 - short - 4)))
    crash(driver)
    placed(tmp_path, b"0005" + bytes(100), 88 - 2, bit)
    with Driver(small(tmp_path, **sizes)) as driver:
        assert [body[:4] for body in driver.bodies()] == [
            b"",
            *(b"%04d" % number for number in range(60) if number != 5),
        ]
        assert driver.store.stats().damaged == 1


def test_a_start_that_is_killed_does_not_forget_the_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the end of the log's being cleared and the checkpoint."""
    topics(tmp_path, T={})
    driver = Driver(small(tmp_path))
    driver.put(message(b"first"), message(b"second"))
    crash(driver)
    spoil(tmp_path, b"second")

    class KilledError(BaseException):
        pass

    def killed_after(step: Callable[..., object], *given: object) -> None:
        step(*given)
        raise KilledError

    for module, name in ((recovery, "zero_tail"), (checkpoints, "save")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, partial(killed_after, getattr(module, name)))
            with pytest.raises(KilledError):
                Driver(small(tmp_path))
    with Driver(small(tmp_path)) as driver:
        assert [result.queue_offset for result in driver.put(message(b"third"))] == [2]


@pytest.mark.parametrize("which", [b"number 0", b"number 3", b"number 5"])
@pytest.mark.parametrize("bit", [40, 44, 48, 55, 62, 63])
def test_a_time_that_no_checksum_protects_moves_neither_the_clock_nor_a_start(
    tmp_path: Path, bit: int, which: bytes
) -> None:
    """One bit of storeTimestamp, in a log as Apache's broker writes it by default: the year is
    1988, 2582, beyond 9999, or before 1970.
    """
    config = small(tmp_path, record_crc=False)
    driver = Driver(config)
    for number in range(6):
        driver.put(message(b"number %d" % number))
    stored_ms = driver.read_all()[0].store_timestamp_ms
    crash(driver)
    raised = (stored_ms ^ 1 << bit).to_bytes(8)
    spoil(tmp_path, which, at=32, to=raised)
    for again in range(2):
        with Driver(config) as driver:
            driver.put(message(b"number %d" % (6 + again)))
            records = driver.read_all()
            assert [record.body for record in records] == [
                b"number %d" % number for number in range(7 + again)
            ]
            assert records[-1].store_timestamp_ms == stored_ms
            found = [
                decode_stored(record).body
                for record in driver.store.find_key("T", "ABC", 0, 2 * stored_ms)
                if isinstance(record, bytes)
            ]
            assert {*found, which} == {record.body for record in records}


@pytest.mark.parametrize("record_crc", [True, False])
def test_a_delayed_message_of_a_clock_that_is_ahead_is_not_due_early(
    tmp_path: Path, record_crc: bool
) -> None:
    """Its queue entry is made again, at a machine whose clock is right."""
    config, now_ms, hour_ms = small(tmp_path, record_crc=record_crc), 1_700_000_000_000, 3_600_000
    clock = Clock(now_ms + hour_ms)
    driver = Driver(config, clock=clock)
    driver.put(message(b"before"))
    clock.now_ms += hour_ms
    # level 14: ten minutes
    waits = b"UNIQ_KEY\x01K\x02DELAY\x0114\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
    driver.put(message(b"delayed", "SCHEDULE_TOPIC_XXXX", 13, properties=waits))
    crash(driver)
    with Driver(config, clock=Clock(now_ms)) as driver:
        [entry] = driver.store.entries("SCHEDULE_TOPIC_XXXX", 13, 0, 1)
    assert entry.tags_code == now_ms + 2 * hour_ms + 600_000
