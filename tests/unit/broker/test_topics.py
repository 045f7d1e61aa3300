"""The broker's topics: what may be made and changed, and the file they live in."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ogive.broker.state.topic_table import MAX_MADE_QUEUES, TopicTable
from ogive.errors import InvalidOption
from ogive.store.fs import OsFs
from ogive.store.tables import JsonTable
from ogive.wire.bodies.configs import DataVersion, TopicConfig

SYSTEM = [
    "BenchmarkTest",
    "C",
    "C_REPLY_TOPIC",
    "OFFSET_MOVED_EVENT",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "SCHEDULE_TOPIC_XXXX",
    "SELF_TEST_TOPIC",
    "TBW102",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "b",
    "rmq_sys_wheel_timer",
]


def a_table(
    folder: Path,
    *,
    auto_create: bool = True,
    max_topics: int = 20_000,
    cluster: str = "C",
    name: str = "b",
) -> TopicTable:
    file = JsonTable(OsFs(), folder / "config" / "topics.json")
    return TopicTable(
        file,
        cluster=cluster,
        broker_name=name,
        auto_create=auto_create,
        now_ms=lambda: 1234,
        max_topics=max_topics,
    )


def made(
    table: TopicTable, name: str, default_topic: str = "TBW102", queues: int = 4
) -> TopicConfig:
    config = table.auto_create_on_send(name, default_topic, queues)
    assert config is not None
    return config


def test_a_new_broker_has_its_system_topics(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    assert table.system_topics() == SYSTEM
    assert [
        (config.read_queues, config.perm)
        for config in (table.all()["C"], table.all()["b"], table.all()["TBW102"])
    ] == [
        (16, 7),
        (1, 7),
        (8, 7),
    ]
    queues = {name: config.write_queues for name, config in table.all().items()}
    assert {name: queues[name] for name in SYSTEM if queues[name] != 1} == {
        "BenchmarkTest": 1024,
        "C": 16,
        "SCHEDULE_TOPIC_XXXX": 18,
        "TBW102": 8,
    }
    assert queues == {name: config.read_queues for name, config in table.all().items()}
    assert "TBW102" not in a_table(tmp_path, auto_create=False)


async def test_a_topic_is_made_after_the_default_topic_on_the_first_send(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    assert made(table, "T") == TopicConfig(name="T", read_queues=4, write_queues=4, perm=6)
    assert made(table, "T", queues=2).write_queues == 4
    assert made(table, "Many", queues=100).write_queues == 8
    assert made(table, "None", queues=0).write_queues == 1
    unit = table.auto_create_on_send("Unit", "TBW102", 4, unit_mode=True)
    assert unit is not None
    assert unit.sys_flag == 1


async def test_no_topic_is_made_where_that_is_off_or_the_default_topic_does_not_pass_it_on(
    tmp_path: Path,
) -> None:
    table = a_table(tmp_path)
    made(table, "T")
    assert table.auto_create_on_send("New", "T", 4) is None
    assert table.auto_create_on_send("New", "nowhere", 4) is None
    assert a_table(tmp_path, auto_create=False).auto_create_on_send("New", "C", 4) is None
    with pytest.raises(InvalidOption):
        table.auto_create_on_send("../New", "TBW102", 4)
    await table.saved()


async def test_retry_and_dead_letter_topics_are_made_also_when_auto_creation_is_off(
    tmp_path: Path,
) -> None:
    table = a_table(tmp_path, auto_create=False)
    assert table.ensure_retry("G", 3) == TopicConfig(
        name="%RETRY%G", read_queues=3, write_queues=3, perm=6
    )
    assert table.ensure_retry("G") is table.get("%RETRY%G")
    assert table.ensure_dlq("G").name == "%DLQ%G"
    with pytest.raises(InvalidOption):
        table.ensure_retry("../G")
    await table.saved()


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../T"},
        {"name": "T" * 128},
        {"name": ""},
        {"name": "TBW102"},
        {"name": "b"},
        {"name": "rmq_sys_anything"},
        {"name": "RMQ_SYS_TRACE_TOPIC"},
        {"read_queues": -1},
        {"write_queues": MAX_MADE_QUEUES + 1},
        {"read_queues": MAX_MADE_QUEUES + 1},
        {"perm": 8},
        {"perm": -1},
        {"filter_type": "X"},
    ],
)
def test_a_topic_that_makes_no_sense_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    table = a_table(tmp_path)
    before = table.data_version
    with pytest.raises(InvalidOption):
        table.create_or_update(replace(TopicConfig(name="T"), **change))  # type: ignore[arg-type]
    assert table.data_version == before


async def test_a_topic_that_came_with_more_queues_than_can_be_made_is_changed_but_does_not_grow(
    tmp_path: Path,
) -> None:
    wide = TopicConfig(name="T", read_queues=5_000, write_queues=4_000)
    stored = {"topicConfigTable": {"T": wide.to_json()}, "dataVersion": DataVersion().to_json()}
    (tmp_path / "config").mkdir()
    JsonTable(OsFs(), tmp_path / "config" / "topics.json").save(stored)
    table = a_table(tmp_path)
    assert table.get("T") == wide
    table.create_or_update(replace(wide, perm=4, write_queues=5_000))
    with pytest.raises(InvalidOption, match="must be between 0 and 5000"):
        table.create_or_update(replace(wide, read_queues=5_001))
    table.create_or_update(replace(wide, read_queues=8, write_queues=MAX_MADE_QUEUES))
    with pytest.raises(InvalidOption, match="must be between 0 and 1024"):
        table.create_or_update(wide)
    await table.saved()


async def test_a_change_raises_the_version_and_is_told_and_an_equal_one_is_not(
    tmp_path: Path,
) -> None:
    table = a_table(tmp_path)
    told: list[int] = []
    table.changed.append(lambda: told.append(table.data_version.counter))
    table.create_or_update(TopicConfig(name="T"))
    table.create_or_update(TopicConfig(name="T"))
    table.create_or_update(TopicConfig(name="T", read_queues=8))
    assert table.delete("T")
    assert not table.delete("T")
    assert told == [2, 3, 4]
    assert table.data_version == DataVersion(4, 1234)
    with pytest.raises(InvalidOption):
        table.delete("TBW102")
    await table.saved()


async def test_topics_of_the_name_server_s_list_become_ordered_and_others_stay_as_they_are(
    tmp_path: Path,
) -> None:
    table = a_table(tmp_path)
    for name in ("T", "U", "V"):
        table.create_or_update(TopicConfig(name=name, order=name == "T"))
    before = table.data_version.counter
    table.mark_ordered({"U", "unknown"})
    table.mark_ordered({"U", "unknown"})
    assert [config.name for config in table if config.order] == ["T", "U"]
    assert table.data_version.counter == before + 1
    await table.saved()


async def test_the_table_is_bounded(tmp_path: Path) -> None:
    table = a_table(tmp_path, max_topics=len(SYSTEM) + 1)
    made(table, "T")
    with pytest.raises(InvalidOption, match="its limit is 13"):
        table.create_or_update(TopicConfig(name="U"))
    with pytest.raises(InvalidOption, match="its limit is 13"):
        table.auto_create_on_send("U", "TBW102", 4)
    table.create_or_update(TopicConfig(name="T", read_queues=9))
    await table.saved()


async def test_a_full_table_takes_the_retry_and_dead_letter_topics_of_groups(
    tmp_path: Path,
) -> None:
    """Anyone who may send can fill it, and must not stop a group by that."""
    table = a_table(tmp_path, max_topics=len(SYSTEM) + 1)
    made(table, "T")
    assert (table.ensure_retry("G").name, table.ensure_dlq("G").name) == ("%RETRY%G", "%DLQ%G")
    await table.saved()


async def test_topics_and_their_version_outlive_the_broker(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    table.create_or_update(
        TopicConfig(name="T", read_queues=3, attributes={"message.type": "FIFO"})
    )
    await table.saved()
    assert not table.unsaved
    again = a_table(tmp_path)
    assert again.all() == table.all()
    assert again.data_version == table.data_version
    assert not again.unsaved


async def test_the_topics_of_a_host_s_name_are_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = a_table(tmp_path, cluster="c.example", name="mq1.example")
    made(table, "T")
    await table.saved()
    assert a_table(tmp_path, cluster="c.example", name="mq1.example").all() == table.all()
    assert caplog.messages == []


def test_a_file_of_apache_s_broker_is_read(tmp_path: Path) -> None:
    """Pretty-printed, members of other releases inside; a name that no broker may hold is left
    out.
    """
    (tmp_path / "config").mkdir()
    topic = (
        '{"order":false,"perm":6,"readQueueNums":%d,"topicFilterType":"SINGLE_TAG",'
        '"topicName":"%s","topicSysFlag":0,"writeQueueNums":2}'
    )
    (tmp_path / "config" / "topics.json").write_text(
        '{\n\t"dataVersion":{\n\t\t"counter":7,\n\t\t"timestamp":1700000000000\n\t},\n'
        '\t"topicConfigTable":{\n'
        f'\t\t"T":{topic % (3, "T")},"../T":{topic % (3, "../T")},"TBW102":{topic % (5, "TBW102")}'
        f"\n\t}}\n}}"
    )
    table = a_table(tmp_path)
    assert table.get("T") == TopicConfig(name="T", read_queues=3, write_queues=2)
    assert table.all()["TBW102"].read_queues == 5
    assert "../T" not in table
    # the system topics that were missing
    assert table.data_version == DataVersion(8, 1234)


async def test_the_file_is_in_apache_s_form(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    made(table, "T")
    await table.saved()
    stored = json.loads((tmp_path / "config" / "topics.json").read_text())
    assert stored["dataVersion"] == {"counter": 2, "stateVersion": 0, "timestamp": 1234}
    assert stored["topicConfigTable"]["T"] == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }


async def test_what_waited_for_a_topic_that_is_gone_or_that_nobody_may_read_goes_to_its_first_queue(
    tmp_path: Path,
) -> None:
    """It is served when the topic has queues again, however few."""
    table = a_table(tmp_path)
    assert table.served("T", 7) == 0
    table.create_or_update(TopicConfig(name="T", read_queues=0, write_queues=0))
    assert table.served("T", 7) == 0
    table.create_or_update(TopicConfig(name="T", read_queues=4, write_queues=0))
    assert table.served("T", 7) == 3


async def test_no_way_to_make_a_topic_makes_one_that_is_too_wide(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    table.switch_auto_create(False, 8)
    table.switch_auto_create(True, 5_000)
    assert {
        made(table, "T", queues=5_000).write_queues,
        table.ensure_retry("G", 5_000).write_queues,
    } == {MAX_MADE_QUEUES}
