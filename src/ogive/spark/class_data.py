"""The archive of Java classes with which Spark starts sooner.

Java writes it at the end of a session in which a table and a stream were read and written, and maps
it into the next ones instead of loading and checking 20,000 classes again. It belongs to one JDK
and one class path: its name is made of both, so that another installation does not find it.
Java checks them again, and ignores an archive that does not fit.
"""

import hashlib
import importlib.util
import logging
import os
import shlex
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ogive.errors import OgiveError

log = logging.getLogger(__name__)

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
