"""What a release leaves on disks: its broker's directory, and the checkpoints of its Spark queries.

``python -m tests.golden_broker`` makes tests/vectors/broker-VERSION.zip, once for each release. It
holds

    data/       the directory of a broker with users, killed
    offsets/    progress of a broadcasting consumer
    spark/      checkpoints of two sinks, a listener job and pipelines, an archive
    packed      what the listener job has consumed
    facts.json  what a reader cannot know: an address, an id, a handle

What is on disk is used through the client and Spark alone, so this module imports nothing else from
ogive. golden.py has the store beneath, record by record.
"""

import contextlib
import io
import json
import os
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ogive
from ogive.testing import Broker
from tests.golden import VECTORS, target_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT: Final = ogive.Credentials(access_key="root", secret_key="root's secret")
ANN: Final = ogive.Credentials(access_key="ann", secret_key="ann's secret")
FAR: Final = datetime(2050, 1, 1, tzinfo=UTC)
"""When the timer message is due that still waits, whenever the directory is opened."""
WAIT_S: Final = 60.0

BODIES: Final = (b"text", b"", b"\x00\xff", b"inflated " * 1000, *(b"%d" % n for n in range(4)))
"""What is in queue 0 of Orders, in order."""
CONSUMED: Final = 3
"""How many of these the group billing has consumed."""
QUEUES: Final = (0, 1)
"""Of the topic In, which Spark reads."""
DELIVERIES: Final = ("idempotent", "transactional")
FIRST: Final = range(5)
"""Numbers of the messages that each queue of In holds when Spark first reads it,"""
SECOND: Final = range(5, 10)
"""those of the batch that fails behind queue 0,"""
THIRD: Final = range(10, 15)
"""and those that nobody has read."""


def options(folder: Path) -> tuple[str, ...]:
    """Return the options of a broker on such a directory; *folder* is for its credentials."""
    file = folder / "root"
    file.write_text(f"accessKey: {ROOT.access_key}\nsecretKey: {ROOT.secret_key}\n")
    file.chmod(0o600)
    return (
        *("--acl", "--credentials", str(file)),
        *("--segment-size", str(256 * 1024)),
        # the directory may be opened decades later
        *("--keep-hours", "1000000", "--max-timer-delay", "1000000000"),
        *("--transaction-timeout", "1", "--transaction-check-interval", "1"),
    )


def client(server: str, user: ogive.Credentials = ROOT) -> ogive.ClientConfig:
    """Return the settings with which *user* reaches the broker."""
    return ogive.ClientConfig(name_server=server, credentials=user)


def spark_options(server: str) -> dict[str, str]:
    """Return the same as options of ``format("rocketmq")``."""
    return {"nameServer": server, "accessKey": ROOT.access_key, "secretKey": ROOT.secret_key}


def queue(topic: str, queue_id: int) -> ogive.MessageQueue:
    return ogive.MessageQueue(topic, "broker-a", queue_id)


def wait_until(ready: Callable[[], Any], what: str) -> None:
    """Ask *ready* until it is true."""
    give_up = time.monotonic() + WAIT_S
    while not ready():
        assert time.monotonic() < give_up, f"not within {WAIT_S:.0f} s: {what}"
        time.sleep(0.05)


# --- the broker --------------------------------------------------------------------------------


def fill(server: str) -> None:
    """Make topics, groups, users, messages of each kind and progress."""
    with ogive.Admin(client=client(server)) as admin:
        admin.create_topic("Orders", queues=2, message_type="MIXED")
        admin.create_topic("Payments", queues=1)
        admin.create_topic("Whole", queues=1, whole_batches=True)
        admin.create_topic("Fixed", queues=3, perm="r")
        admin.create_topic("In", queues=len(QUEUES))
        admin.create_group("billing", max_retries=3)
        admin.create_group("closed", enabled=False)
        admin.create_user(ANN.access_key, ANN.secret_key)
        admin.allow(ANN.access_key, "Topic:Orders", ["Pub"], source_ips=["127.0.0.1"])
        with ogive.Producer(client=client(server)) as producer:
            for number, body in enumerate(BODIES):
                producer.send(
                    "Orders",
                    body,
                    tag="even" if number % 2 == 0 else "odd",
                    keys=(f"key-{number}", "all"),
                    properties={"number": str(number)},
                    queue=queue("Orders", 0),
                )
        admin.reset_offsets("billing", "Orders", {queue("Orders", 0): CONSUMED})
    whole = ogive.ProducerConfig(whole_batches=True)
    with ogive.Producer(client=client(server), config=whole) as producer:
        producer.send_batch("Whole", [b"one", b"two", b"three"])
    with ogive.Producer(client=client(server), group="payments", check=lambda _: None) as producer:
        with producer.transaction("Payments", b"committed"):
            pass
        with contextlib.suppress(KeyError), producer.transaction("Payments", b"rolled back"):
            raise KeyError


