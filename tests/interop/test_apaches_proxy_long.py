"""The scenarios of test_apaches_proxy.py that take long."""

import pytest

from tests.interop.test_apaches_proxy import sdk, server
from tests.interop.test_sdk_scenarios import (
    client,
    talk,
    test_change_of_the_invisible_time,
    test_dead_letters_in_order,
    test_delay,
    test_expiry,
    test_fifo_messages,
    test_large_body,
    test_push,
    test_recall,
    test_sql,
    test_transactions,
    test_with_remoting_clients,
    test_wrong_type,
)

__all__ = [
    "client",
    "sdk",
    "server",
    "talk",
    "test_change_of_the_invisible_time",
    "test_dead_letters_in_order",
    "test_delay",
    "test_expiry",
    "test_fifo_messages",
    "test_large_body",
    "test_push",
    "test_recall",
    "test_sql",
    "test_transactions",
    "test_with_remoting_clients",
    "test_wrong_type",
]
pytestmark = [pytest.mark.nightly, pytest.mark.waits(180)]
