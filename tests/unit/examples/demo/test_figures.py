"""The comparison: silent when all is right, and a single wrong figure anywhere shows."""

import copy
from collections.abc import Callable

import pytest

from examples.demo import figures, names, truth
from examples.demo.dataset import Dataset
from examples.demo.figures import Cancellations, Check, DeadLetters, InOrder, Observed
from examples.demo.truth import Truth

MAX_RETRIES = 2


@pytest.fixture
def expected(dataset: Dataset) -> Truth:
    return truth.compute(dataset)


@pytest.fixture
def observed(expected: Truth) -> Observed:
    """A run in which everything went well."""
    return Observed(
        sent=dict(expected.kinds),
        in_order=InOrder(received=21, aircraft=4, out_of_order=0, schedule_reversals=1, repeated=7),
        cancellations=Cancellations(
            deliveries=4, processed=1, by_reconsume_times={0: 1, 1: 1, 2: 1}
        ),
        dead_letters=DeadLetters(rows=1, flights=1, without_tail=1, airports={"LGA": 1}),
        rows_streamed=21,
        parquet=copy.deepcopy(expected.hours),
        topic=copy.deepcopy(expected.hours),
        lag=dict.fromkeys(names.UNFILTERED_GROUPS, 0),
    )


def differences(expected: Truth, observed: Observed) -> list[Check]:
    return [
        check
        for check in figures.compare(expected, observed, max_retries=MAX_RETRIES)
        if not check.ok
    ]


def test_a_good_run_has_no_difference(expected: Truth, observed: Observed) -> None:
    assert differences(expected, observed) == []


def one_hour_late(observed: Observed) -> None:
    hours = dict(observed.parquet)
    key = next(iter(hours))
    hours[key[0], key[1] + 60_000] = hours.pop(key)
    observed.parquet = hours


def delay_off_by_one(observed: Observed) -> None:
    next(iter(observed.topic.values())).delay_min += 1


PLANTED: list[Callable[[Observed], object]] = [
    lambda o: o.sent.update(departed=o.sent["departed"] - 1),
    lambda o: o.sent.pop("arrived"),
    lambda o: setattr(o.in_order, "received", 20),
    lambda o: setattr(o.in_order, "aircraft", 5),
    lambda o: setattr(o.in_order, "out_of_order", 1),
    lambda o: setattr(o.in_order, "schedule_reversals", 0),
    lambda o: setattr(o.cancellations, "deliveries", 5),
    lambda o: setattr(o.cancellations, "processed", 0),
    lambda o: o.cancellations.by_reconsume_times.update({2: 0}),
    lambda o: setattr(o.dead_letters, "rows", 2),
    lambda o: setattr(o.dead_letters, "flights", 0),
    lambda o: setattr(o.dead_letters, "without_tail", 0),
    lambda o: o.dead_letters.airports.clear(),
    lambda o: setattr(o, "rows_streamed", 22),
    lambda o: setattr(o, "parquet", {}),
    lambda o: setattr(o, "topic", {}),
    lambda o: o.lag.update({names.SPARK_GROUP: 1}),
    lambda o: o.lag.clear(),
    one_hour_late,
    delay_off_by_one,
]


@pytest.mark.parametrize("plant", PLANTED)
def test_one_planted_wrong_figure_is_found(
    plant: Callable[[Observed], object], expected: Truth, observed: Observed
) -> None:
    plant(observed)
    assert differences(expected, observed)


def test_a_wrong_hour_is_named_with_its_figure(expected: Truth, observed: Observed) -> None:
    key = ("EWR", min(hour for airport, hour in expected.hours if airport == "EWR"))
    observed.topic[key].scheduled += 1
    found = differences(expected, observed)
    assert [(check.section, check.expected, check.actual) for check in found] == [
        ("Spark to topic", len(expected.hours), len(expected.hours) - 1),
        ("Spark to topic", 1, 2),
    ]
    assert found[1].name == "EWR, 2013-01-01 09:00 UTC, scheduled"


def test_a_run_without_failing_cancellations_is_compared_too(
    expected: Truth, observed: Observed
) -> None:
    """A short run may end before the first one."""
    expected.unidentified.clear()
    observed.cancellations = Cancellations(deliveries=2, processed=2)
    observed.dead_letters = DeadLetters()
    assert differences(expected, observed) == []
