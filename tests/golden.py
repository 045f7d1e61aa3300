"""A small store as a release of ours writes it: ``python -m tests.golden`` makes
tests/vectors/store-VERSION.zip, once for each release.

It holds every kind of record, two segments, several queue and index files, a deleted topic and
removed segments; it is left as by kill -9. expected.json beside the store says what a reader must
find.
"""

import argparse
import io
import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

import ogive
from ogive.store import JsonTable, OsFs
from tests.stores import Clock, Driver, crash, message, small

VECTORS: Final = Path(__file__).parent / "vectors"
V6: Final = bytes(15) + b"\x01" + (10911).to_bytes(4)
# a version 2 record
LONG_TOPIC: Final = "%RETRY%" + "g" * 200
KEYS: Final = {"T": ["ID40", "order-3"], "U": ["ID99"], LONG_TOPIC: ["long"]}


def write(root: Path) -> None:
    clock = Clock()
    driver = Driver(small(root), clock=clock)
    driver.put(message("gone with its topic", "Deleted"))
    driver.store.topics.delete("Deleted")
    for n in range(100):
        clock.now_ms += 250
        properties = (
            f"UNIQ_KEY\x01ID{n}\x02KEYS\x01order-{n % 7} "
            f"all\x02TAGS\x01{'paid' if n % 2 else 'open'}\x02"
        )
        driver.put(
            message(
                f"{n} " + "x" * (n * 7 % 500), "TU"[n % 2], n % 3, properties=properties.encode()
            )
        )
    driver.put(*[message(f"batch {n}", "Batch") for n in range(4)])
    driver.put(
        message(
            "later",
            "SCHEDULE_TOPIC_XXXX",
            2,
            properties=b"DELAY\x013\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02",
        )
    )
    driver.put(
        message(
            "half",
            "RMQ_SYS_TRANS_HALF_TOPIC",
            properties=b"PGROUP\x01P\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02UNIQ_KEY\x01H\x02",
        )
    )
    driver.put(message("over IPv6", "T", 1, born_host=V6, store_host=V6))
    driver.put(message("long", LONG_TOPIC, properties=b"UNIQ_KEY\x01long\x02"))
    driver.put(message("rolled back", sys_flag=12))
    for _ in driver.store.retention.expire(
        driver.store.retention.full_segments[0] + driver.store.segment_bytes
    ):
        pass
    JsonTable(OsFs(), root / "config" / "consumerOffset.json").save(
        {"offsetTable": {"T@G": {"0": 5, "1": 7}}}
    )
    JsonTable(OsFs(), root / "config" / "delayOffset.json").save({"offsetTable": {"3": 0}})
    driver.put(message("after the last checkpoint", "T", 2))
    crash(driver)


def read(root: Path) -> dict[str, Any]:
    """Everything that a reader of the store finds."""
    with Driver(small(root)) as driver:
        store = driver.store
        queues = {
            f"{topic}@{queue_id}": {
                "min": store.min_offset(topic, queue_id),
                "max": store.max_offset(topic, queue_id),
                "messages": [
                    [m.queue_offset, m.commitlog_offset, m.body.decode(), m.sys_flag]
                    for m in driver.read_all(topic, queue_id)
                ],
                "tags": [
                    entry.tags_code
                    for entry in store.entries(
                        topic, queue_id, store.min_offset(topic, queue_id), 1000
                    )
                ],
            }
            for topic, queue_id in sorted(store.queues)
        }
        keys = {
            f"{topic} {key}": len(list(store.find_key(topic, key, 0, 2**62)))
            for topic, names in KEYS.items()
            for key in names
        }
        tables = {
            path.name: json.loads(path.read_text())
            for path in sorted((root / "config").glob("*.json"))
        }
        return {"queues": queues, "keys": keys, "tables": tables, "damaged": store.stats().damaged}


def pack(root: Path, expected: dict[str, Any]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file():
                archive.write(path, Path("store") / path.relative_to(root))
        archive.writestr("expected.json", json.dumps(expected))
    return packed.getvalue()


def target_of(name: str, about: str | None) -> Path:
    """Return the file to write. Exit with one sentence if this release has it already."""
    argparse.ArgumentParser(description=about).parse_args()
    target = VECTORS / f"{name}-{ogive.__version__}.zip"
    if target.exists():
        sys.exit(f"{target} exists; remove it only if this version has not been released")
    return target


def main() -> None:
    target = target_of("store", __doc__)
    with tempfile.TemporaryDirectory() as folder:
        root, copy = Path(folder) / "store", Path(folder) / "copy"
        write(root)
        write(copy)
        target.write_bytes(pack(root, read(copy)))
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
