"""Every example runs as it stands."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers import RunningBroker

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_to_its_end(broker: RunningBroker, example: Path) -> None:
    command = [sys.executable, str(example), "--name-server", broker.name_server]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
