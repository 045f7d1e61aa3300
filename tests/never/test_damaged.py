"""A message whose body does not match its checksum: no listener gets it, the log names it, and its
queue does not stop for ever.

Bytes from which no message can be cut: the queue waits in front of them, and the log names the
place and the way out.
"""

import itertools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ogive import aio
from ogive.client.config import ClientConfig
from ogive.client.consumer.delivery import READINGS
from ogive.client.instance import ClientInstance
from ogive.testing.fake_broker import ok
from ogive.wire.bodies.clients import ConsumerRunningInfo
from ogive.wire.bodies.routes import BrokerData, QueueData, TopicRouteData
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.pull import PullMessageResponse
from ogive.wire.message import StoredMessage, encode_stored
from tests.never.scene import GROUP, PULL, QUICK, ROUTE, TOPIC, Scene, moved, until

BAD = 3
# of a record with IPv4 addresses
BODY_AT = 88

Damage = Callable[[bytearray], None]


def damaged_at(
    scene: Scene, bad: int, damage: Damage, **changed: Any
) -> Callable[[RemotingCommand], RemotingCommand | None]:
    """Pulls of the topic's queue bring what it holds, and the message at *bad* after *damage* to
    its record.
    """

    def record(row: StoredMessage) -> bytes:
        if row.queue_offset != bad:
            return encode_stored(row)
        raw = bytearray(encode_stored(replace(row, **changed)))
        damage(raw)
        return bytes(raw)

    def answer(request: RemotingCommand) -> RemotingCommand | None:
        at, rows = int(request.ext_fields["queueOffset"]), scene.broker.stored[TOPIC, 0]
        end = min(at + int(request.ext_fields["maxMsgNums"]), len(rows))
        if request.ext_fields["topic"] != TOPIC or not at <= bad < end:
            return None
        return ok(
            PullMessageResponse(next_begin_offset=end, min_offset=0, max_offset=len(rows)),
            b"".join(map(record, rows[at:end])),
        )

    return answer


def same_bit(record: bytearray) -> None:
    record[BODY_AT] ^= 1


def another_bit_each_time() -> Damage:
    bits = itertools.cycle(range(8))

    def damage(record: bytearray) -> None:
        record[BODY_AT] ^= 1 << next(bits)

    return damage


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno == logging.ERROR]


@pytest.mark.kills("damaged message: never passed over", param="concurrent-3")
@pytest.mark.parametrize("bad", [0, BAD, 9])
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_queue_goes_on_behind_a_message_that_is_stored_damaged(
    scene: Scene, caplog: pytest.LogCaptureFixture, orderly: bool, bad: int
) -> None:
    bodies = scene.put(10)
    scene.broker.on(PULL, damaged_at(scene, bad, same_bit))
    async with scene.consumer(scene.listener(orderly=orderly)):
        await until(lambda: scene.progress() == 10, "the end of the queue")
    assert sorted(delivery.body for delivery in scene.ledger.deliveries) == sorted(
        {*bodies} - {bodies[bad]}
    )
    asked = [
        r.ext_fields["maxMsgNums"]
        for r in scene.pull_requests()
        if r.ext_fields["queueOffset"] == str(bad)
    ]
    assert asked.count("1") == READINGS
    (said,) = errors(caplog)
    assert (
        f"{TOPIC}/broker-a/0/{bad} is damaged in its broker's store, and {GROUP} goes on without it"
        in said
    )
    assert f"commit-log offset {scene.broker.stored[TOPIC, 0][bad].commitlog_offset}" in said


