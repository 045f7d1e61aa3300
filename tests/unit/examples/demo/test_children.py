"""Child processes: what they say, how they end, and that nothing of them stays."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from examples.demo.children import Child, ChildFailed, members, resident_bytes

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="the system has no /proc"
)

GRANDCHILD = """
import subprocess, sys
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
grandchild = subprocess.Popen([sys.executable, "-c", code], process_group=0)
print(grandchild.pid, flush=True)
sys.stdin.read()
"""


async def start(code: str, folder: Path) -> Child:
    return await Child.start("a child", [sys.executable, "-c", code], folder)


async def test_a_child_says_lines_and_reports_until_it_ends(tmp_path: Path) -> None:
    child = await start("print('words'); print('{\"n\": 1}')", tmp_path)
    assert [report async for report in child.reports()] == [{"n": 1}]
    await child.stop()


async def test_the_end_of_its_input_asks_it_to_finish(tmp_path: Path) -> None:
    child = await start(
        "import sys; print('up', flush=True); sys.stdin.read(); print('done')", tmp_path
    )
    lines = child.lines()
    assert await anext(lines) == "up"
    child.finish()
    assert [line async for line in lines] == ["done"]
    await child.stop()


async def test_a_child_that_fails_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    child = await start("raise SystemExit('no disk')", tmp_path)
    with pytest.raises(
        ChildFailed, match=r"a child: ended with code 1; its last words:\n    no disk"
    ):
        _ = [line async for line in child.lines()]
    await child.stop()


async def test_a_stopped_child_is_no_error(tmp_path: Path) -> None:
    child = await start("import signal; print('up', flush=True); signal.pause()", tmp_path)
    lines = child.lines()
    assert await anext(lines) == "up"
    await child.stop()
    assert [line async for line in lines] == []


@needs_proc
async def test_stop_ends_the_whole_session_also_what_left_the_process_group_and_ignores_sigterm(
    tmp_path: Path,
) -> None:
    child = await start(GRANDCHILD, tmp_path)
    grandchild = int(await anext(child.lines()))
    assert set(members(child.session)) == {child.session, grandchild}
    await child.stop()
    assert members(child.session) == []


@needs_proc
async def test_a_child_is_out_of_reach_of_the_terminals_signals(tmp_path: Path) -> None:
    child = await start("import signal; print('up', flush=True); signal.pause()", tmp_path)
    await anext(child.lines())
    assert os.getsid(child.session) == child.session != os.getsid(0)
    await child.stop()


@needs_proc
async def test_memory_of_a_session_counts_this_process_too(tmp_path: Path) -> None:
    child = await start(
        "held = bytearray(50 << 20); print('up', flush=True); import signal; signal.pause()",
        tmp_path,
    )
    await anext(child.lines())
    assert resident_bytes([child.session]) > resident_bytes([]) + (50 << 20) > 50 << 20
    await child.stop()


async def test_stopping_twice_does_no_harm(tmp_path: Path) -> None:
    child = await start("pass", tmp_path)
    await child.stop()
    await asyncio.wait_for(child.stop(), 60)
