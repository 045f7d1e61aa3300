"""Disks that fail or fill, syncs that take long, and two processes that want one store."""

import asyncio
import errno
import json
import os
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ogive.broker import Broker, BrokerConfig
from ogive.broker.startup import Machine
from ogive.errors import ResponseCode, StoreError, StoreFailed, StoreFull, StoreLocked
from ogive.store import GetStatus, MessageStore
from ogive.wire.codes import RequestCode
from tests.chaos.faults import FailFrom, FaultyFs, Gate
from tests.figures import figures
from tests.raw_client import RawClient, messages
from tests.stores import Driver, message, small

pytestmark = [
    pytest.mark.rel,
    pytest.mark.result("T9, T10 or T11"),
    pytest.mark.computes(3),
    pytest.mark.quick,
]


@pytest.mark.kills(
    "durable mark moves after a failed sync",
    "retry of failed sync acknowledges",
    param="quick-fdatasync-commitlog-1",
)
@pytest.mark.parametrize("times", [1, 4, 10**9])
@pytest.mark.parametrize(
    ("call", "part"),
    [
        ("fdatasync", "commitlog"),
        ("pwrite", "commitlog"),
        ("zero", "commitlog"),
        ("create", "commitlog"),
        ("fsync_dir", "commitlog"),
        ("rename", "queues"),
    ],
)
@pytest.mark.parametrize(
    "nths",
    [
        pytest.param([3], id="quick"),
        pytest.param(range(12), marks=pytest.mark.nightly, id="nightly"),
    ],
)
def test_after_the_first_io_error_nothing_is_acknowledged(
    tmp_path: Path, call: str, part: str, times: int, nths: Sequence[int]
) -> None:
    """Whatever fails, and however often: everything waiting and later gets the error; a restart
    finds what was acknowledged.
    """
    with figures("T9", nightly=len(nths) > 1, faults=0, acknowledged=0, received=0, lost=0) as line:
        for nth in nths:
            acked, bodies = acknowledged_and_found(
                tmp_path / str(nth), FailFrom(call, part, nth, times)
            )
            line["faults"] += 1
            line["acknowledged"] += len(acked)
            line["received"] += len(bodies)
            line["lost"] += len(set(acked) - set(bodies))
            # and perhaps one whose outcome nobody was told
            assert bodies[: len(acked)] == acked


def acknowledged_and_found(root: Path, fault: FailFrom) -> tuple[list[bytes], list[bytes]]:
    """What a store acknowledged before *fault*, after which it takes nothing, and what the next one
    finds.
    """
    failures: list[StoreError] = []
    acked: list[bytes] = []
    driver = Driver(small(root), FaultyFs(fault))
    driver.store.on_failure = failures.append
    fault.armed = True
    refused = 0
    while refused < 100:
        assert len(acked) < 1_000, "nothing ever failed"
        i = len(acked) + refused
        body = b"%d " % i + random.Random(i).randbytes(500)
        failed_before = driver.store.failed is not None
        try:
            driver.put(message(body))
        except StoreFailed:
            refused += 1
            assert driver.store.failed is not None
        else:
            assert not failed_before
            acked.append(body)
    assert len(failures) == 1
    driver.close()
    with Driver(small(root)) as again:
        return acked, again.bodies()


