"""The gRPC port of ``ogive up`` and ``ogive proxy``, from the command line and from a socket."""

import asyncio
import contextlib
import re
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import trustme

import ogive
from ogive.errors import IllegalStateError
from ogive.proxy import rocketmq_pb2 as pb
from ogive.testing import Broker
from tests.grpc_client import GrpcClient
from tests.processes import free_port, stop

ON_FREE_PORTS = ("--name-server-port", "0", "--broker-port", "0")


def up(folder: Path, *words: str) -> AbstractContextManager[tuple[subprocess.Popen[bytes], str]]:
    """Run ``ogive up``, and yield its process and its first line; none if it ends before."""
    return started(folder, "up", "--data", str(folder / "data"), *ON_FREE_PORTS, *words)


@contextmanager
def started(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "ogive", *words], stdout=subprocess.PIPE, stderr=errors
        )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().decode()
    finally:
        stop(process)
        assert process.stdout is not None
        process.stdout.close()


async def route(endpoint: str, *, tls: ssl.SSLContext | None = None) -> pb.QueryRouteResponse:
    """Ask for the route of a topic, and name a made-up endpoint."""
    client = await GrpcClient.connect(int(endpoint.rpartition(":")[2]), tls=tls)
    request = pb.QueryRouteRequest(
        topic=pb.Resource(name="Orders"),
        endpoints=pb.Endpoints(
            scheme=pb.AddressScheme.DOMAIN_NAME,
            addresses=[pb.Address(host="typed.example", port=1)],
        ),
    )
    try:
        reply = await client.call(
            "QueryRoute",
            request.SerializeToString(),
            metadata=[("x-mq-client-id", "client"), ("x-mq-language", "PYTHON")],
        )
        assert reply.status == 0, reply.headers
        answer: pb.QueryRouteResponse = pb.QueryRouteResponse.FromString(reply.messages[0])
        return answer
    finally:
        client.close()


def with_topic(name_server: str) -> None:
    with ogive.Admin(name_server) as admin:
        admin.create_topic("Orders")


