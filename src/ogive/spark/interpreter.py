"""Make Spark's Python processes run this interpreter, with its installed pyspark and ogive.

Spark puts a zip of pyspark's sources, one of Py4J's and a jar first on the path of every Python
process that it starts. Python caches no bytecode of modules in a zip, so each process compiles
pyspark again: 0.65 s of CPU instead of 0.2 s, for each stream that starts and for the first use of
each kind of worker, of which a session has six.
"""

import atexit
import functools
import importlib.util
import logging
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipimport
from pathlib import Path
from typing import Any, Final

import ogive
from ogive.native import native

log = logging.getLogger(__name__)

_PREFIX: Final = "ogive-python-"
_NAME: Final = "python"
_PACKAGE: Final = "pyspark_rocketmq"
_ANSWER_S: Final = 20.0
_VARIABLE: Final = "PYSPARK_PYTHON"
_preferred: Final[set[str]] = set()
"""The value that prefer_this_interpreter has set, if any."""


def prefer_this_interpreter() -> None:
    """Set PYSPARK_PYTHON to this interpreter, for a session that is not created by ogive.

    Without it Spark runs the first python3 of PATH, which may not have ogive. Do nothing if the
    variable is set, or if Spark runs already and would not see it.
    """
    if _VARIABLE in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ or _is_running():
        return
    if sys.executable:
        os.environ[_VARIABLE] = sys.executable
        _preferred.add(sys.executable)


def _is_running() -> bool:
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return getattr(context, "_gateway", None) is not None


def other_interpreter(spark: Any) -> str | None:
    """Return the Python that plans the reads of *spark* if it has no ogive, and None if it has.

    Return None too if that is unknown, as with a session of Spark Connect.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return None
    given = jvm.java.lang.System.getenv
    python = str(given("PYSPARK_DRIVER_PYTHON") or given(_VARIABLE) or "python3")
    return None if _has_ogive(python) else python


@functools.cache
def _has_ogive(python: str) -> bool:
    code = f"import importlib.util as i, sys; sys.exit(i.find_spec({_PACKAGE!r}) is None)"
    try:
        # the Python that Spark runs, as a list
        done = subprocess.run(  # noqa: S603
            [python, "-c", code], capture_output=True, timeout=_ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def hint_at(python: str) -> str:
    """Return advice about *python*, which has no ogive."""
    return (
        f"Spark's Python processes run {python}, which has no ogive: start the session with "
        "ogive.spark.session(), "
        f"import ogive.spark before it starts, or set PYSPARK_PYTHON={sys.executable}"
    )


def find_python(*, local: bool) -> None:
    """Set PYSPARK_PYTHON, unless it is set: otherwise workers run the first python3 of PATH.

    *local*: they run on this machine only.
    """
    if os.environ.get(_VARIABLE) in (None, *_preferred):
        _preferred.clear()
        pyspark = _installed_pyspark() if local and os.name == "posix" else None
        wrapper = None if pyspark is None else _without(pyspark, Path(sys.executable))
        # otherwise the folder of temporary files forbids execution
        started = wrapper is not None and os.access(wrapper, os.X_OK)
        os.environ[_VARIABLE] = str(wrapper) if started else sys.executable


def _installed_pyspark() -> Path | None:
    """Return the package if this interpreter finds it by itself and Spark runs from it, and None if
    only Spark's path leads to it.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None or "SPARK_HOME" in os.environ:
        return None
    package = Path(spec.origin).parent
    return (
        package
        if str(package.parent) in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
        else None
    )


def _without(package: Path, python: Path) -> Path:
    """Create an interpreter like *python* without *package* on its path.

    It is removed when this process ends or, if this process is killed, when the next one creates
    one.
    """
    _remove_abandoned(Path(tempfile.gettempdir()))
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    # never closed: the system does so when this process is gone, however it ends
    _lock(directory)
    atexit.register(_remove, directory, os.getpid())
    wrapper = directory / _NAME
    wrapper.write_text(
        "#!/bin/sh\n"
        "set -f\n"
        "IFS=:\n"
        "kept=\n"
        "for part in $PYTHONPATH; do\n"
        f'  case $part in {shlex.quote(str(package))}/*) ;; *) kept="$kept${{kept:+:}}$part" ;; '
        "esac\n"
        "done\n"
        f'PYTHONPATH=$kept exec {shlex.quote(str(python))} "$@"\n'
    )
    wrapper.chmod(0o755)
    return wrapper


def _remove(directory: Path, owner: int) -> None:
    # a forked child runs this as well when it ends
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)


def _remove_abandoned(temporary: Path) -> None:
    """Remove files of killed processes of this user: those whose lock is free."""
    # one that is being made has no such file before it is locked
    for wrapper in temporary.glob(f"{_PREFIX}*/{_NAME}"):
        try:
            handle = _lock(wrapper.parent)
        except OSError:
            # its process lives, or is another user's, or the file is gone by now
            continue
        if os.fstat(handle).st_uid == os.geteuid():
            shutil.rmtree(wrapper.parent, ignore_errors=True)
        os.close(handle)


def _lock(directory: Path) -> int:
    """Lock a directory until the returned handle is closed.

    Raises BlockingIOError if another handle has locked it, and OSError if it cannot be opened.
    """
    # here, because Windows has none
    import fcntl

    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


@functools.cache
def warn_if_zipped() -> None:
    """Log once per process if ogive runs from a zip file, as with ``--py-files ogive.zip``.

    Python loads no compiled code from there.
    """
    loader = ogive.__spec__.loader
    if native is None and isinstance(loader, zipimport.zipimporter):
        log.warning(
            "ogive runs out of %s, where its compiled part cannot be loaded: each row takes about "
            "four times the CPU. Install ogive on the "
            "executors, or ship its wheel with --archives (docs/spark.md, On a cluster)",
            loader.archive,
        )
