"""Every example runs as it stands, on either broker."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers import RunningBroker

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(broker: RunningBroker, path: Path) -> None:
    """To its end, and with something to show."""
    command = [sys.executable, "-W", "error", str(path), "--name-server", broker.name_server]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout
