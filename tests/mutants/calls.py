"""A pytest plugin that notes the functions of ogive that each test calls, and limits the time of a
run.

``-p tests.mutants.calls`` with OGIVE_CALLS writes a line of JSON for each test into that folder,
and a file for each process of pytest. With OGIVE_MOST_S no test begins after so many seconds.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import pytest

SOURCE: Final = str(Path(__file__).parents[2] / "src" / "ogive") + os.sep
_called: set[CodeType] = set()
_began = time.monotonic()


def _note(frame: FrameType, event: str, arg: Any) -> None:
    _called.add(frame.f_code)


def pytest_configure() -> None:
    if "OGIVE_CALLS" in os.environ:
        threading.settrace(_note)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    folder = os.environ.get("OGIVE_CALLS")
    if folder is None:
        return (yield)
    _called.clear()
    sys.settrace(_note)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        names = sorted(
            {function_of(code) for code in tuple(_called) if code.co_filename.startswith(SOURCE)}
        )
        with Path(folder, f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as out:
            out.write(json.dumps({"test": item.nodeid, "calls": names}) + "\n")


def function_of(code: CodeType) -> str:
    """A lambda's or a comprehension's calls count for the function around it."""
    name = code.co_qualname  # type: ignore[attr-defined,unused-ignore]  # 3.11
    return f"{code.co_filename.removeprefix(SOURCE)}:{name.partition('.<locals>.<')[0]}"


class Limit:
    """A hook of its own, as it answers in pytest's place."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        return (
            True
            if time.monotonic() - _began > float(os.environ.get("OGIVE_MOST_S", "inf"))
            else None
        )


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    if plugin is sys.modules[__name__]:
        manager.register(Limit())
