"""The statuses that a broker's answers become, each with its text."""

from collections.abc import AsyncIterator

import pytest

from ogive.client.config import ClientConfig
from ogive.errors import ResponseCode
from ogive.proxy import publishing
from ogive.proxy import rocketmq_pb2 as pb
from ogive.proxy.cluster import ClusterBackend
from ogive.proxy.service import Service
from ogive.testing.fake_broker import FakeBroker, error, ok
from ogive.wire.codes import RequestCode
from ogive.wire.headers.send import SendMessageResponse
from tests.unit.proxy.sdk import Sdk, message


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"T": 1}) as running:
        yield running


@pytest.fixture
async def sdk(broker: FakeBroker) -> AsyncIterator[Sdk]:
    backend = ClusterBackend(ClientConfig(name_server=broker.address))
    await backend.client.start()
    yield Sdk(Service(backend).methods())
    await backend.close()


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        (ResponseCode.FLUSH_DISK_TIMEOUT, pb.MASTER_PERSISTENCE_TIMEOUT, "the disk takes too long"),
        (
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
            pb.SLAVE_PERSISTENCE_TIMEOUT,
            "the slave takes too long",
        ),
        (ResponseCode.SLAVE_NOT_AVAILABLE, pb.HA_NOT_AVAILABLE, "no slave is available"),
    ],
)
async def test_a_stored_message_that_is_not_safe_yet(
    broker: FakeBroker, sdk: Sdk, code: int, status: int, text: str
) -> None:
    stored = ok(SendMessageResponse(msg_id="0" * 32, queue_id=0, queue_offset=7))
    stored.code = code
    broker.script(RequestCode.SEND_MESSAGE_V2, stored)
    sent = message("T")
    response = await sdk.send(sent)
    assert (response.status.code, response.status.message) == (status, text)
    (entry,) = response.entries
    assert (entry.status, entry.offset) == (response.status, 7)
    assert entry.message_id == sent.system_properties.message_id


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.SYSTEM_BUSY, pb.TOO_MANY_REQUESTS),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, pb.NOT_IMPLEMENTED),
        (ResponseCode.NO_PERMISSION, pb.FORBIDDEN),
        (ResponseCode.TOPIC_NOT_EXIST, pb.TOPIC_NOT_FOUND),
        (ResponseCode.SYSTEM_ERROR, pb.INTERNAL_SERVER_ERROR),
    ],
)
async def test_a_broker_that_refuses_a_send(
    broker: FakeBroker, sdk: Sdk, code: int, status: int
) -> None:
    broker.script(RequestCode.SEND_MESSAGE_V2, error(code, "so says the broker"))
    response = await sdk.send(message("T"))
    assert (response.status.code, response.status.message) == (status, "so says the broker")
    assert not response.entries


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.POLLING_FULL, pb.TOO_MANY_REQUESTS),
        (ResponseCode.SUBSCRIPTION_PARSE_FAILED, pb.ILLEGAL_FILTER_EXPRESSION),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, pb.CONSUMER_GROUP_NOT_FOUND),
    ],
)
async def test_a_broker_that_refuses_a_receive(
    broker: FakeBroker, sdk: Sdk, code: int, status: int
) -> None:
    group = error(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
    broker.on(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group)
    broker.script(RequestCode.POP_MESSAGE, error(code))
    assert await sdk.receive("T") == (status, [])


async def test_a_broker_that_does_not_answer(
    broker: FakeBroker, sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "SEND_TIMEOUT_S", 0.05)
    await sdk.route("T")
    broker.hold(RequestCode.SEND_MESSAGE_V2)
    response = await sdk.send(message("T"))
    assert response.status.code == pb.PROXY_TIMEOUT
    assert "no answer" in response.status.message


@pytest.mark.parametrize(
    "addresses", [[], [pb.Address(host="", port=8081)], [pb.Address(host="h", port=0)]]
)
@pytest.mark.parametrize("method", ["QueryRoute", "QueryAssignment"])
async def test_endpoints_that_no_client_can_use(
    sdk: Sdk, method: str, addresses: list[pb.Address]
) -> None:
    made = {"QueryRoute": pb.QueryRouteRequest, "QueryAssignment": pb.QueryAssignmentRequest}
    request = made[method](topic=pb.Resource(name="T"), endpoints=pb.Endpoints(addresses=addresses))
    if isinstance(request, pb.QueryAssignmentRequest):
        request.group.name = "g"
    response = await sdk.call(method, request)
    assert response.status.code == pb.ILLEGAL_ACCESS_POINT
    assert "host and port" in response.status.message