async def test_a_pull_consumer_goes_on_behind_it_too(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = scene.put(10)
    scene.broker.on(PULL, damaged_at(scene, BAD, same_bit))
    got: list[bytes] = []
    client = ClientConfig(name_server=scene.broker.address)
    async with aio.PullConsumer(
        TOPIC, group=GROUP, start="earliest", config=QUICK, client=client
    ) as consumer:
        while len(got) < 9:
            got += [message.body for message in await consumer.poll(60.0)]
    assert got == bodies[:BAD] + bodies[BAD + 1 :]
    assert scene.progress() == 10
    assert len(errors(caplog)) == 1


@pytest.mark.kills("damaged message: damage on the way looks like damage at rest")
async def test_damage_on_the_way_passes_nothing_over(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Each reading is damaged in another place: the queue waits, and has every message once one
    reading is right.
    """
    scene.put(10)
    scene.broker.on(PULL, damaged_at(scene, BAD, another_bit_each_time()))
    async with scene.consumer():
        await until(lambda: scene.pulls().count(BAD) >= 3 * READINGS, "many readings")
        assert scene.received == BAD
        assert scene.progress() in (None, BAD)
        scene.broker.on(PULL, None)
        await until(lambda: scene.progress() == 10, "the end of the queue")
    scene.check()
    assert scene.ledger.duplicates == 0
    assert errors(caplog) == []
    assert (
        len(
            [
                entry
                for entry in caplog.records
                if "does not match its checksum" in entry.getMessage()
            ]
        )
        == 1
    )


@pytest.mark.kills("damaged message: its own offset is believed", param="within the answer")
@pytest.mark.parametrize(
    "place", [0, BAD + 3, 10**15], ids=["before the pull", "within the answer", "nowhere"]
)
async def test_a_damaged_place_is_not_believed(
    scene: Scene, caplog: pytest.LogCaptureFixture, place: int
) -> None:
    """The checksum does not cover the queue offset: only the broker's own word says where the group
    goes on.
    """
    bodies = scene.put(10)
    scene.broker.on(PULL, damaged_at(scene, BAD, same_bit, queue_offset=place))
    async with scene.consumer():
        await until(lambda: scene.progress() == 10, "the end of the queue")
    assert max(scene.commits()) == 10
    assert [delivery.body for delivery in scene.ledger.deliveries] == bodies[:BAD] + bodies[
        BAD + 1 :
    ]
    (said,) = errors(caplog)
    assert f"{TOPIC}/broker-a/0/{BAD} is damaged" in said


async def test_a_wrong_place_in_one_answer_moves_the_group_nowhere(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Once on the way, and the next reading is right."""
    scene.put(10)
    damaged = damaged_at(scene, BAD, same_bit, queue_offset=BAD + 3)
    scene.broker.script(PULL, damaged)
    async with scene.consumer():
        await until(lambda: scene.progress() == 10, "the end of the queue")
    scene.check()
    assert scene.ledger.duplicates == 0
    assert errors(caplog) == []


@pytest.mark.kills("damaged message: a slave speaks for its master")
async def test_a_slave_s_damage_passes_nothing_over(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """While no route names the master, its slave is read.

    What is damaged there may be whole on the master: the queue waits for it.
    """
    rows = (QueueData(broker_name=scene.broker.name, read_queues=1, write_queues=1, perm=6),)
    brokers = (
        BrokerData(
            cluster="DefaultCluster",
            broker_name=scene.broker.name,
            addresses={1: scene.broker.address},
        ),
    )
    config = ClientConfig(
        name_server=scene.broker.address, request_timeout_s=2.0, route_period_s=0.02
    )
    scene.put(10)
    scene.broker.on(PULL, damaged_at(scene, BAD, same_bit))
    scene.broker.hold(PULL)
    async with (
        ClientInstance(config) as client,
        aio.PushConsumer(scene.listener(), config=QUICK, client=client),
    ):
        await until(lambda: scene.pulls() == [0], "a pull at the master")
        scene.broker.on(
            ROUTE, ok(body=TopicRouteData(queues=rows, brokers=brokers).encode(standard=True))
        )
        await until(
            lambda: client.routes.find_address(scene.broker.name) is None,
            "a route without a master",
        )
        scene.broker.release(PULL)
        await until(lambda: scene.pulls().count(BAD) >= 3 * READINGS, "many readings")
        assert scene.received == BAD
        # the master is back, and has it whole
        scene.broker.on(PULL, None)
        scene.broker.on(ROUTE, None)
        await until(lambda: scene.progress() == 10, "the end of the queue")
    scene.check()
    assert errors(caplog) == []


# --- bytes that are no message --------------------------------------------------------------------


def too_long(record: bytearray) -> None:
    record[0] = 0x7F


def too_short(record: bytearray) -> None:
    record[0:4] = (92).to_bytes(4)


async def told(scene: Scene, client_id: str) -> str | None:
    """What mqadmin and dashboards see of queues that cannot be read."""
    request = RemotingCommand(
        RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": GROUP, "clientId": client_id}
    )
    info = ConsumerRunningInfo.decode((await scene.broker.ask(GROUP, client_id, request)).body)
    return info.properties.get("unreadableQueues")


@pytest.mark.kills("damaged message: pulls do not shrink", param="concurrent")
@pytest.mark.parametrize(
    ("orderly", "damage"), [(False, too_long), (True, too_short)], ids=["concurrent", "orderly"]
)
async def test_a_queue_waits_in_front_of_what_is_no_message(
    scene: Scene, caplog: pytest.LogCaptureFixture, orderly: bool, damage: Damage
) -> None:
    """Nobody can tell how many messages it is, so it is for the operator to say where the group
    goes on.
    """
    bodies = scene.put(10)
    scene.broker.on(PULL, damaged_at(scene, BAD, damage))
    async with scene.consumer(scene.listener(orderly=orderly)) as consumer:
        await until(
            lambda: scene.pulls().count(BAD) >= 5 and scene.progress() == BAD,
            "what stands before it, and many readings",
        )
        assert [delivery.body for delivery in scene.ledger.deliveries] == bodies[:BAD]
        assert max(scene.pulls()) == BAD
        (said,) = errors(caplog)
        assert (
            f"{scene.broker.address} answered a pull of {TOPIC}/broker-a/0 at {BAD} with bytes "
            "that are no message: " in said
        )
        assert (
            f"`ogive group reset {GROUP} {TOPIC} --broker broker-a --queue 0 --to {BAD + 1}`"
            in said
        )
        assert await told(scene, consumer.client_id) == f"{TOPIC}/broker-a/0 from {BAD} on"
        # as a broker answers after a reset
        scene.broker.script(PULL, moved(BAD + 1, 0, 10))
        await until(lambda: scene.progress() == 10, "the end of the queue")
    assert [delivery.body for delivery in scene.ledger.deliveries] == bodies[:BAD] + bodies[
        BAD + 1 :
    ]


async def test_nothing_is_lost_once_the_bytes_are_messages_again(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.put(10)
    scene.broker.on(PULL, damaged_at(scene, BAD, too_long))
    async with scene.consumer() as consumer:
        await until(lambda: scene.pulls().count(BAD) >= 3, "some readings")
        scene.broker.on(PULL, None)
        await until(lambda: scene.progress() == 10, "the end of the queue")
        assert await told(scene, consumer.client_id) is None
    scene.check()
    assert scene.ledger.duplicates == 0
