"""Runs the command line in this process, by its entry point."""

import contextlib
import io
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from unittest import mock


@dataclass(frozen=True, slots=True)
class Done:
    """What a command left."""

    out: str
    err: str
    code: int


def run(*words: str, stdin: str = "") -> Done:
    """Run ``ogive`` with these arguments."""
    (entry,) = entry_points(group="console_scripts", name="ogive")
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
    ):
        try:
            code = entry.load()(list(words))
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else 1
    return Done(out.getvalue(), err.getvalue(), code)
