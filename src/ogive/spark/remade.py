"""Recognize a topic that was deleted and created again.

Its queues have other messages at the offsets that were read before. The store time of the last
message that was read from a queue shows it; the checkpoint stores it beside the position.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ogive.errors import OgiveError
from ogive.model import MessageQueue
from ogive.spark.cluster import Cluster
from ogive.spark.offsets import Positions, Spans

log = logging.getLogger(__name__)

Look = Callable[[Positions], Mapping[MessageQueue, int]]
"""Return the store times of the messages at these offsets, as far as brokers answer."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The first and the next offset of each queue, and the store time of its last message."""

    first: Positions = field(default_factory=dict)
    latest: Positions = field(default_factory=dict)
    stored_ms: Positions = field(default_factory=dict)

    @classmethod
    def of(cls, spans: Spans) -> "Ends":
        return cls(
            first={queue: span.min_offset for queue, span in spans.items()},
            latest={queue: span.max_offset for queue, span in spans.items()},
            stored_ms={
                queue: span.last_update_timestamp
                for queue, span in spans.items()
                if span.last_update_timestamp > 0
            },
        )


def find_remade(
    ends: Ends, begin: Positions, times: Mapping[MessageQueue, int], look: Look
) -> Mapping[MessageQueue, int]:
    """Return the queues that were created again, each with the store time of a message that shows
    it.

    *times* are the store times of the last messages before *begin*. In a queue that is shorter now
    the first message shows it.
    """
    look_at: dict[MessageQueue, int] = {}
    for queue, ms in times.items():
        position, first, latest = begin[queue], ends.first.get(queue, 0), ends.latest.get(queue, 0)
        same = latest == position and ends.stored_ms.get(queue, ms) == ms
        if first < min(position, latest) and not same:
            look_at[queue] = position - 1 if latest >= position else first
    return {
        queue: ms
        for queue, ms in look(look_at).items()
        if ms > times[queue] or (ms != times[queue] and look_at[queue] == begin[queue] - 1)
    }


def times_at(
    end: Positions, ends: Ends, begin: Positions, times: Mapping[MessageQueue, int], look: Look
) -> dict[MessageQueue, int]:
    """Return the store times of the last messages before *end*.

    *times* are those before *begin*.
    """
    kept = {queue: ms for queue, ms in times.items() if end.get(queue) == begin.get(queue)}
    told = {
        queue: ms
        for queue, ms in ends.stored_ms.items()
        if queue not in kept and end.get(queue) == ends.latest[queue]
    }
    unknown = {
        queue: at - 1
        for queue, at in end.items()
        if at > ends.first.get(queue, at) and queue not in kept and queue not in told
    }
    return {**kept, **told, **look(unknown)}


def look_at(cluster: Cluster, offsets: Positions, group: str) -> Mapping[MessageQueue, int]:
    """Return the store times of the messages at *offsets*, or none if a broker does not answer."""
    try:
        return cluster.stored_ms(offsets, group) if offsets else {}
    except OgiveError as exc:
        log.warning("could not read the last consumed messages again: %s", exc)
        return {}