def test_error_reaches_every_waiting_put(tmp_path: Path) -> None:
    gate = Gate()
    fs = FaultyFs(gate)
    driver = Driver(small(tmp_path), fs)
    driver.put(message("first"))
    gate.open.clear()
    on_its_way = driver.post(message("on its way"))
    assert gate.reached.wait(60)
    answers: list[Any] = [driver.post(message(f"waiting {i}")) for i in range(20)]
    fail = FailFrom("fdatasync", "commitlog", nth=0, times=1)
    fail.armed = True
    fs.fault = fail
    gate.open.set()
    for answer in answers:
        driver.wait(answer)
    assert all(isinstance(answer[0], StoreFailed) for answer in answers)
    assert not isinstance(on_its_way[0], StoreError)
    assert driver.bodies() == [b"first", b"on its way"]
    driver.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_bug_in_the_writer_answers_every_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of leaving them waiting for a thread that is gone."""
    driver = Driver(small(tmp_path))
    monkeypatch.setattr("ogive.store.writer.join_extents", lambda groups: 1 // 0)
    with pytest.raises(StoreFailed, match="division"):
        driver.put(message("x"))
    with pytest.raises(StoreFailed):
        driver.put(message("y"))
    driver.close()


def test_full_disk_refuses_and_then_goes_on(tmp_path: Path) -> None:
    """Sends are refused with a store-full error, reads go on, nothing is torn, offsets have no gap
    afterwards.
    """
    now = [0.0]
    fault = FailFrom("zero", "commitlog", nth=0, times=10**9, code=errno.ENOSPC)
    driver = Driver(small(tmp_path, segment_bytes=4096, ahead_bytes=0), FaultyFs(fault))
    driver.store._full._monotonic = lambda: now[0]
    acked: list[bytes] = []
    for round_ in range(5):
        for i in range(5):
            body = b"%d/%d " % (round_, i) + bytes(400)
            driver.put(message(body))
            acked.append(body)
        fault.armed, fault.failures = True, 0
        acked += fill_until_refused(driver, b"%d full " % round_ + bytes(400))
        assert driver.store.failed is None
        assert driver.bodies() == acked
        # at once, without asking the disk
        with pytest.raises(StoreFull):
            driver.put(message("too early"))
        fault.armed = False
        now[0] += 2.0
    result = driver.put(message("last"))[0]
    assert result.queue_offset == len(acked)
    driver.close()
    with Driver(small(tmp_path)) as again:
        assert again.bodies() == [*acked, b"last"]


def fill_until_refused(driver: Driver, body: bytes) -> list[bytes]:
    """What the store took before it said that the disk is full."""
    taken: list[bytes] = []
    try:
        while len(taken) < 30:
            driver.put(message(body))
            taken.append(body)
    except StoreFull:
        return taken
    raise AssertionError("the store was never full")


def test_full_disk_for_consume_queues_refuses_and_then_goes_on(tmp_path: Path) -> None:
    """Derived files that cannot be written stop nothing for good: their entries wait in memory."""
    now = [0.0]
    fault = FailFrom("create", "consumequeue", nth=0, times=10**9, code=errno.ENOSPC)
    driver = Driver(small(tmp_path), FaultyFs(fault))
    driver.store._full._monotonic = lambda: now[0]
    fault.armed = True
    acked = fill_until_refused(driver, bytes(500))
    assert driver.store.failed is None
    assert driver.bodies() == acked
    now[0] += 2.0
    fault.armed = False
    for _ in range(50):
        driver.put(message(bytes(500)))
    driver.close()
    with Driver(small(tmp_path)) as again:
        assert len(again.bodies()) == len(acked) + 50
        assert (tmp_path / "consumequeue" / "T" / "0").is_dir()


def found_by_key(store: MessageStore, key: str) -> int:
    """How many messages; a search gives None, too, where others may run."""
    return sum(found is not None for found in store.find_key("T", key, 0, 2**62))


def seen_before_durable(
    tmp_path: Path, store_type: type[MessageStore] = MessageStore, rounds: int = 50
) -> int:
    """How often a reader sees anything of messages whose sync has not returned."""
    gate = Gate()
    driver = Driver(small(tmp_path), FaultyFs(gate))
    driver.store.__class__ = store_type
    arrivals: list[Any] = []
    driver.store.on_arrival = arrivals.append
    early = 0
    for i in range(rounds):
        gate.open.clear()
        gate.reached.clear()
        key = f"UNIQ_KEY\x01ID{i}\x02".encode()
        answers = driver.post(message(f"{i}", properties=key), message(f"{i} too", properties=key))
        assert gate.reached.wait(60)
        driver.settle()
        store = driver.store
        early += found_by_key(store, f"ID{i}") > 0
        early += store.offset_by_time("T", 0, 2**61) > 2 * i
        early += bool(answers) + (len(arrivals) > i) + (store.max_offset("T", 0) > 2 * i)
        early += store.get("T", 0, 2 * i, 32, 10_000).status is GetStatus.FOUND
        early += bool(store.entries("T", 0, 2 * i, 10))
        early += store.record_at(store.stats().commitlog_end) is not None
        gate.open.set()
        driver.wait(answers)
        assert store.max_offset("T", 0) == 2 * i + 2
        assert found_by_key(store, f"ID{i}") == 2
    driver.close()
    return early


@pytest.mark.kills("dispatch before durable")
@pytest.mark.parametrize("rounds", [50, pytest.param(5_000, marks=pytest.mark.nightly)])
def test_nothing_is_visible_before_it_is_durable(tmp_path: Path, rounds: int) -> None:
    """While a sync takes its time, no pull, offset, entry or wake-up shows the messages that it
    carries.
    """
    with figures("T11", nightly=rounds > 50, attempts=2 * rounds, faults=rounds) as line:
        line["early"] = seen_before_durable(tmp_path, rounds=rounds)
        assert line["early"] == 0


class ShowsEarly(MessageStore):
    """Planted fault: what is handed to the writer is visible at once."""

    def submit(self) -> None:
        group = self._appender.forming
        super().submit()
        for queue, entries, count in group.entries if group else ():
            queue.append(entries, count)
        if group:
            group.entries.clear()


def test_dispatch_before_durable_is_caught(tmp_path: Path) -> None:
    assert seen_before_durable(tmp_path, ShowsEarly) > 0


async def test_a_held_pull_is_not_answered_before_the_message_is_durable(tmp_path: Path) -> None:
    """Nor is anything else that a client may ask a broker about it."""
    gate = Gate()
    broker = Broker(
        BrokerConfig(data=tmp_path / "store", port=0, segment_bytes=1024 * 1024),
        Machine(fs=FaultyFs(gate)),
    )
    await broker.start()
    async with await RawClient.open(broker.address) as client:
        await client.send("T", b"first", {"KEYS": "k"})
        gate.open.clear()
        held = client.start_pull("G", "T", 1, suspend_ms=120_000)
        sent = client.start_send("T", b"second", {"KEYS": "k"})
        assert await asyncio.to_thread(gate.reached.wait, 10)
        for code, field, wanted in (
            (RequestCode.GET_MAX_OFFSET, "offset", "1"),
            (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "offset", "1"),
        ):
            answer = await client.ok(code, topic="T", queueId=0, timestamp=2**61)
            assert answer.ext_fields[field] == wanted, code
        times = {"beginTimestamp": 0, "endTimestamp": 2**61, "maxNum": 32}
        assert (
            len(messages(await client.ok(RequestCode.QUERY_MESSAGE, topic="T", key="k", **times)))
            == 1
        )
        assert (await client.pull("G", "T", 1)).code == ResponseCode.PULL_NOT_FOUND
        assert not held.done()
        assert not sent.done()
        gate.open.set()
        assert (await sent).code == ResponseCode.SUCCESS
        assert [message.body for message in messages(await held)] == [b"second"]
    await broker.stop()


HOLDER = """
    import sys
    from pathlib import Path
    from ogive.store import MessageStore, StoreConfig
    store = MessageStore.open(StoreConfig(root=Path(sys.argv[1]), segment_bytes=16384))
    print("held", flush=True)
    sys.stdin.read()
