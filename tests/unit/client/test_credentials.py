"""Credentials in files."""

import os
from pathlib import Path

import pytest

from ogive.client.credentials import read_credentials
from ogive.wire.acl import Credentials


@pytest.mark.skipif(os.name != "posix", reason="there are no such modes elsewhere")
@pytest.mark.parametrize(("mode", "told"), [(0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1), (0o644, 1)])
def test_a_file_that_others_can_read_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, told: int) -> None:
    file = tmp_path / "my tools.yml"
    file.write_text("accessKey: me\nsecretKey: very secret\n")
    file.chmod(mode)
    for _ in range(2):
        assert read_credentials(str(file)) == Credentials(access_key="me", secret_key="very secret")
    said = f"credentials file {file} can be read by other users of this machine: chmod 600 '{file}'"
    assert caplog.messages == [said] * told
