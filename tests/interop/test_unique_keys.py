"""Unique keys count milliseconds from the moment that Apache's clients count from."""

from datetime import UTC, datetime

import pytest

from ogive.client.ids import UniqueKeys
from tests.interop import apache
from tests.zones import local_zone

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Shanghai",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Asia/Amman",
    "Africa/Casablanca",
    "America/Asuncion",
    "America/Havana",
)
TIMES = [
    int(datetime(year, month, 20, hour, tzinfo=UTC).timestamp() * 1000)
    for year in (2011, 2017, 2020, 2024)
    for month in range(1, 13)
    for hour in (2, 17)
]


def test_the_month_begins_when_javas_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    run = apache.run_java(
        "Months", f"zones={','.join(ZONES)}", f"times={','.join(map(str, TIMES))}"
    )
    assert run.code == 0, run.other
    starts = {(row["zone"], row["time"]): row["start"] for row in run.lines}
    assert len(starts) == len(ZONES) * len(TIMES)
    ours = {}
    for zone in ZONES:
        with local_zone(zone, monkeypatch):
            for time in TIMES:
                ours[zone, time] = time - int(UniqueKeys().next(time)[20:28], 16)
    assert ours == starts
