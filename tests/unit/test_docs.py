"""What README.md and docs/ tell a reader to type: Python that compiles, with names and arguments
that exist, and commands that parse.
"""

import argparse
import ast
import functools
import importlib
import inspect
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

import ogive
import ogive.aio
from ogive.cli.parser import build_parser
from tests.pages import programs

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BY_NAME: Final[dict[str, type]] = {"producer": ogive.Producer, "admin": ogive.Admin}
"""What a variable is where its block does not say."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    place: str
    language: str
    text: str


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for fence in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if fence[1] in languages:
            yield Block(
                f"{page.name}:{text.count(chr(10), 0, fence.start()) + 1}", fence[1], fence[2]
            )


def inline(page: Path) -> Iterator[str]:
    """Code in running text and tables."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`]+)`", text):
        yield re.sub(r"\s+", " ", code).replace("\\|", "|")


PYTHON: Final = [block for page in PAGES for block in blocks(page, "python")]
SHELL: Final = [block for page in PAGES for block in blocks(page, "sh")]


def compiled(block: Block) -> ast.Module:
    compile(block.text, block.place, "exec", dont_inherit=True)
    return ast.parse(block.text, block.place)


# --- names and arguments --------------------------------------------------------------------------


def found(path: str) -> Any:
    """What ``ogive.x.y`` is.

    Raises AttributeError, ModuleNotFoundError for a library that is not installed.
    """
    value: Any = ogive
    names = path.split(".")[1:]
    for i, name in enumerate(names):
        if inspect.ismodule(value) and not hasattr(value, name):
            try:
                value = importlib.import_module(".".join(["ogive", *names[: i + 1]]))
            except ModuleNotFoundError as exc:
                if (exc.name or "").startswith("ogive"):
                    raise AttributeError(f"there is no {path}") from None
                raise
        else:
            value = getattr(value, name)
    return value


def dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (inner := dotted(node.value)):
        return f"{inner}.{node.attr}"
    return None


def imported(tree: ast.AST) -> dict[str, Any]:
    """The names that a block imports from ogive."""
    names: dict[str, Any] = {"ogive": ogive}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ogive":
            # not by its path: a package may have a function of the same name
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                there = hasattr(module, alias.name)
                names[alias.asname or alias.name] = (
                    getattr(module, alias.name) if there else found(f"{node.module}.{alias.name}")
                )
    return names


def variables(tree: ast.AST, names: dict[str, Any]) -> dict[str, type]:
    """The variables that are made by calling one of our classes; with the usual names, those that
    the block does not make.
    """
    made = dict(BY_NAME)
    for node in ast.walk(tree):
        pairs: list[tuple[ast.expr | None, ast.expr]] = []
        if isinstance(node, ast.withitem):
            pairs = [(node.optional_vars, node.context_expr)]
        elif isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        for target, value in pairs:
            if (
                isinstance(target, ast.Name)
                and isinstance(value, ast.Call)
                and inspect.isclass(kind := resolved(value.func, names, {}))
            ):
                made[target.id] = kind
    return made


def resolved(node: ast.expr, names: dict[str, Any], made: dict[str, type]) -> Any:
    """The object that an expression names; None where it is not ours."""
    path = dotted(node)
    if path is None:
        return None
    first, *rest = path.split(".")
    if first == "ogive":
        return found(path)
    value = names.get(first, made.get(first))
    for name in rest:
        if (
            value is None
            or isinstance(value, property)
            or not getattr(value, "__module__", getattr(value, "__name__", "")).startswith("ogive")
        ):
            return None
        value = getattr(value, name)
    return value


def faults(block: Block) -> list[str]:
    """Names that do not exist, and arguments that no such call takes."""
    tree = compiled(block)
    try:
        names = imported(tree)
        made = variables(tree, names)
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and (path := dotted(node))
                and path.startswith("ogive.")
            ):
                found(path)
        calls = [
            (node, resolved(node.func, names, made))
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
        ]
    except AttributeError as exc:
        return [f"{block.place}: {exc}"]
    return [
        f"{block.place}: line {node.lineno}: {fault}"
        for node, value in calls
        if callable(value)
        for fault in refused(node, value)
    ]


