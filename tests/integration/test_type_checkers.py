"""Programs of users under mypy, pyright and basedpyright, each in its strict mode.

Covers the programs of README.md and docs/, the examples, and a program with errors that each
checker must report. Warnings that only basedpyright has, such as an unused result of a call, are
not part of its strict mode.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import write_programs

# without it, a checker knows no type of a Spark program
pytest.importorskip("pyspark")

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# the demo is a program of ours, which mypy checks with the source; psycopg is not installed here
LEFT_OUT = ("demo", "upsert_postgres.py")
EXAMPLES = [
    *(
        path
        for path in sorted((ROOT / "examples").rglob("*.py"))
        if not {path.name, path.parent.name}.intersection(LEFT_OUT)
    ),
    ROOT / "tests" / "unit" / "client" / "typed_use.py",
]

# per line: the code, and the rules of mypy and of pyright that must report it
WRONG = (
    ("import ogive", None, None),
    ("from ogive import aio", None, None),
    ("async def main(producer: aio.Producer) -> None:", None, None),
    ('    print((await producer.send("Orders", b"x")).queue)', None, None),
    (
        '    print((await producer.send("Orders", b"x")).offset_idx)',
        "attr-defined",
        "reportAttributeAccessIssue",
    ),
    ('    await producer.send(1, b"x")', "arg-type", "reportArgumentType"),
    ('    producer.send("Orders", b"x")', "unused-coroutine", "reportUnusedCoroutine"),
    ("ogive.Prodcer()", "attr-defined", "reportAttributeAccessIssue"),
    ("ogive.testing.Brokr()", "attr-defined", "reportAttributeAccessIssue"),
    ("ogive.aio.PushConsumr()", "attr-defined", "reportAttributeAccessIssue"),
)

# mypy without its cache reads all of ogive and of pyspark
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all programs: those of pages in ``pages``, the examples,
    ``wrong.py``.
    """
    folder = tmp_path_factory.mktemp("programs")
    (folder / "pages").mkdir()
    for page in PAGES:
        for program in write_programs(page, folder / "pages"):
            # of an SDK that is not installed here; tests/interop/test_sdk_first_programs.py runs it
            if "import rocketmq\n" in program.read_text("utf-8"):
                program.unlink()
    for path in EXAMPLES:
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    (folder / "wrong.py").write_text("\n".join(line for line, _, _ in WRONG))
    # a page of the documentation tests an example, and an example reads the flights of the demo
    config = {"typeCheckingMode": "strict", "extraPaths": ["examples/web", str(ROOT)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    return folder


def split(
    complaints: list[tuple[str, int, str]],
) -> tuple[list[tuple[str, int, str]], set[tuple[int, str]]]:
    """Split the complaints into those about programs that should be clean, and about ``wrong.py``.

    Of the latter only lines and rules are returned.
    """
    clean = [row for row in complaints if row[0] != "wrong.py"]
    return clean, {(line, rule) for name, line, rule in complaints if name == "wrong.py"}


def test_mypy_passes_what_the_docs_show_and_reports_what_users_get_wrong(programs: Path) -> None:
    """The examples are among the files that make check gives to mypy."""
    files = [programs / "wrong.py", *sorted((programs / "pages").glob("*.py"))]
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(ROOT / "pyproject.toml"),
        *map(str, files),
    ]
    environment = {
        **os.environ,
        "MYPYPATH": os.pathsep.join([str(programs), str(programs / "pages")]),
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=380, check=False
    )
    found = re.findall(r"^(.*?):(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    assert done.stdout.endswith(f"(checked {len(files)} source files)\n"), done.stdout + done.stderr
    clean, wrong = split([(Path(name).name, int(line), rule) for name, line, rule in found])
    assert clean == [], done.stdout
    assert wrong == {(number, rule) for number, (_, rule, _) in enumerate(WRONG, 1) if rule}


@pytest.mark.parametrize("checker", ["pyright", "basedpyright"])
def test_pyright_passes_what_the_docs_show_and_reports_what_users_get_wrong(
    programs: Path, checker: str
) -> None:
    command = [sys.executable, "-m", checker, "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        command, cwd=programs, capture_output=True, text=True, timeout=380, check=False
    )
    assert done.stdout.lstrip().startswith("{"), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(list(programs.rglob("*.py")))
    rows = report["generalDiagnostics"]
    clean, wrong = split(
        [
            (
                Path(row["file"]).name,
                row["range"]["start"]["line"] + 1,
                row.get("rule", row["message"]),
            )
            for row in rows
        ]
    )
    assert clean == [], rows
    assert wrong >= {(number, rule) for number, (_, _, rule) in enumerate(WRONG, 1) if rule}
    assert {line for line, _ in wrong} == {
        number for number, (_, _, rule) in enumerate(WRONG, 1) if rule
    }
