"""A folder in which tools/setup can be tried, and an interpreter that only plays along."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def setup_command(clone: Path, what: str) -> list[str]:
    """tools/setup in an empty clone."""
    (clone / "tools").mkdir(exist_ok=True)
    shutil.copy(ROOT / "tools" / "setup", clone / "tools")
    bash = shutil.which("bash")
    assert bash
    return [bash, str(clone / "tools" / "setup"), what]


def set_up(clone: Path, what: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run tools/setup in an empty clone."""
    command = setup_command(clone, what)
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def only(folder: Path, *programs: str) -> str:
    """A PATH with nothing but *programs*."""
    folder.mkdir()
    for program in programs:
        found = shutil.which(program)
        assert found
        (folder / program).symlink_to(found)
    return str(folder)


def make_empty_clone(folder: Path) -> None:
    """All that tools/setup looks at, without anything in it."""
    for name in ("requirements", "native", "src/ogive"):
        (folder / name).mkdir(parents=True)
    for name in ("build", "run", "data", "java"):
        (folder / "requirements" / f"{name}.txt").touch()
    for name in ("pyproject.toml", "hatch_build.py", "native/crc.c", "native/native.h"):
        (folder / name).touch()


def make_interpreter(folder: Path, first: str = "", last: str = "") -> Path:
    """A program that is new enough and makes environments of itself, and does nothing else but the
    code *first* and *last*.
    """
    program = folder / "python"
    program.write_text(_INTERPRETER.format(python=sys.executable, first=first, last=last))
    program.chmod(0o755)
    return program


_INTERPRETER: Final = """#!{python}
import os, pathlib, shutil, sys
{first}
if sys.argv[1:2] == ["-c"]:
    print(True)
elif sys.argv[1:3] == ["-m", "venv"]:
    for program in ("python", "pip"):
        there = pathlib.Path(sys.argv[3], "bin", program)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(pathlib.Path(__file__).read_bytes())
        there.chmod(0o755)
{last}
"""
