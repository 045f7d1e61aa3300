"""Calls go to the broker that the route names, and again while it is away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from ogive.client import rpc
from ogive.client.config import ClientConfig
from ogive.client.instance import ClientInstance
from ogive.client.portal import Portal
from ogive.client.rpc import RawPull
from ogive.errors import (
    ConnectError,
    NoNameServer,
    NoPermission,
    NoRoute,
    OgiveError,
    TopicNotExist,
)
from ogive.model import MessageQueue, PullStatus
from ogive.spark.cluster import (
    IN_FLIGHT_BYTES,
    Cluster,
    cluster,
    connect,
)
from ogive.spark.cluster_options import Access
from ogive.spark.dedup import TopicInDoubt, ends, stored_keys
from ogive.spark.patience import DOUBTFUL, BrokerAway, Patience
from ogive.spark.range_reader import Throttle
from ogive.spark.ranges import ANSWER_BYTES, EVERYTHING, Pace, QueueRange
from ogive.testing.fake_broker import FakeBroker
from ogive.wire.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from ogive.wire.bodies.stats import TopicOffset
from ogive.wire.headers.pull import PullMessageRequest
from ogive.wire.message import StoredMessage, encode_stored

QUEUE = MessageQueue("Orders", "broker-a", 0)
ACCESS = Access(name_servers=("127.0.0.1:9876",))


@asynccontextmanager
async def on_this_loop(name_server: str = "127.0.0.1:9876") -> AsyncIterator[Cluster]:
    async with ClientInstance(ClientConfig(name_server=name_server)) as client:
        yield Cluster(client, cast(Portal, None))


def route(*broker_names: str) -> TopicRouteData:
    return TopicRouteData(
        queues=tuple(
            QueueData(broker_name=name, read_queues=1, write_queues=1, perm=6)
            for name in broker_names
        ),
        brokers=tuple(
            BrokerData(cluster="C", broker_name=name, addresses={0: f"{name}:10911"})
            for name in broker_names
        ),
    )


@pytest.mark.parametrize("retries", [0, 3])
async def test_a_call_is_repeated_as_often_as_asked_for(
    monkeypatch: pytest.MonkeyPatch, retries: int
) -> None:
    tries = 0

    async def get_route(*_: object, **__: object) -> TopicRouteData:
        nonlocal tries
        tries += 1
        return route("broker-b")

    monkeypatch.setattr(rpc, "get_route", get_route)
    async with on_this_loop() as cluster:
        with pytest.raises(NoRoute):
            await cluster.pull(
                "g", QueueRange(QUEUE, 5, 6), EVERYTHING, Patience(30.0, retries, 0.0)
            )
    assert tries == retries + 1


async def test_a_broker_that_is_missing_in_the_route_for_a_while_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of several brokers restarts: its name server forgets it until it registers again."""
    answers = iter([route("broker-b"), route("broker-b"), route("broker-a", "broker-b")])

    async def get_route(*_: object, **__: object) -> TopicRouteData:
        return next(answers)

    async def pull_raw(
        _: object, address: str, header: PullMessageRequest, **__: object
    ) -> RawPull:
        assert address == "broker-a:10911"
        return RawPull(PullStatus.NO_NEW_MSG, header.queue_offset, 0, 0, 0, b"")

    monkeypatch.setattr(rpc, "get_route", get_route)
    monkeypatch.setattr(rpc, "pull_raw", pull_raw)
    async with on_this_loop() as cluster:
        assert (await cluster.pull("g", QueueRange(QUEUE, 5, 6), EVERYTHING)).next_offset == 5


async def test_a_broker_that_stays_missing_in_the_route_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def get_route(*_: object, **__: object) -> TopicRouteData:
        return route("broker-b")

    monkeypatch.setattr(rpc, "get_route", get_route)
    async with on_this_loop() as cluster:
        with pytest.raises(NoRoute, match=r"broker-a.*has no broker in the route"):
            await cluster.pull("g", QueueRange(QUEUE, 5, 6), EVERYTHING, Patience(0.0))


# --- a restart of everything, seen by a process that Spark starts meanwhile -----------------------


def away(
    times: int, monkeypatch: pytest.MonkeyPatch, failure: OgiveError, brokers: int = 1
) -> list[str]:
    """Name servers whose first *times* answers fail and that know *brokers* brokers meanwhile; the
    topics they were asked for.
    """
    asked: list[str] = []

    async def get_route(_: object, __: str, topic: str, **___: object) -> TopicRouteData:
        asked.append(topic)
        if len(asked) <= times:
            raise failure
        return route("broker-a")

    async def get_cluster_info(*_: object, **__: object) -> ClusterInfo:
        return ClusterInfo(
            brokers={data.broker_name: data for data in route("broker-a").brokers[:brokers]},
            clusters={},
        )

    async def topic_stats(*_: object, **__: object) -> dict[MessageQueue, TopicOffset]:
        return {QUEUE: TopicOffset(min_offset=0, max_offset=7, last_update_timestamp=0)}

    monkeypatch.setattr(rpc, "get_route", get_route)
    monkeypatch.setattr(rpc, "get_cluster_info", get_cluster_info)
    monkeypatch.setattr(rpc, "topic_stats", topic_stats)
    return asked


