"""Held pulls whose connection ends while one of them is answered: a client that does not read is cut off by an answer too many."""

from typing import Any, cast

import pytest

from ogive.broker.pull_hold import PullHolds
from ogive.transport.connection import Connection


class Held:
    """A pull whose answer ends its connection, as an answer beyond the limit of unsent bytes does."""

    key = ("T", 0)
    offset = 0

    def __init__(self, holds: PullHolds, connection: Connection, *, fatal: bool) -> None:
        self._holds, self.connection, self._fatal = holds, connection, fatal
        self.answers = 0

    def try_answer(self) -> bool:
        self.answer()
        return True

    def answer(self) -> None:
        self.answers += 1
        if self._fatal:
            self._holds.drop(self.connection)


@pytest.mark.parametrize("wake", ["an arrival", "the queue is gone", "the broker closes"])
async def test_a_connection_that_ends_by_an_answer_stops_no_other_pull(wake: str) -> None:
    holds = PullHolds(max_held=10, max_per_connection=10)
    slow, fine = cast("list[Connection]", [cast("Any", object()), cast("Any", object())])
    cut, its_other, another = Held(holds, slow, fatal=True), Held(holds, slow, fatal=False), Held(holds, fine, fatal=False)
    for pull in (cut, its_other, another):
        assert holds.hold(pull, 60.0)
    if wake == "an arrival":
        holds.arrived({("T", 0): 1})
    elif wake == "the queue is gone":
        holds.answer_all(("T", 0))
    else:
        holds.close()
    assert (cut.answers, another.answers, len(holds)) == (1, 1, 0)
