"""The archive of Java classes with which Spark starts sooner.

Java writes it at the end of a session in which a table and a stream were read and written, and maps
it into the next ones instead of loading and checking 20,000 classes again. It belongs to one JDK
and one class path: its name is made of both, so that another installation does not find it.
Java checks them again, and ignores an archive that does not fit.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ogive.errors import OgiveError

OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""Variable with options for the Java of a driver, beside those in Spark's configuration."""
_WRITE_S: Final = 300.0
_PREFIX: Final = "spark-"


def archive() -> Path | None:
    """Return where the archive of this installation is or would be, None without Java or Spark."""
    home, spec = os.environ.get("JAVA_HOME"), importlib.util.find_spec("pyspark")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None or spec is None or spec.origin is None or "SPARK_HOME" in os.environ:
        return None
    jars = Path(spec.origin).parent / "jars"
    files = [Path(java).resolve(), *sorted(jars.glob("*.jar"))]
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    environment, content = (
        hashlib.sha256(repr(part).encode()).hexdigest()[:12] for part in (str(jars), stats)
    )
    return cache / "ogive" / f"{_PREFIX}{environment}-{content}.jsa"


def use_archive() -> None:
    """Let the Java that this process starts use the archive, if there is one."""
    path = archive()
    if path is not None and path.exists():
        _add_option(
            f"-XX:SharedArchiveFile={path} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
        )


def _add_option(text: str) -> None:
    given = os.environ.get(OPTIONS, "")
    if text not in given:
        os.environ[OPTIONS] = f"{given} {text}".strip()


def write_archive(job: Callable[[], None], say: Callable[[str], None]) -> Path:
    """Write the archive of the classes that Spark loads for *job*. Return its path.

    *job* starts the session, the first of this process, and leaves it stopped.
    Raises OgiveError if there is no Java or Java writes none, as one without an archive of its own.
    """
    from ogive.spark.java import find_java

    find_java()
    path = archive()
    if path is None:
        raise OgiveError(
            "Spark of SPARK_HOME keeps its classes elsewhere: unset it, and run this with the "
            "environment in which ogive[spark] is installed"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    # Java does not write an archive while it uses one
    path.unlink(missing_ok=True)
    written = path.with_suffix(f".{os.getpid()}")
    _add_option(f"-XX:ArchiveClassesAtExit={written} -Xlog:cds=off -Xlog:cds+dynamic=off")
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