def refused(node: ast.Call, call: Callable[..., Any]) -> Iterator[str]:
    try:
        parameters = inspect.signature(call).parameters
    except ValueError:
        # a type without a signature in Python
        return
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return
    for keyword in node.keywords:
        if keyword.arg is not None and keyword.arg not in parameters:
            yield f"{ast.unparse(node.func)} takes no {keyword.arg}="


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.place)
def test_every_python_block_compiles_and_names_what_there_is(block: Block) -> None:
    try:
        assert faults(block) == []
    except ModuleNotFoundError as exc:
        pytest.skip(f"{exc.name} is not installed")


def test_names_in_running_text_are_there() -> None:
    missing = []
    for page in PAGES:
        for code in inline(page):
            for path in re.findall(r"^(ogive(?:\.\w+)+)", code):
                try:
                    found(path)
                except AttributeError as exc:
                    missing.append(f"{page.name}: {path}: {exc}")
                except ModuleNotFoundError:
                    # of an extra that is not installed
                    continue
    assert missing == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("import ogive\nogive.Prodcer()", "there is no ogive.Prodcer"),
        ("ogive.Producer(nameserver='x')", "ogive.Producer takes no nameserver="),
        (
            "with ogive.Admin() as it:\n    it.create_topic('T', queus=3)",
            "it.create_topic takes no queus=",
        ),
        ("producer.sned('T', b'')", "no attribute 'sned'"),
        (
            "async def f():\n    async with ogive.aio.PushConsumer('T', group='g') as c:\n        "
            "await c.close(now=True)",
            "c.close takes no now=",
        ),
        (
            "@ogive.listener('T', group='g', batches=2)\ndef f(m): ...",
            "ogive.listener takes no batches=",
        ),
        ("from ogive.testing import Brokr", "there is no ogive.testing.Brokr"),
    ],
)
def test_a_wrong_name_or_argument_is_found(text: str, fault: str) -> None:
    (said,) = faults(Block("page.md:1", "python", text))
    assert fault in said


# --- programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_python_is_kept_from_the_type_checkers(page: Path) -> None:
    """They get the blocks that open with exactly these letters, so any other spelling would leave
    one out.
    """
    fences = re.findall(
        r"^ *```(?=py|\{)(.*)$", page.read_text("utf-8"), re.MULTILINE | re.IGNORECASE
    )
    assert fences == ["python"] * len(list(blocks(page, "python")))
    assert not re.search(
        r"#\s*(type|pyright|mypy):", "".join(block.text for block in blocks(page, "python"))
    )


def test_a_block_that_imports_ogive_begins_a_program() -> None:
    page = (
        "```python\nimport "
        "ogive\n```\ntext\n```sh\nls\n```\n```python\nogive.run()\n```\n```python\nimport "
        "re\nimport ogive.aio\n```\n"
    )
    assert programs(page) == [
        "\nimport ogive\n" + "\n" * 6 + "ogive.run()\n",
        "\n" * 11 + "import re\nimport ogive.aio\n",
    ]


def test_a_block_with_a_docstring_begins_a_program() -> None:
    assert programs('```python\nimport re\n```\n```python\n"""Test it."""\n```\n') == [
        "\nimport re\n",
        "\n" * 4 + '"""Test it."""\n',
    ]


def test_a_page_without_python_has_no_program() -> None:
    assert programs("# Page\n```sh\nls\n```\n") == []


# --- commands -------------------------------------------------------------------------------------


def commands(text: str) -> Iterator[list[str]]:
    """The words behind ``ogive`` in each command line of a shell block."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("();<>|&"):
                if "ogive" in words[:1]:
                    yield words[1:]
                words = []
            elif words or "=" not in word:
                # not the environment in front of a command
                words.append(word)


@functools.cache
def whole_parser() -> argparse.ArgumentParser:
    return build_parser()


def parser_of(words: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser of the command that *words* begin with, and the rest of them."""
    parser, rest = whole_parser(), list(words)
    while rest:
        choices = next(
            (a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)), {}
        )
        if rest[0] not in choices:
            break
        parser = choices[rest.pop(0)]
    return parser, rest


