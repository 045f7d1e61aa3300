"""What the log says when a message is given up: by then its last try is over, and nobody else tells
it from the tries before.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from ogive.model import MessageExt, dlq_topic

log = logging.getLogger(__name__)

LINES: Final = 10
WINDOW_S: Final = 60.0


class DeadLetters:
    """One line a message, at most LINES in WINDOW_S; how many were left out stands in the next
    one.
    """

    def __init__(self, group: str, now: Callable[[], float] = time.monotonic) -> None:
        self._topic = dlq_topic(group)
        self._now = now
        self._ends = float("-inf")
        self._lines = self._left_out = 0

    def note(self, message: MessageExt, why: str) -> None:
        """A broker has taken *message*, whose last try ended with *why*."""
        now = self._now()
        if now >= self._ends:
            self._ends, self._lines = now + WINDOW_S, 0
        if self._lines == LINES:
            self._left_out += 1
            return
        more = f" (and {self._left_out:,} others before it)" if self._left_out else ""
        self._lines, self._left_out = self._lines + 1, 0
        tries = message.reconsume_times + 1
        log.warning(
            "%s/%d (id %s) is given up after %d %s and is in %s now%s: %s",
            message.queue,
            message.queue_offset,
            message.id,
            tries,
            "try" if tries == 1 else "tries",
            self._topic,
            more,
            why,
        )
