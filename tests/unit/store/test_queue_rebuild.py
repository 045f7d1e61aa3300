"""When delayed messages are due after their queue entries were lost."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ogive.broker import Broker, BrokerConfig
from ogive.model import SCHEDULE_TOPIC
from ogive.store import OsFs
from ogive.store.consumequeue import ENTRY
from ogive.store.replay import LevelTables
from ogive.store.types import APACHE_CONF
from ogive.store.verify import repair
from ogive.wire.bodies.configs import DelayLevels
from tests.raw_client import RawClient
from tests.stores import Driver, message, small

HOUR, DAY, SECOND = DelayLevels.parse("1h"), DelayLevels.parse("1d"), DelayLevels.parse("1s")


def a_repair(root: Path) -> None:
    assert repair(root)[1].is_sound


def loss_of_the_list(root: Path) -> None:
    (root / "queues.json").unlink()


def loss_of_the_queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / SCHEDULE_TOPIC)


@pytest.mark.parametrize("what", [a_repair, loss_of_the_list, loss_of_the_queue])
async def test_no_message_is_due_earlier_when_the_levels_were_changed(
    what: Callable[[Path], None], tmp_path: Path
) -> None:
    """Those sent since are due by the new ones."""
    for key, levels in (("A", "1h"), ("B", "20m")):
        broker = Broker(
            BrokerConfig(data=tmp_path, port=0, delay_levels=levels, segment_bytes=1024 * 1024)
        )
        await broker.start()
        async with await RawClient.open(broker.address) as client:
            await client.send("T", b"later", {"UNIQ_KEY": key, "DELAY": "1"})
        await broker.stop()
    (queue,) = (tmp_path / "consumequeue" / SCHEDULE_TOPIC / "0").iterdir()
    good = queue.read_bytes()
    what(tmp_path)
    broker = Broker(
        BrokerConfig(data=tmp_path, port=0, delay_levels="1s", segment_bytes=1024 * 1024)
    )
    await broker.start()
    await broker.stop()
    assert queue.read_bytes() == good


@pytest.mark.parametrize(("wrong_ms", "trusted"), [(0, True), (-1000, False), (2**45, False)])
def test_an_old_entry_of_the_message_counts_if_it_is_later(
    wrong_ms: int, trusted: bool, tmp_path: Path
) -> None:
    """Nothing notes the levels here.

    An entry that would be earlier than the levels known, or in a thousand years, is none to
    believe.
    """
    with Driver(small(tmp_path, delay_levels=HOUR)) as first:
        first.put(*[message(topic=SCHEDULE_TOPIC, properties=b"DELAY\x011\x02") for _ in range(40)])
        stored_ms = first.store.store_time(SCHEDULE_TOPIC, 0, 17)
    (tmp_path / "queues.json").unlink()
    *_, path = sorted((tmp_path / "consumequeue" / SCHEDULE_TOPIC / "0").iterdir())[:2]
    raw = bytearray(path.read_bytes())
    at = ENTRY.size
    offset, size, due_ms = ENTRY.unpack_from(raw, at)
    ENTRY.pack_into(raw, at, offset, size, (stored_ms if wrong_ms < 0 else due_ms) + wrong_ms)
    path.write_bytes(raw)
    with Driver(small(tmp_path, delay_levels=SECOND)) as second:
        entries = second.store.entries(SCHEDULE_TOPIC, 0, 0, 40)
    assert entries[17].tags_code == (due_ms if trusted else stored_ms + 1000)
    assert {entry.tags_code for entry in entries[:16] + entries[18:]} == {due_ms}


def test_tables_of_levels_count_up_to_where_the_next_ones_began(tmp_path: Path) -> None:
    tables = (
        LevelTables()
        .followed_by(HOUR, 0, 0)
        .followed_by(HOUR, 0, 50)
        .followed_by(DAY, 0, 100)
        .followed_by(SECOND, 0, 300)
    )
    (tmp_path / APACHE_CONF).write_text(
        f"messageDelayLevel=1s\n{tables.lines()}# before commit-log offset x: "
        "messageDelayLevel=1h\n"
    )
    assert LevelTables.read(OsFs(), tmp_path) == tables
    assert [tables.at(offset) for offset in (0, 99, 100, 299, 300)] == [
        HOUR,
        HOUR,
        DAY,
        DAY,
        SECOND,
    ]
    assert tables.followed_by(SECOND, 100, 400).earlier == ((300, DAY),), (
        "of what the log does not have any more nobody asks"
    )
    assert tables.followed_by(SECOND, 0, 200).earlier == ((100, HOUR), (200, DAY)), (
        "what comes behind the end is new"
    )


def test_levels_that_were_changed_often_are_kept_within_bounds() -> None:
    tables = LevelTables()
    for n in range(300):
        tables = tables.followed_by(DelayLevels.parse(f"{n}s"), 0, 1000 * n)
    assert len(tables.earlier) == 100
    assert tables.at(298_500) == DelayLevels.parse("298s")
