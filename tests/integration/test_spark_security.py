"""Listeners, tables and pipelines on Spark at a broker that asks for credentials and speaks TLS
only.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import trustme

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import ogive
from ogive.client.config import read_credentials, trusting
from ogive.client.listener import AnyListener
from ogive.errors import NoPermission
from ogive.pipelines import Stop, archive, mirror, reconcile, redrive, replay, trace_report
from ogive.pipelines.job import connected_cluster
from ogive.pipelines.mirror import prepare as prepare_copy
from ogive.spark.cluster import cluster
from ogive.spark.cluster_options import Access
from ogive.spark.jobs import prepare, run_listeners
from ogive.spark.listener_task import consume
from ogive.spark.options import access_of
from ogive.spark.ranges import QueueRange
from ogive.testing import Broker

pytestmark = [pytest.mark.timeout(300), pytest.mark.bridge]

SECRET = "a-secret-that-nobody-may-read"


@dataclass(frozen=True)
class Guarded:
    """A broker, and the files that let its one plain user in."""

    broker: Broker
    folder: Path
    user: str = "job"

    @property
    def options(self) -> dict[str, str]:
        """Of format("rocketmq")."""
        return {"nameServer": self.broker.name_server, **self.security}

    @property
    def security(self) -> dict[str, str]:
        return {
            "credentials": str(self.folder / f"{self.user}.yml"),
            "tls": "true",
            "tls.ca": str(self.folder / "ca.pem"),
        }

    @property
    def access(self) -> Access:
        return access_of(self.options)

    def root(self) -> ogive.ClientConfig:
        return ogive.ClientConfig(
            name_server=self.broker.name_server,
            credentials=read_credentials(str(self.folder / "root.yml")),
            ssl=trusting(str(self.folder / "ca.pem")),
        )

    def allow(self, *rules: str) -> None:
        """Each is a resource and its actions, joined by a blank."""
        with ogive.Admin(client=self.root()) as admin:
            for rule in rules:
                resource, _, actions = rule.partition(" ")
                admin.allow(self.user, resource, actions.split(","))


def start(folder: Path, name: str = "job") -> Broker:
    folder.mkdir(exist_ok=True)
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    (folder / "root.yml").write_text("accessKey: root\nsecretKey: root-secret\n")
    (folder / f"{name}.yml").write_text(f"accessKey: {name}\nsecretKey: {SECRET}\n")
    pem = str(folder / "server.pem")
    return Broker(
        options=(
            "--acl",
            "--credentials",
            str(folder / "root.yml"),
            "--tls-cert",
            pem,
            "--tls-key",
            pem,
        )
    )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    with start(folder) as broker:
        found = Guarded(broker, folder)
        with ogive.Admin(client=found.root()) as admin:
            admin.create_user("job", SECRET)
        yield found


def fill(guarded: Guarded, topic: str, count: int) -> None:
    with (
        ogive.Admin(client=guarded.root()) as admin,
        ogive.Producer(client=guarded.root()) as producer,
    ):
        admin.create_topic(topic, queues=2)
        for i in range(count):
            producer.send(topic, b"%d" % i, keys=str(i))


def reading(topic: str, group: str) -> tuple[str, ...]:
    """What docs/security.md says that a listener on Spark needs."""
    return f"Topic:{topic} Sub,Get", f"Group:{group} Sub,Get,Create"


def listener(folder: Path, topic: str, group: str) -> AnyListener:
    where = str(folder / "seen")

    @ogive.listener(topic, group=group, start="earliest")
    def note(message: ogive.MessageExt) -> None:
        with open(where, "a") as file:  # noqa: PTH123  runs on executors
            file.write(f"{message.topic} {message.text}\n")

    return note


def test_a_task_consumes_with_credentials_tls_and_a_namespace(
    guarded: Guarded, topic: str, group: str, tmp_path: Path
) -> None:
    fill(guarded, f"shop%{topic}", 20)
    guarded.allow(*reading(f"shop%{topic}", f"shop%{group}"))
    access = access_of(guarded.options | {"namespace": "shop"})
    note = listener(tmp_path, topic, group)
    prepare(access.client(), [note])
    with pytest.raises(NoPermission):
        cluster(access_of(guarded.options)).spans([topic])
    with ogive.Admin(client=guarded.root()) as admin:
        assert admin.route(f"%RETRY%shop%{group}").queues
        ranges = [
            QueueRange(row.queue, 0, row.max_offset) for row in admin.offsets(f"shop%{topic}")
        ]
        asyncio.run(consume(access.client(), [note], ranges))
        assert sum(row.lag for row in admin.lag(f"shop%{group}")) == 0
    assert sorted((tmp_path / "seen").read_text().splitlines()) == sorted(
        f"{topic} {i}" for i in range(20)
    )


@pytest.mark.spark
def test_a_job_with_credentials_and_tls(
    spark: SparkSession,
    guarded: Guarded,
    topic: str,
    group: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    fill(guarded, topic, 30)
    guarded.allow(*reading(topic, group))
    totals = run_listeners(
        spark,
        [listener(tmp_path, topic, group)],
        client=guarded.access,
        checkpoint=tmp_path / "checkpoint",
        stop=Stop(),
        say=lambda _: None,
        once=True,
    )
    assert totals[group].messages == 30
    in_options = {"accessKey": "job", "secretKey": SECRET} | {
        name: text for name, text in guarded.options.items() if name != "credentials"
    }
    spark.read.format("rocketmq").options(**in_options).load(topic).explain(extended=True)
    out, err = capfd.readouterr()
    assert "rocketmq" in out
    assert SECRET not in out + err
    assert all(
        SECRET not in str(file.read_bytes())
        for file in (tmp_path / "checkpoint").rglob("*")
        if file.is_file()
    )


@pytest.mark.spark
def test_executors_show_a_certificate_to_a_broker_that_asks_for_one(
    spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    authority = trustme.CA()
    for name in ("server", "client"):
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / f"{name}.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    pem, ca = str(tmp_path / "server.pem"), str(tmp_path / "ca.pem")
    shown = {
        "tls.certificate": str(tmp_path / "client.pem"),
        "tls.key": str(tmp_path / "client.pem"),
    }
    with Broker(options=("--tls-cert", pem, "--tls-key", pem, "--tls-client-ca", ca)) as broker:
        options = {"nameServer": broker.name_server, "tls": "true", "tls.ca": ca}
        client = access_of(options | shown).client()
        with ogive.Admin(client=client) as admin, ogive.Producer(client=client) as producer:
            admin.create_topic(topic, queues=2)
            for _ in range(10):
                producer.send(topic, b"x")
        assert spark.read.format("rocketmq").options(**options, **shown).load(topic).count() == 10
        rows = spark.createDataFrame([(topic, bytearray(b"y"))], "topic STRING, body BINARY")
        rows.write.format("rocketmq").options(**options, **shown).mode("append").save()
        assert spark.read.format("rocketmq").options(**options, **shown).load(topic).count() == 11
        with pytest.raises(
            PySparkException,
            match="perhaps it does not take the client's certificate, or asks for one",
        ):
            spark.read.format("rocketmq").options(**options, pollTimeoutMs="3000").load(
                topic
            ).count()


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Another cluster, with another authority and other users: nothing of the first one is of use
    there.
    """
    folder = tmp_path_factory.mktemp("other")
    with start(folder, "copier") as broker:
        found = Guarded(broker, folder, "copier")
        with ogive.Admin(client=found.root()) as admin:
            admin.create_user("copier", SECRET)
        found.allow("Topic:* Pub,Sub,Get,Create", "Group:* Sub,Get,Create,Update", "Cluster:* Get")
        yield found


