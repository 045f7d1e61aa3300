"""Errors about lost messages: what is lost, and what can be done."""

from datetime import UTC, datetime

from ogive.errors import DataLoss
from ogive.model import MessageQueue
from ogive.spark.ranges import QueueRange


def shrunk(queue: MessageQueue, end: int, position: int) -> DataLoss:
    return DataLoss(
        f"{queue} ends at offset {end}, but was read up to {position}: it lost messages, and new "
        "ones get the offsets of old ones. "
        f"With failOnDataLoss=false reading goes on at {end}."
    )


def data_loss(gone: QueueRange) -> DataLoss:
    return DataLoss(
        f"{len(gone)} messages of {gone.queue} are gone: offsets {gone.start} to {gone.end - 1} "
        "were deleted before they were read. "
        "With failOnDataLoss=false the read goes on behind them."
    )


def removed(gone: QueueRange) -> DataLoss:
    return DataLoss(
        f"{gone.queue} is not a queue of its topic any more, and its offsets {gone.start} to "
        f"{gone.end - 1} were not read. Give the topic "
        "its queue back to read them; with failOnDataLoss=false reading goes on without them."
    )


def deleted(queue: MessageQueue, position: int, planned: int | None = None) -> DataLoss:
    """Return the error for a topic that is gone from the queue's broker.

    *planned* is the end of an open batch.
    """
    missing = (
        "what came after that is" if planned is None else f"offsets {position} to {planned - 1} are"
    )
    return DataLoss(
        f"topic {queue.topic} was deleted from broker {queue.broker_name}: {queue} was read up to "
        f"offset {position}, and {missing} lost. "
        "With failOnDataLoss=false reading goes on without the queue, and begins with its first "
        "message if the topic is made again."
    )


def made_anew(
    queue: MessageQueue, position: int, first: int, stored_ms: int, was_ms: int
) -> DataLoss:
    """Return the error for a topic that was deleted and made again.

    *stored_ms* is the store time of the message found, *was_ms* that of the last message read.
    """
    # the messages may be of one second
    now, before = (
        f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%d %H:%M:%S}.{ms % 1000:03d}"
        for ms in (stored_ms, was_ms)
    )
    return DataLoss(
        f"{queue} was read up to offset {position}, and its topic was deleted and made again "
        f"since: it holds a message of {now} UTC "
        f"where one of {before} UTC was read. Its offsets {first} to {position - 1} hold messages "
        "that were not read. "
        "With failOnDataLoss=false reading goes on at its first message."
    )
