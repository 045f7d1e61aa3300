"""Broadcasting members of Java's client, and the file in which they keep their progress: it reads
what we write, and we what it writes.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ogive.client.consumer.offset_store import read_offsets
from ogive.files import replace_file
from ogive.model import MessageQueue
from ogive.testing import Broker
from ogive.wire.bodies.stats import offset_table_dumps
from tests.interop import apache


def broadcast(
    name_server: str, topic: str, group: str, folder: Path, deliveries: int
) -> list[tuple[int, int]]:
    """(queue id, offset) of what a broadcasting Java consumer gets that keeps its progress under
    *folder*.
    """
    system = {"rocketmq.client.localOffsetStoreDir": str(folder)}
    options = {
        "nameServer": name_server,
        "topic": topic,
        "group": group,
        "deliveries": deliveries,
        "mode": "broadcast",
    }
    with apache.JavaClient("Consume", system=system, **options) as java:
        run = java.wait()
    assert run.code == 0, run.other
    return sorted((line["queueId"], line["queueOffset"]) for line in run.lines if "queueId" in line)


def test_both_read_the_same_file(
    ogive_broker: Broker, topic: str, group: str, tmp_path: Path
) -> None:
    """What Java's client finished is read here; set back here by one message a queue, it gets these
    messages again.
    """
    name_server = ogive_broker.name_server
    apache.send(name_server, topic, 12, mode="orderly", shards=4)
    broadcast(name_server, topic, group, tmp_path, 12)
    (file,) = tmp_path.rglob("offsets.json")
    assert (file.parent.name, file.parent.parent.name.rpartition("@")[2]) == (group, "DEFAULT")
    queues = [MessageQueue(topic, "broker-a", i) for i in range(4)]
    assert read_offsets(file) == dict.fromkeys(queues, 3)
    replace_file(file, offset_table_dumps(dict.fromkeys(queues, 2)))
    assert broadcast(name_server, topic, group, tmp_path, 4) == [(i, 2) for i in range(4)]
    assert read_offsets(file) == dict.fromkeys(queues, 3)


def test_each_of_two_broadcasting_members_gets_every_message(
    ogive_broker: Broker, topic: str, group: str, tmp_path: Path
) -> None:
    """Members of a clustering group would share them."""
    apache.send(ogive_broker.name_server, topic, 12, mode="orderly", shards=4)
    with ThreadPoolExecutor(2) as both:
        members = [
            both.submit(broadcast, ogive_broker.name_server, topic, group, tmp_path / name, 12)
            for name in ("one", "two")
        ]
        assert [member.result() for member in members] == [
            [(queue, offset) for queue in range(4) for offset in range(3)]
        ] * 2
