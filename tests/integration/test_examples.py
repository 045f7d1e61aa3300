"""Every program under examples/ runs to its end on a real broker, without a word on standard error."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers import RunningBroker

EXAMPLES = sorted(Path(__file__).parents[2].joinpath("examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(broker: RunningBroker, example: Path) -> None:
    command = [sys.executable, "-W", "error", str(example), "--name-server", broker.name_server]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
