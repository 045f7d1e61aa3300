"""Pipelines whose processes are killed in the middle of their work, twice: nothing is lost, and
little comes again.

Where the middle is depends on no clock: the job is frozen, looked at, and killed only if what it is
at is half done; else it goes on.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

pytest.importorskip("pyspark")

import pyarrow.parquet as pq

import ogive
from ogive.model import MessageExt
from ogive.pipelines.job import last_batch, positions
from ogive.pipelines.progress import HOUR
from ogive.testing import Broker
from tests.figures import figures
from tests.peers import our_broker
from tests.processes import QUICK_JAVA, tail
from tests.topics import Wire

pytestmark = [
    pytest.mark.rel,
    pytest.mark.apart(40),
    pytest.mark.spark,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
]

KILLS = 2
BATCH = 500
# is done before each kill: a run that began anew would bring more than one batch again
BETWEEN = 3 * BATCH
# as files of an archive it is enough for a compaction
ROUND = 8 * BATCH
QUEUES = 2
TOPIC, COPY = "Kills", "Copies"
# a start takes 10 to 20 s, and many times that on a machine that is busy with other work
PATIENCE_S = 300.0
STARTS = 5


class Job:
    """`ogive pipeline` and every process that it starts.

    *more* gives it work whenever it has done all that there was.
    """

    def __init__(self, folder: Path, more: Callable[[], None] = lambda: None) -> None:
        self._folder, self._log, self._more = folder, folder / "job.log", more
        # by a kill, or by a failure
        self.ends = 0

    def start(self, *arguments: str) -> None:
        self._arguments = arguments
        command = [
            sys.executable,
            "-m",
            "ogive",
            "pipeline",
            *arguments,
            "--master",
            "local[2]",
            "--memory",
            "512m",
        ]
        # three starts of Spark are most of a test
        environment = os.environ | {"JDK_JAVA_OPTIONS": QUICK_JAVA}
        with self._log.open("ab") as log:
            self._process = psutil.Popen(
                command,
                cwd=self._folder,
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def _everyone(self) -> list[psutil.Process]:
        return (
            [self._process, *self._process.children(recursive=True)]
            if self._process.is_running()
            else []
        )

    def _signal(self, name: str) -> None:
        for one in self._everyone():
            try:
                getattr(one, name)()
            except psutil.NoSuchProcess:
                # it ended by itself
                continue

    def kill_when(self, half_done: Callable[[], bool]) -> None:
        """Kill -9 of all processes while *half_done*."""
        self._wait(lambda: half_done() and self._frozen(half_done))
        victims = self._everyone()
        self._signal("kill")
        psutil.wait_procs(victims, timeout=60)
        self.ends += 1

    def _frozen(self, half_done: Callable[[], bool]) -> bool:
        """Whether it is so with everybody stopped; they stay stopped if it is."""
        self._signal("suspend")
        if half_done():
            return True
        self._signal("resume")
        return False

    def end_when(self, done: Callable[[], bool]) -> None:
        """SIGTERM as soon as it is *done*; the exit code says that it ended well."""
        self._wait(done)
        self._process.terminate()
        assert self._process.wait(PATIENCE_S) == 0, tail(self._log)

    def end(self) -> None:
        """By itself."""
        self._wait(lambda: self._process.poll() == 0)

    def _wait(self, reached: Callable[[], bool]) -> None:
        """As a supervisor does, start it again where it fails: Spark gives its Python processes 10
        s to start, which a busy machine does not always keep.
        """
        give_up = time.monotonic() + PATIENCE_S
        while not reached():
            self._more()
            if self._process.poll() not in (None, 0):
                self.ends += 1
                assert self.ends < KILLS + STARTS, tail(self._log)
                self.start(*self._arguments)
            assert time.monotonic() < give_up, tail(self._log)
            time.sleep(0.02)

    def close(self) -> None:
        self._signal("kill")
        self._process.wait(60)


class Source:
    """The topic that is copied; each body says its queue and its number there."""

    def __init__(self, broker: Broker) -> None:
        self._wire = Wire(broker)
        self._wire.create(TOPIC, QUEUES)
        self.sent = 0

    def send_round(self) -> None:
        for queue_id in range(QUEUES):
            first = self.sent // QUEUES
            self._wire.send(
                TOPIC, queue_id, [b"%d/%d" % (queue_id, first + i) for i in range(ROUND // QUEUES)]
            )
        self.sent += ROUND

    def send_when(self, done: Callable[[], int]) -> Callable[[], None]:
        return lambda: self.send_round() if done() == self.sent else None


def everything(name_server: str, topic: str) -> list[MessageExt]:
    """In the order of each queue."""
    found: list[MessageExt] = []
    with ogive.PullConsumer(name_server=name_server, start="earliest") as consumer:
        consumer.assign(consumer.queues(topic))
        while any(consumer.lag().values()):
            found += consumer.poll()
    return found


def copied(checkpoint: Path) -> int:
    """Messages of the batches that Spark noted as done."""
    return sum(
        offset
        for brokers in positions(checkpoint).values()
        for queues in brokers.values()
        for offset in queues.values()
    )


def check(bodies: list[bytes], sent: int) -> int:
    """Nothing is missing, and each queue's messages come in their order for the first time; how
    many came again.
    """
    firsts = list(dict.fromkeys(bodies))
    for queue_id in range(QUEUES):
        numbers = [
            int(number)
            for queue, number in (body.split(b"/") for body in firsts)
            if int(queue) == queue_id
        ]
        assert numbers == list(range(sent // QUEUES))
    return len(bodies) - len(firsts)


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_a_killed_mirror_loses_nothing(idempotent: bool, tmp_path: Path) -> None:
    """Twice comes at most a batch for each kill, and with --idempotent nothing; the order of the
    source's queues is kept.
    """
    with (
        figures("T24, mirror", nightly=True, idempotent=idempotent, faults=KILLS) as line,
        our_broker(tmp_path / "here") as here,
        our_broker(tmp_path / "there") as there,
    ):
        source, target, state = Source(here), Wire(there), tmp_path / "state"
        target.create(TOPIC, QUEUES)
        again = 0

        def half_done(after: int) -> bool:
            """Something of a batch has arrived that Spark has not noted as done."""
            return target.count(TOPIC) - again > copied(state) >= after

        command = [
            "mirror",
            "-n",
            here.name_server,
            "--target",
            there.name_server,
            "--topic",
            TOPIC,
            "--state",
            str(state),
            "--follow",
        ]
        command += ["--max-rows", str(BATCH), *(["--idempotent"] if idempotent else [])]
        with contextlib.closing(Job(tmp_path, more=source.send_when(lambda: copied(state)))) as job:
            for kill in range(1, KILLS + 1):
                job.start(*command)
                job.kill_when(partial(half_done, kill * BETWEEN))
                again = 0 if idempotent else target.count(TOPIC) - copied(state)
            job.start(*command)
            job.end_when(lambda: copied(state) == source.sent)
        messages = everything(there.name_server, TOPIC)
        doubled = check([message.body for message in messages], source.sent)
        line |= {
            "attempts": source.sent,
            "acknowledged": source.sent,
            "received": source.sent,
            "lost": 0,
            "duplicates": doubled,
        }
        assert doubled == 0 if idempotent else 0 < doubled <= job.ends * BATCH


def test_a_killed_archive_holds_every_message_once(tmp_path: Path) -> None:
    """Killed once while a batch's files are there and Spark does not know, once while the files of
    an hour become one.
    """
    with (
        figures("T24, archive", nightly=True, faults=KILLS) as line,
        our_broker(tmp_path / "here") as here,
    ):
        source, lake = Source(here), tmp_path / "lake"
        checkpoint = lake / "_checkpoint"

        def half_written() -> bool:
            batch = last_batch(checkpoint) + 1
            return batch * BATCH >= BETWEEN and any(
                lake.glob(f"topic=*/date=*/hour=*/part=b{batch:09d}")
            )

        def half_compacted() -> bool:
            return (lake / "_new").exists() or (lake / "_compacting.json").exists()

        command = [
            "archive",
            "-n",
            here.name_server,
            "--topic",
            TOPIC,
            "--to",
            str(lake),
            "--every",
            "0.1",
            "--max-rows",
            str(BATCH),
        ]
        with contextlib.closing(
            Job(tmp_path, more=source.send_when(lambda: copied(checkpoint)))
        ) as job:
            for half_done in (half_written, half_compacted):
                job.start(*command)
                job.kill_when(half_done)
            job.start(*command)
            job.end_when(lambda: copied(checkpoint) == source.sent and not half_compacted())
        files = lake.glob("topic=*/**/*.parquet")
        counts = Counter(
            body
            for file in files
            for body in pq.ParquetFile(file).read(["body"]).column("body").to_pylist()
        )
        assert check(sorted(counts, key=lambda body: int(body.split(b"/")[1])), source.sent) == 0
        line |= {
            "attempts": source.sent,
            "acknowledged": source.sent,
            "received": source.sent,
            "lost": 0,
            "duplicates": 0,
        }
        assert set(counts.values()) == {1}


def test_a_killed_replay_loses_nothing(tmp_path: Path) -> None:
    """Twice comes at most a chunk for each kill: with a rate, what it sends in a second."""
    with (
        figures("T24, replay", nightly=True, faults=KILLS) as line,
        our_broker(tmp_path / "here") as here,
    ):
        source, wire, state = Source(here), Wire(here), tmp_path / "state"
        wire.create(COPY, QUEUES)
        for _ in range(2):
            source.send_round()
        stored = everything(here.name_server, TOPIC)
        again = 0

        def noted() -> int:
            """Of which the progress says that they are sent: those of earlier hours, and so many of
            each queue in this one.
            """
            file = state / "replay.json"
            if not file.exists():
                return 0
            done = json.loads(file.read_text())
            ends = {int(queue.rpartition("\n")[2]): end for queue, end in done["queues"].items()}
            hours = [(f"{message.stored_at:{HOUR}}", message) for message in stored]
            return sum(
                hour < done["hour"]
                or (
                    hour == done["hour"]
                    and message.queue_offset < ends.get(message.queue.queue_id, 0)
                )
                for hour, message in hours
            )

        def half_done(after: int) -> bool:
            return wire.count(COPY) - again > noted() >= after

        command = [
            "replay",
            "-n",
            here.name_server,
            "--from",
            TOPIC,
            "--to",
            COPY,
            "--state",
            str(state),
        ]
        with contextlib.closing(Job(tmp_path)) as job:
            for kill in range(1, KILLS + 1):
                job.start(*command, "--rate", str(BATCH))
                job.kill_when(partial(half_done, kill * BETWEEN))
                again = wire.count(COPY) - noted()
            job.start(*command)
            job.end()
        doubled = check(
            [message.body for message in everything(here.name_server, COPY)], source.sent
        )
        line |= {
            "attempts": source.sent,
            "acknowledged": source.sent,
            "received": source.sent,
            "lost": 0,
            "duplicates": doubled,
        }
        assert 0 < doubled <= job.ends * BATCH
