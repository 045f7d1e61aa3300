"""Apache's proxy 5.5.0 in cluster mode before our broker, with the scenarios of the SDK for Java.

The long ones are in test_apaches_proxy_long.py.
"""

from collections.abc import Iterator

import pytest

from tests.interop.sdk.sdks import SDKS, Sdk
from tests.interop.sdk.servers import ApacheClusterProxy, Server
from tests.interop.test_sdk_scenarios import (
    client,
    talk,
    test_dead_letters,
    test_normal_messages,
    test_priority,
    test_tags,
)
from tests.peers import our_broker

__all__ = [
    "client",
    "talk",
    "test_dead_letters",
    "test_normal_messages",
    "test_priority",
    "test_tags",
]


@pytest.fixture(scope="module")
def sdk() -> Sdk:
    return SDKS["java"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("proxied")
    with (
        our_broker(folder / "ours") as broker,
        ApacheClusterProxy(folder / "proxy", name_server=broker.name_server) as proxy,
    ):
        yield Server(broker, f"127.0.0.1:{proxy.grpc_port}")
