"""Which files count, when they have changed, and what is started again."""

import asyncio
import sys
from pathlib import Path

import pytest

from ogive.cli import reload
from ogive.cli.parser import build_parser
from ogive.errors import InvalidOption


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_applications_files_count_and_no_others(tmp_path: Path) -> None:
    for name in (
        "app.py",
        "shop/listeners.py",
        "notes.txt",
        ".hidden/a.py",
        "shop/__pycache__/b.py",
        "venv/lib/c.py",
        "node_modules/d.py",
    ):
        write(tmp_path / name)
    write(tmp_path / "venv" / "pyvenv.cfg")
    assert set(reload.snapshot(tmp_path)) == {"app.py", str(Path("shop", "listeners.py"))}


def test_a_folder_that_holds_more_than_an_application_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "MAX_FILES", 2)
    for number in range(3):
        write(tmp_path / f"m{number}.py")
    with pytest.raises(InvalidOption, match="more than 2 Python files"):
        reload.snapshot(tmp_path)


async def test_a_change_counts_when_the_files_have_come_to_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = {"a.py": (1, 1)}, {"a.py": (2, 2)}
    looks = iter([one, two, {"a.py": (3, 3)}, {"a.py": (3, 3)}])
    monkeypatch.setattr(reload, "snapshot", lambda _: next(looks))
    monkeypatch.setattr(reload, "POLL_S", 0)
    assert await reload.changed(tmp_path, one) == ({"a.py": (3, 3)}, ["a.py"])


async def test_many_changes_are_named_shortly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "POLL_S", 0)
    write(tmp_path / "gone.py")
    before = reload.snapshot(tmp_path)
    (tmp_path / "gone.py").unlink()
    for name in "abcd":
        write(tmp_path / f"{name}.py")
    assert (await reload.changed(tmp_path, before))[1] == ["a.py", "b.py", "c.py", "2 more"]


def test_what_is_started_has_the_same_options() -> None:
    words = [
        "run",
        "app:bill",
        "shop",
        "--wait",
        "3",
        "-vv",
        "--instance-name",
        "left",
        "--offsets-dir",
        "there",
        "--stop-timeout",
        "20.0",
        "--http-port",
        "0",
        "--http-host",
        "::1",
        "--insecure-http",
        "--drain-delay",
        "2.0",
        "-n",
        "h:1",
        "--credentials",
        "c",
        "--cafile",
        "f",
        "--certfile",
        "e",
        "--keyfile",
        "k",
    ]
    options = build_parser().parse_args([*words, "--reload"])
    again = build_parser().parse_args(reload.command(options)[5:])
    assert vars(again) | {"reload": True, "command_parser": None} == vars(options) | {
        "command_parser": None
    }


async def test_a_process_that_does_not_end_is_killed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); "
        "signal.pause()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", deaf, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    await reload._end(process, 0)
    assert process.returncode == -9
    assert "they are killed" in capsys.readouterr().err
