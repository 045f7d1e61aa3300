"""The steps of docs/cluster.md: a backup and its restore, the move of a store to Apache's master
with a slave and back, and the way back to an earlier release.
"""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import ogive
from ogive.store.types import APACHE_CONF
from ogive.wire import java_json
from ogive.wire.codes import RequestCode
from tests.interop.apache import Apache
from tests.peers import our_broker
from tests.raw_client import RawClient, messages
from tests.topics import eventually

ROOT = Path(__file__).parents[2]
OLDEST = "4d913277"
"""The commit whose releases must still open what is written today."""
CONSUMED = 12
QUEUES = 4

pytestmark = [pytest.mark.nightly, pytest.mark.waits(120), pytest.mark.timeout(500)]


def send(name_server: str, first: int, count: int = 20) -> list[bytes]:
    """Send messages to Orders; return their bodies."""
    bodies = [b"%d" % number for number in range(first, first + count)]
    with ogive.Producer(name_server) as producer:
        for body in bodies:
            producer.send("Orders", body, keys=f"order-{body.decode()}", tag="paid")
    return bodies


def read(name_server: str, group: str, count: int) -> list[bytes]:
    """Consume *count* messages of Orders and commit them."""
    found: list[bytes] = []
    with ogive.PullConsumer("Orders", name_server=name_server, group=group, start="earliest") as c:
        ends_at = time.monotonic() + 90
        while len(found) < count and time.monotonic() < ends_at:
            found += [m.body for m in c.poll(timeout_s=2, max_messages=count - len(found))]
        c.commit()
    return found


async def pulled(address: str) -> list[bytes]:
    """Return all bodies of Orders that the broker at *address* serves."""
    found: list[bytes] = []
    async with await RawClient.open(address) as client:
        for queue in range(QUEUES):
            asked = await client.ok(RequestCode.GET_MAX_OFFSET, topic="Orders", queueId=queue)
            end, offset = int(asked.ext_fields["offset"]), 0
            while offset < end:
                answer = await client.pull("looker", "Orders", offset, queue=queue)
                offset = int(answer.ext_fields["nextBeginOffset"])
                found += [message.body for message in messages(answer)]
    return found


def lag(name_server: str, group: str) -> int:
    with ogive.Admin(name_server) as admin:
        return sum(row.lag for row in admin.lag(group, members=False))


def send_for(name_server: str, wait_s: float) -> None:
    """Send a message that is due in *wait_s* seconds."""
    with ogive.Producer(name_server) as producer:
        due = datetime.now(UTC) + timedelta(seconds=wait_s)
        producer.send("Later", b"in time", deliver_at=due)


def is_delivered(name_server: str) -> bool | None:
    with ogive.Admin(name_server) as admin:
        return bool(admin.messages("Later")) or None


def is_saved(data: Path) -> bool | None:
    """Return True if the directory has the progress of the group billing."""
    path = data / "config" / "consumerOffset.json"
    tables = java_json.loads(path.read_text("utf-8")) if path.exists() else {}
    offsets = tables.get("offsetTable", {}).get("Orders@billing", {})
    return sum(offsets.values()) == CONSUMED or None


def is_copied(name_server: str) -> bool | None:
    """Return True if a message that was just sent is on the slave, too."""
    with ogive.Producer(name_server) as producer:
        # a master waits 5 s for a slave that is about to connect
        sent = producer.send("Probe", b"?", timeout_s=15)
    return sent.status is ogive.SendStatus.SEND_OK or None


def move(source: Path, folder: Path) -> dict[str, str]:
    """Copy the directory of a stopped broker to *folder*/store, as the page says.

    Returns the settings that ogive left there for Apache's broker, with the new paths.
    """
    target = folder / "store"
    shutil.copytree(source, target)
    text = (target / APACHE_CONF).read_text("utf-8").replace(str(source), str(target))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@contextmanager
