"""SIGHUP at servers: new certificates, or another log level."""

import asyncio
import io
import logging
import os
import signal
import ssl
import sys
from pathlib import Path

import pytest
import trustme

from ogive.cli import connect
from ogive.cli.hang_up import CertificateFiles, at_hang_up, hang_up
from ogive.cli.parser import build_parser
from ogive.errors import InvalidOption


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """The root logger at WARNING, which has its level back afterwards."""
    logger = logging.getLogger()
    monkeypatch.setattr(logger, "level", logger.level)
    logger.setLevel(logging.WARNING)
    return logger


def test_a_hang_up_changes_the_log_level_of_a_service(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    stop = asyncio.Event()
    levels = []
    for _ in range(3):
        hang_up(stop)
        levels.append(root.level)
    assert levels == [logging.INFO, logging.DEBUG, logging.WARNING]
    assert caplog.messages[0] == "SIGHUP: the log level is INFO now"
    assert not stop.is_set()


def test_a_hang_up_of_the_terminal_stops(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    stop = asyncio.Event()
    hang_up(stop)
    assert stop.is_set()
    assert root.level == logging.WARNING


async def test_a_hang_up_reads_changed_certificates_and_else_changes_the_log_level(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_text("old")
    files = CertificateFiles(str(cert), str(key))
    reloads: list[bool] = []
    usable = True

    async def reload() -> bool:
        reloads.append(usable)
        return usable

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    at_hang_up(stop, files, reload)
    try:

        async def signalled() -> tuple[int, int]:
            os.kill(os.getpid(), signal.SIGHUP)
            before = len(reloads), root.level
            while (len(reloads), root.level) == before:
                await asyncio.sleep(0.001)
            return len(reloads), root.level

        assert await signalled() == (0, logging.INFO)
        # also one that was missing
        key.write_text("new")
        assert await signalled() == (1, logging.INFO)
        assert await signalled() == (1, logging.DEBUG)
        cert.write_text("broken")
        usable = False
        assert await signalled() == (2, logging.DEBUG)
        # until they can be used
        assert await signalled() == (3, logging.DEBUG)
        usable = True
        assert await signalled() == (4, logging.DEBUG)
        assert await signalled() == (4, logging.WARNING)
        assert not stop.is_set()
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def test_connections_of_a_client_trust_new_authorities_too(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    trustme.CA(organization_name="old").cert_pem.write_to_path(file)
    options = build_parser().parse_args(["proxy", "-n", "127.0.0.1:1", "--cafile", str(file)])
    context = connect.client_config(options).ssl
    assert isinstance(context, ssl.SSLContext)
    trustme.CA(organization_name="new").cert_pem.write_to_path(file)
    connect.read_certificates_again(connect.place(options), context)
    names = str([authority["subject"] for authority in context.get_ca_certs()])
    assert "'old'" in names
    assert "'new'" in names
    file.write_text("broken")
    with pytest.raises(InvalidOption, match=r"ca\.pem: it holds no certificate"):
        connect.read_certificates_again(connect.place(options), context)
