"""How long a store of a million messages, and one of 40,000 queues, takes to open; and the memory
that takes.

    python -m bench.store_scale [--messages N] [--topics N] [--body BYTES]

Each figure comes from a process of its own. "killed": the process that wrote last ended without
closing the store. The directory is temporary; the operating system has most of it in memory, as
after a restart of a broker.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from ogive.store import MessageStore, NewMessage, StoreConfig
from tests.stores import InlineWriter

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
BATCH = 500


def message(topic: str, queue_id: int, number: int, body: bytes) -> NewMessage:
    properties = f"UNIQ_KEY\x01{number:032X}\x02KEYS\x01key-{number}\x02".encode()
    return NewMessage(topic, queue_id, body, properties, born_host=HOST, store_host=HOST)


def messages(count: int, topics: int, body_bytes: int) -> Iterable[NewMessage]:
    """*count* messages, topic after topic and queue after queue in turn."""
    body = os.urandom(body_bytes)
    return (
        message(f"Topic{number % topics}", number // topics % 4, number, body)
        for number in range(count)
    )


def fill(root: Path, new: Iterable[NewMessage], *, kill: bool = False) -> None:
    store = MessageStore.open(StoreConfig(root=root, flush="async"))
    store.start(lambda report: report(), writer=InlineWriter)
    for number, each in enumerate(new):
        store.put((each,), lambda _: None)
        if number % BATCH == BATCH - 1:
            store.submit()
    store.submit()
    if kill:
        os._exit(0)
    store.close()


def peak_mib() -> int:
    """Of this program.

    (getrusage() counts in what the process was before it became this program.)
    """
    [line] = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    ]
    return round(int(line.split()[1]) / 1024)


def measure(root: Path) -> dict[str, float]:
    """In a process that has done nothing else."""
    began = time.monotonic()
    store = MessageStore.open(StoreConfig(root=root))
    ready_s = time.monotonic() - began
    stats = store.stats()
    found = {
        "start (s)": round(ready_s, 2),
        "peak resident (MiB)": peak_mib(),
        "open files": len(list(Path("/proc/self/fd").iterdir())),
        "queues": stats.queues,
        "messages": sum(store.max_offset(*key) for key in store.queues),
        "damaged": stats.damaged,
    }
    store.close()
    return found


def in_a_process(*args: object) -> str:
    command = [sys.executable, "-m", "bench.store_scale", *map(str, args)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def run(name: str, count: int, topics: int, body_bytes: int) -> list[dict[str, object]]:
    """Rows: after a clean stop, and after a kill that came with another hundredth of the
    messages.
    """
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        in_a_process("fill", folder, count, topics, body_bytes)
        rows.append({"store": name, "stop": "clean", **json.loads(in_a_process("measure", folder))})
        in_a_process("kill", folder, max(1, count // 100), topics, body_bytes)
        rows.append(
            {"store": name, "stop": "killed", **json.loads(in_a_process("measure", folder))}
        )
    return rows


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] in ("fill", "kill"):
        root, count, topics, body = Path(sys.argv[2]), *map(int, sys.argv[3:6])
        fill(root, messages(count, topics, body), kill=sys.argv[1] == "kill")
        return
    if len(sys.argv) > 2 and sys.argv[1] == "measure":
        print(json.dumps(measure(Path(sys.argv[2]))))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--body", type=int, default=256)
    options = parser.parse_args()
    rows = run(f"{options.messages:,} messages", options.messages, 10, options.body)
    rows += run(f"{options.topics:,} topics", 4 * options.topics, options.topics, options.body)
    heads = list(rows[0])
    print("| " + " | ".join(heads) + " |")
    print("|---" * len(heads) + "|")
    for row in rows:
        print(
            "| "
            + " | ".join(
                f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()
            )
            + " |"
        )


if __name__ == "__main__":
    main()
