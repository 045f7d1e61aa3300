"""Listeners as a Spark job on a real broker: the rules of a push consumer, and no two handlers of
one queue.
"""

import asyncio
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import ogive
from ogive.client.config import ClientConfig
from ogive.client.listener import AnyListener, ConsumeResult
from ogive.errors import InvalidOption, NoRoute
from ogive.model import MessageQueue, dlq_topic
from ogive.spark.jobs import Totals, run_listeners
from ogive.spark.listener_task import Done, consume
from ogive.spark.ranges import QueueRange
from ogive.spark.stopping import Stop
from ogive.testing import Broker
from tests.peers import RunningBroker
from tests.topics import wait_until_shown

pytestmark = [pytest.mark.timeout(300), pytest.mark.bridge]


def notes(folder: Path) -> list[dict[str, Any]]:
    """What listeners in any process wrote down, in the order of their beginnings."""
    lines = [
        json.loads(line)
        for file in folder.glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    return sorted(lines, key=lambda line: line["begun"])


def note(folder: str, message: ogive.MessageExt, begun: float) -> None:
    with open(f"{folder}/{os.getpid()}.jsonl", "a") as file:  # noqa: PTH123  runs on executors
        line = {
            "queue": str(message.queue),
            "offset": message.queue_offset,
            "body": message.text,
            "topic": message.topic,
            "try": message.reconsume_times,
            "begun": begun,
            "ended": time.monotonic(),
            "pid": os.getpid(),
        }
        file.write(json.dumps(line) + "\n")


def recorder(folder: Path, *, sleep_s: float = 0.0, fail: str = "", **settings: Any) -> AnyListener:
    """Notes each message; fails for bodies that begin with *fail* (if given)."""
    where = str(folder)

    def record(message: ogive.MessageExt) -> None:
        begun = time.monotonic()
        time.sleep(sleep_s)
        note(where, message, begun)
        if fail and message.text.startswith(fail):
            raise ValueError(f"{message.text} is bad")

    return ogive.listener(**settings)(record)


def send(broker: RunningBroker, topic: str, bodies: list[str], queues: int = 4) -> None:
    with ogive.Admin(broker.name_server) as admin:
        admin.create_topic(topic, queues=queues)
        before = sum(row.max_offset for row in admin.offsets(topic))
    with ogive.Producer(broker.name_server) as producer:
        for body in bodies:
            producer.send(topic, body.encode(), sharding_key=body.split("-")[0])
    wait_until_shown(broker.name_server, topic, before + len(bodies))


def count(broker: RunningBroker, topic: str) -> int:
    with ogive.Admin(broker.name_server) as admin:
        try:
            return sum(row.max_offset - row.min_offset for row in admin.offsets(topic))
        except NoRoute:
            return 0


def until(look: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


# --- one task, without Spark ----------------------------------------------------------------------


def work_on(
    broker: RunningBroker,
    topic: str,
    listener: AnyListener,
    config: ogive.ConsumerConfig | None = None,
) -> list[Done]:
    """What one task does with everything in *topic*."""
    with ogive.Admin(broker.name_server) as admin:
        ranges = [
            QueueRange(row.queue, row.min_offset, row.max_offset) for row in admin.offsets(topic)
        ]
    ranges = [one for one in ranges if len(one)]
    return asyncio.run(
        consume(ClientConfig(name_server=broker.name_server), [listener], ranges, config)
    )


def test_a_task_consumes_its_ranges_and_tells_the_group(
    broker: RunningBroker, topic: str, group: str, tmp_path: Path
) -> None:
    bodies = [f"{key}-{i}" for i in range(50) for key in "abcd"]
    send(broker, topic, bodies)
    listener = recorder(tmp_path, topic=topic, group=group)
    done = work_on(broker, topic, listener)
    assert Counter(line["body"] for line in notes(tmp_path)) == Counter(bodies)
    assert (sum(one.calls for one in done), sum(one.failed for one in done)) == (200, 0)
    with ogive.Admin(broker.name_server) as admin:
        assert sum(row.lag for row in admin.lag(group)) == 0


def test_the_next_attempt_goes_on_where_the_group_stands(
    broker: RunningBroker, topic: str, group: str, tmp_path: Path
) -> None:
    """As after a task that was killed: what it had told is not repeated."""
    send(broker, topic, [f"a-{i}" for i in range(20)], queues=1)
    listener = recorder(tmp_path, topic=topic, group=group)
    first = asyncio.run(
        consume(
            ClientConfig(name_server=broker.name_server),
            [listener],
            [QueueRange(queue_of(broker, topic), 0, 12)],
        )
    )
    assert first[0].begun == 0
    again = work_on(broker, topic, listener)
    assert again[0].begun == 12
    assert [line["offset"] for line in notes(tmp_path)].count(11) == 1
    assert sorted(line["offset"] for line in notes(tmp_path)) == list(range(20))


def queue_of(broker: RunningBroker, topic: str) -> MessageQueue:
    with ogive.Admin(broker.name_server) as admin:
        return admin.offsets(topic)[0].queue


def test_the_range_of_a_queue_that_the_topic_has_lost_is_passed_over(
    broker: RunningBroker, topic: str, group: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a batch that was open then: the broker would refuse its pulls at each restart."""
    send(broker, topic, [f"{key}-{i}" for i in range(5) for key in "abcd"], queues=2)
    with ogive.Admin(broker.name_server) as admin:
        ranges = [QueueRange(row.queue, 0, row.max_offset) for row in admin.offsets(topic)]
        admin.update_topic(topic, read_queues=1, write_queues=1)
    listener = recorder(tmp_path, topic=topic, group=group)
    done = asyncio.run(consume(ClientConfig(name_server=broker.name_server), [listener], ranges))
    assert [one.calls for one in done] == [ranges[0].end, 0]
    assert (
        f"{topic}/broker-a/1 is no longer a queue of its topic: skipped 0 to {ranges[1].end}"
        in caplog.text
    )


def test_what_fails_is_sent_back_and_the_range_is_done(
    broker: RunningBroker, topic: str, group: str, tmp_path: Path
) -> None:
    send(broker, topic, ["a-0", "bad-1", "a-2"], queues=1)
    done = work_on(broker, topic, recorder(tmp_path, topic=topic, group=group, fail="bad"))
    assert (done[0].calls, done[0].failed) == (3, 1)
    assert until(lambda: count(broker, f"%RETRY%{group}") == 1)


def test_a_listener_gets_batches_of_its_size(broker: RunningBroker, topic: str, group: str) -> None:
    """What it says of a batch holds for its messages: the first ones are finished, the rest comes
    again.
    """
    send(broker, topic, [f"a-{i}" for i in range(50)], queues=1)
    sizes: list[int] = []
    bodies: list[str] = []

    @ogive.listener(topic, group=group, batch=16)
    def take(messages: list[ogive.MessageExt]) -> ConsumeResult:
        sizes.append(len(messages))
        bodies.extend(message.text for message in messages)
        bad = next((at for at, message in enumerate(messages) if message.text == "a-20"), None)
        return None if bad is None else ogive.later(done=bad)

    done = work_on(broker, topic, take)
    assert Counter(bodies) == Counter(f"a-{i}" for i in range(50))
    assert max(sizes) == 16
    assert len(sizes) < 10
    with ogive.Admin(broker.name_server) as admin:
        assert sum(row.lag for row in admin.lag(group, topic)) == 0
    assert done[0].failed > 0
    assert until(lambda: count(broker, f"%RETRY%{group}") == done[0].failed)


def test_a_call_that_takes_too_long_has_failed(
    broker: RunningBroker, topic: str, group: str
) -> None:
    """As with a push consumer: its message is sent back while it runs, and the range is done
    without it.
    """
    send(broker, topic, ["a-0", "slow-1", "a-2"], queues=1)
    freed = threading.Event()

    @ogive.listener(topic, group=group, consume_timeout_s=0.3)
    def take(message: ogive.MessageExt) -> None:
        if message.text == "slow-1":
            freed.wait(60)

    def free_it() -> None:
        until(lambda: count(broker, f"%RETRY%{group}") == 1)
        freed.set()

    watcher = threading.Thread(target=free_it)
    watcher.start()
    try:
        done = work_on(broker, topic, take)
    finally:
        freed.set()
        watcher.join()
    assert (done[0].calls, done[0].failed) == (3, 1)
    assert count(broker, f"%RETRY%{group}") == 1


@dataclass(frozen=True)
class Order:
    number: int


def test_bodies_are_read_as_values_and_one_that_cannot_be_is_a_failure(
    broker: RunningBroker, topic: str, group: str, tmp_path: Path
) -> None:
    send(broker, topic, ['{"number": 1}', "garbled", '{"number": 3}'], queues=1)
    seen: list[tuple[int, int]] = []

    @ogive.listener(topic, group=group, as_=Order)
    async def take(order: Order, message: ogive.MessageExt) -> None:
        seen.append((order.number, message.queue_offset))

    done = work_on(broker, topic, take)
    assert sorted(seen) == [(1, 0), (3, 2)]
    assert (done[0].calls, done[0].failed) == (3, 1)
    assert until(lambda: count(broker, f"%RETRY%{group}") == 1)


def test_sql_chooses_and_the_rest_counts_as_finished(
    broker: RunningBroker, topic: str, group: str, tmp_path: Path
) -> None:
    with ogive.Admin(broker.name_server) as admin:
        admin.create_topic(topic, queues=2)
    with ogive.Producer(broker.name_server) as producer:
        for i in range(20):
            producer.send(topic, b"%d" % i, properties={"n": str(i)})
    wait_until_shown(broker.name_server, topic, 20)
    done = work_on(
        broker, topic, recorder(tmp_path, topic=topic, group=group, sql="n BETWEEN 5 AND 9")
    )
    assert Counter(line["body"] for line in notes(tmp_path)) == Counter("56789")
    assert sum(one.calls for one in done) == 5
    with ogive.Admin(broker.name_server) as admin:
        assert sum(row.lag for row in admin.lag(group)) == 0


def test_two_attempts_never_handle_an_orderly_queue_at_once(
    broker: RunningBroker, topic: str, group: str, tmp_path: Path
) -> None:
    """As with a speculative attempt: two processes get the same range; the second waits for the
    lock and finds nothing left to do.
    """
    send(broker, topic, [f"a-{i}" for i in range(30)], queues=1)
    context = multiprocessing.get_context("spawn")
    attempts = [
        context.Process(target=attempt, args=(broker.name_server, topic, group, str(tmp_path)))
        for _ in range(2)
    ]
    for one in attempts:
        one.start()
    for one in attempts:
        one.join(120)
    assert [one.exitcode for one in attempts] == [0, 0]
    lines = notes(tmp_path)
    assert [line["offset"] for line in lines] == list(range(30))
    assert len({line["pid"] for line in lines}) == 1
    assert all(first["ended"] <= second["begun"] for first, second in itertools.pairwise(lines))


def attempt(name_server: str, topic: str, group: str, folder: str) -> None:
    """In a process of its own."""
    with ogive.Admin(name_server) as admin:
        ranges = [QueueRange(row.queue, 0, row.max_offset) for row in admin.offsets(topic)]
    listener = recorder(Path(folder), topic=topic, group=group, orderly=True, sleep_s=0.02)
    asyncio.run(consume(ClientConfig(name_server=name_server), [listener], ranges))


@pytest.mark.nightly
def test_an_orderly_queue_of_a_killed_worker_waits_for_its_lease(
    broker: RunningBroker, topic: str, group: str, tmp_path: Path
) -> None:
    send(broker, topic, [f"a-{i}" for i in range(400)], queues=1)
    context = multiprocessing.get_context("spawn")
    first = context.Process(target=attempt, args=(broker.name_server, topic, group, str(tmp_path)))
    first.start()
    assert until(lambda: len(notes(tmp_path)) > 100)
    first.kill()
    first.join()
    second = context.Process(target=attempt, args=(broker.name_server, topic, group, str(tmp_path)))
    second.start()
    second.join(200)
    assert second.exitcode == 0
    lines = notes(tmp_path)
    assert {line["offset"] for line in lines} == set(range(400))
    assert all(first["ended"] <= second["begun"] for first, second in itertools.pairwise(lines))
    # at most what was consumed since progress was told, once a second
    assert len(lines) - 400 <= 1.5 / 0.02


# --- as a job -------------------------------------------------------------------------------------


@pytest.fixture
def job(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path
) -> Callable[..., dict[str, Totals]]:
    def run(*listeners: AnyListener) -> dict[str, Totals]:
        client = ClientConfig(name_server=broker.name_server)
        return run_listeners(
            spark,
            listeners,
            client=client,
            checkpoint=tmp_path / "checkpoint",
            stop=Stop(),
            say=lambda _: None,
            once=True,
        )

    return run


@pytest.mark.releases
@pytest.mark.spark
def test_a_job_consumes_retries_and_buries_like_a_push_consumer(
    broker: RunningBroker,
    topic: str,
    group: str,
    tmp_path: Path,
    job: Callable[..., dict[str, Totals]],
) -> None:
    send(broker, topic, [f"a-{i}" for i in range(40)] + ["bad-1", "bad-2"])
    listener = recorder(
        tmp_path, topic=topic, group=group, start="earliest", max_retries=1, fail="bad"
    )
    totals = job(listener)[group]
    assert (totals.messages, totals.failed) == (42, 2)
    assert until(lambda: count(broker, f"%RETRY%{group}") == 2)
    # the retries, from the checkpoint on
    assert job(listener)[group].messages == 2
    assert until(lambda: count(broker, dlq_topic(group)) == 2)
    tries = Counter(line["body"] for line in notes(tmp_path))
    assert tries == Counter([f"a-{i}" for i in range(40)] + 2 * ["bad-1", "bad-2"])
    assert {
        (line["topic"], line["try"]) for line in notes(tmp_path) if line["body"] == "bad-1"
    } == {(topic, 0), (topic, 1)}
    with ogive.Admin(broker.name_server) as admin:
        assert sum(row.lag for row in admin.lag(group)) == 0


@pytest.mark.spark
def test_an_orderly_job_keeps_the_order_and_goes_on(
    broker: RunningBroker,
    topic: str,
    group: str,
    tmp_path: Path,
    job: Callable[..., dict[str, Totals]],
) -> None:
    send(broker, topic, [f"{key}-{i}" for i in range(30) for key in "abc"])
    listener = recorder(tmp_path, topic=topic, group=group, start="earliest", orderly=True)
    assert job(listener)[group].messages == 90
    send(broker, topic, ["a-30"])
    assert job(listener)[group].messages == 1
    by_queue: dict[str, list[int]] = {}
    for line in notes(tmp_path):
        by_queue.setdefault(line["queue"], []).append(line["offset"])
    assert all(offsets == list(range(len(offsets))) for offsets in by_queue.values())
    assert sum(map(len, by_queue.values())) == 91


@pytest.mark.spark
def test_a_job_that_is_stopped_leaves_the_log_of_the_session_as_it_was(
    spark: SparkSession, broker: RunningBroker, topic: str, group: str, tmp_path: Path
) -> None:
    send(broker, topic, ["a-1"])
    listener = recorder(tmp_path, topic=topic, group=group, start="earliest")
    client = ClientConfig(name_server=broker.name_server)
    stop = Stop()
    stop.ask()
    java: Any = spark.sparkContext._jvm
    root = java.org.apache.logging.log4j.LogManager.getRootLogger
    before = root().getLevel().name()
    spark.sparkContext.setLogLevel("WARN")
    try:
        run_listeners(
            spark,
            [listener],
            client=client,
            checkpoint=tmp_path / "checkpoint",
            stop=stop,
            say=lambda _: None,
            wait_s=30,
        )
        assert root().getLevel().name() == "WARN"
    finally:
        spark.sparkContext.setLogLevel(before)


@pytest.mark.spark
def test_a_broadcasting_listener_is_refused(
    topic: str, group: str, tmp_path: Path, job: Callable[..., dict[str, Totals]]
) -> None:
    with pytest.raises(InvalidOption, match="broadcasting"):
        job(recorder(tmp_path, topic=topic, group=group, broadcast=True))


APP = """
import os
import ogive

@ogive.listener("Work", group="workers", start="earliest")
def work(message: ogive.MessageExt) -> None:
    with open(os.environ["SEEN"], "a") as file:
        file.write(message.text + "\\n")
"""


@pytest.mark.spark
@pytest.mark.nightly
def test_the_command_runs_the_same_listener_on_spark_until_a_signal(tmp_path: Path) -> None:
    """Ctrl-C goes to the whole group of processes, as from a terminal; what was sent before is done
    then, and told.
    """
    (tmp_path / "shop_app.py").write_text(APP)
    seen = tmp_path / "seen"
    with (
        Broker() as broker,
        ogive.Admin(broker.name_server) as admin,
        ogive.Producer(broker.name_server) as producer,
    ):
        admin.create_topic("Work", queues=2)
        producer.send("Work", b"first")
        command = [
            sys.executable,
            "-m",
            "ogive",
            "run",
            "shop_app:work",
            "--engine",
            "spark",
            "--memory",
            "512m",
            "-n",
            broker.name_server,
        ]
        environment = os.environ | {"SEEN": str(seen), "PYTHONSAFEPATH": "1"}
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            assert until(lambda: seen.exists() and "first" in seen.read_text(), 120)
            producer.send("Work", b"second")
            assert until(lambda: "second" in seen.read_text())
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, err.decode()
        assert b"workers: 2 messages consumed" in out
        assert seen.read_text().split() == ["first", "second"]
        assert sum(row.lag for row in admin.lag("workers", "Work")) == 0
