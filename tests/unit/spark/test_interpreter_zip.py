"""An installation that works slowly says so."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

SOURCES = Path(__file__).parents[3] / "src"
USE = """
import sys
sys.path.insert(0, {place!r})
import ogive
assert ogive.__file__.startswith({place!r}), ogive.__file__
from ogive.spark import source
for _ in range(2):
    source.batch_reader({{"subscribe": "Orders"}}, source.schema({{"subscribe": "Orders"}}))
"""


def errors(place: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", USE.format(place=str(place))],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stderr


def test_a_zip_of_the_package_is_told_once_with_the_way_out(tmp_path: Path) -> None:
    """spark-submit --py-files ogive.zip: Python loads no compiled code out of a zip."""
    shipped = tmp_path / "ogive.zip"
    with zipfile.ZipFile(shipped, "w") as file:
        for path in (SOURCES / "ogive").rglob("*.py"):
            file.write(path, path.relative_to(SOURCES))
    said = errors(shipped)
    assert said.count(f"ogive runs out of {shipped}, where its compiled part cannot be loaded") == 1
    assert "--archives" in said


def test_an_installation_says_nothing() -> None:
    assert errors(SOURCES) == ""
