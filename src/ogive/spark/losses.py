"""Errors about lost messages: what is lost, and what can be done."""

from ogive.errors import DataLoss
from ogive.model import MessageQueue
from ogive.spark.ranges import QueueRange


def shrunk(queue: MessageQueue, end: int, position: int) -> DataLoss:
    return DataLoss(
        f"{queue} ends at offset {end}, but was read up to {position}: it lost messages, and new ones get the offsets of old ones. "
        f"With failOnDataLoss=false reading goes on at {end}."
    )


def data_loss(gone: QueueRange) -> DataLoss:
    return DataLoss(
        f"{len(gone)} messages of {gone.queue} are gone: offsets {gone.start} to {gone.end - 1} were deleted before they were read. "
        "With failOnDataLoss=false the read goes on behind them."
    )


def removed(gone: QueueRange) -> DataLoss:
    return DataLoss(
        f"{gone.queue} is not a queue of its topic any more, and its offsets {gone.start} to {gone.end - 1} were not read. Give the topic "
        "its queue back to read them; with failOnDataLoss=false reading goes on without them."
    )
