"""The broker's consumer groups: what may be made and changed, and the file they live in."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ogive.broker.replies import Rejected
from ogive.broker.state.config_table import BUILT_IN, GroupTable
from ogive.errors import InvalidOption
from ogive.store.fs import OsFs
from ogive.store.tables import JsonTable
from ogive.wire.bodies.configs import DataVersion, SubscriptionGroupConfig


def a_table(folder: Path, *, auto_create: bool = True, max_groups: int = 20_000) -> GroupTable:
    file = JsonTable(OsFs(), folder / "config" / "subscriptionGroup.json")
    return GroupTable(file, auto_create=auto_create, now_ms=lambda: 1234, max_groups=max_groups)


async def test_a_group_is_made_when_it_is_first_seen_with_java_s_defaults(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    assert [config.name for config in table] == list(BUILT_IN)
    assert table.find_or_create("G") == SubscriptionGroupConfig(
        name="G", retry_queues=1, retry_max_times=16
    )
    assert table.find_or_create("G") is table.get("G")
    with pytest.raises(Rejected, match=r"'\.\./G' may hold only letters"):
        table.find_or_create("../G")
    await table.saved()


def test_no_group_is_made_where_that_is_off(tmp_path: Path) -> None:
    table = a_table(tmp_path, auto_create=False)
    assert table.find_or_create("G") is None
    assert table.find_or_create("TOOLS_CONSUMER") is not None


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": "G" * 121},
        {"name": "a/b"},
        {"retry_queues": -1},
        {"retry_queues": 1025},
        {"retry_max_times": -2},
    ],
)
def test_a_group_that_makes_no_sense_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    config = replace(SubscriptionGroupConfig(name="G"), **change)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption):
        a_table(tmp_path).create_or_update(config)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"groupRetryPolicy": {"type": "NEVER"}}, "CUSTOMIZED or EXPONENTIAL"),
        (
            {
                "groupRetryPolicy": {
                    "type": "EXPONENTIAL",
                    "exponentialRetryPolicy": {"initial": "soon"},
                }
            },
            "exponentialRetryPolicy",
        ),
        ({"groupRetryPolicy": {"exponentialRetryPolicy": 5}}, "exponentialRetryPolicy"),
        ({"groupRetryPolicy": {"customizedRetryPolicy": {"next": 5}}}, "customizedRetryPolicy"),
        (
            {"groupRetryPolicy": {"customizedRetryPolicy": {"next": [1, "2"]}}},
            "customizedRetryPolicy",
        ),
        ({"subscriptionDataSet": [{"topic": 5}]}, "subscriptionDataSet"),
        ({"subscriptionDataSet": [{"topic": "T", "version": "new"}]}, "subscriptionDataSet"),
        ({"subscriptionDataSet": [{"topic": "T" * 20_000}]}, "16384"),
        ({"groupSysFlag": 1 << 31}, "groupSysFlag"),
        ({"retryMaxTimes": 1 << 31}, "retryMaxTimes"),
        ({"consumeTimeoutMinute": -1 - (1 << 31)}, "consumeTimeoutMinute"),
    ],
)
def test_what_apache_s_broker_could_not_read_again_is_refused(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    """One such group in the file, and Apache's broker starts with none of it."""
    with pytest.raises(InvalidOption, match=said):
        a_table(tmp_path).create_or_update(
            SubscriptionGroupConfig.from_json({"groupName": "G"} | change)
        )


async def test_a_change_raises_the_version_and_is_told_and_an_equal_one_is_not(
    tmp_path: Path,
) -> None:
    table = a_table(tmp_path)
    told: list[int] = []
    table.changed.append(lambda: told.append(table.data_version.counter))
    table.create_or_update(SubscriptionGroupConfig(name="G"))
    table.create_or_update(SubscriptionGroupConfig(name="G"))
    table.create_or_update(SubscriptionGroupConfig(name="G", retry_max_times=3))
    assert table.delete("G")
    assert not table.delete("G")
    assert told == [2, 3, 4]
    with pytest.raises(InvalidOption):
        table.delete("TOOLS_CONSUMER")
    await table.saved()


