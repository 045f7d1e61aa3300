"""Settings that cannot work are refused before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from ogive.broker import BrokerConfig
from ogive.errors import InvalidOption


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ({"port": 65536}, "port"),
        ({"flush": "never"}, "flush"),
        ({"delay_levels": "1s 5x"}, "delay levels"),
        ({"delay_levels": ""}, "delay levels are empty"),
        ({"delay_levels": "1s -5s"}, "delay levels"),
        ({"delay_levels": "1_0s"}, "delay levels"),
        (
            {"delay_levels": "106751991167d 1s"},
            "delay level 106751991167d is too long: must be at most 14600d",
        ),
        ({"delay_levels": f"1s {'9' * 5000}s"}, "delay levels"),
        ({"delay_levels": "14601d"}, "too long"),
        ({"broker_id": -1}, "broker_id"),
        ({"name": ""}, "name"),
        ({"host": "0.0.0.0"}, "advertised_host"),
        ({"host": "fe80::1%lo"}, "without a zone"),
        ({"advertised_host": "0.0.0.0"}, "to which clients connect"),
        ({"timer_max_delay_s": float("inf")}, "timer_max_delay_s=inf: must be at most 1"),
        ({"duplicate_window_s": float("nan")}, "duplicate_window_s=nan"),
        ({"region": "x\x02y"}, "region 'x.x02y': text in UTF-8"),
        ({"host": "broker.example"}, "IP address"),
        ({"max_held_pulls": 0}, "max_held_pulls"),
        ({"lock_lease_s": 0}, "lock_lease_s"),
        ({"busy_poll_s": -1e-6}, "busy_poll_s"),
        ({"busy_poll_s": 100}, "busy_poll_s"),
    ],
)
def test_a_setting_that_cannot_work_is_named(setting: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidOption, match=word):
        BrokerConfig(**({"data": Path("store")} | setting))


def test_the_defaults_are_apaches_where_they_meet() -> None:
    config = BrokerConfig(data=Path("store"))
    assert (config.port, config.cluster, config.name, config.broker_id) == (
        10911,
        "DefaultCluster",
        "broker-a",
        0,
    )
    assert (config.max_message_bytes, config.max_pull_messages, config.max_pull_bytes) == (
        4 * 1024 * 1024,
        32,
        256 * 1024,
    )
    assert (config.lock_lease_s, config.client_expiry_s, config.offsets_persist_s) == (
        60.0,
        120.0,
        5.0,
    )
    assert len(config.levels.delays_ms) == 18
