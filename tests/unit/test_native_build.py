"""hatch_build.py and what tools/setup makes of it: with a C compiler, without one, and with one
that comes later.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from tests.setting_up import make_empty_clone, make_interpreter, only, set_up

ROOT = Path(__file__).parents[2]
NAME = f"_native{EXTENSION_SUFFIXES[0]}"
WARNING = (
    "ogive is installed as pure Python, without its compiled part; it needs a C compiler and "
    "Python's headers"
)
REFUSAL = (
    "RuntimeError: OGIVE_NATIVE=1, but the compiled part cannot be built; it needs a C "
    "compiler and Python's headers"
)
BUILD = "import hatchling.build, sys; print(hatchling.build.build_{kind}(sys.argv[1]))"


@pytest.fixture(scope="module")
def compiler() -> None:
    """Skips where nothing can be compiled, unless this is CI."""
    if not shutil.which("cc") or not Path(sysconfig.get_path("include"), "Python.h").exists():
        if os.environ.get("CI"):
            pytest.fail("there is no C compiler with Python's headers")
        pytest.skip("there is no C compiler with Python's headers")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of what the package is made of, with a compiled part that was left there, and an empty
    folder for temporary files.
    """
    pytest.importorskip("hatchling")
    folder = tmp_path / "clone"
    without = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
    for name in ("src", "native"):
        shutil.copytree(ROOT / name, folder / name, ignore=without)
    for name in (
        "pyproject.toml",
        "hatch_build.py",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        ".gitignore",
    ):
        shutil.copy(ROOT / name, folder)
    (folder / "src" / "ogive" / NAME).write_bytes(b"of another day")
    (tmp_path / "temporary").mkdir()
    return folder


def built(clone: Path, kind: str, **environment: str) -> tuple[Path | None, str]:
    """(what hatchling built as pip has it done, all that was said).

    It leaves no temporary files.
    """
    out, temporary = clone.with_name("out"), clone.with_name("temporary")
    variables = {
        name: value for name, value in os.environ.items() if name not in ("CC", "OGIVE_NATIVE")
    }
    command = [sys.executable, "-c", BUILD.format(kind=kind), str(out)]
    done = subprocess.run(
        command,
        cwd=clone,
        env=variables | {"TMPDIR": str(temporary)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert list(temporary.iterdir()) == []
    return None if done.returncode else out / done.stdout.splitlines()[-1], done.stdout


def names_in(wheel: Path | None) -> list[str]:
    assert wheel is not None
    return zipfile.ZipFile(wheel).namelist()


def without_headers(folder: Path) -> str:
    """A compiler that does not find Python.h."""
    program = folder / "compiler"
    program.write_text(
        '#!/bin/bash\nfor one; do shift; case $one in -I*) ;; *) set -- "$@" "$one" ;; esac; '
        'done\nexec cc "$@"\n'
    )
    program.chmod(0o755)
    return str(program)


@pytest.mark.slow
def test_what_pip_installs_from_an_sdist_has_its_compiled_part_and_is_for_this_platform(
    compiler: None, clone: Path
) -> None:
    sdist, _ = built(clone, "sdist")
    assert sdist is not None
    with tarfile.open(sdist) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert {f"native/{path.name}" for path in (ROOT / "native").iterdir()} | {
        "hatch_build.py",
        "pyproject.toml",
    } <= inside
    assert f"src/ogive/{NAME}" not in inside

    target = clone.with_name("target")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
    ]
    environment = os.environ | {"OGIVE_NATIVE": "1", "PYTHONPATH": str(target)}
    subprocess.run([*pip, "--target", target, sdist], env=environment, check=True, timeout=100)
    (wheel,) = target.glob("ogive-*.dist-info/WHEEL")
    assert "Root-Is-Purelib: false" in wheel.read_text()
    assert "-none-any" not in wheel.read_text()
    told = [
        sys.executable,
        "-c",
        "import ogive.native as n; print(n.native.__file__, n.native.crc32(b'a'))",
    ]
    assert (
        subprocess.check_output(told, env=environment, text=True)
        == f"{target / 'ogive' / NAME} {0xE8B7BE43}\n"
    )


@pytest.mark.parametrize("kind", ["fails", "is not there", "has no headers"])
def test_without_a_compiler_the_wheel_is_pure_python_and_pip_can_say_why(
    kind: str, compiler: None, clone: Path
) -> None:
    cc = {
        "fails": "/bin/false",
        "is not there": "no-compiler",
        "has no headers": without_headers(clone),
    }[kind]
    wheel, said = built(clone, "wheel", CC=cc)
    assert wheel is not None
    assert wheel.name.endswith("-py3-none-any.whl")
    assert f"ogive/{NAME}" not in names_in(wheel)
    assert "ogive/native.py" in names_in(wheel)
    assert WARNING in said
    assert kind != "has no headers" or "Python.h" in said


def test_ogive_native_1_refuses_to_build_without_a_compiler(clone: Path) -> None:
    wheel, said = built(clone, "wheel", CC="/bin/false", OGIVE_NATIVE="1")
    assert wheel is None
    assert said.splitlines()[-1].startswith(REFUSAL)


def test_ogive_native_0_builds_a_pure_wheel(clone: Path) -> None:
    wheel, said = built(clone, "wheel", OGIVE_NATIVE="0")
    assert wheel is not None
    assert wheel.name.endswith("-py3-none-any.whl")
    assert f"ogive/{NAME}" not in names_in(wheel)
    assert "compiled" not in said


def test_an_editable_install_replaces_the_compiled_part_at_once(
    compiler: None, clone: Path
) -> None:
    """Who has the old file loaded keeps it whole, and nobody meets half a new one."""
    place = clone / "src" / "ogive" / NAME
    kept = place.open("rb")
    wheel, _ = built(clone, "editable")
    with kept:
        assert kept.read() == b"of another day"
    assert f"ogive/{NAME}" not in names_in(wheel)
    assert list(place.parent.glob("_native*")) == [place]
    code = "import ogive.native as n; print(n.native.__file__)"
    said = subprocess.check_output(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(clone / "src"), "OGIVE_NATIVE": ""},
        text=True,
    )
    assert said == f"{place}\n"


