"""What the demo refuses before it starts."""

from pathlib import Path

import pytest

from examples.demo.run import check_report
from ogive.errors import InvalidOption


def test_a_report_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place, reason in (
        (tmp_path, "Is a directory"),
        (tmp_path / "no" / "page", "No such file"),
        (tmp_path / "file" / "page", "Not a directory"),
    ):
        with pytest.raises(
            InvalidOption, match=f"--report {place}: it cannot be written there: {reason}"
        ):
            check_report(place)


def test_the_check_leaves_no_file_and_changes_none(tmp_path: Path) -> None:
    (tmp_path / "old.html").write_text("kept until the new one is written")
    check_report(tmp_path / "old.html")
    check_report(tmp_path / "new.html")
    assert [path.name for path in tmp_path.iterdir()] == ["old.html"]
    assert (tmp_path / "old.html").read_text() == "kept until the new one is written"


def test_the_check_leaves_a_link_to_what_is_not_there_yet(tmp_path: Path) -> None:
    link = tmp_path / "page"
    link.symlink_to(tmp_path / "later.html")
    check_report(link)
    assert [path.name for path in tmp_path.iterdir()] == ["page"]
    assert link.is_symlink()
