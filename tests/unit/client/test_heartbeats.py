"""Which heartbeats are full, and which leave the subscriptions out."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from ogive.client.config import ClientConfig
from ogive.client.heartbeats import fingerprint
from ogive.client.instance import ClientInstance
from ogive.errors import MessageIllegal, ResponseCode
from ogive.model import MessageQueue
from ogive.testing.fake_broker import WAIT_S, FakeBroker, error, ok
from ogive.wire.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.clients import HeartbeatResponse

HEART_BEAT = RequestCode.HEART_BEAT
KNOWN = HeartbeatResponse(supports_v2=True, subscription_changed=False)
CHANGED = HeartbeatResponse(supports_v2=True, subscription_changed=True)


class Member:
    """A consumer that may change what it subscribes to."""

    group = "billing"

    def __init__(self) -> None:
        self.expression = "*"
        self.version = 1

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group=self.group,
            subscriptions=(SubscriptionData.of_tags("Orders", self.expression, self.version),),
        )

    def on_consumer_ids_changed(self) -> None:
        pass

    def holdings(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        return []

    def running_info(self) -> bytes:
        return b"{}"


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    """Knows fingerprints."""
    async with FakeBroker({"Orders": 1}) as made:
        made.on(HEART_BEAT, ok(KNOWN))
        yield made


@pytest.fixture
async def member() -> Member:
    return Member()


@pytest.fixture
async def client(broker: FakeBroker, member: Member) -> AsyncIterator[ClientInstance]:
    """Its member has been announced in full."""
    async with ClientInstance(
        ClientConfig(name_server=broker.address, heartbeat_period_s=0.02)
    ) as made:
        await made.routes.find("Orders")
        made.register_consumer(member)
        await made.heartbeat_now()
        yield made


def beats(broker: FakeBroker) -> list[HeartbeatData]:
    return [HeartbeatData.decode(request.body) for request in broker.of(HEART_BEAT)]


def is_full(beat: HeartbeatData) -> bool:
    """One or the other, never half of it."""
    assert beat.without_sub == (not any(consumer.subscriptions for consumer in beat.consumers))
    return not beat.without_sub


async def short_one(broker: FakeBroker, beyond: int = 0) -> None:
    """Wait for a short heartbeat that is none of the first *beyond*."""
    async with asyncio.timeout(WAIT_S):
        await broker.until(lambda: any(not is_full(beat) for beat in beats(broker)[beyond:]))


async def test_what_a_broker_knows_is_not_told_again(
    broker: FakeBroker, client: ClientInstance
) -> None:
    await broker.received(HEART_BEAT, 4)
    first, *others = beats(broker)
    assert is_full(first)
    await short_one(broker)
    known = {
        (beat.client_id, beat.fingerprint, next(consumer.group for consumer in beat.consumers))
        for beat in (first, *others)
    }
    assert known == {(client.client_id, first.fingerprint, "billing")}
    assert first.fingerprint > 0


@pytest.mark.parametrize(
    "answer",
    [ok(), ok(HeartbeatResponse(supports_v2=False)), ok(CHANGED)],
    ids=["4.9", "off", "asks for more"],
)
async def test_a_broker_that_does_not_say_that_it_knows_gets_everything(
    broker: FakeBroker, member: Member, answer: RemotingCommand
) -> None:
    broker.on(HEART_BEAT, answer)
    async with ClientInstance(
        ClientConfig(name_server=broker.address, heartbeat_period_s=0.02)
    ) as client:
        await client.routes.find("Orders")
        client.register_consumer(member)
        await broker.received(HEART_BEAT, 5)
        assert all(map(is_full, beats(broker)))


@pytest.mark.parametrize("change", ["expression", "version"])
async def test_a_changed_subscription_is_told_in_full(
    broker: FakeBroker, client: ClientInstance, member: Member, change: str
) -> None:
    """A new version alone as well: a pull that names it is refused by a broker that knows the old
    one.
    """
    await short_one(broker)
    sent = len(beats(broker))
    member.expression, member.version = ("paid", 1) if change == "expression" else ("*", 2)
    # one may have been on its way
    await short_one(broker, beyond=sent + 1)
    told = [beat.consumers[0].subscriptions[0] for beat in beats(broker)[sent:] if is_full(beat)]
    assert [(row.expression, row.version) for row in told] == [(member.expression, member.version)]


async def test_a_broker_that_asks_for_the_subscriptions_gets_them_at_once(
    broker: FakeBroker, client: ClientInstance
) -> None:
    """And with the heartbeat after that, until it says that it knows them: members of a group may
    differ for good.
    """
    await short_one(broker)
    asked = 0

    def ask_once(request: RemotingCommand) -> RemotingCommand | None:
        nonlocal asked
        if HeartbeatData.decode(request.body).without_sub and not asked:
            asked = len(broker.of(HEART_BEAT))
            return ok(CHANGED)
        return ok(KNOWN)

    broker.on(HEART_BEAT, ask_once)
    await broker.until(lambda: bool(asked) and len(beats(broker)) >= asked + 3)
    assert [is_full(beat) for beat in beats(broker)[asked - 1 : asked + 3]] == [
        False,
        True,
        True,
        False,
    ]


async def test_a_new_connection_gets_everything(broker: FakeBroker, client: ClientInstance) -> None:
    """Whoever is at its other end may have forgotten all of it."""
    await short_one(broker)
    connection = client.pool.existing(broker.address)
    assert connection is not None
    sent = len(beats(broker))
    connection.close()
    await short_one(broker, beyond=sent + 1)
    assert [is_full(beat) for beat in beats(broker)[sent:]].count(True) == 1


async def test_so_does_one_that_another_request_has_made(
    broker: FakeBroker, member: Member
) -> None:
    async with ClientInstance(ClientConfig(name_server=broker.address)) as client:
        await client.routes.find("Orders")
        client.register_consumer(member)
        await client.heartbeat_now()
        connection = client.pool.existing(broker.address)
        assert connection is not None
        connection.close()
        await client.routes.refresh("Orders")
        await broker.received(HEART_BEAT, 2)
        assert all(map(is_full, beats(broker)))


async def test_a_heartbeat_that_is_to_mend_something_is_full(
    broker: FakeBroker, client: ClientInstance
) -> None:
    await short_one(broker)
    sent = len(beats(broker))
    await client.heartbeat_now()
    assert any(map(is_full, beats(broker)[sent:]))


async def test_a_client_of_more_groups_than_a_heartbeat_may_name_sends_several(
    broker: FakeBroker,
) -> None:
    """Ours refuses more than 256, Apache's keeps groups that one heartbeat does not name."""

    def refuse_many(request: RemotingCommand) -> RemotingCommand:
        return (
            ok(KNOWN)
            if len(HeartbeatData.decode(request.body).consumers) <= 256
            else error(ResponseCode.INVALID_PARAMETER)
        )

    broker.on(HEART_BEAT, refuse_many)
    async with ClientInstance(
        ClientConfig(name_server=broker.address, heartbeat_period_s=0.02)
    ) as client:
        await client.routes.find("Orders")
        groups = {f"group-{number}" for number in range(600)}
        for group in groups:
            member = Member()
            member.group = group
            client.register_consumer(member)
        await client.announce()
        first = beats(broker)[:3]
        assert all(map(is_full, first))
        await broker.until(lambda: sum(not is_full(beat) for beat in beats(broker)) >= 3)
        short = [beat for beat in beats(broker) if not is_full(beat)][:3]
    for round_ in (first, short):
        assert {consumer.group for beat in round_ for consumer in beat.consumers} == groups
        assert sorted(len(beat.consumers) for beat in round_) == [88, 256, 256]


