"""The scenarios of the SDKs with that of Rust, as far as it goes: it has neither push consumers nor
changes of the invisible time, recalls and priorities.
"""

import os

import pytest

from tests.interop.sdk.sdks import RUST, Sdk, missing_prerequisite
from tests.interop.test_sdk_scenarios import (
    again_s,
    client,
    guarded,
    server,
    talk,
    test_delay,
    test_expiry,
    test_kill,
    test_members,
    test_normal_messages,
    test_plaintext,
    test_sql,
    test_tags,
    test_transactions,
    test_with_remoting_clients,
    test_wrong_credentials,
    test_wrong_type,
)

__all__ = [
    "again_s",
    "client",
    "guarded",
    "server",
    "talk",
    "test_delay",
    "test_expiry",
    "test_kill",
    "test_members",
    "test_normal_messages",
    "test_plaintext",
    "test_sql",
    "test_tags",
    "test_transactions",
    "test_with_remoting_clients",
    "test_wrong_credentials",
    "test_wrong_type",
]
pytestmark = [pytest.mark.sdk, pytest.mark.nightly, pytest.mark.waits(240)]


@pytest.fixture(scope="module")
def sdk() -> Sdk:
    """Skips if it cannot be built; fails in CI."""
    if missing := missing_prerequisite(RUST.programs):
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return RUST