async def test_a_first_write_to_an_address_without_name_server_fails_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = away(1, monkeypatch, ConnectError("connection refused"))
    async with on_this_loop() as cluster:
        with pytest.raises(NoNameServer):
            await cluster.writable("Orders")
    assert asked == ["Orders"]


async def test_a_later_batch_waits_for_name_servers_that_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    away(2, monkeypatch, ConnectError("connection refused"))
    async with on_this_loop() as cluster:
        cluster.settle()
        assert await cluster.writable("Orders") == (QUEUE,)


async def test_a_later_batch_waits_for_the_broker_to_register_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both the topic and the one that it would be made from have no route."""
    away(4, monkeypatch, TopicNotExist(17, "no route"), brokers=0)
    async with on_this_loop() as cluster:
        cluster.settle()
        assert await cluster.writable("Orders") == (QUEUE,)


def test_a_topic_is_not_taken_for_new_while_no_broker_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An idempotent sink that looks for what it has stored would find nothing, and store it
    again.
    """
    away(2, monkeypatch, TopicNotExist(17, "no route"), brokers=0)
    assert ends(connect(ACCESS), "Orders") == {QUEUE: 7}


def test_a_topic_that_brokers_do_not_have_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    away(1, monkeypatch, TopicNotExist(17, "no route"))
    assert ends(connect(ACCESS), "Orders") == {}


def test_a_topic_with_positions_is_waited_for_although_other_brokers_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its only broker restarts: what a repeated batch has stored there must be found."""
    asked = away(2, monkeypatch, TopicNotExist(17, "no route"))
    assert stored_keys(connect(ACCESS), "Orders", {QUEUE: 7}) == set()
    assert asked == ["Orders"] * 3


def test_a_later_attempt_waits_for_a_topic_and_then_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It never takes the topic for a new one: what an earlier attempt stored there would be stored
    again on another broker.
    """
    away(2, monkeypatch, TopicNotExist(17, "no route"))
    assert ends(connect(ACCESS), "Orders", DOUBTFUL) == {QUEUE: 7}
    away(99, monkeypatch, TopicNotExist(17, "no route"))
    patience = Patience(window_s=0.0, doubtful=True)
    with pytest.raises(TopicInDoubt, match=r'"Orders" has no route.*is not taken for a new topic'):
        ends(connect(ACCESS), "Orders", patience)
    with pytest.raises(TopicInDoubt):
        stored_keys(connect(ACCESS), "Orders", {}, patience)


async def test_every_name_server_is_asked_before_a_topic_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first has just been started, and some brokers have registered there."""
    away(1, monkeypatch, TopicNotExist(17, "no route"))
    async with on_this_loop("127.0.0.1:9876;127.0.0.1:9877") as cluster:
        assert await cluster.writable("Orders") == (QUEUE,)


@pytest.mark.parametrize("record_bytes", [100, 1024, 20_000])
def test_what_is_asked_for_ahead_of_who_decodes_it_is_bounded_in_bytes(
    record_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our broker cuts a client off that leaves 64 MiB unread, and all that was on its way is then
    read from the log once more.
    """
    asked = 0

    async def pull(_: str, part: QueueRange, *__: object) -> RawPull:
        nonlocal asked
        asked += record_bytes * len(part)
        return RawPull(PullStatus.FOUND, part.end, 0, 10**9, 0, bytes(record_bytes * len(part)))

    cluster = connect(Access(name_servers=("127.0.0.1:1",)))
    monkeypatch.setattr(cluster, "pull", pull)
    rows = 200 * 1024 * 1024 // record_bytes
    decoded = most = 0
    for _, body in cluster.read([QueueRange(QUEUE, 0, rows)]):
        decoded += len(body)
        most = max(most, asked - decoded)
    assert decoded == asked == rows * record_bytes
    assert IN_FLIGHT_BYTES // 2 < most <= IN_FLIGHT_BYTES + 2 * ANSWER_BYTES


