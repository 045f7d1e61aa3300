"""Commands that are given a place which this user may not look into: a sentence, no traceback."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ogive.cli.connect import is_there
from ogive.cli.main import main
from ogive.cli.reload import _python_files


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose entries are closed to this user, though it may be root, who runs this."""
    folder, stat = tmp_path / "closed", Path.stat
    folder.mkdir()

    def refuse(path: Path, **how: Any) -> os.stat_result:
        if folder in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **how)

    access: Callable[..., bool] = os.access
    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder and access(path, mode))
    return folder


def test_what_may_not_be_looked_at_is_not_there(closed: Path, tmp_path: Path) -> None:
    assert is_there(closed)
    assert not is_there(closed / "x")
    assert not is_there(tmp_path / ("x" * 300))


def test_a_page_in_a_closed_folder_is_refused(
    closed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["pipeline", "trace-report", "--to", str(closed / "page.html"), "-n", "here:1"]) == 1
    )
    assert capsys.readouterr().err == f"ogive: --to {closed}: this user may not write in {closed}\n"
    assert (
        main(
            [
                "pipeline",
                "trace-report",
                "--to",
                str(closed / "below" / "page.html"),
                "-n",
                "here:1",
            ]
        )
        == 1
    )
    assert (
        capsys.readouterr().err
        == f"ogive: --to {closed / 'below'}: this user may not write in {closed}\n"
    )


def test_a_context_may_name_a_file_that_cannot_be_seen(
    closed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    assert (
        main(["context", "add", "prod", "-n", "prod:9876", "--credentials", str(closed / "c.yml")])
        == 0
    )
    assert f"no file {closed / 'c.yml'} yet" in capsys.readouterr().err


def test_closed_folders_beside_an_application_are_passed_over(closed: Path, tmp_path: Path) -> None:
    (tmp_path / "app.py").touch()
    (closed / "inner").mkdir()
    assert list(_python_files(tmp_path)) == [str(tmp_path / "app.py")]
