"""`make house` counts in the source what it has aims for."""

from pathlib import Path

import pytest

from tools import house

MODULE = '''\
"""What it holds."""

import os  # noqa: F401

# a comment above its line,
# which has two lines
SIZE = 1  # a comment behind the code
"""Whether it is small."""


class Twice:
    """A class. Whether it counts: no."""


class _Twice:
    """Of no interest to others."""

    def method(self) -> str:
        return "How are you?"  # type: ignore
'''
TWICE = '"""A class: Twice."""\nclass Twice: pass\nclass _Twice: pass\nclass Once: pass\n'
PAGE = f"""\
{"prose " * 20}
```python
{"x" * 100}
{"x" * 101}
```
{"prose " * 20}
"""
WAYS = 'print(\'{"send": ["a.py", "b.py"], "push with --acl": ["a.py"]}\')'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "src/ogive/client/sample.py": MODULE,
        "src/ogive/client/sync/sample.py": TWICE,
        "src/ogive/proxy/sample_pb2.py": f"# {'x' * 100}\n{TWICE}",
        "native/sample.c": f"int a;\n/* {'x' * 100} */\n",
        "native/README.md": PAGE,
        "tests/sample.py": f"# {'é' * 98}\n# {'é' * 99}\n",
        "docs/lab/sample.md": PAGE,
        "README.md": PAGE,
        "tools/ways.py": WAYS,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


def counts(root: Path) -> dict[str, float]:
    return {row.what: row.now for row in house.source_rows(root)}


def test_source_is_counted(root: Path) -> None:
    assert counts(root) == {
        # docstrings, the import, the assignment, classes, the function and its return
        "statements in src": 10 + 7,
        "modules in src": 2,
        "lines of the largest module": 19,
        "lines over 100 columns in src": 0,
        "lines over 100 columns in native": 1,
        "lines over 100 columns in tests": 1,
        "lines over 100 columns in code blocks of docs and README": 2,
        "lines in native": 2,
        "docstrings that open with Of, Whether, What, ...": 3,
        "trailing comments for ten above the line": 5.0,
        "public class names used twice": 0,
    }


def test_a_class_of_another_part_has_a_name_for_itself(root: Path) -> None:
    (root / "src/ogive/client/sample.py").rename(root / "src/ogive/sample.py")
    assert counts(root)["public class names used twice"] == 1


def test_what_is_missed_is_marked_and_fails_only_where_that_is_asked_for(
    root: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert house.main([], root) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("modules in a push with --acl (DESIGN.md: which decide) ")
    assert lines[-1].split()[-2:] == ["34", "1"]
    missed = [line for line in lines if line.endswith(" missed")]
    assert [line.split()[0] for line in missed] == ["lines"] * 3 + ["docstrings", "trailing"]

    assert house.main(["--check", "--ways"], root) == 1
    assert capsys.readouterr().out.endswith("\nsend:\n  a.py\n  b.py\n\npush with --acl:\n  a.py\n")


def test_a_source_that_meets_all_aims_passes(root: Path) -> None:
    for name in ("native/sample.c", "tests/sample.py", "docs/lab/sample.md", "README.md"):
        (root / name).write_text("")
    (root / "src/ogive/client/sample.py").write_text("# above\nX = 1\n")
    assert house.main(["--check"], root) == 0
