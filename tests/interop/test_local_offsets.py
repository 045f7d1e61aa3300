"""The file in which broadcasting members keep their progress: Java's client reads what we write, and we what it writes."""

from pathlib import Path

from ogive.client.consumer.local_offsets import read_offsets, replace_file
from ogive.model import MessageQueue
from ogive.testing import Broker
from ogive.wire.bodies import offset_table_dumps
from tests.interop import apache


def broadcast(name_server: str, topic: str, group: str, folder: Path, deliveries: int) -> list[tuple[int, int]]:
    """(queue id, offset) of what a broadcasting Java consumer gets that keeps its progress under *folder*."""
    system = {"rocketmq.client.localOffsetStoreDir": str(folder)}
    options = {"nameServer": name_server, "topic": topic, "group": group, "deliveries": deliveries, "mode": "broadcast"}
    with apache.JavaClient("Consume", system=system, **options) as java:
        run = java.wait()
    assert run.code == 0, run.other
    return sorted((line["queueId"], line["queueOffset"]) for line in run.lines if "queueId" in line)


def test_both_read_the_same_file(ogive_broker: Broker, topic: str, group: str, tmp_path: Path) -> None:
    """What Java's client finished is read here; set back here by one message a queue, it gets these messages again."""
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
