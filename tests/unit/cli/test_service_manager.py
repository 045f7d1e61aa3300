"""Messages to systemd, see sd_notify(3)."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from ogive.cli.probes import ServiceManager


def test_without_a_manager_nothing_is_sent() -> None:
    ServiceManager({}).notify("READY=1")


def test_a_message_goes_to_an_abstract_address() -> None:
    name = f"ogive-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).notify("READY=1", "STATUS=serves")
        assert manager.recv(100) == b"READY=1\nSTATUS=serves"


def test_a_manager_that_is_gone_does_not_stop_the_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).notify("READY=1")
    assert "the service manager was not told READY=1: [Errno 2]" in caplog.text


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, 0),
        ({"WATCHDOG_USEC": "30000000"}, 30),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0),
        ({"WATCHDOG_USEC": "soon"}, 0),
    ],
)
def test_the_watchdog_is_the_one_of_this_process(environ: dict[str, str], seconds: int) -> None:
    assert ServiceManager(environ).watchdog_s == seconds


async def test_without_a_watchdog_the_watch_ends() -> None:
    async with asyncio.timeout(60):
        await ServiceManager({}).watch()
