"""Events from the flights table: times, order, numbering."""

import json
from datetime import UTC, datetime
from typing import Any

from examples.demo import flights
from examples.demo.dataset import Dataset, Zone


def bodies(dataset: Dataset, limit: int | None = None) -> list[dict[str, Any]]:
    return [json.loads(event.body) for event in flights.EventStream(dataset, limit)]


def times(dataset: Dataset, flight_number: str) -> dict[str, str]:
    return {
        body["type"]: datetime.fromtimestamp(body["at"] / 1000, UTC).isoformat()
        for body in bodies(dataset)
        if f"/{flight_number}/" in body["flight"]
    }


def test_a_flight_is_scheduled_departs_and_arrives_in_utc(dataset: Dataset) -> None:
    """Scheduled an hour ahead; the local clocks are five hours (New York) and six hours (Houston)
    behind in winter.
    """
    assert times(dataset, "1545") == {
        "scheduled": "2013-01-01T09:15:00+00:00",
        "departed": "2013-01-01T10:17:00+00:00",
        "arrived": "2013-01-01T14:30:00+00:00",
    }


def test_an_arrival_after_midnight_is_on_the_next_day(dataset: Dataset) -> None:
    assert times(dataset, "1546")["arrived"] == "2013-01-02T06:30:00+00:00"


def test_an_airport_outside_the_table_has_its_known_clock(dataset: Dataset) -> None:
    """Aguadilla (BQN) keeps Atlantic Standard Time: 10:04 there is 14:04 UTC."""
    assert times(dataset, "725")["arrived"] == "2013-01-01T14:04:00+00:00"


def test_summer_time_and_2400(dataset: Dataset) -> None:
    """24:00 in New York is 04:00 UTC in summer; 06:55 in Houston is then 11:55 UTC."""
    assert times(dataset, "31") == {
        "scheduled": "2013-07-05T02:00:00+00:00",
        "departed": "2013-07-05T04:00:00+00:00",
        "arrived": "2013-07-05T11:55:00+00:00",
    }


def test_an_arrival_is_read_on_the_changed_clock_when_it_changes_in_the_air() -> None:
    """Leaving Houston's winter time at 07:30 UTC on March 10; at 08:00 UTC its clocks jump from
    02:00 to 03:00.
    """
    houston = Zone(-6, True)
    left = int(datetime(2013, 3, 10, 7, 30, tzinfo=UTC).timestamp()) // 60
    assert (
        flights._arrival(left, "415", houston)
        == int(datetime(2013, 3, 10, 9, 15, tzinfo=UTC).timestamp()) // 60
    )


def test_a_cancellation_happens_at_the_scheduled_departure_and_may_lack_the_aircraft(
    dataset: Dataset,
) -> None:
    assert times(dataset, "791") == {
        "scheduled": "2013-01-02T23:35:00+00:00",
        "cancelled": "2013-01-03T00:35:00+00:00",
    }
    cancelled = [body for body in bodies(dataset) if body["type"] == "cancelled"]
    assert [(body["tail"], body["sequence"]) for body in cancelled] == [("N18120", 2), (None, None)]


def test_a_diverted_flight_arrives_without_a_delay(dataset: Dataset) -> None:
    arrived = {
        body["flight"]: body["delay"] for body in bodies(dataset) if body["type"] == "arrived"
    }
    assert arrived["2013-07-04/DL/31/JFK/2300"] is None
    assert arrived["2013-01-01/UA/1545/EWR/0515"] == 11


def test_events_come_in_time_order_with_each_aircraft_counting_up(dataset: Dataset) -> None:
    seen: dict[str, int] = {}
    events = bodies(dataset)
    assert [body["at"] for body in events] == sorted(body["at"] for body in events)
    for body in events:
        if body["tail"]:
            assert body["sequence"] == seen.get(body["tail"], 0) + 1
            seen[body["tail"]] = body["sequence"]
    assert seen == {"N14228": 6, "N804JB": 3, "N18120": 2, "N3759": 8}


def test_tag_key_and_sharding_key_agree_with_the_body(dataset: Dataset) -> None:
    for event in flights.EventStream(dataset):
        body = json.loads(event.body)
        assert (body["type"], body["flight"], body["tail"]) == (
            event.kind,
            event.flight,
            event.tail,
        )
        assert " " not in event.flight


def test_a_limit_takes_the_first_events_of_the_whole_run(dataset: Dataset) -> None:
    assert bodies(dataset, 5) == bodies(dataset)[:5]
