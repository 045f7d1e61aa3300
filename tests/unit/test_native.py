"""What counts as the compiled part, and how it is told."""

import inspect
import os
import shutil
import subprocess
import sys
import zlib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from ogive import native
from ogive.native import Native

ROOT = Path(__file__).parents[2]
PURE = "pure Python"
OTHER = "pure Python, as the compiled part is not of these sources: install ogive again"
COMPILED = "with its compiled part"
SOURCE = b"int main(void);\n"


def told(folder: Path, **environment: str) -> str:
    """By a package of *folder*/src that holds ogive.native alone."""
    package = folder / "src" / "ogive"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    shutil.copy(ROOT / "src" / "ogive" / "native.py", package)
    code = (
        "from ogive import native as n; assert (n.native is None) == "
        "n.build.startswith('pure'); print(n.build)"
    )
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(folder / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=variables | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def put(folder: Path, compiled: str = "", source: bytes | None = None) -> None:
    """A module in the place of the compiled one, and the source beside it as in a clone."""
    (folder / "src" / "ogive").mkdir(parents=True)
    (folder / "src" / "ogive" / "_native.py").write_text(compiled)
    if source is not None:
        (folder / "native").mkdir()
        (folder / "native" / "module.c").write_bytes(source)


def test_without_a_compiled_part_it_is_pure_python(tmp_path: Path) -> None:
    assert told(tmp_path) == PURE


def test_a_compiled_part_is_taken_unless_ogive_native_is_0(tmp_path: Path) -> None:
    put(tmp_path)
    assert [told(tmp_path), told(tmp_path, OGIVE_NATIVE="1")] == [COMPILED, COMPILED]
    assert told(tmp_path, OGIVE_NATIVE="0") == "pure Python, as OGIVE_NATIVE=0 says"


def test_in_a_clone_only_the_compiled_part_of_these_very_sources_is_taken(tmp_path: Path) -> None:
    """After a git pull it may lack functions, or hold ones that take other arguments."""
    put(tmp_path, f"sources = {zlib.crc32(SOURCE) & 0x7FFFFFFF}", SOURCE)
    assert told(tmp_path) == COMPILED
    (tmp_path / "native" / "module.c").write_bytes(SOURCE + b"int f(void);\n")
    assert told(tmp_path) == OTHER
    (tmp_path / "native" / "module.c").write_bytes(SOURCE)
    (tmp_path / "native" / "new.c").write_bytes(b"int f(void);\n")
    assert told(tmp_path) == OTHER


def test_a_compiled_part_that_does_not_say_of_which_sources_it_is_is_not_taken_in_a_clone(
    tmp_path: Path,
) -> None:
    put(tmp_path, "", SOURCE)
    assert told(tmp_path) == OTHER


@pytest.mark.parametrize("spoilt", [b"", b"\x7fELF", b"\0" * 5000])
def test_a_file_that_cannot_be_loaded_is_none(spoilt: bytes, tmp_path: Path) -> None:
    (tmp_path / "src" / "ogive").mkdir(parents=True)
    (tmp_path / "src" / "ogive" / f"_native{EXTENSION_SUFFIXES[0]}").write_bytes(spoilt)
    assert told(tmp_path).startswith(f"{PURE}, as the compiled part cannot be loaded: ")


def test_every_compiled_function_is_described_and_every_described_one_is_there() -> None:
    if native.native is None:
        pytest.skip("the compiled part was not built, or is left out by OGIVE_NATIVE=0")
    described = {
        name
        for name, value in vars(Native).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert described == {
        name for name, value in vars(native.native).items() if inspect.isbuiltin(value)
    }
    assert all(vars(Native)[name].__doc__ for name in described)
