"""What brokers see of a large Spark job: even numbers of pulls, few requests for planning, and
nothing of a task that was killed. The job is that of bench.spark_scale.
"""

import multiprocessing
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import ogive
from bench.spark_scale import LEAST_SHARE, MOST_SHARE, TOPIC, run, work
from ogive.model import MessageQueue
from ogive.spark.ranges import Pace, QueueRange
from ogive.testing import Broker

ESTABLISHED = "01"


@pytest.mark.parametrize(
    ("brokers", "workers", "seconds"),
    [
        pytest.param(2, 6, 4, id="small"),
        pytest.param(10, 100, 20, id="large", marks=[pytest.mark.nightly, pytest.mark.apart(180)]),
    ],
)
def test_every_broker_has_its_share_of_the_pulls(brokers: int, workers: int, seconds: int) -> None:
    figures = run(brokers=brokers, workers=workers, seconds=seconds, rows=4000, size=256)
    assert figures.tasks == workers
    assert figures.requests == {"GET_TOPIC_STATS_INFO": brokers}
    shares = [share for second in figures.shares for share in second]
    assert len(figures.shares) > 0
    assert min(shares) >= LEAST_SHARE
    assert max(shares) <= MOST_SHARE
    # 64 is the default of maxPullsPerBroker
    assert figures.in_flight <= 64
    assert figures.worker_mib <= 60


def connections(port: int) -> int:
    """Return how many connections to *port* of this machine are open at its side."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == ESTABLISHED for row in rows)


def test_a_task_that_is_killed_in_a_pull_leaves_no_connection() -> None:
    """Spark kills the process of a task that it cancels."""
    context = multiprocessing.get_context("forkserver")
    with Broker(flush="async") as broker:
        queue = MessageQueue(TOPIC, "broker-a", 0)
        with ogive.Admin(broker.name_server) as admin:
            admin.create_topic(TOPIC, queues=1)
        with ogive.Producer(broker.name_server) as producer:
            producer.send_batch(TOPIC, (bytes(1000) for _ in range(4000)), queue=queue)
        port = int(broker.address.rpartition(":")[2])
        others = connections(port)
        ours, theirs = context.Pipe()
        worker = context.Process(target=work, args=(theirs,), daemon=True)
        worker.start()
        task = (QueueRange(queue, 0, 4000),), Pace(8)
        ours.send((broker.name_server, task, time.monotonic() + 60))
        deadline = time.monotonic() + 30
        while connections(port) == others:
            assert time.monotonic() < deadline, "the worker has not connected"
            time.sleep(0.05)
        worker.kill()
        worker.join()
        deadline = time.monotonic() + 10
        while connections(port) > others:
            assert time.monotonic() < deadline, "the connection is still open"
            time.sleep(0.05)
