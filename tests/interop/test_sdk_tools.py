"""curl, h2load and grpcurl on the gRPC port of ``ogive up``: HTTP/2 of nghttp2 and of Go."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from ogive.proxy import rocketmq_pb2 as pb
from ogive.proxy.framing import message_frame
from ogive.proxy.service import PATH
from tests.interop.sdk.sdks import TOOLS, grpcurl, missing_prerequisite
from tests.interop.sdk.servers import Server, start_server

pytestmark = [pytest.mark.sdk, pytest.mark.nightly, pytest.mark.waits(30)]

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
HEADERS: Final = ("content-type: application/grpc", "te: trailers", "x-mq-client-id: tool")
ROUTE: Final = {
    "topic": {"name": "Tools"},
    "endpoints": {"scheme": "DOMAIN_NAME", "addresses": [{"host": "typed.example", "port": 1}]},
}


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    """Skip if a program is missing; fail in CI."""
    if missing := missing_prerequisite(TOOLS):
        if os.environ.get("CI") == "true" or os.environ.get("OGIVE_FIGURES"):
            pytest.fail(missing)
        pytest.skip(missing)


@pytest.fixture(scope="module")
def server(programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server("ogive", tmp_path_factory.mktemp("server")) as running:
        running.topic("Tools")
        yield running


@pytest.fixture(scope="module", name="grpcurl")
def fetched_grpcurl() -> str:
    return grpcurl()


def says(*command: str, code: int = 0) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def with_headers(option: str) -> list[str]:
    return [word for header in HEADERS for word in (option, header)]


@pytest.fixture
def request_file(tmp_path: Path) -> str:
    """A file with a framed request for the route of the topic."""
    request = pb.QueryRouteRequest(topic=pb.Resource(name="Tools"))
    request.endpoints.addresses.add(host="typed.example", port=1)
    file = tmp_path / "request"
    file.write_bytes(message_frame(request.SerializeToString()))
    return str(file)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_curl_asks_for_a_route(
    server: Server, request_file: str, tmp_path: Path, scheme: str
) -> None:
    body = tmp_path / "body"
    version = "--http2-prior-knowledge" if scheme == "http" else "--http2"
    # nobody signed the certificate that the server made for itself
    options = [version, "--insecure", "--silent", "--show-error", "--dump-header", "-"]
    data = ["--data-binary", f"@{request_file}", "--output", str(body)]
    url = f"{scheme}://{server.endpoints}{PATH}QueryRoute"
    said = says("curl", *options, *with_headers("--header"), *data, url)
    assert said.startswith("HTTP/2 200")
    assert "grpc-status: 0" in said
    response = pb.QueryRouteResponse.FromString(body.read_bytes()[5:])
    assert response.status.code == pb.OK
    assert len(response.message_queues) == 4


def test_curl_without_grpc_is_refused(server: Server) -> None:
    url = f"http://{server.endpoints}{PATH}QueryRoute"
    said = says("curl", "--http2-prior-knowledge", "--silent", "--dump-header", "-", url)
    assert "grpc-status: 3" in said


@pytest.mark.parametrize(
    ("scheme", "windows"), [("http", ()), ("https", ()), ("http", ("-w", "6", "-W", "16"))]
)
def test_h2load_gets_an_answer_to_each_call(
    server: Server, request_file: str, scheme: str, windows: tuple[str, ...]
) -> None:
    url = f"{scheme}://{server.endpoints}{PATH}QueryRoute"
    load = ("-n", "2000", "-c", "8", "-m", "64", "-d", request_file, *windows)
    said = says("h2load", *load, *with_headers("-H"), url)
    assert re.search(r"2000 succeeded, 0 failed, 0 errored, 0 timeout", said), said
    assert "2000 2xx" in said


def call(grpcurl: str, server: Server, method: str, *requests: Any) -> list[Any]:
    """The responses to a call by grpcurl, which learns the service by reflection."""
    said = says(
        grpcurl,
        "-plaintext",
        *("-H", "x-mq-client-id: tool", "-max-time", "60"),
        *("-d", "".join(map(json.dumps, requests))),
        server.endpoints,
        f"{SERVICE}/{method}",
    )
    decoder, found, at = json.JSONDecoder(), [], 0
    while (at := said.find("{", at)) >= 0:
        value, at = decoder.raw_decode(said, at)
        found.append(value)
    return found


def test_grpcurl_describes_the_service(grpcurl: str, server: Server) -> None:
    said = says(grpcurl, "-plaintext", server.endpoints, "list")
    assert said.split() == [SERVICE]
    said = says(grpcurl, "-insecure", server.endpoints, "describe", SERVICE)
    assert "rpc Telemetry ( stream .apache.rocketmq.v2.TelemetryCommand )" in said


def test_grpcurl_makes_each_kind_of_call(grpcurl: str, server: Server) -> None:
    [route] = call(grpcurl, server, "QueryRoute", ROUTE)
    assert (route["status"]["code"], len(route["messageQueues"])) == ("OK", 4)
    # "aGVsbG8=": hello
    message = {"topic": {"name": "Tools"}, "body": "aGVsbG8="}
    message["systemProperties"] = {"messageId": "01" + "0" * 32}
    [sent] = call(grpcurl, server, "SendMessage", {"messages": [message]})
    assert sent["entries"][0]["messageId"] == "01" + "0" * 32
    settings = {"clientType": "PRODUCER", "publishing": {"topics": [{"name": "Tools"}]}}
    commands = call(grpcurl, server, "Telemetry", *[{"settings": settings}] * 2)
    assert [one["status"]["code"] for one in commands] == ["OK", "OK"]
    receive = {
        "group": {"name": "tools"},
        "messageQueue": {"topic": {"name": "Tools"}, "id": -1},
        "filterExpression": {"type": "TAG", "expression": "*"},
        "batchSize": 1,
        "invisibleDuration": "30s",
        "longPollingTimeout": "20s",
    }
    status, received, _ = call(grpcurl, server, "ReceiveMessage", receive)
    assert status["status"]["code"] == "OK"
    assert received["message"]["body"] == "aGVsbG8="


def test_grpcurl_is_told_what_is_not_served(grpcurl: str, server: Server) -> None:
    said = says(grpcurl, "-plaintext", server.endpoints, f"{SERVICE}/PullMessage", code=1)
    assert "does not include a method named" in said
