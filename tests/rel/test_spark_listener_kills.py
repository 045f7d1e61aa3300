"""Listeners on Spark while the driver, a worker or the broker is killed: nothing lost, a bounded
number twice, order kept.
"""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

pytest.importorskip("pyspark")

import ogive
from ogive.model import RETRY_PREFIX
from ogive.testing import Broker
from tests.figures import figures
from tests.processes import stop, tail

pytestmark = [
    pytest.mark.rel,
    pytest.mark.apart(45),
    pytest.mark.spark,
    pytest.mark.nightly,
    pytest.mark.timeout(600),
]

# two of Spark's batches
MESSAGES = 2_000
# far into the first batch: whoever repeats it from its beginning has more than MOST_TWICE
KILL_AT = 800
QUEUES = 4
PAUSE_S = 0.02
# orderly: a call for each queue; concurrent: THREADS in each of TASKS
AT_A_TIME = 4
TASKS, THREADS = 2, 2
# progress is told each second
TOLD_S = 2.5
MOST_TWICE = int(TOLD_S / PAUSE_S * AT_A_TIME) + AT_A_TIME

APP = f"""
import json, os, time
import ogive

def work(message):
    begun = time.monotonic()
    time.sleep({PAUSE_S})
    with open(os.path.join(os.environ["SEEN"], str(os.getpid())), "a") as file:
        place = [message.queue.topic, str(message.queue), message.queue_offset]
        file.write(json.dumps([*place, begun, time.monotonic()]) + "\\n")

concurrent = ogive.listener("Work", group="concurrent", start="earliest", threads={THREADS})(work)
orderly = ogive.listener("Work", group="orderly", start="earliest", orderly=True)(work)
"""

Call = tuple[str, str, int, float, float]
"""topic, queue, offset, begun, ended (on one clock for all processes of the machine)"""


class Job:
    """`ogive run` on Spark, with all that it starts."""

    def __init__(self, folder: Path, name_server: str, name: str) -> None:
        self._folder, self._seen, self._log = folder, folder / "seen", folder / "log"
        self._seen.mkdir()
        (folder / "killed_app.py").write_text(APP)
        self._command = [
            sys.executable,
            "-m",
            "ogive",
            "run",
            f"killed_app:{name}",
            "--engine",
            "spark",
            "--master",
            f"local[{TASKS},4]",
            "--memory",
            "512m",
            "-n",
            name_server,
        ]
        self.start()

    def start(self) -> None:
        environment = os.environ | {"SEEN": str(self._seen)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _everyone(self) -> list[psutil.Process]:
        return list(psutil.Process(self._process.pid).children(recursive=True))

    def kill_driver(self) -> None:
        """Python and its JVM, kill -9.

        What it started ends by itself, and may go on for a moment.
        """
        jvm = [one for one in self._everyone() if "java" in one.name()]
        assert jvm
        for victim in (*jvm, self._process):
            victim.kill()
        self._process.wait()

    def kill_worker(self) -> None:
        """Whoever runs listeners now, kill -9."""
        workers = {file.name for file in self._seen.iterdir()}
        victims = [one for one in self._everyone() if str(one.pid) in workers]
        assert victims
        for victim in victims:
            victim.kill()

    def end(self) -> None:
        if self._process.poll() is None:
            left = self._everyone()
            stop(self._process)
            for one in left:
                # still the process that it was
                if one.is_running():
                    one.kill()

    def calls(self) -> list[Call]:
        lines = [
            line for file in self._seen.iterdir() for line in file.read_text().split("\n")[:-1]
        ]
        return [tuple(json.loads(line)) for line in lines]

    def until(self, look: Callable[[], bool], timeout_s: float = 300.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not look():
            assert time.monotonic() < deadline, tail(self._log)
            time.sleep(0.1)


@pytest.mark.parametrize("name", ["concurrent", "orderly"])
@pytest.mark.parametrize("victim", ["driver", "worker", "broker"])
def test_nothing_is_lost_and_little_comes_twice(victim: str, name: str, tmp_path: Path) -> None:
    with (
        figures(
            "T24, listeners",
            nightly=True,
            victim=victim,
            listener=name,
            faults=1,
            attempts=MESSAGES,
        ) as line,
        Broker(data=tmp_path / "store") as broker,
    ):
        patient = ogive.ProducerConfig(send_timeout_s=60.0)
        with (
            ogive.Admin(broker.name_server) as admin,
            ogive.Producer(broker.name_server, config=patient) as producer,
        ):
            admin.create_topic("Work", queues=QUEUES)
            for future in [producer.submit("Work", b"%d" % i) for i in range(MESSAGES)]:
                future.result(120)
        job = Job(tmp_path, broker.name_server, name)
        try:
            job.until(lambda: len(job.calls()) >= KILL_AT)
            if victim == "driver":
                job.kill_driver()
                job.start()
            elif victim == "worker":
                job.kill_worker()
            else:
                broker.kill()
                broker.start()
            job.until(
                lambda: (
                    len({call[1:3] for call in job.calls() if not call[0].startswith(RETRY_PREFIX)})
                    == MESSAGES
                )
            )
        finally:
            job.end()
        calls = sorted(job.calls(), key=lambda call: (call[1], call[3]))
        twice = len(calls) - MESSAGES
        line |= {"acknowledged": MESSAGES, "received": MESSAGES, "lost": 0, "duplicates": twice}
        assert 0 <= twice <= MOST_TWICE
        if name == "orderly":
            for _, queue in itertools.groupby(calls, key=lambda call: call[1]):
                check_order(list(queue))


def check_order(calls: list[Call]) -> None:
    """One queue's, in the order of their beginnings: a repetition goes back, and nothing is passed
    over.
    """
    for first, second in itertools.pairwise(calls):
        assert first[4] <= second[3], "two handlers of one queue at once"
    furthest = -1
    for _, _, offset, _, _ in calls:
        assert offset <= furthest + 1, "a message came before the one in front of it"
        furthest = max(furthest, offset)
