"""Resources and the life cycle: cases 21 to 25."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ogive
from ogive import aio
from ogive.client.config import ClientConfig, ProducerConfig
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.instance import ClientInstance
from ogive.errors import IllegalStateError, OgiveError, ResponseCode
from ogive.model import TRACE_TOPIC, MessageExt
from ogive.testing import Broker, FakeBroker
from ogive.testing.fake_broker import SILENT, error, ok
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import encode_header
from ogive.wire.headers.send import CheckTransactionStateRequest
from ogive.wire.message import encode_stored
from tests.never.scene import GROUP, QUICK, ROUTE, SEND, TOPIC, WAIT_S, Scene, until

pytestmark = pytest.mark.apart(10)

UNREGISTER = RequestCode.UNREGISTER_CLIENT

# --- 21: nothing grows ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    threads: int
    tasks: int
    descriptors: int

    @classmethod
    def now(cls) -> "Usage":
        return cls(
            threading.active_count(),
            len(asyncio.all_tasks()),
            len(list(Path("/proc/self/fd").iterdir())),
        )

    def within(self, base: "Usage", slack: int) -> bool:
        return all(
            ours <= theirs + slack
            for ours, theirs in zip(vars_of(self), vars_of(base), strict=True)
        )


def vars_of(usage: Usage) -> tuple[int, int, int]:
    return usage.threads, usage.tasks, usage.descriptors


@asynccontextmanager
async def nothing_is_left() -> AsyncIterator[None]:
    before = Usage.now()
    yield
    try:
        await until(lambda: Usage.now().within(before, 2))
    except AssertionError as exc:
        raise AssertionError(
            f"{exc}: back to {before}, and at the end there is {Usage.now()}"
        ) from None


SIZES = [15, pytest.param(200, marks=pytest.mark.nightly)]


@pytest.mark.kills("case 21: an own client stays open", param="15")
@pytest.mark.parametrize("times", SIZES)
async def test_case_21_starts_and_stops_leave_nothing_behind(scene: Scene, times: int) -> None:
    async def once() -> None:
        async with (
            scene.consumer(scene.listener(thread=True, threads=3)),
            aio.Producer(scene.broker.address) as producer,
        ):
            await producer.send(TOPIC, b"x")

    await once()
    async with nothing_is_left():
        for _ in range(times):
            await once()


@pytest.mark.parametrize("times", SIZES)
async def test_case_21_starts_that_fail_leave_nothing_behind(scene: Scene, times: int) -> None:
    """No name server answers; the group is there already."""
    client = ClientConfig(name_server="127.0.0.1:1", request_timeout_s=0.11)

    async def once() -> None:
        consumer = aio.PushConsumer(
            scene.listener(thread=True, threads=3), config=QUICK, client=client
        )
        with pytest.raises(OgiveError):
            await consumer.start()
        await consumer.close()

    async with (
        ClientInstance(ClientConfig(name_server=scene.broker.address)) as shared,
        aio.PushConsumer(scene.listener(), config=QUICK, client=shared) as first,
    ):
        await until(lambda: first.assignment[GROUP], "queues")

        async def second() -> None:
            with pytest.raises(IllegalStateError):
                await aio.PushConsumer(
                    scene.listener(thread=True, threads=3), config=QUICK, client=shared
                ).start()

        await once()
        await second()
        async with nothing_is_left():
            for _ in range(times):
                await once()
                await second()


@pytest.mark.parametrize("times", SIZES)
async def test_case_21_rebalances_leave_nothing_behind(scene: Scene, times: int) -> None:
    scene.broker.topics[TOPIC] = 4
    async with scene.consumer(scene.listener(orderly=True)) as running:

        def held(count: int) -> Callable[[], bool]:
            return lambda: sum(queue.topic == TOPIC for queue in running.assignment[GROUP]) == count

        async def once() -> None:
            scene.others("000")
            await until(held(2), "half of the queues")
            scene.others()
            await until(held(4), "all queues again")

        await until(
            lambda: held(4)() and scene.queues_pulled == 5,
            "a pull of every queue, the retries' among them: all has begun",
        )
        await once()
        async with nothing_is_left():
            for _ in range(times):
                await once()


# --- 22: one client beside another ----------------------------------------------------------------


@pytest.mark.kills("case 22: a shared client is closed", param="consumer")
@pytest.mark.parametrize("first", ["producer", "consumer"])
async def test_case_22_closing_one_of_two_on_a_client_leaves_the_other_working(
    scene: Scene, first: str
) -> None:
    config = ClientConfig(name_server=scene.broker.address, instance_name="shared")
    # and after both are closed the same name works again
    for _ in range(2):
        async with ClientInstance(config) as client:
            producer, consumer = (
                aio.Producer(client=client),
                aio.PushConsumer(scene.listener(), config=QUICK, client=client),
            )
            await producer.start()
            await consumer.start()
            if first == "producer":
                await producer.close()
                bodies = scene.put(3)
            else:
                await consumer.close()
                bodies = [b"%d" % len(scene.ledger.attempted)]
                await producer.send(TOPIC, bodies[0])
                scene.ledger.sent(bodies)
                await consumer.close()
                consumer = aio.PushConsumer(scene.listener(), config=QUICK, client=client)
                await consumer.start()
            await until(lambda: not scene.ledger.lost, "the messages")
            for one in (producer, consumer, producer, consumer):
                await one.close()
    scene.check()
    assert scene.ledger.duplicates == 0


async def test_case_22_a_missing_topic_closes_nobody(scene: Scene) -> None:
    """It is waited for; others on the client go on."""
    async with ClientInstance(
        ClientConfig(name_server=scene.broker.address, route_period_s=0.05)
    ) as client:
        missing = scene.listener(topic="Later", group="patience")
        async with (
            aio.PushConsumer(scene.listener(), config=QUICK, client=client),
            aio.PushConsumer(missing, config=QUICK, client=client),
        ):
            scene.put(3)
            await until(lambda: scene.received == 3, "the topic that is there")
            scene.broker.topics["Later"] = 1
            scene.put(3, topic="Later")
            await until(lambda: scene.received == 6, "the topic that came later")
    scene.check()


# --- 23: shutdown is quick ------------------------------------------------------------------------


@pytest.mark.kills("case 23: brokers are unregistered at one after the other")
async def test_case_23_dead_brokers_do_not_add_up_at_shutdown(scene: Scene) -> None:
    """Nine of ten brokers answer nothing, each for seconds, trace is on, and a listener sleeps:
    less than three of them in a row.
    """
    scene.broker.topics[TRACE_TOPIC] = 1
    brokers = [FakeBroker({TOPIC: 1}, name=f"broker-{i}") for i in range(9)]
    for broker in brokers:
        await broker.start()
    scene.broker.peers = brokers
    free = threading.Event()
    client = ClientConfig(name_server=scene.broker.address, request_timeout_s=5.0)
    config = ConsumerConfig(
        rebalance_pause_s=0.02, hand_over_pause_s=0.02, await_termination_s=0.2, trace=True
    )
    running = aio.PushConsumer(
        scene.listener(lambda _: free.wait(60) and None, thread=True), config=config, client=client
    )
    await running.start()
    await until(lambda: len(running.assignment[GROUP]) == 11, "queues of all brokers")
    scene.put(1)
    await until(lambda: scene.received, "a call that sleeps")
    for broker in brokers:
        broker.mute = True
    # one after the other they would be 11 s
    async with asyncio.timeout(9.0):
        await running.close()
    free.set()
    for broker in brokers:
        await broker.stop()


EXITS = {
    "in a listener": """
