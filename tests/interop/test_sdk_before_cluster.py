"""The scenarios of the SDKs on ``ogive proxy``, before ogive's broker and before Apache's.

Those about a server's own TLS are left out: the proxy's port is the same as that of ``ogive up``.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ogive
from ogive.testing import Broker
from tests.interop.apache import Apache, access_control
from tests.interop.sdk.sdks import Sdk, Talk
from tests.interop.sdk.servers import APACHES_SLOWER_CHECKS, OUR_SLOWER_CHECKS, Server
from tests.interop.test_sdk_scenarios import (
    ROOT,
    Client,
    Guarded,
    again_s,
    client,
    exchange,
    limits,
    sdk,
    talk,
    test_change_of_the_invisible_time,
    test_dead_letters,
    test_dead_letters_in_order,
    test_delay,
    test_expiry,
    test_fifo_messages,
    test_kill,
    test_large_body,
    test_members,
    test_normal_messages,
    test_priority,
    test_push,
    test_recall,
    test_restart,
    test_sql,
    test_tags,
    test_transactions,
    test_with_remoting_clients,
    test_wrong_credentials,
    test_wrong_type,
    works_through,
    write_root,
)
from tests.peers import RunningBroker
from tests.processes import free_port, stop, wait_until

__all__ = [
    "again_s",
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
    "test_kill",
    "test_large_body",
    "test_members",
    "test_normal_messages",
    "test_priority",
    "test_push",
    "test_recall",
    "test_restart",
    "test_sql",
    "test_tags",
    "test_transactions",
    "test_with_remoting_clients",
    "test_wrong_credentials",
    "test_wrong_type",
]
pytestmark = [pytest.mark.sdk, pytest.mark.nightly, pytest.mark.waits(240)]

USER = ("shop", "shop-secret-0815")
"""A user of the cluster with access control, who may send and receive."""


@contextmanager
def start_proxy(
    name_server: str, folder: Path, *options: str
) -> Iterator[tuple[Callable[[], None], str]]:
    """Run ``ogive proxy``; yield what starts it again, and where its gRPC port listens."""
    log, port = folder / "proxy.out", str(free_port())
    command = [sys.executable, "-m", "ogive", "proxy", "-n", name_server, "--grpc-port", port]

    def start() -> None:
        with log.open("wb") as out:
            process = subprocess.Popen([*command, *options], stdout=out, stderr=subprocess.STDOUT)
        running.append(process)
        wait_until(lambda: "grpc=" in log.read_text(), process, log, "ogive proxy")

    def restart() -> None:
        stop(running.pop())
        start()

    running: list[subprocess.Popen[bytes]] = []
    try:
        start()
        yield restart, f"127.0.0.1:{port}"
    finally:
        for process in running:
            stop(process)


@pytest.fixture(scope="module", params=["ogive", "apache"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("cluster")
    broker: RunningBroker = (
        Apache(folder, APACHES_SLOWER_CHECKS)
        if request.param == "apache"
        else Broker(data=folder / "store", options=OUR_SLOWER_CHECKS)
    )
    with (
        broker,
        start_proxy(broker.name_server, folder) as (restart, endpoints),
    ):
        yield Server(broker, endpoints, restart)


@pytest.fixture(scope="module", params=["ogive", "apache"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    """A proxy before a broker with access control: ogive's lists no passwords, Apache's does."""
    folder = tmp_path_factory.mktemp("guarded")
    credentials = ("--credentials", write_root(folder))
    guarding: Apache | Broker
    if request.param == "apache":
        guarding = Apache(folder, access_control(*ROOT))
    else:
        guarding = Broker(data=folder / "store", options=("--acl", *credentials))
    with guarding as broker:
        # the proxy reads users and rules at its start, and then every 10 s
        with ogive.Admin(client=Guarded(Server(broker, "")).config()) as admin:
            admin.create_user(*USER)
            admin.allow(USER[0], "Topic:*", ["Pub", "Sub"])
            admin.allow(USER[0], "Group:*", ["Sub"])
        with start_proxy(broker.name_server, folder, *credentials) as (_, endpoints):
            yield Guarded(Server(broker, endpoints))


def test_restart_of_the_proxy(client: Client, again_s: float) -> None:
    """Send and receive within 15 seconds after a restart of the proxy"""
    assert client.server.restart_proxy is not None
    works_through(client, client.server.restart_proxy, again_s)


def test_credentials(sdk: Sdk, guarded: Guarded, topic: str, group: str) -> None:
    """With credentials of a user of the cluster"""
    with Talk(sdk) as talk:
        exchange(talk, guarded, topic, group, access_key=USER[0], secret_key=USER[1])
