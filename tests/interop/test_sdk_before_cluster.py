"""The scenarios of the SDKs on ``ogive proxy``, before ogive's broker and before Apache's."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop.sdk.servers import Server
from tests.interop.test_sdk_scenarios import (
    client,
    limits,
    sdk,
    talk,
    test_change_of_the_invisible_time,
    test_dead_letters,
    test_dead_letters_in_order,
    test_delay,
    test_expiry,
    test_fifo_messages,
    test_large_body,
    test_normal_messages,
    test_priority,
    test_push,
    test_recall,
    test_restart,
    test_sql,
    test_tags,
    test_transactions,
    test_with_remoting_clients,
    test_wrong_type,
)
from tests.peers import start_broker
from tests.processes import stop, wait_until

__all__ = [
    "client",
    "limits",
    "sdk",
    "talk",
    "test_change_of_the_invisible_time",
    "test_dead_letters",
    "test_dead_letters_in_order",
    "test_delay",
    "test_expiry",
    "test_fifo_messages",
    "test_large_body",
    "test_normal_messages",
    "test_priority",
    "test_push",
    "test_recall",
    "test_restart",
    "test_sql",
    "test_tags",
    "test_transactions",
    "test_with_remoting_clients",
    "test_wrong_type",
]
pytestmark = [pytest.mark.sdk, pytest.mark.nightly, pytest.mark.waits(240)]


@contextmanager
def start_proxy(name_server: str, folder: Path) -> Iterator[str]:
    """Run ``ogive proxy``; yield where its gRPC port listens."""
    log = folder / "proxy.out"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "ogive", "proxy", "-n", name_server, "--grpc-port", "0"],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: "grpc=" in log.read_text(), process, log, "ogive proxy")
        yield log.read_text().partition("grpc=")[2].split()[0]
    finally:
        stop(process)


@pytest.fixture(scope="module", params=["ogive", "apache"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("cluster")
    with (
        start_broker(request.param, folder) as broker,
        start_proxy(broker.name_server, folder) as endpoints,
    ):
        yield Server(broker, endpoints)