"""


def test_second_process_is_refused_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    """One plain sentence, the first unharmed; after kill -9 nobody has to remove anything."""
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreLocked, match="in use by another process"):
            MessageStore.open(small(tmp_path))
        holder.kill()
        holder.wait(60)
        with Driver(small(tmp_path)) as driver:
            driver.put(message("mine now"))
            assert driver.bodies() == [b"mine now"]
    finally:
        holder.kill()
        holder.wait(60)
        holder.stdin.close()
        holder.stdout.close()


# opens the store, puts what the parent asks for and prints what is acknowledged, until it is
# killed; else says why not
CONTENDER = """
    import sys
    from pathlib import Path
    from ogive.errors import StoreLocked
    from tests.stores import Driver, message, small
    try:
        driver = Driver(small(Path(sys.argv[1])))
    except StoreLocked as exc:
        print("refused", exc, flush=True)
    else:
        print("held", flush=True)
        for line in sys.stdin:
            driver.put(message(line.strip()))
            print(line.strip(), flush=True)
"""


@pytest.mark.parametrize(
    ("rounds", "processes"),
    [(1, 2), pytest.param(30, 4, marks=pytest.mark.nightly)],
)
def test_of_processes_that_race_for_a_store_one_gets_it(
    tmp_path: Path, rounds: int, processes: int
) -> None:
    """The others are refused and harm nothing, and so is one that comes later; when the one is
    killed, the next has all that it acknowledged.
    """
    acked: list[bytes] = []
    late_s: list[float] = []
    command = [sys.executable, "-c", textwrap.dedent(CONTENDER), str(tmp_path)]
    with figures(
        "T12", nightly=rounds > 1, attempts=rounds * (processes + 1), faults=rounds
    ) as line:
        for round_ in range(rounds):
            racing = [
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                for _ in range(processes)
            ]
            try:
                words = {
                    process: process.stdout.readline()
                    for process in racing
                    if process.stdout is not None
                }
                (holder,) = [process for process, word in words.items() if word == b"held\n"]
                assert (
                    sum(
                        b"refused" in word and b"is in use by another process" in word
                        for word in words.values()
                    )
                    == processes - 1
                )
                assert holder.stdin is not None
                assert holder.stdout is not None
                for number in range(20):
                    body = b"%d/%d" % (round_, number)
                    holder.stdin.write(body + b"\n")
                    holder.stdin.flush()
                    assert holder.stdout.readline() == body + b"\n"
                    acked.append(body)
                began = time.monotonic()
                late = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True
                )
                late_s.append(time.monotonic() - began)
                assert b"refused" in late.stdout
            finally:
                for process in racing:
                    process.kill()
                    process.communicate()
        with Driver(small(tmp_path)) as driver:
            bodies = driver.bodies()
        line.update(
            acknowledged=len(acked), received=len(bodies), lost=len(set(acked) - set(bodies))
        )
        line["python_started_and_refused_slowest_s"] = round(max(late_s), 2)
        assert bodies == acked


def test_second_store_in_one_process_is_refused(tmp_path: Path) -> None:
    with Driver(small(tmp_path)) as driver:
        # the refused try must not take the first one's lock with it
        for _ in range(2):
            with pytest.raises(StoreLocked):
                MessageStore.open(small(tmp_path))
        driver.put(message("unharmed"))


@pytest.mark.parametrize(
    "kind",
    ["file", "FIFO", "file above", "lock is a directory", "commit log is a file", "lock is a link"],
)
def test_a_path_that_is_no_store_is_refused_with_one_sentence(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "store"
    match kind:
        case "file":
            root.write_text("x")
        case "FIFO":
            os.mkfifo(root)
        case "file above":
            root.write_text("x")
            root = root / "below"
        case "lock is a directory":
            (root / "lock").mkdir(parents=True)
        case "commit log is a file":
            root.mkdir()
            (root / "commitlog").write_text("x")
        case "lock is a link":
            root.mkdir()
            (root / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError) as error:
        MessageStore.open(small(root))
    assert "\n" not in str(error.value)
    assert str(root) in str(error.value)
    assert not (tmp_path / "elsewhere").exists()


def test_kill_at_random_points_loses_nothing(tmp_path: Path) -> None:
    """A process that stores and prints each answer is killed; every printed one is there
    afterwards.
    """
    script = """
        import sys, queue
        from pathlib import Path
        from tests.stores import Driver, message, small
        driver = Driver(small(Path(sys.argv[1])))
        start = driver.store.max_offset("T", 0)
        for i in range(1_000_000):
            result = driver.put(message(f"{start + i} " + "x" * (i % 700)))[0]
            print(result.queue_offset, flush=True)
    """
    acked = 0
    for round_ in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(20 + 37 * round_)]
            child.kill()
            lines += child.stdout.readlines()
        acked = max(acked, *(int(line) + 1 for line in lines if line.endswith(b"\n")))
        with Driver(small(tmp_path)) as driver:
            bodies = driver.bodies()
        assert [int(body.split()[0]) for body in bodies] == list(range(len(bodies)))
        assert len(bodies) >= acked
    print(json.dumps({"test": "store kills", "kills": 8, "acked": acked}))
