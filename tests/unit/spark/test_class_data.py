"""The archive of Java classes: found by what it was made of, and by nothing else."""

import os
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from ogive.spark.class_data import OPTIONS, archive, use_archive


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java, and a cache of its own."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv(OPTIONS, "-Duser=1")
    return java


def write() -> Path:
    path = archive()
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_bytes(b"classes")
    return path


def test_an_archive_is_used_beside_the_users_own_options(java: Path) -> None:
    use_archive()
    assert os.environ[OPTIONS] == "-Duser=1"
    path = write()
    for _ in range(2):
        use_archive()
        assert os.environ[OPTIONS].startswith(f"-Duser=1 -XX:SharedArchiveFile={path} ")
        assert os.environ[OPTIONS].count("SharedArchiveFile") == 1


def test_another_java_does_not_find_it(java: Path) -> None:
    path = write()
    java.write_text("#!/bin/sh\n# an upgrade")
    assert archive() != path
    use_archive()
    assert os.environ[OPTIONS] == "-Duser=1"


def test_a_spark_of_another_place_has_none(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its class path is unknown before it runs."""
    write()
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert archive() is None
    use_archive()
    assert os.environ[OPTIONS] == "-Duser=1"


def test_without_java_nothing_happens(java: Path) -> None:
    java.unlink()
    assert archive() is None
    use_archive()
    assert os.environ[OPTIONS] == "-Duser=1"
