"""T10 with a limit instead of a full disk: an ``ogive up`` whose files may not grow (RLIMIT_FSIZE,
``ulimit -f``), and then may again.
"""

import asyncio
import resource
import time
from pathlib import Path

import pytest

import ogive
from ogive.cli.exits import EXIT_STORE_FAILED
from ogive.errors import OgiveError, ResponseCode
from ogive.model import MessageQueue
from ogive.store import MessageStore, StoreConfig
from ogive.testing import Broker
from ogive.wire.codes import RequestCode
from tests.figures import figures
from tests.raw_client import RawClient, messages
from tests.stores import read_queue

pytestmark = [
    pytest.mark.rel,
    pytest.mark.quick,
    pytest.mark.skipif(
        not hasattr(resource, "prlimit"), reason="only Linux sets the limits of another process"
    ),
]

SEGMENT_BYTES = 1024 * 1024


def a_broker(folder: Path) -> Broker:
    return Broker(data=folder / "store", options=("--segment-size", str(SEGMENT_BYTES)))


def may_write(broker: Broker, end: int) -> None:
    """No file of the broker beyond *end* from now on."""
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (end, resource.RLIM_INFINITY))


async def received(client: RawClient, topic: str) -> list[bytes]:
    found: list[bytes] = []
    while (answer := await client.pull("Looker", topic, len(found))).code == ResponseCode.SUCCESS:
        found += [message.body for message in messages(answer)]
    return found


@pytest.mark.parametrize(
    "rounds", [2, pytest.param(10, marks=[pytest.mark.nightly, pytest.mark.timeout(600)])]
)
async def test_a_broker_whose_files_may_not_grow_refuses_sends_and_goes_on_when_they_may(
    tmp_path: Path, rounds: int
) -> None:
    """As on a full disk: the producer hears why, consumers get everything and commit, and nothing
    has to be started again.
    """
    acked: list[bytes] = []
    writes_again_s: list[float] = []
    with (
        figures("T10 file limit", nightly=rounds > 2, faults=rounds, attempts=0) as line,
        a_broker(tmp_path) as broker,
    ):
        async with await RawClient.open(broker.address) as client:
            await client.heartbeat("c", "G", "T")
            for round_ in range(rounds):
                # the next file of the log cannot get its size
                may_write(broker, SEGMENT_BYTES - 1)
                while True:
                    line["attempts"] += 1
                    body = b"%d " % len(acked) + bytes(50_000)
                    answer = await client.start_send("T", body)
                    if answer.code != ResponseCode.SUCCESS:
                        break
                    acked.append(body)
                    assert len(acked) < 100 * rounds, "the files went on growing"
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, answer
                assert "larger than this process may write (ulimit -f)" in (answer.remark or "")
                assert await received(client, "T") == acked
                await client.ok(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    consumerGroup="G",
                    topic="T",
                    queueId=0,
                    commitOffset=len(acked),
                )
                may_write(broker, resource.RLIM_INFINITY)
                began = time.monotonic()
                body = b"%d after" % round_
                async with asyncio.timeout(60.0):
                    while (await client.start_send("T", body)).code != ResponseCode.SUCCESS:
                        await asyncio.sleep(0.05)
                writes_again_s.append(time.monotonic() - began)
                acked.append(body)
        broker.kill()
        broker.start()
        async with await RawClient.open(broker.address) as client:
            found = await received(client, "T")
        line["attempts"] += rounds
        line["acknowledged"], line["received"], line["lost"] = (
            len(acked),
            len(found),
            len(set(acked) - set(found)),
        )
        line["writes_again_slowest_s"] = round(max(writes_again_s), 2)
        assert found == acked


def test_a_broker_that_may_not_write_where_it_has_room_ends_and_keeps_what_it_acknowledged(
    tmp_path: Path,
) -> None:
    """Its own log is longer than the limit: nobody can say how much of a record went out, so
    nothing more is written.
    """
    broker = a_broker(tmp_path).start()
    acked: list[bytes] = []
    queue = MessageQueue("Ledger", "broker-a", 0)
    try:
        with ogive.Producer(broker.name_server, config=ogive.ProducerConfig(retries=0)) as producer:
            for number in range(20):
                acked.append(b"%d " % number + bytes(4000))
                producer.send("Ledger", acked[-1], queue=queue)
            may_write(broker, 40_000)
            with pytest.raises(OgiveError):
                producer.send("Ledger", b"never acknowledged", queue=queue, timeout_s=5.0)
        assert broker._process is not None
        assert broker._process.wait(60) == EXIT_STORE_FAILED
    finally:
        broker.kill()
    store = MessageStore.open(StoreConfig(root=broker.data))
    try:
        assert [record.body for record in read_queue(store, queue.topic, queue.queue_id)][
            : len(acked)
        ] == acked
    finally:
        store.close()
