"""Credentials in files."""

import os
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from ogive.client.config import read_credentials, trusting
from ogive.errors import InvalidOption
from ogive.wire.signing import Credentials


@pytest.mark.skipif(os.name != "posix", reason="there are no such modes elsewhere")
@pytest.mark.parametrize(
    ("mode", "told"), [(0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1), (0o644, 1)]
)
def test_a_file_that_others_can_read_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, told: int
) -> None:
    file = tmp_path / "my tools.yml"
    file.write_text("accessKey: me\nsecretKey: very secret\n")
    file.chmod(mode)
    for _ in range(2):
        assert read_credentials(str(file)) == Credentials(access_key="me", secret_key="very secret")
    said = f"credentials file {file} is readable by other users of this machine: chmod 600 '{file}'"
    assert caplog.messages == [said] * told


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ('secretKey: "secret1234" # mine', "secret1234"),
        ("secretKey: 'a \"b\" # c'", 'a "b" # c'),
        ("secretKey: secret1234  # mine", "secret1234"),
        ('secretKey: a#b=c:d"e', 'a#b=c:d"e'),
        ("secretKey:secret1234", "secret1234"),
        ("secretKey = secret # 1234", "secret # 1234"),
        ("secretKey = 'secret1234'", "secret1234"),
    ],
)
def test_quotes_and_comments_are_those_of_yaml(tmp_path: Path, line: str, secret: str) -> None:
    """mqadmin reads the same file as YAML, and would sign with another secret."""
    file = tmp_path / "tools.yml"
    file.write_text(f"# tools\naccessKey: me # the name\n{line}\nnothing\n")
    assert read_credentials(str(file)) == Credentials(access_key="me", secret_key=secret)


@pytest.mark.parametrize("value", ['"a"b', '"abc', '"a\\nb"', "'it''s'"])
def test_a_value_whose_quotes_are_not_understood_is_refused_without_showing_it(
    tmp_path: Path, value: str
) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(f"accessKey: me\nsecretKey: {value}\n")
    with pytest.raises(InvalidOption, match="secretKey begins with a quote") as refused:
        read_credentials(str(file))
    assert value not in str(refused.value)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """ca.pem, and a certificate of it: both.pem with its key, or cert.pem and key.pem."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = authority.issue_cert("me")
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    (tmp_path / "locked.pem").write_bytes(locked)
    return tmp_path


@pytest.mark.parametrize(
    "names",
    [("ca.pem",), ("ca.pem", "both.pem"), ("ca.pem", "cert.pem", "key.pem"), (None, "both.pem")],
)
def test_authorities_and_a_certificate_of_its_own_are_files(
    files: Path, names: tuple[str | None, ...]
) -> None:
    context = trusting(*(name and str(files / name) for name in names))
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("none.pem",), "authorities file .*none.pem: No such file"),
        (("key.pem",), "authorities file .*key.pem: it holds no certificate"),
        (("ca.pem", "none.pem"), "certificate file .*none.pem: No such file"),
        (("ca.pem", "cert.pem", "none.pem"), "key file .*none.pem: No such file"),
        (
            ("ca.pem", "cert.pem"),
            "certificate file .*cert.pem: its key is not in it; name the key's file, too",
        ),
        (
            ("ca.pem", "locked.pem"),
            "certificate file .*locked.pem: it is no certificate and its key",
        ),
        (
            ("ca.pem", "ca.pem", "key.pem"),
            "ca.pem and .*key.pem are no certificate and its key: KEY_VALUES_MISMATCH",
        ),
        (
            ("ca.pem", "cert.pem", "locked.pem"),
            "are no certificate and its key: the key is encrypted; a key without password is "
            "needed",
        ),
        (
            ("ca.pem", "key.pem", "cert.pem"),
            "key.pem holds no certificate in PEM form; are certificate and key swapped",
        ),
        (("ca.pem", None, "key.pem"), "key file .*key.pem: the key alone is shown to nobody"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    files: Path, names: tuple[str | None, ...], said: str
) -> None:
    """A key with a password, too, for which OpenSSL would ask at the terminal."""
    with pytest.raises(InvalidOption, match=said):
        trusting(*(name and str(files / name) for name in names))
