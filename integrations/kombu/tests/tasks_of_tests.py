"""Tasks that the tests of Celery run. They report in the folder that the environment names."""

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

import ogive_kombu  # noqa: F401

FOLDER = Path(os.environ.get("TASKS_FOLDER", "."))

app = Celery("tests", broker=os.environ.get("BROKER_URL", "rocketmq://"))
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=2,
    broker_transport_options={"visibility_timeout": 5},
)


def report(line: str) -> None:
    """Add a line to the report; one write, so that processes do not mix theirs."""
    with (FOLDER / "report").open("a") as file:
        file.write(f"{line}\n")


@app.task
def work(name: str) -> None:
    """Report a start, wait until the gate is open, and report the end."""
    report(f"start {name}")
    while not (FOLDER / "gate").exists():
        time.sleep(0.05)
    report(f"end {name}")


@app.task(bind=True, max_retries=3)
def fail_twice(self: Any, name: str) -> None:
    """Report each try, and fail at the first two."""
    report(f"try {self.request.retries} of {name}")
    if self.request.retries < 2:
        raise self.retry(countdown=0.1 if self.request.retries else 3)
