"""The tool that plants faults: named ones at their places, and random ones as promised."""

import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ogive.model import Message
from tests.mutants.__main__ import PATHS, diff, main, normalised, picked
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.fault import Fault, Misplaced
from tests.mutants.named import NAMED
from tests.mutants.nearest import SOURCE
from tests.mutants.sites import compiles, of_source
from tests.mutants.trial import Copy, copied, marked_tests

Load = Callable[[str], ModuleType]
FAULTS = {**NAMED, **EQUIVALENT}
PLANTED = """
class Table:
    def settle(self, x, y):
        if x >= y: self.log("over", x)
        return x >= 3

def other(x, y):
    return x >= y
"""
OTHERWISE_LAID_OUT = """
class Table:

    def settle(self, x, y):
        # a comment
        if (
            x
            >= y  # and another one
        ):
            self.log(
                'over',
                x,
            )
        return (x >= 3)


def other(x, y):
    return x >= y
"""
CHANGED = '''
def f(a, b=3, *, c: int = 0) -> int:
    """Not this 7."""
    if a < b and not c:
        log.warning("nor this: %d", a + 1)
        a.close()
    g(a, b)
    a.total += 1
    return min(a, b) if a else 2.5
'''


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Import the text of a module."""

    def load(text: str) -> ModuleType:
        name = f"planted_{len(list(tmp_path.iterdir()))}"
        path = tmp_path / f"{name}.py"
        path.write_text(text, "utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


def changed(source: str) -> set[str]:
    """Return the lines that mutants of *source* have instead of its own."""
    own = source.splitlines()
    mutants = of_source(source.encode(), "f.py")
    lines = [line for one in mutants for line in one.apply(source.encode()).decode().splitlines()]
    return {line.strip() for line in lines if line not in own}


# --- named ones ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_place_of_a_fault_is_found_exactly_once(fault: Fault) -> None:
    path, text = fault.plant()
    assert path.is_relative_to(SOURCE)
    assert compiles(text.encode())
    assert text != normalised(path.read_bytes())


def test_every_named_fault_has_a_test_that_must_notice_it_and_every_case_a_fault() -> None:
    assert marked_tests().keys() == NAMED.keys()
    cases = {found[1] for name in NAMED if (found := re.match(r"case (\d+): ", name))}
    assert cases == {str(case) for case in range(1, 26)}


@pytest.mark.parametrize("source", [PLANTED, OTHERWISE_LAID_OUT], ids=["tight", "loose"])
@pytest.mark.parametrize(
    ("change", "to", "old", "new"),
    [
        ("x>=y", "x > y", "if x >= y:", "if x > y:"),
        ("self.log('over',x)", "self.log(x)", "self.log('over', x)", "self.log(x)"),
        ("self.log('over',x)", "pass", "self.log('over', x)", "pass"),
        ("return x >= 3", "self.y = y\nreturn x", "return x >= 3", "self.y = y\n        return x"),
        (
            "if x >= y:\n  self.log('over', x)\nreturn x >= 3",
            "return y",
            "if x >= y:\n            self.log('over', x)\n        return x >= 3",
            "return y",
        ),
    ],
)
def test_a_fault_is_planted_at_its_place_alone_whatever_the_layout(
    load: Load,
    source: str,
    change: str,
    to: str,
    old: str,
    new: str,
) -> None:
    module = load(source)
    path, text = Fault(at=module.Table.settle, change=change, to=to).plant()
    assert str(path) == module.__file__
    assert text == ast.unparse(ast.parse(PLANTED)).replace(old, new, 1)
    for at in (module.Table, module) if "x >= 3" in change else (module.Table,):
        assert Fault(at=at, change=change, to=to).plant() == (path, text)


@pytest.mark.parametrize(
    ("change", "times"),
    [("x >= y", 2), ("x > y", 0), ("log", 0), ("x >= y\nx", 0)],
)
def test_code_that_is_not_there_exactly_once_is_an_error_that_names_it(
    load: Load,
    change: str,
    times: int,
) -> None:
    module = load(PLANTED)
    expected = re.escape(f"found {times} times in {module} of {module.__file__}: {change!r}")
    with pytest.raises(Misplaced, match=f"^{expected}$"):
        Fault(at=module, change=change, to="0").plant()


def test_a_broken_copy_is_what_is_tested_and_the_clone_stays_as_it_is() -> None:
    file = str(Path(inspect.getfile(Message)).relative_to(SOURCE))
    with copied() as copy:
        before = copy.text(file)
        with copy.changed(file, b"raise SystemExit\n"):
            assert (copy.source / "ogive" / file).read_bytes() == b"raise SystemExit\n"
        assert (copy.source / "ogive" / file).read_bytes() == before == copy.text(file)


def test_what_a_broken_copy_measures_gets_into_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    # Undone before the test ends: the run itself writes into the file that OGIVE_RAN names.
    with monkeypatch.context() as environment:
        environment.setenv("OGIVE_FIGURES", "figures.jsonl")
        environment.setenv("OGIVE_RAN", "ran")
        environment.setenv("OGIVE_FAILED", "failed")
        copy = Copy(SOURCE.parent)
        assert (
            not {"OGIVE_FIGURES", "OGIVE_RAN", "OGIVE_FAILED"}
            & copy.environment(native=False).keys()
        )


# --- random ones --------------------------------------------------------------------------------


def test_every_kind_of_change_is_made_and_nothing_that_only_reads_well_is_changed() -> None:
    assert changed(CHANGED) == {
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
    source = b"""class A:
    async def f(self):
        def g():
            return 1
        return [2 for _ in ()]
"""
    assert {mutant.function for mutant in of_source(source, "a.py")} == {"A.f.<locals>.g", "A.f"}


def test_places_are_right_behind_letters_of_several_bytes_and_in_long_statements() -> None:
    source = 'x = ["ä", 1]\nif (  # é\n    x\n    in\n    y\n):\n    pass\n'
    assert changed(source) == {'x = ["ä", 2]', 'x = ["ä", 0]', "not in"}


def test_a_seed_chooses_the_same_mutants_each_time_and_another_one_others() -> None:
    first, again, other = (list(picked(seed, 5, PATHS[-1:])) for seed in (3, 3, 4))
    assert first == again != other
    for mutant in first:
        source = Copy(SOURCE.parent).text(mutant.file)
        assert mutant.apply(source) != source
        assert compiles(mutant.apply(source))
        assert diff(mutant, source).startswith(f"--- src/ogive/{mutant.file}\n")


@pytest.mark.parametrize("fault", EQUIVALENT.values(), ids=EQUIVALENT)
def test_what_equals_the_original_is_listed_as_a_random_mutant_makes_it(fault: Fault) -> None:
    path, text = fault.plant()
    source, place = path.read_bytes(), getattr(fault.at, "__qualname__", "")
    made = (
        mutant.apply(source)
        for mutant in of_source(source, path.name)
        if mutant.function == place or mutant.function.startswith(f"{place}.")
    )
    assert any(normalised(changed) == text for changed in made if compiles(changed))


def test_the_paths_of_random_mutants_are_there() -> None:
    assert [path for path in PATHS if not (SOURCE / path).is_dir()] == []


def test_a_path_without_source_is_an_error_that_names_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--paths", "nowhere", "--count", "1"])
    assert ended.value.code == 2
    assert "no module and no package at" in capsys.readouterr().err


def test_all_of_the_source_can_be_changed() -> None:
    for file in Path(ast.__file__).parent.glob("a*.py"):
        source = file.read_bytes()
        for mutant in of_source(source, file.name)[::50]:
            assert mutant.apply(source) != source
