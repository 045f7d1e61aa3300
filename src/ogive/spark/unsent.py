"""Which rows of a repeated task an earlier attempt has not stored yet. Pure.

Behaviour
- A row is stored if one with its content is: behind a shuffle Spark brings the rows of a partition
  into another order each time. Of equal rows as many are passed over as are stored.
- A row with a key of the user's is stored if its key is, which tells the write and the topic as
  well.
- No two rows get one key: what equal rows still have to be sent take the keys of those that were
  passed over, where theirs is taken.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ogive.spark.rows import HEAD_DIGITS, KEY_DIGITS, Row


@dataclass(slots=True)
class _Equal:
    """Rows of one content. Keys without their heads."""

    stored: set[str]
    to_pass: int
    free: list[str] = field(default_factory=list)


class Unsent:
    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._stored: dict[str, list[str]] = {}
        self._equal: dict[str, _Equal] = {}
        self.add(keys)

    def add(self, keys: Iterable[str]) -> None:
        """The unique keys of everything in a topic, before any row for it is asked about."""
        for key in keys:
            if len(key) == KEY_DIGITS:
                self._stored.setdefault(key[:HEAD_DIGITS], []).append(key[HEAD_DIGITS:])

    def of(self, rows: Sequence[Row]) -> list[Row]:
        """Those of *rows* that are to be sent, in their order; a task's rows must all come by here
        once.
        """
        if not self._stored:
            return list(rows)
        return [row for row in map(self._look, rows) if row is not None]

    def _look(self, row: Row) -> Row | None:
        head, tail = row.key[:HEAD_DIGITS], row.key[HEAD_DIGITS:]
        tails = self._stored.get(head)
        if tails is None:
            return row
        if row.named:
            return None if tail in tails else row
        equal = self._equal.get(head)
        if equal is None:
            stored = set(tails)
            equal = self._equal[head] = _Equal(stored, len(stored))
        taken = tail in equal.stored
        if equal.to_pass:
            equal.to_pass -= 1
            if not taken:
                equal.free.append(tail)
            return None
        if not taken:
            return row
        # there is one: as many were passed over as are stored, and this row's key was none of
        # theirs
        key = head + equal.free.pop()
        return row._replace(
            key=key, properties=row.properties.replace(row.key.encode(), key.encode(), 1)
        )
