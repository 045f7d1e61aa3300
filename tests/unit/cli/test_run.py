"""Which listeners a command line names, and what it hears when it names none."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ogive.cli.main import main
from ogive.cli.run import load_listeners
from ogive.errors import InvalidOption

SHOP = """
import ogive

@ogive.listener("Orders", group="billing")
def bill(message): ...

@ogive.listener("Orders", group="shipping")
async def ship(message): ...

class Desk:
    @ogive.listener("Prices", group="desk")
    def show(message): ...

def helper(message): ...
"""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory with modules in it, as a user has it."""
    (tmp_path / "ogive_shop.py").write_text(SHOP)
    (tmp_path / "ogive_empty.py").write_text("x = 1\n")
    (tmp_path / "ogive_broken.py").write_text(
        "def at_import():\n    raise KeyError('PASSWORD')\nat_import()\n"
    )
    (tmp_path / "ogive_needs.py").write_text("import no_such_library\n")
    (tmp_path / "ogive_needs_main.py").write_text(
        f"{SHOP}\nogive.run(bill, name_server='127.0.0.1:1')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield
    for name in [
        name
        for name in sys.modules
        if name.startswith(("ogive_shop", "ogive_empty", "ogive_broken", "ogive_needs"))
    ]:
        del sys.modules[name]


def names(*targets: str) -> list[str]:
    return [one.name for one in load_listeners(targets)]


def test_a_listener_is_named_by_module_and_name() -> None:
    assert names("ogive_shop:ship", "ogive_shop:bill") == ["ship", "bill"]
    assert names("ogive_shop:Desk.show") == ["Desk.show"]


def test_a_module_alone_stands_for_all_of_its_listeners_and_each_runs_once() -> None:
    assert names("ogive_shop") == ["bill", "ship"]
    assert names("ogive_shop:bill", "ogive_shop") == ["bill", "ship"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "ogive_shop:bil",
            "ogive_shop has no 'bil'. Its listeners are: ogive_shop:bill, ogive_shop:ship",
        ),
        (
            "ogive_shop:helper",
            "'helper' is a function, not a listener. Its listeners are: ogive_shop:bill, "
            "ogive_shop:ship",
        ),
        ("ogive_shop:", "ogive_shop has no ''"),
        ("ogive_empty:bill", "It has none; a function becomes one with @ogive.listener"),
        ("ogive_empty", "ogive_empty has no listener"),
        ("ogive_shopp:bill", "there is no module 'ogive_shopp', neither here ("),
        ("ogive_shop.bill", "nor installed; the listener comes after a colon: ogive_shop:bill"),
        ("ogive_shop.py:bill", "a module as in an import, not a file: ogive_shop:bill"),
        ("ogive_shop.py", "a module as in an import, not a file: ogive_shop"),
        ("./src/shop:bill", "not a file: src.shop:bill"),
        ("no module:bill", "expected module:listener, for example app:bill"),
        (":bill", "expected module:listener"),
    ],
)
def test_a_wrong_target_is_a_sentence_with_the_way_out(target: str, said: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        load_listeners([target])
    assert str(refused.value).startswith(f"{target}: ")
    assert said in str(refused.value)


def test_a_module_that_fails_at_import_shows_where(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidOption, match=r"cannot be imported: KeyError: 'PASSWORD'$"):
        load_listeners(["ogive_broken:bill"])
    shown = capsys.readouterr().err
    assert "raise KeyError('PASSWORD')" in shown
    assert "importlib" not in shown


def test_a_module_with_a_syntax_error_is_shown_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ogive_broken.py").write_text("def f(:\n")
    with pytest.raises(
        InvalidOption,
        match=r"cannot be imported: SyntaxError: invalid syntax \(ogive_broken.py, line 1\)$",
    ):
        load_listeners(["ogive_broken:bill"])
    shown = capsys.readouterr().err
    assert shown.splitlines()[1] == "    def f(:"
    assert "importlib" not in shown


def test_a_library_that_a_module_misses_is_not_taken_for_the_module() -> None:
    with pytest.raises(InvalidOption, match=r"ogive_needs cannot be imported: .*no_such_library"):
        load_listeners(["ogive_needs:bill"])


def test_what_stops_the_command_before_it_begins_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "ogive_shop:bil"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("ogive: ogive_shop:bil: ")
    assert said.err.count("\n") == 1


def test_a_module_that_runs_its_listeners_itself_is_told_where_the_call_belongs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As the first program of the README does: the import would not end, and every listener would
    run twice after Ctrl-C.
    """
    assert main(["run", "ogive_needs_main:bill", "-n", "127.0.0.1:1"]) == 1
    err = capsys.readouterr().err
    assert "no name server" not in err
    assert "ogive_needs_main calls run() while it is imported" in err.splitlines()[-1]
    assert 'put the call under `if __name__ == "__main__":`' in err.splitlines()[-1]
