"""Celery's worker as a process: tasks, retries, and workers that are killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)

LIMIT_S = 240
TESTS = Path(__file__).parent
EXAMPLE = TESTS.parent / "example"


class Workers:
    """Starts workers, and sends tasks, with the same environment."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"BROKER_URL": url, "TASKS_FOLDER": str(folder)}
        self.logs = 0

    @contextmanager
    def run(
        self, queue: str, app: str = "tasks_of_tests", place: Path = TESTS
    ) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """Yield a worker and its log. It is killed at the end, with its children."""
        self.logs += 1
        log = self.folder / f"worker{self.logs}.log"
        command = [sys.executable, "-m", "celery", "--app", app, "worker"]
        command += ["--concurrency", "2", "--queues", queue, "--loglevel", "INFO"]
        with log.open("wb") as output:
            worker = subprocess.Popen(
                command,
                cwd=place,
                env=self.environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            yield worker, log
        finally:
            kill(worker)

    def send(self, program: str, place: Path = TESTS) -> None:
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=place,
            env=self.environment,
            check=True,
            timeout=LIMIT_S,
        )

    def report(self) -> list[str]:
        path = self.folder / "report"
        return path.read_text("utf-8").splitlines() if path.exists() else []


def kill(worker: subprocess.Popen[bytes]) -> None:
    """Kill the worker's main process and its children at once."""
    if worker.poll() is None:
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait(LIMIT_S)


def wait_for(ready: Callable[[], bool], what: Callable[[], object]) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not ready():
        assert time.monotonic() < give_up, what()
        time.sleep(0.1)


@pytest.fixture
def workers(url: str, tmp_path: Path) -> Workers:
    return Workers(url, tmp_path)


def test_a_killed_worker_loses_no_task(workers: Workers, name: str) -> None:
    workers.send(
        "from tasks_of_tests import work\n"
        f"for number in range(12): work.apply_async([str(number)], queue={name!r})"
    )
    with workers.run(name) as (worker, _):
        wait_for(lambda: len(workers.report()) == 2, workers.report)
        kill(worker)
    (workers.folder / "gate").touch()
    ends = {f"end {number}" for number in range(12)}
    with workers.run(name) as (worker, log):
        wait_for(lambda: ends <= set(workers.report()), workers.report)
        # a warm shutdown acknowledges what is done
        worker.terminate()
        worker.wait(LIMIT_S)
        assert worker.returncode == 0, log.read_text("utf-8")
    report = workers.report()
    assert [report.count(line) for line in report[:2]] == [2, 2]


def test_a_task_is_retried_with_its_countdown(workers: Workers, name: str) -> None:
    workers.send(f"import tasks_of_tests as t; t.fail_twice.apply_async(['a'], queue={name!r})")
    with workers.run(name) as (_, log):
        wait_for(lambda: len(workers.report()) == 3, lambda: log.read_text("utf-8"))
    assert workers.report() == [f"try {number} of a" for number in range(3)]


def test_the_example_runs(workers: Workers) -> None:
    with workers.run("celery", "tasks", EXAMPLE) as (_, log):
        workers.send("import runpy; runpy.run_path('tasks.py', run_name='__main__')", EXAMPLE)
        wait_for(
            lambda: log.read_text("utf-8").count("charged") == 2, lambda: log.read_text("utf-8")
        )
