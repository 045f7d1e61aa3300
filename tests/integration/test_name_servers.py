"""`ogive up` with name servers of other processes, as an operator runs several.

Our broker only: Apache's has its own commands.
"""

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import ogive
from ogive.testing import Broker
from ogive.wire.codes import RequestCode
from tests.processes import free_port
from tests.raw_client import RawClient

WAIT_S = 60.0
QUICK = ogive.ConsumerConfig(rebalance_pause_s=0.1)


def received(name_server: str, topic: str, count: int) -> list[bytes]:
    """What a new group gets of a client that knows only this name server."""
    found: list[bytes] = []
    give_up = time.monotonic() + WAIT_S
    with ogive.PullConsumer(
        topic, group=f"g-{topic}", name_server=name_server, config=QUICK, start="earliest"
    ) as consumer:
        while len(found) < count and time.monotonic() < give_up:
            found += [message.body for message in consumer.poll()]
    return found


def test_a_broker_is_found_at_its_own_name_server_and_at_another(tmp_path: Path) -> None:
    with (
        Broker() as first,
        Broker(
            options=("--broker-name", "broker-b", "--name-servers", first.name_server)
        ) as second,
    ):
        assert first.name_server != second.name_server
        with ogive.Admin(second.name_server) as admin:
            admin.create_topic("Orders", queues=2)
        for number, name_server in enumerate((first.name_server, second.name_server)):
            with ogive.Producer(name_server) as producer:
                sent = producer.send("Orders", b"%d" % number)
                assert sent.queue.broker_name == "broker-b"
        assert sorted(received(first.name_server, "Orders", 2)) == [b"0", b"1"]
        with ogive.Admin(first.name_server) as admin:
            brokers = {broker.name for broker in admin.brokers()}
        assert brokers == {"broker-a", "broker-b"}


def check_lag(name_server: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "ogive",
        "check",
        "lag",
        "billing",
        "--max",
        "9",
        "-n",
        name_server,
        *words,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


def test_a_group_with_a_broker_that_was_killed_is_not_ok() -> None:
    with (
        Broker() as first,
        Broker(
            options=("--broker-name", "broker-b", "--name-servers", first.name_server)
        ) as second,
    ):
        with ogive.Admin(first.name_server) as admin:
            admin.create_topic("Orders", queues=1)
            admin.create_group("billing")
            admin.reset_offsets("billing", "Orders", "earliest")
        alive = check_lag(first.name_server, "--without-members")
        assert (alive.returncode, alive.stdout.split(":")[0]) == (0, "ok")
        second.kill()
        give_up = time.monotonic() + WAIT_S
        while (dead := check_lag(first.name_server, "--without-members")).returncode == 0:
            assert time.monotonic() < give_up
        assert (dead.returncode, dead.stdout.split(":")[0]) == (1, "unknown")
        assert "broker broker-b is away" in dead.stderr


@contextlib.contextmanager
def up(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, its line when it is ready, and where its pages are."""
    command = [sys.executable, "-m", "ogive", "up", "--no-grpc", "--metrics-port", "0", *words]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        ready, pages = process.stdout.readline(), process.stdout.readline()
        shown = re.fullmatch(r"(?:metrics|health) (http://\S+)/(?:metrics|health)\n", pages)
        assert shown is not None, (
            ready,
            pages,
            process.communicate()[1] if process.poll() is not None else "",
        )
        yield process, ready, shown[1]
    finally:
        process.kill()
        process.communicate()


def page(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


def test_a_broker_and_a_name_server_each_in_a_process_of_its_own(tmp_path: Path) -> None:
    """The broker starts first: it says that nobody finds it, and goes on trying."""
    at = f"127.0.0.1:{free_port()}"
    folders = tmp_path / "broker", tmp_path / "name-server"
    for folder in folders:
        folder.mkdir()
    with up(folders[0], "--no-name-server", "--name-servers", at, "--broker-port", "0") as (
        broker,
        ready,
        broker_pages,
    ):
        assert re.fullmatch(rf"ready name-server={at} broker=127\.0\.0\.1:\d+\n", ready)
        assert page(f"{broker_pages}/ready") == (503, f"not ready: not registered at {at}\n")
        assert page(f"{broker_pages}/health") == (200, "ok\n")
        assert f'name_server="{at}"}} 0\n' in page(f"{broker_pages}/metrics")[1]
        with up(folders[1], "--no-broker", "--name-server-port", at.rpartition(":")[2]) as (
            name_server,
            ready,
            pages,
        ):
            assert ready == f"ready name-server={at}\n"
            assert [page(f"{pages}/{name}")[0] for name in ("health", "ready", "metrics")] == [
                200,
                200,
                404,
            ]
            give_up = time.monotonic() + WAIT_S
            while page(f"{broker_pages}/ready") != (200, "ready\n"):
                assert time.monotonic() < give_up
                time.sleep(0.05)
            assert f'name_server="{at}"}} 1\n' in page(f"{broker_pages}/metrics")[1]
            with ogive.Producer(at) as producer:
                producer.send("Orders", b"x")
            assert received(at, "Orders", 1) == [b"x"]
            broker.send_signal(signal.SIGTERM)
            _, said = broker.communicate(timeout=WAIT_S)
            assert broker.returncode == 0
            assert said.count("connection refused") == said.count("\n") == 1, said
            name_server.send_signal(signal.SIGTERM)
            assert name_server.communicate(timeout=WAIT_S) == ("", "")
            assert name_server.returncode == 0
    assert list(folders[1].iterdir()) == []


async def ask(name_server: str, code: RequestCode, **fields: object) -> dict[str, str]:
    """The answer's fields."""
    async with await RawClient.open(name_server) as client:
        return (await client.ok(code, **fields)).ext_fields


ORDERED = {"namespace": "ORDER_TOPIC_CONFIG", "key": "First"}


def test_key_values_of_a_name_server_outlive_a_restart(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker:
        asyncio.run(
            ask(broker.name_server, RequestCode.PUT_KV_CONFIG, value="broker-a:4", **ORDERED)
        )
        broker.kill()
        broker.start()
        assert asyncio.run(ask(broker.name_server, RequestCode.GET_KV_CONFIG, **ORDERED)) == {
            "value": "broker-a:4"
        }
    with up(tmp_path, "--no-broker", "--data", str(tmp_path), "--name-server-port", "0") as (
        _,
        ready,
        _,
    ):
        assert asyncio.run(
            ask(ready.partition("=")[2].strip(), RequestCode.GET_KV_CONFIG, **ORDERED)
        ) == {"value": "broker-a:4"}


def test_a_name_server_with_access_control_takes_a_broker_that_signs_as_one_of_its_users(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root.yml"
    root.write_text("accessKey: root\nsecretKey: much-secret\n")
    root.chmod(0o600)
    acl = ("--acl", "--credentials", str(root))
    with Broker(options=acl) as first:
        named = (
            "--no-name-server",
            "--name-servers",
            first.name_server,
            "--broker-name",
            "broker-b",
            *acl,
        )
        for signed, brokers in (
            ((), {"broker-a"}),
            (("--name-servers-credentials", str(root)), {"broker-a", "broker-b"}),
        ):
            with Broker(options=(*named, *signed)) as second:
                assert second.name_server == first.name_server
                user = ogive.Credentials(access_key="root", secret_key="much-secret")
                with ogive.Admin(
                    client=ogive.ClientConfig(name_server=first.name_server, credentials=user)
                ) as admin:
                    assert {broker.name for broker in admin.brokers()} == brokers
