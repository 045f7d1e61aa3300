"""What brokers ask a client, and what they get."""

import pytest

from ogive.errors import ResponseCode
from ogive.testing.fake_broker import FakeBroker
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from tests.unit.client.test_instance import Member, client_of


@pytest.mark.feature(130)
async def test_a_change_of_the_group_wakes_every_consumer() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.routes.find("Orders")
        members = Member(), Member("shipping")
        for member in members:
            client.register_consumer(member)
        await client.heartbeat_now()
        broker.notify("billing")
        for member in members:
            await member.wait_told()


@pytest.mark.feature(130)
async def test_running_info_is_answered_for_the_group_that_is_asked_for() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.routes.find("Orders")
        client.register_consumer(Member())
        await client.heartbeat_now()
        ask = {"consumerGroup": "billing", "clientId": client.client_id}
        answer = await broker.ask(
            "billing", client.client_id, RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, ask)
        )
        assert (answer.code, answer.body) == (ResponseCode.SUCCESS, b'{"properties":{}}')
        ask["consumerGroup"] = "nobody"
        answer = await broker.ask(
            "billing", client.client_id, RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, ask)
        )
        assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_an_unknown_request_of_a_broker_is_refused_at_once() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.routes.find("Orders")
        client.register_consumer(Member())
        await client.heartbeat_now()
        answer = await broker.ask("billing", client.client_id, RemotingCommand(9_999))
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_handler_that_breaks_tells_the_broker_and_leaves_the_client_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(*_: object) -> RemotingCommand:
        raise LookupError("odd")

    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        client.requests.serve(RequestCode.CONSUME_MESSAGE_DIRECTLY, broken)
        await client.routes.find("Orders")
        client.register_consumer(Member())
        await client.heartbeat_now()
        answer = await broker.ask(
            "billing", client.client_id, RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY)
        )
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "LookupError: odd")
        assert client.running
    assert "request 309" in caplog.text