def test_dry_runs_and_topics_of_a_mirror_at_guarded_clusters(
    guarded: Guarded, other: Guarded, topic: str, tmp_path: Path
) -> None:
    """What asks the brokers without Spark."""
    fill(guarded, topic, 12)
    guarded.allow(f"Topic:{topic} Sub,Get")
    nobody = cast(SparkSession, None)
    here: dict[str, Any] = {
        "topics": [topic],
        "security": guarded.security,
        "stop": Stop(),
        "say": print,
        "dry_run": True,
    }
    assert (
        archive(nobody, name_server=guarded.broker.name_server, to=tmp_path / "lake", **here).read
        == 12
    )
    there: dict[str, Any] = {"target": other.broker.name_server, "target_security": other.security}
    assert (
        mirror(
            nobody, source=guarded.broker.name_server, state=tmp_path / "state", **there, **here
        ).read
        == 12
    )
    prepare_copy(guarded.options, topic, other.options, f"COPY_{topic}")
    with ogive.Admin(client=other.root()) as admin:
        assert len(admin.offsets(f"COPY_{topic}")) == 2
    assert connected_cluster(guarded.broker.name_server, guarded.security).spans([topic])


@pytest.mark.spark
@pytest.mark.nightly
def test_every_pipeline_reaches_guarded_clusters(
    spark: SparkSession, guarded: Guarded, other: Guarded, topic: str, tmp_path: Path
) -> None:
    fill(guarded, topic, 40)
    guarded.allow(
        f"Topic:{topic} Pub,Sub,Get",
        "Group:TOOLS_CONSUMER Sub",
        "Group:watch Sub,Get,Create",
        "Topic:RMQ_SYS_TRACE_TOPIC Pub,Sub,Get",
    )
    here: dict[str, Any] = {"name_server": guarded.broker.name_server, "security": guarded.security}
    there: dict[str, Any] = {"target": other.broker.name_server, "target_security": other.security}
    ends: dict[str, Any] = {"stop": Stop(), "say": lambda _: None}
    lake, copy = tmp_path / "lake", f"COPY_{topic}"
    assert (
        archive(spark, **here, topics=[topic], to=lake, group="watch", dry_run=True, **ends).read
        == 40
    )
    assert archive(spark, **here, topics=[topic], to=lake, group="watch", **ends).written == 40
    for idempotent in (False, True):
        name = f"{idempotent}_"
        mirrored = mirror(
            spark,
            source=here["name_server"],
            security=here["security"],
            **there,
            topics=[topic],
            prefix=name,
            idempotent=idempotent,
            state=tmp_path / name,
            **ends,
        )
        assert (mirrored.written, mirrored.figures["lag"]) == (40, 0)
    assert (
        replay(
            spark,
            source=f"archive:{lake}",
            **here,
            **there,
            to=copy,
            state=tmp_path / "replay",
            **ends,
        ).written
        == 40
    )
    for right in (
        f"archive:{lake}",
        *(f"{name}@{there['target']}" for name in (copy, f"True_{topic}", f"False_{topic}")),
    ):
        compared = reconcile(
            spark,
            left=topic,
            right=right,
            **here,
            other_security=there["target_security"],
            say=ends["say"],
        )
        assert compared.figures["same"], (right, compared.lines())
    guarded.allow("Topic:%DLQ%nobody Sub,Get")
    assert redrive(spark, **here, group="nobody", state=tmp_path / "redrive", **ends).notes == [
        "group nobody has no dead letters"
    ]
    with ogive.Producer(
        client=replace(guarded.access.client(), instance_name="traced"),
        config=ogive.ProducerConfig(trace=True),
    ) as producer:
        producer.send(topic, b"traced")
    report = trace_report(spark, **here, to=tmp_path / "page.html", say=ends["say"])
    assert [row["name"] for row in report.figures["report"]["Sends by topic"]] == [topic]


