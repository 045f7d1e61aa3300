"""The groups' bookkeeping: order per aircraft, repeated deliveries, refused cancellations."""

import itertools
import json
from typing import Any

import pytest

from examples.demo import truth
from examples.demo.dataset import Dataset
from examples.demo.flights import EventStream
from examples.demo.listening import CancellationDesk, OrderCheck


@pytest.fixture
def stream(dataset: Dataset) -> list[dict[str, Any]]:
    return [json.loads(event.body) for event in EventStream(dataset)]


def watch(events: list[dict[str, Any]]) -> OrderCheck:
    check = OrderCheck()
    for event in events:
        check.see(event)
    return check


def of_aircraft(events: list[dict[str, Any]], tail: str) -> list[int]:
    return [index for index, event in enumerate(events) if event["tail"] == tail]


def test_events_in_send_order_are_in_order_and_count_what_the_files_say(
    stream: list[dict[str, Any]], dataset: Dataset
) -> None:
    expected, seen = truth.compute(dataset), watch(stream).seen
    assert (seen.received, seen.aircraft) == (expected.events, len(expected.aircraft))
    assert (seen.out_of_order, seen.repeated) == (0, 0)
    assert seen.schedule_reversals == expected.schedule_reversals == 1


def test_aircraft_may_be_interleaved_in_any_way(stream: list[dict[str, Any]]) -> None:
    by_aircraft = sorted(stream, key=lambda event: event["tail"] or "")
    assert watch(by_aircraft).seen.out_of_order == 0


def test_two_events_of_an_aircraft_that_swap_places_are_seen(stream: list[dict[str, Any]]) -> None:
    """Whichever neighbours they are."""
    for first, second in itertools.pairwise(of_aircraft(stream, "N3759")):
        swapped = list(stream)
        swapped[first], swapped[second] = swapped[second], swapped[first]
        assert watch(swapped).seen.out_of_order > 0


def test_a_lost_event_is_seen(stream: list[dict[str, Any]]) -> None:
    missing = of_aircraft(stream, "N14228")[2]
    seen = watch(stream[:missing] + stream[missing + 1 :]).seen
    assert seen.out_of_order == 1
    assert seen.received == len(stream) - 1


def test_an_event_that_comes_again_counts_once(stream: list[dict[str, Any]]) -> None:
    """Also when the aircraft is unknown and the event has no number."""
    twice = [event for event in stream for _ in range(2)]
    seen = watch(twice).seen
    assert (seen.received, seen.repeated, seen.out_of_order) == (len(stream), len(stream), 0)


def test_the_desk_refuses_cancellations_of_unknown_aircraft_each_time_they_come() -> None:
    desk = CancellationDesk()
    assert desk.take({"tail": "N1"}, 0)
    assert [desk.take({"tail": None}, times) for times in range(3)] == [False, False, False]
    assert (desk.seen.deliveries, desk.seen.processed, desk.seen.first_deliveries) == (4, 1, 2)
    assert desk.seen.by_reconsume_times == {0: 1, 1: 1, 2: 1}