@ogive.listener("{topic}", group="{group}", start="earliest")
def work(message):
    if not done.is_set():
        consumer.close()
        print("closed", flush=True)
        done.set()
consumer = ogive.PushConsumer(work, name_server="{server}")
consumer.start()
producer.send("{topic}", b"x")
assert done.wait(50)
""",
    "a listener that hangs": """
@ogive.listener("{topic}", group="{group}", start="earliest")
def work(message):
    done.set()
    threading.Event().wait()
config = ogive.ConsumerConfig(await_termination_s=0.1)
consumer = ogive.PushConsumer(work, name_server="{server}", config=config)
consumer.start()
producer.send("{topic}", b"x")
assert done.wait(50)
consumer.close()
print("closed", flush=True)
""",
    "nothing is closed": """
@ogive.listener("{topic}", group="{group}", start="earliest")
def work(message):
    done.set()
consumer = ogive.PushConsumer(work, name_server="{server}")
consumer.start()
producer.send("{topic}", b"x")
assert done.wait(50)
print("closed", flush=True)
""",
}


@pytest.mark.kills(
    "case 23: listeners' threads keep the process alive",
    param="a listener that hangs",
)
@pytest.mark.parametrize("how", EXITS)
def test_case_23_a_process_ends_by_itself(real: Broker, topic: str, group: str, how: str) -> None:
    """Closed from a listener, with one that hangs, or not at all: no thread holds it, and nothing
    crashes at the end.
    """
    program = (
        "import threading, ogive\ndone = threading.Event()\nproducer = "
        f"ogive.Producer('{real.name_server}')\nproducer.start()\n"
    )
    program += EXITS[how].format(topic=topic, group=group, server=real.name_server)
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "closed\n"), ended.stderr
    assert "Traceback" not in ended.stderr


# --- 24: the local offset file --------------------------------------------------------------------


@pytest.mark.kills("case 24: a damaged file of offsets fails the start", param="half")
@pytest.mark.parametrize("damage", ["empty", "half", "garbage", "somebody else's", "gone"])
async def test_case_24_a_damaged_offset_file_costs_the_place_and_not_the_start(
    scene: Scene, tmp_path: Path, caplog: Any, damage: str
) -> None:
    scene.put(5)

    def member() -> aio.PushConsumer:
        return scene.consumer(scene.listener(broadcast=True), offsets_dir=tmp_path)

    async with member():
        await until(lambda: scene.received == 5, "the first five")
    (file,) = tmp_path.rglob("offsets.json")
    whole = file.read_bytes()
    bad = {
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "garbage": b"\xff\0\xff",
        "somebody else's": b'{"offsetTable": 7}',
    }
    for path in (file, file.with_name("offsets.json.bak")):
        path.unlink(missing_ok=True)
        if damage in bad:
            path.write_bytes(bad[damage])
    async with member():
        scene.put(1)
        await until(lambda: len(scene.ledger.deliveries) == 11, "all six from the start")
    assert scene.ledger.duplicates == 5
    assert ("offsets.json, which is ignored" in caplog.text) == (damage != "gone")
    caplog.clear()
    async with member():
        scene.put(1)
        await until(lambda: scene.received == 7, "the newest")
    assert scene.ledger.duplicates == 5
    assert "cannot be read" not in caplog.text


async def test_case_24_a_place_that_cannot_be_written_does_not_stop_consumption(
    scene: Scene, tmp_path: Path, caplog: Any
) -> None:
    """A file stands where the folder should be: it holds also for root, whom no permission
    stops.
    """
    (tmp_path / "file").write_text("")
    scene.put(5)
    async with scene.consumer(
        scene.listener(broadcast=True), offsets_dir=tmp_path / "file"
    ) as running:
        await until(lambda: scene.received == 5, "the messages")
        scene.put(5)
        await until(lambda: scene.received == 10, "later messages")
        assert set((await running.lag()).values()) == {0}
    assert "progress is lost at exit" in caplog.text
    assert scene.ledger.duplicates == 0


# --- 25: what the user set ------------------------------------------------------------------------


@pytest.mark.kills("case 25: a send has the time of other requests", param="asyncio-name server")
@pytest.mark.parametrize("silent", ["broker", "name server"])
@pytest.mark.parametrize("kind", ["asyncio", "blocking"])
async def test_case_25_a_send_ends_within_its_own_time_and_not_within_somebody_elses(
    scene: Scene, kind: str, silent: str
) -> None:
    """A second where requests of a client have five minutes: the whole call, the look for the
    route included.
    """
    scene.broker.on(SEND if silent == "broker" else ROUTE, SILENT)
    client = ClientConfig(
        name_server=scene.broker.address, request_timeout_s=300.0, connect_timeout_s=300.0
    )
    config = ProducerConfig(send_timeout_s=1.0)

    def blocking() -> None:
        with ogive.Producer(config=config, client=client) as producer:
            producer.send(TOPIC, b"x")

    async def on_loop() -> None:
        async with aio.Producer(config=config, client=client) as producer:
            await producer.send(TOPIC, b"x")

    with pytest.raises(OgiveError, match=r"within \d+\.\d s") as failed:
        async with asyncio.timeout(WAIT_S):
            await (asyncio.to_thread(blocking) if kind == "blocking" else on_loop())
    assert failed.value.outcome_unknown == (silent == "broker")


@pytest.mark.kills("case 25: one try too few", param="4")
@pytest.mark.parametrize("retries", [0, 1, 4])
async def test_case_25_as_many_tries_as_were_set(scene: Scene, retries: int) -> None:
    scene.broker.on(SEND, error(ResponseCode.SYSTEM_ERROR))
    config = ProducerConfig(send_timeout_s=20.0, retries=retries)
    async with aio.Producer(scene.broker.address, config=config) as producer:
        with pytest.raises(OgiveError):
            await producer.send(TOPIC, b"x")
    assert len(scene.broker.of(SEND)) == 1 + retries


@pytest.mark.kills("case 25: a check goes to the first producer")
async def test_case_25_a_check_reaches_the_producer_of_its_group_among_several_on_a_client(
    scene: Scene,
) -> None:
    asked: list[tuple[str, bytes]] = []

    def checker(name: str) -> Callable[[MessageExt], bool]:
        def check(message: MessageExt) -> bool:
            asked.append((name, message.body))
            return name == "shop"

        return check

    scene.broker.on(RequestCode.END_TRANSACTION, ok())
    async with (
        ClientInstance(ClientConfig(name_server=scene.broker.address)) as client,
        aio.Producer(group="shop", check=checker("shop"), client=client) as shop,
        aio.Producer(group="market", check=checker("market"), client=client) as market,
    ):
        for producer in (shop, market):
            await producer.send(TOPIC, b"so that the broker knows us")
        for group in ("market", "shop", "market", "nobody"):
            await until(lambda: "shop" in scene.broker.producers, "the producers' heartbeat")
            half = scene.broker.put(
                "Half",
                group.encode(),
                properties=f"PGROUP\x01{group}\x02UNIQ_KEY\x01{group}\x02".encode(),
            )
            header = CheckTransactionStateRequest(
                tran_state_table_offset=half.queue_offset,
                commit_log_offset=half.commitlog_offset,
                msg_id=group,
                transaction_id=group,
            )
            question = RemotingCommand(
                RequestCode.CHECK_TRANSACTION_STATE, encode_header(header), encode_stored(half)
            )
            scene.broker.producers["shop"].send_nowait(question)
        await until(lambda: len(scene.broker.of(RequestCode.END_TRANSACTION)) == 3, "three answers")
    assert sorted(asked) == [("market", b"market"), ("market", b"market"), ("shop", b"shop")]
    ends = [
        (r.ext_fields["producerGroup"], r.ext_fields["commitOrRollback"])
        for r in scene.broker.of(RequestCode.END_TRANSACTION)
    ]
    assert sorted(ends) == [("market", "12"), ("market", "12"), ("shop", "8")]
