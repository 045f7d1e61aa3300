"""A Kafka broker on loopback and Spark's own Kafka source, both from Maven Central: what Spark's
users compare ours with.

The connector of Spark 4.3.0 is not on Maven Central; the one of 4.2.0 with the token provider of
4.1 works on PySpark 4.3.0.
"""

import hashlib
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.interop.apache import CACHE
from tests.processes import free_port, is_free, stop, wait_until

BROKER: Final = ("org.apache.kafka:kafka_2.13:4.3.1",)
CONNECTOR: Final = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
_SETTINGS: Final = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={directory}/data
num.partitions=2
auto.create.topics.enable=true
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def jars(artifacts: tuple[str, ...], *, transitive: bool) -> list[Path]:
    """Fetched once per machine."""
    digest = hashlib.sha256("\n".join(artifacts).encode()).hexdigest()[:12]
    directory = CACHE.parent / f"kafka-{digest}"
    if not directory.exists():
        _fetch(artifacts, directory, transitive=transitive)
    return sorted(directory.glob("*.jar"))


def _fetch(artifacts: tuple[str, ...], directory: Path, *, transitive: bool) -> None:
    new = directory.with_suffix(".new")
    new.mkdir(parents=True, exist_ok=True)
    alone = (
        ""
        if transitive
        else (
            "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId>"
            "</exclusion></exclusions>"
        )
    )
    parts = (artifact.split(":") for artifact in artifacts)
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}"
        f"</version>{alone}</dependency>"
        for group, name, version in parts
    )
    pom = new / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId>"
        "<artifactId>bench</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={new}"]
    done = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(pom), *goal],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"Maven cannot resolve {', '.join(artifacts)}:\n{done.stdout[-2000:]}")
    new.rename(directory)


@contextmanager
def kafka(directory: Path, *, sync: bool = False) -> Iterator[tuple[str, int]]:
    """A broker with its files in *directory*: its address and its process id.

    *sync*: a message is on the disk before it is acknowledged.
    """
    directory.mkdir(parents=True)
    port, controller = free_port(), free_port()
    settings = directory / "server.properties"
    settings.write_text(
        _SETTINGS.format(port=port, controller=controller, directory=directory)
        + ("log.flush.interval.messages=1\n" if sync else "")
    )
    java = [
        "java",
        "-Xms1g",
        "-Xmx1g",
        "-cp",
        os.pathsep.join(map(str, jars(BROKER, transitive=True))),
    ]
    cluster = uuid.uuid4().hex[:22]
    format_storage = [
        *java,
        "kafka.tools.StorageTool",
        "format",
        "-t",
        cluster,
        "-c",
        str(settings),
    ]
    formatted = subprocess.run(
        format_storage, capture_output=True, text=True, timeout=120, check=False
    )
    if formatted.returncode:
        raise SystemExit(
            f"Kafka's storage cannot be made:\n{formatted.stdout[-2000:]}{formatted.stderr[-2000:]}"
        )
    log = directory / "kafka.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [*java, "kafka.Kafka", str(settings)], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        wait_until(lambda: not is_free(port), process, log, "Kafka's broker")
        yield f"127.0.0.1:{port}", process.pid
    finally:
        stop(process)