@pytest.mark.parametrize(
    "block", [block for block in SHELL if any(commands(block.text))], ids=lambda block: block.place
)
def test_every_command_in_a_shell_block_is_understood(
    block: Block, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in commands(block.text):
        try:
            options = build_parser(words).parse_args(words)
        except SystemExit as stopped:
            if stopped.code:
                refused = capsys.readouterr().err
                pytest.fail(f"{block.place}: ogive {shlex.join(words)}: {refused}")
        else:
            assert hasattr(options, "module"), (
                f"{block.place}: ogive {shlex.join(words)} is half a command"
            )


def test_every_command_in_running_text_has_these_options() -> None:
    unknown = []
    for page in PAGES:
        for code in inline(page):
            if not re.match(r"ogive [a-z]", code):
                continue
            parser, rest = parser_of(code.replace("'", "").split()[1:])
            known = {option for action in parser._actions for option in action.option_strings}
            if parser.prog == "ogive":
                unknown.append(f"{page.name}: {code}: no such command")
            unknown += [
                f"{page.name}: {code}: no {word}"
                for word in rest
                if word.startswith("--") and word.partition("=")[0] not in known
            ]
    assert unknown == []


def test_a_command_line_is_cut_as_a_shell_does() -> None:
    text = (
        "X=1 ogive up --data 'a b' & # why\ncat x | ogive send T --key k < body\necho ogive "
        "up\nogive lag g \\\n  --watch\n"
    )
    assert list(commands(text)) == [
        ["up", "--data", "a b"],
        ["send", "T", "--key", "k"],
        ["lag", "g", "--watch"],
    ]


# --- docstrings -----------------------------------------------------------------------------------


def of_class(kind: type) -> Iterator[tuple[str, object]]:
    """The public methods and properties of *kind* that are ours, and not inherited from a
    library.
    """
    for name in dir(kind):
        value = inspect.getattr_static(kind, name)
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if not name.startswith("_") and str(getattr(function, "__module__", "")).startswith(
            "ogive"
        ):
            yield name, value


@pytest.mark.parametrize("module", ["ogive", "ogive.aio", "ogive.testing", "ogive.spark"])
def test_every_public_name_has_a_docstring(module: str) -> None:
    try:
        names = {
            name: getattr(importlib.import_module(module), name)
            for name in importlib.import_module(module).__all__
        }
    except ModuleNotFoundError as exc:
        pytest.skip(f"{exc.name} is not installed")
    bare = [module] if not importlib.import_module(module).__doc__ else []
    for name, value in names.items():
        # a dataclass without one gets its signature, an enum what the library says
        own = vars(value).get("__doc__") if inspect.isclass(value) else inspect.getdoc(value)
        if (inspect.isclass(value) or inspect.isroutine(value)) and (
            not own or own.startswith(f"{name}(")
        ):
            bare.append(name)
        if inspect.isclass(value):
            bare += [
                f"{name}.{member}" for member, found in of_class(value) if not inspect.getdoc(found)
            ]
    assert bare == []


def test_pages_install_ogive_from_a_clone_until_it_is_published() -> None:
    """`published` in pyproject.toml changes the site, not the pages."""
    asked = re.compile(r"pip install[^`\n]*?[ ']ogive(?=[\[ `',\n])")
    found = [page.name for page in PAGES if asked.search(page.read_text("utf-8"))]
    assert found == ["releases.md"]


def test_the_licences_of_all_extras_are_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = {
        (re.split(r"[><=;]", package)[0].strip(), extra)
        for extra, packages in project["optional-dependencies"].items()
        if extra != "all"
        for package in packages
    }
    page = (ROOT / "docs" / "releases.md").read_text("utf-8")
    rows = re.findall(r"^\| ([\w-]+) \| (\w+) \| [^|]+ \|$", page, re.MULTILINE)
    assert set(rows) - {("package", "extra")} == needed
