"""A disk that fails to sync: nothing more is acknowledged, and the process says so with its exit code."""

import subprocess
import sys
from pathlib import Path

import pytest

import ogive
from ogive.cli.up import EXIT_STORE_FAILED
from ogive.errors import OgiveError
from ogive.store import MessageStore, StoreConfig
from ogive.wire.message import decode_messages

# `ogive up` on a disk whose syncs fail from the moment on that the file named first exists
_ON_A_FAILING_DISK = """
import errno, pathlib, sys
from ogive.cli.main import main
from ogive.store.fs import OsFs

broken, real = pathlib.Path(sys.argv[1]), OsFs.fdatasync

def fdatasync(self, fd):
    if broken.exists():
        raise OSError(errno.EIO, "Input/output error")
    return real(self, fd)

OsFs.fdatasync = fdatasync
sys.exit(main(["up", "--data", sys.argv[2], "--name-server-port", "0", "--broker-port", "0"]))
"""


@pytest.mark.rel
@pytest.mark.quick
def test_a_failed_sync_ends_the_broker_with_code_74_and_loses_nothing_acknowledged(tmp_path: Path) -> None:
    broken, data = tmp_path / "broken", tmp_path / "data"
    command = [sys.executable, "-c", _ON_A_FAILING_DISK, str(broken), str(data)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        name_server = process.stdout.readline().split()[1].partition("=")[2]
        with ogive.Producer(name_server, config=ogive.ProducerConfig(retries=0)) as producer:
            kept = producer.send("Ledger", b"kept")
            broken.touch()
            with pytest.raises(OgiveError):
                producer.send("Ledger", b"never acknowledged", timeout_s=2.0)
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


def read_back(data: Path, queue: ogive.MessageQueue) -> list[bytes]:
    """What a broker on the same directory serves from *queue* after the failure."""
    store = MessageStore.open(StoreConfig(root=data))
    store.start(lambda report: None)
    found = store.get(queue.topic, queue.queue_id, 0, 10, 1 << 20)
    bodies = [message.body for message in decode_messages(b"".join(found.parts))]
    store.close()
    return bodies
