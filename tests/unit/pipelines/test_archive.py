"""What the archive's last steps rely on is on stable storage by then.

Spark itself is in tests/integration/test_pipelines.py.
"""

import json
import os
from pathlib import Path

import pytest

from ogive.pipelines.archive import recover
from ogive.spark.fsync import sync_tree

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="the name of an open file is read from /proc"
)

HOUR = "topic=T/date=2026-11-22/hour=09"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(call, path under the test's folder), in order."""
    made: list[tuple[str, str]] = []

    sync, rename, unlink = os.fsync, Path.rename, Path.unlink

    def noted(call: str, path: Path) -> None:
        made.append((call, os.path.relpath(path, tmp_path)))

    def noted_sync(handle: int) -> None:
        noted("sync", Path(f"/proc/self/fd/{handle}").readlink())
        sync(handle)

    def noted_rename(path: Path, target: Path) -> Path:
        noted("rename", path)
        return rename(path, target)

    def noted_unlink(path: Path) -> None:
        noted("unlink", path)
        unlink(path)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    monkeypatch.setattr(Path, "unlink", noted_unlink)
    return made


def compacting(to: Path) -> None:
    """As it stands when the new file is written and the journal says so."""
    for name in (
        f"{HOUR}/part=b1/a.parquet",
        f"{HOUR}/part=b2/b.parquet",
        f"_new/{HOUR}/c.parquet",
    ):
        (to / name).parent.mkdir(parents=True)
        (to / name).write_bytes(b"rows")
    (to / "_compacting.json").write_text(
        json.dumps({"hour": HOUR, "parts": ["part=b1", "part=b2"], "into": "part=c1"})
    )


def test_the_hour_that_replaces_its_parts_has_its_name_before_the_journal_goes(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    compacting(tmp_path)
    recover(tmp_path)
    assert [path.name for path in (tmp_path / HOUR).rglob("*.parquet")] == ["c.parquet"]
    new = str(Path("_new") / HOUR)
    order = [
        call
        for call in calls
        if call
        in (
            ("rename", new),
            ("sync", HOUR),
            ("sync", str(Path(new).parent)),
            ("unlink", "_compacting.json"),
        )
    ]
    assert order == [
        ("rename", new),
        ("sync", HOUR),
        ("sync", str(Path(new).parent)),
        ("unlink", "_compacting.json"),
    ]


def test_everything_in_a_folder_is_synced_and_what_leads_to_it(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    compacting(tmp_path)
    sync_tree(tmp_path / "_new" / HOUR, within=tmp_path)
    parents = [str(Path("_new") / parent) for parent in (HOUR, *map(str, Path(HOUR).parents))]
    assert calls == [
        ("sync", f"_new/{HOUR}/c.parquet"),
        *(("sync", parent) for parent in parents),
        ("sync", "."),
    ]
