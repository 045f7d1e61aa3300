"""The project's own promises: what is pinned, what make says when something is missing, that the
list of features is true, and that text names only files and modules that there are.
"""

import os
import re
import shutil
import signal
import subprocess
import tomllib
from pathlib import Path

import pytest

import ogive
from tests import lanes
from tests.interop.apache import OLDER
from tests.setting_up import make_empty_clone, make_interpreter, only, set_up, setup_command
from tools import features

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
    assert all(
        re.match(r"[\w.-]+==[\w.]+", entry) and "--hash=sha256:" in entry for entry in entries
    )
    assert "://" not in text
    assert "index-url" not in text


def test_the_list_of_features_is_whole_and_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    """Written by `python tools/features.py --write`."""
    assert features.main([]) == 0, capsys.readouterr().err
    listed = tomllib.loads((ROOT / "docs" / "features.toml").read_text("utf-8"))["feature"]
    assert [row["number"] for row in listed] == list(range(1, 184))


CHECKLIST = """
[names]
1 = "one"
2 = "a \\"second\\" one"
3 = "three"
[reasons]
2 = "not as the first"
"""
MARKED = """
import pytest

pytestmark = [pytest.mark.rel, pytest.mark.feature(2)]

@pytest.mark.feature(1, 2)
@pytest.mark.parametrize("x", ["a", "b"])
def test_there(x): ...

def helper(): ...

class TestAll:
    @pytest.mark.feature(3)
    async def test_inside(self): ...
"""
WRITTEN = """\
open = []

[[feature]]
number = 1
name = "one"
tests = ["tests/unit/test_sample.py::test_there"]

[[feature]]
number = 2
name = "a \\"second\\" one"
reason = "not as the first"
tests = [
    "tests/unit/test_sample.py::test_there",
    "tests/unit/test_sample.py::TestAll::test_inside",
]

[[feature]]
number = 3
name = "three"
tests = ["tests/unit/test_sample.py::TestAll::test_inside"]
"""


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    """A file of tests, in a clone that has no other."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "checklist.toml").write_text(CHECKLIST)
    file = tmp_path / "tests" / "unit" / "test_sample.py"
    file.write_text(MARKED)
    assert features.main(["--write"], tmp_path) == 0
    return file


def test_features_are_written_with_the_tests_that_are_marked(marked: Path, tmp_path: Path) -> None:
    lines = (tmp_path / "docs" / "features.toml").read_text().splitlines(keepends=True)
    assert "".join(line for line in lines if not line.startswith("#")) == WRITTEN


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("test_there", "test_here", "docs/features.toml is not what the tests say: run `python"),
        ("feature(3)", "slow", "no test shows feature 3 (three): mark one with @pytest.mark.fe"),
        ("feature(3)", "feature(3, 9)", "::TestAll::test_inside shows feature 9, which the che"),
        ("def helper", "@pytest.mark.feature(3)\ndef helper", "py:10: pytest.mark.feature must"),
        (
            "feature(3)",
            "feature",
            "py:13: pytest.mark.feature must be called, on a test, on a class",
        ),
        ('"b"', 'pytest.param("b", marks=pytest.mark.feature(1))', "py:7: pytest.mark.feature mu"),
    ],
    ids=["renamed", "not shown", "unknown", "no test", "not called", "of a parameter"],
)
def test_a_wrong_marker_of_a_feature_is_found(
    old: str, new: str, fault: str, marked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marked.write_text(MARKED.replace(old, new))
    assert features.main([], tmp_path) == 1
    assert fault in capsys.readouterr().err


@pytest.mark.usefixtures("marked")
def test_a_feature_whose_test_did_not_pass_is_found(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran, inside = tmp_path / "ran", "tests/unit/test_sample.py::TestAll::test_inside"
    ran.write_text(f"tests/unit/test_sample.py::test_there[a]\n{inside}\n")
    assert features.main(["--ran", str(ran)], tmp_path) == 0
    ran.write_text(f"tests/unit/test_sample.py::test_there[a]\n{inside}_too\n")
    assert features.main(["--ran", str(ran)], tmp_path) == 1
    assert f"feature 3 (three): {inside} did not pass" in capsys.readouterr().err


# --- names in text -----------------------------------------------------------------------------

FOLDERS = (
    "src",
    "tests",
    "tools",
    "bench",
    "docs",
    "examples",
    "integrations",
    "native",
    "requirements",
)
PLACES = {path.relative_to(ROOT).as_posix() for top in FOLDERS for path in (ROOT / top).rglob("*")}
PLACES.add("hatch_build.py")
TEXTS = [
    *sorted(place for place in PLACES if place.endswith((".py", ".md", ".c", ".h", ".in"))),
    *("CONTRIBUTING.md", "README.md", "Makefile", "pyproject.toml", ".ci/run", "tools/setup"),
]
BELOW = rf"(?:{'|'.join(FOLDERS)})/[\w./-]*\w"
PATH = re.compile(rf"(?<![\w./*-])(?:\.\./)*({BELOW}|(?:[\w-]+/)*\w+\.py\b)(?:::(\w+))?")
MODULE = re.compile(r"(?<![\w./@-])(?:-m )?((?:ogive|tests|(?<=-m )bench)(?:\.[a-z]\w*)+)")
SAMPLE = re.compile(r"NAME|VERSION|_native|sample|ogive\.(toml|zip|x\b|submodule_search)")
"""Part of a name that stands for any other, of a file that is made, or of an attribute."""
SOMEBODY_ELSES = {
    "job.py",
    "pyspark/daemon.py",
    "bench_app.py",
    "shop.py",
    "test_shop.py",
    "test_wrong.py",
}


def is_path(path: str, test: str | None, file: str) -> bool:
    """Return True if *path*, named in *file*, is a file or folder of ours, and defines *test*."""
    if path.partition("/")[0] in FOLDERS:
        places = PLACES & {path}
    elif file.startswith("tests/") and not path.startswith("test_"):
        # mostly of a file that a test writes
        return True
    else:
        places = {place for place in PLACES if f"/{place}".endswith(f"/{path}")}
    if test is None:
        return bool(places)
    return any(f"def {test}(" in (ROOT / place).read_text("utf-8") for place in places)


def is_module(name: str) -> bool:
    """Return True for a module or package of ours, and for a name that its text has."""
    path = f"src/{name}".replace(".", "/") if name.startswith("ogive") else name.replace(".", "/")
    if PLACES & {path, f"{path}.py"}:
        return True
    above, _, last = path.rpartition("/")
    sources = PLACES & {f"{above}.py", f"{above}/__init__.py"}
    if not sources and not (ROOT / above).is_dir():
        return is_module(name.rpartition(".")[0])
    return any(re.search(rf"\b{last}\b", (ROOT / source).read_text("utf-8")) for source in sources)


def stale_names(file: str, text: str) -> list[str]:
    """Return a sentence for each file, test and module that *text* names and that is not there."""
    found = [match for match in PATH.finditer(text) if not is_path(match[1], match[2], file)]
    found += [match for match in MODULE.finditer(text) if not is_module(match[1])]
    return [
        f"{file}:{text.count(chr(10), 0, match.start()) + 1}: there is no {match[0]}"
        for match in found
        if not SAMPLE.search(match[0]) and match[0] not in SOMEBODY_ELSES
    ]


def test_files_tests_and_modules_that_text_names_are_there() -> None:
    texts = {file: (ROOT / file).read_text("utf-8") for file in TEXTS}
    assert [line for file, text in texts.items() for line in stale_names(file, text)] == []


@pytest.mark.parametrize(
    ("file", "text", "stale"),
    [
        ("docs/broker.md", "see `store/sample.py`", "store/sample.py"),
        ("docs/broker.md", "[a test](../tests/test_sample.py)", "../tests/test_sample.py"),
        ("Makefile", "pytest tests/lanes.py::test_sample", "tests/lanes.py::test_sample"),
        ("tests/lanes.py", "# test_sample.py has the rest", "test_sample.py"),
        ("Makefile", "pytest tests/sample", "tests/sample"),
        ("native/native.h", "/* Python: wire/sample.py. */", "wire/sample.py"),
        ("tests/lanes.py", "getLogger('ogive.store.sample')", "ogive.store.sample"),
        (
            "tests/lanes.py",
            "setattr('ogive.store.message_store.sample', 1)",
            "ogive.store.message_store.sample",
        ),
        ("docs/broker.md", "`python -m tests.sample`", "-m tests.sample"),
        ("docs/broker.md", "`python -m bench.sample.main`", "-m bench.sample.main"),
    ],
)
def test_a_stale_name_in_text_is_found(file: str, text: str, stale: str) -> None:
    text, stale = text.replace("sample", "left_behind"), stale.replace("sample", "left_behind")
    assert stale_names(file, f"first line\n{text}") == [f"{file}:2: there is no {stale}"]


def test_a_missing_java_is_one_sentence_that_says_how_to_get_it(tmp_path: Path) -> None:
    done = set_up(tmp_path, "interop", PATH=only(tmp_path / "bin", "dirname", "sed", "head"))
    assert done.returncode == 1
    assert done.stderr == (
        "Java 17 or newer is needed to run Apache RocketMQ: install a JDK (Debian: apt-get install "
        "openjdk-17-jdk-headless).\n"
    )


def test_a_java_home_that_maven_cannot_use_is_one_sentence_that_names_it(tmp_path: Path) -> None:
    """Maven goes by JAVA_HOME, whatever is on PATH."""
    done = set_up(tmp_path, "interop", PATH=os.environ["PATH"], JAVA_HOME="/nowhere/java")
    assert done.returncode == 1
    assert done.stderr == (
        "JAVA_HOME is /nowhere/java, which holds no JDK 17 or newer: set it to one, or unset it. "
        "Maven and Apache RocketMQ need that.\n"
    )


def test_an_old_python_is_one_sentence_that_says_how_to_get_another(tmp_path: Path) -> None:
    done = set_up(tmp_path, "run", PATH=os.environ["PATH"], OGIVE_PYTHON="false")
    assert done.returncode == 1
    assert done.stderr == (
        "Python 3.11 or newer is needed and false is not one: install it (Debian: apt-get install "
        "python3 python3-venv) "
        "or name one with OGIVE_PYTHON=/path/to/python.\n"
    )


# Says on standard error that STEP has begun, from a process of its own, and then waits.
WAITS = """
import subprocess
if sys.argv[1:3] == ["-m", STEP]:
    code = "import signal, sys; print('begun', file=sys.stderr, flush=True); signal.pause()"
    subprocess.run([sys.executable, "-c", code])
    sys.exit()
