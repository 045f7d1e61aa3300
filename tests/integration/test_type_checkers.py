"""Programs of users, checked by pyright in its strict mode. make check has mypy --strict for the same files."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = [*sorted((ROOT / "examples").rglob("*.py")), ROOT / "tests" / "unit" / "client" / "typed_use.py"]

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]


def complaints(folder: Path) -> list[tuple[str, int, str]]:
    """(file, line from 0, rule) for each, of all programs in *folder*."""
    if shutil.which("node") is None:
        pytest.skip("pyright runs on node, which is not installed (Debian: apt-get install nodejs)")
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(list(folder.rglob("*.py")))
    return [(Path(row["file"]).name, row["range"]["start"]["line"], row["rule"]) for row in report["generalDiagnostics"]]


def test_what_users_write_is_clean_for_pyright(tmp_path: Path) -> None:
    for path in PROGRAMS:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    assert complaints(tmp_path) == []


def test_pyright_sees_what_users_get_wrong(tmp_path: Path) -> None:
    """The package is found with its types: a word that does not exist, a wrong argument, a coroutine that nobody awaits."""
    lines = (
        "from ogive import aio",
        "async def main(producer: aio.Producer) -> None:",
        '    print((await producer.send("Orders", b"x")).offset_idx)',
        "    await producer.send(1, b'x')",
        '    producer.send("Orders", b"x")',
    )
    (tmp_path / "wrong.py").write_text("\n".join(lines))
    found = complaints(tmp_path)
    assert [line for _, line, _ in found if line < 2] == []
    assert {"reportAttributeAccessIssue", "reportArgumentType", "reportUnusedCoroutine"} <= {rule for _, _, rule in found}
