"""Ctrl-C and SIGTERM while a command starts Spark: it ends at once, silently, and leaves no process
behind.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

pytest.importorskip("pyspark")

import ogive
from examples.demo.children import members
from ogive.testing import Broker

pytestmark = [
    pytest.mark.spark,
    pytest.mark.bridge,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc"),
]

WAIT_S: Final = 60.0

Command = subprocess.Popen[bytes]
Moment = Callable[[Command, Path], object]

APP = """
import ogive

@ogive.listener("Work", group="workers", start="earliest")
def work(message: ogive.MessageExt) -> None: ...
"""


def said(command: Command, folder: Path) -> bool:
    """The line that is waited for anyway."""
    return True


def script(command: Command, folder: Path) -> bool:
    """Spark's shell scripts run, which look for the class path with a Java of their own."""
    return bool(psutil.Process(command.pid).children())


def java(command: Command, folder: Path) -> bool:
    return any(
        "org.apache.spark.deploy.SparkSubmit" in one.cmdline()
        for one in psutil.Process(command.pid).children()
    )


def answer(command: Command, folder: Path) -> bool:
    """Java has said its port."""
    return any(one.net_connections("tcp") for one in psutil.Process(command.pid).children())


def context(command: Command, folder: Path) -> bool:
    """The context is being made."""
    return any(folder.glob("blockmgr-*"))


def session(command: Command, folder: Path) -> bool:
    """The context is made, the session about to be."""
    return any(folder.glob("spark-*/pyspark-*"))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        with ogive.Admin(running.name_server) as admin:
            admin.create_topic("Work", queues=2)
        yield running


def until(condition: Callable[[], object], what: str) -> None:
    ends_at = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < ends_at, f"{what}: not within {WAIT_S:.0f} s"
        time.sleep(0.02)


PIPELINE: Final = ("pipeline", "archive", "--topic", "Work", "--to", "lake", "--memory", "512m")
RUN: Final = ("run", "shop_app:work", "--engine", "spark", "--memory", "512m")


def kill_rest(process: "subprocess.Popen[bytes]") -> None:
    for one in members(process.pid):
        os.kill(one, signal.SIGKILL)


# Spark's own daemon writes this if Java ends first; no setting of a session keeps it from that.
BROKEN_PIPE: Final = re.compile(
    rb'Traceback .*\n  File ".*/pyspark/daemon\.py", line \d+, in worker\n    outfile\.flush\(\)\n'
    rb"BrokenPipeError: .*\n"
)


def check_clean_end(process: "subprocess.Popen[bytes]", errors: bytes) -> None:
    assert process.returncode == 130
    errors = BROKEN_PIPE.sub(b"", errors)
    assert b"Traceback" not in errors
    assert b"Exception" not in errors


@pytest.mark.parametrize(
    ("words", "moment", "number"),
    [
        (PIPELINE, said, signal.SIGINT),
        (PIPELINE, said, signal.SIGTERM),
        (PIPELINE, script, signal.SIGINT),
        (PIPELINE, java, signal.SIGINT),
        (PIPELINE, java, signal.SIGTERM),
        (PIPELINE, answer, signal.SIGINT),
        (PIPELINE, context, signal.SIGTERM),
        (PIPELINE, session, signal.SIGINT),
        (RUN, java, signal.SIGINT),
        (RUN, session, signal.SIGTERM),
    ],
    ids=lambda value: (
        value[0] if isinstance(value, tuple) else getattr(value, "__name__", None) or value.name
    ),
)
def test_a_signal_while_spark_starts_ends_the_command_and_leaves_no_java(
    words: tuple[str, ...], moment: Moment, number: signal.Signals, broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "shop_app.py").write_text(APP)
    local = tmp_path / "local"
    local.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "ogive", *words, "-n", broker.name_server],
        cwd=tmp_path,
        env=os.environ | {"SPARK_LOCAL_DIRS": str(local)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == b"ogive: starting Spark\n"
            until(lambda: moment(process, local), moment.__name__)
            process.send_signal(number)
            # to the end of what every process of it could still say
            _, errors = process.communicate(timeout=WAIT_S)
            until(lambda: not members(process.pid), "all processes have ended")
        finally:
            kill_rest(process)
    check_clean_end(process, errors)
    assert not (tmp_path / "lake").exists()


@pytest.mark.nightly
def test_a_second_ctrl_c_in_a_batch_ends_a_pipeline_without_stacks(
    broker: Broker, tmp_path: Path
) -> None:
    """Of Python, Py4J and the threads of Java."""
    with ogive.Producer(broker.name_server) as producer:
        for number in range(4000):
            producer.submit("Many", b"%d" % number)
    words = (
        "pipeline",
        "archive",
        "--topic",
        "Many",
        "--to",
        "lake",
        "--memory",
        "512m",
        "--max-rows",
        "50",
        "--every",
        "1",
    )
    with subprocess.Popen(
        [sys.executable, "-m", "ogive", *words, "-n", broker.name_server],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            assert process.stderr is not None
            while b"archived" not in (line := process.stderr.readline()):
                assert line
            process.send_signal(signal.SIGINT)
            # else the system makes one signal of both
            time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=WAIT_S)
            until(lambda: not members(process.pid), "all processes have ended")
        finally:
            kill_rest(process)
    check_clean_end(process, errors)
