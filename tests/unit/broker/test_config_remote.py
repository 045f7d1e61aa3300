"""Settings that were changed over the network outlive a restart, until the configuration itself
says something new.
"""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from ogive.broker import Broker
from ogive.broker.config import BrokerConfig, RemoteSettings
from ogive.errors import ResponseCode
from ogive.store.fs import OsFs
from ogive.store.tables import JsonTable
from ogive.wire.codes import RequestCode
from tests.raw_client import RawClient
from tests.unit.broker.conftest import StartBroker


async def change(broker: Broker, *lines: str) -> None:
    async with await RawClient.open(broker.address) as client:
        await client.ok(RequestCode.UPDATE_BROKER_CONFIG, "\n".join(lines).encode())


def kept(broker: Broker) -> Any:
    return json.loads((broker.config.data / "config" / "remoteSettings.json").read_text())[
        "settings"
    ]


async def test_changed_settings_are_on_disk_before_the_answer_and_count_after_a_restart(
    start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await start_broker()
    await change(broker, "maxMessageSize=99", "autoCreateTopicEnable=false")
    assert kept(broker) == {
        "maxMessageSize": {"value": "99", "insteadOf": str(4 * 1024 * 1024)},
        "autoCreateTopicEnable": {"value": "false", "insteadOf": "true"},
    }
    await broker.stop()
    broker = await start_broker()
    assert "autoCreateTopicEnable=false, maxMessageSize=99" in caplog.text
    assert (broker.context.config.max_message_bytes, broker.context.config.auto_create_topics) == (
        99,
        False,
    )
    assert "TBW102" not in broker.context.topics
    assert (
        "autoCreateTopicEnable=false\n" in (broker.config.data / "apache-broker.conf").read_text()
    )
    async with await RawClient.open(broker.address) as client:
        assert (await client.start_send("New")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (
            "maxMessageSize=99\n" in (await client.ok(RequestCode.GET_BROKER_CONFIG)).body.decode()
        )


async def test_what_the_configuration_says_anew_counts_for_good(
    start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await start_broker(max_message_bytes=5000)
    await change(broker, "maxMessageSize=99", "maxTransferCountOnMessageInMemory=7")
    await change(broker, "maxMessageSize=98")
    await broker.stop()
    broker = await start_broker(max_message_bytes=6000)
    assert "maxMessageSize=98" in caplog.text
    assert (broker.context.config.max_message_bytes, broker.context.config.max_pull_messages) == (
        6000,
        7,
    )
    assert kept(broker).keys() == {"maxTransferCountOnMessageInMemory"}
    await broker.stop()
    broker = await start_broker(max_message_bytes=5000)
    assert broker.context.config.max_message_bytes == 5000


async def test_a_setting_that_is_put_back_follows_the_configuration_again(
    start_broker: StartBroker,
) -> None:
    broker = await start_broker(max_message_bytes=5000)
    await change(broker, "maxMessageSize=99")
    await broker.stop()
    broker = await start_broker(max_message_bytes=5000)
    await change(broker, "maxMessageSize=5000")
    assert kept(broker) == {}
    assert broker.context.config.max_message_bytes == 5000


async def test_without_a_change_there_is_no_file(start_broker: StartBroker) -> None:
    broker = await start_broker()
    await broker.stop()
    assert not (broker.config.data / "config" / "remoteSettings.json").exists()


@pytest.mark.parametrize("body", [b"\\ud800=1", b"maxMessageSize=\\udc00"])
async def test_half_a_character_is_refused_with_an_answer(
    start_broker: StartBroker, body: bytes
) -> None:
    """The answer names the setting, and holds only whole characters."""
    async with await RawClient.open((await start_broker()).address) as client:
        answer = await client.call(RequestCode.UPDATE_BROKER_CONFIG, body)
        assert answer.code != ResponseCode.SUCCESS
        assert "\ufffd" in (answer.remark or "")


@pytest.mark.parametrize(
    ("settings", "left_out"),
    [
        ({"storePathRootDir": {"value": "/etc", "insteadOf": "/store"}}, "storePathRootDir"),
        ({"maxMessageSize": {"value": "-1", "insteadOf": str(4 * 1024 * 1024)}}, "maxMessageSize"),
        ({"maxMessageSize": {"value": "0", "insteadOf": str(4 * 1024 * 1024)}}, "maxMessageSize"),
        ({"maxMessageSize": {"value": 99}}, "maxMessageSize"),
        ({"maxMessageSize": 99}, "maxMessageSize"),
        ([], ""),
    ],
)
def test_a_file_changes_nothing_that_a_command_could_not(
    tmp_path: Path, settings: object, left_out: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = JsonTable(OsFs(), tmp_path / "remoteSettings.json")
    table.save({"settings": settings})
    configured = BrokerConfig(data=tmp_path)
    with caplog.at_level(logging.WARNING):
        assert RemoteSettings(table, configured, lambda: 0).config == configured
    assert [left_out in record.getMessage() for record in caplog.records] == (
        [True] if left_out else []
    )
