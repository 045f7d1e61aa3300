"""Application that test_process runs. It reports in the folder that the environment names."""

import os
import time
from pathlib import Path

from faststream import FastStream

from ogive_faststream import RocketMQBroker

FOLDER = Path(os.environ["FOLDER"])
TOPIC = os.environ["TOPIC"]

broker = RocketMQBroker(os.environ["NAME_SERVER"])
app = FastStream(broker)


def report(line: str) -> None:
    with (FOLDER / "report").open("a") as file:
        file.write(f"{line}\n")


@broker.subscriber(TOPIC, group=TOPIC, start="earliest", max_workers=2)
def work(number: int) -> None:
    """Report a start, wait until the gate is open, and report the end."""
    report(f"start {number}")
    while not (FOLDER / "gate").exists():
        time.sleep(0.02)
    report(f"end {number}")
