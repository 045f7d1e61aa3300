"""Every example runs to its end, as a user would start it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers import RunningBroker

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(broker: RunningBroker, example: Path) -> None:
    command = [sys.executable, str(example), "--name-server", broker.name_server]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
