"""Build the files of a release in dist/: source distribution, wheels, list of components.

python -m tools.wheels           wheels for this platform: one for each Python that is installed
python -m tools.wheels --cross   as well those that Zig compiles for this Python: musl and aarch64
python -m tools.wheels --sbom    only the list of components, as CycloneDX (ogive-VERSION.cdx.json)
python -m tools.wheels --to DIR  all that in another folder than dist/

A wheel belongs to one release of Python. The limited API (abi3) was tried on Python 3.11: reading
and making tuples and bytes through its functions makes a handle cost 30 % more, a read send 12 %,
and 500 messages as one batch six times as much.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ROOT / ".cache" / "wheels"
"""The packages of requirements/wheels.txt, for every Python that builds."""
PYTHONS: Final = ("3.11", "3.12", "3.13")


class Target(NamedTuple):
    """Platform that Zig compiles for."""

    machine: str
    libc: str
    """As in Zig's names: the oldest release of glibc, or musl."""

    @property
    def suffix(self) -> str:
        """End of the name of an extension module for Python 3.11."""
        minor = f"{sys.version_info.major}{sys.version_info.minor}"
        return f".cpython-{minor}-{self.machine}-linux-{self.libc.partition('.')[0]}.so"


CROSS: Final = (
    Target("aarch64", "gnu.2.17"),
    Target("x86_64", "musl"),
    Target("aarch64", "musl"),
)


def run(*command: str | Path, **variables: str) -> None:
    """Run a program that finds PACKAGES. Raises CalledProcessError."""
    path = os.pathsep.join([str(PACKAGES / "bin"), os.environ.get("PATH", "")])
    environment = os.environ | {"PYTHONPATH": str(PACKAGES), "PATH": path} | variables
    # by its place, as subprocess looks for it on the path of this process
    program = shutil.which(command[0], path=path) or command[0]
    subprocess.run([program, *command[1:]], cwd=ROOT, env=environment, check=True)


def pythons() -> Iterator[str]:
    """Yield an interpreter with headers for each release in PYTHONS that is installed.

    This interpreter stands for its own release.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for release in PYTHONS:
        places = [
            sys.executable if release == sysconfig.get_python_version() else f"python{release}",
            *map(str, sorted(pyenv.glob(f"{release}.*/bin/python"))),
        ]
        if usable := next(filter(_usable, places), None):
            yield usable


def _usable(program: str) -> bool:
    """Return True if *program* is a Python with its headers."""
    code = "import os, sysconfig; os.stat(sysconfig.get_path('include') + '/Python.h')"
    try:
        return (
            subprocess.run([program, "-c", code], capture_output=True, check=False).returncode == 0
        )
    except FileNotFoundError:
        return False


def build(python: str, kind: str, folder: Path, **variables: str) -> Path:
    """Return what hatchling builds in *folder*, which is empty."""
    run(python, "-m", "hatchling", "build", "-t", kind, "-d", folder, OGIVE_NATIVE="1", **variables)
    (built,) = folder.iterdir()
    return built


def repair(wheel: Path, to: Path) -> None:
    """Write *wheel* to the folder *to* under the tag of the oldest systems that it runs on."""
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", to, wheel)


def cross_build(target: Target, folder: Path) -> Path:
    """Return a wheel of this Python for another platform, compiled by Zig."""
    name = f"{target.machine}-linux-{target.libc}"
    compiler = f"{sys.executable} -m ziglang cc -target {name}"
    wheel = build(
        sys.executable,
        "wheel",
        folder,
        CC=compiler,
        LDSHARED=f"{compiler} -shared -s",
        _PYTHON_HOST_PLATFORM=f"linux-{target.machine}",
        SETUPTOOLS_EXT_SUFFIX=target.suffix,
    )
    if target.libc == "musl":
        _name_musl(wheel, target.machine)
    return wheel


def _name_musl(wheel: Path, machine: str) -> None:
    """Let the extension module need musl under the name that its distributions give it.

    Zig links to ``libc.so``, which auditwheel does not know.
    """
    from auditwheel.wheeltools import InWheelCtx

    with InWheelCtx(wheel, wheel) as inside:
        (module,) = inside.path.glob("ogive/_native.*")
        run("patchelf", "--replace-needed", "libc.so", f"libc.musl-{machine}.so.1", module)


def components() -> set[str]:
    """Return the packages that ``ogive[all]`` installs, by their normalized names."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    waiting = [Requirement("ogive[all]")]
    while waiting:
        wanted = waiting.pop()
        for line in metadata.requires(wanted.name) or ():
            needed = Requirement(line)
            extras = wanted.extras or {""}
            if needed.marker and not any(needed.marker.evaluate({"extra": e}) for e in extras):
                continue
            if needed.extras or normalized(needed.name) not in found:
                found.add(normalized(needed.name))
                waiting.append(needed)
    return found - {"ogive"}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def write_sbom(to: Path) -> Path:
    """Write the components of ``ogive[all]`` with their licences to a file in *to*: CycloneDX."""
    wanted = components()
    with tempfile.TemporaryDirectory(prefix="ogive-sbom-") as folder:
        whole = Path(folder, "environment.json")
        run(
            *(sys.executable, "-m", "cyclonedx_py", "environment", "--mc-type", "library"),
            *("--pyproject", ROOT / "pyproject.toml", "--output-reproducible"),
            *("-o", whole, sys.executable),
        )
        listed = json.loads(whole.read_text("utf-8"))
    path = to / f"ogive-{metadata.version('ogive')}.cdx.json"
    path.write_text(json.dumps(_only(listed, wanted), indent=2) + "\n", "utf-8")
    return path


def _only(listed: Mapping[str, Any], wanted: set[str]) -> dict[str, Any]:
    """Return the list *listed* of an environment with nothing but the components *wanted*."""
    kept = [part for part in listed["components"] if normalized(part["name"]) in wanted]
    for part in kept:
        if not part.get("licenses"):
            # in words alone, which the program leaves out
            words = metadata.metadata(part["name"])["License"]
            part["licenses"] = [{"license": {"name": words, "acknowledgement": "declared"}}]
    names = {part["bom-ref"] for part in kept} | {listed["metadata"]["component"]["bom-ref"]}
    dependencies = [
        row | {"dependsOn": [ref for ref in row.get("dependsOn", ()) if ref in names]}
        for row in listed["dependencies"]
        if row["ref"] in names
    ]
    return {**listed, "components": kept, "dependencies": dependencies}


def main() -> None:
    """Raises CalledProcessError if a program fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.wheels")
    parser.add_argument("--cross", action="store_true")
    parser.add_argument("--sbom", action="store_true")
    parser.add_argument("--to", type=Path, metavar="DIR", default=ROOT / "dist")
    options = parser.parse_args()
    # for auditwheel and packaging
    sys.path.append(str(PACKAGES))
    options.to.mkdir(parents=True, exist_ok=True)
    if not options.sbom:
        write_wheels(options.to, cross=options.cross)
    print(write_sbom(options.to))


def write_wheels(to: Path, *, cross: bool) -> None:
    """Write the source distribution and the wheels to the folder *to*."""
    with tempfile.TemporaryDirectory(prefix="ogive-wheels-") as work:
        folders = (Path(work, str(number)) for number in range(100))
        shutil.copy(build(sys.executable, "sdist", next(folders)), to)
        for python in pythons():
            repair(build(python, "wheel", next(folders)), to)
        for target in CROSS if cross else ():
            repair(cross_build(target, next(folders)), to)


if __name__ == "__main__":
    main()