def test_a_task_keeps_to_its_share_of_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three pulls in flight, and no more bytes ahead than a second may read."""
    in_flight = most_in_flight = ahead = most_ahead = 0
    naps: list[float] = []

    async def pull(_: str, part: QueueRange, __: object, ___: object, answer_bytes: int) -> RawPull:
        nonlocal in_flight, most_in_flight, ahead, most_ahead
        in_flight += 1
        most_in_flight = max(most_in_flight, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1
        count = min(len(part), answer_bytes // 1000)
        ahead += 1000 * count
        most_ahead = max(most_ahead, ahead)
        return RawPull(PullStatus.FOUND, part.start + count, 0, 10**9, 0, record_of(1000) * count)

    reading = connect(ACCESS)
    monkeypatch.setattr(reading, "pull", pull)
    monkeypatch.setattr("time.sleep", naps.append)
    wanted = [QueueRange(QUEUE, 0, 3000)]
    for _, body in reading.read(wanted, pace=Pace(3)):
        ahead -= len(body)
    assert (most_in_flight, sum(naps)) == (3, 0)

    most_ahead = 0
    for _, body in reading.read(wanted, pace=Pace(3, 500_000.0)):
        ahead -= len(body)
    assert 0 < most_ahead <= 1_000_000
    assert len(naps) > 3


def record_of(size: int) -> bytes:
    return encode_stored(StoredMessage("Orders", bytes(size))).ljust(size, b"x")[:size]


def test_a_throttle_keeps_the_mean_and_forgets_long_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    naps: list[float] = []

    def sleep(wait_s: float) -> None:
        nonlocal now
        naps.append(wait_s)
        now += wait_s

    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr("time.sleep", sleep)
    throttle = Throttle(1000)
    for _ in range(4):
        throttle.wait_for(500)
    assert now == 102.0
    # after an hour of other work one second's bytes come at once
    now += 3600
    naps.clear()
    for _ in range(4):
        throttle.wait_for(500)
    assert naps == [0.0, 0.0, 0.5, 0.5]


async def test_a_topic_without_route_is_told_to_a_user_who_may_not_see_the_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The dead letters of a group that has none, for a user with rights on topics and groups: the
    job failed with the permission.
    """
    away(99, monkeypatch, TopicNotExist(17, "no route"))

    async def get_cluster_info(*_: object, **__: object) -> None:
        raise NoPermission(16, "no policy of user reader allows Get on Cluster:DefaultCluster")

    monkeypatch.setattr(rpc, "get_cluster_info", get_cluster_info)
    async with on_this_loop() as cluster:
        with pytest.raises(NoRoute, match='topic "%DLQ%billing" has no route') as raised:
            await cluster.writable("%DLQ%billing")
    assert not isinstance(raised.value, BrokerAway)


async def test_a_broker_is_known_if_any_name_server_knows_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first has just been started: a topic that does not exist is reported, not waited for."""
    away(99, monkeypatch, TopicNotExist(17, "no route"))

    async def get_cluster_info(_: object, address: str, **__: object) -> ClusterInfo:
        brokers = route("broker-a").brokers if address.endswith("9877") else ()
        return ClusterInfo(brokers={data.broker_name: data for data in brokers}, clusters={})

    monkeypatch.setattr(rpc, "get_cluster_info", get_cluster_info)
    async with on_this_loop("127.0.0.1:9876;127.0.0.1:9877") as cluster:
        with pytest.raises(NoRoute) as raised:
            await cluster.writable("%DLQ%billing")
        assert not isinstance(raised.value, BrokerAway)
    async with on_this_loop() as cluster:
        with pytest.raises(BrokerAway, match=r"no broker is known at 127\.0\.0\.1:9876"):
            await cluster.writable("%DLQ%billing")


# --- credentials ----------------------------------------------------------------------------------


async def test_a_changed_credentials_file_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On connections that are open, too: a password is changed under a running query."""
    file = tmp_path / "user.yml"

    def write(secret: str) -> None:
        changed = tmp_path / "new"
        changed.write_text(secret)
        changed.chmod(0o600)
        changed.replace(file)

    async with FakeBroker({"Orders": 1}) as broker:
        access = Access(name_servers=(broker.address,), credentials_file=str(file))

        async def key_of_a_pull() -> str:
            ours = await asyncio.to_thread(cluster, access)
            await asyncio.to_thread(lambda: list(ours.record_bytes({QUEUE: 0})))
            return broker.requests[-1].ext_fields["AccessKey"]

        write("accessKey: first\nsecretKey: 12345678\n")
        assert await key_of_a_pull() == "first"
        write("accessKey: second\nsecretKey: 87654321\n")
        assert await key_of_a_pull() == "second"
        write("accessKey: third\n")
        assert await key_of_a_pull() == "second"
        assert "needs the lines accessKey: NAME and secretKey: SECRET" in caplog.text
        file.unlink()
        assert await key_of_a_pull() == "second"
        write("accessKey: fourth\nsecretKey: 12345678\n")
        assert await key_of_a_pull() == "fourth"