def fail(server: str) -> None:
    """Consume Orders in the group failing: a dead letter, and a retry that waits for 10 minutes."""
    seen: set[bytes] = set()

    @ogive.listener("Orders", group="failing", start="earliest")
    def give_up(message: ogive.MessageExt) -> ogive.ConsumeResult:
        seen.add(message.body)
        if message.body == b"text":
            return ogive.DEAD_LETTER
        return ogive.later(14) if message.body == b"\x00\xff" else None

    reached = client(server)
    with ogive.PushConsumer(give_up, client=reached), ogive.Admin(client=reached) as admin:
        wait_until(lambda: len(seen) == len(BODIES), "all of Orders is consumed")
        wait_until(lambda: admin.dead_letters("failing"), "a dead letter")
        wait_until(lambda: not sum(row.lag for row in admin.lag("failing", "Orders")), "progress")


def broadcast(server: str, offsets: Path, count: int) -> list[int]:
    """Consume In as a broadcasting member until *count* messages came. Return their numbers."""
    numbers: list[int] = []

    @ogive.listener("In", group="screens", broadcast=True, start="earliest", threads=1)
    def show(message: ogive.MessageExt) -> None:
        numbers.append(int(message.body))

    _move_to_this_host(server, offsets)
    config = ogive.ConsumerConfig(offsets_dir=offsets)
    with ogive.PushConsumer(show, client=client(server), config=config):
        wait_until(lambda: len(numbers) >= count, "all of In is broadcast")
    return sorted(numbers)


def _move_to_this_host(server: str, offsets: Path) -> None:
    """Rename the folder of a client, which begins with the address of the host it ran on."""
    with ogive.PullConsumer(client=client(server)) as consumer:
        address = consumer.client_id.partition("@")[0]
    for folder in offsets.glob("*@DEFAULT"):
        folder.rename(offsets / f"{address}@DEFAULT")


def leave_waiting(server: str) -> dict[str, str]:
    """Send what is not delivered yet when the broker is killed. Return the facts."""
    with ogive.Producer(client=client(server), group="payments", check=lambda _: None) as producer:
        producer.send("Payments", b"by level", delay_level=9)
        producer.send("Payments", b"by time", delay_s=300.0)
        far = producer.send("Payments", b"far", deliver_at=FAR)
        gone = producer.send("Payments", b"recalled", deliver_at=FAR)
        assert far.recall_handle is not None
        assert gone.recall_handle is not None
        producer.recall("Payments", gone.recall_handle)
        with producer.transaction("Payments", b"left open") as transaction:
            transaction.leave_open()
    return {"far": far.id, "far_handle": far.recall_handle}


# --- Spark -------------------------------------------------------------------------------------


def send_in(server: str, numbers: Sequence[int]) -> None:
    """Send to each queue of In; the body is the number, the key tells the queue, too."""
    with ogive.Producer(client=client(server)) as producer:
        for queue_id in QUEUES:
            place = queue("In", queue_id)
            for number in numbers:
                producer.send("In", b"%d" % number, keys=f"{queue_id}-{number}", queue=place)


def keys(numbers: Sequence[int], queues: Sequence[int] = QUEUES) -> Counter[str]:
    """Return the keys of these messages of In, each once."""
    return Counter(f"{queue_id}-{number}" for queue_id in queues for number in numbers)


def sink(spark: "SparkSession", server: str, delivery: str, folder: Path, *, fails: bool) -> None:
    """Copy what is new in In to the topic of *delivery*; *fails* at what queue 1 holds."""
    reader = spark.readStream.format("rocketmq").options(**spark_options(server))
    # a task for each queue
    reader = reader.option("startingOffsets", "earliest").option("maxRecordsPerPartition", 5)
    body = "if(queueId = 1, cast(raise_error('to fail') as binary), body)" if fails else "body"
    rows = reader.load("In").selectExpr(f"{body} AS body", "keys")
    writer = rows.writeStream.format("rocketmq").options(**spark_options(server))
    writer = writer.option("topic", f"Out_{delivery}").option("delivery", delivery)
    writer = writer.option("checkpointLocation", str(folder / delivery))
    writer.trigger(availableNow=True).start().awaitTermination()


def listen(spark: "SparkSession", server: str, folder: Path, notes: Path) -> None:
    """Run a listener job until it has consumed what is there. It writes bodies into *notes*."""
    from ogive.spark.jobs import run_listeners
    from ogive.spark.stopping import Stop

    where = str(notes)

    @ogive.listener("In", group="packing", start="earliest", orderly=True)
    def note(message: ogive.MessageExt) -> None:
        with open(where, "a") as file:  # noqa: PTH123  runs on executors
            file.write(f"{message.keys[0]}\n")

    run_listeners(
        spark,
        [note],
        client=client(server),
        checkpoint=folder,
        stop=Stop(),
        say=_silent,
        once=True,
    )