"""


def _listen_to_sigint() -> None:
    """Tests that run in a shell's background are started with the signal ignored, and a shell that
    is cannot change that.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("step", ["venv", "pip"])
def test_ctrl_c_during_set_up_is_one_line_and_the_next_run_starts_afresh(
    step: str, tmp_path: Path
) -> None:
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
        # returns when the last process that holds the pipe is gone, also the waiting one
        _, errors = first.communicate(timeout=60)
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
    return subprocess.run(
        ["bash", ".ci/run", "--list"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def test_the_budgets_of_ci_add_up_to_at_most_60_minutes() -> None:
    assert sum(int(line.split()[0]) for line in ci_steps().splitlines()) <= 60


def test_a_part_of_the_long_sizes_that_does_not_exist_is_one_sentence() -> None:
    done = subprocess.run(
        ["make", "test-slow", "PART=nope"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    parts = " ".join(lanes.PARTS)
    assert done.stderr.splitlines()[0] == f"PART must be one of: {parts}, got nope"


def test_ci_runs_every_target_that_tests() -> None:
    """interop in all its parts, on every release that tools/setup fetches."""
    make = (ROOT / "Makefile").read_text("utf-8")
    run = re.findall(r"make ([\w-]+)(?: OLDER=([\d.]+))?", ci_steps())
    targets = list(dict.fromkeys(target for target, _ in run))
    (parts,) = re.findall(r"^interop: (.*)$", make, re.MULTILINE)
    assert targets == ["check", "docs", "test", *parts.split(), "spark-releases"]
    releases = tuple(release for target, release in run if target == "interop-older")
    assert releases == OLDER
    assert f"OLDER ?= {' '.join(OLDER)}\n" in make


def test_no_large_file_is_tracked() -> None:
    """A store that a broker left in the clone was committed once: data that a program can make
    again stays out.
    """
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git clone")
    tracked = subprocess.run(
        [git, "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True
    ).stdout.split("\0")
    assert [
        name
        for name in tracked
        if name and (ROOT / name).is_file() and (ROOT / name).stat().st_size > 256 * 1024
    ] == []


@pytest.mark.feature(107)
def test_that_concurrent_listeners_keep_no_order_is_documented() -> None:
    assert "**no order** among concurrent calls" in (ROOT / "docs" / "consuming.md").read_text(
        "utf-8"
    )
