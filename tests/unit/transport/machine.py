"""Time that stands still until a test moves it."""

from ogive.transport.event_loop import Expectation

LIMIT_S = 100e-6


class Machine:
    """Its time, how often it took the processor away, and how long it keeps whoever gives way."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.taken_away = 0
        self.keeps_s = 0.0

    def expectation(self, limit_s: float = LIMIT_S) -> Expectation:
        return Expectation(
            limit_s, clock=lambda: self.now, taken_away=lambda: self.taken_away, give_way=self._take
        )

    def _take(self) -> None:
        self.now += self.keeps_s
