"""Every example runs as it stands, on either broker."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers import RunningBroker

ROOT = Path(__file__).parents[2]
WEB = ROOT / "examples" / "web"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(broker: RunningBroker, path: Path) -> None:
    """To its end, and with something to show."""
    command = [sys.executable, "-W", "error", str(path), "--name-server", broker.name_server]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


def test_the_web_example_passes_its_own_test(tmp_path: Path) -> None:
    """In a folder of its own, with pytest and the fixture as a user has them."""
    for file in WEB.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text("utf-8"), "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:asyncio",
        "-p",
        "no:cacheprovider",
    ]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stdout
    assert "1 passed" in result.stdout


def test_the_docs_show_the_web_example_as_it_runs() -> None:
    page = (ROOT / "docs" / "applications.md").read_text("utf-8")
    for file in WEB.glob("*.py"):
        assert f"```python\n{file.read_text('utf-8')}```" in page
