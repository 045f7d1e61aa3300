"""``ogive run`` as a shell runs it: found, running, stopped by a signal, nothing lost. Our broker only, as for the other commands."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ogive
from ogive.testing import Broker

APP = """
import time
import ogive

@ogive.listener("Work", group="workers", start="earliest")
def work(message: ogive.MessageExt) -> None:
    print("begun", message.text, flush=True)
    time.sleep(0.5)
    print("ended", message.text, flush=True)

@ogive.listener("News", group="readers", start="earliest")
async def read(message: ogive.MessageExt) -> None:
    print("read", message.text, flush=True)
"""


def start(directory: Path, name_server: str, *words: str) -> subprocess.Popen[bytes]:
    (directory / "shop_app.py").write_text(APP)
    command = [sys.executable, "-m", "ogive", "run", *words, "-n", name_server]
    environment = os.environ | {"PYTHONSAFEPATH": "1"}  # without the working directory, as for the installed script
    return subprocess.Popen(command, cwd=directory, env=environment, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 60)
    assert ready, "nothing was printed"
    return process.stdout.readline().decode().strip()  # unbuffered: what select sees is all that there is


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_listeners_run_until_a_signal_and_what_runs_then_is_finished_and_counted(number: int, tmp_path: Path) -> None:
    with Broker() as broker, ogive.Producer(broker.name_server) as producer, ogive.Admin(broker.name_server) as admin:
        for topic in ("Work", "News"):
            admin.create_topic(topic, queues=1)
        process = start(tmp_path, broker.name_server, "shop_app:work", "shop_app:read")
        try:
            assert [line(process), line(process)] == ["work: Work for group workers", "read: News for group readers"]
            producer.send("News", b"one")
            assert line(process) == "read one"
            producer.send("Work", b"slow")
            assert line(process) == "begun slow"
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        assert (out, err, process.returncode) == (b"ended slow\n", b"", 0)
        assert [(row.consumer_offset, row.lag) for row in admin.lag("workers", "Work")] == [(1, 0)]
