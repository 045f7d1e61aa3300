"""Builds ogive._native from native/*.c where there is a C compiler; without one ogive is installed
as pure Python, and only slower.

OGIVE_NATIVE=0 leaves it out, OGIVE_NATIVE=1 makes it an error that it cannot be built.
"""

import os
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

_OPTIONS = (
    ["/std:c11", "/O2"]
    if os.name == "nt"
    else ["-std=c11", "-O3", "-g0", "-Wall", "-Wextra", "-fvisibility=hidden"]
)
_NEEDS = "it needs a C compiler and Python's headers (Debian: apt-get install gcc python3-dev)"


class NativeBuildHook(BuildHookInterface[Any]):
    """The custom build hook of pyproject.toml."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wish = os.environ.get("OGIVE_NATIVE", "")
        root = Path(self.root)
        if self.target_name != "wheel":
            return
        if wish == "0":
            if version == "editable":
                remove(root / "src" / "ogive")
            return
        try:
            if version == "editable":
                build(root, root / "src" / "ogive")
                return
            self._folder = tempfile.TemporaryDirectory(prefix="ogive-native-")
            built = build(root, Path(self._folder.name))
        except (OSError, BaseError, CCompilerError) as exc:
            if wish == "1":
                raise RuntimeError(
                    f"OGIVE_NATIVE=1, but the compiled part cannot be built; {_NEEDS}: {exc}"
                ) from None
            self.app.display_warning(
                f"ogive is installed as pure Python, without its compiled part; {_NEEDS}: {exc}"
            )
        else:
            build_data["force_include"][str(built)] = f"ogive/{built.name}"
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def remove(folder: Path) -> None:
    """What was built there before."""
    for path in folder.glob("_native.*"):
        path.unlink()


def build(root: Path, folder: Path, options: list[str] | None = None) -> Path:
    """Compile native/ into *folder*; the file made there, which nobody sees half-written.

    Raises OSError and setuptools' errors.
    """
    files = sorted((root / "native").glob("*.[ch]"))
    extension = Extension(
        "_native",
        [str(path) for path in files if path.suffix == ".c"],
        # see ogive.native
        define_macros=[
            ("SOURCES", str(zlib.crc32(b"".join(path.read_bytes() for path in files)) & 0x7FFFFFFF))
        ],
        extra_compile_args=_OPTIONS if options is None else options,
        extra_link_args=options,
    )
    command = build_ext(Distribution({"name": "ogive", "ext_modules": [extension]}))
    with tempfile.TemporaryDirectory(prefix="ogive-build-") as work:
        command.build_lib = command.build_temp = work
        command.ensure_finalized()
        command.run()
        name = command.get_ext_filename("_native")
        beside = folder / f"_native-{os.getpid()}{Path(name).suffix}"
        try:
            shutil.copy(Path(work, name), beside)
            beside.replace(folder / name)
        finally:
            beside.unlink(missing_ok=True)
    return folder / name