async def test_groups_with_many_long_names_are_in_several_heartbeats(broker: FakeBroker) -> None:
    """Ours refuses a heartbeat of more than 1 MiB."""

    class Large(Member):
        def consumer_data(self) -> ConsumerData:
            topics = [f"{self.group}-{number:03}-".ljust(120, "x") for number in range(100)]
            return ConsumerData(
                group=self.group,
                subscriptions=tuple(
                    SubscriptionData.of_tags(topic, "paid || late") for topic in topics
                ),
            )

    def refuse_large(request: RemotingCommand) -> RemotingCommand:
        return (
            ok(KNOWN) if len(request.body) <= 1024 * 1024 else error(ResponseCode.INVALID_PARAMETER)
        )

    broker.on(HEART_BEAT, refuse_large)
    async with ClientInstance(ClientConfig(name_server=broker.address)) as client:
        await client.routes.find("Orders")
        groups = [f"group-{number:02}" for number in range(50)]
        for group in groups:
            member = Large()
            member.group = group
            client.register_consumer(member)
        await client.announce()
        first = beats(broker)
    assert sorted(consumer.group for beat in first for consumer in beat.consumers) == groups
    assert len(first) <= 4


async def test_a_heartbeat_that_is_refused_does_not_hold_up_the_other_groups(
    broker: FakeBroker,
) -> None:
    def refuse_the_first(request: RemotingCommand) -> RemotingCommand:
        named = {consumer.group for consumer in HeartbeatData.decode(request.body).consumers}
        return error(ResponseCode.INVALID_PARAMETER, "refused") if "group-0" in named else ok(KNOWN)

    broker.on(HEART_BEAT, refuse_the_first)
    async with ClientInstance(ClientConfig(name_server=broker.address)) as client:
        await client.routes.find("Orders")
        for number in range(300):
            member = Member()
            member.group = f"group-{number}"
            client.register_consumer(member)
        with pytest.raises(MessageIllegal, match="refused"):
            await client.announce()
    assert {consumer.group for beat in beats(broker) for consumer in beat.consumers} >= {
        f"group-{number}" for number in range(300)
    }


def test_members_that_run_the_same_have_the_same_fingerprint() -> None:
    def data(
        client_id: str = "c1", expression: str = "paid", version: int = 1, group: str = "billing"
    ) -> HeartbeatData:
        consumer = ConsumerData(
            group=group, subscriptions=(SubscriptionData.of_tags("Orders", expression, version),)
        )
        return HeartbeatData(client_id=client_id, consumers=(consumer,))

    assert fingerprint(data()) == fingerprint(data(client_id="c2", version=2))
    assert (
        len(
            {
                fingerprint(data()),
                fingerprint(data(expression="*")),
                fingerprint(data(group="screens")),
            }
        )
        == 3
    )
    assert fingerprint(HeartbeatData(client_id="c1", producers=("sellers",))) == 0
