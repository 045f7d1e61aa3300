"""The compiled part touches no byte that is not its own, and leaves nothing behind.

It is built once more for the sanitizers, which end the process at the first fault. Python's own
allocator stands between them and the objects, so that it is switched off.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = [pytest.mark.rel, pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT: Final = Path(__file__).parents[2]
# Python's own -fwrapv would let signed numbers overflow
SANITIZE: Final = [
    "-std=c11",
    "-g",
    "-O1",
    "-fno-wrapv",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
]
TESTS: Final = ("tests/unit/native", "tests/rel/test_fuzz.py::test_the_corpus_passes")
WRONG: Final = """\
#include "native.h"

/* wrong(kind) */
PyObject *native_wrong(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    char kind = count == 1 && PyBytes_Check(args[0]) ? PyBytes_AS_STRING(args[0])[0] : 0;
    volatile int number = 0x7FFFFFFF;
    if (kind == 'a') /* the byte behind the zero that ends each bytes object */
        return PyLong_FromLong(PyBytes_AS_STRING(args[0])[PyBytes_GET_SIZE(args[0]) + 1]);
    if (kind == 'u')
        number += 1;
    if (kind == 'r')
        Py_INCREF(args[0]);
    if (kind == 'm')
        PyBytes_FromStringAndSize(NULL, 1000);
    return PyLong_FromLong(number);
}
"""


def library(name: str) -> Path | None:
    """Of the compiler."""
    compiler = shutil.which("gcc")
    if compiler is None:
        return None
    found = Path(subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip())
    return found.resolve() if found.is_absolute() else None


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Of a process whose compiled part the sanitizers watch."""
    libraries = [library("libasan.so"), library("libubsan.so")]
    if None in libraries:
        if os.environ.get("CI"):
            pytest.fail("there is no gcc with its sanitizers")
        pytest.skip("there is no gcc with its sanitizers")
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in ("OGIVE_NATIVE", "OGIVE_RAN", "OGIVE_FAILED", "OGIVE_FIGURES")
    }
    return variables | {
        "LD_PRELOAD": " ".join(map(str, libraries)),
        "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=64",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def build(sources: Path, folder: Path) -> Path:
    """A copy of the package with *sources* compiled for the sanitizers; what PYTHONPATH names."""
    pytest.importorskip("setuptools")
    package = folder / "src"
    shutil.copytree(
        ROOT / "src", package, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    )
    code = (
        "import sys; from pathlib import Path; from hatch_build import build; "
        "build(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])"
    )
    command = [sys.executable, "-c", code, str(sources), str(package / "ogive"), *SANITIZE]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT), "CC": "gcc"}, check=True)
    return package


def run(arguments: list[str], environment: dict[str, str], package: Path) -> tuple[int, str]:
    """(return code, what was said)."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(package)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("examples", ["few", pytest.param("ogive", marks=pytest.mark.nightly)])
def test_no_test_makes_the_compiled_part_touch_or_keep_what_is_not_its_own(
    environment: dict[str, str], tmp_path: Path, examples: str
) -> None:
    package = build(ROOT, tmp_path)
    code, said = run(
        ["-m", "tests.rel.native_calls", "--hypothesis-profile", examples, *TESTS],
        environment,
        package,
    )
    assert code == 0, said[-8000:]
    assert said.startswith(str(package))


def test_what_is_wrong_is_seen(environment: dict[str, str], tmp_path: Path) -> None:
    """A byte behind the end, a number that overflows, an object and memory that are kept."""
    shutil.copytree(ROOT / "native", tmp_path / "native")
    (tmp_path / "native" / "wrong.c").write_text(WRONG)
    header = tmp_path / "native" / "native.h"
    text = header.read_text()
    assert text.count(" DO(frames) ") == 1
    header.write_text(text.replace(" DO(frames) ", " DO(frames) DO(wrong) "))
    package = build(tmp_path, tmp_path / "copy")

    def said(kinds: str) -> str:
        calls = "".join(f"    native.wrong(b{kind!r} * 50)\n" for kind in kinds)
        (tmp_path / "test_wrong.py").write_text(
            f"from ogive.native import native\n\n\ndef test_it() -> None:\n{calls}"
        )
        code, text = run(
            ["-m", "tests.rel.native_calls", "-c", os.devnull, str(tmp_path / "test_wrong.py")],
            environment,
            package,
        )
        assert code != 0
        return text

    assert "heap-buffer-overflow" in said("a")
    assert "signed integer overflow" in said("u")
    found = said("-rm")
    assert found.count("wrong(") == 2
    assert f" references to {b'r' * 50!r} a call" in found
    assert " bytes a call" in found
    assert "crc32 was never called" in found
