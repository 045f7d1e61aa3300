"""kill -9 of a broadcasting member while it writes its progress, again and again."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.rel

# One process forks the members, which is quicker than a hundred starts of Python. Each member says
# what it has persisted.
PROGRAM = """
import asyncio, os, random, signal, sys
from pathlib import Path
from ogive.client.consumer.offset_store import LocalOffsetStore, read_offsets
from ogive.model import MessageQueue

QUEUES = [MessageQueue("Orders", "broker-a", i) for i in range(64)]
path = Path(sys.argv[1]) / "member" / "screens" / "offsets.json"

async def member(told):
    store = LocalOffsetStore(path)
    await store.open()
    offset = await store.fetch(QUEUES[0]) or 0
    while True:
        offset += 1
        for queue in QUEUES:
            store.update(queue, offset)
        await store.persist(QUEUES)
        os.write(told, offset.to_bytes(8))

for _ in range(100):
    out, told = os.pipe()
    child = os.fork()
    if not child:
        asyncio.run(member(told))
    os.close(told)
    for _ in range(random.randrange(1, 6)):
        last = int.from_bytes(os.read(out, 8))
    os.sched_yield()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(out, 8):
        last = int.from_bytes(more)
    os.close(out)
    saved = read_offsets(path)
    assert set(saved) == set(QUEUES) and len(set(saved.values())) == 1, saved
    assert saved[QUEUES[0]] in (last, last + 1), (last, saved)
assert not list(path.parent.glob("*.damaged"))
print(last)
"""


@pytest.mark.feature(166)
def test_a_hundred_kills_while_progress_is_written_lose_none_of_it(tmp_path: Path) -> None:
    """The file is whole each time, and what was persisted is in it: at most the write under way is
    lost.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 100