async def test_the_table_is_bounded(tmp_path: Path) -> None:
    table = a_table(tmp_path, max_groups=len(BUILT_IN) + 1)
    table.find_or_create("G")
    with pytest.raises(InvalidOption, match="its limit is 9"):
        table.find_or_create("H")
    table.create_or_update(SubscriptionGroupConfig(name="G", consume_enable=False))
    await table.saved()


async def test_groups_and_their_version_outlive_the_broker_in_apache_s_form(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    table.create_or_update(
        SubscriptionGroupConfig(name="G", retry_max_times=3, consume_message_orderly=True)
    )
    await table.saved()
    again = a_table(tmp_path)
    assert again.all() == table.all()
    assert again.data_version == table.data_version == DataVersion(2, 1234)
    stored = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_text())
    assert stored["subscriptionGroupTable"]["G"]["retryMaxTimes"] == 3
    assert stored["forbiddenTable"] == {}


async def test_a_file_of_apache_s_broker_is_read_and_what_is_forbidden_in_it_is_kept(
    tmp_path: Path,
) -> None:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "subscriptionGroup.json"
    path.write_text(
        '{\n\t"dataVersion":{"counter":4,"timestamp":1},\n\t"forbiddenTable":{"G":{"T":4}},\n'
        '\t"subscriptionGroupTable":{"G":{"groupName":"G","retryMaxTimes":5,"groupSysFlag":0},'
        '"../G":{"groupName":"../G"}}\n}'
    )
    table = a_table(tmp_path)
    config = table.get("G")
    assert config is not None
    assert config.retry_max_times == 5
    assert "../G" not in table
    await table.saved()
    assert json.loads(path.read_text())["forbiddenTable"] == {"G": {"T": 4}}
    assert not table.may_read("G", "T")
    assert table.may_read("G", "U")


@pytest.mark.parametrize("bits", ["4.0", '"4"', "-4", "null", "true", "8"])
def test_what_is_no_bit_for_reading_forbids_nothing(tmp_path: Path, bits: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "subscriptionGroup.json").write_text(
        f'{{"forbiddenTable":{{"G":{{"T":{bits}}},"H":[],"I":4}}}}'
    )
    table = a_table(tmp_path)
    assert all(table.may_read(group, "T") for group in "GHIJ")


async def test_forbidden_pairs_are_limited_and_other_bits_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ogive.broker.state.config_table.MAX_FORBIDDEN", 2)
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "subscriptionGroup.json"
    path.write_text('{"forbiddenTable":{"G":{"T":12}}}')
    table = a_table(tmp_path)
    table.forbid_or_allow("H", "T", may_read=False)
    with pytest.raises(InvalidOption, match="2 topics are forbidden"):
        table.forbid_or_allow("H", "U", may_read=False)
    table.forbid_or_allow("G", "T", may_read=True)
    await table.saved()
    assert json.loads(path.read_text())["forbiddenTable"] == {"G": {"T": 8}, "H": {"T": 4}}


FULL = {
    "attributes": {"priority.factor": "30", "of.a.later.release": "x"},
    "brokerId": 0,
    "consumeBroadcastEnable": False,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": True,
    "consumeTimeoutMinute": 20,
    "groupName": "G",
    "groupRetryPolicy": {
        "exponentialRetryPolicy": {"initial": 5000, "max": 7200000, "multiplier": 2},
        "type": "EXPONENTIAL",
    },
    "groupSysFlag": 3,
    "notifyConsumerIdsChangedEnable": False,
    "retryMaxTimes": 5,
    "retryQueueNums": 2,
    "subscriptionDataSet": [
        {"expression": "a", "expressionType": "TAG", "topic": "T", "version": 7}
    ],
    "whichBrokerWhenConsumeSlowly": 1,
}
"""A group with everything that Apache's 5.5.0 can write of one."""


async def test_every_setting_of_apache_s_group_comes_back_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "subscriptionGroup.json"
    path.write_text(
        json.dumps(
            {"dataVersion": {"counter": 4, "timestamp": 1}, "subscriptionGroupTable": {"G": FULL}}
        )
    )
    table = a_table(tmp_path)
    table.find_or_create("another")
    await table.saved()
    assert json.loads(path.read_text())["subscriptionGroupTable"]["G"] == FULL
    assert a_table(tmp_path).get("G") == table.get("G")
