"""A disk that fails to sync: nothing more is acknowledged, and the process says so with its exit
code.
"""

import asyncio
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import ogive
from ogive import aio
from ogive.cli.exits import EXIT_STORE_FAILED
from ogive.errors import OgiveError
from ogive.store import MessageStore, StoreConfig
from ogive.wire.message import decode_messages
from tests.figures import figures
from tests.stores import read_queue

pytestmark = pytest.mark.result("T9")


# `ogive up` on a disk whose syncs of files below the third name fail once the file named first
# exists, as often as it says
_ON_A_FAILING_DISK = """
import errno, os, pathlib, sys
from ogive.cli.main import main
from ogive.store.fs import OsFs

broken, real, failures, below = pathlib.Path(sys.argv[1]), OsFs.fdatasync, [], sys.argv[3]

def fdatasync(self, fd):
    is_below = os.readlink(f"/proc/self/fd/{fd}").startswith(below)
    if broken.exists() and is_below and len(failures) < int(broken.read_text()):
        failures.append(fd)
        raise OSError(errno.EIO, "Input/output error")
    return real(self, fd)

OsFs.fdatasync = fdatasync
ports = ["--name-server-port", "0", "--broker-port", "0", "--no-grpc"]
sys.exit(main(["up", "--data", sys.argv[2], *ports]))
"""


def failing_up(broken: Path, data: Path, below: str = "") -> list[str]:
    return [sys.executable, "-c", _ON_A_FAILING_DISK, str(broken), str(data), str(data / below)]


@pytest.mark.rel
@pytest.mark.quick
@pytest.mark.parametrize(
    ("below", "times"),
    [("", 10**6), ("config", 1), ("config", 10**6)],
    ids=["everywhere", "a table once", "tables"],
)
def test_a_failed_sync_ends_the_broker_with_code_74_and_loses_nothing_acknowledged(
    tmp_path: Path, below: str, times: int
) -> None:
    """The last send makes a topic: the table of topics is saved before it would be acknowledged."""
    broken, data = tmp_path / "broken", tmp_path / "data"
    process = subprocess.Popen(
        failing_up(broken, data, below), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        name_server = process.stdout.readline().split()[1].partition("=")[2]
        with ogive.Producer(name_server, config=ogive.ProducerConfig(retries=0)) as producer:
            kept = producer.send("Ledger", b"kept")
            broken.write_text(str(times))
            with pytest.raises(OgiveError):
                producer.send("Another", b"never acknowledged", timeout_s=2.0)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == EXIT_STORE_FAILED
    assert "the store failed, nothing more was acknowledged" in errors
    assert "Input/output error" in errors
    assert "Traceback" not in errors
    bodies = read_back(data, kept.queue)
    assert bodies[0] == b"kept"


@pytest.mark.rel
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("times", [1, 4, 10**9])
def test_a_sync_that_fails_under_load_acknowledges_nothing_any_more(
    tmp_path: Path, times: int
) -> None:
    """Also when later ones would succeed.

    Fifty sends are on their way all the time; each gets its answer or an error.
    """
    errors_s: list[float] = []
    ends_s: list[float] = []
    with figures(
        "T9 under load", nightly=True, attempts=0, acknowledged=0, received=0, lost=0, faults=0
    ) as line:
        for round_ in range(5):
            seen = asyncio.run(
                until_a_sync_fails(tmp_path / str(round_), times, 200 + 150 * round_)
            )
            line["faults"] += 1
            line["attempts"] += len(seen.attempted)
            line["acknowledged"] += len(seen.acknowledged)
            line["received"] += len(seen.found)
            line["lost"] += len(seen.acknowledged - seen.found)
            errors_s.append(seen.error_s)
            ends_s.append(seen.ended_s)
            assert seen.acknowledged <= seen.found <= seen.attempted
        line.update(
            send_to_error_slowest_ms=round(1000 * max(errors_s), 1),
            fault_to_exit_slowest_ms=round(1000 * max(ends_s), 1),
        )


@dataclass(slots=True)
class Seen:
    attempted: set[bytes] = field(default_factory=set)
    acknowledged: set[bytes] = field(default_factory=set)
    found: set[bytes] = field(default_factory=set)  # afterwards
    # that a send which failed waited at most
    error_s: float = 0.0
    # from when syncs began to fail to the end of the process
    ended_s: float = 0.0


async def until_a_sync_fails(folder: Path, times: int, messages: int) -> Seen:
    """Of fifty senders; syncs begin to fail behind *messages* acknowledged ones."""
    folder.mkdir()
    broken, data = folder / "broken", folder / "data"
    seen, refused = Seen(), asyncio.Event()
    broke = 0.0
    process = await asyncio.create_subprocess_exec(
        *failing_up(broken, data), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        name_server = (await process.stdout.readline()).decode().split()[1].partition("=")[2]
        async with aio.Producer(name_server, config=ogive.ProducerConfig(retries=0)) as producer:
            await producer.send("Ledger", b"first")

            async def end() -> None:
                assert await process.wait() == EXIT_STORE_FAILED
                seen.ended_s = time.monotonic() - broke

            async def send(sender: int) -> None:
                nonlocal broke
                number = 0
                while not refused.is_set():
                    body = b"%d/%d" % (sender, number)
                    number += 1
                    seen.attempted.add(body)
                    began = time.monotonic()
                    try:
                        await producer.send("Ledger", body, timeout_s=30.0)
                    except OgiveError:
                        refused.set()
                        seen.error_s = max(seen.error_s, time.monotonic() - began)
                    else:
                        seen.acknowledged.add(body)
                        if len(seen.acknowledged) == messages:
                            broken.write_text(str(times))
                            broke = time.monotonic()

            async with asyncio.timeout(120):
                await asyncio.gather(end(), *(send(sender) for sender in range(50)))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    store = MessageStore.open(StoreConfig(root=data))
    store.start(lambda report: None)
    seen.found = {
        record.body
        for key in list(store.queues)
        if key[0] == "Ledger"
        for record in read_queue(store, *key)
    } - {b"first"}
    store.close()
    return seen


def read_back(data: Path, queue: ogive.MessageQueue) -> list[bytes]:
    """What a broker on the same directory serves from *queue* after the failure."""
    store = MessageStore.open(StoreConfig(root=data))
    store.start(lambda report: None)
    found = store.get(queue.topic, queue.queue_id, 0, 10, 1 << 20)
    bodies = [message.body for message in decode_messages(b"".join(found.parts))]
    store.close()
    return bodies
