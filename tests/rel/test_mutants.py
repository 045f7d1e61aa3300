"""Mutants: every test that stands for a named one kills it, and random ones are chosen as promised.

The tool itself is tried on small sources.
"""

import ast
from pathlib import Path

import pytest

from tests.mutants.__main__ import diff, equivalents, key, main, picked
from tests.mutants.named import NAMED, Named
from tests.mutants.sites import compiles, of_source
from tests.mutants.trial import Copy, check_parameters, check_rows, copied, try_named

pytestmark = pytest.mark.rel

TRIALS = [(row, test) for row in NAMED for test in row.tests]
SOURCE = '''
def f(a, b=3, *, c: int = 0) -> int:
    """Not this 7."""
    if a < b and not c:
        log.warning("nor this: %d", a + 1)
        a.close()
    g(a, b)
    a.total += 1
    return min(a, b) if a else 2.5
'''


def changed(source: str) -> set[str]:
    """The lines that mutants of *source* have instead of its own."""
    return {key(source.encode(), mutant.apply(source.encode()))[1] for mutant in of_source(source.encode(), "f.py")}


def test_every_row_fits_the_source_and_every_case_has_one() -> None:
    check_rows()
    faults = {fault for row in NAMED for fault in row.fault.split(", ")}
    assert faults >= {f"case {case}" for case in range(1, 26)}


def test_every_test_of_a_row_is_there_with_its_parameters() -> None:
    check_parameters()


def test_every_kind_of_change_is_made_and_nothing_that_only_reads_well_is_changed() -> None:
    assert changed(SOURCE) == {
        "def f(a, b=4, *, c: int = 0) -> int:",
        "def f(a, b=2, *, c: int = 0) -> int:",
        "def f(a, b=3, *, c: int = 1) -> int:",
        "if a <= b and not c:",
        "if a < b or not c:",
        "if a < b and (c):",
        "if (not (a < b and not c)):",
        "pass",
        "g(b, a)",
        "a.total -= 1",
        "a.total += 2",
        "a.total += 0",
        "return max(a, b) if a else 2.5",
        "return min(a, b) if (not (a)) else 2.5",
        "return min(a, b) if a else 5.0",
    }


def test_a_mutant_names_the_function_that_holds_it_as_python_does() -> None:
    source = b"class A:\n    async def f(self):\n        def g():\n            return 1\n        return [2 for _ in ()]\n"
    assert {mutant.function for mutant in of_source(source, "a.py")} == {"A.f.<locals>.g", "A.f"}


def test_places_are_right_behind_letters_of_several_bytes_and_in_long_statements() -> None:
    source = 'x = ["ä", 1]\nif (  # é\n    x\n    in\n    y\n):\n    pass\n'
    assert changed(source) == {'x = ["ä", 2]', 'x = ["ä", 0]', "not in"}


def test_a_seed_chooses_the_same_mutants_each_time_and_another_one_others() -> None:
    first, again, other = (list(picked(seed, 5, ["access"])) for seed in (3, 3, 4))
    assert first == again != other
    for mutant in first:
        source = Copy(Path("src")).text(mutant.file)
        assert mutant.apply(source) != source
        assert compiles(mutant.apply(source))
        assert diff(mutant, source).startswith(f"--- src/ogive/{mutant.file}\n")


def test_what_equals_the_original_is_listed_with_its_reason() -> None:
    for old, new in equivalents():
        assert old != new


def test_a_path_without_source_is_an_error_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--paths", "nowhere", "--count", "1"])
    assert ended.value.code == 2
    assert "no module and no package at" in capsys.readouterr().err


def test_a_broken_copy_is_what_is_tested_and_the_clone_stays_as_it_is() -> None:
    with copied() as copy:
        before = copy.text("model.py")
        with copy.changed("model.py", b"raise SystemExit\n"):
            assert (copy.source / "ogive" / "model.py").read_bytes() == b"raise SystemExit\n"
        assert (copy.source / "ogive" / "model.py").read_bytes() == before == copy.text("model.py")


def test_what_a_broken_copy_measures_gets_into_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    # Undone before the test ends: the run itself writes into the file that OGIVE_RAN names.
    with monkeypatch.context() as environment:
        environment.setenv("OGIVE_FIGURES", "figures.jsonl")
        environment.setenv("OGIVE_RAN", "ran")
        assert not {"OGIVE_FIGURES", "OGIVE_RAN"} & Copy(Path("src")).environment(native=False).keys()


def test_all_of_the_source_can_be_changed() -> None:
    for file in Path(ast.__file__).parent.glob("a*.py"):
        source = file.read_bytes()
        for mutant in of_source(source, file.name)[::50]:
            assert mutant.apply(source) != source


@pytest.mark.waits(25)
@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("row", "test"), TRIALS, ids=[f"{i}-{row.fault}-{test.partition('::')[0]}" for i, (row, test) in enumerate(TRIALS)]
)
def test_a_named_mutant_is_killed(row: Named, test: str) -> None:
    with copied() as copy:
        outcome = try_named(copy, row, test)
    assert outcome.killed, f"{test} passes with {row.fault}:\n{outcome.said}"