def oldest_release(data: Path, folder: Path) -> Iterator[str]:
    """The broker of OLDEST on *data*, in pure Python; its name server."""
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", OLDEST, "src"], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"commit {OLDEST} is not in the history of this clone")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    command = [sys.executable, "-m", "ogive", "up", "--data", str(data)]
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "OGIVE_NATIVE": "0"}
    broker = subprocess.Popen(
        [*command, "--name-server-port", "0", "--broker-port", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert broker.stdout is not None
        ready = re.match(r"ready name-server=(\S+)", broker.stdout.readline())
        assert ready, "it did not start"
        yield ready[1]
    finally:
        with broker:
            broker.send_signal(signal.SIGTERM)


def test_a_restored_backup_has_everything_up_to_its_moment(tmp_path: Path) -> None:
    with our_broker(tmp_path) as broker:
        sent = send(broker.name_server, 0)
        assert len(read(broker.name_server, "billing", CONSUMED)) == CONSUMED
        # brokers save progress every 5 s
        assert eventually(lambda: is_saved(broker.data))
        backup = [sys.executable, "-m", "ogive", "store", "backup", "--verify"]
        subprocess.run([*backup, broker.data, tmp_path / "backup"], check=True, timeout=120)
        send(broker.name_server, 100)
        broker.stop()
    shutil.copytree(tmp_path / "backup", tmp_path / "restored" / "store")
    with our_broker(tmp_path / "restored") as restored:
        assert sorted(read(restored.name_server, "audit", len(sent))) == sorted(sent)
        assert lag(restored.name_server, "billing") == len(sent) - CONSUMED


def test_a_store_moves_to_a_master_with_a_slave_and_back(tmp_path: Path) -> None:
    with our_broker(tmp_path / "one") as one:
        sent = send(one.name_server, 0)
        done = read(one.name_server, "billing", CONSUMED)
        send_for(one.name_server, 120)
        one.stop()

    left = move(one.data, tmp_path / "master")
    left |= {"brokerRole": "SYNC_MASTER", "recallMessageEnable": "true"}
    copied = move(one.data, tmp_path / "slave")
    copied |= {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}
    with Apache(tmp_path / "master", left) as master:
        # clients change nothing but the address
        address = master.name_server
        assert lag(address, "billing") == len(sent) - CONSUMED
        with Apache(tmp_path / "slave", copied, name_server=address) as slave:
            # an empty slave would only get the newest file of the log
            assert eventually(lambda: is_copied(address))
            sent += send(address, 20)
            done += read(address, "billing", 10)
            assert eventually(lambda: is_delivered(address), 200)
            topics = slave.data / "config" / "topics.json"
            assert eventually(lambda: "Orders" in topics.read_text() or None)
            master.kill()
            assert sorted(asyncio.run(pulled(slave.address))) == sorted(sent)
            # a member that starts now has the progress from the slave
            with ogive.PullConsumer("Orders", name_server=address, group="billing") as member:
                found = member.poll(timeout_s=60)
            assert found
            assert {message.body for message in found} <= set(sent)
            with pytest.raises(ogive.OgiveError), ogive.Producer(address) as producer:
                producer.send("Orders", b"nobody takes it", timeout_s=3)
            master.start()
            sent += send(address, 40)
            slave.stop()
        done += read(address, "billing", 5)
        master.stop()

    shutil.copytree(master.data, tmp_path / "back" / "store")
    with our_broker(tmp_path / "back") as back:
        rest = read(back.name_server, "billing", len(sent) - len(done))
        assert sorted(done + rest) == sorted(sent)
        assert is_delivered(back.name_server)
        send_for(back.name_server, 60)
        back.stop()
    with oldest_release(back.data, tmp_path) as name_server:
        assert sorted(read(name_server, "again", len(sent))) == sorted(sent)
        assert lag(name_server, "billing") == 0
        with ogive.Admin(name_server) as admin:
            assert eventually(lambda: len(admin.messages("Later")) == 2 or None, 120)
