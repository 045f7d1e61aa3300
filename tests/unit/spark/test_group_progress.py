"""The consumer group's copy of a stream's progress: the newest position arrives, one store at a
time, and nothing raises.
"""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from concurrent.futures import Future
from typing import cast

import pytest

from ogive.errors import NoRoute
from ogive.model import MessageQueue
from ogive.spark.cluster import Cluster
from ogive.spark.group_progress import GroupProgress

QUEUE = MessageQueue("Orders", "broker-a", 0)


class ScriptedCluster:
    """Stores that end when the test says so."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.futures: list[Future[None]] = []

    def start_copy(self, group: str, offsets: Mapping[MessageQueue, int]) -> Future[None]:
        assert group == "billing"
        self.started.append(offsets[QUEUE])
        self.futures.append(Future())
        return self.futures[-1]


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster()


@pytest.fixture
def progress(cluster: ScriptedCluster) -> GroupProgress:
    return GroupProgress(cast(Cluster, cluster), "billing")


def test_a_position_is_stored_once(cluster: ScriptedCluster, progress: GroupProgress) -> None:
    """An idle stream says the same position again and again."""
    progress.advance({QUEUE: 5})
    cluster.futures[0].set_result(None)
    progress.advance({QUEUE: 5})
    progress.advance({QUEUE: 5})
    assert cluster.started == [5]


def test_between_two_stores_lies_the_interval_that_is_asked_for(cluster: ScriptedCluster) -> None:
    now = 100.0
    progress = GroupProgress(cast(Cluster, cluster), "billing", 5.0, lambda: now)
    for at, position in ((100.0, 1), (101.0, 2), (104.9, 3), (105.0, 4), (106.0, 5)):
        now = at
        progress.advance({QUEUE: position})
        for future in cluster.futures:
            if not future.done():
                future.set_result(None)
    assert cluster.started == [1, 4]
    # at the end what waits is stored at once
    progress.flush()
    assert cluster.started == [1, 4, 5]


def test_one_store_at_a_time_and_the_newest_wins(
    cluster: ScriptedCluster, progress: GroupProgress
) -> None:
    for position in (5, 6, 7):
        progress.advance({QUEUE: position})
    assert cluster.started == [5]
    cluster.futures[0].set_result(None)
    progress.advance({QUEUE: 7})
    assert cluster.started == [5, 7]


def test_a_failure_is_logged_and_the_next_position_goes_out(
    cluster: ScriptedCluster, progress: GroupProgress, caplog: pytest.LogCaptureFixture
) -> None:
    progress.advance({QUEUE: 5})
    cluster.futures[0].set_exception(NoRoute("no broker"))
    progress.advance({QUEUE: 6})
    assert cluster.started == [5, 6]
    assert "progress of group billing was not stored: no broker" in caplog.text


def test_flush_stores_what_waits(cluster: ScriptedCluster, progress: GroupProgress) -> None:
    progress.advance({QUEUE: 5})
    progress.advance({QUEUE: 6})
    cluster.futures[0].set_result(None)
    progress.flush(0.01)
    assert cluster.started == [5, 6]


def test_flush_does_not_wait_forever(cluster: ScriptedCluster, progress: GroupProgress) -> None:
    progress.advance({QUEUE: 5})
    progress.advance({QUEUE: 6})
    progress.flush(0.01)
    assert cluster.started == [5]


def test_sigterm_flushes_and_ends_the_process() -> None:
    """Spark never calls stop(): it sends SIGTERM."""
    script = """
        import os, signal
        from concurrent.futures import Future
        from ogive.model import MessageQueue
        from ogive.spark.group_progress import GroupProgress

        class Cluster:
            def start_copy(self, group, offsets):
                # the signal may come while print() has not returned yet
                os.write(1, b"stored %d\\n" % next(iter(offsets.values())))
                done = Future()
                done.set_result(None)
                return done

        progress = GroupProgress(Cluster(), "billing")
        progress.advance({MessageQueue("Orders", "broker-a", 0): 5})
        progress._waiting = {MessageQueue("Orders", "broker-a", 0): 6}
        progress.flush_on_sigterm()
        os.write(1, b"ready\\n")
        signal.pause()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert [process.stdout.readline(), process.stdout.readline()] == ["stored 5\n", "ready\n"]
    os.kill(process.pid, signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == "stored 6\n"
    assert process.returncode == -signal.SIGTERM
