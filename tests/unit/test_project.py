"""The project's own promises: what is pinned, what make says when something is missing, and that the list of features is true."""

import os
import re
import shutil
import signal
import subprocess
import tomllib
from pathlib import Path

import pytest

import ogive
from tests.interop.apache import OLDER
from tests.setting_up import make_empty_clone, make_interpreter, only, set_up, setup_command
from tools.features import Features, defined_tests, missing_tests, not_passed

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))


def test_the_core_depends_on_nothing() -> None:
    assert PROJECT["dependencies"] == []
    assert set(PROJECT["optional-dependencies"]) >= {"spark", "cli", "fast", "all"}


def test_the_version_is_the_packages() -> None:
    assert ogive.__version__ == PROJECT["version"]


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.name)
def test_every_requirement_is_pinned_with_hashes_and_names_no_index(path: Path) -> None:
    text = path.read_text("utf-8")
    entries = re.split(r"\n(?=\S)", text.strip())
    assert all(re.match(r"[\w.-]+==[\w.]+", entry) and "--hash=sha256:" in entry for entry in entries)
    assert "://" not in text
    assert "index-url" not in text


def test_every_feature_is_shown_by_tests_that_exist_or_is_open() -> None:
    features = Features.load(ROOT / "docs" / "features.toml")
    assert features.faults() + missing_tests(features, ROOT) == []


def test_a_feature_without_its_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_there(): ...\nclass TestAll:\n    async def test_inside(self): ...\n")
    assert defined_tests(tmp_path / "test_a.py") == {"test_there", "TestAll::test_inside"}
    shown = {
        1: ("one", ("test_a.py::test_there", "test_a.py::TestAll::test_inside")),
        2: ("two", ("test_a.py::test_gone", "test_b.py::test_x")),
        3: ("three", ()),
    }
    features = Features(shown=shown, open=frozenset(range(3, 183)))
    assert missing_tests(features, tmp_path) == [
        "feature 2 (two): there is no test test_a.py::test_gone",
        "feature 2 (two): there is no test test_b.py::test_x",
    ]
    assert features.faults() == ["feature 3 is shown and open", "feature 183 is neither shown nor open", "feature 3 (three) names no test"]


def test_a_feature_whose_test_did_not_pass_is_found() -> None:
    features = Features(shown={1: ("one", ("test_a.py::test_x", "test_a.py::test_y"))}, open=frozenset())
    assert not_passed(features, {"test_a.py::test_x[json]", "test_a.py::test_z"}) == ["feature 1 (one): test_a.py::test_y did not pass"]


def test_a_missing_java_is_one_sentence_that_says_how_to_get_it(tmp_path: Path) -> None:
    done = set_up(tmp_path, "interop", PATH=only(tmp_path / "bin", "dirname", "sed", "head"))
    assert done.returncode == 1
    assert done.stderr == (
        "Java 17 or newer is needed to run Apache RocketMQ: install a JDK (Debian: apt-get install openjdk-17-jdk-headless).\n"
    )


def test_a_java_home_that_maven_cannot_use_is_one_sentence_that_names_it(tmp_path: Path) -> None:
    """Maven goes by JAVA_HOME, whatever is on PATH."""
    done = set_up(tmp_path, "interop", PATH=os.environ["PATH"], JAVA_HOME="/nowhere/java")
    assert done.returncode == 1
    assert done.stderr == (
        "JAVA_HOME is /nowhere/java, which holds no JDK 17 or newer: set it to one, or unset it. Maven and Apache RocketMQ need that.\n"
    )


def test_an_old_python_is_one_sentence_that_says_how_to_get_another(tmp_path: Path) -> None:
    done = set_up(tmp_path, "run", PATH=os.environ["PATH"], OGIVE_PYTHON="false")
    assert done.returncode == 1
    assert done.stderr == (
        "Python 3.11 or newer is needed and false is not one: install it (Debian: apt-get install python3 python3-venv) "
        "or name one with OGIVE_PYTHON=/path/to/python.\n"
    )


# Says on standard error that STEP has begun, from a process of its own, and then waits.
WAITS = """
import subprocess
if sys.argv[1:3] == ["-m", STEP]:
    subprocess.run([sys.executable, "-c", "import signal, sys; print('begun', file=sys.stderr, flush=True); signal.pause()"])
    sys.exit()
"""


def _listen_to_sigint() -> None:
    """Tests that run in a shell's background are started with the signal ignored, and a shell that is cannot change that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("step", ["venv", "pip"])
def test_ctrl_c_during_set_up_is_one_line_and_the_next_run_starts_afresh(step: str, tmp_path: Path) -> None:
    """As a terminal does it: to every process of the foreground group. No process stays."""
    make_empty_clone(tmp_path)
    python = make_interpreter(tmp_path, WAITS.replace("STEP", repr(step)))
    environment = {"PATH": os.environ["PATH"], "OGIVE_PYTHON": str(python), "TMPDIR": str(tmp_path)}
    command = setup_command(tmp_path, "run")
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_listen_to_sigint,  # noqa: PLW1509  it starts no thread and takes no lock
    ) as first:
        assert first.stderr is not None
        assert first.stderr.readline() == "begun\n"
        os.killpg(first.pid, signal.SIGINT)
        _, errors = first.communicate(timeout=30)  # returns when the last process that holds the pipe is gone, also the waiting one
    assert first.returncode == 130
    assert errors == "setup: interrupted; the same command makes .venv whole\n"
    assert not list(tmp_path.glob("tmp.*"))

    (tmp_path / ".venv" / "half-made").touch()
    make_interpreter(tmp_path)
    second = set_up(tmp_path, "run", **environment)
    assert (second.returncode, second.stderr) == (0, "")
    assert (tmp_path / ".venv" / "bin" / "pip").exists()
    assert not (tmp_path / ".venv" / "half-made").exists()
    third = set_up(tmp_path, "run", **environment)
    assert (third.returncode, third.stdout) == (0, "")


def ci_steps() -> str:
    """A line each: the budget in minutes, then the command."""
    return subprocess.run(["bash", ".ci/run", "--list"], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_budgets_of_ci_add_up_to_at_most_an_hour() -> None:
    assert sum(int(line.split()[0]) for line in ci_steps().splitlines()) <= 60


def test_a_part_of_the_long_sizes_that_does_not_exist_is_one_sentence() -> None:
    done = subprocess.run(["make", "test-slow", "PART=nope"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == "PART must be one of: spark interop long, got nope"


def test_ci_runs_every_target_that_tests() -> None:
    """interop in all its parts, on every release that tools/setup fetches."""
    make = (ROOT / "Makefile").read_text("utf-8")
    run = re.findall(r"make ([\w-]+)(?: OLDER=([\d.]+))?", ci_steps())
    targets = list(dict.fromkeys(target for target, _ in run))
    (parts,) = re.findall(r"^interop: (.*)$", make, re.MULTILINE)
    assert targets == ["check", "test", *parts.split(), "spark-releases"]
    releases = tuple(release for target, release in run if target == "interop-older")
    assert releases == OLDER
    assert f"OLDER ?= {' '.join(OLDER)}\n" in make


def test_no_large_file_is_tracked() -> None:
    """A store that a broker left in the clone was committed once: data that a program can make again stays out."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git clone")
    tracked = subprocess.run([git, "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True).stdout.split("\0")
    assert [name for name in tracked if name and (ROOT / name).is_file() and (ROOT / name).stat().st_size > 256 * 1024] == []


def test_that_concurrent_listeners_keep_no_order_is_documented() -> None:
    assert "**no order** among concurrent calls" in (ROOT / "docs" / "consuming.md").read_text("utf-8")
