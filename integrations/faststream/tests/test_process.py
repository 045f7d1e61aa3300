"""FastStream's command: the example, and workers that are stopped and killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ogive.testing import RocketMQ

LIMIT_S = 120
TESTS = Path(__file__).parent
EXAMPLE = TESTS.parent / "example"


@contextmanager
def worker(
    app: str, place: Path, log: Path, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process of ``faststream run``. It is killed at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "faststream", "run", app],
            cwd=place,
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT_S)


def wait_for(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not ready():
        assert time.monotonic() < give_up, read(log)
        assert process.poll() is None, read(log)
        time.sleep(0.05)


def read(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


def test_the_example_runs(rocketmq: RocketMQ, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with worker("app:app", EXAMPLE, log, NAME_SERVER=rocketmq.name_server) as process:
        wait_for(lambda: "bill for order 4711: 20" in read(log), process, log)
        process.terminate()
        assert process.wait(LIMIT_S) == 0, read(log)
    assert read(log).count("order 4711, try 1") == 1


def test_a_killed_worker_loses_nothing(rocketmq: RocketMQ, topic: str, tmp_path: Path) -> None:
    """Nor does one that is stopped in the middle, and that one repeats nothing."""
    report, log = tmp_path / "report", tmp_path / "log"
    environment = {"NAME_SERVER": rocketmq.name_server, "TOPIC": topic, "FOLDER": str(tmp_path)}
    for number in range(8):
        rocketmq.send(topic, str(number).encode())

    def started() -> int:
        return read(report).count("start")

    with worker("app_of_tests:app", TESTS, log, **environment) as killed:
        wait_for(lambda: started() == 2, killed, log)
        killed.send_signal(signal.SIGKILL)
        killed.wait(LIMIT_S)
    begun = read(report).splitlines()
    with worker("app_of_tests:app", TESTS, log, **environment) as stopped:
        wait_for(lambda: started() == 4, stopped, log)
        stopped.terminate()
        time.sleep(0.5)
        (tmp_path / "gate").touch()
        assert stopped.wait(LIMIT_S) == 0, read(log)
    done = [line for line in read(report).splitlines() if line.startswith("end")]
    assert len(done) >= 2
    with worker("app_of_tests:app", TESTS, log, **environment):
        rocketmq.wait_consumed(topic, timeout_s=LIMIT_S)
    lines = read(report).splitlines()
    assert {f"end {number}" for number in range(8)} == set(lines) - {
        f"start {number}" for number in range(8)
    }
    # what was begun in the killed worker is done again, and only that
    assert {line for line in lines if lines.count(line) > 1} == set(begun)
