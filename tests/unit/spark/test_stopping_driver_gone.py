"""A stream's source process does not outlive its driver."""

import os
import subprocess
import sys
import time

from ogive.spark.stopping import end_with_driver

# A driver that starts a source's process, says its id, and dies; the source's process would wait
# for a minute.
DRIVER = """
import subprocess, sys
source = '''
import importlib.machinery, sys, time
runner = "pyspark.sql.streaming.python_streaming_source_runner"
sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec(runner, None)
from ogive.spark.stopping import end_with_driver
assert end_with_driver()
print("watching", flush=True)
time.sleep(60)
'''
child = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "watching\\n"
print(child.pid, flush=True)
"""


def test_a_sources_process_ends_with_its_driver() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    pid, ends_at = int(done.stdout), time.monotonic() + 50
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123
            if file.read().rpartition(")")[2].split()[0] == "Z":
                # ended; whoever adopted it has not looked yet
                return
        assert time.monotonic() < ends_at, "the source's process is still there"
        time.sleep(0.1)


def test_any_other_process_is_left_alone() -> None:
    assert not end_with_driver()
