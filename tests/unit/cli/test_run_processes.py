"""Several processes of ``ogive run``: what becomes of some if another cannot be started."""

import asyncio
import errno
import os
import sys
from typing import Any

import pytest

from ogive.cli import run
from ogive.cli.parser import build_parser
from ogive.errors import OgiveError


async def test_no_process_goes_on_if_another_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = asyncio.create_subprocess_exec
    started: list[asyncio.subprocess.Process] = []

    async def start(*_: Any) -> asyncio.subprocess.Process:
        if started:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        started.append(await real(sys.executable, "-c", "import time; time.sleep(600)"))
        return started[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    options = build_parser().parse_args(["run", "app:bill", "--processes", "3"])
    with pytest.raises(OgiveError, match="process 2 of 3 cannot be started: "):
        await run.serve(options)
    assert await asyncio.wait_for(started[0].wait(), 60) != 0
