"""The certificate of the gRPC port."""

import os
import shutil
import ssl
import stat
import sys
import time
from pathlib import Path

import pytest
from cryptography import x509

from ogive.cli.up_grpc import RENEWED_DAYS, OwnCertificate
from ogive.errors import InvalidOption


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "grpc-certificate.pem"


def shown_to_a_client(context: ssl.SSLContext | None) -> bytes:
    """Return the certificate that a client without verification gets."""
    assert context is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    asks = client.wrap_bio(to_client, to_server)
    answers = context.wrap_bio(to_server, to_client, server_side=True)
    for side in (asks, answers, asks):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return asks.getpeercert(binary_form=True) or b""


@pytest.fixture(params=["cryptography", "openssl"])
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One of the two ways to make a certificate; the other is missing."""
    if request.param == "openssl":
        monkeypatch.setitem(sys.modules, "cryptography", None)
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
    else:
        monkeypatch.setattr(shutil, "which", lambda _: None)
    return str(request.param)


@pytest.mark.usefixtures("maker")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "broker.example.com"])
def test_it_is_made_once_for_the_host_and_kept_private(
    path: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = OwnCertificate(path, host)
    first = shown_to_a_client(own.context())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert shown_to_a_client(OwnCertificate(path, host).context()) == first

    # what makes it is there again, and reads it
    monkeypatch.undo()
    made = x509.load_der_x509_certificate(first)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == [host]
    age = made.not_valid_after_utc - made.not_valid_before_utc
    assert age.days >= RENEWED_DAYS + 30


def test_an_old_one_is_renewed(path: Path) -> None:
    own = OwnCertificate(path, "127.0.0.1")
    first = shown_to_a_client(own.context())
    almost = time.time() - (RENEWED_DAYS - 1) * 86_400
    os.utime(path, (almost, almost))
    assert shown_to_a_client(own.context()) == first
    old = time.time() - (RENEWED_DAYS + 1) * 86_400
    os.utime(path, (old, old))
    assert shown_to_a_client(own.context()) != first


def test_a_damaged_one_is_made_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = OwnCertificate(path, "127.0.0.1")
    own.context()
    path.write_text("not PEM")
    assert shown_to_a_client(own.context())
    assert f"{path} is not a certificate with its key" in caplog.text


def test_without_any_maker_there_is_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert OwnCertificate(path, "127.0.0.1").context() is None
    assert not path.exists()


def test_an_openssl_that_fails_is_no_maker(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setattr(shutil, "which", lambda _: "/bin/false")
    assert OwnCertificate(path, "127.0.0.1").context() is None
    assert "openssl made no certificate" in caplog.text


def test_a_directory_that_refuses_it_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("a file")
    own = OwnCertificate(tmp_path / "config" / "grpc-certificate.pem", "127.0.0.1")
    with pytest.raises(InvalidOption, match="cannot be written"):
        own.context()
