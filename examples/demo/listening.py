"""Bookkeeping of the two groups, apart from any broker."""

from typing import Any

from examples.demo.figures import Cancellations, InOrder


class OrderCheck:
    """Check that the events of each aircraft come in order."""

    def __init__(self) -> None:
        self.seen = InOrder()
        # tail number to the number of its last event
        self._last: dict[str, int] = {}
        # tail number to the scheduled time of its last departure
        self._scheduled: dict[str, int] = {}
        # events of flights without a tail number: they have no order
        self._unidentified: set[tuple[str, str]] = set()

    def see(self, event: dict[str, Any]) -> None:
        if self._is_repeated(event):
            self.seen.repeated += 1
            return
        self.seen.received += 1
        tail = event["tail"]
        if tail is None:
            return
        self.seen.out_of_order += event["sequence"] != self._last.get(tail, 0) + 1
        self._last[tail] = event["sequence"]
        self.seen.aircraft = len(self._last)
        if event["type"] == "departed":
            self.seen.schedule_reversals += event["scheduled"] < self._scheduled.get(
                tail, event["scheduled"]
            )
            self._scheduled[tail] = event["scheduled"]

    def _is_repeated(self, event: dict[str, Any]) -> bool:
        """Return True for a number that was seen before, or that comes after its successors: that
        one was counted when they came too early.
        """
        if (tail := event["tail"]) is not None:
            return bool(event["sequence"] <= self._last.get(tail, 0))
        name = (event["flight"], event["type"])
        if name in self._unidentified:
            return True
        self._unidentified.add(name)
        return False


class CancellationDesk:
    """Accept cancellations; refuse the ones of unknown aircraft, every time."""

    def __init__(self) -> None:
        self.seen = Cancellations()

    def take(self, event: dict[str, Any], reconsume_times: int) -> bool:
        """Return True if the cancellation is dealt with."""
        self.seen.deliveries += 1
        if event["tail"] is not None:
            self.seen.processed += 1
            return True
        tries = self.seen.by_reconsume_times
        tries[reconsume_times] = tries.get(reconsume_times, 0) + 1
        return False
