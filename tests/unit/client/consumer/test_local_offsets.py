"""Progress of a broadcasting member in a local file."""

import logging
import os
from pathlib import Path

import pytest

from ogive.client.consumer.offset_store import LocalOffsetStore, offsets_path, read_offsets
from ogive.errors import IllegalStateError, InvalidOption
from ogive.model import MessageQueue

A, B = MessageQueue("Orders", "broker-a", 0), MessageQueue("Orders", "broker-a", 1)

# as LocalFileOffsetStore of Apache's client writes it
JAVAS = """{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"Orders"
\t\t}:17,{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":1,
\t\t\t"topic":"Orders"
\t\t}:4
\t}
}"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return offsets_path(tmp_path, "10.0.0.1", None, "screens")


async def opened(path: Path) -> LocalOffsetStore:
    store = LocalOffsetStore(path)
    await store.open()
    return store


@pytest.mark.feature(166)
async def test_progress_is_there_after_a_restart(path: Path) -> None:
    store = await opened(path)
    store.update(A, 10)
    store.update(B, 20)
    await store.persist([A, B])
    await store.close()
    again = await opened(path)
    assert [await again.fetch(A), await again.fetch(B), again.read(A)] == [10, 20, None]
    await again.close()


async def test_a_queue_that_is_not_held_keeps_its_place(path: Path) -> None:
    store = await opened(path)
    store.update(A, 10)
    store.update(B, 20)
    await store.persist([A, B])
    store.forget(A)
    store.update(B, 21)
    await store.persist([B])
    assert await store.fetch(A) == 10
    assert read_offsets(path) == {A: 10, B: 21}
    await store.close()


async def test_an_offset_moves_back_only_by_a_repair(path: Path) -> None:
    store = await opened(path)
    store.update(A, 10)
    store.update(A, 7)
    await store.persist([A])
    assert read_offsets(path) == {A: 10}
    store.repair(A, 3)
    store.update(A, 11)
    await store.persist([A])
    assert read_offsets(path) == {A: 3}
    await store.close()


def test_the_place_of_the_file_is_that_of_javas_clients(tmp_path: Path) -> None:
    """It does not change when the program starts again, unless it is told another name."""
    assert (
        offsets_path(tmp_path, "10.0.0.1", None, "screens")
        == tmp_path / "10.0.0.1@DEFAULT" / "screens" / "offsets.json"
    )
    assert (
        offsets_path(tmp_path, "10.0.0.1", "left", "screens")
        == tmp_path / "10.0.0.1@left" / "screens" / "offsets.json"
    )
    with pytest.raises(InvalidOption, match="cannot name a folder"):
        offsets_path(tmp_path, "10.0.0.1", "../../etc", "screens")


async def test_a_file_of_javas_client_is_read(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(JAVAS)
    store = await opened(path)
    assert [await store.fetch(A), await store.fetch(B)] == [17, 4]
    await store.close()


@pytest.mark.feature(166)
@pytest.mark.parametrize(
    "damage",
    [
        b"",
        JAVAS[:60].encode(),
        b"\0" * 100,
        b"[]",
        b'{"offsetTable":{"x":1}}',
        JAVAS.replace("17", '"x"').encode(),
    ],
)
async def test_a_damaged_file_is_set_aside_and_its_backup_counts(
    path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)
    path.with_name("offsets.json.bak").write_text(JAVAS)
    store = await opened(path)
    assert await store.fetch(A) == 17
    assert path.with_name("offsets.json.damaged").read_bytes() == damage
    assert "offsets.json, which is ignored" in caplog.text
    await store.close()


async def test_with_nothing_to_read_the_group_begins_as_a_new_one(path: Path) -> None:
    path.parent.mkdir(parents=True)
    for name in ("offsets.json", "offsets.json.bak"):
        path.with_name(name).write_bytes(b"{")
    store = await opened(path)
    assert await store.fetch(A) is None
    store.update(A, 1)
    await store.persist([A])
    assert read_offsets(path) == {A: 1}
    await store.close()


async def test_where_nothing_can_be_written_progress_stays_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file where the folder should be; the log says it once, and the file is written as soon as
    it can be.
    """
    (tmp_path / "no-folder").write_text("in the way")
    store = await opened(path := offsets_path(tmp_path / "no-folder", "10.0.0.1", None, "screens"))
    store.update(A, 10)
    for _ in range(3):
        await store.persist([A])
    store.forget(A)
    assert await store.fetch(A) == 10
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    (tmp_path / "no-folder").unlink()
    await store.persist([])
    assert read_offsets(path) == {A: 10}
    await store.close()


async def test_a_file_has_one_owner_at_a_time(path: Path) -> None:
    first = await opened(path)
    second = LocalOffsetStore(path)
    with pytest.raises(IllegalStateError, match="instance_name"):
        await second.open()
    await second.close()
    await first.close()
    await (third := LocalOffsetStore(path)).open()
    await third.close()


async def test_a_file_is_free_again_though_a_forked_child_has_it_open(path: Path) -> None:
    store = await opened(path)
    assert store._lock is not None
    # what a fork leaves there: the same open file
    in_the_child = os.dup(store._lock)
    try:
        await store.close()
        await (await opened(path)).close()
    finally:
        os.close(in_the_child)
