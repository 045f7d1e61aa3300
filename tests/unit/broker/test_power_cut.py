"""Members of groups that outlive their broker, which lost its newest messages in a power cut
(flush=async).
"""

import shutil
from pathlib import Path

from ogive.broker import Broker, BrokerConfig
from ogive.wire.codes import RequestCode
from tests.raw_client import RawClient, messages


def config(folder: Path) -> BrokerConfig:
    return BrokerConfig(
        data=folder, port=0, segment_bytes=1024 * 1024, flush="async", default_topic_queues=1
    )


async def test_a_member_goes_on_from_the_saved_progress_not_from_its_own(tmp_path: Path) -> None:
    """Its own place was beyond the queue's end; by the time it is back others have sent as much as
    was lost, and more.
    """
    broker = Broker(config(tmp_path / "before"))
    await broker.start()
    async with await RawClient.open(broker.address) as client:
        await client.heartbeat("member", "G", "T")
        for number in range(3):
            await client.send("T", b"old %d" % number)
        await client.ok(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup="G",
            topic="T",
            queueId=0,
            commitOffset=3,
        )
        await broker.context.save_offsets()
        synced = broker.context.store.stats().commitlog_end
        for number in range(3):
            await client.send("T", b"lost %d" % number)
        assert messages(await client.pull("G", "T", 3))[-1].queue_offset == 5
        shutil.copytree(tmp_path / "before", tmp_path / "after")
    await broker.stop()
    segment = tmp_path / "after" / "commitlog" / f"{0:020d}"
    segment.write_bytes(segment.read_bytes()[:synced].ljust(segment.stat().st_size, b"\0"))
    abort = tmp_path / "after" / "abort"
    process, flush, *_ = abort.read_text().split(" ")
    abort.write_text(f"{process} {flush} another-boot")
    broker = Broker(config(tmp_path / "after"))
    await broker.start()
    async with (
        await RawClient.open(broker.address) as producer,
        await RawClient.open(broker.address) as client,
    ):
        for number in range(4):
            await producer.send("T", b"new %d" % number)
        await client.heartbeat("member", "G", "T")
        answer = await client.pull("G", "T", 6, commit=6)
        assert broker.context.offsets.get("G", "T", 0) == 3
        following = int(answer.ext_fields["nextBeginOffset"])
        found = messages(await client.pull("G", "T", following))
        assert [message.body for message in found] == [b"new %d" % number for number in range(4)]
    await broker.stop()