@pytest.mark.spark
@pytest.mark.nightly
def test_no_process_of_a_pipeline_shows_a_secret(
    guarded: Guarded, other: Guarded, topic: str, tmp_path: Path
) -> None:
    """Neither in its arguments, which everybody sees, nor in what it writes."""
    fill(guarded, topic, 10)
    guarded.allow(f"Topic:{topic} Sub,Get", "Group:TOOLS_CONSUMER Sub")
    command = [
        sys.executable,
        "-m",
        "ogive",
        "pipeline",
        "mirror",
        "-n",
        guarded.broker.name_server,
        "--cafile",
        str(guarded.folder / "ca.pem"),
        "--target",
        other.broker.name_server,
        "--target-credentials",
        str(other.folder / "copier.yml"),
        "--target-cafile",
        str(other.folder / "ca.pem"),
        "--topic",
        topic,
        "--state",
        str(tmp_path / "state"),
        "--follow",
        "--memory",
        "512m",
        "--json",
        "--master",
        "local[2]",
    ]
    environment = os.environ | {"OGIVE_CREDENTIALS": str(guarded.folder / "job.yml")}
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=said, stderr=said, start_new_session=True
        )
        try:
            deadline = time.monotonic() + 120
            while b"messages read" not in (tmp_path / "said").read_bytes():
                assert process.poll() is None, (tmp_path / "said").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.2)
            everyone = [
                psutil.Process(process.pid),
                *psutil.Process(process.pid).children(recursive=True),
            ]
            shown = []
            for one in everyone:
                # a worker that has ended meanwhile, also one that nobody has waited for
                with contextlib.suppress(psutil.NoSuchProcess):
                    shown.append((one.cmdline(), one.environ()))
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(60) == 0, (tmp_path / "said").read_text()
        finally:
            process.kill()
            process.wait()
    # the JVM and a Python worker at least
    assert len(shown) > 2
    assert SECRET not in str(shown)
    assert SECRET not in (tmp_path / "said").read_text()
    assert json.loads((tmp_path / "said").read_text().splitlines()[-1])["written"] == 10
