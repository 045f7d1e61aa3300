"""Every test that is marked to notice a planted fault fails with it."""

import subprocess
import sys

import pytest

from tests.mutants.named import NAMED
from tests.mutants.nearest import ROOT
from tests.mutants.trial import copied, marked_tests, try_named

pytestmark = pytest.mark.rel

MARKED = marked_tests()
TRIALS = [(name, test) for name in NAMED for test in MARKED.get(name, ())]


def test_the_parameters_that_markers_name_are_there() -> None:
    files = sorted({test.partition("::")[0] for _, test in TRIALS})
    options = ["-q", "-p", "no:cacheprovider", "--nightly", "--collect-only"]
    command = [sys.executable, "-m", "pytest", *options, *files]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = set(listed.splitlines())
    assert {test for _, test in TRIALS} <= found | {test.partition("[")[0] for test in found}


@pytest.mark.waits(25)
@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "test"),
    TRIALS,
    ids=[f"{i}-{name}" for i, (name, _) in enumerate(TRIALS)],
)
def test_a_named_mutant_is_killed(name: str, test: str) -> None:
    with copied() as copy:
        outcome = try_named(copy, name, test)
    assert outcome.killed, f"{test} passes with {name}:\n{outcome.said}"