def run_pipelines(spark: "SparkSession", server: str, folder: Path) -> None:
    """Run each pipeline that keeps a state, until it has done what there is to do."""
    from ogive import pipelines

    security = spark_options(server)
    del security["nameServer"]
    common: dict[str, Any] = {"stop": pipelines.Stop(), "say": _silent}
    pipelines.archive(
        spark,
        name_server=server,
        security=security,
        topics=["In"],
        to=folder / "lake",
        **common,
    )
    pipelines.mirror(
        spark,
        source=server,
        security=security,
        target=server,
        target_security=security,
        topics=["In"],
        prefix="Mirrored_",
        state=folder / "mirror",
        **common,
    )
    pipelines.replay(
        spark,
        source="In",
        name_server=server,
        security=security,
        target=server,
        target_security=security,
        to="Replayed",
        state=folder / "replay",
        **common,
    )
    pipelines.redrive(
        spark,
        name_server=server,
        security=security,
        group="failing",
        to="Redriven",
        state=folder / "redrive",
        dry_run=False,
        **common,
    )


def _silent(text: str) -> None:
    """Do not show the progress."""


# --- all of it ---------------------------------------------------------------------------------


def write(folder: Path) -> dict[str, Any]:
    """Leave everything in *folder*. Return the facts."""
    from pyspark.errors import StreamingQueryException

    import ogive.spark

    spark = ogive.spark.session("golden", master="local[1]", memory="512m")
    spark.sparkContext.setLogLevel("OFF")
    on_disk = folder / "spark"
    broker = Broker(data=folder / "data", options=options(folder))
    with broker:
        server = broker.name_server
        fill(server)
        fail(server)
        send_in(server, FIRST)
        broadcast(server, folder / "offsets", len(QUEUES) * len(FIRST))
        for delivery in DELIVERIES:
            sink(spark, server, delivery, on_disk, fails=False)
        listen(spark, server, on_disk / "listeners", folder / "packed")
        run_pipelines(spark, server, on_disk)
        send_in(server, SECOND)
        for delivery in DELIVERIES:
            try:
                sink(spark, server, delivery, on_disk, fails=True)
            except StreamingQueryException:
                continue
            raise AssertionError(f"{delivery}: the batch was to fail")
        listen(spark, server, on_disk / "listeners", folder / "packed")
        send_in(server, THIRD)
    spark.stop()
    # a clean stop has stored all progress; the second run ends in a crash
    broker.start()
    try:
        return {"server": server, **leave_waiting(broker.name_server)}
    finally:
        broker.kill()


PACKED: Final = ("data", "offsets", "packed", "spark")


def pack(folder: Path, facts: dict[str, Any]) -> bytes:
    """Return the archive. Files are stored without the zeros at their end."""
    sizes: dict[str, int] = {}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder)
            if path.is_file() and name.parts[0] in PACKED:
                sizes[str(name)] = path.stat().st_size
                archive.writestr(str(name), path.read_bytes().rstrip(b"\0"))
        archive.writestr("facts.json", json.dumps(facts | {"sizes": sizes}))
    return packed.getvalue()


def unpack(archive: Path, folder: Path) -> dict[str, Any]:
    """Make the files again. Return the facts."""
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
    facts: dict[str, Any] = json.loads((folder / "facts.json").read_text("utf-8"))
    for name, size in facts["sizes"].items():
        os.truncate(folder / name, size)
    return facts


# --- how tests use it --------------------------------------------------------------------------

ARCHIVES: Final = sorted(VECTORS.glob("broker-*.zip"))
NAMES: Final = [path.stem for path in ARCHIVES]


@contextlib.contextmanager
def opened(archive: Path, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run a broker on the directory; give its name server and the facts."""
    facts = unpack(archive, folder)
    with Broker(data=folder / "data", options=options(folder)) as broker:
        # a replay goes on only to the address that it began with, and this broker has another port
        for file in (folder / "spark" / "replay").glob("*.json"):
            file.write_text(file.read_text("utf-8").replace(facts["server"], broker.name_server))
        yield broker.name_server, facts


def held(server: str, topic: str) -> list[ogive.MessageExt]:
    """Return all messages of a topic, in the order of queues and offsets."""
    found: list[ogive.MessageExt] = []
    with ogive.PullConsumer(client=client(server)) as reader:
        for place in reader.queues(topic):
            offset, end = reader.beginning_offset(place), reader.end_offset(place)
            while offset < end:
                result = reader.pull(place, offset)
                found += result.messages
                offset = result.next_offset
    return found


def main() -> None:
    target = target_of("broker", __doc__)
    with tempfile.TemporaryDirectory() as folder:
        facts = write(Path(folder))
        target.write_bytes(pack(Path(folder), facts))
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
