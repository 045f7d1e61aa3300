"""``ogive proxy``: options that are refused before anything is opened."""

from pathlib import Path

import pytest

from ogive.cli.command import run
from ogive.cli.exits import EXIT_ERROR

OPEN = ("--host", "0.0.0.0")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--grpc-port", "70000"), "--grpc-port 70000: must be between 0 and 65535"),
        (("--grpc-advertised", "a:b"), "--grpc-advertised: "),
        (("--host", "nowhere"), "an IP address or localhost is expected"),
        (OPEN, "give --credentials of a cluster with access control"),
        ((*OPEN, "--credentials", "keys"), "add --tls-cert and --tls-key"),
        (("--tls-cert", "x"), "TLS needs both --tls-cert and --tls-key"),
        (("--tls-mode", "permissive"), "--tls-mode does nothing without"),
        (("--drain-delay", "1"), "--drain-delay has no effect without --http-port"),
        (("--http-port", "70000"), "--http-port 70000: must be between 0 and 65535"),
        (("--http-port", "0", "--http-host", "0.0.0.0"), "--insecure-http"),
    ],
)
def test_options_that_are_refused(
    words: tuple[str, ...],
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keys").write_text("accessKey: root\nsecretKey: root-secret-0815\n")
    Path("keys").chmod(0o600)
    assert run(["proxy", *words]) == EXIT_ERROR
    assert fault in capsys.readouterr().err