def test_a_build_that_fails_leaves_the_compiled_part_as_it_was(clone: Path) -> None:
    _, said = built(clone, "editable", CC="/bin/false")
    assert WARNING in said
    assert (clone / "src" / "ogive" / NAME).read_bytes() == b"of another day"


# Its pip notes each call, and compiles where there is a cc.
COMPILES = """
part = pathlib.Path("src/ogive/_native.so")
if sys.argv[1:2] == ["-c"]:
    sys.exit("native is None" in sys.argv[2] and not part.exists())
if "--editable" in sys.argv:
    with open("calls", "a") as calls:
        calls.write("OGIVE_NATIVE=" + os.environ.get("OGIVE_NATIVE", "") + "\\n")
    if shutil.which("cc"):
        part.touch()
"""


def test_set_up_goes_on_without_a_compiler_and_compiles_when_there_is_one(tmp_path: Path) -> None:
    """Once each, whatever OGIVE_NATIVE says of the run that comes."""
    make_empty_clone(tmp_path)
    python = make_interpreter(tmp_path, last=COMPILES)
    programs = (
        "bash",
        "dirname",
        "mktemp",
        "rm",
        "mkdir",
        "cat",
        "cmp",
        "cp",
        "sed",
        "head",
        "env",
    )
    environment = {
        "PATH": only(tmp_path / "bin", *programs),
        "OGIVE_PYTHON": str(python),
        "TMPDIR": str(tmp_path),
    }

    def said() -> list[str]:
        done = set_up(tmp_path, "run", **environment)
        assert (done.returncode, done.stderr) == (0, "")
        return [line for line in done.stdout.splitlines() if "compile" in line]

    assert [len(said()), len(said())] == [1, 0]
    (tmp_path / "bin" / "cc").symlink_to("/bin/false")
    environment["OGIVE_NATIVE"] = "0"
    assert [said(), said()] == [[], []]
    assert (tmp_path / "calls").read_text() == "OGIVE_NATIVE=\n" * 2
    (tmp_path / "src" / "ogive" / "_native.so").unlink()
    assert [said(), said()] == [[], []]
    assert (tmp_path / "calls").read_text() == "OGIVE_NATIVE=\n" * 3


def test_make_clean_removes_the_compiled_part() -> None:
    clean = (ROOT / "Makefile").read_text("utf-8").partition("\nclean:\n")[2]
    assert "src/ogive/_native.*" in clean
