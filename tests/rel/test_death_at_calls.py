"""T2: the process dies at each of its system calls that change a file; every answer it gave before is kept.

A script that stores, makes a topic, ends a transaction, rolls segments and removes old ones runs under strace, which kills it at the n-th
call of one kind; for all n. Needs strace, and the right to trace a child.
"""

import json
import logging
import shutil
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ogive.store.verify import verify
from tests.figures import figures
from tests.stores import Driver, small

pytestmark = [pytest.mark.rel, pytest.mark.nightly, pytest.mark.timeout(1500)]

CALLS = ("pwrite64", "fdatasync", "fsync", "rename", "ftruncate", "unlink", "mkdir")
SCRIPT = """
    import sys
    from pathlib import Path
    from ogive.store import JsonTable, OsFs
    from tests.stores import Driver, message, small
    root = Path(sys.argv[1])
    driver = Driver(small(root, segment_bytes=4096, checkpoint_bytes=6000, flush_bytes=2000))
    table = JsonTable(OsFs(), root / "config" / "topics.json")
    for n in range(30):
        result = driver.put(message(f"{n} " + "x" * 400, f"T{n % 3}", properties=f"UNIQ_KEY\\x01ID{n}\\x02".encode()))[0]
        print(f"T{n % 3} {result.queue_offset} {n}", flush=True)
    table.save({"topicConfigTable": {"T0": {}}})
    half = driver.put(message("half", "RMQ_SYS_TRANS_HALF_TOPIC"))[0]
    end = driver.put(message("whole", "T0", sys_flag=8, prepared_transaction_offset=half.commitlog_offset))[0]
    print(f"T0 {end.queue_offset} whole", flush=True)
    table.save({"topicConfigTable": {"T0": {}, "T1": {}}})
    for _ in driver.store.expire(driver.store.full_segments[2]):
        pass
    driver.put(message("last", "T1"))
    print("expired", flush=True)
    driver.close()
"""


opening = threading.Lock()
"""Between its fork and its exec a child holds the locks of the stores that are open here: no store is open while one is started."""


def die_at(root: Path, call: str, nth: int) -> tuple[bool, list[str]]:
    """(whether it died there, the lines that it had printed)."""
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={nth}"]
    with opening:
        script = subprocess.Popen([*command, sys.executable, "-c", textwrap.dedent(SCRIPT), str(root)], stdout=subprocess.PIPE, text=True)
    try:
        said, _ = script.communicate(timeout=60)
    finally:
        script.kill()
    return script.returncode != 0, [line for line in said.splitlines(keepends=True) if line.endswith("\n")]


def judge(root: Path, lines: list[str]) -> None:
    """A start succeeds and finds every answer, unless old messages were being removed; and keeps it."""
    removing = sum(line.split()[0] in ("T0", "T1", "T2") for line in lines) == 31
    for _ in range(2):
        with Driver(small(root, segment_bytes=4096)) as driver:
            assert driver.store.stats().damaged == 0
            found = {(t, q): {m.queue_offset: m.body.split()[0] for m in driver.read_all(t, q)} for t, q in driver.store.queues}
            for line in lines:
                topic, offset, body = (*line.split(), "", "")[:3]
                if topic == "expired":
                    continue
                if removing and int(offset) < driver.store.min_offset(topic, 0):
                    continue
                assert found[topic, 0][int(offset)] == body.encode()
            for (topic, queue_id), messages in found.items():
                low, high = driver.store.min_offset(topic, queue_id), driver.store.max_offset(topic, queue_id)
                assert list(messages) == list(range(low, high)), "a hole"
    assert verify(root).problems == []


def test_death_at_every_system_call_keeps_every_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (Debian: apt-get install strace)")
    probe = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"strace may not trace here: {probe.stderr.decode()[:200]}")
    with figures("T2", nightly=True) as line, ThreadPoolExecutor(2) as two:

        def all_of(call: str) -> tuple[int, int]:
            nth = 0
            answers = 0
            while True:
                nth += 1
                root = tmp_path / f"{call}-{nth}"
                died, lines = die_at(root, call, nth)
                answers += len(lines)
                if not died:
                    return nth - 1, answers
                with opening:
                    judge(root, lines)
                shutil.rmtree(root)

        counts = dict(zip(CALLS, two.map(all_of, CALLS), strict=True))
        line["deaths"] = {call: deaths for call, (deaths, _) in counts.items()}
        line["faults"] = sum(deaths for deaths, _ in counts.values())
        line["acknowledged"] = line["received"] = sum(answers for _, answers in counts.values())
        line["lost"] = 0
    print(json.dumps(counts))
    assert line["faults"] > 100