def any_certificate() -> ssl.SSLContext:
    """TLS as the SDKs use it by default: nothing is verified."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


async def test_a_broker_serves_grpc_with_and_without_tls() -> None:
    with Broker(grpc_port=0) as broker:
        await asyncio.to_thread(with_topic, broker.name_server)
        for tls in (None, any_certificate()):
            found = await route(broker.grpc_endpoint, tls=tls)
            assert found.status.code == pb.Code.OK, found
            [address] = found.message_queues[0].broker.endpoints.addresses
            assert (address.host, address.port) == ("typed.example", 1)
        endpoint = broker.grpc_endpoint
        broker.kill()
        broker.start()
        assert broker.grpc_endpoint == endpoint
        assert (await route(endpoint)).status.code == pb.Code.OK


def test_a_broker_of_a_test_has_the_port_only_if_asked() -> None:
    broker = Broker()
    with pytest.raises(IllegalStateError, match=r"Broker\(grpc_port=0\)"):
        _ = broker.grpc_endpoint


async def test_routes_name_the_advertised_address(tmp_path: Path) -> None:
    port = free_port()
    words = ("--grpc-port", str(port), "--grpc-advertised", "lb.example:443")
    with up(tmp_path, *words) as (_, line):
        assert line.endswith(" grpc=lb.example:443\n")
        name_server = line.split()[1].removeprefix("name-server=")
        await asyncio.to_thread(with_topic, name_server)
        found = await route(f"127.0.0.1:{port}")
        endpoints = found.message_queues[0].broker.endpoints
        assert endpoints.scheme == pb.AddressScheme.DOMAIN_NAME
        [address] = endpoints.addresses
        assert (address.host, address.port) == ("lb.example", 443)


def test_a_given_port_that_is_in_use_ends_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with up(tmp_path, "--grpc-port", str(port)) as (process, line):
            assert line == ""
            assert process.wait(60) == 75
    said = (tmp_path / "errors").read_text()
    assert f"cannot listen on 127.0.0.1:{port}" in said
    assert "--grpc-port chooses another (0: a free one)" in said
    assert not (tmp_path / "data").exists()


def test_a_default_port_that_is_in_use_is_a_warning(tmp_path: Path) -> None:
    try:
        taken = socket.create_server(("127.0.0.1", 8081))
    except OSError:
        # by something else, which is as well
        taken = socket.socket()
    with taken, up(tmp_path) as (process, line):
        assert line.endswith(" grpc: off (port 8081 is in use)\n")
        assert stop(process) == 0
    [said] = (tmp_path / "errors").read_text().splitlines()
    assert "no gRPC port for clients of RocketMQ 5: cannot listen on 127.0.0.1:8081" in said
    assert "--grpc-port chooses another" in said
    assert "--no-grpc" in said


def test_no_grpc(tmp_path: Path) -> None:
    with up(tmp_path, "--no-grpc") as (_, line):
        assert re.fullmatch(r"ready name-server=\S+ broker=\S+\n", line)


async def test_figures_and_a_stop_under_way(tmp_path: Path) -> None:
    """The page counts calls, and a stop ends a stream that is open."""
    metrics = free_port()
    words = ("--grpc-port", "0", "--metrics-port", str(metrics))
    with up(tmp_path, *words) as (process, line):
        endpoint = line.rpartition("grpc=")[2].strip()
        await route(endpoint)
        url = f"http://127.0.0.1:{metrics}/metrics"
        with await asyncio.to_thread(urllib.request.urlopen, url, timeout=60) as answer:
            page = answer.read().decode()
        assert 'ogive_grpc_calls_total{method="QueryRoute",status="OK"} 1\n' in page
        client = await GrpcClient.connect(int(endpoint.rpartition(":")[2]))
        stream_id = client.begin("Telemetry", metadata=[("x-mq-client-id", "client")])
        process.send_signal(signal.SIGTERM)
        await client.goaway.wait()
        assert (await client.finish(stream_id)).status is not None
        await client.lost.wait()
        assert await asyncio.to_thread(process.wait, 60) == 0


def test_the_certificate_is_used_again(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        with up(tmp_path, "--grpc-port", "0") as (process, line):
            assert " grpc=127.0.0.1:" in line
            assert stop(process) == 0
        found.append((tmp_path / "data" / "config" / "grpc-certificate.pem").read_bytes())
    assert found[0] == found[1]


async def test_a_proxy_serves_grpc_before_a_broker(tmp_path: Path) -> None:
    """With and without TLS, with pages for probes, until a signal."""
    pages = free_port()
    with Broker() as broker:
        await asyncio.to_thread(with_topic, broker.name_server)
        words = ("proxy", "-n", broker.name_server, "--grpc-port", "0", "--http-port", str(pages))
        with started(tmp_path, *words) as (process, line):
            ready, _, endpoint = line.strip().rpartition(" grpc=")
            assert ready == f"ready name-server={broker.name_server}"
            for tls in (None, any_certificate()):
                assert (await route(endpoint, tls=tls)).status.code == pb.Code.OK
            url = f"http://127.0.0.1:{pages}/ready"
            with await asyncio.to_thread(urllib.request.urlopen, url, timeout=60) as answer:
                assert answer.read() == b"ready\n"
            url = f"http://127.0.0.1:{pages}/metrics"
            with await asyncio.to_thread(urllib.request.urlopen, url, timeout=60) as answer:
                page = answer.read().decode()
            assert 'ogive_grpc_calls_total{method="QueryRoute",status="OK"} 2\n' in page
            with socket.create_server(("127.0.0.1", 0)) as taken:
                port = taken.getsockname()[1]
                with started(tmp_path, *words[:4], str(port)) as (second, nothing):
                    assert nothing == ""
                    assert await asyncio.to_thread(second.wait, 60) == 75
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 0


async def test_sighup_brings_new_certificates_to_a_proxy(tmp_path: Path) -> None:
    """For the SDKs, and for connections to the brokers."""
    first, second = trustme.CA(), trustme.CA()
    files = {name: tmp_path / f"{name}.pem" for name in ("cert", "key", "ca")}

    def write(ca: trustme.CA) -> None:
        issued = ca.issue_cert("127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(files["cert"])
        issued.private_key_pem.write_to_path(files["key"])
        ca.cert_pem.write_to_path(files["ca"])

    def only(ca: trustme.CA) -> ssl.SSLContext:
        context = ssl.create_default_context()
        ca.configure_trust(context)
        context.set_alpn_protocols(["h2"])
        return context

    write(first)
    server = ("--tls-cert", str(files["cert"]), "--tls-key", str(files["key"]))
    with Broker(options=server) as broker:
        words = ("-n", broker.name_server, "--cafile", str(files["ca"]), "--grpc-port", "0")
        with started(tmp_path, "proxy", *words, *server) as (process, line):
            endpoint = line.strip().rpartition(" grpc=")[2]
            assert (await route(endpoint, tls=only(first))).status.code == pb.Code.TOPIC_NOT_FOUND
            write(second)
            process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(60):
                while True:
                    with contextlib.suppress(ssl.SSLError):
                        await route(endpoint, tls=only(second))
                        break
            assert "the certificates were reloaded" in (tmp_path / "errors").read_text()
            # a connection to the broker of before goes on, new ones trust both authorities
            assert (await route(endpoint, tls=only(second))).status.code == pb.Code.TOPIC_NOT_FOUND
            process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(60):
                while "the log level is INFO now" not in (tmp_path / "errors").read_text():
                    await asyncio.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 0
