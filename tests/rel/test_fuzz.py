"""T34: every input that was ever worth keeping goes through its decoder again, compiled and not;
the search for new ones runs nightly.

What the decoders are, and what counts as a fault, stands in tests/fuzz/decoders.py.
"""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ogive.native import build, native
from tests.figures import figures
from tests.fuzz import corpus
from tests.fuzz.decoders import DECODERS
from tests.fuzz.search import failure

pytestmark = [pytest.mark.rel, pytest.mark.computes(51)]

ROOT = Path(__file__).parents[2]
SEARCH_S = 60
HALF = {"columns", "put", "java-json", "inflate", "tags", "sql92", "kv-file", "words", "page"}
"""Who has half of that: decoders of an input of which another one has its minute, or both a half,
and short texts.
"""


@pytest.mark.quick
@pytest.mark.parametrize("name", sorted(DECODERS))
def test_the_corpus_passes(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    inputs = corpus.load(name)
    assert inputs
    for data in inputs:
        assert failure(DECODERS[name], data) is None


@pytest.mark.quick
def test_the_corpus_passes_without_the_compiled_part() -> None:
    if native is None:
        pytest.skip(f"ogive is {build}")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("OGIVE_RAN", "OGIVE_FAILED")
    } | {"OGIVE_NATIVE": "0"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"{__file__}::{test_the_corpus_passes.__name__}",
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_corpus_is_small_and_speaks_of_decoders_that_there_are() -> None:
    assert corpus.names() == sorted(DECODERS)
    assert sum(file.stat().st_size for file in corpus.FOLDER.iterdir()) <= corpus.MAX_BYTES


def test_a_fault_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a decoder lets out, and one that computes for long, but not one that has to wait for a
    processor.
    """
    monkeypatch.setattr("tests.fuzz.search.SLOW_S", 0.02)

    def compute(_: bytes) -> None:
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass

    assert "ZeroDivisionError" in (failure(lambda _: 1 // 0, b"") or "")
    assert "took" in (failure(compute, b"") or "")
    assert failure(lambda _: time.sleep(0.05), b"") is None


@pytest.mark.nightly
@pytest.mark.timeout(SEARCH_S + 110)
@pytest.mark.parametrize("name", sorted(DECODERS))
def test_a_search_finds_nothing(name: str) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.fuzz",
        name,
        str(SEARCH_S // 2 if name in HALF else SEARCH_S),
    ]
    with figures("T34", nightly=True, decoder=name) as line:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SEARCH_S + 100,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        line["attempts"] = next(
            int(row.split()[-1])
            for row in done.stdout.splitlines()
            if "inputs:" in row or "executed_units" in row
        )
