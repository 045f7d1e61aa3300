"""``ogive spark warm``: what it writes is what the next session starts with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly, pytest.mark.apart(60)]

MAPPED = """
from pathlib import Path

import ogive.spark

spark = ogive.spark.session(master="local[1]")
pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
print([line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if ".jsa" in line])
spark.stop()
"""


def run(cache: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return done.stdout


def test_the_next_session_starts_with_the_archive(tmp_path: Path) -> None:
    said = run(tmp_path, "-m", "ogive", "spark", "warm")
    (path,) = tmp_path.glob("ogive/spark-*.jsa")
    assert said.startswith(f"{path}: ")
    assert str(path) in run(tmp_path, "-c", MAPPED)
