"""GitHub's workflows call only targets of the Makefile, and its forms are valid."""

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(
    set((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) - {GITHUB / "ISSUE_TEMPLATE/config.yml"}
)
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.7"
names = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


@names
def test_a_workflow_runs_only_targets_of_the_makefile(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    commands = re.findall(r"\brun: (.*)", path.read_text("utf-8"))
    assert commands
    assert {command.removeprefix("make ") for command in commands} <= targets


@names
def test_a_workflow_names_its_actions_by_commit(path: Path) -> None:
    actions = re.findall(r"\buses: (.*)", path.read_text("utf-8"))
    assert actions
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action) for action in actions)


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
    ],
)
def test_files_for_github_match_its_schemas(schema: str, paths: list[Path]) -> None:
    program = Path(sysconfig.get_path("scripts"), "check-jsonschema")
    if not program.exists():
        pytest.skip("check-jsonschema is installed by make check")
    command = [str(program), "--builtin-schema", f"vendor.{schema}", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# Go compiles it first
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_actionlint_finds_nothing_in_the_workflows() -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("actionlint is a program in Go, which is not on PATH")
    done = subprocess.run(
        [go, "run", ACTIONLINT, *map(str, WORKFLOWS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
