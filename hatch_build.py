"""Builds ogive._native from native/*.c where there is a C compiler; without one ogive is installed as pure Python, and only slower.

OGIVE_NATIVE=0 leaves it out, OGIVE_NATIVE=1 makes it an error that it cannot be built.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError

_OPTIONS = ["-std=c11", "-O3", "-Wall", "-Wextra", "-fvisibility=hidden"]


class NativeBuildHook(BuildHookInterface[Any]):
    """The custom build hook of pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wish = os.environ.get("OGIVE_NATIVE", "")
        if self.target_name != "wheel" or wish == "0":
            return
        root = Path(self.root)
        try:
            if version == "editable":
                build(root, root / "src" / "ogive")
            else:
                built = build(root, Path(tempfile.mkdtemp(prefix="ogive-native-")))
                build_data["force_include"][str(built)] = f"ogive/{built.name}"
                build_data["pure_python"] = False
                build_data["infer_tag"] = True
        except BaseError as exc:
            if wish == "1":
                raise
            self.app.display_warning(f"ogive is installed as pure Python, without its compiled part: {exc}")


def build(root: Path, folder: Path, options: list[str] | None = None) -> Path:
    """Compile native/ into *folder*; the file made there. Raises setuptools' BaseError."""
    sources = sorted(str(path) for path in (root / "native").glob("*.c"))
    headers = sorted(str(path) for path in (root / "native").glob("*.h"))
    extension = Extension("_native", sources, depends=headers, extra_compile_args=_OPTIONS if options is None else options)
    command = build_ext(Distribution({"name": "ogive", "ext_modules": [extension]}))
    with tempfile.TemporaryDirectory(prefix="ogive-build-") as work:
        command.build_lib, command.build_temp = str(folder), work
        command.ensure_finalized()
        command.run()
    return folder / command.get_ext_filename("_native")
